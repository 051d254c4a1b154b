// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers of other drivers as memory of a region.
 *
 * An importer gets bus addresses by mapping its attachment to a buffer, which a device without a
 * DMA device cannot do. The driver uses the kernel mapping of the exporter (vmap) instead. That
 * alone does not keep the buffer in place: the exporter may move it, and free the pages that are
 * mapped. Therefore the device is attached, for which exporters without a pin operation pin the
 * buffer, and the others are asked to pin it.
 */
#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/dma-direction.h>
#include <linux/dma-resv.h>
#include <linux/iosys-map.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include "bindings_helper.h"

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)

MODULE_IMPORT_NS("DMA_BUF");

/* A DMA buffer that is pinned, and mapped for the CPU. */
struct rxe_rs_dmabuf {
	struct dma_buf *buf;
	struct dma_buf_attachment *attach;
	struct iosys_map map;
};

/*
 * Only importers with such a table may pin a buffer. Without allow_peer2peer it is pinned in memory
 * that the CPU reaches. Without invalidate_mappings an exporter that cannot promise to leave the
 * buffer in place refuses the attachment.
 */
static const struct dma_buf_attach_ops attach_ops = {
	.allow_peer2peer = false,
};

static int pin(struct dma_buf_attachment *attach)
{
	int err;

	dma_resv_lock(attach->dmabuf->resv, NULL);
	err = dma_buf_pin(attach);
	dma_resv_unlock(attach->dmabuf->resv);
	return err;
}

static void unpin(struct dma_buf_attachment *attach)
{
	dma_resv_lock(attach->dmabuf->resv, NULL);
	dma_buf_unpin(attach);
	dma_resv_unlock(attach->dmabuf->resv);
}

/*
 * dma_buf_vmap() warns of an exporter that fails, but there are some that have the operation and
 * always fail, such as drm_gem_dmabuf_vmap() of a driver whose objects cannot be mapped. Therefore
 * the exporter is asked first, unless the buffer is mapped already.
 */
static int map_for_cpu(struct dma_buf *buf, struct iosys_map *map)
{
	struct iosys_map trial = {};
	int err = 0;

	dma_resv_lock(buf->resv, NULL);
	if (!buf->vmapping_counter) {
		err = buf->ops->vmap(buf, &trial);
		if (!err && buf->ops->vunmap)
			buf->ops->vunmap(buf, &trial);
	}
	if (!err)
		err = dma_buf_vmap(buf, map);
	dma_resv_unlock(buf->resv);
	return err;
}

/**
 * rxe_rs_dmabuf_get() - pin a DMA buffer and map a range of it for the CPU
 * @dev: device that is alive during the call
 * @fd: file descriptor of the current process
 * @offset: first byte of the range in the buffer
 * @len: length of the range in bytes
 * @addr: receives the kernel address of the range
 * @reason: receives a description if the call fails
 *
 * The exporter maps the whole buffer, and keeps it in place until rxe_rs_dmabuf_put() is called
 * because the device is attached and the buffer pinned. The memory of @dev stays that long, too.
 *
 * Context: Process context. May sleep.
 * Return: The mapping, or an ERR_PTR: -EBADF if @fd is not open, -EINVAL if it is not a DMA buffer
 * or the range is empty or not inside of it, -EOPNOTSUPP if the CPU cannot access the buffer,
 * -ENOMEM, or an error of the exporter.
 */
struct rxe_rs_dmabuf *rxe_rs_dmabuf_get(struct ib_device *dev, int fd, u64 offset, u64 len,
					void **addr, const char **reason)
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

	*reason = "the exporter does not attach the device to the DMA buffer";
	this->attach = dma_buf_dynamic_attach(buf, &dev->dev, &attach_ops, NULL);
	err = PTR_ERR_OR_ZERO(this->attach);
	if (err)
		goto free;
	*reason = "the exporter cannot pin the DMA buffer in memory";
	err = pin(this->attach);
	if (err)
		goto detach;

	/* After the pin, which may have moved the buffer: this also waits until that is done. */
	*reason = "the exporter cannot prepare the DMA buffer for the CPU";
	err = dma_buf_begin_cpu_access(buf, DMA_BIDIRECTIONAL);
	if (err)
		goto unpin;
	*reason = "the exporter cannot map the DMA buffer for the CPU";
	err = map_for_cpu(buf, &this->map);
	if (err)
		goto end;
	err = -EOPNOTSUPP;
	*reason = "the DMA buffer is a device's memory, not the CPU's";
	if (this->map.is_iomem)
		goto unmap;

	get_device(&dev->dev);
	this->buf = buf;
	*addr = this->map.vaddr + offset;
	return this;

unmap:
	dma_buf_vunmap_unlocked(buf, &this->map);
end:
	dma_buf_end_cpu_access(buf, DMA_BIDIRECTIONAL);
unpin:
	unpin(this->attach);
detach:
	dma_buf_detach(buf, this->attach);
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
	struct device *dev = this->attach->dev;

	dma_buf_vunmap_unlocked(this->buf, &this->map);
	dma_buf_end_cpu_access(this->buf, DMA_BIDIRECTIONAL);
	unpin(this->attach);
	dma_buf_detach(this->buf, this->attach);
	dma_buf_put(this->buf);
	put_device(dev);
	kfree(this);
}

#else

struct rxe_rs_dmabuf *rxe_rs_dmabuf_get(struct ib_device *dev, int fd, u64 offset, u64 len,
					void **addr, const char **reason)
{
	*reason = "this kernel has no DMA buffers";
	return ERR_PTR(-EOPNOTSUPP);
}

void rxe_rs_dmabuf_put(struct rxe_rs_dmabuf *this)
{
}

#endif
