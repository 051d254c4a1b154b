// SPDX-License-Identifier: GPL-2.0
//! Whether several queue pairs of a device transmit: one that does so alone may fill the queues of
//! the network stack, one among others must not, because their packets would wait behind its own.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};
use rxe_proto::time::Instant;

/// A device counts as shared for so many nanoseconds if the QP that transmits has changed twice
/// within as many: long enough for a QP that sends some hundred messages in a second, and short
/// enough for a transfer to be alone again soon. A single change is no competition: a QP begins
/// after another one has ended.
const WINDOW_NS: u64 = 10_000_000;

/// The last transmissions of a device. Approximate, because several CPUs update it.
pub(crate) struct Senders {
    /// Number of the QP that transmitted last.
    last: Atomic<u32>,
    /// Time in nanoseconds at which it did after another one.
    changed: Atomic<u64>,
    /// Time until which the device counts as shared, in nanoseconds.
    shared_until: Atomic<u64>,
}

impl Senders {
    /// Creates the state of a device of which no QP has transmitted yet.
    pub(crate) fn new() -> Self {
        Self {
            last: Atomic::new(0),
            changed: Atomic::new(0),
            shared_until: Atomic::new(0),
        }
    }

    /// Records that QP `qpn` transmits at time `now`; returns true if it shares the device with
    /// others.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub(crate) fn note(&self, qpn: u32, now: Instant) -> bool {
        if self.last.load(Relaxed) != qpn {
            self.last.store(qpn, Relaxed);
            let changed = Instant::from_ns(self.changed.load(Relaxed));
            self.changed.store(now.as_ns(), Relaxed);
            if now < changed.saturating_add(WINDOW_NS) {
                let until = now.saturating_add(WINDOW_NS);
                self.shared_until.store(until.as_ns(), Relaxed);
                return true;
            }
        }
        now < Instant::from_ns(self.shared_until.load(Relaxed))
    }
}
