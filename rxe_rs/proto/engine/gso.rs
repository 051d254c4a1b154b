// SPDX-License-Identifier: GPL-2.0
//! GSO fallback: detects devices that damage all but the first packet of a GSO batch.
//!
//! Packets sent in one GSO buffer, a GSO batch, get their IP headers from the device that segments
//! it. The ICRC covers the IPv4 identification and was computed for incrementing identifications; a
//! device that gives all segments the same one damages all but the first, and the connection would
//! progress by one packet per round trip.
//!
//! The loss of the second packet of one batch proves little: under random loss any packet may be
//! lost. But no working device loses the second packet of *every* batch. So one batch at a time is
//! tracked until the fate of its second packet is known. If it arrived, the device works, and the
//! score is reset. If the first one arrived and the second one did not, the score grows; twelve
//! times in a row are enough.
//!
//! Other devices take a batch for a datagram to be fragmented, as the adapter igb that QEMU
//! emulates does. No packet of it arrives, which proves less, because a queue that is full may drop
//! a whole batch, too: 30 batches in a row have to be lost while single packets arrive. Random loss
//! of 20 per cent of all packets has the effect of such a device once in 30 million batches, of 5
//! per cent once in 2e15.
//!
//! A connection that has reached the score sends single packets for some time, then tries GSO
//! again. After an acknowledgement timeout it also sends single packets, until the next
//! acknowledgement: if the batch were all that is in flight, no later packet would show which ones
//! are missing, and the same batch would be retransmitted until the retries are exhausted. So it
//! does when a second batch in a row is lost as a whole, for the same reason: only what is sent
//! singly makes progress. UD and UC have no acknowledgements and no fallback. Nor do they profit
//! from that of other connections of the device: a peer that pretends to receive no batches would
//! otherwise slow down strangers.

use super::requester::MAX_PSN_SPAN;
use crate::ids::Psn;
use crate::time::Instant;

/// Score at which GSO is disabled.
const FALLBACK_SCORE: u8 = 60;

/// Score when GSO is tried again: the next fallback needs less.
const RETRY_SCORE: u8 = FALLBACK_SCORE - 3 * SCORE_LOST;

/// Score of a second packet that is known to be lost.
const SCORE_LOST: u8 = 5;

/// Score of a second packet without an acknowledgement for some round trips, for which the
/// acknowledgement may be lost instead, and of a batch whose first packet is lost as well.
const SCORE_UNACKED: u8 = 2;

/// Response packets that are sent singly after a second batch in a row was lost as a whole.
const SINGLE_RESPONSES: u8 = 16;

/// After this many packets that were not sent in a batch, losses have other reasons.
const MAX_SINGLES: u8 = 16;

/// Duration of the first fallback, in nanoseconds.
const MIN_FALLBACK_NS: u64 = 60_000_000_000;

/// Maximum duration of a fallback: each further one is twice as long.
const MAX_FALLBACK_NS: u64 = 64 * MIN_FALLBACK_NS;

/// GSO state of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct GsoPolicy {
    requests: BatchTracker,
    responses: BatchTracker,
    /// Acknowledgements that follow requests in their batch, by the PSN that they acknowledge.
    acks: BatchTracker,
    /// New requests for responses since the tracked batch of responses was sent.
    new_requests: u8,
    /// Evidence that a device damages the packets, up to [`FALLBACK_SCORE`].
    score: u8,
    /// Packets that were sent singly, or first in their batch, since the last one that was not.
    singles: u8,
    /// When GSO is tried again.
    resume: Option<Instant>,
    /// Length of the next fallback.
    fallback_ns: u64,
    /// No acknowledgement has arrived since the acknowledgement timer expired, or since a second
    /// batch in a row was lost as a whole.
    no_progress: bool,
    /// So many response packets are still to be sent singly.
    single_responses: u8,
    /// GSO is allowed in this round.
    allowed: bool,
}

