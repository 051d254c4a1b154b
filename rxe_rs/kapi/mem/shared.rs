// SPDX-License-Identifier: GPL-2.0
//! Kernel memory that user space can map.
//!
//! C headers: [`include/linux/gfp.h`](srctree/include/linux/gfp.h),
//! [`include/linux/vmalloc.h`](srctree/include/linux/vmalloc.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Zeroed pages for a user mapping, charged to the memory cgroup of the process that allocates
/// them. Mappings hold references to the pages themselves, so the buffer may be dropped before they
/// are unmapped.
///
/// # Invariants
///
/// `ring` is from `rxe_rs_ring_alloc`, and `addr` points to its `len` bytes.
pub struct SharedBuf {
    ring: NonNull<bindings::rxe_rs_ring>,
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: The buffer is not bound to a thread.
unsafe impl Send for SharedBuf {}
// SAFETY: The safe interface of this type does not access the memory; `ring.rs` uses atomics and
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
        if len == 0 || len > 1 << 30 {
            return Err(EINVAL);
        }
        let len = len.next_multiple_of(PAGE_SIZE);
        // SAFETY: No preconditions.
        let ring = NonNull::new(unsafe { bindings::rxe_rs_ring_alloc(len) }).ok_or(ENOMEM)?;
        // SAFETY: A live ring, whose address is not null.
        let addr = unsafe { NonNull::new_unchecked((*ring.as_ptr()).addr.cast::<u8>()) };
        // INVARIANT: Just allocated. On failure of the `Arc` the value is dropped, which frees.
        Ok(Arc::new(Self { ring, addr, len }, GFP_KERNEL_ACCOUNT)?)
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

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// For `rxe_rs_ring_mmap`.
    pub(crate) fn as_ring(&self) -> *const bindings::rxe_rs_ring {
        self.ring.as_ptr()
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; may be called in softirq context.
        unsafe { bindings::rxe_rs_ring_free(self.ring.as_ptr()) };
    }
}
