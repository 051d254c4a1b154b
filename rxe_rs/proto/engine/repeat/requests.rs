// SPDX-License-Identifier: GPL-2.0
//! Requests that the responder keeps, and what it knows of the marks of its peer.

use super::{Mark, Missing, MAX_AHEAD, MAX_OFFERS};
use crate::ids::Psn;

/// Which packets ahead of the expected one are kept.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct KeptRequests {
    /// Bit n stands for the packet n after the expected one.
    bits: u64,
    /// The latest mark of the peer.
    mark: Option<Mark>,
    /// The packets before this PSN have been requested again, and the toggle at that time.
    asked: Option<(Psn, bool)>,
    /// Packets were dropped because they were too far ahead.
    overrun: bool,
    /// The expected packet is a kept one: its toggle is not the latest.
    replays: bool,
    /// The token has changed: the peer uses the reserved bits for something else.
    other_use: bool,
    /// NAKs that the peer has not answered with marks.
    offers: u8,
}

impl KeptRequests {
    pub(in crate::engine) const fn new() -> Self {
        Self {
            bits: 0,
            mark: None,
            asked: None,
            overrun: false,
            replays: false,
            other_use: false,
            offers: 0,
        }
    }

    /// True if no packet is kept.
    #[inline]
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Forgets all packets; the marks of the peer stay valid.
    pub(in crate::engine) fn clear(&mut self) {
        self.bits = 0;
        self.overrun = false;
        self.asked = None;
    }

    /// The expected packet, or `count` of them, have been executed; now `expected` is the next.
    #[inline]
    pub(in crate::engine) fn advance(&mut self, count: u32, expected: Psn) {
        if self.bits != 0 {
            self.bits = self.bits.checked_shr(count).unwrap_or(0);
        }
        // After half of all PSNs it would seem to be ahead again.
        if self
            .asked
            .is_some_and(|(until, _)| !expected.is_before(until))
        {
            self.asked = None;
        }
    }

    /// The expected packet arrived with this mark.
    #[inline]
    pub(in crate::engine) fn learn(&mut self, mark: Option<Mark>) {
        let replays = core::mem::take(&mut self.replays);
        if mark.is_some() && !replays && !self.other_use {
            self.mark = mark;
        }
    }

    /// A duplicate with the key and address of the original request has this mark.
    pub(in crate::engine) fn learn_token(&mut self, mark: Option<Mark>) {
        if self.mark.is_none() && !self.other_use {
            self.mark = mark;
        }
    }

    /// The token of the peer, for the reserved bits of responses; 0 if it is not known.
    #[inline]
    pub(in crate::engine) fn token(&self) -> u8 {
        self.mark.map_or(0, |mark| mark.token)
    }

    /// True if nothing has shown that the peer is a QP of this driver that repeats single packets.
    pub(in crate::engine) fn peer_is_unknown(&self) -> bool {
        self.mark.is_none()
    }

    /// False if the expected packet is to be dropped because of its mark: it is forged, or the peer
    /// uses the reserved bits for something else. From then on no packet is.
    #[inline]
    pub(in crate::engine) fn accepts(&mut self, mark: Option<Mark>) -> bool {
        let (Some(own), Some(_)) = (self.mark, mark) else {
            return true;
        };
        if own.is_of_peer(mark) {
            return true;
        }
        *self = Self::new();
        self.other_use = true;
        false
    }

    /// True if a packet with this mark, ahead of the expected one, comes from the peer.
    pub(in crate::engine) fn is_genuine(&self, mark: Option<Mark>) -> bool {
        self.mark.is_some_and(|own| own.is_of_peer(mark))
    }

    /// True if a packet that is `ahead` is to be kept.
    pub(in crate::engine) fn lacks(&self, ahead: u32) -> bool {
        (1..=MAX_AHEAD).contains(&ahead) && self.bits & 1u64.wrapping_shl(ahead) == 0
    }