/// The tracked batch of requests, of responses or of a request and an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct BatchTracker {
    /// PSN of the second packet of the tracked batch.
    second: Option<Psn>,
    /// Packets before this PSN have also been sent singly: their arrival proves nothing.
    single_before: Option<Psn>,
}

impl BatchTracker {
    const fn new() -> Self {
        Self {
            second: None,
            single_before: None,
        }
    }

    /// The packet `psn` was sent as segment `index` of its batch. If it is the second one and no
    /// batch is tracked, tracking starts; true in this case. Tracking ends if the second packet is
    /// retransmitted singly.
    #[inline]
    fn on_sent(&mut self, psn: Psn, index: u32, allowed: bool) -> bool {
        if !allowed {
            self.on_sent_single(psn);
            return false;
        }
        if self.single_before.is_some_and(|end| is_long_past(end, psn)) {
            self.single_before = None;
        }
        // Nothing else may end the tracking of an acknowledgement for as long.
        self.second = self.second.filter(|second| !is_long_past(*second, psn));
        match self.second {
            Some(second) if second == psn && index != 1 => self.second = None,
            None if index == 1 => {
                if self.single_before.is_some_and(|end| psn.is_before(end)) {
                    return false;
                }
                self.single_before = None;
                self.second = Some(psn);
                return true;
            }
            _ => {}
        }
        false
    }

    fn on_sent_single(&mut self, psn: Psn) {
        self.second = None;
        if self.single_before.is_none_or(|end| !psn.is_before(end)) {
            self.single_before = Some(psn.next());
        }
    }
}

/// True if no packet before `end` is in flight any more when `psn` is sent. After half of all PSNs
/// `end` would seem to be ahead again.
fn is_long_past(end: Psn, psn: Psn) -> bool {
    u32::try_from(psn.delta(end)).is_ok_and(|passed| passed >= MAX_PSN_SPAN)
}

impl GsoPolicy {
    pub(super) const fn new() -> Self {
        Self {
            requests: BatchTracker::new(),
            responses: BatchTracker::new(),
            acks: BatchTracker::new(),
            new_requests: 0,
            score: 0,
            singles: MAX_SINGLES,
            resume: None,
            fallback_ns: MIN_FALLBACK_NS,
            no_progress: false,
            single_responses: 0,
            allowed: true,
        }
    }

    /// True if GSO may be used in this round.
    #[inline]
    pub(super) fn is_allowed(&mut self, now: Instant) -> bool {
        if self.resume.is_some_and(|at| at <= now) {
            self.resume = None;
        }
        self.allowed = self.resume.is_none() && !self.no_progress && self.single_responses == 0;
        self.allowed
    }

    /// The request packet `psn` was sent as segment `index` of its batch.
    #[inline]
    pub(super) fn on_request(&mut self, psn: Psn, index: u32) {
        self.note_index(index);
        self.requests.on_sent(psn, index, self.allowed);
    }

    /// The READ response packet `psn` was sent as segment `index` of its batch.
    #[inline]
    pub(super) fn on_response(&mut self, psn: Psn, index: u32) {
        self.note_index(index);
        self.single_responses = self.single_responses.saturating_sub(1);
        if self.responses.on_sent(psn, index, self.allowed) {
            self.new_requests = 0;
        }
    }

    /// An acknowledgement of all packets up to `psn` was sent as segment `index` of its batch.
    #[inline]
    pub(super) fn on_ack(&mut self, psn: Psn, index: u32) {
        self.acks.on_sent(psn, index, self.allowed);
    }

