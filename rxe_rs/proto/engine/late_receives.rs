// SPDX-License-Identifier: GPL-2.0
//! Receive requests that are posted to a queue pair in the error state.

use crate::time::Instant;

/// Nanoseconds between the failure of a QP and the first look at its receive queue.
const FIRST_LOOK_NS: u64 = 1_000_000;

/// Where the receive requests of a QP come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveQueue {
    /// A receive queue of its own, whose owner calls
    /// [`poll_transmit`](super::qp::Qp::poll_transmit) after a post in ERR.
    Announced,
    /// A receive queue of its own, to which a process posts without calling the driver. In ERR the
    /// QP looks at it from time to time.
    Unannounced,
    /// A shared receive queue, which is not flushed when the QP enters ERR.
    Shared,
}

/// When a QP in ERR looks at a receive queue to which requests are posted without a call, and
/// which it has to flush (IBTA 10.3.1).
///
/// From one look to the next passes as much time as since the failure. So a request that is posted
/// soon after the failure, for which the process waits mostly, is flushed soon, and a QP that stays
/// in ERR for ever causes few looks.
#[derive(Debug, Default)]
pub(super) struct LateReceives {
    failed_at: Option<Instant>,
    next_look: Option<Instant>,
}

impl LateReceives {
    /// The QP is in ERR, and has looked at its receive queue.
    pub(super) fn on_look(&mut self, now: Instant) {
        let failed_at = *self.failed_at.get_or_insert(now);
        let gap = now.ns_since(failed_at).max(FIRST_LOOK_NS);
        self.next_look = Some(now.saturating_add(gap));
    }

    /// Time has passed; a look that is due follows.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.next_look.is_some_and(|at| at <= now) {
            self.next_look = None;
        }
    }

    /// When to look.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next_look
    }
}