    /// The packet `ahead` of the expected one has been kept.
    pub(in crate::engine) fn insert(&mut self, ahead: u32) {
        if ahead <= MAX_AHEAD {
            self.bits |= 1u64.wrapping_shl(ahead);
        }
    }

    /// A genuine packet was dropped, as it was too far ahead.
    pub(in crate::engine) fn on_overrun(&mut self) {
        self.overrun = true;
    }

    /// Takes the expected packet; false if it is not kept.
    #[inline]
    pub(in crate::engine) fn take_expected(&mut self) -> bool {
        // Not `replays |= bits & 1 != 0`, for which rustc 1.85 to 1.95 store true in any case,
        // unless a flag in `Kbuild` prevents that.
        if self.bits & 1 == 0 {
            return false;
        }
        self.bits &= !1;
        self.replays = true;
        true
    }

    /// What a NAK for the expected packet says.
    pub(in crate::engine) fn missing(&self) -> Missing {
        match self.bits {
            0 => Missing::All,
            bits => Missing::Packets {
                count: bits.trailing_zeros(),
                toggle: self.mark.is_some_and(|mark| mark.toggle),
            },
        }
    }

    /// What the reserved bits of a NAK for the expected packet say.
    pub(in crate::engine) fn nak_says(&self) -> Missing {
        match self.mark.is_none() && self.offers >= MAX_OFFERS {
            true => Missing::Unknown,
            false => self.missing(),
        }
    }

    /// A NAK with [that](Self::nak_says) was sent.
    pub(in crate::engine) fn on_nak_sent(&mut self) {
        if self.mark.is_none() {
            self.offers = self.offers.saturating_add(1);
        }
    }

    /// True if the packet `expected` has to be requested again because a genuine packet with
    /// `mark` is ahead of it.
    pub(in crate::engine) fn asks(&self, expected: Psn, mark: Option<Mark>) -> bool {
        let toggle = mark.map(|mark| mark.toggle);
        match self.asked {
            Some((until, before)) => !expected.is_before(until) || toggle != Some(before),
            None => true,
        }
    }

    /// True if packets are kept behind the packet `expected`, which has not been requested again.
    pub(in crate::engine) fn has_new_gap(&self, expected: Psn) -> bool {
        (self.bits != 0 || self.overrun)
            && self.bits & 1 == 0
            && self
                .asked
                .is_none_or(|(until, _)| !expected.is_before(until))
    }

