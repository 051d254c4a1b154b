/* SPDX-License-Identifier: GPL-2.0 */
/*
 * /dev/kmemory: memory that a process can map and that the kernel cannot access as usual.
 *
 * The file can be mapped in pages: page 0 is a PFN map (VM_PFNMAP), page 1 is a page of the kernel
 * (VM_MIXEDMAP). The requests below take the address of a page of the calling process. Closing the
 * file undoes them.
 */
#ifndef KMEMORY_H
#define KMEMORY_H

#include <linux/ioctl.h>

/* Removes the page from the linear map, as after a machine check; the process keeps it mapped. */
#define KMEMORY_HIDE _IO('k', 1)
/* Migrates the page to device private memory. */
#define KMEMORY_MOVE _IO('k', 2)
/* As KMEMORY_MOVE, and the device refuses to migrate it back. */
#define KMEMORY_LOSE _IO('k', 3)

/* far.c */
int far_start(void);
void far_stop(void);
int far_move(unsigned long addr, bool keep);

#endif
