// SPDX-License-Identifier: GPL-2.0
//! Kernel memory that user space can map.
//!
//! C headers: [`include/linux/gfp.h`](srctree/include/linux/gfp.h),
//! [`include/linux/vmalloc.h`](srctree/include/linux/vmalloc.h)

use super::copy;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Zeroed memory for a user mapping, charged to the memory cgroup of the process that allocates it.
/// The buffer may be dropped before its mappings are gone.
///
/// # Invariants
///
/// `ring` is from `rxe_rs_ring_alloc` or `rxe_rs_ring_alloc_lazy` and of `len` bytes, `addr` is its
/// address: of all of them, or of the first page if `lazy`.
pub struct SharedBuf {
    ring: NonNull<bindings::rxe_rs_ring>,
    addr: NonNull<u8>,
    len: usize,
    lazy: bool,
}

// SAFETY: The buffer is not bound to a thread.
unsafe impl Send for SharedBuf {}
// SAFETY: The safe interface of this type only copies from the memory; `ring.rs` uses atomics and
// copies.
unsafe impl Sync for SharedBuf {}

impl SharedBuf {
    /// Allocates at least `len` bytes, rounded up to pages.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0 bytes or more than 1 GiB, `ENOMEM`.
    pub fn new(len: usize) -> Result<Arc<Self>> {
        Self::from_ring(len, bindings::rxe_rs_ring_alloc)
    }

    /// Creates a buffer of at least `len` bytes, rounded up to pages, of which only the first page
    /// is allocated. A process that accesses another one allocates it, and has it charged to its
    /// memory cgroup; until then the page reads as zeros.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn lazy(len: usize) -> Result<Arc<Self>> {
        Self::from_ring(len, bindings::rxe_rs_ring_alloc_lazy)
    }

    fn from_ring(
        len: usize,
        alloc: unsafe extern "C" fn(usize) -> *mut bindings::rxe_rs_ring,
    ) -> Result<Arc<Self>> {
        if len == 0 || len > 1 << 30 {
            return Err(EINVAL);
        }
        let len = len.next_multiple_of(PAGE_SIZE);
        // SAFETY: No preconditions.
        let ring = NonNull::new(unsafe { alloc(len) }).ok_or(ENOMEM)?;
        // SAFETY: A live ring.
        let (addr, pages) = unsafe { ((*ring.as_ptr()).addr, (*ring.as_ptr()).pages) };
        // INVARIANT: Just allocated. On failure of the `Arc` the value is dropped, which frees.
        let buf = Self {
            ring,
            // SAFETY: The address of a ring is not null.
            addr: unsafe { NonNull::new_unchecked(addr.cast::<u8>()) },
            len,
            lazy: pages != 0,
        };
        Ok(Arc::new(buf, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the length in bytes, a multiple of the page size.
    ///
    /// # Context
    ///
    /// Any context.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first page, which is always allocated.
    pub(crate) fn first_page(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// Returns the address of all bytes, unless they are allocated page by page.
    #[inline]
    pub(crate) fn contiguous(&self) -> Option<*mut u8> {
        (!self.lazy).then_some(self.addr.as_ptr())
    }

    /// Copies `dst.len()` bytes at `offset`; what is out of bounds, or in pages that no process has
    /// accessed, is zeros.
    ///
    /// Memory that cannot be read leaves `dst` as it was, as if the process had written that.
    #[inline]
    pub(crate) fn read(&self, offset: usize, mut dst: &mut [u8]) {
        let mut at = offset;
        while !dst.is_empty() {
            let within = at % PAGE_SIZE;
            let len = dst.len().min(PAGE_SIZE - within);
            let (part, rest) = dst.split_at_mut(len);
            match self.page(at / PAGE_SIZE) {
                // SAFETY: `len` bytes at `within` are in the page; `part` is private memory.
                Some(page) => unsafe {
                    let _ = copy(part.as_mut_ptr(), page.as_ptr().add(within), len);
                },
                None => part.fill(0),
            }
            dst = rest;
            at = at.wrapping_add(len);
        }
    }

    /// Returns the address of page number `n`, if it is in bounds and allocated.
    fn page(&self, n: usize) -> Option<NonNull<u8>> {
        if n >= self.len / PAGE_SIZE {
            return None;
        }
        // SAFETY: A live ring, which has that page by the type invariant.
        NonNull::new(unsafe { bindings::rxe_rs_ring_page(self.ring.as_ptr(), n) }.cast())
    }

    /// For `rxe_rs_ring_mmap`.
    pub(crate) fn as_ring(&self) -> *mut bindings::rxe_rs_ring {
        self.ring.as_ptr()
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; may be called in softirq context.
        unsafe { bindings::rxe_rs_ring_put(self.ring.as_ptr()) };
    }
}
