// SPDX-License-Identifier: GPL-2.0
/*
 * On-demand paging: memory of a process that is not pinned. Pages are faulted in when an access
 * needs them, and invalidated when the page tables of the process change. See
 * Documentation/mm/hmm.rst.
 */
#include <linux/hmm.h>
#include <linux/memcontrol.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/userfaultfd_k.h>
#include "bindings_helper.h"

#ifndef CONFIG_HMM_MIRROR
#error "on-demand paging needs CONFIG_INFINIBAND_ON_DEMAND_PAGING"
#endif

/* Pages per call of hmm_range_fault(), whose page frame numbers are on the stack. */
#define RXE_RS_ODP_BATCH 32

/*
 * A mirror of the page table entries of consecutive pages of a process. The lock is held for
 * writing to change entries and the sequence number of the notifier, and for reading, with bottom
 * halves disabled, to copy from and to the pages.
 */
struct rxe_rs_odp_chunk {
	struct mmu_interval_notifier notifier;
	rwlock_t lock;
	unsigned long start;	/* address of the first page in the process */
	u32 pages;
	u32 present;		/* number of entries that are not 0 */
	u64 entries[];		/* kernel address | RXE_RS_ODP_*, or 0 */
};

/**
 * rxe_rs_mm_grab() - take a reference to the current process's struct mm_struct
 *
 * The reference keeps the structure allocated, not the address space in use.
 *
 * Context: Process context.
 * Return: The structure, NULL for a kernel thread.
 */
struct mm_struct *rxe_rs_mm_grab(void)
{
	if (!current->mm)
		return NULL;
	mmgrab(current->mm);
	return current->mm;
}

/**
 * rxe_rs_mm_drop() - undo rxe_rs_mm_grab()
 * @mm: result of rxe_rs_mm_grab()
 *
 * Context: Any context.
 */
void rxe_rs_mm_drop(struct mm_struct *mm)
{
	mmdrop(mm);
}

/**
 * rxe_rs_mm_is_current() - check whether an address space is that of the current process
 * @mm: address space, which is not dereferenced
 *
 * Context: Process context.
 * Return: true if it is.
 */
bool rxe_rs_mm_is_current(const struct mm_struct *mm)
{
	return mm == current->mm;
}

/**
 * rxe_rs_mm_get() - take a reference to an address space, unless its process has exited
 * @mm: grabbed structure
 *
 * Context: Any context.
 * Return: true if the caller holds a reference, until it calls rxe_rs_mm_put().
 */
bool rxe_rs_mm_get(struct mm_struct *mm)
{
	return mmget_not_zero(mm);
}

/**
 * rxe_rs_mm_put() - undo rxe_rs_mm_get()
 * @mm: address space
 *
 * Context: Any context.
 */
void rxe_rs_mm_put(struct mm_struct *mm)
{
	/* This may be the last reference, and the address space must not be torn down here. */
	mmput_async(mm);
}

/**
 * rxe_rs_mm_charge() - charge what the current task allocates to the memory cgroup of a process
 * @mm: address space of the process
 *
 * Kernel threads fault pages in for processes, and are in no cgroup with a limit themselves. This
 * is about allocations with __GFP_ACCOUNT, which page tables are as well; anonymous pages are
 * charged to the process by whom they are mapped in any case.
 *
 * Context: Process context. The caller does not return to user space before it calls
 * rxe_rs_mm_uncharge().
 * Return: The memory cgroup that was set before, or NULL.
 */
struct mem_cgroup *rxe_rs_mm_charge(struct mm_struct *mm)
{
	return set_active_memcg(get_mem_cgroup_from_mm(mm));
}

/**
 * rxe_rs_mm_uncharge() - end what rxe_rs_mm_charge() began
 * @before: result of rxe_rs_mm_charge()
 *
 * What has been charged remains so until it is freed.
 *
 * Context: The task that called rxe_rs_mm_charge().
 */
