// SPDX-License-Identifier: GPL-2.0
//! Memory shared with user space (rings that the process maps) and memory of regions.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

mod dma;
mod dmabuf;
mod extents;
mod occupancy;
pub mod odp;
mod pages;
mod pinned;
pub mod ring;
mod scatterlist;
mod shared;
mod umem;

pub use dma::DmaMemory;
pub use dmabuf::DmaBuf;
pub use odp::OdpMem;
pub use pages::PageList;
pub use scatterlist::SgMem;
pub use shared::SharedBuf;
pub use umem::Umem;

use crate::{
    bindings,
    series::unsupported, //
};
use core::cell::Cell;
use kernel::prelude::*;

/// Returns true if this machine can have persistent memory, whose CPU caches can be written back.
///
/// # Context
///
/// Any context.
pub fn persistence_supported() -> bool {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_rs_pmem_supported() }
}

/// Waits until all write-back that this CPU has started ([`Memory::write_back`]) is persistent.
///
/// # Context
///
/// Any context; bottom halves must have been disabled since the write-back, so that the CPU is the
/// same.
#[inline]
pub fn persist() {
    // SAFETY: No requirement.
    unsafe { bindings::rxe_rs_pmem_fence() };
}

/// An access outside a region, or misaligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfBounds;

/// Why an access to a region failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessFailure {
    /// Outside the region, or misaligned.
    OutOfBounds,
    /// Some of the pages are not present; see [`OdpMem::fault`].
    NotPresent,
    /// The memory belongs to the region, but cannot be read or written: it is damaged, or has been
    /// removed from the kernel's linear map.
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
/// and stay so during the call. Memory that is not private may change meanwhile, and accessing it
/// may fail.
#[inline]
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), AccessFailure> {
    // SAFETY: By contract. The C side copies with instructions opaque to the compiler: each byte is
    // read and written once, whatever other writers do meanwhile.
    if unsafe { bindings::rxe_rs_copy(dst.cast(), src.cast(), len) } {
        Ok(())
    } else {
        Err(AccessFailure::Unreadable)
    }
}

/// The position of the last access in a region; the next one is likely to be there or right after.
///
/// It is only a hint, and may come from another region. Use one per QP, so that users of a region
/// do not overwrite each other's.
///
/// # Context
///
/// Any context.
#[derive(Default)]
pub struct ExtentHint {
    /// Index of the extent in its segment.
    extent: Cell<u32>,
    /// Index of the segment in its region.
    segment: Cell<u32>,
}

impl ExtentHint {
    /// Creates a hint from a value of [`get`](Self::get).
    #[inline]
    pub const fn new(hint: usize) -> Self {
        let hint = hint as u64;
        Self {
            extent: Cell::new(hint as u32),
            segment: Cell::new((hint >> 32) as u32),
        }
    }

    /// Returns the hint as a number to store.
    #[inline]
    pub fn get(&self) -> usize {
        (u64::from(self.segment.get()) << 32 | u64::from(self.extent.get())) as usize
    }

    /// Returns the index of the segment of the region.
    #[inline]
    pub fn segment(&self) -> usize {
        self.segment.get() as usize
    }

    /// Sets the index of the segment of the region.
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
    /// On-demand paging memory of a process; offsets count from the start of the region.
    Odp(OdpMem),
    /// A DMA buffer of another driver; offsets count from the start of the region.
    Buffer(DmaBuf),
    /// Memory that a kernel consumer listed for a segment; offsets count from its start.
    Sg(SgMem),
}

