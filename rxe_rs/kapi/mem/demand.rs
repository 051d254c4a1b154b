// SPDX-License-Identifier: GPL-2.0
//! Memory of a process that is not pinned.
//!
//! The range is cut into chunks, made when they are first needed. A chunk mirrors the process's
//! page tables: entries are filled in by [`Demand::fault`], in process context, and taken away
//! when the kernel changes the page tables. Whoever copies holds the chunk's lock, so a page does
//! not go during a copy; one that is not there is reported and got by somebody who may sleep.
//!
//! C headers: [`include/linux/hmm.h`](srctree/include/linux/hmm.h),
//! [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::{copy, AccessFailure};
use crate::bindings;
use crate::sync::RcuTable;
use core::ptr::NonNull;
use kernel::error::{from_err_ptr, to_result};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{rcu, Arc};

const PAGE_SHIFT: u32 = 12;
const PAGE: u64 = 1 << PAGE_SHIFT;

/// Binary logarithm of the bytes of a chunk.
const CHUNK_SHIFT: u32 = 21;
const CHUNK: u64 = 1 << CHUNK_SHIFT;

/// Chunks from which on those without a page are given up before another is made.
const SWEEP_FROM: u32 = 1024;

/// End of the addresses that a process has unless it asks for more.
pub const USER_END: u64 = 1 << 47;

const PRESENT: u64 = bindings::RXE_RS_ODP_PRESENT as u64;
const WRITABLE: u64 = bindings::RXE_RS_ODP_WRITABLE as u64;

/// What is done about pages that are not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultMode {
    /// They are got.
    Fault,
    /// Nothing: only those that the process has are taken note of.
    Snapshot,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Tells address spaces apart for as long as memory of them is in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceId(usize);

impl SpaceId {
    /// No address space has it.
    pub const NONE: Self = Self(0);
}

/// An address space, kept from being freed but not from being emptied.
///
/// # Invariants
///
/// Holds a reference (`mmgrab`).
struct Space(NonNull<bindings::mm_struct>);

// SAFETY: The functions used may be called from any thread.
unsafe impl Send for Space {}
// SAFETY: As above.
unsafe impl Sync for Space {}

/// An address space that is in use: it is not emptied while this lives.
struct Held<'a>(&'a Space);

impl Space {
    fn of_current() -> Result<Self> {
        // SAFETY: No requirement.
        let mm = NonNull::new(unsafe { bindings::rxe_rs_mm_grab() }).ok_or(EINVAL)?;
        // INVARIANT: The reference was just taken.
        Ok(Self(mm))
    }

    /// `EFAULT` if the process has ended.
    fn hold(&self) -> Result<Held<'_>> {
        // SAFETY: Alive by the type invariant.
        if unsafe { bindings::rxe_rs_mm_get(self.0.as_ptr()) } {
            Ok(Held(self))
        } else {
            Err(EFAULT)
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: Gives back the reference of the type invariant.
        unsafe { bindings::rxe_rs_mm_drop(self.0.as_ptr()) };
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: Balances the successful `rxe_rs_mm_get`.
        unsafe { bindings::rxe_rs_mm_put(self.0 .0.as_ptr()) };
    }
}

/// Consecutive pages.
///
/// # Invariants
///
/// `raw` is a live chunk of `pages` entries for the pages from `start` on.
struct Chunk {
    raw: NonNull<bindings::rxe_rs_odp_chunk>,
    /// Address of the first page in the process.
    start: u64,
    pages: u32,
}

// SAFETY: The chunk has its own lock.
unsafe impl Send for Chunk {}
// SAFETY: As above.
unsafe impl Sync for Chunk {}

/// The entries of a chunk, which do not change meanwhile.
struct Entries<'a> {
    chunk: &'a Chunk,
    list: &'a [u64],
}

impl Chunk {
    fn new(space: &Held<'_>, start: u64, pages: u32) -> Result<Self> {
        // SAFETY: The address space is held.
        let raw = unsafe { bindings::rxe_rs_odp_chunk_new(space.0 .0.as_ptr(), start, pages) };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?;
        // INVARIANT: Just made.
        Ok(Self { raw, start, pages })
    }

    /// Context: bottom halves off.
    #[inline]
    fn lock(&self) -> Entries<'_> {
        // SAFETY: Alive by the type invariant.
        let list = unsafe { bindings::rxe_rs_odp_chunk_lock(self.raw.as_ptr()) };
        // SAFETY: By the type invariant there are as many entries, which live as long as the
        // chunk and do not change before it is unlocked.
        let list = unsafe { core::slice::from_raw_parts(list, self.pages as usize) };
        Entries { chunk: self, list }
    }

    /// Pages that are there.
    fn present(&self) -> u32 {
        // SAFETY: Alive by the type invariant.
        unsafe { bindings::rxe_rs_odp_chunk_present(self.raw.as_ptr()) }
    }

    /// Index of the page that `addr`, which is not before the chunk, lies in.
    #[inline]
    fn page_of(&self, addr: u64) -> usize {
        (addr.wrapping_sub(self.start) >> PAGE_SHIFT) as usize
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: Alive by the type invariant, and this is the last use.
        unsafe { bindings::rxe_rs_odp_chunk_free(self.raw.as_ptr()) };
    }
}