    /// `count` packets from `expected` on are requested again.
    pub(in crate::engine) fn on_asked(&mut self, expected: Psn, count: u32) {
        let toggle = self.mark.is_some_and(|mark| mark.toggle);
        self.asked = Some((expected.wrapping_add(count), toggle));
        self.overrun &= self.bits != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(n: u32) -> Psn {
        // Across the wrap.
        Psn::new(0xff_fff0).wrapping_add(n)
    }

    #[test]
    fn only_the_token_of_the_peer_is_genuine() {
        let mut kept = KeptRequests::new();
        let mark = Mark::new(5, false);
        assert!(!kept.is_genuine(mark));
        assert_eq!(kept.token(), 0);
        assert!(kept.accepts(mark));
        kept.learn(mark);
        assert_eq!(kept.token(), 5);
        for bits in 0..128 {
            let other = Mark::parse(bits);
            assert_eq!(kept.is_genuine(other), bits & 0x3f == 5);
        }
        // Requests without a mark are accepted, and change nothing.
        assert!(kept.accepts(None));
        kept.learn(None);
        assert!(kept.is_genuine(mark));
        // Another token: from then on there is none.
        kept.insert(3);
        assert!(!kept.accepts(Mark::new(6, false)));
        assert!(kept.is_empty());
        for bits in 0..128 {
            let other = Mark::parse(bits);
            assert!(kept.accepts(other));
            kept.learn(other);
            kept.learn_token(other);
            assert!(!kept.is_genuine(other));
        }
        assert_eq!(kept.token(), 0);
    }

    #[test]
    fn kept_requests() {
        let mut kept = KeptRequests::new();
        kept.learn(Mark::new(5, false));
        assert_eq!(kept.missing(), Missing::All);
        assert!(!kept.lacks(0));
        assert!(!kept.lacks(MAX_AHEAD + 1));
        for ahead in [2, 3, 5, MAX_AHEAD, MAX_AHEAD + 1, u32::MAX] {
            assert_eq!(kept.lacks(ahead), ahead <= MAX_AHEAD);
            kept.insert(ahead);
            assert!(!kept.lacks(ahead));
        }
        let two = Missing::Packets {
            count: 2,
            toggle: false,
        };
        assert_eq!(kept.missing(), two);
        assert!(!kept.take_expected());
        kept.advance(1, psn(1));
        assert!(!kept.take_expected());
        kept.advance(1, psn(2));
        for n in [2, 3] {
            assert!(kept.take_expected(), "{n}");
            // It is taken once.
            assert!(!kept.take_expected(), "{n}");
            kept.learn(Mark::new(5, true));
            kept.advance(1, psn(n + 1));
        }
        assert!(kept.has_new_gap(psn(4)));
        kept.on_asked(psn(4), 1);
        assert!(!kept.has_new_gap(psn(4)));
        // A READ takes many PSNs.
        kept.advance(1 << 22, psn(4 + (1 << 22)));
        assert!(kept.is_empty());
    }

    /// A kept request does not change the toggle, which is that of the newest packet; a packet that
    /// was not kept does, although [`KeptRequests::take_expected`] was called before it.
    #[test]
    fn toggle_of_the_newest_packet() {
        let mut kept = KeptRequests::new();
        kept.learn(Mark::new(5, false));
        kept.insert(1);
        kept.insert(3);
        let toggle = |kept: &KeptRequests| match kept.missing() {
            Missing::Packets { toggle, .. } => toggle,
            missing => panic!("{missing:?}"),
        };
        assert!(!kept.take_expected());
        kept.learn(Mark::new(5, true));
        assert!(toggle(&kept));
        kept.advance(1, psn(1));
        assert!(kept.take_expected());
        kept.learn(Mark::new(5, false));
        assert!(toggle(&kept));
        assert!(!kept.take_expected());
        kept.learn(Mark::new(5, false));
        assert!(!toggle(&kept));
    }

    /// The expected packet is requested once for each toggle.
    #[test]
    fn one_request_per_toggle() {
        let mut kept = KeptRequests::new();
        let (old, new) = (Mark::new(5, false), Mark::new(5, true));
        kept.learn(old);
        assert!(kept.asks(psn(0), old));
        kept.on_asked(psn(0), 2);
        assert!(!kept.asks(psn(0), old));
        assert!(!kept.asks(psn(1), old));
        assert!(kept.asks(psn(2), old));
        // Sent after the retransmission, which was lost.
        assert!(kept.asks(psn(0), new));
        kept.learn(new);
        kept.on_asked(psn(0), 2);
        assert!(!kept.asks(psn(0), new));
        kept.clear();
        assert!(kept.asks(psn(0), new));
    }

    /// A gap is a new one although half of all PSNs were used since the last one.
    #[test]
    fn next_gap_is_half_of_all_psns_later() {
        let mut kept = KeptRequests::new();
        let mark = Mark::new(5, false);
        kept.learn(mark);
        kept.on_asked(psn(0), 2);
        for n in 1..=2 {
            kept.advance(1, psn(n));
        }
        for n in [1 << 21, 1 << 22, (1 << 23) + 2, (1 << 23) + (1 << 22)] {
            kept.advance(1 << 21, psn(n));
            kept.insert(1);
            assert!(kept.has_new_gap(psn(n)), "{n}");
            assert!(kept.asks(psn(n), mark), "{n}");
        }
    }
}
