// SPDX-License-Identifier: GPL-2.0
//! Selective repeat between two QPs of this driver.
//!
//! The architecture knows go-back-N only: a responder drops what is ahead of the
//! expected PSN. Two QPs of this driver keep such packets, so that only what was lost is sent
//! again. They agree on that by the seven reserved bits of the BTH behind AckReq, which the
//! architecture has receivers ignore; other peers see go-back-N.
//!
//! Requests:
//!
//! - A PSN sequence error NAK holds the number of missing packets ([`Missing`]), or says that
//!   nothing was kept. That alone tells the requester what its peer is able to do, and from then on
//!   its requests have a [`Mark`].
//! - The mark is a token, a random number of the QP, and a toggle, which changes with each
//!   retransmission: a packet ahead of the expected one that was sent after the retransmission
//!   shows that the retransmitted packet was lost, too.
//! - The responder learns the token from a packet with the expected PSN. It keeps a packet ahead
//!   of that only if its token is the same.
//!
//! Responses, that is READ data and results of ATOMICs:
//!
//! - A READ that is repeated has a mark even if the peer is not known to keep packets. The
//!   responder learns the token from it as above, or if it is a duplicate with the key and address
//!   of the original, and from then on its responses have the token. So the requester keeps
//!   responses ahead of the expected one if they have its own token.
//! - It requests what is missing at once, by duplicate requests for a part of the data. Such a
//!   request has the AckReq bit, which means nothing else with these operations: nothing behind it
//!   is repeated, so the responder keeps what it has still to send.
//!
//! The token takes the place of the bits that an off-path attacker does not have to guess because
//! one of [`MAX_AHEAD`] PSNs is enough (`completer/validate.rs`). There are as many values of the
//! six bits as PSNs that are accepted: none and the token with the expected PSN, and the token with
//! each of [`MAX_AHEAD`] others. Once the token is known, a packet with the expected PSN and
//! another token is dropped.
//!
//! A peer that does not react to [`MAX_OFFERS`] NAKs or repeated READs with such bits does not know
//! what they mean, or cannot use them: from then on they are 0 in what is sent to it.
//!
//! While GSO batches are suspected to be damaged (`gso.rs`), new requests and responses have no
//! marks, so that nothing more is kept.

use crate::ids::Psn;
use crate::wire::packet::Packet;

/// The greatest distance of a packet that is kept from the expected one.
pub const MAX_AHEAD: u32 = 62;

/// How many NAKs, and how many READs, say that packets would be kept before the peer is known to
/// understand that. Some of them may be lost.
pub const MAX_OFFERS: u8 = 8;

/// The bit of the reserved bits that holds a toggle, in marks and in NAKs, and the others.
const TOGGLE: u8 = 0x40;
const VALUE: u8 = 0x3f;

/// The reserved bits with a value, which has six bits, and a toggle.
#[inline]
const fn join(value: u8, toggle: bool) -> u8 {
    match toggle {
        true => value | TOGGLE,
        false => value,
    }
}

/// Mark of a request in the reserved bits of its BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    token: u8,
    toggle: bool,
}

impl Mark {
    /// A mark with a token, which must not be 0; other bits than the lower six are ignored.
    #[inline]
    pub const fn new(token: u8, toggle: bool) -> Option<Self> {
        match token & VALUE {
            0 => None,
            token => Some(Self { token, toggle }),
        }
    }

    /// The mark in the reserved bits of a BTH; `None` if there is none.
    #[inline]
    pub const fn parse(resv7: u8) -> Option<Self> {
        Self::new(resv7, resv7 & TOGGLE != 0)
    }

    /// True if `other` has the same token.
    #[inline]
    pub(super) fn is_of_peer(self, other: Option<Self>) -> bool {
        other.is_some_and(|other| other.token == self.token)
    }

    /// The reserved bits of a BTH with this mark.
    #[inline]
    pub const fn emit(self) -> u8 {
        join(self.token, self.toggle)
    }
}

