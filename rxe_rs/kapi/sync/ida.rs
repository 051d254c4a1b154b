// SPDX-License-Identifier: GPL-2.0
//! Allocation of small unique numbers.
//!
//! C header: [`include/linux/idr.h`](srctree/include/linux/idr.h)

use crate::bindings;
use core::ops::RangeInclusive;
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// An allocator of numbers, which lead to no object.
#[pin_data(PinnedDrop)]
pub struct Ida {
    #[pin]
    ida: Opaque<bindings::ida>,
}

// SAFETY: The allocator has its own lock.
unsafe impl Send for Ida {}
// SAFETY: As above.
unsafe impl Sync for Ida {}

impl Ida {
    /// Creates an allocator of which no number is in use.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `ida` is valid for writes.
            ida <- Opaque::ffi_init(|ida| unsafe { bindings::rxe_rs_ida_init(ida) }),
        })
    }

    /// Allocates the lowest free number of `range`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all are in use, `ENOMEM`.
    pub fn alloc(&self, range: RangeInclusive<u32>) -> Result<u32> {
        let (first, last) = (*range.start(), *range.end());
        // SAFETY: The allocator is initialized.
        let id = unsafe { bindings::rxe_rs_ida_alloc(self.ida.get(), first, last) };
        u32::try_from(id).map_err(|_| Error::from_errno(id))
    }

    /// Frees a number that [`alloc`](Self::alloc) returned.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn free(&self, number: u32) {
        // SAFETY: The allocator is initialized; a number that is not in use is ignored with a
        // warning.
        unsafe { bindings::ida_free(self.ida.get(), number) };
    }
}

#[pinned_drop]
impl PinnedDrop for Ida {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The allocator is initialized and not used any more.
        unsafe { bindings::ida_destroy(self.ida.get()) };
    }
}
