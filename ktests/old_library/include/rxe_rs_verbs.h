/* SPDX-License-Identifier: GPL-2.0 */
/*
 * librxe_rs: memory that comes and goes behind the keys of a registered region, on devices of rxe_rs.
 * Works with stock rdma-core: include <infiniband/verbs.h> first for the functions that take an ibv_mr.
 *
 * All functions return 0, or the value of errno that says why nothing has changed; rxe_rs.h lists
 * them. Two more: EPROTONOSUPPORT if the device's driver has no such calls, EIO if the device is
 * gone. `state` may be NULL. They may be called from any thread; calls for one region exclude each
 * other, and the one that came later gets EBUSY.
 */
#ifndef RXE_RS_VERBS_H
#define RXE_RS_VERBS_H

#include <stdint.h>

#include "rxe_rs.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Puts `length` bytes at `addr` behind the keys of a region, where peers and work requests find them
 * at `iova`. All three are multiples of the page size. `state->handle` names the new segment.
 * cmd_fd, mr_handle, rkey: context->cmd_fd, handle and rkey of the ibv_mr.
 */
int rxe_rs_add(int cmd_fd, uint32_t mr_handle, uint32_t rkey, void *addr, uint64_t length,
	       uint64_t iova, struct rxe_rs_mr_state *state);

/*
 * Takes the segment `handle` away (RXE_RS_FIRST_SEGMENT: what was registered). When this returns
 * no access to it is under way, and its memory can be used for something else. With the last segment
 * the keys go (RXE_RS_RELEASED in state->flags); ibv_dereg_mr is still to be called.
 */
int rxe_rs_remove(int cmd_fd, uint32_t mr_handle, uint32_t rkey, uint64_t handle,
		  struct rxe_rs_mr_state *state);

/* The same for all segments that make up the `length` bytes at `start` of the region. */
int rxe_rs_remove_range(int cmd_fd, uint32_t mr_handle, uint32_t rkey, uint64_t start,
			uint64_t length, struct rxe_rs_mr_state *state);

#ifdef INFINIBAND_VERBS_H
static inline int rxe_rs_mr_add(struct ibv_mr *mr, void *addr, uint64_t length, uint64_t iova,
				struct rxe_rs_mr_state *state)
{
	return rxe_rs_add(mr->context->cmd_fd, mr->handle, mr->rkey, addr, length, iova, state);
}

static inline int rxe_rs_mr_remove(struct ibv_mr *mr, uint64_t handle, struct rxe_rs_mr_state *state)
{
	return rxe_rs_remove(mr->context->cmd_fd, mr->handle, mr->rkey, handle, state);
}

static inline int rxe_rs_mr_remove_range(struct ibv_mr *mr, uint64_t start, uint64_t length,
					 struct rxe_rs_mr_state *state)
{
	return rxe_rs_remove_range(mr->context->cmd_fd, mr->handle, mr->rkey, start, length, state);
}
#endif

#ifdef __cplusplus
}
#endif

#endif /* RXE_RS_VERBS_H */
