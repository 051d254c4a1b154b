// SPDX-License-Identifier: GPL-2.0
//! Pinned memory of a process for regions, and parts of it.

use super::{
    pinned::Pinned,
    ExtentHint,
    OutOfBounds,
    Run,
    Runs, //
};
use crate::bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Pinned memory of a process, or a part of it. Dropping it unpins the pages that no other part
/// holds, and may sleep.
///
/// # Invariants
///
/// The `len` bytes at `first` are a part of `pinned` that is released when the value is dropped.
pub struct Umem {
    pinned: Arc<Pinned>,
    first: u64,
    len: u64,
}

impl Umem {
    /// Pins `len` bytes at `start` of the current process.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps or is empty, `ENOMEM` (also beyond `RLIMIT_MEMLOCK`),
    /// `EPERM` if that is 0, `EFAULT` if it is not mapped, `EINTR` if the process is being killed.
    pub(crate) fn pin(start: u64, len: u64, writable: bool) -> Result<Self> {
        let pinned = Pinned::new(start, len, writable)?;
        let len = pinned.len();
        // INVARIANT: All of it is one part.
        Ok(Self {
            pinned,
            first: 0,
            len,
        })
    }

    /// Returns the `len` bytes at `offset` as another part: they stay pinned when the rest is
    /// dropped. Costs nothing per page.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range or one outside, `ENOMEM`.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        let first = self.first.checked_add(offset).ok_or(EINVAL)?;
        // SAFETY: By the type invariant they are in this part.
        unsafe { self.pinned.get_part(first, len)? };
        // INVARIANT: They are a part now.
        Ok(Self {
            pinned: self.pinned.clone(),
            first,
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

    /// Returns the address of the first byte in the process.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn start(&self) -> u64 {
        self.pinned.address_of(self.first)
    }

    /// Returns true if the pages were pinned for writing.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn is_writable(&self) -> bool {
        self.pinned.is_writable()
    }

    /// Returns true if the calling process pinned the pages.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn is_of_current(&self) -> bool {
        self.pinned.is_of_current()
    }

    /// Returns the number of runs of physically contiguous memory in all that was pinned together.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn extent_count(&self) -> usize {
        self.pinned.extent_count()
    }

    /// Returns true if all of it is persistent memory.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn is_persistent(&self) -> bool {
        self.pinned.runs(self.first, self.len).all(|(addr, len)| {
            // SAFETY: Only looks up the type of the addresses.
            unsafe { bindings::rxe_rs_is_pmem(addr, len as usize) }
        })
    }
}

impl Runs for Umem {
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
        // SAFETY: Inside of this part.
        unsafe { self.pinned.for_each_run(at, len, hint, f) }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; this is the last use.
        unsafe { self.pinned.put_part(self.first, self.len) };
    }
}
