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
    pub(super) list: List,
    /// Length of the memory in bytes.
    pub(super) len: u64,
}

/// A list of extents. One extent, which most small regions are, takes no allocation.
pub(super) enum List {
    One(Extent),
    Many(KVVec<Extent>),
}

impl List {
    /// Returns all extents.
    #[inline]
    fn all(&self) -> &[Extent] {
        match self {
            Self::One(extent) => core::slice::from_ref(extent),
            Self::Many(list) => list,
        }
    }
}

impl Extents {
    /// Returns the number of extents.
    pub(super) fn count(&self) -> usize {
        self.list.all().len()
    }

    /// Returns the extent at `index`, and its end.
    #[inline]
    fn get(&self, index: usize) -> Option<(&Extent, u64)> {
        let list = self.list.all();
        let extent = list.get(index)?;
        let next = list.get(index.wrapping_add(1));
        Some((extent, next.map_or(self.len, |next| next.offset)))
    }

    /// Returns the index of the extent of `offset`, by binary search.
    fn search(&self, offset: u64) -> usize {
        let behind = self.list.all().partition_point(|e| e.offset <= offset);
        behind.wrapping_sub(1)
    }

    /// Frees capacity that was reserved for more extents than there are.
    pub(super) fn trim(&mut self) {
        let List::Many(list) = &self.list else {
            return;
        };
        if let [only] = **list {
            self.list = List::One(only);
            return;
        }
        let enough = list.len().saturating_mul(2).saturating_add(SPARE);
        if list.capacity() > enough {
            let mut exact = KVVec::new();
            if exact.extend_from_slice(list, GFP_KERNEL_ACCOUNT).is_ok() {
                self.list = List::Many(exact);
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
        let mut at = offset;
        (self.search(offset)..).map_while(move |index| {
            let (extent, stop) = self.get(index)?;
            if at >= end {
                return None;
            }
            let skip = at.wrapping_sub(extent.offset) as usize;
            let len = stop.min(end).wrapping_sub(at);
            at = at.wrapping_add(len);
            Some((extent.addr.wrapping_byte_add(skip), len))
        })
    }

    /// Returns the extent of `offset`, which must be below the length; `hint` is tried first.
    #[inline]
    fn find(&self, offset: u64, hint: &ExtentHint) -> usize {
        let guess = hint.extent();
        for index in [guess, guess.wrapping_add(1)] {
            if let Some((extent, stop)) = self.get(index) {
                if extent.offset <= offset && offset < stop {
                    hint.set(index);
                    return index;
                }
            }
        }
        let index = self.search(offset);
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
            let (extent, stop) = self.get(index).ok_or(OutOfBounds)?;
            let stop = stop.min(end);
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
