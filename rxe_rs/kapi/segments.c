// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: segments of regions for users in the kernel (rxe_rs/include/rdma/rxe_rs.h).
 */
#include <linux/memremap.h>
#include <linux/mm.h>
#include "bindings_helper.h"
#include "../include/rdma/rxe_rs.h"

static struct rxe_rs_segment_ops rxe_rs_segment_ops;

/* The same functions for all devices. */
void rxe_rs_segments_setup(const struct rxe_rs_segment_ops *ops)
{
	WRITE_ONCE(rxe_rs_segment_ops.fill, ops->fill);
	WRITE_ONCE(rxe_rs_segment_ops.add, ops->add);
	WRITE_ONCE(rxe_rs_segment_ops.remove, ops->remove);
	WRITE_ONCE(rxe_rs_segment_ops.move, ops->move);
}

/* The kernel address of an entry's first byte; NULL if it is not all memory that the CPU can use. */
static void *rxe_rs_sg_address(struct scatterlist *sg)
{
	struct page *page = sg_page(sg);
	void *addr;

	if (!page || !sg->length || is_device_private_page(page) || is_pci_p2pdma_page(page))
		return NULL;
	addr = page_address(page);
	if (!addr || !rxe_rs_linear_range((uintptr_t)addr + sg->offset, sg->length))
		return NULL;
	return addr + sg->offset;
}

/*
 * Where the memory of a list is, by one extent for each of its entries: `to` has room for `nents`.
 * Returns the number of bytes, or 0 if the list is shorter or names something else.
 */
u64 rxe_rs_sg_extents(struct scatterlist *sg, u32 nents, struct rxe_rs_extent *to)
{
	u64 offset = 0;
	u32 i;

	for (i = 0; i < nents; i++, sg = sg_next(sg)) {
		void *addr = sg ? rxe_rs_sg_address(sg) : NULL;

		if (!addr)
			return 0;
		to[i] = (struct rxe_rs_extent){ .offset = offset, .addr = addr };
		offset += sg->length;
	}
	return offset;
}

/* Whether the device is one of this module. */
static bool rxe_rs_is_ours(const struct ib_device *dev)
{
	return dev->ops.owner == THIS_MODULE;
}

static int rxe_rs_segments_of(const struct ib_mr *mr)
{
	might_sleep();
	if (!rxe_rs_is_ours(mr->device))
		return -EPROTONOSUPPORT;
	/* Its process may be changing it. */
	return mr->uobject ? -EINVAL : 0;
}

struct ib_mr *rxe_rs_mr_reg_sg(struct ib_pd *pd, struct scatterlist *sg, int nents, u64 iova,
			       int access, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unwanted;
	struct ib_mr *mr;
	int err;

	might_sleep();
	if (!rxe_rs_is_ours(pd->device))
		return ERR_PTR(-EPROTONOSUPPORT);
	if (pd->uobject)
		return ERR_PTR(-EINVAL);
	/* By way of the core, which keeps count of it. */
	mr = ib_alloc_mr(pd, (enum ib_mr_type)RXE_RS_MR_TYPE_SEGMENTS, 0);
	if (IS_ERR(mr))
		return mr;
	err = READ_ONCE(rxe_rs_segment_ops.fill)(mr, sg, nents, iova, access, state ?: &unwanted);
	if (err) {
		ib_dereg_mr(mr);
		return ERR_PTR(err);
	}
	return mr;
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_reg_sg);

int rxe_rs_mr_add_sg(struct ib_mr *mr, struct scatterlist *sg, int nents, u64 iova,
		     struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unwanted;

	return rxe_rs_segments_of(mr) ?:
	       READ_ONCE(rxe_rs_segment_ops.add)(mr, sg, nents, iova, state ?: &unwanted);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_add_sg);

static int rxe_rs_segments_remove(struct ib_mr *mr, struct rxe_rs_mr_remove *request,
			       struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unwanted;
	int err = rxe_rs_segments_of(mr);

	if (err)
		return err;
	request->rkey = mr->rkey;
	return READ_ONCE(rxe_rs_segment_ops.remove)(mr, request, state ?: &unwanted);
}

int rxe_rs_mr_remove(struct ib_mr *mr, u64 handle, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_remove request = { .handle = handle, .flags = RXE_RS_BY_HANDLE };

	return rxe_rs_segments_remove(mr, &request, state);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_remove);

int rxe_rs_mr_remove_range(struct ib_mr *mr, u64 start, u64 length, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_remove request = { .start = start, .length = length, .flags = RXE_RS_BY_RANGE };

	return rxe_rs_segments_remove(mr, &request, state);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_remove_range);

int rxe_rs_mr_move(struct ib_mr *mr, u64 handle, u64 iova, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unwanted;

	return rxe_rs_segments_of(mr) ?:
	       READ_ONCE(rxe_rs_segment_ops.move)(mr, handle, iova, state ?: &unwanted);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_move);
