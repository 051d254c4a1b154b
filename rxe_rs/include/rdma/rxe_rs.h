/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Extensions of rxe_rs to the verbs of the kernel: regions whose memory can be added, removed and
 * moved while their keys are in use. uapi/rxe_rs.h describes the same for processes, and its rules
 * for segments apply: a region has up to RXE_RS_MAX_SEGMENTS of them, anywhere in its address
 * space, an access may cross from one segment into an adjacent one, an access to an address without
 * a segment is a remote access error, and the removal of the last segment releases the key.
 *
 * The module exports the functions. A consumer that must work without the module uses symbol_get().
 *
 * Context of all functions: process context. They allocate memory, and those that remove or move
 * memory sleep until the accesses to the region that are in progress have ended, which takes some
 * microseconds. Calls for one region, ib_dereg_mr() included, must not overlap; the caller ensures
 * that, as for the verbs. Accesses to the region and calls for other regions may continue.
 *
 * Memory is passed as scatterlists of kernel memory, mapped for the device or not. Entries may
 * start and end at any byte of a page, but their total length must be a multiple of PAGE_SIZE. The
 * list may be freed when the call has returned. The pages must stay allocated until they have been
 * removed or the region has been deregistered, and that call has returned; they are not accessed
 * afterwards.
 *
 * All functions report the state of the region after the call in @state, which may be NULL. If a
 * call fails, the region has not changed. Errors of all functions:
 *
 * EPROTONOSUPPORT	the device is not one of rxe_rs
 * EINVAL		the region belongs to a process
 * EOPNOTSUPP		the region was not registered by rxe_rs_mr_reg_sg()
 * ENOENT		the key of the region has been released
 * ENOMEM		no memory
 */
#ifndef RXE_RS_KERNEL_H
#define RXE_RS_KERNEL_H

#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>
#include "../../../uapi/rxe_rs.h"

/**
 * rxe_rs_mr_reg_sg() - register a region with segments
 * @pd: protection domain of a kernel consumer
 * @sg: memory of the first segment, whose handle is RXE_RS_FIRST_SEGMENT
 * @nents: number of entries in the list
 * @iova: address of the first byte in the region, a multiple of PAGE_SIZE
 * @access: IB_ACCESS_LOCAL_WRITE, IB_ACCESS_REMOTE_WRITE, IB_ACCESS_REMOTE_READ,
 *	IB_ACCESS_REMOTE_ATOMIC and IB_ACCESS_FLUSH_GLOBAL; applies to all segments and cannot
 *	change
 * @state: receives the state of the region; may be NULL
 *
 * The region is valid without a work request: its lkey and rkey can be used until ib_dereg_mr(). It
 * can be neither invalidated nor mapped (ib_map_mr_sg()).
 *
 * Return: The region, or an ERR_PTR: -EINVAL also for an empty list, memory that is not kernel
 * memory, a length or address that is not a multiple of PAGE_SIZE, addresses that wrap, and remote
 * write access without local write access; -EOPNOTSUPP for unknown access rights.
 */
struct ib_mr *rxe_rs_mr_reg_sg(struct ib_pd *pd, struct scatterlist *sg, int nents, u64 iova,
			       int access, struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_add_sg() - add a segment to a region
 * @mr: region of rxe_rs_mr_reg_sg()
 * @sg: memory of the segment
 * @nents: number of entries in the list
 * @iova: address of the first byte in the region, a multiple of PAGE_SIZE
 * @state: receives the state of the region and the handle of the segment; may be NULL
 *
 * Return: 0, -EINVAL as for rxe_rs_mr_reg_sg(), -EEXIST if the segment overlaps another one,
 * -ENOSPC if the region has RXE_RS_MAX_SEGMENTS segments.
 */
int rxe_rs_mr_add_sg(struct ib_mr *mr, struct scatterlist *sg, int nents, u64 iova,
		     struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_remove() - remove all that remains of a segment
 * @mr: region of rxe_rs_mr_reg_sg()
 * @handle: handle of the segment
 * @state: receives the state of the region; may be NULL
 *
 * The removal of the last segment releases the keys (RXE_RS_RELEASED). The caller must still call
 * ib_dereg_mr().
 *
 * Return: 0, -ENOENT also if no segment has the handle.
 */
int rxe_rs_mr_remove(struct ib_mr *mr, u64 handle, struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_remove_range() - remove all memory in a range of addresses
 * @mr: region of rxe_rs_mr_reg_sg()
 * @start: first address; if it cuts a segment, a multiple of PAGE_SIZE
 * @length: number of bytes, addresses without memory included; if the end cuts a segment, it is a
 *	multiple of PAGE_SIZE
 * @state: receives the state of the region; may be NULL
 *
 * The remainder of a segment keeps its handle.
 *
 * Return: 0, -EINVAL also for a range without memory or one that cuts a page, -ENOSPC if the range
 * would split a segment and the region has RXE_RS_MAX_SEGMENTS segments.
 */
int rxe_rs_mr_remove_range(struct ib_mr *mr, u64 start, u64 length, struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_move() - move a segment to another address of the region
 * @mr: region of rxe_rs_mr_reg_sg()
 * @handle: handle of the segment
 * @iova: new address of the first byte that remains of the segment, a multiple of PAGE_SIZE; the
 *	new range may overlap the old one
 * @state: receives the state of the region; may be NULL
 *
 * All that remains of the segment moves by the same distance and keeps its handle. An access finds
 * the memory at its old or at its new address. When the function returns, no access to the old
 * address is in progress.
 *
 * Return: 0, -ENOENT also if no segment has the handle, -EEXIST if the segment would overlap
 * another one, -EINVAL also for an address that is not a multiple of PAGE_SIZE or from which it
 * would wrap.
 */
int rxe_rs_mr_move(struct ib_mr *mr, u64 handle, u64 iova, struct rxe_rs_mr_state *state);

#endif /* RXE_RS_KERNEL_H */
