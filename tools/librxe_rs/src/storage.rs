// SPDX-License-Identifier: GPL-2.0
//! Memory of segments, which peers may write to while this process reads it.

use crate::{region, sys, Error};
use std::ptr::NonNull;

/// Private pages of this process that are in no region; zeroed when allocated.
#[derive(Debug)]
pub struct Storage {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: The memory is not bound to a thread.
unsafe impl Send for Storage {}

impl Storage {
    /// Allocates `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is 0 or exceeds `isize::MAX`, `ENOMEM`.
    pub fn new(len: usize) -> Result<Self, Error> {
        const EINVAL: i32 = 22;
        let len = len.checked_next_multiple_of(sys::page_size());
        let len = len.filter(|len| *len != 0 && isize::try_from(*len).is_ok());
        let len = len.ok_or(Error::from_errno(EINVAL))?;
        let at = sys::map(len)?;
        Ok(Self { at, len })
    }

    /// Returns the length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Borrows the memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped and in no region, so that nobody else writes.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// Borrows the memory for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: As above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.at.as_ptr() as u64
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: `sys::map` returned the address for this length, and nothing borrows the memory.
        unsafe { sys::unmap(self.at, self.len) };
    }
}

/// A segment of a region, with its memory. Peers may read and write the memory at any time, as far
/// as the rights of the region allow. So bytes are copied, not borrowed; a copy that is concurrent
/// with a write of a peer may contain both old and new bytes.
///
/// A segment that is dropped stays in the region until that is deregistered, and this process can
/// no longer access its memory. The descriptor of the context cannot be closed while there is a
/// segment:
///
/// ```compile_fail,E0505
/// # use std::os::fd::{AsFd, OwnedFd};
/// # fn closed(cmd_fd: OwnedFd, storage: rxe_rs::Storage) {
/// let region = rxe_rs::Region::new(cmd_fd.as_fd(), 1, 0x100);
/// let (segment, _) = region.add(storage, 0).unwrap();
/// drop(cmd_fd);
/// segment.len();
/// # }
/// ```
#[derive(Debug)]
pub struct Segment<'fd> {
    pub(crate) storage: Storage,
    pub(crate) region: region::Id<'fd>,
    pub(crate) handle: u64,
    pub(crate) iova: u64,
}

impl Segment<'_> {
    /// Returns its handle, which the region does not use for another segment.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns the address of its first byte in the region.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        self.storage.len
    }

    /// Copies `to.len()` bytes at `offset` of the segment to `to`.
    ///
    /// # Panics
    ///
    /// If the range is not inside the segment.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        for (n, byte) in to.iter_mut().enumerate() {
            // SAFETY: In the range checked above. The read is volatile, because a peer may write to
            // it concurrently.
            *byte = unsafe { self.storage.at.add(offset + n).read_volatile() };
        }
    }

    /// Copies `from` to `offset` of the segment.
    ///
    /// # Panics
    ///
    /// If the range is not inside the segment.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        for (n, byte) in from.iter().enumerate() {
            // SAFETY: As above.
            unsafe { self.storage.at.add(offset + n).write_volatile(*byte) };
        }
    }

    /// Panics if the range is not inside the segment.
    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.storage.len),
            "{len} bytes at {offset} of {}",
            self.storage.len
        );
    }
}
