// SPDX-License-Identifier: GPL-2.0
/*
 * Pinning of pages of a process, which can be unpinned in any parts.
 *
 * ib_umem_release() unpins all pages of an ib_umem at once, so it cannot be used for memory that is
 * removed from a region part by part.
 */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include "bindings_helper.h"

/* Number of pages that are unpinned before cond_resched() is called; twice as many at most. */
#define RXE_RS_UNPIN_BATCH 1024

/**
 * rxe_rs_pin_charge() - account pages before they are pinned
 * @pages: number of pages
 * @mm: receives a reference to the address space of the current process
 *
 * Accounts as other drivers do that pin pages for a long time (VmPin, RLIMIT_MEMLOCK). The caller
 * drops the reference with rxe_rs_mm_drop() after rxe_rs_pin_uncharge().
 *
 * Context: Process context.
 * Return: 0, -EINVAL without an address space, -EPERM if RLIMIT_MEMLOCK is 0, -ENOMEM if the limit
 * is exceeded.
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

/**
 * rxe_rs_pin_uncharge() - undo rxe_rs_pin_charge() for some pages
 * @mm: address space that the pages were accounted to; the reference is not dropped
 * @pages: number of pages
 *
 * Context: Any context.
 */
void rxe_rs_pin_uncharge(struct mm_struct *mm, u64 pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

/**
 * rxe_rs_pin_pages() - pin pages of the current process
 * @addr: address of the first page
 * @count: number of pages
 * @write: whether the pages will be written to
 * @out: receives the kernel addresses of the pages; holds @count entries
 *
 * All pages that can be pinned are in the linear map, as neither x86-64 nor arm64 has high
 * memory.
 *
 * Context: Process context. May sleep.
 * Return: The number of pages that were pinned, which is at least 1 and may be less than @count, or
 * a negative error of pin_user_pages_fast().
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

/**
 * rxe_rs_unpin_range() - unpin consecutive pages
 * @addr: kernel address of the first byte
 * @len: number of bytes; all pages that contain one of them are unpinned
 * @dirty: whether the pages may have been written to
 * @done: number of pages that the caller has unpinned since it last rescheduled; updated
 *
 * Context: Process context. May sleep.
 */
void rxe_rs_unpin_range(void *addr, u64 len, bool dirty, u64 *done)
{
	u64 pages = PFN_UP(offset_in_page(addr) + len);
	struct page *page = virt_to_page(addr);

	while (pages) {
		u64 batch = min_t(u64, pages, RXE_RS_UNPIN_BATCH);

		unpin_user_page_range_dirty_lock(page, batch, dirty);
		page += batch;
		pages -= batch;
		*done += batch;
		if (*done >= RXE_RS_UNPIN_BATCH) {
			cond_resched();
			*done = 0;
		}
	}
}
