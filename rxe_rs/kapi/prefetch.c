// SPDX-License-Identifier: GPL-2.0
/* Prefetching of whole objects. */
#include <linux/prefetch.h>
#include "bindings_helper.h"

/**
 * rxe_rs_prefetch() - start to load an object into the caches
 * @start: object
 * @len: its length in bytes
 *
 * prefetch_range() of the kernel omits most of the cache lines.
 *
 * Context: Any context.
 */
void rxe_rs_prefetch(const void *start, size_t len)
{
	const void *line;

	for (line = start; line < start + len; line += L1_CACHE_BYTES)
		prefetch(line);
}
