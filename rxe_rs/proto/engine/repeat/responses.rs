// SPDX-License-Identifier: GPL-2.0
//! Responses that the requester keeps, and which missing ones it requests again.

use super::MAX_AHEAD;
use crate::ids::Psn;

/// What the arrival of a response shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct Arrival {
    /// It has not been kept yet, and may be.
    pub(in crate::engine) new: bool,
    /// Responses before it are lost: they are to be requested.
    pub(in crate::engine) lost: bool,
}

/// Which responses ahead of the expected one are kept, and which missing ones are requested again.
///
/// A missing response is requested as soon as a later one arrives. The peer answers such requests
/// in their order and before all else, so what was requested again is lost again if the answer to a
/// later request arrives, or what follows it a second time.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct KeptResponses {
    /// The expected response: bit n stands for the packet n after it.
    base: Psn,
    /// Those that are kept.
    bits: u64,
    /// Those that have been requested again, and more than once.
    requested: u64,
    repeatedly: u64,
    /// Those that are to be requested in the next transmission round.
    missing: u64,
    /// Those at which a requested part of a response ends, if it is not the end of the response.
    ends: u64,
    /// PSN of the request that was sent next when responses had been requested again.
    requested_at: Psn,
    /// Responses were dropped because they were too far ahead.
    overrun: bool,
}

impl KeptResponses {
    pub(in crate::engine) const fn new() -> Self {
        Self {
            base: Psn::new(0),
            bits: 0,
            requested: 0,
            repeatedly: 0,
            missing: 0,
            ends: 0,
            requested_at: Psn::new(0),
            overrun: false,
        }
    }

    /// True if there is nothing to remember.
    #[inline]
    pub(in crate::engine) fn is_unused(&self) -> bool {
        self.bits | self.requested | self.ends == 0 && !self.overrun
    }

    /// True if responses are kept.
    #[inline]
    pub(in crate::engine) fn keeps_any(&self) -> bool {
        self.bits != 0
    }

    /// True if responses are to be requested.
    #[inline]
    pub(in crate::engine) fn has_missing(&self) -> bool {
        self.missing != 0
    }

    /// The next response is `expected`.
    pub(in crate::engine) fn expect(&mut self, expected: Psn) {
        let moved = u32::try_from(expected.delta(self.base)).unwrap_or(u32::MAX);
        self.base = expected;
        for bits in [
            &mut self.bits,
            &mut self.requested,
            &mut self.repeatedly,
            &mut self.missing,
            &mut self.ends,
        ] {
            *bits = bits.checked_shr(moved).unwrap_or(0);
        }
    }

    /// Bit of the response `psn`; `None` if it is not ahead of the expected one, or too far.
    fn bit(&self, psn: Psn) -> Option<u64> {
        let ahead = u32::try_from(psn.delta(self.base)).ok()?;
        (1..=MAX_AHEAD)
            .contains(&ahead)
            .then(|| 1u64.wrapping_shl(ahead))
    }

    /// The peer has answered everything before `psn`. If that includes a request that was sent
    /// after responses were last requested again, those are lost. Others may still be missing,
    /// because their requests wait for a page.
    pub(in crate::engine) fn on_answered(&mut self, psn: Psn) {
        if self.requested & !self.missing != 0 && self.requested_at.is_before(psn) {
            self.requested &= self.missing;
            self.repeatedly &= self.missing;
        }
    }

    /// Requests in flight are retransmitted from `psn` on: what was requested again was requested
    /// before them.
    pub(in crate::engine) fn on_retransmit(&mut self, psn: Psn) {
        if psn.is_before(self.requested_at) {
            self.requested_at = psn;
        }
    }

