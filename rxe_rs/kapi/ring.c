// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of the rings that processes map.
 *
 * Small rings are pages that are contiguous in the linear map, so that they cost no mapping in the
 * kernel, and are mapped into the process as one piece. Large ones, and small ones when no such
 * pages are free, are from vmalloc().
 *
 * A process can keep the pages of a ring after the ring is gone: by a mapping, or pinned by a
 * memory region. vfree() in softirq context links what it defers through the first bytes of the
 * memory itself, and would leave a list of the kernel where such a process can write. RCU callbacks
 * free rings, so vfree() is deferred by rxe_rs_free().
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "bindings_helper.h"

/* Rings of more bytes are from vmalloc(). */
#define MAX_CONTIGUOUS	(PAGE_SIZE << PAGE_ALLOC_COSTLY_ORDER)

/* Pages that are inserted into the page table at once. */
#define BATCH		16

static void free_ring(struct rxe_rs_free *item)
{
	struct rxe_rs_ring *ring = container_of(item, struct rxe_rs_ring, later);

	vfree(ring->addr);
	kfree(ring);
}

static void *alloc_memory(size_t len)
{
	const gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;
	void *addr = NULL;

	if (len <= MAX_CONTIGUOUS)
		addr = alloc_pages_exact(len, gfp | __GFP_NORETRY);
	return addr ?: __vmalloc(len, gfp | __GFP_RETRY_MAYFAIL);
}

/**
 * rxe_rs_ring_alloc() - allocate zeroed pages for a ring
 * @len: number of bytes, a multiple of PAGE_SIZE
 *
 * In contrast to vmalloc_user() the pages are charged to the memory cgroup of the process. Rings
 * can be large, so the allocation fails instead of invoking the OOM killer if the limit of the
 * cgroup is reached.
 *
 * Context: Process context. May sleep.
 * Return: The ring, or NULL.
 */
struct rxe_rs_ring *rxe_rs_ring_alloc(size_t len)
{
	struct rxe_rs_ring *ring = kmalloc(sizeof(*ring), GFP_KERNEL_ACCOUNT);

	if (!ring)
		return NULL;
	ring->addr = alloc_memory(len);
	if (!ring->addr) {
		kfree(ring);
		return NULL;
	}
	ring->len = len;
	ring->later.free = free_ring;
	return ring;
}

static struct page *page_of(const struct rxe_rs_ring *ring, size_t at)
{
	void *addr = ring->addr + at;

	return is_vmalloc_addr(addr) ? vmalloc_to_page(addr) : virt_to_page(addr);
}

/**
 * rxe_rs_ring_mmap() - map a ring into a process
 * @vma: mapping, which the core has found to be shared and of the length of the ring
 * @ring: ring
 *
 * Context: Process context, mmap lock held. May sleep.
 * Return: 0 or a negative error.
 */
int rxe_rs_ring_mmap(struct vm_area_struct *vma, const struct rxe_rs_ring *ring)
{
	const size_t len = vma->vm_end - vma->vm_start;
	struct page *pages[BATCH];
	size_t at = 0;

	if (len > ring->len)
		return -EINVAL;
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
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	return 0;
}

/**
 * rxe_rs_ring_free() - free a ring
 * @ring: result of rxe_rs_ring_alloc()
 *
 * Context: Process context without locks held, or softirq context, where memory from vmalloc() is
 * freed later.
 */
void rxe_rs_ring_free(struct rxe_rs_ring *ring)
{
	if (is_vmalloc_addr(ring->addr)) {
		rxe_rs_free(&ring->later);
		return;
	}
	free_pages_exact(ring->addr, ring->len);
	kfree(ring);
}
