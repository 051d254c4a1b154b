// SPDX-License-Identifier: GPL-2.0
/*
 * Coverage of rxe_rs for the fuzzer, in all contexts. KCOV records coverage only for the task that
 * enabled it, and most code of this driver runs in softirq and in work items. Therefore rxe_rs, if
 * built with RXE_COVERAGE=1, calls the hook of the compiler's instrumentation in this module, which
 * counts the executions of each basic block on all CPUs.
 *
 * The fuzzer maps /dev/rxe_cover: a page with the number of entries in the log, the log, and a
 * counter for each address, which the fuzzer resets. An entry is added when a counter reaches a
 * power of two, so that a reader of the log need not read all counters.
 */
#include <linux/export.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/vmalloc.h>
#include "rxe_cover.h"

/* The lower 22 bits of addresses are unique, because the code of the driver is smaller. */
#define COUNTERS	BIT(22)
#define ENTRIES		BIT(16)
#define LOG_OFFSET	PAGE_SIZE
#define COUNTER_OFFSET	(LOG_OFFSET + ENTRIES * sizeof(u32))
#define BYTES		PAGE_ALIGN(COUNTER_OFFSET + COUNTERS)

static void *area;

/* Called at the start of each basic block, in any context. */
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
