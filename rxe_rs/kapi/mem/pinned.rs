// SPDX-License-Identifier: GPL-2.0
//! Pages of a process that stay pinned as long as a part that holds them is in use.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h) (`pin_user_pages_fast`)

use super::{
    extents::{
        Extent,
        Extents,
        List, //
    },
    ExtentHint,
    OutOfBounds,
    Run, //
};
use crate::{
    alloc::kvec,
    bindings, //
};
use core::{
    ffi::c_void,
    ops::Range,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::to_result,
    new_mutex,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        Arc,
        Mutex,
        UniqueArc, //
    },
};

/// Pages pinned per call: bounds the time and the memory between two points of rescheduling.
const BATCH: u64 = 512;
/// Pages whose addresses are kept on the stack while they are pinned.
const FEW: usize = 16;

/// The address space that pinned pages are charged to (`RLIMIT_MEMLOCK`).
///
/// # Invariants
///
/// A referenced address space.
struct PinAccount(NonNull<bindings::mm_struct>);

// SAFETY: The reference is not bound to a thread.
unsafe impl Send for PinAccount {}
// SAFETY: Its counter is atomic.
unsafe impl Sync for PinAccount {}

impl PinAccount {
    /// Counts `pages` that the current process is about to pin.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond `RLIMIT_MEMLOCK`, `EPERM` if that is 0.
    fn charge(pages: u64) -> Result<Self> {
        let mut mm = null_mut();
        // SAFETY: `mm` is valid for writes.
        to_result(unsafe { bindings::rxe_rs_pin_charge(pages, &mut mm) })?;
        // INVARIANT: The function took a reference.
        NonNull::new(mm).map(Self).ok_or(EINVAL)
    }

    /// Subtracts `pages`.
    fn uncharge(&self, pages: u64) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rxe_rs_pin_uncharge(self.0.as_ptr(), pages) };
    }
}

impl Drop for PinAccount {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; this is the last use.
        unsafe { bindings::rxe_rs_mm_drop(self.0.as_ptr()) };
    }
}

/// A range of memory of a process, as runs of contiguous kernel addresses.
///
/// # Invariants
///
/// The pages of an extent are consecutive.
struct Pages {
    account: PinAccount,
    /// Address of the first byte in the process.
    start: u64,
    writable: bool,
    extents: Extents,
}

/// Pinned pages, and the parts of them in use.
///
/// # Invariants
///
/// Pages are pinned as long as one of `parts` holds them, and no others are.
#[pin_data]
pub(super) struct Pinned {
    pages: Pages,
    #[pin]
    parts: Mutex<Parts>,
}

/// The pages of each part in use; parts may overlap. Memory that was never divided is one part,
/// which takes no allocation.
struct Parts {
    /// Empty if there is no part.
    first: Part,
    others: KVVec<Part>,
}

/// Pages of a part. Numbers of 32 bits keep [`Pinned`] in an allocation of 128 bytes.
type Part = Range<u32>;

impl Parts {
    /// Adds a part.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn add(&mut self, part: Part) -> Result {
        if self.first.is_empty() {
            self.first = part;
            return Ok(());
        }
        kvec::push(&mut self.others, part, GFP_KERNEL_ACCOUNT)
    }

    /// Removes one part that has exactly these pages; returns false if there is none.
    fn remove(&mut self, part: &Part) -> bool {
        if self.first == *part {
            self.first = self.others.pop().unwrap_or(0..0);
            return true;
        }
        let Some(index) = self.others.iter().position(|other| other == part) else {
            return false;
        };
        if let (Some(last), Some(place)) = (self.others.pop(), self.others.get_mut(index)) {
            *place = last;
        }
        true
    }

    /// Returns all parts; the first one may be empty.
    fn iter(&self) -> impl Iterator<Item = &Part> {
        Iterator::chain(core::slice::from_ref(&self.first).iter(), &self.others)
    }
}

// SAFETY: Pinned pages are not bound to a thread.
unsafe impl Send for Pages {}
// SAFETY: Shared access only copies bytes from and to memory that user space may change anyway.
unsafe impl Sync for Pages {}

impl Pages {
    /// Returns the offset of `start` in its page.
    fn lead(&self) -> u64 {
        self.start & (PAGE_SIZE as u64).wrapping_sub(1)
    }