/// What a PSN sequence error NAK says about the missing packets in the reserved bits of its BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The peer keeps nothing.
    Unknown,
    /// Nothing was kept, but will be if requests are marked.
    All,
    /// Some packets; what follows them was kept.
    Packets {
        /// How many, from the PSN of the NAK on: 1 to [`MAX_AHEAD`].
        count: u32,
        /// The toggle of the request that showed it.
        toggle: bool,
    },
}

impl Missing {
    const ALL: u8 = VALUE;

    /// Reads the reserved bits of the BTH of a NAK.
    #[inline]
    pub fn parse(resv7: u8) -> Self {
        match resv7 & VALUE {
            0 => Self::Unknown,
            Self::ALL => Self::All,
            count => Self::Packets {
                count: count.into(),
                toggle: resv7 & TOGGLE != 0,
            },
        }
    }

    /// The reserved bits of the BTH of a NAK.
    #[inline]
    pub fn emit(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::All => Self::ALL,
            Self::Packets { count, toggle } => {
                let count = u8::try_from(count).unwrap_or(Self::ALL).min(Self::ALL);
                join(count, toggle)
            }
        }
    }
}

/// Which packets ahead of the expected one are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRequests {
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
    pub(super) const fn new() -> Self {
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
    pub(super) fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Forgets all packets; the marks of the peer stay valid.
    pub(super) fn clear(&mut self) {
        self.bits = 0;
        self.overrun = false;
        self.asked = None;
    }

    /// The expected packet, or `count` of them, have been executed.
    #[inline]
    pub(super) fn advance(&mut self, count: u32) {
        if self.bits != 0 {
            self.bits = self.bits.checked_shr(count).unwrap_or(0);
        }
    }

    /// The expected packet arrived with this mark.
    #[inline]
    pub(super) fn learn(&mut self, mark: Option<Mark>) {
        let replays = core::mem::take(&mut self.replays);
        if mark.is_some() && !replays && !self.other_use {
            self.mark = mark;
        }
    }

    /// A duplicate with the key and address of the original request has this mark.
    pub(super) fn learn_token(&mut self, mark: Option<Mark>) {
        if self.mark.is_none() && !self.other_use {
            self.mark = mark;
        }
    }

    /// The token of the peer, for the reserved bits of responses; 0 if it is not known.
    #[inline]
    pub(super) fn token(&self) -> u8 {
        self.mark.map_or(0, |mark| mark.token)
    }

    /// False if the expected packet is to be dropped because of its mark: it is forged, or the peer
    /// uses the reserved bits for something else. From then on no packet is.
    #[inline]
    pub(super) fn accepts(&mut self, mark: Option<Mark>) -> bool {
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
    pub(super) fn is_genuine(&self, mark: Option<Mark>) -> bool {
        self.mark.is_some_and(|own| own.is_of_peer(mark))
    }

    /// True if a packet that is `ahead` is to be kept.
    pub(super) fn lacks(&self, ahead: u32) -> bool {
        (1..=MAX_AHEAD).contains(&ahead) && self.bits & 1u64.wrapping_shl(ahead) == 0
    }

    /// The packet `ahead` of the expected one has been kept.
    pub(super) fn insert(&mut self, ahead: u32) {
        if ahead <= MAX_AHEAD {
            self.bits |= 1u64.wrapping_shl(ahead);
        }
    }

    /// A genuine packet was dropped, as it was too far ahead.
    pub(super) fn on_overrun(&mut self) {
        self.overrun = true;
    }

    /// Takes the expected packet; false if it is not kept.
    #[inline]
    pub(super) fn take_expected(&mut self) -> bool {
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
    pub(super) fn missing(&self) -> Missing {
        match self.bits {
            0 => Missing::All,
            bits => Missing::Packets {
                count: bits.trailing_zeros(),
                toggle: self.mark.is_some_and(|mark| mark.toggle),
            },
        }
    }

    /// What the reserved bits of a NAK for the expected packet say.
    pub(super) fn answer(&self) -> Missing {
        match self.mark.is_none() && self.offers >= MAX_OFFERS {
            true => Missing::Unknown,
            false => self.missing(),
        }
    }

    /// A NAK with [`answer`](Self::answer) was sent.
    pub(super) fn on_answered(&mut self) {
        if self.mark.is_none() {
            self.offers = self.offers.saturating_add(1);
        }
    }

    /// True if the packet `expected` has to be requested again because a genuine packet with
    /// `mark` is ahead of it.
    pub(super) fn asks(&self, expected: Psn, mark: Option<Mark>) -> bool {
        let toggle = mark.map(|mark| mark.toggle);
        match self.asked {
            Some((until, before)) => !expected.is_before(until) || toggle != Some(before),
            None => true,
        }
    }

    /// True if packets are kept behind the packet `expected`, which has not been requested again.
    pub(super) fn has_new_gap(&self, expected: Psn) -> bool {
        (self.bits != 0 || self.overrun)
            && self.bits & 1 == 0
            && self
                .asked
                .is_none_or(|(until, _)| !expected.is_before(until))
    }

    /// `count` packets from `expected` on are requested again.
    pub(super) fn on_asked(&mut self, expected: Psn, count: u32) {
        let toggle = self.mark.is_some_and(|mark| mark.toggle);
        self.asked = Some((expected.wrapping_add(count), toggle));
        self.overrun &= self.bits != 0;
    }
}

/// A packet that was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptPacket {
    /// The request with this PSN.
    Request(Psn),
    /// The response with this PSN.
    Response(Psn),
}

impl KeptPacket {
    /// Which packet this is.
    pub fn of(packet: &Packet<'_>) -> Self {
        let psn = packet.bth().psn;
        match packet.opcode().is_response() {
            true => Self::Response(psn),
            false => Self::Request(psn),
        }
    }
}

/// What the arrival of a response shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// It has not been kept yet, and may be.
    pub(super) new: bool,
    /// Responses before it are lost: they are to be requested.
    pub(super) lost: bool,
}

