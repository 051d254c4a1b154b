// SPDX-License-Identifier: GPL-2.0
/*
 * Accesses by kernel address to memory of a process, which may fail.
 *
 * A process can map memory that the kernel cannot read, and memory can become unreadable later.
 * This is what happens to each kind of memory in a region with pinned pages (rxe_rs_pin_pages())
 * and in one with on-demand paging (ODP, rxe_rs_odp_batch()):
 *
 * memfd_secret
 *	pinned: EFAULT from GUP
 *	ODP: EFAULT from rxe_rs_odp_install()
 * PFN maps (VM_PFNMAP, VM_IO)
 *	pinned: EFAULT from GUP
 *	ODP: EFAULT from rxe_rs_odp_fault_missing()
 * device private
 *	both: a page fault migrates the page to RAM
 * device coherent
 *	pinned: GUP migrates the page to RAM
 *	ODP: EFAULT from rxe_rs_odp_install()
 * PCI peer to peer
 *	pinned: EREMOTEIO from GUP
 *	ODP: EFAULT from rxe_rs_odp_install()
 * file system DAX
 *	pinned: EOPNOTSUPP from GUP
 *	ODP: used; a truncation invalidates the pages first
 * device DAX
 *	pinned: used
 *	ODP: EFAULT from rxe_rs_odp_install()
 * poisoned before the page fault or the pinning
 *	pinned: EFAULT from GUP
 *	ODP: EFAULT from rxe_rs_odp_fault_missing()
 * poisoned afterwards
 *	pinned: the access fails
 *	ODP: the page is unmapped first, so the next page fault returns EFAULT
 * guest_memfd
 *	both: shared pages (GUEST_MEMFD_FLAG_MMAP) are as those of other files; private pages
 *	cannot be mapped
 * shadow stacks
 *	both: EFAULT for writing, from GUP and rxe_rs_odp_may_fault(); they can be read
 * userfaultfd
 *	pinned: registration waits for the handler
 *	ODP: a work item waits for the handler (rxe_rs_odp_fault_page())
 *
 * ktests/vm/memory_kinds.py and flush.py have a test of each but these, which the test machines do
 * not have; what is said of them follows from the code of GUP, HMM and rxe_rs_odp_reachable():
 *  - device coherent and PCI peer to peer need a device with memory of its own on the bus. On
 *    demand both are refused by the test that refuses device DAX (is_zone_device_page());
 *  - guest_memfd needs KVM, and emulated processors have no virtualization;
 *  - shadow stacks: emulated processors of amd64 have none;
 *  - file system DAX: the persistent memory of the machines is a device DAX, the only kind that
 *    FLUSH to persistence is for.
 *
 * An EFAULT of on-demand paging becomes a local protection error or a remote access error of the
 * request that needs the page, or the errno of ibv_advise_mr(). Segments and re-registration get
 * their memory in the same two ways. DMA buffers are accessed through the exporter's own mapping,
 * never through the linear map.
 *
 * While a process has a page mapped, only one event removes the page from the linear map: after a
 * machine check memory_failure() unmaps it from all processes, of which MMU notifiers inform, and
 * then set_mce_nospec() removes it. memfd_secret removes a page from the linear map before it can
 * be found, and restores it when it can no longer be found. All other code that changes the linear
 * map (vmalloc, execmem, hibernation, debugging of the page allocator) does so for pages that no
 * process has mapped. Thus a page that rxe_rs_odp_install() has found in the linear map stays there
 * as long as its entry is valid. Two cases remain: a pinned page that turns out to be damaged, as
 * pinning keeps a page from being reused and not from failing, and the short time between a machine
 * check and the unmapping. Therefore each access uses instructions with an entry in the exception
 * table, for page faults and for machine checks, and an access that fails is reported as an error
 * to the consumer or the peer that requested it. (arm64 cannot recover from errors of accesses by
 * the kernel, see rxe_rs_undamaged().)
 */
#include <linux/atomic.h>
#include <linux/libnvdimm.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "bindings_helper.h"

#ifdef CONFIG_ARCH_HAS_COPY_MC

#include <asm/asm.h>
#include <asm/cpufeature.h>

/* Length from which string instructions are faster, on CPUs with fast string operations (ERMS). */
#define RXE_RS_COPY_LONG 256

/*
 * Exception table entry for the instruction at a local label: if it fails, execution continues at
 * label 9, before which the code clears the operand "failed".
 */
#define RXE_RS_MAY_FAIL(at) _ASM_EXTABLE_TYPE(at, 9b, EX_TYPE_DEFAULT_MCE_SAFE)

