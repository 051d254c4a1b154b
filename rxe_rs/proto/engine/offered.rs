// SPDX-License-Identifier: GPL-2.0
//! Which send requests of a QP are on offer to its peer ([`SendQueue::offer`]): a range of indices.
//! The owner of the QP keeps what it offers of each of them.
//!
//! [`SendQueue::offer`]: super::backend::SendQueue::offer

use super::requester::index_before;

/// The range, in which there may be requests that are not on offer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offered {
    /// Index of the oldest request on offer, and that after the newest; equal if there is none.
    first: u32,
    end: u32,
}

impl Offered {
    /// True if none is on offer.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.first == self.end
    }

    /// Index after the newest request on offer.
    #[inline]
    pub const fn end(self) -> u32 {
        self.end
    }

    /// True if request `index` is the newest one on offer.
    #[inline]
    pub const fn is_newest(self, index: u32) -> bool {
        !self.is_empty() && index.wrapping_add(1) == self.end
    }

    /// True if request `index` is behind all that are on offer, so that it may be
    /// [added](Self::add). A requester that goes back sends older ones again, some of which may not
    /// have been offered before.
    #[inline]
    pub fn may_add(self, index: u32) -> bool {
        self.is_empty() || !index_before(index, self.end)
    }

    /// Request `index` is offered.
    #[inline]
    pub fn add(&mut self, index: u32) {
        if self.is_empty() {
            self.first = index;
        }
        self.end = index.wrapping_add(1);
    }

    /// All requests before `index` are withdrawn. Returns the index of the first that may have been
    /// on offer, and how many follow it, itself included.
    #[inline]
    pub fn withdraw(&mut self, index: u32) -> (u32, u32) {
        let first = self.first;
        if index_before(index, first) {
            // A request retires that is older than all on offer.
            return (first, 0);
        }
        let all = self.end.wrapping_sub(first);
        let count = index.wrapping_sub(first).min(all);
        self.first = first.wrapping_add(count);
        (first, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Across the wrap.
    const BEGIN: u32 = u32::MAX - 2;

    fn at(n: u32) -> u32 {
        BEGIN.wrapping_add(n)
    }

    #[test]
    fn older_requests_retire() {
        let mut offered = Offered::default();
        assert_eq!(offered.withdraw(at(0)).1, 0);
        offered.add(at(2));
        offered.add(at(5));
        assert!(offered.is_newest(at(5)) && !offered.is_newest(at(2)));
        // Those before the first one on offer.
        assert_eq!(offered.withdraw(at(1)).1, 0);
        assert_eq!(offered.withdraw(at(2)).1, 0);
        assert!(offered.is_newest(at(5)));
        assert_eq!(offered.withdraw(at(3)), (at(2), 1));
        assert_eq!(offered.withdraw(at(100)), (at(3), 3));
        assert!(offered.is_empty() && !offered.is_newest(at(5)));
        assert_eq!(offered.withdraw(at(100)).1, 0);
    }

    #[test]
    fn requests_are_added_in_order() {
        let mut offered = Offered::default();
        assert!(offered.may_add(at(4)));
        offered.add(at(4));
        for n in 0..10 {
            assert_eq!(offered.may_add(at(n)), n > 4, "{n}");
        }
        offered.withdraw(at(5));
        assert!(offered.may_add(at(5)));
    }
}
