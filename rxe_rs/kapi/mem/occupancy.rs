// SPDX-License-Identifier: GPL-2.0
//! The number of CQEs in a ring that its process has not consumed.
//!
//! This file contains arithmetic only, so that it is tested on the host as well
//! (`proto/tests/occupancy.rs`).

/// The kernel's view of a ring that it fills and a process empties, against which it checks the
/// process's consumer index.
///
/// The process may advance its index from where it was seen last up to the kernel's producer index,
/// and no further. Indices are masked, so one past the kernel's would look the same as an index
/// that has not moved in a ring that is full to its last slot but one: two slots stay empty.
///
/// # Invariants
///
/// `mask + 1` is a power of two, and at least 4. `produced` and `consumed` are masked.
/// `produced - consumed`, masked, is at most [`capacity`](Self::capacity).
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupancy {
    mask: u32,
    produced: u32,
    consumed: u32,
}

impl Occupancy {
    /// Creates an empty ring of `mask + 1` slots; `None` if that is no power of two or less than 4.
    pub(super) const fn new(mask: u32) -> Option<Self> {
        if mask < 3 || mask & mask.wrapping_add(1) != 0 {
            return None;
        }
        Some(Self {
            mask,
            produced: 0,
            consumed: 0,
        })
    }

    /// Returns the slots of a ring that holds `count` elements; `None` beyond what an index can
    /// distinguish.
    pub(super) const fn slots_for(count: u32) -> Option<u32> {
        let Some(least) = count.checked_add(2) else {
            return None;
        };
        let least = if least < 4 { 4 } else { least };
        least.checked_next_power_of_two()
    }

    /// Returns the capacity of the ring.
    pub(super) const fn capacity(&self) -> u32 {
        self.mask.wrapping_sub(1)
    }

    /// Returns the index of the slot that is filled next.
    pub(super) const fn produced(&self) -> u32 {
        self.produced
    }

    /// Returns the index of the element that the process consumes next, as far as the kernel has
    /// seen.
    pub(super) const fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Returns the number of elements that may not have been consumed, as far as the kernel has
    /// seen.
    pub(super) const fn held(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed) & self.mask
    }

    /// Returns the number of unread elements if the process's index is `index`; `None` if that is
    /// impossible.
    pub(super) const fn unread(&self, index: u32) -> Option<u32> {
        let taken = index.wrapping_sub(self.consumed) & self.mask;
        self.held().checked_sub(taken)
    }

    /// Records the process's index. Returns false if it is impossible: the process then counts as
    /// having consumed everything, and its index must be corrected.
    ///
    /// librxe up to version 52 leaves its index one past the kernel's when it has consumed
    /// everything.
    pub(super) fn consume(&mut self, index: u32) -> bool {
        let sane = self.unread(index).is_some();
        self.consumed = if sane {
            index & self.mask
        } else {
            self.produced
        };
        sane
    }

    /// Takes the next slot and returns its index; `None` if the ring is full.
    pub(super) fn produce(&mut self) -> Option<u32> {
        if self.held() >= self.capacity() {
            return None;
        }
        let slot = self.produced;
        self.produced = slot.wrapping_add(1) & self.mask;
        Some(slot)
    }

    /// Fills the first `count` slots of an unused ring; returns false if they are too many.
    pub(super) fn start_with(&mut self, count: u32) -> bool {
        if count > self.capacity() {
            return false;
        }
        (self.consumed, self.produced) = (0, count);
        true
    }
}