/* Copies one integer; false if it cannot be accessed. */
#define rxe_rs_copy_one(type, dst, src)							\
({											\
	u32 failed_ = 1;								\
	type one_;									\
											\
	asm volatile("1:	mov (%[from]), %[one]\n"				\
		     "2:	mov %[one], (%[to])\n"					\
		     "	xorl %[failed], %[failed]\n"					\
		     "9:\n"								\
		     RXE_RS_MAY_FAIL(1b) RXE_RS_MAY_FAIL(2b)				\
		     : [failed] "+r" (failed_), [one] "=&q" (one_)			\
		     : [to] "r" (dst), [from] "r" (src)					\
		     : "memory", "cc");							\
	!failed_;									\
})

/* Copies 32 bytes; false if they cannot be accessed. */
static __always_inline bool rxe_rs_copy_32(void *dst, const void *src)
{
	u64 one, two, three, four;
	u32 failed = 1;

	asm volatile("1:	movq (%[src]), %[one]\n"
		     "2:	movq 8(%[src]), %[two]\n"
		     "3:	movq 16(%[src]), %[three]\n"
		     "4:	movq 24(%[src]), %[four]\n"
		     "5:	movq %[one], (%[dst])\n"
		     "6:	movq %[two], 8(%[dst])\n"
		     "7:	movq %[three], 16(%[dst])\n"
		     "8:	movq %[four], 24(%[dst])\n"
		     "	xorl %[failed], %[failed]\n"
		     "9:\n"
		     RXE_RS_MAY_FAIL(1b) RXE_RS_MAY_FAIL(2b) RXE_RS_MAY_FAIL(3b) RXE_RS_MAY_FAIL(4b)
		     RXE_RS_MAY_FAIL(5b) RXE_RS_MAY_FAIL(6b) RXE_RS_MAY_FAIL(7b) RXE_RS_MAY_FAIL(8b)
		     : [failed] "+r" (failed), [one] "=&r" (one), [two] "=&r" (two),
		       [three] "=&r" (three), [four] "=&r" (four)
		     : [dst] "r" (dst), [src] "r" (src)
		     : "memory", "cc");
	return !failed;
}

static bool rxe_rs_copy_bytes(u8 *dst, const u8 *src, size_t len)
{
	for (; len; dst++, src++, len--)
		if (!rxe_rs_copy_one(u8, dst, src))
			return false;
	return true;
}

/*
 * Copies with aligned reads: some CPUs report a machine check of a read that crosses a cache line
 * as fatal, and one of an aligned read as recoverable.
 */
static bool rxe_rs_copy_words(u8 *dst, const u8 *src, size_t len)
{
	size_t lead = min_t(size_t, -(uintptr_t)src % sizeof(u64), len);

	if (!rxe_rs_copy_bytes(dst, src, lead))
		return false;
	dst += lead;
	src += lead;
	len -= lead;
	for (; len >= 32; dst += 32, src += 32, len -= 32)
		if (!rxe_rs_copy_32(dst, src))
			return false;
	for (; len >= 8; dst += 8, src += 8, len -= 8)
		if (!rxe_rs_copy_one(u64, dst, src))
			return false;
	return rxe_rs_copy_bytes(dst, src, len);
}

/**
 * rxe_rs_copy() - copy memory that may be inaccessible
 * @dst: destination
 * @src: source
 * @len: number of bytes
 *
 * Each byte is read once and written once. The ranges must not overlap.
 *
 * Context: Any context.
 * Return: false if the source or the destination cannot be accessed; a part may have been copied.
 */
bool rxe_rs_copy(void *dst, const void *src, size_t len)
{
	if (len >= RXE_RS_COPY_LONG && cpu_feature_enabled(X86_FEATURE_ERMS))
		return !copy_mc_to_kernel(dst, src, len);
	return rxe_rs_copy_words(dst, src, len);
}

/**
 * rxe_rs_readable() - check whether the kernel can read a page
 * @page: its address in the linear map
 *
 * Context: Any context.
 * Return: false if the page has been removed from the linear map, or is damaged.
 */
bool rxe_rs_readable(const void *page)
{
	u8 byte;

	return rxe_rs_copy_one(u8, &byte, page);
}

/**
 * rxe_rs_fetch_add() - add to a word atomically
 * @p: aligned word
 * @add: value to add
 * @old: receives the previous value
 *
 * Context: Any context.
 * Return: false if the word cannot be accessed.
 */
