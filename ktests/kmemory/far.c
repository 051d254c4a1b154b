// SPDX-License-Identifier: GPL-2.0
/*
 * Device private memory of an emulated device (Documentation/mm/hmm.rst): one page at a time. Its
 * contents are stored in a page of RAM.
 */
#include <linux/highmem.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include "kmemory.h"

#ifdef CONFIG_DEVICE_PRIVATE

static struct dev_pagemap pagemap;
static struct resource *room;
/* The device refuses to migrate the page back when a CPU accesses it. */
static bool kept;
static atomic_t in_use;

static void device_free(struct folio *folio)
{
	struct page *content = folio->page.zone_device_data;

	folio->page.zone_device_data = NULL;
	__free_page(content);
	atomic_set(&in_use, 0);
}

static vm_fault_t device_fault(struct vm_fault *vmf)
{
	unsigned long src = 0, dst = 0;
	struct migrate_vma args = {
		.vma = vmf->vma,
		.start = vmf->address & PAGE_MASK,
		.end = (vmf->address & PAGE_MASK) + PAGE_SIZE,
		.src = &src,
		.dst = &dst,
		.pgmap_owner = &pagemap,
		.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
		.fault_page = vmf->page,
	};
	struct page *to;

	if (READ_ONCE(kept) || migrate_vma_setup(&args))
		return VM_FAULT_SIGBUS;
	if (src & MIGRATE_PFN_MIGRATE) {
		to = alloc_page(GFP_HIGHUSER_MOVABLE);
		if (to) {
			copy_highpage(to, vmf->page->zone_device_data);
			lock_page(to);
			dst = migrate_pfn(page_to_pfn(to));
		}
	}
	migrate_vma_pages(&args);
	migrate_vma_finalize(&args);
	return dst ? 0 : VM_FAULT_SIGBUS;
}

static const struct dev_pagemap_ops device_ops = {
	.folio_free = device_free,
	.migrate_to_ram = device_fault,
};

int far_start(void)
{
	void *map;

	/* Physical address space for one section, without memory. */
	room = request_free_mem_region(&iomem_resource, PAGE_SIZE, "kmemory");
	if (IS_ERR(room))
		return PTR_ERR(room);
	pagemap.type = MEMORY_DEVICE_PRIVATE;
	pagemap.range.start = room->start;
	pagemap.range.end = room->end;
	pagemap.nr_range = 1;
	pagemap.ops = &device_ops;
	pagemap.owner = &pagemap;
	map = memremap_pages(&pagemap, numa_mem_id());
	if (IS_ERR(map)) {
		release_mem_region(room->start, resource_size(room));
		return PTR_ERR(map);
	}
	return 0;
}

void far_stop(void)
{
	memunmap_pages(&pagemap);
	release_mem_region(room->start, resource_size(room));
}

int far_move(unsigned long addr, bool keep)
{
	unsigned long src = 0, dst = 0;
	struct migrate_vma args = {
		.start = addr & PAGE_MASK,
		.end = (addr & PAGE_MASK) + PAGE_SIZE,
		.src = &src,
		.dst = &dst,
		.pgmap_owner = &pagemap,
		.flags = MIGRATE_VMA_SELECT_SYSTEM,
	};
	struct page *page = pfn_to_page(PHYS_PFN(room->start)), *content;
	int ret;

	if (atomic_cmpxchg(&in_use, 0, 1))
		return -EBUSY;
	WRITE_ONCE(kept, keep);
	content = alloc_page(GFP_HIGHUSER);
	mmap_read_lock(current->mm);
	args.vma = vma_lookup(current->mm, addr);
	ret = args.vma && content ? migrate_vma_setup(&args) : -EFAULT;
	if (!ret) {
		if (src & MIGRATE_PFN_MIGRATE) {
			copy_highpage(content, migrate_pfn_to_page(src));
			zone_device_page_init(page, &pagemap, 0);
			page->zone_device_data = content;
			/* The device page owns both from here on. */
			content = NULL;
			dst = migrate_pfn(page_to_pfn(page));
			if (src & MIGRATE_PFN_WRITE)
				dst |= MIGRATE_PFN_WRITE;
		}
		migrate_vma_pages(&args);
		if (!(src & MIGRATE_PFN_MIGRATE))
			ret = -EAGAIN;
		migrate_vma_finalize(&args);
	}
	mmap_read_unlock(current->mm);
	if (!dst) {
		if (content)
			__free_page(content);
		atomic_set(&in_use, 0);
	}
	return ret;
}

#else

int far_start(void)
{
	return 0;
}

void far_stop(void)
{
}

int far_move(unsigned long addr, bool keep)
{
	return -EOPNOTSUPP;
}

#endif
