// SPDX-License-Identifier: GPL-2.0
//! Tail loss probes: when to probe the peer before the acknowledgement timer expires.
//!
//! The timer is coarse, milliseconds at least, and nothing else detects the loss of the last
//! packet of a burst or of its acknowledgement. So the QP measures the round trip time, and after
//! a few round trips without a response retransmits the last packet: a duplicate is always legal,
//! and the response to it shows what is missing (compare RFC 8985, 7). If that has no response
//! either, it retransmits the oldest packet. A probe neither uses a retry nor counts as loss.

use crate::ids::Psn;
use crate::time::Instant;

/// Minimum probe timeout, in nanoseconds.
const MIN_TIMEOUT_NS: u64 = 500_000;

/// The same on a lossy path: up to as many packets after a loss.
const LOSSY_TIMEOUT_NS: u64 = 250_000;
const LOSSY_PACKETS: u32 = 256;

/// Probe timeout before the first round trip sample, in nanoseconds.
const INITIAL_TIMEOUT_NS: u64 = 2_000_000;

/// Maximum number of probes without progress; after them only the acknowledgement timer remains.
const MAX_PROBES: u8 = 2;

/// The same on a lossy path, where probes are lost as well.
const MAX_LOSSY_PROBES: u8 = 6;

/// Measures the round trip time and schedules probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prober {
    /// Smoothed round trip time and its variation (RFC 6298); 0 before the first sample.
    srtt_ns: u64,
    rttvar_ns: u64,
    /// Minimum round trip time so far; 0 before the first unambiguous sample.
    min_rtt_ns: u64,
    /// The timed packet was retransmitted before the first sample.
    ambiguous: bool,
    /// The latest sample.
    latest_rtt_ns: u64,
    /// The timed packet, whose acknowledgement gives the next sample, and when it was sent.
    timed: Option<(Psn, Instant)>,
    /// Probes sent since the last progress.
    probes: u8,
    /// The path is lossy up to this packet.
    lossy_until: Option<Psn>,
    /// When to send the next probe.
    pub(super) deadline: Option<Instant>,
}

impl Prober {
    pub(super) const fn new() -> Self {
        Self {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_rtt_ns: 0,
            ambiguous: false,
            latest_rtt_ns: 0,
            timed: None,
            probes: 0,
            lossy_until: None,
            deadline: None,
        }
    }

    /// Smoothed round trip time in nanoseconds; `None` before the first sample.
    pub(super) fn srtt_ns(&self) -> Option<u64> {
        Some(self.srtt_ns).filter(|srtt| *srtt != 0)
    }

    /// Minimum round trip time in nanoseconds; 0 before the first sample.
    pub(super) fn min_rtt_ns(&self) -> u64 {
        self.min_rtt_ns
    }

    /// The current round trip time in nanoseconds: it grows with a queue at once and shrinks
    /// slowly.
    pub(super) fn current_rtt_ns(&self) -> Option<u64> {
        self.srtt_ns().map(|srtt| srtt.max(self.latest_rtt_ns))
    }

    /// The packet `psn`, which requests an acknowledgement, was sent for the first time.
    #[inline]
    pub(super) fn on_request_sent(&mut self, psn: Psn, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// The peer has acknowledged everything before `una`.
    #[inline]
    pub(super) fn on_progress(&mut self, una: Psn, now: Instant) {
        if self.lossy_until.is_some_and(|end| end.is_before(una)) {
            self.lossy_until = None;
        }
        self.probes = 0;
        let Some((psn, sent)) = self.timed else {
            return;
        };
        if !psn.is_before(una) {
            return;
        }
        self.timed = None;
        let sample = now.ns_since(sent);
        let ambiguous = core::mem::take(&mut self.ambiguous);
        if !ambiguous && (self.min_rtt_ns == 0 || sample < self.min_rtt_ns) {
            self.min_rtt_ns = sample.max(1);
        }
        self.latest_rtt_ns = sample;
        if self.srtt_ns == 0 {
            self.srtt_ns = sample.max(1);
            self.rttvar_ns = sample.wrapping_shr(1);
            return;
        }
        // The weights of RFC 6298.
        let error = self.srtt_ns.abs_diff(sample);
        let decay = |old: u64, shift: u32| old.saturating_sub(old.wrapping_shr(shift));
        self.rttvar_ns = decay(self.rttvar_ns, 2).saturating_add(error.wrapping_shr(2));
        self.srtt_ns = decay(self.srtt_ns, 3)
            .saturating_add(sample.wrapping_shr(3))
            .max(1);
    }

    /// Packets are retransmitted: their acknowledgements give no sample (Karn's algorithm), but a
    /// round trip takes at least as long as the timed packet has been in flight.
    #[inline]
    pub(super) fn on_retransmit(&mut self, now: Instant) {
        self.cancel_sample(now);
        self.ambiguous = false;
    }

    /// The packet `psn` was lost.
    pub(super) fn on_loss(&mut self, psn: Psn) {
        self.lossy_until = Some(psn.wrapping_add(LOSSY_PACKETS));
    }

    /// Cancels the sample of the timed packet and keeps its age as a lower bound.
    fn cancel_sample(&mut self, now: Instant) {
        if let Some((_, sent)) = self.timed.take() {
            self.latest_rtt_ns = self.latest_rtt_ns.max(now.ns_since(sent));
        }
    }

    /// Restarts the probe timer, or stops it if nothing is outstanding.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant, outstanding: bool) {
        self.deadline = None;
        let most_probes = match self.lossy_until {
            Some(_) => MAX_LOSSY_PROBES,
            None => MAX_PROBES,
        };
        if outstanding && self.probes < most_probes {
            let timeout = self
                .srtt_ns
                .saturating_add(self.rttvar_ns.saturating_mul(4))
                .max(self.latest_rtt_ns);
            let least = if self.srtt_ns == 0 {
                INITIAL_TIMEOUT_NS
            } else if self.lossy_until.is_some() {
                LOSSY_TIMEOUT_NS
            } else {
                MIN_TIMEOUT_NS
            };
            let wait = timeout.saturating_mul(2).max(least);
            self.deadline = Some(now.saturating_add(wait.wrapping_shl(u32::from(self.probes))));
        }
    }

    /// True if the probe that is due repeats the oldest packet instead of the last one: each second
    /// does. A peer that has sent an RNR NAK drops all packets but the one that it has refused, and
    /// the NAK, or that packet when it was sent again, may have been lost.
    pub(super) fn repeats_oldest(&self) -> bool {
        self.probes & 1 == 0
    }

    /// True if the probe timer has expired; restarts it.
    pub(super) fn expired(&mut self, now: Instant) -> bool {
        if self.deadline.is_none_or(|at| at > now) {
            return false;
        }
        self.probes = self.probes.saturating_add(1);
        // The acknowledgement may answer the probe. Before the first sample an estimate that is too
        // high is better than more probes to a slow peer.
        if self.srtt_ns != 0 {
            self.cancel_sample(now);
        }
        self.ambiguous = self.timed.is_some();
        self.rearm(now, true);
        true
    }
}
