/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Extensions of rxe_rs to the user ABI of stock librxe: driver-specific methods of the uverbs ioctl
 * (RDMA_VERBS_IOCTL) on the object UVERBS_OBJECT_MR.
 *
 * Rules for all structures:
 * - Sizes and offsets never change. A later version may append fields. The driver treats fields
 *   that the caller does not pass as 0, and refuses bytes that it does not know unless they are 0
 *   (EOPNOTSUPP). Of a response it writes as much as the caller has space for, and zeros behind the
 *   fields that it knows.
 * - Reserved fields and unknown flags must be 0 (EINVAL).
 * - Integers are in host byte order; lengths and addresses are in bytes.
 *
 * A device without these methods returns EPROTONOSUPPORT, and a device of a driver whose identifier
 * is not RDMA_DRIVER_RXE returns EINVAL.
 *
 * Segments: the memory of a region that a process registered can change. A region starts with one
 * segment, the memory that was registered (its handle is 1). Further segments can be added anywhere
 * in the address space of the region, which are the addresses that work requests and packets use:
 * memory of the process or ranges of DMA buffers, whichever the region was registered with. Each
 * segment can be removed, and so can any range of pages. L_Key, R_Key, protection domain and access
 * rights are those of the region and do not change. An access may cross from one segment into an
 * adjacent one. An access to an address without a segment fails, as a remote access error if it
 * came from the peer. When a removal returns, no access to the removed memory is in progress and
 * its pages are no longer pinned. Accesses to other segments are not interrupted.
 *
 * The removal of a range may cut segments. The remainder of a segment keeps its addresses and its
 * handle. It forms one segment or two, which count as such (RXE_RS_MAX_SEGMENTS, the number in
 * struct rxe_rs_mr_state). A handle refers to all memory that remains of what was added with it.
 * That is the memory that was pinned, even if the process has mapped other memory at its addresses
 * since, and a page of it remains pinned as long as the region contains a byte of it.
 *
 * The removal of the last segment releases the key: it is invalid from then on, and a later
 * registration may get the same key. The region exists until it is deregistered (ibv_dereg_mr()),
 * which succeeds; all other calls for it fail with ENOENT.
 *
 * Re-registration with another translation replaces all segments by one, which is memory of the
 * process and has a new handle; rights and protection domain change for all segments. Memory
 * windows are bound to addresses that have memory. They grant access to the memory that the region
 * has at the time of each access.
 *
 * A region with on-demand paging (IBV_ACCESS_ON_DEMAND) has exactly one segment. Its addresses are
 * those of the process, so peers access what the process has mapped there at the time: reserve the
 * addresses, register them once, then map and unmap memory.
 *
 * Calls for one region exclude each other, re-registration and deregistration included: the later
 * call fails with EBUSY.
 */
#ifndef RXE_RS_UAPI_H
#define RXE_RS_UAPI_H

#include <linux/types.h>

/* Maximum number of segments of a region. */
#define RXE_RS_MAX_SEGMENTS	4096

/* Handle of the segment that the region was registered with. */
#define RXE_RS_FIRST_SEGMENT	1

/* Methods of UVERBS_OBJECT_MR. */
enum rxe_rs_method {
	RXE_RS_METHOD_MR_ADD = 0x1000,
	RXE_RS_METHOD_MR_REMOVE = 0x1001,
	RXE_RS_METHOD_MR_TIE = 0x1002,
};

/* Attributes of the methods; all attributes of a method are mandatory. */
enum rxe_rs_attr {
	RXE_RS_ATTR_MR = 0x1000,	/* object handle of the region */
	RXE_RS_ATTR_REQUEST = 0x1001,	/* in: struct rxe_rs_mr_add, _remove or _tie */
	RXE_RS_ATTR_STATE = 0x1002,	/* out, of ADD and REMOVE: struct rxe_rs_mr_state */
	RXE_RS_ATTR_QP = 0x1003,	/* of TIE: object handle of the queue pair, same context */
};

/*
 * Adds a segment: pins @length bytes at @addr of the calling process, which peers and work requests
 * access at @iova. All three are multiples of the page size.
 *
 * With RXE_RS_ADD_DMABUF the segment consists of @length bytes at offset @addr of the DMA buffer
 * that is open as file descriptor @fd; the process may close the descriptor afterwards. The
 * exporter keeps the buffer in place until its last segment has been removed, as for
 * ibv_reg_dmabuf_mr(), and no pages are accounted as pinned by the process.
 *
 * EINVAL	misaligned, length 0, addresses that wrap, a key that is not the region's, memory
 *		that is not persistent for a region with the right to flush to persistence; not a
 *		DMA buffer, or a range outside of it
 * EBADF	@fd is not open
 * EEXIST	overlaps another segment
 * ENOSPC	the region has RXE_RS_MAX_SEGMENTS segments
 * ENOMEM	no memory, or RLIMIT_MEMLOCK exceeded
 * EPERM	RLIMIT_MEMLOCK is 0, and the process lacks CAP_IPC_LOCK
 * EFAULT	the memory is not mapped with the access that the region's rights require, or the
 *		response cannot be written
 * ENOENT	no such region, or its key has been released
 * EBUSY	another call for the region is in progress
 * EOPNOTSUPP	unknown fields, a region with on-demand paging, or a DMA buffer that the CPU cannot
 *		access
 * others	of the exporter, if it does not pin or map the DMA buffer
 *
 * The region does not change if the call fails. (A driver without RXE_RS_ADD_DMABUF returns EINVAL
 * for it, or EOPNOTSUPP if @fd is not 0.)
 */
