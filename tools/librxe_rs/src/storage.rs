// SPDX-License-Identifier: GPL-2.0
//! Memory that peers write to while this process looks at it.

use crate::{sys, Error};
use std::ptr::NonNull;

/// Pages of this process, zeroed at first, behind no key.
#[derive(Debug)]
pub struct Storage {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: Memory that belongs to no thread.
unsafe impl Send for Storage {}

impl Storage {
    /// At least `len` bytes, rounded up to pages.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no bytes or too many, `ENOMEM`.
    pub fn new(len: usize) -> Result<Self, Error> {
        const EINVAL: i32 = 22;
        let len = len.checked_next_multiple_of(sys::page_size());
        let len = len.filter(|len| *len != 0 && isize::try_from(*len).is_ok());
        let len = len.ok_or(Error::from_errno(EINVAL))?;
        let at = sys::map(len)?;
        Ok(Self { at, len })
    }

    /// Bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes that are mapped and behind no key, so that nobody else writes.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// The memory.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: As above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.at.as_ptr() as u64
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: From `sys::map` with this length; nobody borrows it.
        unsafe { sys::unmap(self.at, self.len) };
    }
}

/// Storage behind the key of a region. Peers may read and write it at any time, as far as the
/// region's rights go; so its bytes are copied, not borrowed, and a copy that a peer writes to
/// meanwhile holds some old bytes and some new ones.
///
/// If it is dropped it stays behind the key until the region is deregistered, and this process
/// cannot reach it any more.
#[derive(Debug)]
pub struct Segment {
    pub(crate) storage: Storage,
    pub(crate) handle: u64,
    pub(crate) iova: u64,
}

impl Segment {
    /// Its handle, never used again in the life of the region.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Address of its first byte in the region.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length of the segment in bytes, at least one page.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.storage.len
    }

    /// Copies bytes at `offset` to `to`.
    ///
    /// # Panics
    ///
    /// If they are not all inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        for (n, byte) in to.iter_mut().enumerate() {
            // SAFETY: Checked above; a peer may change it meanwhile.
            *byte = unsafe { self.storage.at.add(offset + n).read_volatile() };
        }
    }

    /// Copies `from` to the bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If they are not all inside.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        for (n, byte) in from.iter().enumerate() {
            // SAFETY: As above.
            unsafe { self.storage.at.add(offset + n).write_volatile(*byte) };
        }
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.storage.len),
            "{len} bytes at {offset} of {}",
            self.storage.len
        );
    }
}
