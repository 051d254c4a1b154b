// SPDX-License-Identifier: GPL-2.0
/* Time to create many objects, as an application has them, and to destroy them. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ktime.h>
#include <linux/slab.h>
#include "kbench.h"

static int make_pd(struct end *e, void **object)
{
	struct ib_pd *pd = ib_alloc_pd(e->dev, 0);

	*object = pd;
	return PTR_ERR_OR_ZERO(pd);
}

static void destroy_pd(void *object)
{
	ib_dealloc_pd(object);
}

static void ignore(struct ib_cq *cq, void *context)
{
}

static int make_cq(struct end *e, void **object)
{
	struct ib_cq_init_attr attr = { .cqe = 128 };
	struct ib_cq *cq = ib_create_cq(e->dev, ignore, NULL, NULL, &attr);

	*object = cq;
	return PTR_ERR_OR_ZERO(cq);
}

static void destroy_cq(void *object)
{
	ib_destroy_cq(object);
}

static int make_qp(struct end *e, void **object)
{
	struct ib_qp_init_attr attr = e->qp_attr;
	struct ib_qp *qp = ib_create_qp(e->pd, &attr);

	*object = qp;
	return PTR_ERR_OR_ZERO(qp);
}

static void destroy_qp(void *object)
{
	ib_destroy_qp(object);
}

static int make_mr(struct end *e, void **object)
{
	struct ib_mr *mr = ib_alloc_mr(e->pd, IB_MR_TYPE_MEM_REG, 16);

	*object = mr;
	return PTR_ERR_OR_ZERO(mr);
}

static void destroy_mr(void *object)
{
	ib_dereg_mr(object);
}

static int make_ah(struct end *e, void **object)
{
	struct rdma_ah_attr attr = { };
	struct ib_ah *ah;
	int ret = address_of(e, e, &attr);

	if (ret)
		return ret;
	ah = rdma_create_ah(e->pd, &attr, 0);
	*object = ah;
	return PTR_ERR_OR_ZERO(ah);
}

static void destroy_ah(void *object)
{
	rdma_destroy_ah(object, 0);
}

const struct object objects[] = {
	{ "pd", make_pd, destroy_pd },
	{ "cq", make_cq, destroy_cq },
	{ "qp", make_qp, destroy_qp },
	{ "mr", make_mr, destroy_mr },
	{ "ah", make_ah, destroy_ah },
	{ }
};

int measure_object(struct pair *p, const struct object *object, const struct measure *m)
{
	ktime_t start, made, gone;
	void **list;
	u32 i, n;
	int ret = 0;

	list = kvcalloc(m->count, sizeof(*list), GFP_KERNEL);
	if (!list)
		return -ENOMEM;
	start = ktime_get();
	for (n = 0; n < m->count; n++) {
		ret = object->make(&p->a, &list[n]);
		if (ret)
			break;
	}
	made = ktime_get();
	for (i = 0; i < n; i++)
		object->destroy(list[i]);
	gone = ktime_get();
	kvfree(list);
	if (ret)
		return ret;
	pr_info("create_%s %llu\n", object->name,
		div_u64(ktime_to_ns(ktime_sub(made, start)), n));
	pr_info("destroy_%s %llu\n", object->name,
		div_u64(ktime_to_ns(ktime_sub(gone, made)), n));
	return 0;
}
