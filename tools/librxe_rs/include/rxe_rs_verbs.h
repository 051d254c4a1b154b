/* SPDX-License-Identifier: GPL-2.0 */
/*
 * librxe_rs: adding and removing memory of registered regions, on devices of rxe_rs. The library
 * works with stock rdma-core: include <infiniband/verbs.h> first for the functions that take an
 * ibv_mr.
 *
 * All functions return 0, or an errno value; then the region has not changed. rxe_rs.h lists the
 * values; in addition there are EPROTONOSUPPORT if the driver of the device has no such methods,
 * and EIO if the device has been removed. state may be NULL; if not, 64 bytes are written to it,
 * also if a later version of rxe_rs.h appends fields. The functions may be called from any thread;
 * calls for one region exclude each other, and the later one fails with EBUSY.
 */
#ifndef RXE_RS_VERBS_H
#define RXE_RS_VERBS_H

#include <stdint.h>

#include "rxe_rs.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Adds length bytes at addr to a region as a segment, which peers and work requests access at iova.
 * All three are multiples of the page size. state->handle receives the handle of the segment.
 * cmd_fd, mr_handle and rkey are context->cmd_fd, handle and rkey of the ibv_mr.
 */
int rxe_rs_add(int cmd_fd, uint32_t mr_handle, uint32_t rkey, void *addr, uint64_t length,
	       uint64_t iova, struct rxe_rs_mr_state *state);

/*
 * Adds length bytes at offset of the DMA buffer that is open as dmabuf_fd, which may be closed
 * afterwards. A driver without such segments returns EINVAL or EOPNOTSUPP.
 */
int rxe_rs_add_dmabuf(int cmd_fd, uint32_t mr_handle, uint32_t rkey, int dmabuf_fd,
		      uint64_t offset, uint64_t length, uint64_t iova,
		      struct rxe_rs_mr_state *state);

/*
 * Removes a segment by its handle (RXE_RS_FIRST_SEGMENT for the memory that was registered). When
 * the function returns, no access to the segment is in progress and its memory can be reused. The
 * removal of the last segment releases the keys (RXE_RS_RELEASED in state->flags); the caller must
 * still call ibv_dereg_mr().
 */
int rxe_rs_remove(int cmd_fd, uint32_t mr_handle, uint32_t rkey, uint64_t handle,
		  struct rxe_rs_mr_state *state);

/*
 * Removes all memory in the length bytes at start of the region. The range may contain addresses
 * without memory, and cut segments at multiples of the page size. The remainder of a segment keeps
 * its handle.
 */
int rxe_rs_remove_range(int cmd_fd, uint32_t mr_handle, uint32_t rkey, uint64_t start,
			uint64_t length, struct rxe_rs_mr_state *state);

/*
 * Ties a region permanently to a queue pair of the same context (qp_handle: handle of the ibv_qp).
 * When the queue pair enters the error state, is reset or is destroyed, the keys of the region are
 * revoked and its memory is unpinned. Call it before the key is passed to anyone. The caller must
 * still call ibv_dereg_mr().
 */
int rxe_rs_tie(int cmd_fd, uint32_t mr_handle, uint32_t rkey, uint32_t qp_handle);

#ifdef INFINIBAND_VERBS_H
static inline int rxe_rs_mr_add(struct ibv_mr *mr, void *addr, uint64_t length, uint64_t iova,
				struct rxe_rs_mr_state *state)
{
	return rxe_rs_add(mr->context->cmd_fd, mr->handle, mr->rkey, addr, length, iova, state);
}

static inline int rxe_rs_mr_add_dmabuf(struct ibv_mr *mr, int dmabuf_fd, uint64_t offset,
				       uint64_t length, uint64_t iova,
				       struct rxe_rs_mr_state *state)
{
	return rxe_rs_add_dmabuf(mr->context->cmd_fd, mr->handle, mr->rkey, dmabuf_fd, offset,
				 length, iova, state);
}

static inline int rxe_rs_mr_remove(struct ibv_mr *mr, uint64_t handle,
				   struct rxe_rs_mr_state *state)
{
	return rxe_rs_remove(mr->context->cmd_fd, mr->handle, mr->rkey, handle, state);
}

static inline int rxe_rs_mr_remove_range(struct ibv_mr *mr, uint64_t start, uint64_t length,
					 struct rxe_rs_mr_state *state)
{
	return rxe_rs_remove_range(mr->context->cmd_fd, mr->handle, mr->rkey, start, length, state);
}

static inline int rxe_rs_mr_tie(struct ibv_mr *mr, struct ibv_qp *qp)
{
	return rxe_rs_tie(mr->context->cmd_fd, mr->handle, mr->rkey, qp->handle);
}
#endif

#ifdef __cplusplus
}
#endif

#endif /* RXE_RS_VERBS_H */
