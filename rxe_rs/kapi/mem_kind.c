// SPDX-License-Identifier: GPL-2.0
/*
 * Which kind of memory is at a kernel address: whether it is in the linear map, and whether it is
 * persistent.
 */
#include <linux/ioport.h>
#include "bindings_helper.h"

/**
 * rxe_rs_linear_range() - check whether a range is in the linear map and backed by memory
 * @addr: first address
 * @len: number of bytes
 *
 * Context: Any context.
 * Return: true if all of the range is; false if it is empty or wraps.
 */
bool rxe_rs_linear_range(u64 addr, size_t len)
{
	u64 end, at;

	if (!len || check_add_overflow(addr, (u64)len - 1, &end))
		return false;
	for (at = addr & PAGE_MASK; at <= end; at += PAGE_SIZE) {
		if (!virt_addr_valid((void *)(uintptr_t)at))
			return false;
		if (at > U64_MAX - PAGE_SIZE)
			break;
	}
	return true;
}

static bool region_is(phys_addr_t start, size_t len, unsigned long desc)
{
	return region_intersects(start, len, IORESOURCE_MEM, desc) == REGION_INTERSECTS;
}

/**
 * rxe_rs_is_pmem() - check whether a range is persistent memory
 * @addr: first address in the linear map
 * @len: number of bytes
 *
 * Context: Process context.
 * Return: true if all of the range is.
 */
bool rxe_rs_is_pmem(void *addr, size_t len)
{
	phys_addr_t start = virt_to_phys(addr);

	cond_resched();
	return rxe_rs_pmem_supported() &&
	       (region_is(start, len, IORES_DESC_PERSISTENT_MEMORY) ||
		region_is(start, len, IORES_DESC_PERSISTENT_MEMORY_LEGACY));
}
