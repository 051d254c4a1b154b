// SPDX-License-Identifier: GPL-2.0
//! When to ask again before the acknowledgement timer expires.
//!
//! The timer is coarse, milliseconds at least, and if the last packet of a burst or its
//! acknowledgement gets lost nothing else tells. So the round trip time is measured, and after a
//! few of them without any sign of the peer the last packet is sent once more: a duplicate is
//! always legal, and the answer to it says what is missing (compare RFC 8985, 7). This neither
//! uses up a retry nor counts as loss.

use crate::ids::Psn;

/// Least wait before asking again, in nanoseconds.
const MIN_WAIT_NS: u64 = 500_000;

/// Wait before the first round trip has been measured, in nanoseconds.
const FIRST_WAIT_NS: u64 = 2_000_000;

/// Questions without progress in between; after them it is up to the timer.
const MAX_PROBES: u8 = 2;

/// Measures round trips and decides when to ask again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prober {
    /// Smoothed round trip time and its deviation; 0 before the first measurement.
    mean_ns: u64,
    deviation_ns: u64,
    /// Shortest round trip so far; 0 before the first that was measured beyond doubt.
    least_ns: u64,
    /// What was sent has been sent again before the first measurement.
    doubtful: bool,
    /// The latest measurement.
    latest_ns: u64,
    /// Packet whose answer is being waited for, and when it was sent.
    timed: Option<(Psn, u64)>,
    asked: u8,
    /// When to ask.
    pub(super) at: Option<u64>,
}

impl Prober {
    pub(super) const fn new() -> Self {
        Self {
            mean_ns: 0,
            deviation_ns: 0,
            least_ns: 0,
            doubtful: false,
            latest_ns: 0,
            timed: None,
            asked: 0,
            at: None,
        }
    }

    /// Smoothed round trip time in nanoseconds; `None` before the first measurement.
    pub(super) fn round_trip(&self) -> Option<u64> {
        Some(self.mean_ns).filter(|mean| *mean != 0)
    }

    /// Shortest round trip time measured, in nanoseconds; 0 before the first measurement.
    pub(super) fn least_round_trip(&self) -> u64 {
        self.least_ns
    }

    /// The round trip time as it is now: it grows with a queue at once and shrinks slowly.
    pub(super) fn recent(&self) -> Option<u64> {
        self.round_trip().map(|mean| mean.max(self.latest_ns))
    }

    /// A packet that will be answered was sent for the first time.
    #[inline]
    pub(super) fn on_request_sent(&mut self, psn: Psn, now: u64) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// Everything before `una` is answered now.
    #[inline]
    pub(super) fn on_progress(&mut self, una: Psn, now: u64) {
        self.asked = 0;
        let Some((psn, sent)) = self.timed else {
            return;
        };
        if !psn.is_before(una) {
            return;
        }
        self.timed = None;
        let sample = now.saturating_sub(sent);
        let doubtful = core::mem::take(&mut self.doubtful);
        if !doubtful && (self.least_ns == 0 || sample < self.least_ns) {
            self.least_ns = sample.max(1);
        }
        self.latest_ns = sample;
        if self.mean_ns == 0 {
            self.mean_ns = sample.max(1);
            self.deviation_ns = sample.wrapping_shr(1);
            return;
        }
        // The weights of RFC 6298.
        let error = self.mean_ns.abs_diff(sample);
        let keep = |old: u64, shift: u32| old.saturating_sub(old.wrapping_shr(shift));
        self.deviation_ns = keep(self.deviation_ns, 2).saturating_add(error.wrapping_shr(2));
        self.mean_ns = keep(self.mean_ns, 3)
            .saturating_add(sample.wrapping_shr(3))
            .max(1);
    }

    /// Something is sent again: its answer would say nothing about the time it took, but that there is none yet
    /// says that a round trip takes no less.
    #[inline]
    pub(super) fn on_repeat(&mut self, now: u64) {
        self.give_up(now);
        self.doubtful = false;
    }

    /// The answer to the packet that is timed will say nothing. But it takes at least so long.
    fn give_up(&mut self, now: u64) {
        if let Some((_, sent)) = self.timed.take() {
            self.latest_ns = self.latest_ns.max(now.saturating_sub(sent));
        }
    }

    /// Starts the wait anew, or ends it if nothing is outstanding.
    #[inline]
    pub(super) fn rearm(&mut self, now: u64, outstanding: bool) {
        self.at = None;
        if outstanding && self.asked < MAX_PROBES {
            let usual = self
                .mean_ns
                .saturating_add(self.deviation_ns.saturating_mul(4))
                .max(self.latest_ns);
            let least = if self.mean_ns == 0 {
                FIRST_WAIT_NS
            } else {
                MIN_WAIT_NS
            };
            let wait = usual.saturating_mul(2).max(least);
            self.at = Some(now.saturating_add(wait.wrapping_shl(u32::from(self.asked))));
        }
    }

    /// True if it is time to ask; the wait starts anew.
    pub(super) fn expired(&mut self, now: u64) -> bool {
        if self.at.is_none_or(|at| at > now) {
            return false;
        }
        self.asked = self.asked.saturating_add(1);
        // The answer may be one to the question. As long as nothing else is known an estimate that
        // is too high is better than to go on asking a peer that is slow.
        if self.mean_ns != 0 {
            self.give_up(now);
        }
        self.doubtful = self.timed.is_some();
        self.rearm(now, true);
        true
    }
}
