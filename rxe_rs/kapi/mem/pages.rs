// SPDX-License-Identifier: GPL-2.0
//! The page list of an FRWR region, which a kernel consumer sets (`ib_map_mr_sg`).

use super::{
    DmaMemory,
    ExtentHint,
    OutOfBounds,
    Run,
    Runs, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// A list of pages of one size, a power of two, that form one range.
///
/// The consumer changes the list while the region is not registered, when the region's state, which
/// is not known here, refuses accesses. If a consumer violates that rule, an access finds old or
/// new pages, all of which it listed.
pub struct PageList {
    /// Addresses in the kernel's linear map.
    pages: KVVec<Atomic<u64>>,
    /// Entries in use.
    count: Atomic<u32>,
    /// Binary logarithm of the page size.
    shift: Atomic<u32>,
    /// Offset of the first byte of the range in the first page, in bytes.
    lead: Atomic<u64>,
    memory: DmaMemory,
}

impl PageList {
    /// Allocates an empty list with capacity for `max` pages.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// Only a kernel consumer fills and uses the list; pages it lists stay allocated until it has
    /// invalidated the registration.
    pub(crate) unsafe fn new(max: u32) -> Result<Self> {
        let mut pages = KVVec::with_capacity(max as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..max {
            pages.push(Atomic::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            pages,
            count: Atomic::new(0),
            shift: Atomic::new(0),
            lead: Atomic::new(0),
            // SAFETY: By the caller's guarantee.
            memory: unsafe { DmaMemory::new() },
        })
    }

    /// Returns the capacity in pages.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn max(&self) -> u32 {
        u32::try_from(self.pages.len()).unwrap_or(u32::MAX)
    }

    /// Returns the length of the list as it is now, in bytes from the first byte of the range.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn len(&self) -> u64 {
        let all = u64::from(self.count.load(Relaxed)) << (self.shift.load(Relaxed) & 63);
        all.saturating_sub(self.lead.load(Relaxed))
    }

    /// Returns true if the list is empty.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empties the list.
    pub(crate) fn clear(&self) {
        self.count.store(0, Relaxed);
    }

    /// Appends the page at `addr`; returns false if the list is full.
    pub(crate) fn push(&self, addr: u64) -> bool {
        let count = self.count.load(Relaxed);
        let Some(slot) = self.pages.get(count as usize) else {
            return false;
        };
        slot.store(addr, Relaxed);
        self.count.store(count.wrapping_add(1), Relaxed);
        true
    }

    /// Sets the size of the pages, a power of two, and the address of the first byte.
    pub(crate) fn describe(&self, page_size: u32, start: u64) {
        self.shift.store(page_size.trailing_zeros() & 31, Relaxed);
        let mask = u64::from(page_size).wrapping_sub(1);
        self.lead.store(start & mask, Relaxed);
    }
}

impl Runs for PageList {
    fn for_each_run<E: From<OutOfBounds>>(
        &self,
        offset: u64,
        len: usize,
        hint: &ExtentHint,
        mut f: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let shift = self.shift.load(Relaxed) & 31;
        let size = 1u64 << shift;
        let count = self.count.load(Relaxed);
        let start = offset
            .checked_add(self.lead.load(Relaxed))
            .ok_or(OutOfBounds)?;
        let end = start.checked_add(len as u64).ok_or(OutOfBounds)?;
        if end > u64::from(count) << shift {
            return Err(OutOfBounds.into());
        }
        let mut at = start;
        while at < end {
            let page = self
                .pages
                .get((at >> shift) as usize)
                .ok_or(OutOfBounds)?
                .load(Relaxed);
            let within = at & size.wrapping_sub(1);
            let take = size.wrapping_sub(within).min(end.wrapping_sub(at));
            let addr = page.checked_add(within).ok_or(OutOfBounds)?;
            // Checks that it is memory at all.
            self.memory
                .for_each_run(addr, take as usize, hint, &mut f)?;
            at = at.wrapping_add(take);
        }
        Ok(())
    }
}
