// SPDX-License-Identifier: GPL-2.0
//! Memory shared with user space: rings the process maps, and pages of the process.

pub mod demand;
mod dma;
mod dmabuf;
mod occupancy;
mod pages;
pub mod ring;
mod shared;
mod umem;

pub use demand::Demand;
pub use dma::DmaMemory;
pub use dmabuf::DmaBuf;
pub use pages::PageList;
pub use shared::SharedBuf;
pub use umem::Umem;

use crate::bindings;
use core::cell::Cell;

/// Whether memory can be persistent on this machine: its caches can be written back.
pub fn persistence_supported() -> bool {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_pmem_supported() }
}

/// Waits until all that this CPU has begun to write back ([`Memory::write_back`]) is persistent.
///
/// Context: bottom halves off since then, or the CPU could be another one.
#[inline]
pub fn persist() {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_pmem_fence() };
}

/// An access outside a region, or misaligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfBounds;

/// Why an access to a region was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessFailure {
    /// Outside the region, or misaligned.
    OutOfBounds,
    /// Some of the memory is not there now; see [`Demand::fault`].
    NotPresent,
}

impl From<OutOfBounds> for AccessFailure {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

/// Where in a region the last access was: the next one is likely to be there or right behind.
///
/// Only a guess; it may come from another region. Keep one per user, so that users of a region do
/// not spoil each other's.
#[derive(Default)]
pub struct ExtentHint {
    extent: Cell<u32>,
    segment: Cell<u32>,
}

impl ExtentHint {
    /// A hint that was [`get`](Self::get) before.
    #[inline]
    pub const fn new(hint: usize) -> Self {
        let hint = hint as u64;
        Self {
            extent: Cell::new(hint as u32),
            segment: Cell::new((hint >> 32) as u32),
        }
    }

    /// The guess, as a number to keep.
    #[inline]
    pub fn get(&self) -> usize {
        (u64::from(self.segment.get()) << 32 | u64::from(self.extent.get())) as usize
    }

    /// Which of the segments of a region it was.
    #[inline]
    pub fn segment(&self) -> usize {
        self.segment.get() as usize
    }

    /// Remembers which of the segments of a region it is.
    #[inline]
    pub fn set_segment(&self, index: usize) {
        self.segment.set(index as u32);
    }

    #[inline]
    fn extent(&self) -> usize {
        self.extent.get() as usize
    }

    #[inline]
    fn set(&self, extent: usize) {
        self.extent.set(extent as u32);
    }
}

/// Memory behind a region: what a key gives access to.
pub enum Memory {
    /// Pinned pages of a process; offsets count from the start of the region.
    User(Umem),
    /// All kernel memory; offsets are kernel addresses.
    Dma(DmaMemory),
    /// Pages that a kernel consumer listed; offsets count from the start of the region.
    Pages(PageList),
    /// Memory of a process that is got on demand; offsets count from the start of the region.
    Demand(Demand),
    /// A DMA buffer of another driver; offsets count from the start of the region.
    Buffer(DmaBuf),
}

impl Memory {
    /// Copies from the region.
    ///
    /// # Errors
    ///
    /// [`AccessFailure`]; `dst` may have been written in part.
    #[inline]
    pub fn read(
        &self,
        offset: u64,
        dst: &mut [u8],
        hint: &ExtentHint,
    ) -> Result<(), AccessFailure> {
        match self {
            Memory::User(m) => m.read(offset, dst, hint)?,
            Memory::Dma(m) => m.read(offset, dst)?,
            Memory::Pages(m) => m.read(offset, dst)?,
            Memory::Demand(m) => m.read(offset, dst)?,
            Memory::Buffer(m) => m.read(offset, dst)?,
        }
        Ok(())
    }

    /// Copies into the region.
    ///
    /// # Errors
    ///
    /// [`AccessFailure`]; the region may have been written in part.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8], hint: &ExtentHint) -> Result<(), AccessFailure> {
        match self {
            Memory::User(m) => m.write(offset, src, hint)?,
            Memory::Dma(m) => m.write(offset, src)?,
            Memory::Pages(m) => m.write(offset, src)?,
            Memory::Demand(m) => m.write(offset, src)?,
            Memory::Buffer(m) => m.write(offset, src)?,
        }
        Ok(())
    }

    /// Whether it keeps what is in it when the power goes: pinned pages of a process, all of them
    /// persistent memory that processors reach through their caches. Process context.
    pub fn is_persistent(&self) -> bool {
        match self {
            Memory::User(m) => m.is_persistent(),
            // Pages that may change afterwards, or belong to somebody who has not said so.
            Memory::Dma(_) | Memory::Pages(_) | Memory::Demand(_) | Memory::Buffer(_) => false,
        }
    }