void rxe_rs_mm_uncharge(struct mem_cgroup *before)
{
	mem_cgroup_put(set_active_memcg(before));
}

/* MMU notifier: clears the entries of a range whose page tables are about to change. */
static bool rxe_rs_odp_invalidate(struct mmu_interval_notifier *notifier,
				  const struct mmu_notifier_range *range, unsigned long seq)
{
	struct rxe_rs_odp_chunk *chunk = container_of(notifier, struct rxe_rs_odp_chunk, notifier);
	unsigned long end = chunk->start + ((unsigned long)chunk->pages << PAGE_SHIFT);
	unsigned long at = max(range->start, chunk->start) & PAGE_MASK;

	end = min(range->end, end);
	/*
	 * Nothing here waits for memory or for user space, so mmu_notifier_range_blockable() does
	 * not matter.
	 */
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

/**
 * rxe_rs_odp_chunk_new() - create a chunk without pages
 * @mm: address space, to which the caller has a reference of rxe_rs_mm_get()
 * @start: address of the first page
 * @pages: number of pages
 *
 * Context: Process context. May sleep.
 * Return: The chunk, ERR_PTR(-ENOMEM) or an error of mmu_interval_notifier_insert().
 */
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

/**
 * rxe_rs_odp_chunk_free() - free a chunk that is no longer used
 * @chunk: chunk
 *
 * Waits for running invalidations.
 *
 * Context: Process context. Sleeps.
 */
void rxe_rs_odp_chunk_free(struct rxe_rs_odp_chunk *chunk)
{
	mmu_interval_notifier_remove(&chunk->notifier);
	kvfree(chunk);
}

/**
 * rxe_rs_odp_chunk_present() - return the number of pages that are present
 * @chunk: chunk
 *
 * Context: Any context.
 * Return: The number at the time of the call; it may change unless the chunk is locked.
 */
u32 rxe_rs_odp_chunk_present(const struct rxe_rs_odp_chunk *chunk)
{
	return READ_ONCE(chunk->present);
}

/**
 * rxe_rs_odp_chunk_lock() - lock a chunk for accesses to its pages
 * @chunk: chunk
 *
 * No page is invalidated until rxe_rs_odp_chunk_unlock() is called.
 *
 * A notifier that waits goes first. read_lock() would pass it where bottom halves are disabled, as
 * it does for interrupts, and readers on several CPUs could keep the notifier waiting without end,
 * and with it whoever unmaps memory. The caller does not hold the lock of another chunk, so the
 * notifier waits for nothing that this CPU has.
 *
 * Context: Bottom halves disabled, interrupts enabled, no chunk locked.
 * Return: The entries of the chunk, one per page.
 */
const u64 *rxe_rs_odp_chunk_lock(struct rxe_rs_odp_chunk *chunk)
{
	/* There the lock sleeps, and lets no reader pass a writer. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		read_lock(&chunk->lock);
	else
		while (!read_trylock(&chunk->lock))
			cpu_relax();
	return chunk->entries;
}

/**
 * rxe_rs_odp_chunk_unlock() - undo rxe_rs_odp_chunk_lock()
 * @chunk: chunk
 *
 * Context: As rxe_rs_odp_chunk_lock().
 */
void rxe_rs_odp_chunk_unlock(struct rxe_rs_odp_chunk *chunk)
{
	read_unlock(&chunk->lock);
}

/*
 * Marks pages dirty before their first write. Writes by kernel address do not set the dirty bit of
 * the process's page table entry, and without it the data would not reach the swap device or the
 * file (MADV_FREE). When a page is cleaned its page table entry changes, so the notifier is called.
 *
 * The caller holds the lock, which is released temporarily. Returns false if pages may have been
 * invalidated meanwhile.
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
 * Returns true if the kernel may and can access the page. HMM returns all pages that the process
 * has mapped, PFN maps excepted; copy.c lists the kinds of memory, and explains why one check is
 * sufficient.
 *
 * The check is an access and not a test for memfd_secret, so it detects all pages that are not in
 * the linear map. It follows mmu_interval_read_begin() and is made with the lock held: a page that
 * is removed from the linear map later is unmapped from the process before that, which invalidates
 * the entry.
 */
static bool rxe_rs_odp_reachable(struct page *page)
{
	const struct folio *folio = page_folio(page);

	/* Memory of a device, which CPUs must not access as RAM. */
	if (is_zone_device_page(page) && !is_fsdax_page(page))
		return false;
	/*
	 * A damaged page that has not been unmapped yet. For hugetlbfs all of the huge page is
	 * refused, because the damaged part is not known here.
	 */
	if (PageHWPoison(page) || (folio_test_hugetlb(folio) && folio_test_hwpoison(folio)))
		return false;
	return rxe_rs_readable(page_address(page));
}

/*
 * Sets the entries of the pages that HMM has found. Returns -EAGAIN if they may have been
 * invalidated meanwhile, -EFAULT if the kernel cannot access one of them.
 */
static int rxe_rs_odp_install(struct rxe_rs_odp_chunk *chunk, unsigned long seq, u32 first,
			      u32 count, const unsigned long *pfns, bool write)
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
		/* A page that was writable before remains writable. */
		*entry = new | (*entry & RXE_RS_ODP_WRITABLE);
	}
out:
	write_unlock_bh(&chunk->lock);
	return err;
}

