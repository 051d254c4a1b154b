// SPDX-License-Identifier: GPL-2.0
//! `rxe_kapi::mem::SharedBuf`, whose bytes loom watches in cells of 64 bytes.

use crate::prelude::{Infallible, Result};
use crate::sync::Arc;
use std::cell::UnsafeCell;

/// Unused bytes after a buffer: an access to them is an error. Sanitizers need none.
const GUARD: usize = if cfg!(feature = "loom") { 1024 } else { 0 };

/// Memory that the kernel and a process share.
pub struct SharedBuf {
    /// Words, because the indices in it are atomics.
    words: Box<[UnsafeCell<u32>]>,
}

// SAFETY: `copy` accesses bytes and detects races; indices are accessed atomically.
unsafe impl Sync for SharedBuf {}
// SAFETY: As above.
unsafe impl Send for SharedBuf {}

impl SharedBuf {
    /// Allocates zeroed memory of `len` bytes.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn new(len: usize) -> Result<Arc<Self>> {
        let words = (0..(len + GUARD).div_ceil(4))
            .map(|_| UnsafeCell::new(0))
            .collect();
        let this = Self { words };
        watch::begin(this.as_ptr() as usize, this.len());
        Ok(Arc::new(this))
    }

    /// Allocates memory as `new`: all pages of the models are there from the beginning.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn lazy(len: usize) -> Result<Arc<Self>> {
        Self::new(len)
    }

    /// Returns the address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.words.as_ptr().cast_mut().cast()
    }

    /// Returns the address of the first page.
    pub fn first_page(&self) -> *mut u8 {
        self.as_ptr()
    }

    /// Returns the address of all bytes.
    pub fn contiguous(&self) -> Option<*mut u8> {
        Some(self.as_ptr())
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        4 * self.words.len() - GUARD
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        assert!(offset + dst.len() <= self.len());
        // SAFETY: In bounds.
        let Ok(()) = unsafe { copy(dst.as_mut_ptr(), self.as_ptr().add(offset), dst.len()) };
    }

    /// Copies bytes in, as a process does.
    pub fn write(&self, offset: usize, src: &[u8]) {
        assert!(offset + src.len() <= self.len());
        // SAFETY: In bounds.
        let Ok(()) = unsafe { copy(self.as_ptr().add(offset), src.as_ptr(), src.len()) };
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        watch::end(self.as_ptr() as usize, self.len());
    }
}

/// Copies to or from memory of a ring.
///
/// # Safety
///
/// As for the function of the driver.
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Infallible> {
    watch::access(src as usize, len, false);
    watch::access(dst as usize, len, true);
    // SAFETY: By the safety requirements of this function.
    unsafe { src.copy_to_nonoverlapping(dst, len) };
    Ok(())
}

#[cfg(feature = "loom")]
mod watch {
    use crate::sync::atomic;
    use crate::track::Tracked;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    const CELL: usize = 64;

    thread_local! {
        /// Buffers by address. Loom's threads are one thread of the host.
        static BUFFERS: RefCell<BTreeMap<usize, Rc<Vec<Tracked>>>> = const { RefCell::new(BTreeMap::new()) };
    }

    pub(super) fn begin(at: usize, len: usize) {
        let cells = (0..len.div_ceil(CELL)).map(|_| Tracked::new(0)).collect();
        BUFFERS.with(|buffers| buffers.borrow_mut().insert(at, Rc::new(cells)));
    }

    pub(super) fn end(at: usize, len: usize) {
        BUFFERS.with(|buffers| buffers.borrow_mut().remove(&at));
        atomic::forget(at, len);
    }

    pub(super) fn access(at: usize, len: usize, write: bool) {
        let found = BUFFERS.with(|buffers| {
            let buffers = buffers.borrow();
            let (start, cells) = buffers.range(..=at).next_back()?;
            let offset = at - start;
            (offset < CELL * cells.len() + super::GUARD).then(|| (offset, cells.clone()))
        });
        let Some((offset, cells)) = found else {
            return;
        };
        for cell in &cells[offset / CELL..(offset + len).div_ceil(CELL)] {
            if write {
                cell.write(0);
            } else {
                cell.read();
            }
        }
    }
}

#[cfg(not(feature = "loom"))]
mod watch {
    pub(super) fn begin(_: usize, _: usize) {}
    pub(super) fn end(_: usize, _: usize) {}
    pub(super) fn access(_: usize, _: usize, _: bool) {}
}
