// SPDX-License-Identifier: GPL-2.0
/* Memory for regions that is not contiguous. */
#include <linux/slab.h>
#include "kverbs.h"

void area_free(struct area *area)
{
	u32 i;

	if (!area->sg)
		return;
	if (area->mapped)
		ib_dma_unmap_sg(area->dev, area->sg, area->count, DMA_BIDIRECTIONAL);
	for (i = 0; i < area->count; i++)
		if (sg_page(&area->sg[i]))
			__free_pages(sg_page(&area->sg[i]), area->order);
	kvfree(area->sg);
	area->sg = NULL;
}

bool area_make(struct area *area, struct end *e, u32 count, u32 order)
{
	u32 i;

	*area = (struct area){ .dev = e->dev, .count = count, .order = order };
	/* One array: not every architecture can chain scatterlists. */
	area->sg = kvmalloc_array(count, sizeof(*area->sg), GFP_KERNEL);
	if (!is("memory for a list", !area->sg, 0))
		return false;
	sg_init_table(area->sg, count);
	/* In reverse order, because the allocator returns pages in ascending order. */
	for (i = count; i-- > 0;) {
		struct page *page = alloc_pages(GFP_KERNEL | __GFP_ZERO, order);

		if (!is("memory for a page", !page, 0))
			goto fail;
		sg_set_page(&area->sg[i], page, PAGE_SIZE << order, 0);
	}
	area->mapped = ib_dma_map_sg(area->dev, area->sg, count, DMA_BIDIRECTIONAL) == count;
	if (is("the list mapped", area->mapped, true))
		return true;
fail:
	area_free(area);
	return false;
}

u32 *words_of(const struct area *area, u32 i)
{
	return page_address(sg_page(&area->sg[i]));
}

void area_fill(const struct area *area, u32 seed)
{
	u32 i, words = (PAGE_SIZE << area->order) / 4;

	for (i = 0; i < area->count; i++)
		fill(words_of(area, i), words, seed, i * words);
}

bool area_matches(const struct area *area, u32 seed)
{
	u32 i, words = (PAGE_SIZE << area->order) / 4;

	for (i = 0; i < area->count; i++)
		if (!matches(words_of(area, i), words, seed, i * words))
			return false;
	return true;
}
