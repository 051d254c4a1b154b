// SPDX-License-Identifier: GPL-2.0
//! On-demand paging: memory of a process that is not pinned.
//!
//! The range is split into chunks, which are allocated when first used. A chunk mirrors the
//! process's page tables: [`OdpMem::fault`] fills entries in process context, and an MMU notifier
//! invalidates them when the kernel changes the page tables. A copy holds the chunk's lock, so that
//! no page is invalidated during a copy; a page that is not present is reported, and faulted in by
//! a work item that may sleep.
//!
//! C headers: [`include/linux/hmm.h`](srctree/include/linux/hmm.h),
//! [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::{
    copy,
    AccessFailure,
    Run, //
};
use crate::{
    bindings,
    sync::RcuTable, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc, //
    },
};

const PAGE: u64 = PAGE_SIZE as u64;

/// Binary logarithm of the size of a chunk in bytes.
const CHUNK_SHIFT: u32 = 21;
const CHUNK: u64 = 1 << CHUNK_SHIFT;

/// Number of chunks above which chunks without a page are freed before another is allocated.
const MIN_CHUNK_LIMIT: u32 = 1024;

/// End of the addresses that a process has unless it requests more, which depends on the
/// architecture.
pub const USER_END: u64 = 1 << if cfg!(CONFIG_ARM64) { 48 } else { 47 };

const PRESENT: u64 = bindings::RXE_RS_ODP_PRESENT as u64;
const WRITABLE: u64 = bindings::RXE_RS_ODP_WRITABLE as u64;

/// How pages that are not present are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultMode {
    /// They are faulted in.
    Fault,
    /// No access needs them yet: they are faulted in if they are of private memory without a file
    /// and without userfaultfd, which takes limited time, and skipped else.
    Ahead,
    /// They are skipped: only pages in the process's page tables are mirrored.
    Snapshot,
}

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Read access.
    Read,
    /// Write access.
    Write,
}

/// Identifies an address space as long as memory of it is in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MmId(usize);

impl MmId {
    /// The ID of no address space.
    pub const NONE: Self = Self(0);
}

/// A reference to an address space (`mmgrab`), which keeps it allocated but does not keep its
/// pages.
///
/// # Invariants
///
/// Holds a reference (`mmgrab`).
struct MmRef(NonNull<bindings::mm_struct>);

// SAFETY: The functions used may be called from any thread.
unsafe impl Send for MmRef {}
// SAFETY: As above.
unsafe impl Sync for MmRef {}

/// An address space in use (`mmget`): its pages are not torn down while this exists. What the
/// current task allocates meanwhile is charged to the memory cgroup of the process, because page
/// faults also run in kernel threads.
///
/// # Invariants
///
/// `before` is the result of `rxe_rs_mm_charge`, called by the task that drops this.
struct MmUser<'a> {
    mm: &'a MmRef,
    before: *mut bindings::mem_cgroup,
}

impl MmRef {
    fn of_current() -> Result<Self> {
        // SAFETY: No requirement.
        let mm = NonNull::new(unsafe { bindings::rxe_rs_mm_grab() }).ok_or(EINVAL)?;
        // INVARIANT: The reference was just taken.
        Ok(Self(mm))
    }

    /// Returns `EFAULT` if the process has exited.
    fn get_user(&self) -> Result<MmUser<'_>> {
        // SAFETY: Alive by the type invariant.
        if !unsafe { bindings::rxe_rs_mm_get(self.0.as_ptr()) } {
            return Err(EFAULT);
        }
        // INVARIANT: The raw pointer keeps the result from being sent to another task.
        Ok(MmUser {
            mm: self,
            // SAFETY: As above.
            before: unsafe { bindings::rxe_rs_mm_charge(self.0.as_ptr()) },
        })
    }
}

impl Drop for MmRef {
    fn drop(&mut self) {
        // SAFETY: Drops the reference of the type invariant.
        unsafe { bindings::rxe_rs_mm_drop(self.0.as_ptr()) };
    }
}

impl Drop for MmUser<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; balances the successful `rxe_rs_mm_get`.
        unsafe {
            bindings::rxe_rs_mm_uncharge(self.before);
            bindings::rxe_rs_mm_put(self.mm.0.as_ptr());
        }
    }
}

/// Consecutive pages of the process.
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

/// The locked entries of a chunk, which do not change.
struct Entries<'a> {
    chunk: &'a Chunk,
    list: &'a [u64],
}

impl Chunk {
    fn new(space: &MmUser<'_>, start: u64, pages: u32) -> Result<Self> {
        // SAFETY: The address space is in use.
        let raw = unsafe { bindings::rxe_rs_odp_chunk_new(space.mm.0.as_ptr(), start, pages) };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?;
        // INVARIANT: Just allocated.
        Ok(Self { raw, start, pages })
    }