    /// Begins to write the caches of `len` bytes at `offset` back to persistent memory;
    /// [`persist`] ends it.
    ///
    /// # Errors
    ///
    /// [`AccessFailure::OutOfBounds`], also for memory that is not
    /// [`is_persistent`](Self::is_persistent).
    pub fn write_back(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
    ) -> Result<(), AccessFailure> {
        let Memory::User(m) = self else {
            return Err(AccessFailure::OutOfBounds);
        };
        m.for_each_run(offset, len, hint, |run| {
            run.write_back();
            Ok::<_, OutOfBounds>(())
        })?;
        Ok(())
    }

    /// Adds to the word at `offset`, wrapping, and returns its value before. Atomic towards all
    /// CPUs.
    ///
    /// # Errors
    ///
    /// [`AccessFailure::OutOfBounds`] if the word is outside or its address is no multiple of 8,
    /// [`AccessFailure::NotPresent`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, AccessFailure> {
        self.with_word(offset, |word| {
            // SAFETY: `word` is a valid aligned word during the call.
            unsafe { bindings::rxe_atomic64_fetch_add(word, add) }
        })
    }

    /// Stores `new` in the word at `offset` if it equals `old`, and returns its value before.
    /// Atomic towards all CPUs.
    ///
    /// # Errors
    ///
    /// As [`fetch_add`](Self::fetch_add).
    pub fn cmpxchg(&self, offset: u64, old: u64, new: u64) -> Result<u64, AccessFailure> {
        self.with_word(offset, |word| {
            // SAFETY: `word` is a valid aligned word during the call.
            unsafe { bindings::rxe_atomic64_cmpxchg(word, old, new) }
        })
    }

    /// Stores `value` in the word at `offset` in one piece.
    ///
    /// # Errors
    ///
    /// As [`fetch_add`](Self::fetch_add).
    pub fn store(&self, offset: u64, value: u64) -> Result<(), AccessFailure> {
        self.with_word(offset, |word| {
            // SAFETY: `word` is a valid aligned word during the call.
            unsafe { word.write_volatile(value) }
        })
    }

    /// Calls `f` with the address of an aligned word, which is valid during the call.
    fn with_word<R>(&self, offset: u64, f: impl FnOnce(*mut u64) -> R) -> Result<R, AccessFailure> {
        let mut found = Err(AccessFailure::OutOfBounds);
        let take = |run: Run<'_>| {
            if run.len == 8 && run.addr.cast::<u64>().is_aligned() {
                found = Ok(run.addr.cast());
            }
            Ok::<(), OutOfBounds>(())
        };
        match self {
            Memory::User(m) => m.for_each_run(offset, 8, &ExtentHint::default(), take)?,
            Memory::Dma(m) => m.for_each_run(offset, 8, take)?,
            Memory::Pages(m) => m.for_each_run(offset, 8, take)?,
            Memory::Demand(m) => return m.with_word(offset, f),
            Memory::Buffer(m) => m.for_each_run(offset, 8, take)?,
        }
        found.map(f)
    }
}

/// A run of consecutive addresses in a region, which user space may change at any time.
///
/// # Invariants
///
/// `len` bytes at `addr` are mapped and writable for `'a`.
pub struct Run<'a> {
    addr: *mut u8,
    len: usize,
    _memory: core::marker::PhantomData<&'a ()>,
}

impl Run<'_> {
    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins to write its caches back.
    #[inline]
    fn write_back(&self) {
        // SAFETY: By the type invariant; reads and changes nothing.
        unsafe { bindings::rxe_pmem_write_back(self.addr.cast(), self.len) };
    }

    /// Copies the start of the run to `dst`, as much as both hold; returns the number of bytes.
    #[inline]
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let len = self.len.min(dst.len());
        // SAFETY: By the type invariant; `dst` is private, so the ranges do not overlap. Bytes
        // that change meanwhile give either value.
        unsafe { core::ptr::copy_nonoverlapping(self.addr, dst.as_mut_ptr(), len) };
        len
    }

    /// Copies `src` to the start of the run, as much as both hold; returns the number of bytes.
    #[inline]
    pub fn copy_from(&self, src: &[u8]) -> usize {
        let len = self.len.min(src.len());
        // SAFETY: By the type invariant; `src` is private, so the ranges do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), self.addr, len) };
        len
    }
}
