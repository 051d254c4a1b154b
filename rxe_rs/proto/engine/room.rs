// SPDX-License-Identifier: GPL-2.0
//! How long messages wait for room in the completion queue of a process.
//!
//! A process that polls by `ibv_next_poll` publishes its consumer index in `ibv_end_poll`, and may
//! post a receive request for each completion before. If it is not scheduled in between, its queue
//! looks full although it has left room for everything that it has posted. So a message that finds
//! no room waits. Only if the process consumes nothing for [`WAIT_NS`] the queue overflows.

use crate::time::Instant;

/// Nanoseconds for which messages wait at most while the process consumes nothing: long for a
/// process that is ready to run, and less than most peers need to take a connection for lost.
pub const WAIT_NS: u64 = 250_000_000;

/// Nanoseconds between the first two looks at the queue, and the most between two of them. In
/// between they double.
const LOOK_NS: (u64, u64) = (50_000, 10_000_000);

/// Returns when to look at a queue again that something has waited for since `waited_ns` before
/// `now`: a process that consumes nothing causes few looks.
pub fn next_look(now: Instant, waited_ns: u64) -> Instant {
    now.saturating_add(waited_ns.clamp(LOOK_NS.0, LOOK_NS.1))
}

/// A time without room.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    begin: Instant,
    /// When the consumer index last moved.
    moved: Instant,
    /// The consumer index.
    index: u32,
}

/// How long a completion queue has had no room: it is in error only if a completion finds none
/// (IBTA 11.6.3). The caller holds the lock of the CQ.
///
/// # Examples
///
/// ```
/// use rxe_proto::engine::room::{RoomWait, WAIT_NS};
/// use rxe_proto::time::Instant;
///
/// let mut wait = RoomWait::default();
/// let start = Instant::ZERO;
/// assert!(wait.until(start, 5).is_some());
/// // The process has consumed a completion, and the queue is full again.
/// let later = start.saturating_add(WAIT_NS);
/// assert!(wait.until(later, 6).is_some());
/// // It has consumed none since.
/// assert_eq!(wait.until(later.saturating_add(WAIT_NS), 6), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct RoomWait {
    shortage: Option<Shortage>,
}

impl RoomWait {
    /// The queue has no room, and the process has published `index`. Returns when to look again;
    /// `None` if messages have waited for long enough.
    pub fn until(&mut self, now: Instant, index: u32) -> Option<Instant> {
        let shortage = self.shortage.get_or_insert(Shortage {
            begin: now,
            moved: now,
            index,
        });
        if shortage.index != index {
            (shortage.moved, shortage.index) = (now, index);
        }
        if now.ns_since(shortage.moved) >= WAIT_NS {
            return None;
        }
        // A process that moves its index without end does not make the looks more frequent.
        let next = next_look(now, now.ns_since(shortage.begin));
        Some(next.min(shortage.moved.saturating_add(WAIT_NS)))
    }

    /// The queue has room.
    pub fn end(&mut self) {
        self.shortage = None;
    }
}
