/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory that a process can map and the kernel cannot read like any other: /dev/kmemory.
 *
 * Mapping it gives one page: at page 0 as a page frame without more (VM_PFNMAP), at page 1 as an ordinary page of the
 * kernel (VM_MIXEDMAP). The requests below take the address of a page of the calling process. What they have done is
 * undone when the file is closed.
 */
#ifndef KMEMORY_H
#define KMEMORY_H

#include <linux/ioctl.h>

/* Takes the page out of the linear map, as the kernel does after a machine check, and leaves it mapped. */
#define KMEMORY_HIDE _IO('k', 1)
/* Moves the page to memory of a device that no processor can access. */
#define KMEMORY_MOVE _IO('k', 2)
/* As KMEMORY_MOVE, and the device does not give it back. */
#define KMEMORY_LOSE _IO('k', 3)

/* far.c */
int far_start(void);
void far_stop(void);
int far_move(unsigned long addr, bool keep);

#endif