/*
 * Returns true if no process uses the address space any more. Page faults that a kernel thread
 * continued for it would keep and increase the memory of a process that has exited, and what is
 * faulted in then is charged to no cgroup, because the kernel finds the cgroup by the owner.
 */
static bool rxe_rs_odp_abandoned(const struct mm_struct *mm)
{
#ifdef CONFIG_MEMCG
	return !rcu_access_pointer(mm->owner);
#else
	return false;
#endif
}

/*
 * The result for a page that is not faulted in ahead of an access. That is done with private memory
 * without a file only: user space or a server may never provide the page of another kind, which the
 * access that has been resolved would have to wait for, and a fault for writing would dirty a file.
 */
#define RXE_RS_ODP_SKIPPED 1

/* Returns 0 if a page may be faulted in, RXE_RS_ODP_SKIPPED or an errno if not. */
static int rxe_rs_odp_may_fault(struct mm_struct *mm, unsigned long addr, u32 flags)
{
	struct vm_area_struct *vma = vma_lookup(mm, addr);

	if (!vma)
		return -EFAULT;
	/* Only the processor may write to a shadow stack. GUP refuses that, too. */
	if ((flags & RXE_RS_ODP_WRITE) && (vma->vm_flags & VM_SHADOW_STACK))
		return -EFAULT;
	if ((flags & RXE_RS_ODP_AHEAD) && (!vma_is_anonymous(vma) || userfaultfd_armed(vma)))
		return RXE_RS_ODP_SKIPPED;
	return 0;
}

/*
 * Faults in one page. The time that this takes is not bounded if user space or a server provides
 * the page (FUSE, userfaultfd, NFS). Unlike hmm_range_fault(), the function does not hold the mmap
 * lock meanwhile: everything that needs the address space would be blocked, including the removal
 * of the device.
 */
static int rxe_rs_odp_fault_page(struct mm_struct *mm, unsigned long addr, u32 flags)
{
	bool write = flags & RXE_RS_ODP_WRITE;
	bool unlocked = false;
	int err;

	mmap_read_lock(mm);
	err = rxe_rs_odp_may_fault(mm, addr, flags);
	if (!err)
		err = fixup_user_fault(mm, addr, FAULT_FLAG_REMOTE | (write ? FAULT_FLAG_WRITE : 0),
				       &unlocked);
	mmap_read_unlock(mm);
	return err;
}

/*
 * Faults in the pages that HMM has not found. Returns 0 if there are none, -EAGAIN if all of them
 * have been faulted in and must be looked up again.
 */