impl Memory {
    /// Copies from the region.
    ///
    /// # Context
    ///
    /// Process context or softirq, bottom halves disabled; does not sleep.
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
            Memory::Dma(m) => m.read(offset, dst, hint),
            Memory::Pages(m) => m.read(offset, dst, hint),
            Memory::Odp(m) => m.read(offset, dst),
            Memory::Buffer(m) => m.read(offset, dst, hint),
            Memory::Sg(m) => m.read(offset, dst, hint),
        }
    }

    /// Copies into the region.
    ///
    /// # Context
    ///
    /// Process context or softirq, bottom halves disabled; does not sleep.
    ///
    /// # Errors
    ///
    /// [`AccessFailure`]; the region may have been written in part.
    #[inline]
    pub fn write(&self, offset: u64, src: &[u8], hint: &ExtentHint) -> Result<(), AccessFailure> {
        match self {
            Memory::User(m) => m.write(offset, src, hint),
            Memory::Dma(m) => m.write(offset, src, hint),
            Memory::Pages(m) => m.write(offset, src, hint),
            Memory::Odp(m) => m.write(offset, src),
            Memory::Buffer(m) => m.write(offset, src, hint),
            Memory::Sg(m) => m.write(offset, src, hint),
        }
    }

    /// Returns true if its pages are present, so that [`for_each_run`](Self::for_each_run) finds
    /// them.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        !matches!(self, Memory::Odp(_))
    }

    /// Calls `f` with the runs of contiguous addresses that make up `len` bytes at `offset`, in
    /// order.
    ///
    /// # Context
    ///
    /// As [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`AccessFailure::NotPresent`] for memory that is not [pinned](Self::is_pinned),
    /// [`AccessFailure::OutOfBounds`], or what `f` returns, which is not called again then.
    #[inline]
    pub fn for_each_run(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
        f: impl FnMut(Run<'_>) -> Result<(), AccessFailure>,
    ) -> Result<(), AccessFailure> {
        match self {
            Memory::User(m) => m.for_each_run(offset, len, hint, f),
            Memory::Dma(m) => m.for_each_run(offset, len, hint, f),
            Memory::Pages(m) => m.for_each_run(offset, len, hint, f),
            Memory::Odp(_) => Err(AccessFailure::NotPresent),
            Memory::Buffer(m) => m.for_each_run(offset, len, hint, f),
            Memory::Sg(m) => m.for_each_run(offset, len, hint, f),
        }
    }

    /// Copies a run of other memory into the region.
    ///
    /// # Context
    ///
    /// As [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// [`AccessFailure`], `Unreadable` also if the run overlaps its destination; the region may
    /// have been written in part.
    #[inline]
    pub fn write_run(
        &self,
        offset: u64,
        src: &Run<'_>,
        hint: &ExtentHint,
    ) -> Result<(), AccessFailure> {
        if let Memory::Odp(m) = self {
            return m.write_run(offset, src);
        }
        let mut done = 0;
        self.for_each_run(offset, src.len, hint, |run| {
            let len = run.len;
            run.copy_from_run(&src.part(done, len))?;
            done = done.wrapping_add(len);
            Ok(())
        })
    }

    /// Returns the `len` bytes at `offset` as memory of their own: they stay valid when the rest is
    /// dropped.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range or one outside, `EOPNOTSUPP` for memory that cannot be split
    /// (neither pinned, nor a DMA buffer, nor a scatterlist), `ENOMEM`.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self> {
        match self {
            Memory::User(m) => m.part(offset, len).map(Memory::User),
            Memory::Buffer(m) => m.part(offset, len).map(Memory::Buffer),
            Memory::Sg(m) => m.part(offset, len).map(Memory::Sg),
            Memory::Dma(_) | Memory::Pages(_) | Memory::Odp(_) => Err(unsupported()),
        }
    }

    /// Returns true if it keeps its contents without power: pinned pages of a process that all are
    /// persistent memory which CPUs access through their caches.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn is_persistent(&self) -> bool {
        match self {
            Memory::User(m) => m.is_persistent(),
            // Pages that may change afterwards, or whose owner has not declared them persistent.
            Memory::Dma(_)
            | Memory::Pages(_)
            | Memory::Odp(_)
            | Memory::Buffer(_)
            | Memory::Sg(_) => false,
        }
    }

    /// Starts writing the caches of `len` bytes at `offset` back to persistent memory; [`persist`]
    /// waits for it.
    ///
    /// # Context
    ///
    /// Process context or softirq, bottom halves disabled; does not sleep.
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

    /// Adds to the word at `offset`, wrapping, and returns its previous value. Atomic with respect
    /// to all CPUs.
    ///
    /// # Context
    ///
    /// As [`write`](Self::write).
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

    /// Stores `new` in the word at `offset` if it equals `old`, and returns its previous value.
    /// Atomic with respect to all CPUs.
    ///
    /// # Context
    ///
    /// As [`write`](Self::write).
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

    /// Stores `value` in the word at `offset` with a single access.
    ///
    /// # Context
    ///
    /// As [`write`](Self::write).
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

    /// Calls `f` with the address of an aligned word, which belongs to the region during the call.
    /// `f` returns `None` if it could not access it.
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
            Ok(())
        };
        let hint = ExtentHint::default();
        if let Memory::Odp(m) = self {
            let result = m.with_word(offset, f)?;
            return result.ok_or(AccessFailure::Unreadable);
        }
        self.for_each_run(offset, 8, &hint, take)?;
        f(found?).ok_or(AccessFailure::Unreadable)
    }
}

