// SPDX-License-Identifier: GPL-2.0
//! Whether more than the first packet of a train arrives.
//!
//! Packets that leave in one buffer, a train, get their IP headers from the device that cuts it
//! (segmentation offload). The ICRC covers the IPv4 identification, so it was computed for
//! identifications that count up; a device that gives all packets of a train the same one spoils
//! all but the first, and the connection moves by one packet in a round trip for ever.
//!
//! That the second packet of a train is missing says little: under random loss each packet is
//! missing as often. What no working device does is to lose the second packet of *every* train.
//! So one train at a time is watched until it is known what became of its second packet. If it
//! arrived, the device is all right, and all doubt is gone. If the first one arrived and the second one did
//! not, there is more doubt. That a fraction `p` of the packets is lost brings the doubt to its limit
//! with a probability of `p` to the power of 12 per train: 4e-9 at 20 per cent.
//!
//! A connection in such doubt sends its packets one by one for a while, and tries trains again. So does,
//! until the peer is heard, one whose acknowledgement timer has expired: if the train were all that is in flight, nothing
//! behind it would tell which packets are missing, and it would be sent until the retries are used up.
//! Datagrams and UC have no acknowledgements that could tell.

use crate::ids::Psn;

/// Doubt after which no trains are sent.
const FALLBACK_SCORE: u8 = 60;

/// Doubt when trains are tried again: less is needed then.
const RETRY_SCORE: u8 = FALLBACK_SCORE - 3 * SCORE_LOST;

/// What a second packet counts that is known to be missing.
const SCORE_LOST: u8 = 5;

/// What one counts of which nothing has been heard for some round trips: the acknowledgement may
/// be lost just as well.
const SCORE_UNACKED: u8 = 2;

/// How long packets are sent one by one at first, in nanoseconds.
const MIN_FALLBACK_NS: u64 = 60_000_000_000;

/// The same at last: each time that trains do not arrive doubles it.
const MAX_FALLBACK_NS: u64 = 64 * MIN_FALLBACK_NS;

/// What is known of the trains of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct GsoPolicy {
    requests: Direction,
    responses: Direction,
    /// Requests for responses that have come since that train left.
    new_requests: u8,
    score: u8,
    /// When trains are tried again.
    resume: Option<u64>,
    fallback_ns: u64,
    /// The peer has not been heard since a timer expired.
    timed_out: bool,
    /// Trains are sent now.
    allowed: bool,
}

/// What is watched of the trains that go one way.
#[derive(Clone, Copy, Debug)]
struct Direction {
    /// Second packet of the train that is watched.
    second: Option<Psn>,
    /// Packets before this one have been sent without trains: that one of them arrives says nothing.
    single_before: Option<Psn>,
}

impl Direction {
    const fn new() -> Self {
        Self {
            second: None,
            single_before: None,
        }
    }

