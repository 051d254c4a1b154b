/* SPDX-License-Identifier: GPL-2.0 */
/*
 * /dev/kmemory: memory that a process can map and that the kernel cannot access as usual.
 *
 * The file can be mapped in pages: page 0 is a PFN map (VM_PFNMAP), page 1 is a page of the kernel
 * (VM_MIXEDMAP).
 */
#ifndef KMEMORY_H
#define KMEMORY_H

#include <linux/ioctl.h>

/* These requests take the address of a page of the calling process. */

/*
 * Removes the page from the linear map, as after a machine check, until the file is closed; the
 * process keeps it mapped.
 */
#define KMEMORY_HIDE _IO('k', 1)
/* Migrates the page to device private memory, until a processor or a driver accesses it. */
#define KMEMORY_MOVE _IO('k', 2)
/* As KMEMORY_MOVE, and the device refuses to migrate it back: it is lost when it is unmapped. */
#define KMEMORY_LOSE _IO('k', 3)

/* DMA buffers that move, which live as long as the files that stand for them. */

/* Exports a new buffer; returns its file descriptor. The argument is a set of the flags below. */
#define KMEMORY_EXPORT _IO('k', 4)
/* Moves the buffer of this file descriptor to other pages; EBUSY if it is pinned. */
#define KMEMORY_RELOCATE _IO('k', 5)
/*
 * Returns how often the buffer of this file descriptor is attached, pinned, prepared for the CPU
 * and mapped for it, in a byte each, the first one being the lowest.
 */
#define KMEMORY_USES _IO('k', 6)

#define KMEMORY_BUFFER_PAGES 4

#define KMEMORY_DYNAMIC 0x01		/* .pin pins the buffer, otherwise .attach does */
#define KMEMORY_FAIL_ATTACH 0x02	/* .attach returns EBUSY */
#define KMEMORY_FAIL_PIN 0x04		/* .pin returns ENOSPC */
#define KMEMORY_FAIL_ACCESS 0x08	/* .begin_cpu_access returns EIO */
#define KMEMORY_DEVICE 0x10		/* .vmap claims that the memory is a device's */
#define KMEMORY_FAIL_MAP 0x20		/* .vmap returns EOPNOTSUPP */

/* far.c */
int far_start(void);
void far_stop(void);
int far_move(unsigned long addr, bool keep);

/* buffer.c */
int buffer_export(unsigned long flags);
int buffer_relocate(int fd);
int buffer_uses(int fd);

#endif
