// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers of other drivers as memory of a region.
 *
 * A device without a DMA device cannot attach to a buffer, and an attachment provides bus
 * addresses. The driver uses the kernel mapping of the exporter (vmap) instead.
 */
#include <linux/dma-buf.h>
#include <linux/dma-direction.h>
#include <linux/iosys-map.h>
#include <linux/slab.h>
#include "bindings_helper.h"

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)

MODULE_IMPORT_NS("DMA_BUF");

/* A DMA buffer that is mapped for the CPU. */
struct rxe_rs_dmabuf {
	struct dma_buf *buf;
	struct iosys_map map;
};

/**
 * rxe_rs_dmabuf_get() - map a range of a DMA buffer for the CPU
 * @fd: file descriptor of the current process
 * @offset: first byte of the range in the buffer
 * @len: length of the range in bytes
 * @addr: receives the kernel address of the range
 * @reason: receives a description if the call fails
 *
 * The exporter maps the whole buffer and keeps it in place until rxe_rs_dmabuf_put() is called.
 *
 * Context: Process context. May sleep.
 * Return: The mapping, or an ERR_PTR: -EBADF if @fd is not open, -EINVAL if it is not a DMA buffer
 * or the range is empty or not inside of it, -EOPNOTSUPP if the CPU cannot access the buffer,
 * -ENOMEM, or an error of the exporter.
 */
struct rxe_rs_dmabuf *rxe_rs_dmabuf_get(int fd, u64 offset, u64 len, void **addr,
					const char **reason)
{
	struct rxe_rs_dmabuf *this;
	struct dma_buf *buf;
	u64 end;
	int err;

	*reason = "not a DMA buffer";
	buf = dma_buf_get(fd);
	if (IS_ERR(buf))
		return ERR_CAST(buf);

	err = -EINVAL;
	*reason = "range is empty or outside the DMA buffer";
	if (!len || check_add_overflow(offset, len, &end) || end > buf->size)
		goto put;

	err = -EOPNOTSUPP;
	*reason = "the CPU cannot reach this DMA buffer: its exporter maps it for devices only";
	if (!buf->ops->vmap)
		goto put;

	err = -ENOMEM;
	*reason = "no memory";
	this = kzalloc_obj(*this, GFP_KERNEL_ACCOUNT);
	if (!this)
		goto put;

	*reason = "the exporter cannot prepare the DMA buffer for the CPU";
	err = dma_buf_begin_cpu_access(buf, DMA_BIDIRECTIONAL);
	if (err)
		goto free;
	*reason = "the exporter cannot map the DMA buffer for the CPU";
	/* The exporter does not move the buffer while it is mapped. */
	err = dma_buf_vmap_unlocked(buf, &this->map);
	if (err)
		goto end;
	err = -EOPNOTSUPP;
	*reason = "the DMA buffer is a device's memory, not the CPU's";
	if (this->map.is_iomem)
		goto unmap;

	this->buf = buf;
	*addr = this->map.vaddr + offset;
	return this;

unmap:
	dma_buf_vunmap_unlocked(buf, &this->map);
end:
	dma_buf_end_cpu_access(buf, DMA_BIDIRECTIONAL);
free:
	kfree(this);
put:
	dma_buf_put(buf);
	return ERR_PTR(err);
}

/**
 * rxe_rs_dmabuf_put() - release a mapping
 * @this: result of rxe_rs_dmabuf_get()
 *
 * Context: Process context. May sleep.
 */
void rxe_rs_dmabuf_put(struct rxe_rs_dmabuf *this)
{
	dma_buf_vunmap_unlocked(this->buf, &this->map);
	dma_buf_end_cpu_access(this->buf, DMA_BIDIRECTIONAL);
	dma_buf_put(this->buf);
	kfree(this);
}

#else

struct rxe_rs_dmabuf *rxe_rs_dmabuf_get(int fd, u64 offset, u64 len, void **addr,
					const char **reason)
{
	*reason = "this kernel has no DMA buffers";
	return ERR_PTR(-EOPNOTSUPP);
}

void rxe_rs_dmabuf_put(struct rxe_rs_dmabuf *this)
{
}

#endif
