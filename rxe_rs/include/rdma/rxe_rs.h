/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What rxe_rs offers users in the kernel beyond the verbs: regions whose memory can be added, removed
 * and moved while their keys are in use. The same for processes is in uapi/rxe_rs.h, whose rules for
 * segments hold here too: up to RXE_RS_MAX_SEGMENTS of them, anywhere in the addresses that the key
 * stands for, accesses go from one into one that touches it, an access to a hole is a remote access
 * error, and with the last segment the key is released.
 *
 * The functions are exported by the module. A user that wants to do without it where it is not loaded
 * takes them by symbol_get().
 *
 * Context of all of them: process context; they allocate, and those that take memory away or move it
 * wait until the accesses under way to the region have ended, some microseconds. No locks may be held
 * that cannot be held while sleeping. Calls for one region, ib_dereg_mr() included, must not overlap:
 * that is the caller's duty, as for the verbs. Accesses and calls for other regions may go on.
 *
 * Memory is named by scatterlists of ordinary memory of the kernel, mapped for the device or not.
 * Entries may begin and end anywhere in a page, but together they have to be a multiple of PAGE_SIZE.
 * The list may be freed when the call has returned. The pages have to stay allocated until they have
 * been removed, or the region has been deregistered, and that call has returned: from then on
 * nothing touches them.
 *
 * All functions tell what the region is after the call in `state`, which may be NULL. If one fails
 * nothing has changed. Errors of all of them:
 *
 * EPROTONOSUPPORT	the device is not one of rxe_rs
 * EINVAL		the region is a process's
 * EOPNOTSUPP		the region was not registered by rxe_rs_mr_reg_sg()
 * ENOENT		its key has been released
 * ENOMEM		no memory
 */
#ifndef RXE_RS_KERNEL_H
#define RXE_RS_KERNEL_H

#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>
#include "../../../uapi/rxe_rs.h"

/**
 * rxe_rs_mr_reg_sg - register a region of segments
 * @pd:		protection domain of a user in the kernel
 * @sg:		the memory of its first segment, whose handle is RXE_RS_FIRST_SEGMENT
 * @nents:	entries of the list
 * @iova:	address by which work requests and peers name the first byte, a multiple of PAGE_SIZE
 * @access:	IB_ACCESS_LOCAL_WRITE, _REMOTE_WRITE, _REMOTE_READ, _REMOTE_ATOMIC, _FLUSH_GLOBAL; for
 *		all segments, for good
 * @state:	what the region is, or NULL
 *
 * It needs no work request to become valid: its lkey and rkey can be used at once, and until
 * ib_dereg_mr(), which ends it. It can be neither invalidated nor mapped (ib_map_mr_sg()).
 *
 * Return: the region, or an ERR_PTR: EINVAL also for an empty list, memory that is not the
 * kernel's, a length or address that is no multiple of PAGE_SIZE, addresses that wrap, rights that
 * remote writes need; EOPNOTSUPP for unknown rights.
 */
struct ib_mr *rxe_rs_mr_reg_sg(struct ib_pd *pd, struct scatterlist *sg, int nents, u64 iova,
			       int access, struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_add_sg - add a segment
 * @mr:		region of rxe_rs_mr_reg_sg()
 * @sg:		its memory
 * @nents:	entries of the list
 * @iova:	address of its first byte in the region, a multiple of PAGE_SIZE
 * @state:	what the region has become, state->handle the segment's; or NULL
 *
 * Return: 0, or EINVAL as above, EEXIST if it overlaps another segment, ENOSPC if there are as many as
 * there may be.
 */
int rxe_rs_mr_add_sg(struct ib_mr *mr, struct scatterlist *sg, int nents, u64 iova,
		     struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_remove - remove a segment, all that is left of it
 * @mr:		region of rxe_rs_mr_reg_sg()
 * @handle:	the segment's
 * @state:	what the region has become, or NULL
 *
 * Return: 0, or ENOENT also for a handle of no segment. With the last segment the keys are released
 * (RXE_RS_RELEASED); ib_dereg_mr() is still to be called.
 */
int rxe_rs_mr_remove(struct ib_mr *mr, u64 handle, struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_remove_range - remove all memory in a range of addresses
 * @mr:		region of rxe_rs_mr_reg_sg()
 * @start:	the first address; where it cuts a segment, a multiple of PAGE_SIZE
 * @length:	bytes, holes included; where the end cuts a segment it is a multiple of PAGE_SIZE
 * @state:	what the region has become, or NULL
 *
 * What is left of a segment keeps its handle.
 *
 * Return: 0, or EINVAL also for a range without memory or one that cuts a page, ENOSPC if it would
 * cut a segment in two and there are as many as there may be.
 */
int rxe_rs_mr_remove_range(struct ib_mr *mr, u64 start, u64 length, struct rxe_rs_mr_state *state);

/**
 * rxe_rs_mr_move - move a segment to another address of the region
 * @mr:		region of rxe_rs_mr_reg_sg()
 * @handle:	the segment's
 * @iova:	where the first byte that is left of it shall be, a multiple of PAGE_SIZE; it may overlap
 *		where it is now
 * @state:	what the region has become, or NULL
 *
 * All that is left of the segment moves by the same distance and keeps its handle. An access finds it
 * in the old place or in the new one, and when this returns none goes on in the old one.
 *
 * Return: 0, or ENOENT also for a handle of no segment, EEXIST if it would overlap another one,
 * EINVAL also for an address that is no multiple of PAGE_SIZE, or one from which it would wrap.
 */
int rxe_rs_mr_move(struct ib_mr *mr, u64 handle, u64 iova, struct rxe_rs_mr_state *state);

#endif /* RXE_RS_KERNEL_H */
