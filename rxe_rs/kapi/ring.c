// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of the rings that processes map.
 *
 * There are two kinds. Rings that the kernel writes to, in softirq context too, have all their
 * pages from the beginning: small ones are pages that are contiguous in the linear map, so that
 * they cost no mapping in the kernel, and large ones, and small ones when no such pages are free,
 * are from vmalloc(). Rings that only processes write to are lazy: they have their first page from
 * the beginning, which holds the indexes, and others when a process first accesses them. An idle
 * queue pair, of which many applications have one for each peer, uses the first pages only.
 *
 * A process can keep the pages of a ring after the ring is gone: by a mapping, or pinned by a
 * memory region. vfree() in softirq context links what it defers through the first bytes of the
 * memory itself, and would leave a list of the kernel where such a process can write. RCU callbacks
 * free rings, so vfree() is deferred by rxe_rs_free().
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "bindings_helper.h"

/* Rings of more bytes are from vmalloc(). */
#define MAX_CONTIGUOUS	(PAGE_SIZE << PAGE_ALLOC_COSTLY_ORDER)

/* Lazy rings of more pages are freed in process context. */
#define MANY_PAGES	64

static void *alloc_contiguous(size_t len)
{
	const gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;
	void *addr = NULL;

	if (len <= MAX_CONTIGUOUS)
		addr = alloc_pages_exact(len, gfp | __GFP_NORETRY);
	return addr ?: __vmalloc(len, gfp | __GFP_RETRY_MAYFAIL);
}

static void free_ring(struct rxe_rs_free *item)
{
	struct rxe_rs_ring *ring = container_of(item, struct rxe_rs_ring, later);
	size_t n;

	for (n = 0; n < ring->pages; n++)
		free_page((unsigned long)ring->page[n]);
	if (is_vmalloc_addr(ring->addr))
		vfree(ring->addr);
	else if (!ring->pages)
		free_pages_exact(ring->addr, ring->len);
	kvfree(ring);
}

static struct rxe_rs_ring *new_ring(size_t len, size_t pages)
{
	struct rxe_rs_ring *ring;

	ring = kvzalloc(struct_size(ring, page, pages), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!ring)
		return NULL;
	refcount_set(&ring->users, 1);
	ring->later.free = free_ring;
	ring->len = len;
	ring->pages = pages;
	return ring;
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
	struct rxe_rs_ring *ring = new_ring(len, 0);

	if (!ring)
		return NULL;
	ring->addr = alloc_contiguous(len);
	if (!ring->addr) {
		kvfree(ring);
		return NULL;
	}
	return ring;
}

/**
 * rxe_rs_ring_alloc_lazy() - allocate a ring whose pages are allocated when a process accesses them
 * @len: number of bytes, a multiple of PAGE_SIZE
 *
 * The pages are charged to the memory cgroup of the process that first accesses them.
 *
 * Context: Process context. May sleep.
 * Return: The ring, with @addr being its first page, or NULL.
 */
struct rxe_rs_ring *rxe_rs_ring_alloc_lazy(size_t len)
{
	struct rxe_rs_ring *ring;

	if (len <= PAGE_SIZE)
		return rxe_rs_ring_alloc(len);
	ring = new_ring(len, len >> PAGE_SHIFT);
	if (!ring)
		return NULL;
	ring->addr = rxe_rs_ring_provide(ring, 0);
	if (!ring->addr) {
		kvfree(ring);
		return NULL;
	}
	return ring;
}

/**
 * rxe_rs_ring_page() - find a page of a ring
 * @ring: ring
 * @n: number of the page, less than @len divided by PAGE_SIZE
 *
 * Context: Any context.
 * Return: The kernel address of the page, or NULL if no process has accessed it.
 */
void *rxe_rs_ring_page(const struct rxe_rs_ring *ring, size_t n)
{
	/* Pairs with the cmpxchg() of rxe_rs_ring_provide(): the page has been zeroed. */
	return ring->pages ? smp_load_acquire(&ring->page[n]) : ring->addr + (n << PAGE_SHIFT);
}

/**
 * rxe_rs_ring_provide() - find a page of a ring, or allocate it
 * @ring: ring
 * @n: number of the page, less than @len divided by PAGE_SIZE
 *
 * Context: Process context. May sleep.
 * Return: The kernel address of the page, or NULL if there is no memory.
 */
void *rxe_rs_ring_provide(struct rxe_rs_ring *ring, size_t n)
{
	void *page = rxe_rs_ring_page(ring, n), *first;

	if (page)
		return page;
	page = (void *)__get_free_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!page)
		return NULL;
	/* Another process, or thread, may have accessed the page at the same time. */
	first = cmpxchg(&ring->page[n], NULL, page);
	if (first) {
		free_page((unsigned long)page);
		page = first;
	}
	return page;
}

/**
 * rxe_rs_ring_get() - take another reference to a ring
 * @ring: ring
 *
 * Context: Any context.
 */
void rxe_rs_ring_get(struct rxe_rs_ring *ring)
{
	refcount_inc(&ring->users);
}

/**
 * rxe_rs_ring_put() - drop a reference to a ring, and free it with the last one
 * @ring: result of rxe_rs_ring_alloc() or rxe_rs_ring_alloc_lazy()
 *
 * Context: Process context without locks held, or softirq context, where memory from vmalloc() and
 * many pages are freed later.
 */
void rxe_rs_ring_put(struct rxe_rs_ring *ring)
{
	if (!refcount_dec_and_test(&ring->users))
		return;
	if (is_vmalloc_addr(ring->addr) || ring->pages > MANY_PAGES)
		rxe_rs_free(&ring->later);
	else
		free_ring(&ring->later);
}