    /// The response `psn` of the peer, ahead of the expected one, has arrived.
    pub(in crate::engine) fn arrive(&mut self, psn: Psn) -> Arrival {
        self.on_answered(psn.next());
        let Some(bit) = self.bit(psn) else {
            self.overrun = true;
            let all = 1u64.wrapping_shl(MAX_AHEAD.wrapping_add(1)).wrapping_sub(1);
            let lost = self.note(all & !self.bits & !self.requested);
            return Arrival { new: false, lost };
        };
        let before = bit.wrapping_sub(1) & !self.bits;
        let new = self.bits & bit == 0;
        let lost_again = if !new {
            // The last kept one before it, if any, ends what was requested with it.
            let kept = bit.wrapping_sub(1) & self.bits;
            let through = u64::MAX.checked_shr(kept.leading_zeros()).unwrap_or(0);
            before & !through
        } else if self.requested & bit != 0 {
            before & self.requested & !self.repeatedly
        } else {
            0
        };
        self.missing &= !bit;
        // What has not been requested yet is not lost again.
        let lost_again = lost_again & !self.missing;
        let lost = self.note(lost_again | (before & !self.requested));
        Arrival { new, lost }
    }

    /// The responses `lost` are to be requested; false if there are none.
    fn note(&mut self, lost: u64) -> bool {
        self.repeatedly |= lost & self.requested & !self.missing;
        self.requested |= lost;
        self.missing |= lost;
        lost != 0
    }

    /// The response `psn` has been kept. False if it had been before, or is too far ahead.
    pub(in crate::engine) fn insert(&mut self, psn: Psn) -> bool {
        let bit = self.bit(psn).unwrap_or(0);
        let new = bit & !self.bits != 0;
        self.bits |= bit;
        new
    }

    /// Takes the expected response; `None` if it is not kept.
    pub(in crate::engine) fn take_expected(&mut self) -> Option<Psn> {
        if self.bits & 1 == 0 {
            return None;
        }
        self.bits &= !1;
        Some(self.base)
    }

    /// Notes what is missing before the last one that is kept, `again` also if it has been
    /// requested. False if there is nothing.
    pub(in crate::engine) fn note_missing(&mut self, again: bool) -> bool {
        let through = u64::MAX.checked_shr(self.bits.leading_zeros()).unwrap_or(0);
        let gaps = through & !self.bits;
        self.note(match again {
            true => gaps,
            false => gaps & !self.requested,
        })
    }

    /// Notes what is missing before `upto`, unless it has been requested again. False if there is
    /// nothing, or `upto` is too far ahead.
    pub(in crate::engine) fn note_missing_before(&mut self, upto: Psn) -> bool {
        let gaps = self.bit(upto).map_or(0, |bit| bit.wrapping_sub(1));
        self.note(gaps & !self.bits & !self.requested)
    }

    /// True if the expected response is to be requested.
    pub(in crate::engine) fn misses_expected(&self) -> bool {
        self.missing & 1 != 0
    }

    /// True if the expected response has been requested again.
    pub(in crate::engine) fn has_requested_expected(&self) -> bool {
        self.requested & 1 != 0
    }

    /// Where missing responses begin that are to be requested, and their number.
    pub(in crate::engine) fn missing(&self) -> Option<(Psn, u32)> {
        let first = self.missing.trailing_zeros();
        let run = self.missing.checked_shr(first)?;
        Some((self.base.wrapping_add(first), run.trailing_ones()))
    }

