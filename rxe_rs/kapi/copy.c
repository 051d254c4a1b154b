// SPDX-License-Identifier: GPL-2.0
/*
 * Accesses to memory of a process by its kernel address, which may fail.
 *
 * A process can map memory that the kernel cannot read, and memory can become so. What happens to each kind:
 *
 * kind				pinned (rxe_rs_pin_pages)	on demand (rxe_rs_odp_batch)
 * memfd_secret			EFAULT from GUP		EFAULT from rxe_rs_odp_install()
 * PFN maps: VM_PFNMAP, VM_IO	EFAULT from GUP		EFAULT from HMM
 * device private		moved to RAM by fault	the same
 * device coherent		moved to RAM by GUP	EFAULT from rxe_rs_odp_install()
 * PCI peer to peer		EREMOTEIO from GUP	EFAULT from rxe_rs_odp_install()
 * file system DAX		EOPNOTSUPP from GUP	used; truncation takes it away first
 * device DAX			used			EFAULT from rxe_rs_odp_install()
 * poisoned before		EFAULT from GUP		EFAULT from HMM
 * poisoned afterwards		the access fails	unmapped first, so EFAULT when it is got again
 * guest_memfd			shared pages as other files' (GUEST_MEMFD_FLAG_MMAP); private ones cannot be mapped
 * userfaultfd			waits at registration	waits in the background (rxe_rs_odp_fault_in)
 *
 * EFAULT on demand is LOC_PROT_ERR or a remote access error for the request that needs the page, or the errno of
 * ADVISE_MR. Segments and re-registration take their memory by the same two ways. DMA buffers are reached by the
 * exporter's own mapping, never by the linear map.
 *
 * While a process has a page, only one thing takes it out of the linear map: after a machine check memory_failure()
 * unmaps the page from processes, which MMU notifiers announce, and then set_mce_nospec() takes it away. memfd_secret
 * does so before the page can be found, and puts it back when nobody can any more. Everything else that does
 * (vmalloc, execmem, hibernation, page allocator debugging) does it to pages that no process has. So what
 * rxe_rs_odp_install() has found in the linear map stays there as long as it is installed, but for a pinned page that
 * turns out to be bad, and so does the short time between a machine check and unmapping: pinning keeps a page from
 * being given to others, not from breaking. Hence all accesses are made by instructions that have an entry in the
 * exception table, for page faults as well as for machine checks; an access that fails is refused to who asked for it.
 */
#include <linux/atomic.h>
#include <linux/libnvdimm.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "bindings_helper.h"

#ifdef CONFIG_ARCH_HAS_COPY_MC

#include <asm/asm.h>
#include <asm/cpufeature.h>

/* From here on string instructions are faster, where they are fast at all. */
#define RXE_RS_COPY_LONG 256

/* A failure of the instruction at a label of the assembly goes on at label 9, with `failed` still set. */
#define RXE_RS_MAY_FAIL(at) _ASM_EXTABLE_TYPE(at, 9b, EX_TYPE_DEFAULT_MCE_SAFE)

/* Copies one value of a type that `move` moves; false if it cannot be accessed. */
#define rxe_rs_copy_one(move, type, dst, src)						\
({											\
	u32 failed_ = 1;								\
	type one_;									\
											\
	asm volatile("1:	" move " (%[from]), %[one]\n"				\
		     "2:	" move " %[one], (%[to])\n"				\
		     "	xorl %[failed], %[failed]\n"					\
		     "9:\n"								\
		     RXE_RS_MAY_FAIL(1b) RXE_RS_MAY_FAIL(2b)					\
		     : [failed] "+r" (failed_), [one] "=&q" (one_)			\
		     : [to] "r" (dst), [from] "r" (src)					\
		     : "memory", "cc");							\
	!failed_;									\
})

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
		     : [failed] "+r" (failed), [one] "=&r" (one), [two] "=&r" (two), [three] "=&r" (three),
		       [four] "=&r" (four)
		     : [dst] "r" (dst), [src] "r" (src)
		     : "memory", "cc");
	return !failed;
}

static bool rxe_rs_copy_bytes(u8 *dst, const u8 *src, size_t len)
{
	for (; len; dst++, src++, len--)
		if (!rxe_rs_copy_one("movb", u8, dst, src))
			return false;
	return true;
}

/*
 * The source aligned: processors that report a machine check of an access across cache lines as fatal can recover then,
 * too.
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
		if (!rxe_rs_copy_one("movq", u64, dst, src))
			return false;
	return rxe_rs_copy_bytes(dst, src, len);
}

/* False if one of the sides cannot be accessed; a part may have been copied then. Any context. */
bool rxe_rs_copy(void *dst, const void *src, size_t len)
{
	if (len >= RXE_RS_COPY_LONG && cpu_feature_enabled(X86_FEATURE_ERMS))
		return !copy_mc_to_kernel(dst, src, len);
	return rxe_rs_copy_words(dst, src, len);
}

/* False if the word cannot be accessed. */
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

bool rxe_rs_store(u64 *p, u64 value)
{
	return rxe_rs_copy_one("movq", u64, p, &value);
}

#else /* User Mode Linux: nothing takes pages out of its linear map. */

bool rxe_rs_copy(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
	return true;
}

bool rxe_rs_fetch_add(u64 *p, u64 add, u64 *old)
{
	*old = atomic64_fetch_add(add, (atomic64_t *)p);
	return true;
}

bool rxe_rs_cmpxchg(u64 *p, u64 expected, u64 new, u64 *old)
{
	*old = atomic64_cmpxchg((atomic64_t *)p, expected, new);
	return true;
}

bool rxe_rs_store(u64 *p, u64 value)
{
	WRITE_ONCE(*p, value);
	return true;
}

#endif

/*
 * Begins to write the caches of a range back; they all have when rxe_rs_pmem_fence() returns on this processor. False for
 * memory that cannot be accessed. The instructions that write back have no entry in the exception table: a page that is
 * found bad between the look at it and them is one that broke in these microseconds.
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
