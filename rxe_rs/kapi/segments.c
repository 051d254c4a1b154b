// SPDX-License-Identifier: GPL-2.0
/*
 * Segments of regions for kernel consumers. rxe_rs/include/rdma/rxe_rs.h documents the exported
 * functions.
 */
#include <linux/memremap.h>
#include <linux/mm.h>
#include "bindings_helper.h"
#include "../include/rdma/rxe_rs.h"

static const struct rxe_rs_segment_ops *rxe_rs_segment_ops;

/**
 * rxe_rs_segments_setup() - set the functions that implement the exported ones
 * @ops: the functions; must be valid as long as the module is loaded
 *
 * All devices of the module share the functions.
 *
 * Context: Any context.
 */
void rxe_rs_segments_setup(const struct rxe_rs_segment_ops *ops)
{
	WRITE_ONCE(rxe_rs_segment_ops, ops);
}

/*
 * Returns the kernel address of the first byte of a scatterlist entry, NULL if the CPU cannot
 * access all of its memory.
 */
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

/**
 * rxe_rs_sg_extents() - convert a scatterlist to kernel addresses
 * @sg: scatterlist
 * @nents: number of entries to convert
 * @to: receives one extent for each entry; holds @nents extents
 *
 * Context: Any context.
 * Return: The number of bytes, or 0 if the list has fewer entries, or one that is empty or that the
 * CPU cannot access.
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

static bool rxe_rs_is_own_device(const struct ib_device *dev)
{
	return dev->ops.owner == THIS_MODULE;
}

/*
 * Returns 0 if the exported function @operation may use an object of @dev. The process that owns an
 * object with a @uobject may be changing it at the same time.
 */
static int rxe_rs_segments_check(const struct ib_device *dev, const struct ib_uobject *uobject,
				 const char *operation)
{
	might_sleep();
	if (!rxe_rs_is_own_device(dev)) {
		rxe_rs_device_dbg(dev, "not a device of rxe_rs");
		return rxe_rs_device_checked(dev, operation, -EPROTONOSUPPORT);
	}
	if (uobject) {
		rxe_rs_device_dbg(dev, "an object of a process");
		return rxe_rs_device_checked(dev, operation, -EINVAL);
	}
	return 0;
}

struct ib_mr *rxe_rs_mr_reg_sg(struct ib_pd *pd, struct scatterlist *sg, int nents, u64 iova,
			       int access, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unused;
	struct ib_mr *mr;
	int err;

	err = rxe_rs_segments_check(pd->device, pd->uobject, "mr_reg_sg");
	if (err)
		return ERR_PTR(err);
	/* The core allocates the region, because it counts the regions of a protection domain. */
	mr = ib_alloc_mr(pd, (enum ib_mr_type)RXE_RS_MR_TYPE_SEGMENTS, 0);
	if (IS_ERR(mr))
		return mr;
	err = READ_ONCE(rxe_rs_segment_ops)->fill(mr, sg, nents, iova, access, state ?: &unused);
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
	struct rxe_rs_mr_state unused;

	return rxe_rs_segments_check(mr->device, mr->uobject, "mr_add_sg") ?:
	       READ_ONCE(rxe_rs_segment_ops)->add(mr, sg, nents, iova, state ?: &unused);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_add_sg);

static int rxe_rs_segments_remove(struct ib_mr *mr, struct rxe_rs_mr_remove *request,
				  struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unused;
	int err = rxe_rs_segments_check(mr->device, mr->uobject, "mr_remove");

	if (err)
		return err;
	request->rkey = mr->rkey;
	return READ_ONCE(rxe_rs_segment_ops)->remove(mr, request, state ?: &unused);
}

int rxe_rs_mr_remove(struct ib_mr *mr, u64 handle, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_remove request = { .handle = handle, .flags = RXE_RS_BY_HANDLE };

	return rxe_rs_segments_remove(mr, &request, state);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_remove);

int rxe_rs_mr_remove_range(struct ib_mr *mr, u64 start, u64 length, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_remove request = {
		.start = start,
		.length = length,
		.flags = RXE_RS_BY_RANGE,
	};

	return rxe_rs_segments_remove(mr, &request, state);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_remove_range);

int rxe_rs_mr_move(struct ib_mr *mr, u64 handle, u64 iova, struct rxe_rs_mr_state *state)
{
	struct rxe_rs_mr_state unused;

	return rxe_rs_segments_check(mr->device, mr->uobject, "mr_move") ?:
	       READ_ONCE(rxe_rs_segment_ops)->move(mr, handle, iova, state ?: &unused);
}
EXPORT_SYMBOL_GPL(rxe_rs_mr_move);
