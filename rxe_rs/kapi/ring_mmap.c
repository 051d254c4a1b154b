// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of rings into processes.
 *
 * All pages of a ring that has them are inserted into the page table when the ring is mapped. A
 * mapping of a lazy ring has operations, which allocate a page when a process first accesses it,
 * and holds a reference to the ring, because it may outlive the queue.
 *
 * A mapping does not keep the module from being unloaded, as a process that has a device open does
 * not. Therefore all mappings with operations are in a list, and when the module exits they get
 * pages wherever they have none, and the operations that they had before.
 */
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagemap.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include "bindings_helper.h"

/* Pages that are inserted into the page table at once. */
#define BATCH		16

/* A mapping of a lazy ring. */
struct mapping {
	struct list_head list;		/* in mappings */
	struct vm_area_struct *vma;
	struct rxe_rs_ring *ring;	/* a reference */
	pgoff_t first;			/* page offset of the first page of the ring */
};

/* Nested in the mmap locks. */
static DEFINE_SPINLOCK(mappings_lock);
static LIST_HEAD(mappings);
static DECLARE_WAIT_QUEUE_HEAD(mapping_gone);

/* Operations of a mapping whose driver sets none; mm does not export them. */
static const struct vm_operations_struct *no_ops;

/* Fills in a mapping, which takes a reference to the ring. */
static void enlist(struct mapping *mapping, struct vm_area_struct *vma, struct rxe_rs_ring *ring,
		   pgoff_t first)
{
	rxe_rs_ring_get(ring);
	mapping->vma = vma;
	mapping->ring = ring;
	mapping->first = first;
	vma->vm_private_data = mapping;
	spin_lock(&mappings_lock);
	list_add(&mapping->list, &mappings);
	spin_unlock(&mappings_lock);
}

/* A copy of the mapping for another part of it, another address, or another process. */
static void open_mapping(struct vm_area_struct *vma)
{
	const struct mapping *from = vma->vm_private_data;
	/* The function cannot fail. Until it returns nobody else has access to the mapping. */
	struct mapping *mapping = kmalloc(sizeof(*mapping), GFP_KERNEL_ACCOUNT | __GFP_NOFAIL);

	enlist(mapping, vma, from->ring, from->first);
}

static void close_mapping(struct vm_area_struct *vma)
{
	struct mapping *mapping = vma->vm_private_data;

	rxe_rs_ring_put(mapping->ring);
	/* The last one lets the module exit, which then waits for functions that do not sleep. */
	spin_lock(&mappings_lock);
	list_del(&mapping->list);
	wake_up(&mapping_gone);
	spin_unlock(&mappings_lock);
	kfree(mapping);
}

