/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What rxe_rs can do beyond stock librxe: methods of its own on the uverbs ioctl (RDMA_VERBS_IOCTL),
 * in the driver's namespace of the object UVERBS_OBJECT_MR.
 *
 * Rules for all structures:
 * - Sizes and offsets never change. A later version may add fields at the end. The driver takes
 *   fields that the caller does not pass as 0, and refuses bytes that it does not know unless they
 *   are 0 (EOPNOTSUPP). Of an answer it writes what the caller has room for, and zeroes behind
 *   what it knows.
 * - Reserved fields and unknown flags must be 0 (EINVAL).
 * - Numbers are in the byte order of the machine; lengths and addresses are in bytes.
 *
 * A device without these methods answers EPROTONOSUPPORT; one of another driver whose number is
 * not RDMA_DRIVER_RXE, EINVAL.
 *
 * Segments: the memory behind a region that a user registered need not stay what it was. Each
 * region begins with one segment, what was registered (its handle is 1). More can be added, anywhere
 * in the region's address space, the addresses by which work requests and packets name its bytes;
 * each can be removed. L_Key and R_Key, protection domain and access rights stay and are those of
 * the region. An access may go from one segment into one that touches it; where there is none it is
 * refused, by a remote access error if it came from the peer. When removing returns, no access to
 * what was removed is under way, and its pages are not pinned any more. Accesses to other segments
 * go on meanwhile.
 *
 * Removing the last segment releases the key: it stands for nothing any more, and a later
 * registration may happen to get the same one. The region itself stays until it is deregistered
 * (ibv_dereg_mr), which succeeds as ever; whatever else is done to it fails with ENOENT.
 *
 * Registering anew with another translation leaves one segment in place of all, with a handle of
 * its own; rights and domain change for all segments at once. Memory windows are bound where the
 * region has memory, open what it has at the time of each access, and lose what it loses.
 *
 * A region of memory on demand (IBV_ACCESS_ON_DEMAND) has one segment and keeps it: its addresses are
 * those of the process, and what the process maps there, unmaps or maps anew is what peers find.
 * Reserve the addresses, register them once, and there is nothing to add or to remove.
 *
 * Calls for one region exclude each other, re-registration and deregistration included: EBUSY for
 * the one that came later.
 */
#ifndef RXE_RS_UAPI_H
#define RXE_RS_UAPI_H

#include <linux/types.h>

/* Most segments of a region. */
#define RXE_RS_MAX_SEGMENTS	4096

/* The handle of what was registered. */
#define RXE_RS_FIRST_SEGMENT	1

/* Methods of UVERBS_OBJECT_MR. */
enum rxe_rs_method {
	RXE_RS_METHOD_MR_ADD = 0x1000,
	RXE_RS_METHOD_MR_REMOVE = 0x1001,
};

/* Attributes of both methods; all of them must be there. */
enum rxe_rs_attr {
	RXE_RS_ATTR_MR = 0x1000,	/* the region, an object handle */
	RXE_RS_ATTR_REQUEST = 0x1001,	/* in: struct rxe_rs_mr_add or rxe_rs_mr_remove */
	RXE_RS_ATTR_STATE = 0x1002,	/* out: struct rxe_rs_mr_state */
};

/*
 * Adds a segment: pins `length` bytes at `addr` of the calling process, which peers and work
 * requests find at `iova`. All three are multiples of the page size.
 *
 * EINVAL	misaligned, no bytes, addresses that wrap, a key that is not the region's, memory that is
 *		not persistent for a region that peers may flush to persistence
 * EEXIST	overlaps another segment
 * ENOSPC	RXE_RS_MAX_SEGMENTS are there
 * ENOMEM	no memory, or more than RLIMIT_MEMLOCK allows to pin
 * EFAULT	the memory or the answer is not mapped (as the region's rights need it)
 * ENOENT	no such region, or its key has been released
 * EBUSY	another call for the region is under way
 * EOPNOTSUPP	unknown fields, or not a region of pinned user memory
 *
 * If it fails nothing has changed.
 */
struct rxe_rs_mr_add {
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 iova;
	__u32 rkey;		/* of the region, so that a stale object handle does no harm */
	__u32 flags;		/* 0 */
};

/* rxe_rs_mr_remove.flags: exactly one of them */
#define RXE_RS_BY_HANDLE	(1U << 0)	/* the segment `handle`; `start` and `length` are 0 */
#define RXE_RS_BY_RANGE		(1U << 1)	/* all of `length` bytes at `start`; `handle` is 0 */

/*
 * Removes a segment, or all segments that make up a range: memory goes as it came, so a range may
 * neither begin nor end within a segment, nor hold a hole.
 *
 * EINVAL	not a range of whole segments, a key that is not the region's, bad flags
 * ENOENT	no segment has the handle; no such region, or its key has been released
 * EBUSY	it would be the last one and memory windows are bound to the region, or another call
 *		for the region is under way
 * EFAULT	the answer cannot be written
 * ENOMEM	no memory for the new table
 * EOPNOTSUPP	unknown fields, or not a region of pinned user memory
 *
 * If it fails nothing has changed.
 */
struct rxe_rs_mr_remove {
	__aligned_u64 handle;
	__aligned_u64 start;
	__aligned_u64 length;
	__u32 rkey;
	__u32 flags;
};

/* rxe_rs_mr_state.flags */
#define RXE_RS_RELEASED		(1U << 0)	/* the last segment is gone, and so are the keys */

/* The region after the call. */
struct rxe_rs_mr_state {
	__u32 lkey;		/* as ever; 0 when released */
	__u32 rkey;		/* the same */
	__aligned_u64 handle;	/* of what was added; 0 after removing. Never used again in the region's life */
	__aligned_u64 start;	/* first byte of all segments */
	__aligned_u64 length;	/* from there to behind the last one, holes included */
	__aligned_u64 run_start;	/* what can be accessed around what was added, without a hole; */
	__aligned_u64 run_length;	/* 0 and 0 after removing */
	__aligned_u64 bytes;	/* in all segments, without holes */
	__u32 segments;
	__u32 flags;
};

#endif /* RXE_RS_UAPI_H */