static int rxe_rs_odp_fault_missing(struct mm_struct *mm, unsigned long start, u32 count,
				    const unsigned long *pfns, u32 flags)
{
	unsigned long wanted = HMM_PFN_VALID | (flags & RXE_RS_ODP_WRITE ? HMM_PFN_WRITE : 0);
	bool faulted = false;
	u32 i;

	for (i = 0; i < count; i++) {
		int err;

		if (pfns[i] & HMM_PFN_ERROR)
			return -EFAULT;
		if ((pfns[i] & wanted) == wanted)
			continue;
		err = rxe_rs_odp_fault_page(mm, start + ((unsigned long)i << PAGE_SHIFT), flags);
		if (err == RXE_RS_ODP_SKIPPED)
			continue;
		if (err)
			return err;
		faulted = true;
	}
	return faulted ? -EAGAIN : 0;
}

/*
 * HMM reports the pages of a shadow stack as writable. The caller holds the mmap lock of the
 * address space.
 */
static void rxe_rs_odp_protect_shadow_stacks(const struct hmm_range *range, struct mm_struct *mm)
{
	VMA_ITERATOR(vmi, mm, range->start);
	struct vm_area_struct *vma;

	if (!VM_SHADOW_STACK)
		return;
	for_each_vma_range(vmi, vma, range->end) {
		unsigned long addr = max(vma->vm_start, range->start);
		unsigned long end = min(vma->vm_end, range->end);

		if (!(vma->vm_flags & VM_SHADOW_STACK))
			continue;
		for (; addr < end; addr += PAGE_SIZE)
			range->hmm_pfns[(addr - range->start) >> PAGE_SHIFT] &= ~HMM_PFN_WRITE;
	}
}

/* rxe_rs_odp_chunk_fault() for at most RXE_RS_ODP_BATCH pages. */
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
		if (rxe_rs_odp_abandoned(mm))
			return -EFAULT;
		memset(pfns, 0, sizeof(pfns));
		range.notifier_seq = mmu_interval_read_begin(&chunk->notifier);
		mmap_read_lock(mm);
		/* Without default_flags this looks pages up, but does not fault them in. */
		err = hmm_range_fault(&range);
		if (!err && write)
			rxe_rs_odp_protect_shadow_stacks(&range, mm);
		mmap_read_unlock(mm);
		if (!err && (flags & RXE_RS_ODP_FAULT)) {
			unsigned long begin = jiffies;

			err = rxe_rs_odp_fault_missing(mm, range.start, count, pfns, flags);
			/* The timeout bounds retries, not the time that page faults take. */
			timeout += jiffies - begin;
		}
		if (!err)
			err = rxe_rs_odp_install(chunk, range.notifier_seq, first, count, pfns,
						 write);
		cond_resched();
	} while ((err == -EBUSY || err == -EAGAIN) && time_before(jiffies, timeout));
	return err;
}

/**
 * rxe_rs_odp_chunk_fault() - make pages of a chunk present
 * @chunk: chunk, to whose address space the caller has a reference of rxe_rs_mm_get()
 * @first: first page
 * @count: number of pages; @first + @count is at most that of the chunk
 * @flags: RXE_RS_ODP_FAULT, RXE_RS_ODP_WRITE and RXE_RS_ODP_AHEAD
 *
 * Without RXE_RS_ODP_FAULT only pages that the process has mapped become present. With
 * RXE_RS_ODP_AHEAD, too, pages of private memory without a file do that the process has not.
 *
 * Context: Process context. Sleeps, for an unlimited time if user space handles page faults and
 * RXE_RS_ODP_AHEAD is not set.
 * Return: 0, -EFAULT if a page is not mapped as needed, the kernel cannot access it or the process
 * has exited, -EBUSY or -EAGAIN if the page tables keep changing, -EINTR if the current process is
 * being killed, -ENOMEM.
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
