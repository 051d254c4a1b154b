// SPDX-License-Identifier: GPL-2.0
//! Pinned pages of a process as a list of extents.
//!
//! C header: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h)

use super::{AccessFailure, ExtentHint, OutOfBounds, Run};
use crate::bindings;
use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::from_err_ptr;
use kernel::prelude::*;

/// Pinned memory of a process. Dropping it unpins the pages and may sleep.
///
/// # Invariants
///
/// - `raw` is a live pinned region of `len` bytes.
/// - `extents` covers `0..len` without gaps, sorted by offset; the first one starts at 0.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    /// Mostly one: then no address space of its own.
    extents: KVVec<bindings::rxe_extent>,
    len: u64,
}

// SAFETY: Pinned pages belong to no thread; releasing them may happen anywhere that may sleep.
unsafe impl Send for Umem {}
// SAFETY: Shared access only copies bytes from and to memory that user space may change anyway.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins `len` bytes at `start` of the current process.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps or is empty, `ENOMEM` (also beyond `RLIMIT_MEMLOCK`),
    /// `EFAULT` if it is not mapped.
    ///
    /// # Safety
    ///
    /// `dev` is alive and registered.
    pub(crate) unsafe fn pin(
        dev: *mut bindings::ib_device,
        start: u64,
        len: u64,
        access: u32,
    ) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        start.checked_add(len).ok_or(EINVAL)?;
        let size = usize::try_from(len)?;
        // SAFETY: By the caller's promise.
        let raw = unsafe { bindings::rxe_umem_get(dev, start, size, access as c_int) };
        let raw = from_err_ptr(raw)?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        let mut umem = Self {
            raw,
            extents: KVVec::new(),
            len,
        };
        // From here on an error drops `umem`, which unpins.
        // SAFETY: A live region.
        let room = unsafe { bindings::rxe_umem_max_extents(raw.as_ptr()) };
        umem.extents.reserve(room, GFP_KERNEL)?;
        // SAFETY: There is room for as many extents.
        let count = unsafe {
            bindings::rxe_umem_extents(
                raw.as_ptr(),
                umem.extents.spare_capacity_mut().as_mut_ptr().cast(),
                room,
            )
        };
        if count == 0 || count > room {
            return Err(EFAULT);
        }
        // SAFETY: The function wrote `count` extents within the capacity.
        unsafe { umem.extents.inc_len(count) };
        // INVARIANT: The function checked that the extents cover the region, and they are in
        // order of their offsets.
        Ok(umem)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Address of the first byte in the process.
    pub fn start(&self) -> u64 {
        // SAFETY: A live region.
        unsafe { (*self.raw.as_ptr()).address as u64 }
    }

    /// Whether the pages were pinned for writing.
    pub fn is_writable(&self) -> bool {
        // SAFETY: A live region.
        unsafe { (*self.raw.as_ptr()).writable() != 0 }
    }

    /// Whether the calling process pinned the pages.
    pub fn is_of_current(&self) -> bool {
        // SAFETY: A live region; the address space is only compared.
        unsafe { bindings::rxe_mm_is_current((*self.raw.as_ptr()).owning_mm) }
    }

    /// Runs of physically contiguous memory.
    pub fn extent_count(&self) -> usize {
        self.extents.len()
    }

    /// Whether all of it is persistent memory. Process context.
    pub fn is_persistent(&self) -> bool {
        self.extents.iter().enumerate().all(|(index, extent)| {
            let len = self.end_of(index).wrapping_sub(extent.offset);
            // SAFETY: Only looks at what is known of the addresses.
            unsafe { bindings::rxe_pmem_is(extent.addr, len as usize) }
        })
    }

    /// End of the extent at `index`, counted from the start of the region.
    fn end_of(&self, index: usize) -> u64 {
        self.extents
            .get(index.wrapping_add(1))
            .map_or(self.len, |next| next.offset)
    }

    /// The extent that holds `offset`, which must be below the length; `hint` is tried first.
    #[inline]
    fn find(&self, offset: u64, hint: &ExtentHint) -> usize {
        let guess = hint.extent();
        for index in [guess, guess.wrapping_add(1)] {
            if let Some(extent) = self.extents.get(index) {
                if extent.offset <= offset && offset < self.end_of(index) {
                    hint.set(index);
                    return index;
                }
            }
        }
        let index = self
            .extents
            .partition_point(|e| e.offset <= offset)
            .wrapping_sub(1);
        hint.set(index);
        index
    }

    /// See [`Memory::read`](super::Memory::read).
    #[inline]
    pub fn read(
        &self,
        offset: u64,
        dst: &mut [u8],
        hint: &ExtentHint,
    ) -> Result<(), AccessFailure> {
        let mut rest = &mut dst[..];
        let len = rest.len();
        self.for_each_run(offset, len, hint, |run| {
            let done = run.copy_to(rest)?;
            rest = core::mem::take(&mut rest)
                .get_mut(done..)
                .unwrap_or_default();
            Ok(())
        })
    }

    /// See [`Memory::write`](super::Memory::write).
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8], hint: &ExtentHint) -> Result<(), AccessFailure> {
        let mut rest = src;
        self.for_each_run(offset, src.len(), hint, |run| {
            let done = run.copy_from(rest)?;
            rest = rest.get(done..).unwrap_or_default();
            Ok(())
        })
    }

    /// See [`Memory::for_each_run`](super::Memory::for_each_run).
    #[inline]
    pub fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
        mut f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = offset.checked_add(len as u64).ok_or(OutOfBounds)?;
        if end > self.len {
            return Err(OutOfBounds.into());
        }
        let mut at = offset;
        let mut index = if len == 0 { 0 } else { self.find(offset, hint) };
        while at < end {
            let extent = self.extents.get(index).ok_or(OutOfBounds)?;
            let stop = self.end_of(index).min(end);
            let skip = at.wrapping_sub(extent.offset) as usize;
            // INVARIANT: By the type invariant `at..stop` lies in this extent.
            f(Run {
                // SAFETY: In bounds of the extent.
                addr: unsafe { extent.addr.cast::<u8>().add(skip) },
                len: stop.wrapping_sub(at) as usize,
                _memory: PhantomData,
            })?;
            at = stop;
            index = index.wrapping_add(1);
        }
        Ok(())
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; this is the last use.
        unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
    }
}