struct rxe_rs_mr_add {
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 iova;
	__u32 rkey;		/* of the region; detects an object handle that has been reused */
	__u32 flags;		/* RXE_RS_ADD_* */
	__s32 fd;		/* with RXE_RS_ADD_DMABUF, otherwise 0 */
	__u32 reserved;		/* 0 */
};

/* rxe_rs_mr_add.flags */
#define RXE_RS_ADD_DMABUF	0x1	/* a range of a DMA buffer */

/* rxe_rs_mr_remove.flags: exactly one of them */
#define RXE_RS_BY_HANDLE	0x1	/* the segment @handle; @start and @length are 0 */
#define RXE_RS_BY_RANGE		0x2	/* @length bytes at @start; @handle is 0 */

/*
 * Removes all that remains of a segment, or all memory in a range, which may contain addresses
 * without memory and extend beyond the region. A range that starts or ends within a segment does so
 * at a multiple of the page size. The cost is proportional to the pages that are unpinned, not to
 * those that remain.
 *
 * (The first version returned EINVAL for a range that cuts a segment or contains addresses without
 * memory.)
 *
 * EINVAL	a range without memory, one that wraps or cuts a page of a segment, a key that is
 *		not the region's, wrong flags
 * ENOSPC	the range would split a segment, and the region has RXE_RS_MAX_SEGMENTS segments
 * ENOENT	no segment has the handle; no such region, or its key has been released
 * EBUSY	the last segment would be removed while memory windows are bound to the region, or
 *		another call for the region is in progress
 * EFAULT	the response cannot be written
 * ENOMEM	no memory
 * EOPNOTSUPP	unknown fields, or a region with on-demand paging
 *
 * The region does not change if the call fails.
 */
struct rxe_rs_mr_remove {
	__aligned_u64 handle;
	__aligned_u64 start;
	__aligned_u64 length;
	__u32 rkey;
	__u32 flags;
};

/* rxe_rs_mr_state.flags */
#define RXE_RS_RELEASED		0x1	/* no segment is left, the keys are released */

/* State of the region after the call. */
struct rxe_rs_mr_state {
	__u32 lkey;		/* unchanged; 0 if released */
	__u32 rkey;		/* unchanged; 0 if released */
	__aligned_u64 handle;	/* of the added segment, unique in the life of the region; else 0 */
	__aligned_u64 start;	/* first byte of the first segment */
	__aligned_u64 length;	/* from there to the end of the last segment */
	__aligned_u64 run_start;	/* contiguous range that contains the added segment; */
	__aligned_u64 run_length;	/* both are 0 after a removal */
	__aligned_u64 bytes;	/* sum of the lengths of all segments */
	__u32 segments;
	__u32 flags;
};

/*
 * Ties a region to a queue pair permanently. Call it after the region has been registered and
 * before its key is passed to anyone. The region is revoked when the queue pair enters the error
 * state (by itself or by ibv_modify_qp(), hence by rdma_disconnect() too), is reset or destroyed,
 * and when the process exits. From then on its keys grant no access through any queue pair or
 * window: accesses complete with a remote access error or a local protection error. An access
 * through another queue pair that is in progress at that moment may still be completed, also when
 * the flushed requests have completed. None is in progress when the verb returns that ended the
 * queue pair, or if the queue pair failed by itself, when a verb returns that resets or destroys
 * it: use the memory for something else from then on. It is unpinned without a further call, by
 * that verb at the latest, or by a work item if the queue pair failed by itself.
 *
 * The region exists until it is deregistered (ibv_dereg_mr(), which succeeds if no window is
 * bound), and no other region gets its keys before. All other calls for it fail with ENOENT. Any
 * region of a process can be tied, also with on-demand paging or of a DMA buffer. Segments that are
 * added later are revoked too, and re-registration does not untie the region. If the queue pair
 * ends while the region is being changed, the change may fail with ENOENT.
 *
 * EINVAL	a key that is not the region's, a queue pair of another protection domain, or one in
 *		the error state
 * EEXIST	the region is tied to a queue pair already
 * ENOMEM	no memory
 * ENOENT	no such region or queue pair, its key has been released, or it has been revoked
 * EBUSY	another call for the region is in progress, or one that creates or destroys the
 *		queue pair
 * EOPNOTSUPP	unknown fields
 *
 * The region does not change if the call fails.
 */
struct rxe_rs_mr_tie {
	__u32 rkey;		/* of the region */
	__u32 flags;		/* 0 */
	__aligned_u64 reserved;	/* 0 */
};

#endif /* RXE_RS_UAPI_H */
