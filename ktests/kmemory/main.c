// SPDX-License-Identifier: GPL-2.0
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/set_memory.h>
#include "kmemory.h"

/* Maximum number of pages that one open file removes from the linear map. */
#define HIDDEN 16

struct hidden {
	struct mutex lock;	/* protects the fields below */
	unsigned int count;
	struct page *pages[HIDDEN];
};

static struct page *page;

static int hide(struct hidden *hidden, unsigned long addr)
{
#ifdef CONFIG_X86_MCE
	struct page *victim;
	int ret;

	if (hidden->count == HIDDEN)
		return -ENOSPC;
	ret = get_user_pages_fast(addr & PAGE_MASK, 1, 0, &victim);
	if (ret != 1)
		return ret < 0 ? ret : -EFAULT;
	ret = set_mce_nospec(page_to_pfn(victim));
	if (ret)
		put_page(victim);
	else
		hidden->pages[hidden->count++] = victim;
	return ret;
#else
	return -EOPNOTSUPP;
#endif
}

static void show(struct hidden *hidden)
{
#ifdef CONFIG_X86_MCE
	while (hidden->count) {
		struct page *victim = hidden->pages[--hidden->count];

		clear_mce_nospec(page_to_pfn(victim));
		put_page(victim);
	}
#endif
}

static int kmemory_open(struct inode *inode, struct file *file)
{
	struct hidden *hidden = kzalloc(sizeof(*hidden), GFP_KERNEL);

	if (!hidden)
		return -ENOMEM;
	mutex_init(&hidden->lock);
	file->private_data = hidden;
	return 0;
}

static int kmemory_release(struct inode *inode, struct file *file)
{
	show(file->private_data);
	kfree(file->private_data);
	return 0;
}

static int kmemory_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (vma->vm_end - vma->vm_start != PAGE_SIZE)
		return -EINVAL;
	switch (vma->vm_pgoff) {
	case 0:
		return remap_pfn_range(vma, vma->vm_start, page_to_pfn(page), PAGE_SIZE,
				       vma->vm_page_prot);
	case 1:
		return vm_insert_page(vma, vma->vm_start, page);
	default:
		return -EINVAL;
	}
}

static long kmemory_ioctl(struct file *file, unsigned int request, unsigned long addr)
{
	struct hidden *hidden = file->private_data;
	long ret;

	mutex_lock(&hidden->lock);
	switch (request) {
	case KMEMORY_HIDE:
		ret = hide(hidden, addr);
		break;
	case KMEMORY_MOVE:
	case KMEMORY_LOSE:
		ret = far_move(addr, request == KMEMORY_LOSE);
		break;
	case KMEMORY_EXPORT:
		ret = buffer_export(addr);
		break;
	case KMEMORY_RELOCATE:
		ret = buffer_relocate(addr);
		break;
	case KMEMORY_USES:
		ret = buffer_uses(addr);
		break;
	default:
		ret = -ENOTTY;
	}
	mutex_unlock(&hidden->lock);
	return ret;
}

static const struct file_operations kmemory_fops = {
	.owner = THIS_MODULE,
	.open = kmemory_open,
	.release = kmemory_release,
	.mmap = kmemory_mmap,
	.unlocked_ioctl = kmemory_ioctl,
};

static struct miscdevice kmemory_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "kmemory",
	.mode = 0666,
	.fops = &kmemory_fops,
};

static int __init kmemory_init(void)
{
	int ret;

	page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!page)
		return -ENOMEM;
	ret = far_start();
	if (ret)
		goto free;
	ret = misc_register(&kmemory_misc);
	if (!ret)
		return 0;
	far_stop();
free:
	__free_page(page);
	return ret;
}

static void __exit kmemory_exit(void)
{
	misc_deregister(&kmemory_misc);
	far_stop();
	__free_page(page);
}

module_init(kmemory_init);
module_exit(kmemory_exit);
MODULE_DESCRIPTION("Memory that the kernel cannot read, and DMA buffers that move");
MODULE_LICENSE("GPL");