impl Entries<'_> {
    /// Whether the pages from `first` to `last` can be used.
    #[inline]
    fn all(&self, first: usize, last: usize, wanted: u64) -> bool {
        let pages = self.list.get(first..=last);
        pages.is_some_and(|pages| pages.iter().all(|entry| entry & wanted == wanted))
    }

    /// Address of a byte of the process, and how many follow it in its page.
    #[inline]
    fn byte(&self, addr: u64) -> Option<(*mut u8, usize)> {
        let entry = self.list.get(self.chunk.page_of(addr))?;
        let skip = addr & (PAGE - 1);
        let base = entry & !(PAGE - 1);
        if entry & PRESENT == 0 {
            return None;
        }
        // The sum stays in the page.
        let byte = base.wrapping_add(skip) as usize as *mut u8;
        Some((byte, PAGE.wrapping_sub(skip) as usize))
    }
}

impl Drop for Entries<'_> {
    fn drop(&mut self) {
        // SAFETY: Locked when this was made.
        unsafe { bindings::rxe_rs_odp_chunk_unlock(self.chunk.raw.as_ptr()) };
    }
}

/// Memory of a process that is got on demand. Dropping it sleeps.
pub struct Demand {
    /// Before the address space: chunks belong to it.
    chunks: Pin<KBox<RcuTable<Chunk>>>,
    /// Chunks in the table, about.
    count: Atomic<u32>,
    /// How many there may be before empty ones are looked for.
    limit: Atomic<u32>,
    space: Space,
    /// Address of the first byte in the process.
    start: u64,
    len: u64,
    writable: bool,
}

