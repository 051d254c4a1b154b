// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers that move, as those of graphics drivers do: on request the pages of a buffer are
 * replaced by others, unless an importer has pinned it.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "kmemory.h"

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)

MODULE_IMPORT_NS("DMA_BUF");

struct buffer {
	unsigned long flags;
	/* The reservation lock of the DMA buffer protects the fields below. */
	unsigned int attached;
	unsigned int pinned;
	unsigned int accessed;
	bool mapped;
	struct page *pages[KMEMORY_BUFFER_PAGES];
};

static const struct dma_buf_ops static_ops;

static int get_pages(struct page **pages)
{
	int n;

	for (n = 0; n < KMEMORY_BUFFER_PAGES; n++) {
		pages[n] = alloc_page(GFP_HIGHUSER | __GFP_ZERO);
		if (!pages[n])
			break;
	}
	if (n == KMEMORY_BUFFER_PAGES)
		return 0;
	while (n)
		__free_page(pages[--n]);
	return -ENOMEM;
}

static void put_pages(struct page **pages)
{
	int n;

	/* Processes may have them mapped. */
	for (n = 0; n < KMEMORY_BUFFER_PAGES; n++)
		put_page(pages[n]);
}

static void drop_pin(struct buffer *this)
{
	/* Importers unmap a buffer before they allow it to move. */
	WARN_ON(!--this->pinned && this->mapped);
}

static int buffer_attach(struct dma_buf *buf, struct dma_buf_attachment *attach)
{
	struct buffer *this = buf->priv;

	if (this->flags & KMEMORY_FAIL_ATTACH)
		return -EBUSY;
	dma_resv_lock(buf->resv, NULL);
	this->attached++;
	if (buf->ops == &static_ops)
		this->pinned++;
	dma_resv_unlock(buf->resv);
	return 0;
}

static void buffer_detach(struct dma_buf *buf, struct dma_buf_attachment *attach)
{
	struct buffer *this = buf->priv;

	dma_resv_lock(buf->resv, NULL);
	if (buf->ops == &static_ops)
		drop_pin(this);
	this->attached--;
	dma_resv_unlock(buf->resv);
}

static int buffer_pin(struct dma_buf_attachment *attach)
{
	struct buffer *this = attach->dmabuf->priv;

	dma_resv_assert_held(attach->dmabuf->resv);
	if (this->flags & KMEMORY_FAIL_PIN)
		return -ENOSPC;
	this->pinned++;
	return 0;
}

static void buffer_unpin(struct dma_buf_attachment *attach)
{
	dma_resv_assert_held(attach->dmabuf->resv);
	drop_pin(attach->dmabuf->priv);
}

static struct sg_table *buffer_map(struct dma_buf_attachment *attach, enum dma_data_direction dir)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void buffer_unmap(struct dma_buf_attachment *attach, struct sg_table *table,
			 enum dma_data_direction dir)
{
}

static int buffer_begin(struct dma_buf *buf, enum dma_data_direction dir)
{
	struct buffer *this = buf->priv;

	if (this->flags & KMEMORY_FAIL_ACCESS)
		return -EIO;
	dma_resv_lock(buf->resv, NULL);
	this->accessed++;
	dma_resv_unlock(buf->resv);
	return 0;
}

static int buffer_end(struct dma_buf *buf, enum dma_data_direction dir)
{
	struct buffer *this = buf->priv;

	dma_resv_lock(buf->resv, NULL);
	this->accessed--;
	dma_resv_unlock(buf->resv);
	return 0;
}

/* Neither pins the pages nor takes references to them; the interface does not demand it. */
static int buffer_vmap(struct dma_buf *buf, struct iosys_map *map)
{
	struct buffer *this = buf->priv;
	void *addr;

	if (this->flags & KMEMORY_FAIL_MAP)
		return -EOPNOTSUPP;
	addr = vmap(this->pages, KMEMORY_BUFFER_PAGES, VM_MAP, PAGE_KERNEL);
	if (!addr)
		return -ENOMEM;
	if (this->flags & KMEMORY_DEVICE)
		iosys_map_set_vaddr_iomem(map, (void __iomem *)addr);
	else
		iosys_map_set_vaddr(map, addr);
	this->mapped = true;
	return 0;
}

