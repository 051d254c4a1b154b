// SPDX-License-Identifier: GPL-2.0
/*
 * Coverage of rxe_rs for the fuzzer: what KCOV is for system calls, for every context that the driver
 * runs in. Packets, timers and work items are most of this driver, and KCOV follows only the task that
 * asked for it. So rxe_rs, built with RXE_COVERAGE=1, calls the hook of its compiler here, which counts
 * visits of each basic block for all contexts and processors together.
 *
 * /dev/rxe_cover is mapped by the fuzzer: a page with the number of entries in the log, the log, and a
 * counter for each address, which the fuzzer sets back. An entry is written when a counter reaches a
 * power of two, so that whoever reads the log need not look at all counters.
 */
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/vmalloc.h>
#include "rxe_cover.h"

/* Addresses differ in their lower 22 bits: the driver's code is smaller than that. */
#define COUNTERS	(1U << 22)
#define ENTRIES		(1U << 16)
#define LOG_OFFSET	PAGE_SIZE
#define COUNTER_OFFSET	(LOG_OFFSET + ENTRIES * sizeof(u32))
#define BYTES		PAGE_ALIGN(COUNTER_OFFSET + COUNTERS)

static void *area;

/* Called at the beginning of each basic block, in any context. */
notrace void __sanitizer_cov_trace_pc(void)
{
	u32 at = _RET_IP_ & (COUNTERS - 1);
	u8 *counters = READ_ONCE(area);
	u32 *log = READ_ONCE(area);
	u32 n;
	u8 visits;

	if (!log)
		return;
	counters += COUNTER_OFFSET;
	visits = READ_ONCE(counters[at]);
	if (visits == U8_MAX)
		return;
	WRITE_ONCE(counters[at], ++visits);
	if (visits & (visits - 1))
		return;
	n = __atomic_fetch_add(log, 1, __ATOMIC_RELAXED);
	if (n < ENTRIES)
		WRITE_ONCE(log[LOG_OFFSET / sizeof(u32) + n], at | __builtin_ctz(visits) << 24);
}
EXPORT_SYMBOL(__sanitizer_cov_trace_pc);

static int cover_mmap(struct file *file, struct vm_area_struct *vma)
{
	return remap_vmalloc_range(vma, area, vma->vm_pgoff);
}

static const struct file_operations cover_fops = {
	.owner = THIS_MODULE,
	.mmap = cover_mmap,
};

static struct miscdevice cover_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "rxe_cover",
	.fops = &cover_fops,
	.mode = 0666,
};

static int __init cover_init(void)
{
	int err;

	area = vmalloc_user(BYTES);
	if (!area)
		return -ENOMEM;
	err = misc_register(&cover_device);
	if (err)
		vfree(area);
	return err;
}
module_init(cover_init);

static void __exit cover_exit(void)
{
	misc_deregister(&cover_device);
	vfree(area);
}
module_exit(cover_exit);

MODULE_DESCRIPTION("Coverage of rxe_rs for its fuzzer");
MODULE_LICENSE("GPL");