bool rxe_rs_fetch_add(u64 *p, u64 add, u64 *old)
{
	u32 failed = 1;

	asm volatile("1:	lock; xaddq %[add], (%[p])\n"
		     "	xorl %[failed], %[failed]\n"
		     "9:\n"
		     RXE_RS_MAY_FAIL(1b)
		     : [failed] "+r" (failed), [add] "+r" (add)
		     : [p] "r" (p)
		     : "memory", "cc");
	*old = add;
	return !failed;
}

/**
 * rxe_rs_cmpxchg() - compare and exchange a word atomically
 * @p: aligned word
 * @expected: value to compare with
 * @new: value to store if the word has the expected value
 * @old: receives the previous value
 *
 * Context: Any context.
 * Return: false if the word cannot be accessed.
 */
bool rxe_rs_cmpxchg(u64 *p, u64 expected, u64 new, u64 *old)
{
	u32 failed = 1;

	asm volatile("1:	lock; cmpxchgq %[new], (%[p])\n"
		     "	xorl %[failed], %[failed]\n"
		     "9:\n"
		     RXE_RS_MAY_FAIL(1b)
		     : [failed] "+r" (failed), [expected] "+a" (expected)
		     : [new] "r" (new), [p] "r" (p)
		     : "memory", "cc");
	*old = expected;
	return !failed;
}

/**
 * rxe_rs_store() - store a word with a single access
 * @p: aligned word
 * @value: value to store
 *
 * Context: Any context.
 * Return: false if the word cannot be accessed.
 */
bool rxe_rs_store(u64 *p, u64 value)
{
	return rxe_rs_copy_one(u64, p, &value);
}

#else /* arm64, User Mode Linux */

/*
 * False if a page of the range is known to be damaged. arm64 keeps such a page in the linear map,
 * and an entry of the exception table does not help: an abort that the kernel takes because of a
 * memory error is fatal (do_sea()), so the access has to be avoided. An error that was not known
 * before the access stops the host, as it does in any other code of the kernel. User Mode Linux has
 * no such pages.
 */
static bool rxe_rs_undamaged(const void *p, size_t len)
{
#ifdef CONFIG_ARM64
	uintptr_t at = (uintptr_t)p & PAGE_MASK;

	for (; at < (uintptr_t)p + len; at += PAGE_SIZE)
		if (__is_lm_address(at) && PageHWPoison(virt_to_page((void *)at)))
			return false;
#endif
	return true;
}

bool rxe_rs_copy(void *dst, const void *src, size_t len)
{
	if (!rxe_rs_undamaged(dst, len) || !rxe_rs_undamaged(src, len))
		return false;
	memcpy(dst, src, len);
	return true;
}

bool rxe_rs_readable(const void *page)
{
#ifdef CONFIG_ARM64
	u8 byte;

	return rxe_rs_undamaged(page, sizeof(byte)) &&
	       !copy_from_kernel_nofault(&byte, page, sizeof(byte));
#else
	return true;
#endif
}

bool rxe_rs_fetch_add(u64 *p, u64 add, u64 *old)
{
	if (!rxe_rs_undamaged(p, sizeof(*p)))
		return false;
	*old = atomic64_fetch_add(add, (atomic64_t *)p);
	return true;
}

bool rxe_rs_cmpxchg(u64 *p, u64 expected, u64 new, u64 *old)
{
	if (!rxe_rs_undamaged(p, sizeof(*p)))
		return false;
	*old = atomic64_cmpxchg((atomic64_t *)p, expected, new);
	return true;
}

bool rxe_rs_store(u64 *p, u64 value)
{
	if (!rxe_rs_undamaged(p, sizeof(*p)))
		return false;
	WRITE_ONCE(*p, value);
	return true;
}

#endif

/**
 * rxe_rs_pmem_write_back() - start to write back the CPU caches of a range
 * @addr: first byte
 * @len: number of bytes
 *
 * The write-back has completed when rxe_rs_pmem_fence() returns on the same CPU. The function reads
 * a byte of each page first, because the write-back instructions have no entry in the exception
 * table. A page that fails in the microseconds between the two is not handled.
 *
 * Context: Any context.
 * Return: false if the memory cannot be accessed.
 */
bool rxe_rs_pmem_write_back(void *addr, size_t len)
{
	void *page = (void *)((uintptr_t)addr & PAGE_MASK);
	u8 byte;

	for (; page < addr + len; page += PAGE_SIZE)
		if (!rxe_rs_copy(&byte, page, sizeof(byte)))
			return false;
	arch_wb_cache_pmem(addr, len);
	return true;
}