static void buffer_vunmap(struct dma_buf *buf, struct iosys_map *map)
{
	struct buffer *this = buf->priv;

	vunmap(map->is_iomem ? (void __force *)map->vaddr_iomem : map->vaddr);
	this->mapped = false;
}

static int buffer_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	struct buffer *this = buf->priv;
	int ret;

	dma_resv_lock(buf->resv, NULL);
	ret = vm_map_pages(vma, this->pages, KMEMORY_BUFFER_PAGES);
	dma_resv_unlock(buf->resv);
	return ret;
}

static void buffer_release(struct dma_buf *buf)
{
	struct buffer *this = buf->priv;

	WARN_ON(this->attached || this->pinned || this->accessed || this->mapped);
	put_pages(this->pages);
	kfree(this);
}

/* Attachments pin the buffer, as those of drivers on the generic operations of DRM do. */
static const struct dma_buf_ops static_ops = {
	.attach = buffer_attach,
	.detach = buffer_detach,
	.map_dma_buf = buffer_map,
	.unmap_dma_buf = buffer_unmap,
	.begin_cpu_access = buffer_begin,
	.end_cpu_access = buffer_end,
	.mmap = buffer_mmap,
	.vmap = buffer_vmap,
	.vunmap = buffer_vunmap,
	.release = buffer_release,
};

/* Importers pin it by a call of its own, as with amdgpu and xe. */
static const struct dma_buf_ops dynamic_ops = {
	.attach = buffer_attach,
	.detach = buffer_detach,
	.pin = buffer_pin,
	.unpin = buffer_unpin,
	.map_dma_buf = buffer_map,
	.unmap_dma_buf = buffer_unmap,
	.begin_cpu_access = buffer_begin,
	.end_cpu_access = buffer_end,
	.mmap = buffer_mmap,
	.vmap = buffer_vmap,
	.vunmap = buffer_vunmap,
	.release = buffer_release,
};

int buffer_export(unsigned long flags)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct buffer *this = kzalloc_obj(*this);
	struct dma_buf *buf;
	int ret;

	if (!this)
		return -ENOMEM;
	this->flags = flags;
	ret = get_pages(this->pages);
	if (ret)
		goto free;
	info.ops = flags & KMEMORY_DYNAMIC ? &dynamic_ops : &static_ops;
	info.size = KMEMORY_BUFFER_PAGES * PAGE_SIZE;
	info.flags = O_RDWR;
	info.priv = this;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		ret = PTR_ERR(buf);
		goto put;
	}
	ret = dma_buf_fd(buf, O_CLOEXEC);
	if (ret < 0)
		dma_buf_put(buf);
	return ret;

put:
	put_pages(this->pages);
free:
	kfree(this);
	return ret;
}

static struct dma_buf *buffer_of(int fd)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (IS_ERR(buf) || buf->ops == &static_ops || buf->ops == &dynamic_ops)
		return buf;
	dma_buf_put(buf);
	return ERR_PTR(-EINVAL);
}

int buffer_relocate(int fd)
{
	struct page *pages[KMEMORY_BUFFER_PAGES];
	struct dma_buf *buf = buffer_of(fd);
	struct buffer *this;
	int ret, n;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	this = buf->priv;
	ret = get_pages(pages);
	if (ret)
		goto put;
	dma_resv_lock(buf->resv, NULL);
	if (this->pinned) {
		ret = -EBUSY;
	} else {
		for (n = 0; n < KMEMORY_BUFFER_PAGES; n++) {
			copy_highpage(pages[n], this->pages[n]);
			swap(pages[n], this->pages[n]);
		}
	}
	dma_resv_unlock(buf->resv);
	put_pages(pages);
put:
	dma_buf_put(buf);
	return ret;
}

int buffer_uses(int fd)
{
	struct dma_buf *buf = buffer_of(fd);
	struct buffer *this;
	int ret;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	this = buf->priv;
	dma_resv_lock(buf->resv, NULL);
	ret = this->attached | this->pinned << 8 | this->accessed << 16 | this->mapped << 24;
	dma_resv_unlock(buf->resv);
	dma_buf_put(buf);
	return ret;
}

#else

int buffer_export(unsigned long flags)
{
	return -EOPNOTSUPP;
}

int buffer_relocate(int fd)
{
	return -EOPNOTSUPP;
}

int buffer_uses(int fd)
{
	return -EOPNOTSUPP;
}

#endif