    /// `count` responses from `psn` on have been requested, in a READ that ends before `end`. The
    /// next new request has the PSN `next`.
    pub(in crate::engine) fn on_requested(&mut self, psn: Psn, count: u32, end: Psn, next: Psn) {
        self.requested_at = next;
        let ahead = |psn: Psn| u32::try_from(psn.delta(self.base)).unwrap_or(u64::BITS);
        let below = |bits| 1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1);
        let first = ahead(psn);
        let requested = below(first.saturating_add(count)) & !below(first);
        self.missing &= !requested;
        self.ends |= 1u64.checked_shl(ahead(end.prev())).unwrap_or(0);
    }

    /// True if a requested part of a response ends with the expected packet.
    pub(in crate::engine) fn is_end_of_part(&self, expected: Psn) -> bool {
        let ahead = u32::try_from(expected.delta(self.base)).unwrap_or(u64::BITS);
        self.ends.checked_shr(ahead).unwrap_or(0) & 1 != 0
    }

    /// Forgets what is kept.
    pub(in crate::engine) fn clear(&mut self) {
        self.bits = 0;
        self.overrun = false;
        self.forget_requested();
    }

    /// Nothing is to be requested.
    pub(in crate::engine) fn forget_missing(&mut self) {
        self.missing = 0;
    }

    /// What was requested again is lost.
    pub(in crate::engine) fn forget_requested(&mut self) {
        self.requested = 0;
        self.repeatedly = 0;
        self.missing = 0;
    }

    /// True once if responses were dropped as they were too far ahead, and all that were kept have
    /// been taken.
    pub(in crate::engine) fn lacks_expected(&mut self) -> bool {
        self.overrun && self.bits == 0 && self.requested & 1 == 0 && {
            self.overrun = false;
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(n: u32) -> Psn {
        // Across the wrap.
        Psn::new(0xff_fff0).wrapping_add(n)
    }

    /// The runs of missing responses, which are requested.
    fn requested(kept: &mut KeptResponses, next: u32) -> std::vec::Vec<(Psn, u32)> {
        let mut runs = std::vec::Vec::new();
        while let Some((first, count)) = kept.missing() {
            runs.push((first, count));
            let end = first.wrapping_add(count).next();
            kept.on_requested(first, count, end, psn(next));
        }
        runs
    }

    fn keep(kept: &mut KeptResponses, n: u32) -> Arrival {
        let arrival = kept.arrive(psn(n));
        if arrival.new {
            kept.insert(psn(n));
        }
        arrival
    }

    #[test]
    fn missing_responses_are_requested_at_once() {
        let mut kept = KeptResponses::new();
        assert!(kept.is_unused());
        kept.expect(psn(10));
        let lost = Arrival {
            new: true,
            lost: true,
        };
        let next = Arrival {
            new: true,
            lost: false,
        };
        assert_eq!(keep(&mut kept, 12), lost);
        assert_eq!(keep(&mut kept, 13), next);
        assert_eq!(keep(&mut kept, 16), lost);
        assert_eq!(requested(&mut kept, 40), [(psn(10), 2), (psn(14), 2)]);
        assert_eq!(keep(&mut kept, 17), next);
        assert!(!kept.has_missing());
        assert!(!kept.note_missing(false));
        // The first two arrive, and the kept ones follow.
        kept.expect(psn(12));
        assert_eq!(kept.take_expected(), Some(psn(12)));
        kept.expect(psn(13));
        assert_eq!(kept.take_expected(), Some(psn(13)));
        kept.expect(psn(14));
        assert_eq!(kept.take_expected(), None);
        kept.expect(psn(18));
        assert!(!kept.keeps_any());
    }

    #[test]
    fn responses_lost_again() {
        let again = |arrival: Arrival| arrival.lost;
        let mut kept = KeptResponses::new();
        kept.expect(psn(0));
        keep(&mut kept, 1);
        keep(&mut kept, 4);
        keep(&mut kept, 6);
        let all = [(psn(0), 1), (psn(2), 2), (psn(5), 1)];
        assert_eq!(requested(&mut kept, 40), all);
        // What follows the first one arrives again.
        assert!(again(keep(&mut kept, 1)));
        assert_eq!(requested(&mut kept, 40), all[..1]);
        // The answer to a later request: what was requested twice may still arrive.
        assert!(again(keep(&mut kept, 5)));
        assert_eq!(requested(&mut kept, 40), all[1..2]);
        // A new response shows nothing about them, but the response to a request that was sent
        // later does.
        assert!(!again(keep(&mut kept, 7)));
        assert!(again(keep(&mut kept, 40)));
        let gaps = [(psn(0), 1), (psn(2), 2), (psn(8), 32)];
        assert_eq!(requested(&mut kept, 41), gaps);
        // So does an acknowledgement.
        kept.on_answered(psn(41));
        assert!(!kept.note_missing(false));
        kept.on_answered(psn(42));
        assert!(kept.note_missing(false));
        assert_eq!(requested(&mut kept, 41), gaps);
    }

    /// A request that waits for a page keeps its response missing. That is not lost again by what
    /// arrives meanwhile, and others are.
    #[test]
    fn responses_that_are_not_requested_yet() {
        let mut kept = KeptResponses::new();
        kept.expect(psn(0));
        keep(&mut kept, 1);
        assert!(keep(&mut kept, 3).lost);
        kept.on_requested(psn(0), 1, psn(1), psn(40));
        let waiting = Some((psn(2), 1));
        assert_eq!(kept.missing(), waiting);
        // What follows it arrives again.
        assert!(!keep(&mut kept, 3).lost);
        assert!(!kept.misses_expected());
        // An acknowledgement shows that the other one was lost again.
        kept.on_answered(psn(41));
        assert_eq!(kept.missing(), waiting);
        assert!(kept.note_missing(false) && kept.misses_expected());
        assert_eq!(requested(&mut kept, 50), [(psn(0), 1), (psn(2), 1)]);
        // This was requested once: what follows it arrives again, so that it was lost.
        kept.expect(psn(1));
        assert_eq!(kept.take_expected(), Some(psn(1)));
        kept.expect(psn(2));
        assert!(keep(&mut kept, 3).lost);
        assert_eq!(requested(&mut kept, 50), [(psn(2), 1)]);
    }

    #[test]
    fn responses_too_far_ahead() {
        let mut kept = KeptResponses::new();
        kept.expect(psn(0));
        keep(&mut kept, 1);
        let far = keep(&mut kept, 1000);
        assert!(!far.new && far.lost);
        assert_eq!(requested(&mut kept, 40), [(psn(0), 1), (psn(2), 61)]);
        assert!(!kept.lacks_expected());
        // All that was requested has arrived, the rest is lost.
        kept.expect(psn(63));
        assert!(kept.lacks_expected());
        assert!(!kept.lacks_expected());
        kept.expect(psn(63).wrapping_add(1 << 23));
        kept.clear();
        kept.expect(psn(0));
        assert!(kept.is_unused());
    }

    #[test]
    fn parts_of_a_response() {
        let mut kept = KeptResponses::new();
        kept.expect(psn(0));
        kept.on_requested(psn(2), 3, psn(6), psn(40));
        for n in 0..64 {
            assert_eq!(kept.is_end_of_part(psn(n)), n == 5, "{n}");
        }
        kept.clear();
        kept.expect(psn(5));
        assert!(kept.is_end_of_part(psn(5)));
        kept.expect(psn(6));
        assert!(!kept.is_end_of_part(psn(5)));
    }

    #[test]
    fn extreme_inputs() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut kept = KeptResponses::new();
        for _ in 0..100_000 {
            let near = psn(rng.u32(0..200));
            let at = if rng.u8(..) == 0 {
                Psn::new(rng.u32(..))
            } else {
                near
            };
            match rng.u8(0..9) {
                0 => kept.expect(at),
                1..=4 => {
                    if kept.arrive(at).new {
                        kept.insert(at);
                    }
                }
                5 => drop(kept.take_expected()),
                6 => drop(kept.note_missing(rng.bool())),
                7 => drop(kept.note_missing_before(at)),
                _ => drop(requested(&mut kept, rng.u32(0..200))),
            }
            assert_eq!(kept.missing & kept.bits, 0);
            assert_eq!(kept.missing & !kept.requested, 0);
        }
    }
}