/// Memory that is copied from and to by runs of contiguous addresses.
trait Runs {
    /// Calls `f` with the runs of contiguous addresses that make up `len` bytes at `offset`, in
    /// order.
    ///
    /// # Context
    ///
    /// As of [`Memory::read`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] if the range is not inside, or what `f` returns, which is not called again
    /// then.
    fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
        f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E>;

    /// See [`Memory::read`].
    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8], hint: &ExtentHint) -> Result<(), AccessFailure> {
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

    /// See [`Memory::write`].
    #[inline]
    fn write(&self, offset: u64, src: &[u8], hint: &ExtentHint) -> Result<(), AccessFailure> {
        let mut rest = src;
        self.for_each_run(offset, src.len(), hint, |run| {
            let done = run.copy_from(rest)?;
            rest = rest.get(done..).unwrap_or_default();
            Ok(())
        })
    }
}

/// A run of contiguous addresses in a region, which user space may change at any time: no reference
/// to it is created, all accesses are copies.
///
/// # Context
///
/// Any context, unless a function says otherwise.
///
/// # Invariants
///
/// `len` bytes at `addr` are memory of the region for `'a`, by kernel addresses.
pub struct Run<'a> {
    addr: *mut u8,
    len: usize,
    _memory: core::marker::PhantomData<&'a ()>,
}

impl<'a> Run<'a> {
    /// Returns the bytes from `from` on, `len` at most.
    #[inline]
    #[must_use]
    pub fn part(&self, from: usize, len: usize) -> Run<'a> {
        let from = from.min(self.len);
        // INVARIANT: A part of this run.
        Run {
            addr: self.addr.wrapping_add(from),
            len: len.min(self.len.wrapping_sub(from)),
            _memory: core::marker::PhantomData,
        }
    }
}

impl Run<'_> {
    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Starts writing its caches back.
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
    /// # Context
    ///
    /// As [`Memory::read`].
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

    /// Copies `src` to the start of the run, as much as both hold.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to), also if they overlap.
    #[inline]
    fn copy_from_run(&self, src: &Run<'_>) -> Result<(), AccessFailure> {
        let len = self.len.min(src.len);
        let (to, from) = (self.addr as usize, src.addr as usize);
        if to.abs_diff(from) < len {
            return Err(AccessFailure::Unreadable);
        }
        // SAFETY: By the type invariants; the ranges do not overlap.
        unsafe { copy(self.addr, src.addr, len) }
    }

    /// Copies `src` to the start of the run, as much as both hold; returns the number of bytes.
    ///
    /// # Context
    ///
    /// As [`Memory::read`].
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