    /// Locks the entries. Bottom halves must be disabled.
    #[inline]
    fn lock(&self) -> Entries<'_> {
        // SAFETY: Alive by the type invariant.
        let list = unsafe { bindings::rxe_rs_odp_chunk_lock(self.raw.as_ptr()) };
        // SAFETY: By the type invariant there are as many entries, which live as long as the chunk
        // and do not change before it is unlocked.
        let list = unsafe { core::slice::from_raw_parts(list, self.pages as usize) };
        Entries { chunk: self, list }
    }

    /// Returns the number of pages that are present.
    fn present(&self) -> u32 {
        // SAFETY: Alive by the type invariant.
        unsafe { bindings::rxe_rs_odp_chunk_present(self.raw.as_ptr()) }
    }

    /// Returns the index of the page of `addr`, which is not before the chunk.
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
    /// Returns true if the pages from `first` to `last` have the flags `wanted`.
    #[inline]
    fn all(&self, first: usize, last: usize, wanted: u64) -> bool {
        let pages = self.list.get(first..=last);
        pages.is_some_and(|pages| pages.iter().all(|entry| entry & wanted == wanted))
    }

    /// Returns the kernel address of a byte of the process, and the number of bytes up to the end
    /// of its page.
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
        // SAFETY: Locked when this was created.
        unsafe { bindings::rxe_rs_odp_chunk_unlock(self.chunk.raw.as_ptr()) };
    }
}

/// Memory of a process with on-demand paging. Dropping it sleeps.
///
/// # Context
///
/// Any context, unless a function says otherwise.
pub struct OdpMem {
    /// Dropped before the address space, to which the chunks belong.
    chunks: Pin<KBox<RcuTable<Chunk>>>,
    /// Approximate number of chunks in the table.
    count: Atomic<u32>,
    /// Number of chunks above which empty ones are searched for.
    limit: Atomic<u32>,
    space: MmRef,
    /// Address of the first byte in the process, and number of bytes.
    start: u64,
    len: u64,
    writable: bool,
}

