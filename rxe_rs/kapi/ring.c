// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of the rings that processes map.
 *
 * A process can keep the pages of a ring after the ring is gone: by a mapping, or pinned by a
 * memory region. vfree() in softirq context links what it defers through the first bytes of the
 * memory itself, and would leave a list of the kernel where such a process can write. RCU callbacks
 * free rings, so they are deferred by rxe_rs_free().
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "bindings_helper.h"

static void free_ring(struct rxe_rs_free *item)
{
	struct rxe_rs_ring *ring = container_of(item, struct rxe_rs_ring, later);

	vfree(ring->addr);
	kfree(ring);
}

/**
 * rxe_rs_ring_alloc() - allocate zeroed pages for a ring
 * @len: number of bytes
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
	ring->addr = __vmalloc(len, GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_RETRY_MAYFAIL |
			       __GFP_NOWARN);
	if (!ring->addr) {
		kfree(ring);
		return NULL;
	}
	ring->later.free = free_ring;
	return ring;
}

/**
 * rxe_rs_ring_mmap() - map a ring into a process
 * @vma: mapping, which the core has found to be shared and of the length of the ring
 * @ring: ring
 * @len: length of the ring, a multiple of PAGE_SIZE
 *
 * Context: Process context, mmap lock held. May sleep.
 * Return: 0 or a negative error.
 */
int rxe_rs_ring_mmap(struct vm_area_struct *vma, const struct rxe_rs_ring *ring, size_t len)
{
	size_t at;
	int err;

	if (vma->vm_end - vma->vm_start > len)
		return -EINVAL;
	for (at = 0; at < vma->vm_end - vma->vm_start; at += PAGE_SIZE) {
		err = vm_insert_page(vma, vma->vm_start + at, vmalloc_to_page(ring->addr + at));
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
 * Context: Process context without locks held, or softirq context, where the memory is freed later.
 */
void rxe_rs_ring_free(struct rxe_rs_ring *ring)
{
	rxe_rs_free(&ring->later);
}
