// SPDX-License-Identifier: GPL-2.0
/* Modification of address handles, and attributes of a device that a consumer can set. */
#include <linux/bottom_half.h>
#include "kverbs.h"

#define QKEY 0x1234
/* Length of the GRH that precedes a received datagram. */
#define GRH 40
#define LEN 100

/* Creates a UD QP in RTS in place of the connected one. */
static int to_datagrams(struct end *e)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int ret;

	ib_destroy_qp(e->qp);
	e->qp_attr.qp_type = IB_QPT_UD;
	ret = qp_make(e) ?:
	      ib_modify_qp(e->qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY);
	if (ret)
		return ret;
	attr.qp_state = IB_QPS_RTS;
	return set_state(e, IB_QPS_RTR) ?: ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN);
}

/* A datagram that one end sends with the address handle arrives at the other, or at itself. */
static void arrives(const char *what, struct end *from, struct ib_ah *ah, struct end *to, u32 seed)
{
	struct ib_sge sge = {
		.addr = from->addr + BUF_LEN / 2,
		.length = LEN,
		.lkey = from->pd->local_dma_lkey,
	};
	struct ib_ud_wr wr = {
		.wr = {
			.opcode = IB_WR_SEND,
			.sg_list = &sge,
			.num_sge = 1,
			.send_flags = IB_SEND_SIGNALED,
		},
		.ah = ah,
		.remote_qpn = to->qp->qp_num,
		.remote_qkey = QKEY,
	};
	struct ib_wc wc;
	int i;

	memset(to->buf, 0, GRH + LEN);
	fill(from->buf + BUF_LEN / 2, LEN / 4, seed, 0);
	is(what, post_recv(to, seed), 0);
	is(what, ib_post_send(from->qp, &wr.wr, NULL), 0);
	/* One of them is the completion of the send if both ends are the same. */
	for (i = 0; i < 2; i++) {
		is(what, take(i ? to : from, &wc), 0);
		is(what, wc.status, IB_WC_SUCCESS);
	}
	is(what, matches(to->buf + GRH, LEN / 4, seed, 0), true);
}

static void ah_modify(struct pair *p)
{
	struct rdma_ah_attr there = {}, here = {}, bad, got = {};
	struct ib_ah *ah;
	int ret;

	if (!is("datagrams", to_datagrams(&p->a) ?: to_datagrams(&p->b), 0) ||
	    !is("addresses",
		address_of(&p->a, &p->b, &there) ?: address_of(&p->a, &p->a, &here), 0))
		return;
	ah = rdma_create_ah(p->a.pd, &there, RDMA_CREATE_AH_SLEEPABLE);
	if (!is("making a handle", PTR_ERR_OR_ZERO(ah), 0))
		return;
	arrives("to the peer", &p->a, ah, &p->b, 1);

	/* In atomic context, as consumers that hold locks call it. */
	local_bh_disable();
	ret = rdma_modify_ah(ah, &here);
	local_bh_enable();
	is("modifying", ret, 0);
	is("query_ah", rdma_query_ah(ah, &got), 0);
	is("GID", memcmp(&got.grh.dgid, &p->a.gid->gid, sizeof(got.grh.dgid)), 0);
	arrives("to itself", &p->a, ah, &p->a, 2);

	bad = there;
	bad.ah_flags = 0;
	is("no path", rdma_modify_ah(ah, &bad), -EINVAL);
	arrives("to itself still", &p->a, ah, &p->a, 3);

	is("modifying again", rdma_modify_ah(ah, &there), 0);
	arrives("to the peer again", &p->a, ah, &p->b, 4);
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
}

static u64 system_image(struct ib_device *dev)
{
	struct ib_udata udata = {};
	struct ib_device_attr attr;

	memset(&attr, 0, sizeof(attr));
	is("query_device", dev->ops.query_device(dev, &attr, &udata), 0);
	is("the core's copy", be64_to_cpu(dev->attrs.sys_image_guid),
	   be64_to_cpu(attr.sys_image_guid));
	return be64_to_cpu(attr.sys_image_guid);
}

static void device_modify(struct pair *p)
{
	struct ib_device_modify modify = { .sys_image_guid = 0x0102030405060708 };
	struct ib_device *dev = p->a.dev;
	u64 before = system_image(dev);

	is("modify_device", ib_modify_device(dev, IB_DEVICE_MODIFY_SYS_IMAGE_GUID, &modify), 0);
	is("GUID", system_image(dev), modify.sys_image_guid);
	is("unknown", ib_modify_device(dev, 1 << 7 | IB_DEVICE_MODIFY_SYS_IMAGE_GUID, &modify),
	   -EOPNOTSUPP);
	modify.sys_image_guid = before;
	is("setting it back", ib_modify_device(dev, IB_DEVICE_MODIFY_SYS_IMAGE_GUID, &modify), 0);
	is("back", system_image(dev), before);
}

#define POLL .setup = { .context = POLLED }

const struct test path_tests[] = {
	{ "ah_modify", ah_modify, POLL },
	{ "device_modify", device_modify, POLL },
	{}
};
