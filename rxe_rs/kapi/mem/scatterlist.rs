// SPDX-License-Identifier: GPL-2.0
//! Kernel memory that a kernel consumer passes as a scatterlist, for segments of regions.
//!
//! C header: [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

use super::{
    extents::{
        Extent,
        Extents,
        List, //
    },
    ExtentHint,
    OutOfBounds,
    Run,
    Runs, //
};
use crate::bindings;
use core::ffi::c_int;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// All memory of one scatterlist.
///
/// # Invariants
///
/// The extents are memory in the kernel's linear map, which the consumer keeps allocated as long as
/// a part of the list is in use.
struct SgList(Extents);

// SAFETY: Addresses that are not bound to a thread.
unsafe impl Send for SgList {}
// SAFETY: Shared access only copies bytes from and to memory that others may change anyway.
unsafe impl Sync for SgList {}

/// A part of the memory of a scatterlist. It holds no references to pages: the consumer must keep
/// them allocated.
///
/// # Invariants
///
/// `first + len` is no more than the bytes of the list.
pub struct SgMem {
    list: Arc<SgList>,
    first: u64,
    len: u64,
}

impl SgMem {
    /// Takes the memory of the `nents` entries of `sg`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty list, a shorter one, or memory that the CPU cannot access; `ENOMEM`.
    ///
    /// # Safety
    ///
    /// `sg` is a well-formed list, or null. The memory belongs to a kernel consumer and stays
    /// allocated as long as the value or a [`part`](Self::part) of it exists.
    pub(crate) unsafe fn new(sg: *mut bindings::scatterlist, nents: c_int) -> Result<Self> {
        let count = u32::try_from(nents)
            .ok()
            .filter(|n| *n != 0 && !sg.is_null());
        let count = count.ok_or(EINVAL)?;
        let mut list: KVVec<Extent> = KVVec::with_capacity(count as usize, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The capacity suffices for as many extents, whose layout is C's.
        let len = unsafe {
            let extents = list.spare_capacity_mut().as_mut_ptr().cast();
            bindings::rxe_rs_sg_extents(sg, count, extents)
        };
        if len == 0 {
            return Err(EINVAL);
        }
        // SAFETY: The function wrote all of them.
        unsafe { list.inc_len(count as usize) };
        // INVARIANT: Each begins where the previous one ends, none is empty, and the C side checked
        // that they are in the linear map; the rest is the caller's guarantee.
        let list = SgList(Extents {
            list: List::Many(list),
            len,
        });
        Ok(Self {
            list: Arc::new(list, GFP_KERNEL_ACCOUNT)?,
            first: 0,
            len,
        })
    }

    /// Returns the length in bytes.
    ///
    /// # Context
    ///
    /// Any context.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the `len` bytes at `offset` as another part.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range or one outside.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > self.len {
            return Err(EINVAL);
        }
        // INVARIANT: Inside of this part.
        Ok(Self {
            list: self.list.clone(),
            first: self.first.checked_add(offset).ok_or(EINVAL)?,
            len,
        })
    }
}

impl Runs for SgMem {
    #[inline]
    fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
        f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = offset.checked_add(len as u64).ok_or(OutOfBounds)?;
        if end > self.len {
            return Err(OutOfBounds.into());
        }
        let at = self.first.wrapping_add(offset);
        // SAFETY: Inside of this part, which the consumer keeps allocated.
        unsafe { self.list.0.for_each_run(at, len, hint, f) }
    }
}
