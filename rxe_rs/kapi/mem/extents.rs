// SPDX-License-Identifier: GPL-2.0
//! Memory as runs of contiguous kernel addresses.

use super::{
    ExtentHint,
    OutOfBounds,
    Run, //
};
use crate::bindings;
use core::{
    ffi::c_void,
    marker::PhantomData, //
};
use kernel::prelude::*;

/// Unused capacity that is never freed.
const SPARE: usize = 64;

/// A run of contiguous kernel addresses up to the next extent's offset: `struct rxe_rs_extent`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Extent {
    /// Bytes from the start of the memory.
    pub(super) offset: u64,
    pub(super) addr: *mut c_void,
}

const _: () = assert!(
    size_of::<Extent>() == size_of::<bindings::rxe_rs_extent>()
        && core::mem::offset_of!(Extent, addr)
            == core::mem::offset_of!(bindings::rxe_rs_extent, addr)
);

/// All runs of some memory. The creator of a value is responsible for its contents.
///
/// # Invariants
///
/// When it is used, `list` covers `0..len` without gaps, sorted by offset; the first one starts at
/// 0.
pub(super) struct Extents {
    pub(super) list: KVVec<Extent>,
    /// Length of the memory in bytes.
    pub(super) len: u64,
}

impl Extents {
    /// Returns the end of the extent at `index`.
    #[inline]
    fn end_of(&self, index: usize) -> u64 {
        let next = self.list.get(index.wrapping_add(1));
        next.map_or(self.len, |next| next.offset)
    }

    /// Frees capacity that was reserved for more extents than there are.
    pub(super) fn trim(&mut self) {
        let used = self.list.len();
        let enough = used.saturating_mul(2).saturating_add(SPARE);
        if self.list.capacity() > enough {
            let mut exact = KVVec::new();
            if exact
                .extend_from_slice(&self.list, GFP_KERNEL_ACCOUNT)
                .is_ok()
            {
                self.list = exact;
            }
        }
    }

    /// Returns address and length of each extent of the `len` bytes at `offset`.
    pub(super) fn runs(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = (*mut c_void, u64)> + '_ {
        let end = offset.saturating_add(len).min(self.len);
        let behind = self.list.partition_point(|e| e.offset <= offset);
        let mut at = offset;
        (behind.wrapping_sub(1)..).map_while(move |index| {
            let extent = self.list.get(index)?;
            if at >= end {
                return None;
            }
            let skip = at.wrapping_sub(extent.offset) as usize;
            let len = self.end_of(index).min(end).wrapping_sub(at);
            at = at.wrapping_add(len);
            Some((extent.addr.wrapping_byte_add(skip), len))
        })
    }

    /// Returns the extent of `offset`, which must be below the length; `hint` is tried first.
    #[inline]
    fn find(&self, offset: u64, hint: &ExtentHint) -> usize {
        let guess = hint.extent();
        for index in [guess, guess.wrapping_add(1)] {
            if let Some(extent) = self.list.get(index) {
                if extent.offset <= offset && offset < self.end_of(index) {
                    hint.set(index);
                    return index;
                }
            }
        }
        let index = self
            .list
            .partition_point(|e| e.offset <= offset)
            .wrapping_sub(1);
        hint.set(index);
        index
    }

    /// Calls `f` with each run of the `len` bytes at `offset`.
    ///
    /// # Safety
    ///
    /// They are memory, and stay so during the call.
    #[inline]
    pub(super) unsafe fn for_each_run<E: From<OutOfBounds>>(
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
            let extent = self.list.get(index).ok_or(OutOfBounds)?;
            let stop = self.end_of(index).min(end);
            let skip = at.wrapping_sub(extent.offset) as usize;
            // INVARIANT: `at..stop` lies in this extent, and is memory by the caller's guarantee.
            f(Run {
                addr: extent.addr.cast::<u8>().wrapping_add(skip),
                len: stop.wrapping_sub(at) as usize,
                _memory: PhantomData,
            })?;
            at = stop;
            index = index.wrapping_add(1);
        }
        Ok(())
    }
}