    /// Returns the pages of the `len` bytes at `offset`; `len` is not 0.
    fn pages_of(&self, offset: u64, len: u64) -> Part {
        let first = offset.wrapping_add(self.lead());
        let last = first.wrapping_add(len).wrapping_sub(1);
        (first >> PAGE_SHIFT) as u32..((last >> PAGE_SHIFT) as u32).wrapping_add(1)
    }

    /// Pins pages from `index` on and returns how many: at least one, and at most as many as `list`
    /// holds, which receives their addresses.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    fn pin_some(&self, index: u64, list: &mut [*mut c_void]) -> Result<usize> {
        let base = self.start.wrapping_sub(self.lead());
        let at = base.wrapping_add(index << PAGE_SHIFT);
        // SAFETY: The list has room for as many addresses.
        let got = unsafe {
            bindings::rxe_rs_pin_pages(at, list.len() as u32, self.writable, list.as_mut_ptr())
        };
        to_result(got.min(0))?;
        Ok(got as usize)
    }

    /// Returns the extent that begins with page `index`, whose address is `page`.
    fn extent(&self, index: u64, page: *mut c_void) -> Extent {
        // The first page may contain bytes before the start of the memory.
        let before = match index {
            0 => self.lead(),
            _ => 0,
        };
        let offset = (index << PAGE_SHIFT).wrapping_add(before);
        Extent {
            offset: offset.wrapping_sub(self.lead()),
            addr: page.wrapping_byte_add(before as usize),
        }
    }

    /// Pins all `count` pages and records their addresses; `done` is set to the number of pages,
    /// from the first one on, that have been pinned.
    ///
    /// # Errors
    ///
    /// `EFAULT` if a page is not mapped with the required access, `ENOMEM`, `EINTR`.
    fn fill(&mut self, count: u64, done: &mut u64) -> Result {
        let mut few = [null_mut(); FEW];
        if count == 1 {
            let [one, ..] = &mut few;
            self.pin_some(0, core::slice::from_mut(one))?;
            self.extents.list = List::One(self.extent(0, *one));
            *done = 1;
            return Ok(());
        }
        let mut many;
        let batch = if count <= FEW as u64 {
            few.as_mut_slice()
        } else {
            many = KVec::from_elem(null_mut(), BATCH.min(count) as usize, GFP_KERNEL_ACCOUNT)?;
            many.as_mut_slice()
        };
        let mut extents = KVVec::new();
        let result = self.fill_list(count, done, batch, &mut extents);
        self.extents.list = List::Many(extents);
        self.extents.trim();
        result
    }

    /// As [`fill`](Self::fill), into `extents`; `batch` holds the addresses of the pages that are
    /// pinned per call.
    fn fill_list(
        &self,
        count: u64,
        done: &mut u64,
        batch: &mut [*mut c_void],
        extents: &mut KVVec<Extent>,
    ) -> Result {
        // The address after the last page.
        let mut end = null_mut();
        while *done < count {
            let want = count.wrapping_sub(*done).min(batch.len() as u64) as usize;
            let list = batch.get_mut(..want).ok_or(EINVAL)?;
            // Every page may begin an extent.
            kvec::reserve(extents, want, GFP_KERNEL_ACCOUNT)?;
            let got = self.pin_some(*done, list)?;
            for page in list.iter().take(got) {
                if *page != end {
                    // The capacity was reserved above.
                    let _ = extents.push_within_capacity(self.extent(*done, *page));
                }
                end = page.wrapping_byte_add(PAGE_SIZE);
                *done = done.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// Unpins pages.
    ///
    /// # Safety
    ///
    /// They are pinned, and no longer used.
    unsafe fn unpin(&self, pages: Part) {
        if pages.is_empty() {
            return;
        }
        let (start, end) = (u64::from(pages.start), u64::from(pages.end));
        let from = (start << PAGE_SHIFT).saturating_sub(self.lead());
        let to = (end << PAGE_SHIFT).wrapping_sub(self.lead());
        let mut done = 0;
        for (addr, len) in self.extents.runs(from, to.saturating_sub(from)) {
            // SAFETY: By the caller's guarantee; an extent's pages are consecutive.
            unsafe { bindings::rxe_rs_unpin_range(addr, len, self.writable, &mut done) };
        }
        self.account.uncharge(end.wrapping_sub(start));
    }
}

impl Pinned {
    /// Pins the pages of `len` bytes at `start` of the current process. All of them are one part,
    /// which the caller [releases](Self::put_part).
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps or is empty, `ENOMEM` (also beyond `RLIMIT_MEMLOCK`),
    /// `EPERM` if that is 0, `EFAULT` if it is not mapped, `EINTR` if the process is being killed.
    pub(super) fn new(start: u64, len: u64, writable: bool) -> Result<Arc<Self>> {
        let in_page = (PAGE_SIZE as u64).wrapping_sub(1);
        let end = start.checked_add(len).ok_or(EINVAL)?;
        let end = end.checked_add(in_page).ok_or(EINVAL)? >> PAGE_SHIFT;
        let count = end.wrapping_sub(start >> PAGE_SHIFT);
        let all = 0..u32::try_from(count).map_err(|_| EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        let uninit = UniqueArc::<Self>::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let mut pages = Pages {
            account: PinAccount::charge(count)?,
            start,
            writable,
            extents: Extents {
                list: List::Many(KVVec::new()),
                len,
            },
        };
        let mut done = 0;
        // INVARIANT: The extents cover all pages, in order, if this succeeds.
        if let Err(e) = pages.fill(count, &mut done) {
            // SAFETY: They are pinned, and have not been shared.
            unsafe { pages.unpin(0..done as u32) };
            pages.account.uncharge(count.wrapping_sub(done));
            return Err(e);
        }
        // INVARIANT: All pages are pinned, and the one part holds them.
        let this = uninit.pin_init_with(pin_init!(Self {
            pages,
            parts <- new_mutex!(Parts {
                first: all,
                others: KVVec::new(),
            }),
        }))?;
        Ok(this.into())
    }

    /// Returns the address of the byte at `offset` in the process.
    pub(super) fn address_of(&self, offset: u64) -> u64 {
        self.pages.start.wrapping_add(offset)
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.pages.extents.len
    }

    /// Returns true if the pages were pinned for writing.
    pub(super) fn is_writable(&self) -> bool {
        self.pages.writable
    }

    /// Returns true if the calling process pinned the pages.
    pub(super) fn is_of_current(&self) -> bool {
        // SAFETY: The address space is only compared.
        unsafe { bindings::rxe_rs_mm_is_current(self.pages.account.0.as_ptr()) }
    }

    /// Returns the number of runs of physically contiguous memory.
    pub(super) fn extent_count(&self) -> usize {
        self.pages.extents.count()
    }

    /// Adds a part that holds the pages of `len` bytes at `offset`, until it is
    /// [released](Self::put_part).
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range or one outside, `ENOMEM`.
    ///
    /// # Safety
    ///
    /// They are in another part, which is not released before this returns.
    pub(super) unsafe fn get_part(&self, offset: u64, len: u64) -> Result {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if len == 0 || end > self.pages.extents.len {
            return Err(EINVAL);
        }
        let part = self.pages.pages_of(offset, len);
        // INVARIANT: By the caller's guarantee they are pinned.
        self.parts.lock().add(part)
    }

    /// Releases a part and unpins pages that no other part holds, at a cost proportional to the
    /// pages unpinned and the number of parts.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Safety
    ///
    /// There is such a part, of `len` bytes at `offset`, and the caller no longer uses it.
    pub(super) unsafe fn put_part(&self, offset: u64, len: u64) {
        let own = self.pages.pages_of(offset, len);
        let mut parts = self.parts.lock();
        if !parts.remove(&own) {
            return;
        }
        let mut at = own.start;
        while at < own.end {
            let holders = parts.iter().filter(|part| part.contains(&at));
            if let Some(end) = holders.map(|part| part.end).max() {
                at = end;
                continue;
            }
            let starts = parts.iter().map(|part| part.start);
            let next = starts.filter(|start| *start > at).min();
            let stop = next.map_or(own.end, |next| next.min(own.end));
            // SAFETY: Pinned by the type invariant until now, and no part holds them any more.
            unsafe { self.pages.unpin(at..stop) };
            at = stop;
        }
    }

    /// Returns address and length of each extent of the `len` bytes at `offset`.
    pub(super) fn runs(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = (*mut c_void, u64)> + '_ {
        self.pages.extents.runs(offset, len)
    }

    /// Calls `f` with each run of the `len` bytes at `offset`.
    ///
    /// # Safety
    ///
    /// They are in a part that is not released during the call.
    #[inline]
    pub(super) unsafe fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
        f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // SAFETY: By the caller's guarantee they are pinned.
        unsafe { self.pages.extents.for_each_run(offset, len, hint, f) }
    }
}
