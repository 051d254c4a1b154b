// SPDX-License-Identifier: GPL-2.0
//! How long requests wait for room in the completion queue of a process.
//!
//! A process that polls by `ibv_next_poll` publishes its consumer index in `ibv_end_poll`, and may
//! post a request for each completion before. If it is not scheduled in between, or its requests
//! complete so fast that it never finds the end of the completions, its queue looks full although
//! it has left room for everything that it has posted. So requests that would find no room wait,
//! those that it has posted as well as those of its peers. Only if the process consumes nothing for
//! [`WAIT_NS`] the queue overflows.
//!
//! What is under way already cannot wait: requests in flight of several queue pairs, messages that
//! have taken a receive request, and requests that are flushed. For these the ring has [`spare`]
//! elements beyond what the process has been granted. A queue pair counts only its own requests in
//! flight. So several that have one completion queue may each take the same room while it is
//! crowded, and if their requests are then more than the spare elements, it overflows: to count
//! what all of them have in flight, each request would have to change the memory that they share.

use crate::time::Instant;

/// Nanoseconds for which requests wait at most while the process consumes nothing: long for a
/// process that is ready to run, and less than most peers need to take a connection for lost.
pub const WAIT_NS: u64 = 250_000_000;

/// Nanoseconds between the first two looks at the queue, and the most between two of them. In
/// between they double: a process that consumes nothing causes few looks.
const LOOK_NS: (u64, u64) = (50_000, 10_000_000);

/// Returns how many elements more than `granted` the ring of a process has.
///
/// A process that has left room for all that it has posted posts at most `granted` requests. While
/// its queue is [crowded](is_crowded), what is posted waits if it has to; before, not more than
/// half of the queue can be completions that it has taken and not published. So half as much more
/// is enough for everything that was under way then.
///
/// # Examples
///
/// ```
/// use rxe_proto::engine::room::{is_crowded, spare};
///
/// for granted in 1..100 {
///     // All that was posted completes after the last moment at which nothing had to wait.
///     let held = (0..=granted).filter(|held| !is_crowded(*held, granted)).max();
///     assert!(held.unwrap() + granted <= granted + spare(granted));
/// }
/// ```
pub const fn spare(granted: u32) -> u32 {
    granted.div_ceil(2)
}

/// Returns true if a queue that holds `held` completions, of at most `granted`, has to be asked
/// whether a request finds room.
pub const fn is_crowded(held: u32, granted: u32) -> bool {
    held > granted / 2
}

/// What a request finds that is about to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Room for so many completions, at least one. [`u32::MAX`] as well if the process has consumed
    /// nothing for [`WAIT_NS`].
    For(u32),
    /// None: look again then.
    WaitUntil(Instant),
}

/// A time without room.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    begin: Instant,
    /// When the consumer index last moved.
    moved: Instant,
    /// The consumer index.
    index: u32,
    /// Requests have waited for long enough.
    over: bool,
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
    /// `None` if requests have waited for long enough.
    pub fn until(&mut self, now: Instant, index: u32) -> Option<Instant> {
        let shortage = self.shortage.get_or_insert(Shortage {
            begin: now,
            moved: now,
            index,
            over: false,
        });
        if shortage.index != index {
            (shortage.moved, shortage.index) = (now, index);
        }
        shortage.over = now.ns_since(shortage.moved) >= WAIT_NS;
        if shortage.over {
            return None;
        }
        // A process that moves its index without end does not make the looks more frequent.
        let gap = now.ns_since(shortage.begin).clamp(LOOK_NS.0, LOOK_NS.1);
        let next = now.saturating_add(gap);
        Some(next.min(shortage.moved.saturating_add(WAIT_NS)))
    }

    /// Returns true if requests have waited for long enough, and the process, which has published
    /// `index`, has consumed nothing since: a completion beyond what it has been granted is lost.
    pub fn is_over(&self, index: u32) -> bool {
        self.shortage
            .is_some_and(|shortage| shortage.over && shortage.index == index)
    }

    /// The queue has room.
    pub fn end(&mut self) {
        self.shortage = None;
    }
}