/// Which responses ahead of the expected one are kept, and which missing ones are requested again.
///
/// A missing response is requested as soon as a later one arrives. The peer answers such requests
/// in their order and before all else, so what was requested again is lost again if the answer to a
/// later request arrives, or what follows it a second time.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptResponses {
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
    /// PSN of the next request when responses were last requested again.
    requested_at: Psn,
    /// Responses were dropped because they were too far ahead.
    overrun: bool,
}

impl KeptResponses {
    pub(super) const fn new() -> Self {
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
    pub(super) fn is_unused(&self) -> bool {
        self.bits | self.requested | self.ends == 0 && !self.overrun
    }

    /// True if responses are kept.
    #[inline]
    pub(super) fn keeps_any(&self) -> bool {
        self.bits != 0
    }

    /// True if responses are to be requested.
    #[inline]
    pub(super) fn has_missing(&self) -> bool {
        self.missing != 0
    }

    /// The next response is `expected`.
    pub(super) fn expect(&mut self, expected: Psn) {
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
    /// after responses were last requested again, those are lost.
    pub(super) fn on_answered(&mut self, psn: Psn) {
        if self.requested != 0 && self.missing == 0 && self.requested_at.is_before(psn) {
            self.forget_requested();
        }
    }

    /// The response `psn` of the peer, ahead of the expected one, has arrived.
    pub(super) fn arrive(&mut self, psn: Psn) -> Arrival {
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
        let lost = self.note(lost_again | (before & !self.requested));
        Arrival { new, lost }
    }

    /// The responses `lost` are to be requested; false if there are none.
    fn note(&mut self, lost: u64) -> bool {
        self.repeatedly |= lost & self.requested;
        self.requested |= lost;
        self.missing |= lost;
        lost != 0
    }

    /// The response `psn` has been kept.
    pub(super) fn insert(&mut self, psn: Psn) {
        self.bits |= self.bit(psn).unwrap_or(0);
    }

    /// Takes the expected response; `None` if it is not kept.
    pub(super) fn take_expected(&mut self) -> Option<Psn> {
        if self.bits & 1 == 0 {
            return None;
        }
        self.bits &= !1;
        Some(self.base)
    }

    /// Notes what is missing before the last one that is kept, `again` also if it has been
    /// requested. False if there is nothing.
    pub(super) fn note_missing(&mut self, again: bool) -> bool {
        let through = u64::MAX.checked_shr(self.bits.leading_zeros()).unwrap_or(0);
        let gaps = through & !self.bits;
        self.note(match again {
            true => gaps,
            false => gaps & !self.requested,
        })
    }

    /// Notes what is missing before `upto`, unless it has been requested again. False if there is
    /// nothing, or `upto` is too far ahead.
    pub(super) fn note_missing_before(&mut self, upto: Psn) -> bool {
        let gaps = self.bit(upto).map_or(0, |bit| bit.wrapping_sub(1));
        self.note(gaps & !self.bits & !self.requested)
    }

    /// True if the expected response has been requested again.
    pub(super) fn has_requested_expected(&self) -> bool {
        self.requested & 1 != 0
    }

    /// Where missing responses begin that are to be requested, and their number.
    pub(super) fn missing(&self) -> Option<(Psn, u32)> {
        let first = self.missing.trailing_zeros();
        let run = self.missing.checked_shr(first)?;
        Some((self.base.wrapping_add(first), run.trailing_ones()))
    }

    /// `count` responses from `psn` on have been requested, in a READ that ends before `end`. The
    /// next new request has the PSN `next`.
    pub(super) fn on_requested(&mut self, psn: Psn, count: u32, end: Psn, next: Psn) {
        self.requested_at = next;
        let ahead = |psn: Psn| u32::try_from(psn.delta(self.base)).unwrap_or(u64::BITS);
        let below = |bits| 1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1);
        let first = ahead(psn);
        let requested = below(first.saturating_add(count)) & !below(first);
        self.missing &= !requested;
        self.ends |= 1u64.checked_shl(ahead(end.prev())).unwrap_or(0);
    }

    /// True if a requested part of a response ends with the expected packet.
    pub(super) fn is_end_of_part(&self, expected: Psn) -> bool {
        let ahead = u32::try_from(expected.delta(self.base)).unwrap_or(u64::BITS);
        self.ends.checked_shr(ahead).unwrap_or(0) & 1 != 0
    }

    /// Forgets what is kept.
    pub(super) fn clear(&mut self) {
        self.bits = 0;
        self.overrun = false;
        self.forget_requested();
    }

    /// Nothing is to be requested.
    pub(super) fn forget_missing(&mut self) {
        self.missing = 0;
    }

    /// What was requested again is lost.
    pub(super) fn forget_requested(&mut self) {
        self.requested = 0;
        self.repeatedly = 0;
        self.missing = 0;
    }

    /// True once if responses were dropped as they were too far ahead, and all that were kept have
    /// been taken.
    pub(super) fn lacks_expected(&mut self) -> bool {
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

    #[test]
    fn reserved_bits() {
        for bits in 0..128 {
            assert_eq!(Mark::parse(bits).is_none(), bits & 0x3f == 0);
            assert_eq!(
                Mark::parse(bits).map_or(0, Mark::emit),
                bits & {
                    if bits & 0x3f == 0 {
                        0
                    } else {
                        0x7f
                    }
                }
            );
            let missing = Missing::parse(bits);
            match missing {
                Missing::Unknown => assert_eq!(bits & 0x3f, 0),
                Missing::All => assert_eq!(bits & 0x3f, 0x3f),
                Missing::Packets { count, .. } => assert!((1..=MAX_AHEAD).contains(&count)),
            }
            assert_eq!(Missing::parse(missing.emit()), missing);
        }
        assert_eq!(Mark::new(0, true), None);
        assert_eq!(Mark::new(0xc0, true), None);
        let far = Missing::Packets {
            count: 1 << 22,
            toggle: false,
        };
        assert_eq!(Missing::parse(far.emit()), Missing::All);
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
        kept.advance(1);
        assert!(!kept.take_expected());
        kept.advance(1);
        for n in [2, 3] {
            assert!(kept.take_expected(), "{n}");
            // It is taken once.
            assert!(!kept.take_expected(), "{n}");
            kept.learn(Mark::new(5, true));
            kept.advance(1);
        }
        assert!(kept.has_new_gap(psn(4)));
        kept.on_asked(psn(4), 1);
        assert!(!kept.has_new_gap(psn(4)));
        // A READ takes many PSNs.
        kept.advance(1 << 22);
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
        kept.advance(1);
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