impl Demand {
    /// `len` bytes at `start` of the current process, whether they are mapped or not.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that is empty or beyond [`USER_END`], `ENOMEM`.
    pub fn new(start: u64, len: u64, writable: bool) -> Result<Self> {
        let end = start.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > USER_END {
            return Err(EINVAL);
        }
        Ok(Self {
            chunks: KBox::pin_init(RcuTable::new(), GFP_KERNEL_ACCOUNT)?,
            count: Atomic::new(0),
            limit: Atomic::new(SWEEP_FROM),
            space: Space::of_current()?,
            start,
            len,
            writable,
        })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Address of the first byte in the process.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The address space that it is of.
    pub fn space(&self) -> SpaceId {
        SpaceId(self.space.0.as_ptr() as usize)
    }

    /// Whether it is memory of the calling process.
    pub fn is_of_current(&self) -> bool {
        // SAFETY: Alive by the type invariant of the address space.
        unsafe { bindings::rxe_rs_mm_is_current(self.space.0.as_ptr()) }
    }

    /// Whether it may be written to at all.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Index of the chunk of an address; the first one has the start in it.
    #[inline]
    fn index_of(&self, addr: u64) -> u32 {
        let first = self.start >> CHUNK_SHIFT;
        // Below 2^26: all addresses are below `USER_END`.
        (addr >> CHUNK_SHIFT).wrapping_sub(first) as u32
    }

    /// The addresses from `offset` on, if all of them are in the range.
    #[inline]
    fn range(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let end = offset.checked_add(len)?;
        let fits = end <= self.len;
        fits.then(|| {
            (
                self.start.wrapping_add(offset),
                self.start.wrapping_add(end),
            )
        })
    }

    /// Calls `f` with the pieces of kernel memory that make up `len` bytes at `offset`, in order.
    /// A chunk is locked during the call.
    ///
    /// Context: bottom halves off.
    #[inline]
    fn each_piece(
        &self,
        offset: u64,
        len: usize,
        kind: Use,
        mut f: impl FnMut(*mut u8, usize) -> Result<(), AccessFailure>,
    ) -> Result<(), AccessFailure> {
        let (mut at, end) = self
            .range(offset, len as u64)
            .ok_or(AccessFailure::OutOfBounds)?;
        let wanted = match kind {
            Use::Read => PRESENT,
            Use::Write if self.writable => PRESENT | WRITABLE,
            Use::Write => return Err(AccessFailure::OutOfBounds),
        };
        let rcu = rcu::read_lock();
        while at < end {
            let chunk = self.chunks.borrow(self.index_of(at), &rcu);
            let chunk = chunk.ok_or(AccessFailure::NotPresent)?;
            let stop = (at | (CHUNK - 1)).wrapping_add(1).min(end);
            let entries = chunk.lock();
            let last = chunk.page_of(stop.wrapping_sub(1));
            if !entries.all(chunk.page_of(at), last, wanted) {
                return Err(AccessFailure::NotPresent);
            }
            while at < stop {
                let (byte, room) = entries.byte(at).ok_or(AccessFailure::NotPresent)?;
                let part = room.min(stop.wrapping_sub(at) as usize);
                f(byte, part)?;
                at = at.wrapping_add(part as u64);
            }
        }
        Ok(())
    }

    /// See [`Memory::read`](super::Memory::read). What lies in one chunk is copied whole or not
    /// at all.
    #[inline]
    pub(super) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessFailure> {
        let mut rest = &mut dst[..];
        let len = rest.len();
        self.each_piece(offset, len, Use::Read, |from, part| {
            if let Some((to, more)) = core::mem::take(&mut rest).split_at_mut_checked(part) {
                // SAFETY: `part` bytes at `from` are in a page that stays while the chunk is
                // locked; `to` is private.
                unsafe { copy(to.as_mut_ptr(), from, part) }?;
                rest = more;
            }
            Ok(())
        })
    }

    /// See [`Memory::write`](super::Memory::write). As [`read`](Self::read).
    #[inline]
    pub(super) fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessFailure> {
        let mut rest = src;
        self.each_piece(offset, src.len(), Use::Write, |to, part| {
            if let Some((from, more)) = rest.split_at_checked(part) {
                // SAFETY: `part` bytes at `to` are in a page that the process may write to and
                // that stays while the chunk is locked; `from` is private.
                unsafe { copy(to, from.as_ptr(), part) }?;
                rest = more;
            }
            Ok(())
        })
    }

    /// Calls `f` with the address of the aligned word at `offset`, which is the region's during
    /// the call.
    pub(super) fn with_word<R>(
        &self,
        offset: u64,
        f: impl FnOnce(*mut u64) -> R,
    ) -> Result<R, AccessFailure> {
        let mut f = Some(f);
        let mut result = Err(AccessFailure::OutOfBounds);
        self.each_piece(offset, 8, Use::Write, |at, part| {
            let word = at.cast::<u64>();
            if part == 8 && word.is_aligned() {
                if let Some(f) = f.take() {
                    result = Ok(f(word));
                }
            }
            Ok(())
        })?;
        result
    }

    /// Makes `len` bytes at `offset` available, all or those before the first that cannot be.
    /// They may be gone again at any time. Process context, sleeps; ends early if the calling
    /// process is killed.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the range is not inside or not mapped or the process has ended, `EPERM` if it
    /// may not be written to, `EBUSY` if the page tables do not stop changing, `ENOMEM`, `EINTR`.
    pub fn fault(&self, offset: u64, len: u64, kind: Use, effort: FaultMode) -> Result {
        let (mut at, end) = self.range(offset, len).ok_or(EFAULT)?;
        if kind == Use::Write && !self.writable {
            return Err(EPERM);
        }
        let held = self.space.hold()?;
        let mut flags = 0;
        if kind == Use::Write {
            flags |= bindings::RXE_RS_ODP_WRITE;
        }
        if effort == FaultMode::Fault {
            flags |= bindings::RXE_RS_ODP_FAULT;
        }
        while at < end {
            let stop = (at | (CHUNK - 1)).wrapping_add(1).min(end);
            let chunk = self.chunk_at(&held, at)?;
            let first = chunk.page_of(at);
            let count = chunk.page_of(stop.wrapping_sub(1)).wrapping_sub(first) as u32;
            // SAFETY: The chunk is alive, the address space is held, and the pages are the
            // chunk's: `at` and `stop` are inside of it.
            to_result(unsafe {
                bindings::rxe_rs_odp_chunk_fault(
                    chunk.raw.as_ptr(),
                    first as u32,
                    count.wrapping_add(1),
                    flags,
                )
            })?;
            at = stop;
        }
        Ok(())
    }

    /// The chunk that `addr`, an address in the range, lies in.
    fn chunk_at(&self, held: &Held<'_>, addr: u64) -> Result<Arc<Chunk>> {
        let index = self.index_of(addr);
        if let Some(chunk) = self.chunks.get(index) {
            return Ok(chunk);
        }
        if self.count.load(Relaxed) >= self.limit.load(Relaxed) {
            self.sweep();
        }
        let start = (addr & !(CHUNK - 1)).max(self.start & !(PAGE - 1));
        let end = (addr | (CHUNK - 1))
            .wrapping_add(1)
            .min(self.start.wrapping_add(self.len));
        let end = end.wrapping_add(PAGE - 1) & !(PAGE - 1);
        let pages = (end.wrapping_sub(start) >> PAGE_SHIFT) as u32;
        let chunk = Arc::new(Chunk::new(held, start, pages)?, GFP_KERNEL_ACCOUNT)?;
        match self.chunks.insert_at(index, chunk.clone()) {
            Ok(()) => {
                self.count.fetch_add(1, Relaxed);
                Ok(chunk)
            }
            // Somebody else was faster.
            Err(e) if e == EBUSY => self.chunks.get(index).ok_or(EBUSY),
            Err(e) => Err(e),
        }
    }

    /// Gives up chunks that have no page: a process that uses ever new addresses must not make us
    /// keep what it has long given up itself.
    fn sweep(&self) {
        let gone = self.chunks.remove_if_sync(|chunk| chunk.present() == 0);
        self.count.fetch_sub(gone, Relaxed);
        let kept = self.count.load(Relaxed);
        let limit = kept.saturating_mul(2).max(SWEEP_FROM);
        self.limit.store(limit, Relaxed);
    }
}