impl OdpMem {
    /// Mirrors `len` bytes at `start` of the current process, whether they are mapped or not.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
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
            limit: Atomic::new(MIN_CHUNK_LIMIT),
            space: MmRef::of_current()?,
            start,
            len,
            writable,
        })
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the address of the first byte in the process.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the ID of its address space.
    pub fn space(&self) -> MmId {
        MmId(self.space.0.as_ptr() as usize)
    }

    /// Returns true if it is memory of the calling process.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn is_of_current(&self) -> bool {
        // SAFETY: Alive by the type invariant of the address space.
        unsafe { bindings::rxe_rs_mm_is_current(self.space.0.as_ptr()) }
    }

    /// Returns true if write access is allowed at all.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the index of the chunk of an address; the first one contains the start.
    #[inline]
    fn index_of(&self, addr: u64) -> u32 {
        let first = self.start >> CHUNK_SHIFT;
        // Below 2^27: all addresses are below `USER_END`.
        (addr >> CHUNK_SHIFT).wrapping_sub(first) as u32
    }

    /// Returns the addresses of the range at `offset`, if all of it is inside.
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

    /// Calls `f` with the runs of kernel memory that make up `len` bytes at `offset`, in order. A
    /// chunk is locked during the call. Bottom halves must be disabled.
    #[inline]
    fn for_each_run(
        &self,
        offset: u64,
        len: usize,
        kind: AccessKind,
        mut f: impl FnMut(*mut u8, usize) -> Result<(), AccessFailure>,
    ) -> Result<(), AccessFailure> {
        let (mut at, end) = self
            .range(offset, len as u64)
            .ok_or(AccessFailure::OutOfBounds)?;
        let wanted = match kind {
            AccessKind::Read => PRESENT,
            AccessKind::Write if self.writable => PRESENT | WRITABLE,
            AccessKind::Write => return Err(AccessFailure::OutOfBounds),
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
                let (byte, left) = entries.byte(at).ok_or(AccessFailure::NotPresent)?;
                let part = left.min(stop.wrapping_sub(at) as usize);
                f(byte, part)?;
                at = at.wrapping_add(part as u64);
            }
        }
        Ok(())
    }

    /// See [`Memory::read`](super::Memory::read). The part in one chunk is copied as a whole or not
    /// at all.
    #[inline]
    pub(super) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessFailure> {
        let mut rest = &mut dst[..];
        let len = rest.len();
        self.for_each_run(offset, len, AccessKind::Read, |from, part| {
            if let Some((to, more)) = core::mem::take(&mut rest).split_at_mut_checked(part) {
                // SAFETY: `part` bytes at `from` are in a page that stays present while the chunk
                // is locked; `to` is private.
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
        self.for_each_run(offset, src.len(), AccessKind::Write, |to, part| {
            if let Some((from, more)) = rest.split_at_checked(part) {
                // SAFETY: `part` bytes at `to` are in a page that the process may write to and that
                // stays present while the chunk is locked; `from` is private.
                unsafe { copy(to, from.as_ptr(), part) }?;
                rest = more;
            }
            Ok(())
        })
    }

    /// See [`Memory::write_run`](super::Memory::write_run). As [`read`](Self::read).
    pub(super) fn write_run(&self, offset: u64, src: &Run<'_>) -> Result<(), AccessFailure> {
        let mut done = 0;
        self.for_each_run(offset, src.len(), AccessKind::Write, |to, part| {
            // INVARIANT: `part` bytes at `to` are in a page that the process may write to and that
            // stays present while the chunk is locked.
            let run = Run {
                addr: to,
                len: part,
                _memory: core::marker::PhantomData,
            };
            run.copy_from_run(&src.part(done, part))?;
            done = done.wrapping_add(part);
            Ok(())
        })
    }

    /// Calls `f` with the address of the aligned word at `offset`, which belongs to the region
    /// during the call.
    pub(super) fn with_word<R>(
        &self,
        offset: u64,
        f: impl FnOnce(*mut u64) -> R,
    ) -> Result<R, AccessFailure> {
        let mut f = Some(f);
        let mut result = Err(AccessFailure::OutOfBounds);
        self.for_each_run(offset, 8, AccessKind::Write, |at, part| {
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

    /// Faults in `len` bytes at `offset`, all or those before the first that fails. They may be
    /// invalidated again at any time. Ends early if the calling process is killed.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the range is not inside or not mapped or the process has exited, `EPERM` if it
    /// is not writable, `EBUSY` if the page tables keep changing, `ENOMEM`, `EINTR`.
    pub fn fault(&self, offset: u64, len: u64, kind: AccessKind, mode: FaultMode) -> Result {
        let (mut at, end) = self.range(offset, len).ok_or(EFAULT)?;
        if kind == AccessKind::Write && !self.writable {
            return Err(EPERM);
        }
        let user = self.space.get_user()?;
        let mut flags = 0;
        if kind == AccessKind::Write {
            flags |= bindings::RXE_RS_ODP_WRITE;
        }
        flags |= match mode {
            FaultMode::Fault => bindings::RXE_RS_ODP_FAULT,
            FaultMode::Ahead => bindings::RXE_RS_ODP_FAULT | bindings::RXE_RS_ODP_AHEAD,
            FaultMode::Snapshot => 0,
        };
        while at < end {
            let stop = (at | (CHUNK - 1)).wrapping_add(1).min(end);
            let chunk = self.chunk_at(&user, at)?;
            let first = chunk.page_of(at);
            let count = chunk.page_of(stop.wrapping_sub(1)).wrapping_sub(first) as u32;
            // SAFETY: The chunk is alive, the address space is in use, and the pages are the
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

    /// Returns the chunk of `addr`, which is in the range.
    fn chunk_at(&self, user: &MmUser<'_>, addr: u64) -> Result<Arc<Chunk>> {
        let index = self.index_of(addr);
        if let Some(chunk) = self.chunks.get(index) {
            return Ok(chunk);
        }
        if self.count.load(Relaxed) >= self.limit.load(Relaxed) {
            self.free_empty_chunks();
        }
        let start = (addr & !(CHUNK - 1)).max(self.start & !(PAGE - 1));
        let end = (addr | (CHUNK - 1))
            .wrapping_add(1)
            .min(self.start.wrapping_add(self.len));
        let end = end.wrapping_add(PAGE - 1) & !(PAGE - 1);
        let pages = (end.wrapping_sub(start) >> PAGE_SHIFT) as u32;
        let chunk = Arc::new(Chunk::new(user, start, pages)?, GFP_KERNEL_ACCOUNT)?;
        // It is counted first: another task may find it, empty as it is, and free it at once. The
        // count would then wrap below 0, and with it the limit.
        self.count.fetch_add(1, Relaxed);
        let inserted = self.chunks.insert_at(index, chunk.clone());
        if inserted.is_err() {
            self.count.fetch_sub(1, Relaxed);
        }
        match inserted {
            Ok(()) => Ok(chunk),
            // Another task has inserted it meanwhile.
            Err(e) if e == EBUSY => self.chunks.get(index).ok_or(EBUSY),
            Err(e) => Err(e),
        }
    }

    /// Frees chunks without a page, so that a process that keeps using new addresses does not make
    /// the kernel keep chunks for what it has unmapped.
    fn free_empty_chunks(&self) {
        let removed = self.chunks.remove_if_sync(|chunk| chunk.present() == 0);
        self.count.fetch_sub(removed, Relaxed);
        let left = self.count.load(Relaxed);
        let limit = left.saturating_mul(2).max(MIN_CHUNK_LIMIT);
        self.limit.store(limit, Relaxed);
    }
}
