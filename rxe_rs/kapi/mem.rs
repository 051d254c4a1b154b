// SPDX-License-Identifier: GPL-2.0
//! Memory shared with user space: rings the process maps, and pages of the process.

pub mod demand;
mod dma;
mod dmabuf;
mod extents;
mod listed;
mod occupancy;
mod pages;
mod pinned;
pub mod ring;
mod room;
mod shared;
mod umem;

pub use demand::Demand;
pub use dma::DmaMemory;
pub use dmabuf::DmaBuf;
pub use listed::Listed;
pub use pages::PageList;
pub use room::append;
pub use shared::SharedBuf;
pub use umem::Umem;

use crate::bindings;
use crate::rdma::unsupported;
use core::cell::Cell;
use kernel::alloc::Flags;
use kernel::prelude::*;

/// As `GFP_ATOMIC`, and charged to the memory cgroup of the calling process, if there is one. Such a
/// charge does not fail; the next one that may sleep makes up for it, or does.
#[inline]
pub fn gfp_atomic_account() -> Flags {
    GFP_ATOMIC | (GFP_KERNEL_ACCOUNT & !GFP_KERNEL)
}

/// Whether memory can be persistent on this machine: its caches can be written back.
pub fn persistence_supported() -> bool {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_rs_pmem_supported() }
}

/// Waits until all that this CPU has begun to write back ([`Memory::write_back`]) is persistent.
///
/// Context: bottom halves off since then, or the CPU could be another one.
#[inline]
pub fn persist() {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_rs_pmem_fence() };
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
    /// The memory is the region's, but nobody can read or write it: it is damaged, or has been
    /// taken out of the kernel's linear map.
    Unreadable,
}

