// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of a process that is not pinned: pages are taken when they are needed and given up when
 * the process's page tables change. See Documentation/mm/hmm.rst.
 */
#include <linux/hmm.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include "bindings_helper.h"

#ifndef CONFIG_HMM_MIRROR
#error "on-demand paging needs CONFIG_INFINIBAND_ON_DEMAND_PAGING"
#endif

/* Pages looked up in one go: their numbers are on the stack. */
#define RXE_RS_ODP_BATCH 32

/*
 * Consecutive pages of a process. Entries change, and seq of the notifier with them, with the
 * lock held for writing; whoever copies holds it for reading, bottom halves off.
 */
struct rxe_rs_odp_chunk {
	struct mmu_interval_notifier notifier;
	rwlock_t lock;
	unsigned long start;
	u32 pages;
	u32 present;
	u64 entries[];
};

struct mm_struct *rxe_rs_mm_grab(void)
{
	if (!current->mm)
		return NULL;
	mmgrab(current->mm);
	return current->mm;
}

void rxe_rs_mm_drop(struct mm_struct *mm)
{
	mmdrop(mm);
}

bool rxe_rs_mm_is_current(const struct mm_struct *mm)
{
	return mm == current->mm;
}

bool rxe_rs_mm_get(struct mm_struct *mm)
{
	return mmget_not_zero(mm);
}

void rxe_rs_mm_put(struct mm_struct *mm)
{
	/* The last user may be this one: taking the address space down is not for this context. */
	mmput_async(mm);
}

static bool rxe_rs_odp_invalidate(struct mmu_interval_notifier *notifier,
			       const struct mmu_notifier_range *range, unsigned long seq)
{
	struct rxe_rs_odp_chunk *chunk = container_of(notifier, struct rxe_rs_odp_chunk, notifier);
	unsigned long end = chunk->start + ((unsigned long)chunk->pages << PAGE_SHIFT);
	unsigned long at = max(range->start, chunk->start) & PAGE_MASK;

	end = min(range->end, end);
	/* Never sleeps, so it makes no difference whether it might. */
	write_lock_bh(&chunk->lock);
	mmu_interval_set_seq(notifier, seq);
	for (; at < end; at += PAGE_SIZE) {
		u64 *entry = &chunk->entries[(at - chunk->start) >> PAGE_SHIFT];

		chunk->present -= !!*entry;
		*entry = 0;
	}
	write_unlock_bh(&chunk->lock);
	return true;
}

static const struct mmu_interval_notifier_ops rxe_rs_odp_ops = {
	.invalidate = rxe_rs_odp_invalidate,
};

/* The caller holds the address space (rxe_rs_mm_get). */
struct rxe_rs_odp_chunk *rxe_rs_odp_chunk_new(struct mm_struct *mm, u64 start, u32 pages)
{
	struct rxe_rs_odp_chunk *chunk;
	int err;

	chunk = kvzalloc(struct_size(chunk, entries, pages), GFP_KERNEL_ACCOUNT);
	if (!chunk)
		return ERR_PTR(-ENOMEM);
	rwlock_init(&chunk->lock);
	chunk->start = start;
	chunk->pages = pages;
	err = mmu_interval_notifier_insert(&chunk->notifier, mm, start,
					   (unsigned long)pages << PAGE_SHIFT, &rxe_rs_odp_ops);
	if (err) {
		kvfree(chunk);
		return ERR_PTR(err);
	}
	return chunk;
}

/* Nobody looks at it any more. Sleeps until no invalidation does either. */
void rxe_rs_odp_chunk_free(struct rxe_rs_odp_chunk *chunk)
{
	mmu_interval_notifier_remove(&chunk->notifier);
	kvfree(chunk);
}

u32 rxe_rs_odp_chunk_present(const struct rxe_rs_odp_chunk *chunk)
{
	return READ_ONCE(chunk->present);
}

const u64 *rxe_rs_odp_chunk_lock(struct rxe_rs_odp_chunk *chunk)
{
	read_lock(&chunk->lock);
	return chunk->entries;
}

void rxe_rs_odp_chunk_unlock(struct rxe_rs_odp_chunk *chunk)
{
	read_unlock(&chunk->lock);
}

/*
 * What is written through our mapping must reach the swap device or the file although the
 * process's page table entry may be clean (MADV_FREE): a page is dirty before its first write.
 * When it is cleaned the page tables change, and we are told.
 *
 * The lock is held, and given up meanwhile; false if the pages may have gone.
 */
static bool rxe_rs_odp_make_dirty(struct rxe_rs_odp_chunk *chunk, unsigned long seq,
			       struct page **pages, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++)
		get_page(pages[i]);
	write_unlock_bh(&chunk->lock);
	for (i = 0; i < count; i++) {
		set_page_dirty_lock(pages[i]);
		put_page(pages[i]);
	}
	write_lock_bh(&chunk->lock);
	return !mmu_interval_read_retry(&chunk->notifier, seq);
}

/*
 * Whether the kernel may access the page, and can: HMM hands out whatever the process has mapped but PFN maps. The list
 * of what that may be, and why one look is enough, is in copy.c.
 *
 * The look is an access, not a test for memfd_secret, so it finds whatever has no place in the linear map. It comes
 * after mmu_interval_read_begin(), with the lock held: what is taken out of the linear map afterwards is unmapped from
 * the process before, and the entry with it.
 */