static vm_fault_t fault_in_mapping(struct vm_fault *vmf)
{
	const struct mapping *mapping = vmf->vma->vm_private_data;
	const size_t n = vmf->pgoff - mapping->first;
	void *page;

	if (n >= mapping->ring->pages)
		return VM_FAULT_SIGBUS;
	page = rxe_rs_ring_provide(mapping->ring, n);
	if (!page)
		return VM_FAULT_OOM;
	vmf->page = virt_to_page(page);
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct lazy_ops = {
	.open = open_mapping,
	.close = close_mapping,
	.fault = fault_in_mapping,
};

static int map_lazily(struct vm_area_struct *vma, struct rxe_rs_ring *ring)
{
	struct mapping *mapping = kmalloc(sizeof(*mapping), GFP_KERNEL_ACCOUNT);
	int err;

	if (!mapping)
		return -ENOMEM;
	/* Nearly each process accesses the first page, so it needs no page fault. */
	err = vm_insert_page(vma, vma->vm_start, virt_to_page(ring->addr));
	if (err) {
		kfree(mapping);
		return err;
	}
	WRITE_ONCE(no_ops, vma->vm_ops);
	enlist(mapping, vma, ring, vma->vm_pgoff);
	vma->vm_ops = &lazy_ops;
	return 0;
}

static struct page *page_of(const struct rxe_rs_ring *ring, size_t at)
{
	void *addr = ring->addr + at;

	return is_vmalloc_addr(addr) ? vmalloc_to_page(addr) : virt_to_page(addr);
}

static int map_all(struct vm_area_struct *vma, const struct rxe_rs_ring *ring)
{
	const size_t len = vma->vm_end - vma->vm_start;
	struct page *pages[BATCH];
	size_t at = 0;

	while (at < len) {
		const unsigned long start = vma->vm_start + at;
		unsigned long n = 0;
		int err;

		for (; n < BATCH && at < len; at += PAGE_SIZE)
			pages[n++] = page_of(ring, at);
		err = vm_insert_pages(vma, start, pages, &n);
		if (err)
			return err;
	}
	return 0;
}

/**
 * rxe_rs_ring_mmap() - map a ring into a process
 * @vma: mapping, which the core has found to be shared and of the length of the ring
 * @ring: ring
 *
 * Context: Process context, mmap lock held. May sleep.
 * Return: 0 or a negative error.
 */
int rxe_rs_ring_mmap(struct vm_area_struct *vma, struct rxe_rs_ring *ring)
{
	int err;

	if (vma->vm_end - vma->vm_start > ring->len)
		return -EINVAL;
	err = ring->pages ? map_lazily(vma, ring) : map_all(vma, ring);
	if (!err)
		vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	return err;
}

/* Returns the address space of some mapping, with a reference; NULL if all are being torn down. */
static struct mm_struct *any_mm(void)
{
	struct mm_struct *mm = NULL;
	struct mapping *mapping;

	spin_lock(&mappings_lock);
	list_for_each_entry(mapping, &mappings, list) {
		if (mmget_not_zero(mapping->vma->vm_mm)) {
			mm = mapping->vma->vm_mm;
			break;
		}
	}
	spin_unlock(&mappings_lock);
	return mm;
}

/* Takes a mapping of an address space from the list. */
static struct mapping *take_of(const struct mm_struct *mm)
{
	struct mapping *mapping;

	spin_lock(&mappings_lock);
	list_for_each_entry(mapping, &mappings, list) {
		if (mapping->vma->vm_mm == mm) {
			list_del(&mapping->list);
			spin_unlock(&mappings_lock);
			return mapping;
		}
	}
	spin_unlock(&mappings_lock);
	return NULL;
}

/*
 * Makes a mapping independent of this module. Its ring is dead, as the device has gone, so one page
 * takes the place of all pages that no process has accessed. Without memory for it a later access
 * raises SIGBUS.
 */
static void detach(struct mapping *mapping)
{
	struct vm_area_struct *vma = mapping->vma;
	struct page *rest = alloc_page(GFP_KERNEL | __GFP_ZERO);
	unsigned long at;

	for (at = vma->vm_start; at < vma->vm_end; at += PAGE_SIZE) {
		const size_t n = linear_page_index(vma, at) - mapping->first;
		void *addr = n < mapping->ring->pages ? rxe_rs_ring_page(mapping->ring, n) : NULL;
		struct page *page = addr ? virt_to_page(addr) : rest;

		/* Fails where a page is present already. */
		if (page)
			vm_insert_page(vma, at, page);
		cond_resched();
	}
	if (rest)
		put_page(rest);
	/* Waits for page faults that hold the lock of the mapping and not the mmap lock. */
	vma_start_write(vma);
	vma->vm_ops = READ_ONCE(no_ops);
	vma->vm_private_data = NULL;
}

/**
 * rxe_rs_ring_detach_all() - make all mappings of rings independent of this module
 *
 * For the exit of the module, when no ring can be mapped any more: afterwards no mapping has
 * operations of the module, and none of them runs.
 *
 * Context: Process context. Sleeps, until processes that are being torn down have closed their
 * mappings.
 */
void rxe_rs_ring_detach_all(void)
{
	struct mapping *mapping;
	struct mm_struct *mm;

	while ((mm = any_mm())) {
		mmap_write_lock(mm);
		while ((mapping = take_of(mm))) {
			detach(mapping);
			rxe_rs_ring_put(mapping->ring);
			kfree(mapping);
		}
		mmap_write_unlock(mm);
		mmput(mm);
	}
	wait_event(mapping_gone, list_empty(&mappings));
	/* A process may have been preempted at the end of close_mapping(). */
	if (READ_ONCE(no_ops))
		synchronize_rcu_tasks();
}
