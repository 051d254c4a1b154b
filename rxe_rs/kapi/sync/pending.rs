// SPDX-License-Identifier: GPL-2.0
//! Events that are delivered by calls that do not overlap.

use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed, //
};

/// Counts events that have not been delivered to a consumer.
///
/// Whoever adds the first of them must make sure that [`deliver`](Self::deliver) is called; until
/// it has returned true nobody else calls it. Thus calls never overlap, and each event is followed
/// by a call that begins after it.
pub struct Pending(Atomic<u32>);

impl Pending {
    /// Creates a counter without events.
    ///
    /// # Context
    ///
    /// Any context.
    #[allow(clippy::new_without_default)] // Always made for a purpose.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds an event. Returns true if the caller must have [`deliver`](Self::deliver) called.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn add(&self) -> bool {
        self.0.fetch_add(1, Full) == 0
    }

    /// Calls `notify` until every event added has been followed by a call. Returns false if that
    /// took `most` calls and there are more events: it must be called again then.
    ///
    /// # Context
    ///
    /// Any context that `notify` may be called in.
    #[inline]
    pub fn deliver(&self, most: u32, mut notify: impl FnMut()) -> bool {
        for _ in 0..most {
            let seen = self.0.load(Acquire);
            notify();
            // Orders the effects of this call before those of the next one, on whichever CPU.
            if self.0.cmpxchg(seen, 0, Full).is_ok() {
                return true;
            }
        }
        false
    }
}

/// A set of up to 32 kinds of events that a work item delivers: events of one kind that have not
/// been delivered yet are merged.
pub struct PendingSet(Atomic<u32>);

impl PendingSet {
    /// Creates an empty set.
    ///
    /// # Context
    ///
    /// Any context.
    #[allow(clippy::new_without_default)] // Always made for a purpose.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `bits`. The caller must queue the work item afterwards.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn raise(&self, bits: u32) {
        let mut old = self.0.load(Relaxed);
        while let Err(now) = self.0.cmpxchg(old, old | bits, Full) {
            old = now;
        }
    }

    /// Takes the events; effects that precede their [`raise`](Self::raise) are visible to the
    /// caller.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn take(&self) -> u32 {
        self.0.xchg(0, Full)
    }
}