static bool rxe_rs_odp_reachable(struct page *page)
{
	const struct folio *folio = page_folio(page);
	u8 byte;

	/* Memory of devices that processors may not reach like their own. */
	if (is_zone_device_page(page) && !is_fsdax_page(page))
		return false;
	/* Only until it is unmapped. All of a huge page of hugetlbfs: which part is bad is not known here. */
	if (PageHWPoison(page) || (folio_test_hugetlb(folio) && folio_test_hwpoison(folio)))
		return false;
	return rxe_rs_copy(&byte, page_address(page), sizeof(byte));
}

static int rxe_rs_odp_install(struct rxe_rs_odp_chunk *chunk, unsigned long seq, u32 first, u32 count,
			   const unsigned long *pfns, bool write)
{
	struct page *clean[RXE_RS_ODP_BATCH];
	u32 i, dirtied = 0;
	int err = 0;

	write_lock_bh(&chunk->lock);
	if (mmu_interval_read_retry(&chunk->notifier, seq)) {
		err = -EAGAIN;
		goto out;
	}
	for (i = 0; i < count; i++) {
		struct page *page;

		if (!(pfns[i] & HMM_PFN_VALID))
			continue;
		page = hmm_pfn_to_page(pfns[i]);
		if (!rxe_rs_odp_reachable(page)) {
			err = -EFAULT;
			goto out;
		}
		if (write && (pfns[i] & HMM_PFN_WRITE) && !PageDirty(page))
			clean[dirtied++] = page;
	}
	if (dirtied && !rxe_rs_odp_make_dirty(chunk, seq, clean, dirtied)) {
		err = -EAGAIN;
		goto out;
	}
	for (i = 0; i < count; i++) {
		u64 *entry = &chunk->entries[first + i];
		u64 new;

		if (!(pfns[i] & HMM_PFN_VALID))
			continue;
		new = (u64)(uintptr_t)page_address(hmm_pfn_to_page(pfns[i])) | RXE_RS_ODP_PRESENT;
		if (write && (pfns[i] & HMM_PFN_WRITE))
			new |= RXE_RS_ODP_WRITABLE;
		chunk->present += !*entry;
		/* A page that can be written to already stays so. */
		*entry = new | (*entry & RXE_RS_ODP_WRITABLE);
	}
out:
	write_unlock_bh(&chunk->lock);
	return err;
}

/*
 * Makes one page present. Who provides it may take as long as he likes (FUSE, userfaultfd, NFS), so
 * unlike hmm_range_fault() this does not keep the address space locked: the process, and whoever
 * else has to do with its address space, could not go on, not even to take the device away.
 */
static int rxe_rs_odp_fault_in(struct mm_struct *mm, unsigned long addr, bool write)
{
	unsigned int flags = FAULT_FLAG_REMOTE | (write ? FAULT_FLAG_WRITE : 0);
	bool unlocked = false;
	int err;

	mmap_read_lock(mm);
	err = fixup_user_fault(mm, addr, flags, &unlocked);
	mmap_read_unlock(mm);
	return err;
}

/* -EAGAIN if pages were missing, and are there now, unless they have gone again. */
static int rxe_rs_odp_fault_missing(struct mm_struct *mm, unsigned long start, u32 count,
				 const unsigned long *pfns, bool write)
{
	unsigned long wanted = HMM_PFN_VALID | (write ? HMM_PFN_WRITE : 0);
	int err = 0;
	u32 i;

	for (i = 0; i < count; i++) {
		if (pfns[i] & HMM_PFN_ERROR)
			return -EFAULT;
		if ((pfns[i] & wanted) == wanted)
			continue;
		err = rxe_rs_odp_fault_in(mm, start + ((unsigned long)i << PAGE_SHIFT), write);
		if (err)
			return err;
		err = -EAGAIN;
	}
	return err;
}

static int rxe_rs_odp_batch(struct rxe_rs_odp_chunk *chunk, u32 first, u32 count, u32 flags)
{
	unsigned long timeout = jiffies + msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT);
	struct mm_struct *mm = chunk->notifier.mm;
	unsigned long pfns[RXE_RS_ODP_BATCH];
	bool write = flags & RXE_RS_ODP_WRITE;
	struct hmm_range range = {};
	int err;

	range.notifier = &chunk->notifier;
	range.start = chunk->start + ((unsigned long)first << PAGE_SHIFT);
	range.end = range.start + ((unsigned long)count << PAGE_SHIFT);
	range.hmm_pfns = pfns;
	do {
		if (fatal_signal_pending(current))
			return -EINTR;
		memset(pfns, 0, sizeof(pfns));
		range.notifier_seq = mmu_interval_read_begin(&chunk->notifier);
		mmap_read_lock(mm);
		/* Only takes note of what is there. */
		err = hmm_range_fault(&range);
		mmap_read_unlock(mm);
		if (!err && (flags & RXE_RS_ODP_FAULT)) {
			unsigned long begin = jiffies;

			err = rxe_rs_odp_fault_missing(mm, range.start, count, pfns, write);
			/* The time that others take is not spent on trying. */
			timeout += jiffies - begin;
		}
		if (!err)
			err = rxe_rs_odp_install(chunk, range.notifier_seq, first, count, pfns,
					      write);
		cond_resched();
	} while ((err == -EBUSY || err == -EAGAIN) && time_before(jiffies, timeout));
	return err;
}

/*
 * Gets pages, or takes note of those that are there (without RXE_RS_ODP_FAULT). The caller holds the
 * address space.
 */
int rxe_rs_odp_chunk_fault(struct rxe_rs_odp_chunk *chunk, u32 first, u32 count, u32 flags)
{
	while (count) {
		u32 some = min_t(u32, count, RXE_RS_ODP_BATCH);
		int err = rxe_rs_odp_batch(chunk, first, some, flags);

		if (err)
			return err;
		first += some;
		count -= some;
	}
	return 0;
}
