// SPDX-License-Identifier: GPL-2.0
//! Events that somebody is told of by calls that do not overlap.

use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed};

/// Counts events that the callee has not been told of.
///
/// Whoever adds the first of them sees to it that [`deliver`](Self::deliver) is called; until it has
/// returned true nobody else calls it. So calls never overlap, and each event is followed by one
/// that begins after it.
pub struct Pending(Atomic<u32>);

impl Pending {
    /// None.
    #[allow(clippy::new_without_default)] // Always made for a purpose.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// One more event. True if the caller is to have [`deliver`](Self::deliver) called. Any context.
    #[inline]
    pub fn add(&self) -> bool {
        self.0.fetch_add(1, Full) == 0
    }

    /// Calls `tell` until every event added has been followed by a call; false if that took `most`
    /// calls and there is more: it is to be called once more then.
    #[inline]
    pub fn deliver(&self, most: u32, mut tell: impl FnMut()) -> bool {
        for _ in 0..most {
            let seen = self.0.load(Acquire);
            tell();
            // Orders what the call did before what the next one does, on whichever CPU.
            if self.0.cmpxchg(seen, 0, Full).is_ok() {
                return true;
            }
        }
        false
    }
}

/// A set of events, up to 32 kinds of them, that a work item tells of: events of one kind that it has
/// not told of yet are one.
pub struct PendingSet(Atomic<u32>);

impl PendingSet {
    /// None.
    #[allow(clippy::new_without_default)] // Always made for a purpose.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `bits`. The caller queues the work item afterwards. Any context.
    pub fn raise(&self, bits: u32) {
        let mut old = self.0.load(Relaxed);
        while let Err(now) = self.0.cmpxchg(old, old | bits, Full) {
            old = now;
        }
    }

    /// Takes what is there, with what was done before it was raised.
    pub fn take(&self) -> u32 {
        self.0.xchg(0, Full)
    }
}
