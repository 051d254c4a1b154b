// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: pages of a process, pinned and unpinned in any parts.
 *
 * ib_umem gives all of its pages back at once; memory whose parts leave a region one by one cannot.
 */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include "bindings_helper.h"

/* Most pages unpinned before others may run. */
#define RXE_RS_UNPIN_BATCH 1024

/*
 * Counts pages that the current process is about to pin, as all that pins for long does (VmPin,
 * RLIMIT_MEMLOCK), and takes a reference to its address space for rxe_rs_pin_uncharge().
 */
int rxe_rs_pin_charge(u64 pages, struct mm_struct **mm)
{
	u64 limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	u64 now;

	if (!current->mm)
		return -EINVAL;
	if (!can_do_mlock())
		return -EPERM;
	now = atomic64_add_return(pages, &current->mm->pinned_vm);
	if (now > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &current->mm->pinned_vm);
		return -ENOMEM;
	}
	*mm = rxe_rs_mm_grab();
	return 0;
}

/* The reference stays. */
void rxe_rs_pin_uncharge(struct mm_struct *mm, u64 pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

/*
 * Pins at most `count` pages at `addr` of the current process and stores their kernel addresses (all
 * of them are ordinary memory; x86-64 has no highmem). Returns how many, at least one, or an error.
 */
int rxe_rs_pin_pages(u64 addr, u32 count, bool write, void **out)
{
	struct page **pages = (struct page **)out;
	unsigned int flags = FOLL_LONGTERM | (write ? FOLL_WRITE : 0);
	int pinned, i;

	cond_resched();
	pinned = pin_user_pages_fast(addr, count, flags, pages);
	for (i = 0; i < pinned; i++)
		out[i] = page_address(pages[i]);
	return pinned ?: -EFAULT;
}

/* Unpins the pages that hold `len` bytes at `addr`, which are consecutive in the kernel. */
void rxe_rs_unpin_range(void *addr, u64 len, bool dirty)
{
	u64 pages = PFN_UP(offset_in_page(addr) + len);
	struct page *page = virt_to_page(addr);

	while (pages) {
		u64 batch = min_t(u64, pages, RXE_RS_UNPIN_BATCH);

		unpin_user_page_range_dirty_lock(page, batch, dirty);
		cond_resched();
		page += batch;
		pages -= batch;
	}
}