    /// The packet `psn` was sent behind `index` others of its train. If it is the second one, and no train is watched, that one
    /// is from now on. A train whose second packet is sent again alone is watched no more. True if a new one is watched.
    #[inline]
    fn on_sent(&mut self, psn: Psn, index: u32, allowed: bool) -> bool {
        if !allowed {
            self.on_sent_single(psn);
            return false;
        }
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

impl GsoPolicy {
    pub(super) const fn new() -> Self {
        Self {
            requests: Direction::new(),
            responses: Direction::new(),
            new_requests: 0,
            score: 0,
            resume: None,
            fallback_ns: MIN_FALLBACK_NS,
            timed_out: false,
            allowed: true,
        }
    }

    /// Whether trains may be sent in this turn.
    #[inline]
    pub(super) fn is_allowed(&mut self, now: u64) -> bool {
        if self.resume.is_some_and(|at| at <= now) {
            self.resume = None;
        }
        self.allowed = self.resume.is_none() && !self.timed_out;
        self.allowed
    }

    /// The request packet `psn` was sent, behind `index` others of its train.
    #[inline]
    pub(super) fn on_request(&mut self, psn: Psn, index: u32) {
        self.requests.on_sent(psn, index, self.allowed);
    }

    /// The packet `psn` of a READ response was sent, behind `index` others of its train.
    #[inline]
    pub(super) fn on_response(&mut self, psn: Psn, index: u32) {
        if self.responses.on_sent(psn, index, self.allowed) {
            self.new_requests = 0;
        }
    }

    /// The peer has acknowledged more requests, now all before `una`.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, una: Psn) {
        self.timed_out = false;
        if self
            .requests
            .second
            .is_some_and(|second| second.is_before(una))
        {
            self.requests.second = None;
            self.reset_score();
        }
    }

    /// Requests are sent again from `from` on, which is missing; everything before has arrived. True if trains
    /// are given up.
    pub(super) fn on_go_back(&mut self, now: u64, from: Psn) -> bool {
        match self.requests.second.take() {
            Some(second) if second == from => self.add_score(now, SCORE_LOST),
            _ => false,
        }
    }

    /// Nothing was heard until the timer expired: requests are sent again from `una` on, the oldest in flight. True if
    /// trains are given up.
    pub(super) fn on_timeout(&mut self, now: u64, una: Psn) -> bool {
        self.timed_out = true;
        match self.requests.second {
            Some(second) if second == una.next() => {
                self.requests.second = None;
                self.add_score(now, SCORE_UNACKED)
            }
            _ => self.on_go_back(now, una),
        }
    }

    /// Nothing has been heard since `una` was the oldest packet in flight, and only `last`, the newest, is sent
    /// once more. True if trains are given up.
    pub(super) fn on_probe(&mut self, now: u64, una: Psn, last: Psn) -> bool {
        if self.requests.second != Some(last) {
            return false;
        }
        self.requests.second = None;
        // The train was all that was in flight.
        una.next() == last && self.add_score(now, SCORE_UNACKED)
    }

    /// The peer asks again for a response from `psn` on; everything before has arrived. True if
    /// trains are given up.
    pub(super) fn on_duplicate_request(&mut self, now: u64, psn: Psn) -> bool {
        match self.responses.second.take() {
            Some(second) if second == psn => return self.add_score(now, SCORE_LOST),
            Some(second) if second.is_before(psn) => self.reset_score(),
            _ => {}
        }
        false
    }

    /// The peer asks for a response for the first time, of which it may await `limit` at once.
    pub(super) fn on_new_request(&mut self, limit: u8) {
        if self.responses.second.is_none() {
            return;
        }
        self.new_requests = self.new_requests.saturating_add(1);
        if self.new_requests >= limit {
            // It has what it asked for before.
            self.responses.second = None;
            self.reset_score();
        }
    }

    /// The second packet of a train has arrived.
    fn reset_score(&mut self) {
        self.score = 0;
        self.fallback_ns = MIN_FALLBACK_NS;
    }

    fn add_score(&mut self, now: u64, weight: u8) -> bool {
        self.score = self.score.saturating_add(weight);
        if self.score < FALLBACK_SCORE {
            return false;
        }
        self.score = RETRY_SCORE;
        self.requests.second = None;
        self.responses.second = None;
        self.resume = Some(now.saturating_add(self.fallback_ns));
        self.fallback_ns = self.fallback_ns.saturating_mul(2).min(MAX_FALLBACK_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One train of requests after the other, of which a share of the packets is lost at random: how often
    /// that is taken for a device's doing.
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
                (true, false) => state.on_go_back(0, Psn::new(2)),
                (false, _) => state.on_go_back(0, Psn::new(1)),
            });
        }
        fallbacks
    }

    #[test]
    fn random_loss_causes_no_fallback() {
        for loss in [0.0, 0.01, 0.05, 0.2] {
            assert_eq!(false_fallbacks(loss, 5_000_000), 0, "{loss}");
        }
        // It is lost, always.
        assert!(
            false_fallbacks(1.0, 1000) == 0,
            "the first packets are, too"
        );
    }

    #[test]
    fn twelve_batches_cause_fallback() {
        let mut state = GsoPolicy::new();
        for count in 1..=12 {
            assert!(state.is_allowed(0));
            state.on_request(Psn::new(count), 1);
            assert_eq!(state.on_go_back(0, Psn::new(count)), count == 12);
        }
        assert!(!state.is_allowed(MIN_FALLBACK_NS - 1));
        assert!(state.is_allowed(MIN_FALLBACK_NS));
        // Then three are.
        for count in 1..=3 {
            state.on_request(Psn::new(count), 1);
            assert_eq!(state.on_go_back(0, Psn::new(count)), count == 3);
        }
        assert!(!state.is_allowed(2 * MIN_FALLBACK_NS - 1));
        assert!(state.is_allowed(2 * MIN_FALLBACK_NS));
    }

    /// A packet that is sent again alone says nothing about the train.
    #[test]
    fn retransmitted_singly() {
        let mut state = GsoPolicy::new();
        for _ in 0..100 {
            state.on_request(Psn::new(2), 1);
            state.on_request(Psn::new(2), 0);
            assert!(!state.on_go_back(0, Psn::new(2)));
        }
        for _ in 0..11 {
            state.on_request(Psn::new(2), 1);
            state.on_go_back(0, Psn::new(2));
        }
        state.on_request(Psn::new(2), 1);
        state.on_request(Psn::new(2), 0);
        state.on_acknowledged(Psn::new(3));
        state.on_request(Psn::new(4), 1);
        assert!(state.on_go_back(0, Psn::new(4)));
    }

    /// Of responses the peer shows by what it asks for next that it has them.
    #[test]
    fn responses() {
        let mut state = GsoPolicy::new();
        for count in 1..=11 {
            state.on_response(Psn::new(2), 1);
            state.on_new_request(2);
            assert!(!state.on_duplicate_request(0, Psn::new(2)), "{count}");
        }
        state.on_response(Psn::new(2), 1);
        state.on_new_request(2);
        state.on_new_request(2);
        assert_eq!(state.score, 0);
        state.on_response(Psn::new(2), 1);
        assert!(!state.on_duplicate_request(0, Psn::new(2)));
        state.on_response(Psn::new(2), 1);
        assert!(!state.on_duplicate_request(0, Psn::new(3)));
        assert_eq!(state.score, 0);
    }

    #[test]
    fn extreme_inputs() {
        let mut state = GsoPolicy::new();
        for now in [0, u64::MAX, 5] {
            for _ in 0..1000 {
                state.on_request(Psn::new(0xff_ffff), u32::MAX);
                state.on_request(Psn::new(0xff_ffff), 1);
                state.on_probe(now, Psn::new(0xff_fffe), Psn::new(0xff_ffff));
                state.on_request(Psn::new(0), 1);
                state.on_timeout(now, Psn::new(0xff_ffff));
            }
            assert!(!state.is_allowed(now) || now == u64::MAX);
        }
    }
}