    /// The peer has acknowledged all request packets before `una`.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, una: Psn) {
        self.no_progress = false;
        if self
            .requests
            .second
            .is_some_and(|second| second.is_before(una))
        {
            self.requests.second = None;
            self.reset_score();
        }
    }

    #[inline]
    fn note_index(&mut self, index: u32) {
        self.singles = match index {
            0 => self.singles.saturating_add(1),
            _ => 0,
        };
    }

    /// True if batches are sent, and the last one that was tracked lost its second packet, or the
    /// last two were lost as a whole. As long as that is so the peer is to keep nothing: where all
    /// but the first packet of each batch is damaged, it would have gaps that hide the tracked
    /// packet.
    #[inline]
    pub(super) fn is_suspect(&self) -> bool {
        self.score > SCORE_UNACKED && self.resume.is_none() && self.singles < MAX_SINGLES
    }

    /// Go-back-N from the lost request packet `from`; everything before has arrived. True if GSO is
    /// disabled.
    pub(super) fn on_go_back(&mut self, now: Instant, from: Psn) -> bool {
        match self.requests.second.take() {
            Some(second) if second == from => self.add_score(now, SCORE_LOST),
            Some(second) if second == from.next() => {
                self.no_progress |= self.score > 0;
                self.add_score(now, SCORE_UNACKED)
            }
            _ => false,
        }
    }

    /// The peer misses the response packet `psn`; `second` is that of the tracked batch. True if
    /// GSO is disabled.
    fn on_missing_response(&mut self, now: Instant, second: Psn, psn: Psn) -> bool {
        if second == psn {
            return self.add_score(now, SCORE_LOST);
        }
        if second != psn.next() {
            return false;
        }
        if self.score > 0 {
            self.single_responses = SINGLE_RESPONSES;
        }
        self.add_score(now, SCORE_UNACKED)
    }

    /// The acknowledgement timer expired: go-back-N from `una`, the oldest packet in flight. True
    /// if GSO is disabled.
    pub(super) fn on_timeout(&mut self, now: Instant, una: Psn) -> bool {
        self.no_progress = true;
        match self.requests.second {
            Some(second) if second == una.next() => {
                self.requests.second = None;
                self.add_score(now, SCORE_UNACKED)
            }
            _ => self.on_go_back(now, una),
        }
    }

    /// A probe retransmits `last`, the newest packet in flight; `una` is the oldest. True if GSO is
    /// disabled.
    pub(super) fn on_probe(&mut self, now: Instant, una: Psn, last: Psn) -> bool {
        if self.requests.second != Some(last) {
            return false;
        }
        self.requests.second = None;
        // Only this batch was in flight.
        una.next() == last && self.add_score(now, SCORE_UNACKED)
    }

    /// A duplicate of the SEND or WRITE packet `psn` arrived: the peer has not received its
    /// acknowledgement. True if GSO is disabled.
    pub(super) fn on_duplicate(&mut self, now: Instant, psn: Psn) -> bool {
        match self.acks.second {
            Some(second) if second == psn => {
                self.acks.second = None;
                self.add_score(now, SCORE_UNACKED)
            }
            // The peer has received what acknowledged the packets before.
            Some(second) if second.is_before(psn) => {
                self.acks.second = None;
                self.reset_score();
                false
            }
            _ => false,
        }
    }

    /// A duplicate READ requests data from `psn` on; everything before has arrived. True if GSO is
    /// disabled.
    pub(super) fn on_duplicate_request(&mut self, now: Instant, psn: Psn) -> bool {
        match self.responses.second.take() {
            Some(second) if second.is_before(psn) => {
                self.reset_score();
                false
            }
            Some(second) => self.on_missing_response(now, second, psn),
            None => false,
        }
    }

    /// A duplicate request for `count` response packets from `psn` on arrived, which the peer
    /// misses; it may miss others before them. True if GSO is disabled.
    pub(super) fn on_missing_responses(&mut self, now: Instant, psn: Psn, count: u32) -> bool {
        let Some(second) = self.responses.second else {
            return false;
        };
        if second.is_before(psn) || !second.is_before(psn.wrapping_add(count)) {
            return false;
        }
        self.responses.second = None;
        self.on_missing_response(now, second, psn)
    }

    /// A new request for a response arrived, of which the peer may have `limit` outstanding.
    pub(super) fn on_new_request(&mut self, limit: u8) {
        if self.responses.second.is_none() {
            return;
        }
        self.new_requests = self.new_requests.saturating_add(1);
        if self.new_requests >= limit {
            // The peer has received the earlier responses.
            self.responses.second = None;
            self.reset_score();
        }
    }

    /// The second packet of a batch has arrived.
    fn reset_score(&mut self) {
        self.score = 0;
        self.fallback_ns = MIN_FALLBACK_NS;
    }

    fn add_score(&mut self, now: Instant, weight: u8) -> bool {
        self.score = self.score.saturating_add(weight);
        if self.score < FALLBACK_SCORE {
            return false;
        }
        self.score = RETRY_SCORE;
        self.requests.second = None;
        self.responses.second = None;
        self.acks.second = None;
        self.resume = Some(now.saturating_add(self.fallback_ns));
        self.fallback_ns = self.fallback_ns.saturating_mul(2).min(MAX_FALLBACK_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::ZERO;

    /// Sends request batches with random loss; returns the number of false fallbacks.
    fn false_fallbacks(loss: f64, batches: u32) -> u32 {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut state, mut fallbacks) = (GsoPolicy::new(), 0);
        for _ in 0..batches {
            state.on_request(Psn::new(2), 1);
            let first = rng.f64() >= loss;
            let second = rng.f64() >= loss;
            fallbacks += u32::from(match (first, second) {
                (true, true) => {
                    state.on_acknowledged(Psn::new(3));
                    false
                }
                (true, false) => state.on_go_back(BEGIN, Psn::new(2)),
                (false, _) => state.on_go_back(BEGIN, Psn::new(1)),
            });
        }
        fallbacks
    }

    #[test]
    fn random_loss_causes_no_fallback() {
        let packets = if cfg!(miri) { 5000 } else { 5_000_000 };
        for loss in [0.0, 0.01, 0.05, 0.2] {
            assert_eq!(false_fallbacks(loss, packets), 0, "{loss}");
        }
    }

    /// Batches that are lost as a whole, while something else shows that. Two in a row may be a
    /// coincidence, but what follows them is sent singly until it is acknowledged.
    #[test]
    fn thirty_lost_batches_cause_fallback() {
        let mut state = GsoPolicy::new();
        for count in 1..=30 {
            let first = Psn::new(100 * count);
            assert!(state.is_allowed(BEGIN), "{count}");
            state.on_request(first, 0);
            state.on_request(first.next(), 1);
            assert_eq!(state.on_go_back(BEGIN, first), count == 30);
            assert_eq!(state.is_allowed(BEGIN), count == 1, "{count}");
            assert_eq!(state.is_suspect(), count > 1 && count < 30, "{count}");
            state.on_request(first, 0);
            state.on_acknowledged(first.next());
        }
        let mut state = GsoPolicy::new();
        for count in 1..=30 {
            let first = Psn::new(100 * count);
            assert!(state.is_allowed(BEGIN), "{count}");
            state.on_response(first, 0);
            state.on_response(first.next(), 1);
            assert_eq!(state.on_duplicate_request(BEGIN, first), count == 30);
            assert_eq!(state.is_allowed(BEGIN), count == 1, "{count}");
            for at in 0..16 {
                state.on_response(first.wrapping_add(at), 0);
            }
        }
        // One batch that arrives is enough.
        let mut state = GsoPolicy::new();
        for count in 1..=29 {
            state.on_request(Psn::new(100 * count), 1);
            assert!(!state.on_go_back(BEGIN, Psn::new(100 * count - 1)));
        }
        state.on_request(Psn::new(9000), 1);
        state.on_acknowledged(Psn::new(9001));
        assert_eq!((state.score, state.is_suspect()), (0, false));
    }

    #[test]
    fn twelve_batches_cause_fallback() {
        let mut state = GsoPolicy::new();
        for count in 1..=12 {
            assert!(state.is_allowed(BEGIN));
            state.on_request(Psn::new(count), 1);
            assert_eq!(state.on_go_back(BEGIN, Psn::new(count)), count == 12);
        }
        assert!(!state.is_allowed(BEGIN + MIN_FALLBACK_NS - 1));
        assert!(state.is_allowed(BEGIN + MIN_FALLBACK_NS));
        // After a retry three are enough.
        for count in 1..=3 {
            state.on_request(Psn::new(count), 1);
            assert_eq!(state.on_go_back(BEGIN, Psn::new(count)), count == 3);
        }
        assert!(!state.is_allowed(BEGIN + 2 * MIN_FALLBACK_NS - 1));
        assert!(state.is_allowed(BEGIN + 2 * MIN_FALLBACK_NS));
    }

    /// A packet that is retransmitted singly proves nothing about the batch.
    #[test]
    fn retransmitted_singly() {
        let mut state = GsoPolicy::new();
        for _ in 0..100 {
            state.on_request(Psn::new(2), 1);
            state.on_request(Psn::new(2), 0);
            assert!(!state.on_go_back(BEGIN, Psn::new(2)));
        }
        for _ in 0..11 {
            state.on_request(Psn::new(2), 1);
            state.on_go_back(BEGIN, Psn::new(2));
        }
        state.on_request(Psn::new(2), 1);
        state.on_request(Psn::new(2), 0);
        state.on_acknowledged(Psn::new(3));
        state.on_request(Psn::new(4), 1);
        assert!(state.on_go_back(BEGIN, Psn::new(4)));
    }

    /// A batch is tracked although half of all PSNs were sent singly before it.
    #[test]
    fn singly_for_half_of_all_psns() {
        let mut state = GsoPolicy::new();
        assert!(!state.on_timeout(BEGIN, Psn::new(1)));
        assert!(!state.is_allowed(BEGIN));
        state.on_request(Psn::new(1), 0);
        state.on_acknowledged(Psn::new(2));
        assert!(state.is_allowed(BEGIN));
        for n in 0..5 {
            state.on_request(Psn::new(2 + (n << 21)), 0);
        }
        let psn = Psn::new(3 + (1 << 23));
        state.on_request(psn, 1);
        state.on_go_back(BEGIN, psn);
        assert_eq!(state.score, SCORE_LOST);
    }

    /// The first acknowledgement that followed a reply arrived, and nothing said so. Half of all
    /// PSNs later the path damages each that does.
    #[test]
    fn damaged_acknowledgements_half_of_all_psns_later() {
        let mut state = GsoPolicy::new();
        for n in 0..4 {
            state.on_ack(Psn::new(5 + (n << 21)), 1);
        }
        let first = 5 + (1 << 23) + 100;
        let damaged = (first..first + 30).map(Psn::new).filter(|psn| {
            state.on_ack(*psn, 1);
            state.on_duplicate(BEGIN, *psn)
        });
        assert_eq!(damaged.count(), 1);
    }

    /// New requests of the peer show that it has received earlier responses.
    #[test]
    fn responses() {
        let mut state = GsoPolicy::new();
        for count in 1..=11 {
            state.on_response(Psn::new(2), 1);
            state.on_new_request(2);
            assert!(!state.on_duplicate_request(BEGIN, Psn::new(2)), "{count}");
        }
        state.on_response(Psn::new(2), 1);
        state.on_new_request(2);
        state.on_new_request(2);
        assert_eq!(state.score, 0);
        state.on_response(Psn::new(2), 1);
        assert!(!state.on_duplicate_request(BEGIN, Psn::new(2)));
        state.on_response(Psn::new(2), 1);
        assert!(!state.on_duplicate_request(BEGIN, Psn::new(3)));
        assert_eq!(state.score, 0);
    }

    #[test]
    fn extreme_inputs() {
        let mut state = GsoPolicy::new();
        for now in [BEGIN, Instant::MAX, BEGIN + 5] {
            for _ in 0..1000 {
                state.on_request(Psn::new(0xff_ffff), u32::MAX);
                state.on_request(Psn::new(0xff_ffff), 1);
                state.on_probe(now, Psn::new(0xff_fffe), Psn::new(0xff_ffff));
                state.on_request(Psn::new(0), 1);
                state.on_timeout(now, Psn::new(0xff_ffff));
            }
            assert!(!state.is_allowed(now) || now == Instant::MAX);
        }
    }
}