impl From<OutOfBounds> for AccessFailure {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

/// Copies to or from memory of a region, or of a ring.
///
/// # Errors
///
/// [`AccessFailure::Unreadable`]; a part may have been copied.
///
/// # Safety
///
/// `len` bytes at `src` and at `dst` are memory of a region or a ring, or private, do not overlap,
/// and stay so during the call. What is not private may change meanwhile, and accessing it may fail.
#[inline]
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), AccessFailure> {
    // SAFETY: By contract. The C side copies by instructions that the compiler does not see into:
    // each byte is read and written once, whatever others do to it meanwhile.
    if unsafe { bindings::rxe_rs_copy(dst.cast(), src.cast(), len) } {
        Ok(())
    } else {
        Err(AccessFailure::Unreadable)
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
    /// Memory that a kernel consumer listed for a segment; offsets count from its start.
    Listed(Listed),
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
            Memory::User(m) => m.read(offset, dst, hint),
            Memory::Dma(m) => m.read(offset, dst),
            Memory::Pages(m) => m.read(offset, dst),
            Memory::Demand(m) => m.read(offset, dst),
            Memory::Buffer(m) => m.read(offset, dst),
            Memory::Listed(m) => m.read(offset, dst, hint),
        }
    }

    /// Copies into the region.
    ///
    /// # Errors
    ///
    /// [`AccessFailure`]; the region may have been written in part.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8], hint: &ExtentHint) -> Result<(), AccessFailure> {
        match self {
            Memory::User(m) => m.write(offset, src, hint),
            Memory::Dma(m) => m.write(offset, src),
            Memory::Pages(m) => m.write(offset, src),
            Memory::Demand(m) => m.write(offset, src),
            Memory::Buffer(m) => m.write(offset, src),
            Memory::Listed(m) => m.write(offset, src, hint),
        }
    }

    /// The `len` bytes at `offset` once more: they stay when the rest is dropped. Process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no bytes or bytes outside, `EOPNOTSUPP` for memory that has no parts (neither
    /// pinned, nor a DMA buffer, nor listed for a segment), `ENOMEM`.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        match self {
            Memory::User(m) => m.part(offset, len).map(Memory::User),
            Memory::Buffer(m) => m.part(offset, len).map(Memory::Buffer),
            Memory::Listed(m) => m.part(offset, len).map(Memory::Listed),
            Memory::Dma(_) | Memory::Pages(_) | Memory::Demand(_) => Err(unsupported()),
        }
    }

    /// Whether it keeps what is in it when the power goes: pinned pages of a process, all of them
    /// persistent memory that processors reach through their caches. Process context.
    pub fn is_persistent(&self) -> bool {
        match self {
            Memory::User(m) => m.is_persistent(),
            // Pages that may change afterwards, or belong to somebody who has not said so.
            Memory::Dma(_)
            | Memory::Pages(_)
            | Memory::Demand(_)
            | Memory::Buffer(_)
            | Memory::Listed(_) => false,
        }
    }

    /// Begins to write the caches of `len` bytes at `offset` back to persistent memory;
    /// [`persist`] ends it.
    ///
    /// # Errors
    ///
    /// [`AccessFailure::OutOfBounds`], also for memory that is not
    /// [`is_persistent`](Self::is_persistent), [`AccessFailure::Unreadable`].
    pub fn write_back(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
    ) -> Result<(), AccessFailure> {
        let Memory::User(m) = self else {
            return Err(AccessFailure::OutOfBounds);
        };
        m.for_each_run(offset, len, hint, |run| run.write_back())
    }

    /// Adds to the word at `offset`, wrapping, and returns its value before. Atomic towards all
    /// CPUs.
    ///
    /// # Errors
    ///
    /// [`AccessFailure::OutOfBounds`] if the word is outside or its address is no multiple of 8,
    /// [`AccessFailure::NotPresent`], [`AccessFailure::Unreadable`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, AccessFailure> {
        self.with_word(offset, |word| {
            let mut old = 0;
            // SAFETY: `word` is an aligned word of the region during the call.
            unsafe { bindings::rxe_rs_fetch_add(word, add, &mut old) }.then_some(old)
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
            let mut found = 0;
            // SAFETY: `word` is an aligned word of the region during the call.
            unsafe { bindings::rxe_rs_cmpxchg(word, old, new, &mut found) }.then_some(found)
        })
    }

    /// Stores `value` in the word at `offset` in one piece.
    ///
    /// # Errors
    ///
    /// As [`fetch_add`](Self::fetch_add).
    pub fn store(&self, offset: u64, value: u64) -> Result<(), AccessFailure> {
        self.with_word(offset, |word| {
            // SAFETY: `word` is an aligned word of the region during the call.
            unsafe { bindings::rxe_rs_store(word, value) }.then_some(())
        })
    }

    /// Calls `f` with the address of an aligned word, which is the region's during the call. `f`
    /// returns `None` if it could not access it.
    fn with_word<R>(
        &self,
        offset: u64,
        f: impl FnOnce(*mut u64) -> Option<R>,
    ) -> Result<R, AccessFailure> {
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
            Memory::Demand(m) => {
                let result = m.with_word(offset, f)?;
                return result.ok_or(AccessFailure::Unreadable);
            }
            Memory::Buffer(m) => m.for_each_run(offset, 8, take)?,
            Memory::Listed(m) => m.for_each_run(offset, 8, &ExtentHint::default(), take)?,
        }
        f(found?).ok_or(AccessFailure::Unreadable)
    }
}

/// A run of consecutive addresses in a region, which user space may change at any time: there is
/// no reference to it, all accesses are copies.
///
/// # Invariants
///
/// `len` bytes at `addr` are memory of the region for `'a`, by kernel addresses.
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
    fn write_back(&self) -> Result<(), AccessFailure> {
        // SAFETY: By the type invariant; changes nothing.
        if unsafe { bindings::rxe_rs_pmem_write_back(self.addr.cast(), self.len) } {
            Ok(())
        } else {
            Err(AccessFailure::Unreadable)
        }
    }

    /// Copies the start of the run to `dst`, as much as both hold; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// [`AccessFailure::Unreadable`]; a part may have been copied.
    #[inline]
    pub fn copy_to(&self, dst: &mut [u8]) -> Result<usize, AccessFailure> {
        let len = self.len.min(dst.len());
        // SAFETY: By the type invariant; `dst` is private, so the ranges do not overlap.
        unsafe { copy(dst.as_mut_ptr(), self.addr, len) }?;
        Ok(len)
    }

    /// Copies `src` to the start of the run, as much as both hold; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to).
    #[inline]
    pub fn copy_from(&self, src: &[u8]) -> Result<usize, AccessFailure> {
        let len = self.len.min(src.len());
        // SAFETY: By the type invariant; `src` is private, so the ranges do not overlap.
        unsafe { copy(self.addr, src.as_ptr(), len) }?;
        Ok(len)
    }
}
