// SPDX-License-Identifier: GPL-2.0
//! Requests ahead of the expected PSN: when to send a PSN sequence error NAK.
//!
//! One NAK per gap is enough, and a NAK makes the peer retransmit everything in
//! flight. A packet from an off-path attacker who guessed the QP number (24 bits) but not the PSN
//! is ahead of the expected PSN in half of the cases and looks like a gap, so:
//!
//! - A PSN further ahead than the peer can have sent is dropped.
//! - The packet right after the expected one causes a NAK at once: an attacker does not hit it.
//! - Any other causes a NAK at once until one was spurious: a duplicate of the packet that a NAK
//!   requested means that it had not been lost. For some time the responder then delays NAKs, so
//!   that the expected packet can arrive if traffic runs, and for longer after each further
//!   spurious NAK. This also helps where the network reorders packets. NAKs are delayed as well
//!   while duplicates arrive: the peer has gone back, and the expected packet follows them.
//! - A packet with the token of the peer (`repeat.rs`) is genuine. It is kept, and causes a NAK if
//!   what is missing has not been requested again.
//! - Copies of one packet cause further NAKs at exponentially growing intervals.
//!
//! Other drivers have one timer, which is slow, and rdma_rxe ignores NAKs from the beginning of a
//! retransmission to the next ACK for something new: if a packet is lost in it again, only the
//! timer helps. Therefore, as long as the peer has shown no marks and sent no READ:
//!
//! - An ACK goes before a NAK if there is anything to acknowledge
//!   ([`Responder::owes_ack_before`](super::Responder::owes_ack_before)).
//! - The packet that closes a gap is acknowledged at once.
//! - A NAK is repeated if nothing arrives for some time, for it may have been lost: the peer has
//!   sent all that it may, and waits. Not if a forged packet may have caused it, and not for READs
//!   and ATOMICs: the peer may wait for their responses.
//!
//! A READ ends that, because rdma_rxe fails the connection if an acknowledgement arrives between
//! two packets of READ data. In a network that reorders packets any acknowledgement may.

use super::replay::takes_resource;
use super::NakState;
use crate::engine::attrs::State;
use crate::engine::backend::{Backend, Count, Handled};
use crate::engine::qp::Qp;
use crate::engine::repeat::{Missing, MAX_AHEAD};
use crate::engine::requester::{packets, MAX_PSN_SPAN};
use crate::engine::wr::MAX_MESSAGE;
use crate::ids::Psn;
use crate::time::Instant;
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::bth::Bth;

/// Minimum time between two NAKs for a gap if the packets that cause them may be forged, and
/// initial delay of a suppressed NAK, in nanoseconds.
const NAK_INTERVAL_NS: u64 = 200_000;

/// Longest time that duplicates delay a NAK, in nanoseconds.
const MAX_DUPLICATE_DELAY_NS: u64 = 10_000_000;

/// How often the interval between two NAKs doubles.
const MAX_BACKOFF: u8 = 9;

/// How often the delay of a NAK doubles.
const MAX_SUPPRESS_BACKOFF: u32 = 7;

/// Time after which an open gap is treated as a new one, in nanoseconds: a packet that opened it
/// while nothing was in flight is not related to later loss.
const GAP_EXPIRY_NS: u64 = 1_000_000_000;

/// How long NAKs are delayed after a spurious one, in nanoseconds.
const SUPPRESS_NS: u64 = 1_000_000_000;

/// For how long nothing must arrive until a NAK is repeated for the first time, in nanoseconds: at
/// least this, and twice the time for which the gap before was open, as the round trip may be long.
const SILENCE_NS: u64 = 8_000_000;

/// How often a NAK is repeated because nothing arrives.
const MAX_REPETITIONS: u8 = 3;

/// Maximum distance of a request from the expected PSN, apart from PSNs of READ responses.
const MAX_IN_FLIGHT: u32 = 1 << 16;

/// Packets have arrived ahead of the expected one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    /// The packet right after the expected one has arrived.
    next_seen: bool,
    /// PSN of the latest packet.
    newest: Psn,
    /// When the latest packet arrived.
    at: Instant,
    /// When the last NAK was sent, or when the delayed one is due.
    nak: Nak,
    /// When the gap was detected.
    since: Instant,
    /// NAKs caused by copies of a packet.
    copies: u8,
    /// NAKs that were repeated because nothing arrived.
    repetitions: u8,
    /// The latest packet is a request whose responses the peer waits for, READ or ATOMIC.
    awaits_responses: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nak {
    Sent(Instant),
    Scheduled(Instant),
}

impl Gap {
    /// True if its NAK has been repeated.
    pub(super) const fn is_repeated(&self) -> bool {
        self.repetitions > 0
    }

    /// True if a NAK has been sent for it.
    pub(super) const fn has_been_reported(&self) -> bool {
        matches!(self.nak, Nak::Sent(_))
    }
}

/// Delays NAKs after a spurious one and while duplicates arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct NakSuppression {
    /// PSN of the last NAK that a forged packet may have caused.
    nak_psn: Option<Psn>,
    /// Until when NAKs are delayed.
    until: Instant,
    /// When the last duplicate arrived, or the last NAK was sent that a forged packet may have
    /// caused.
    duplicate_at: Option<Instant>,
    /// Spurious NAKs since NAKs are delayed.
    backoff: u32,
    /// How long the latest gap was open, in microseconds; 0 if there was none.
    gap_open_us: u32,
}

impl NakSuppression {
    pub(super) const fn new() -> Self {
        Self {
            nak_psn: None,
            until: Instant::ZERO,
            duplicate_at: None,
            backoff: 0,
            gap_open_us: 0,
        }
    }

    /// The expected packet has arrived.
    pub(super) fn on_gap_closed(&mut self, now: Instant, gap: &Gap) {
        let open_us = now.ns_since(gap.since).checked_div(1000).unwrap_or(0);
        self.gap_open_us = u32::try_from(open_us).unwrap_or(u32::MAX);
    }

    /// True if a NAK for a packet that may be forged is to be delayed at the moment.
    fn is_active(&self, now: Instant) -> bool {
        let recent = |at| now.ns_since(at) < NAK_INTERVAL_NS;
        now < self.until || self.duplicate_at.is_some_and(recent)
    }

    /// When to send a NAK that is delayed now.
    fn deadline(&self, now: Instant) -> Instant {
        now.saturating_add(NAK_INTERVAL_NS.wrapping_shl(self.backoff))
    }
}

impl Qp {
    /// Maximum distance of a valid request from the expected PSN: a READ takes as many PSNs as its
    /// response has packets.
    fn max_psns_ahead(&self) -> u32 {
        let reads = match self.attrs.remote_read {
            true => u32::from(self.attrs.max_dest_rd_atomic),
            false => 0,
        };
        let each = packets(MAX_MESSAGE, self.attrs.mtu.bytes());
        reads
            .saturating_mul(each)
            .saturating_add(MAX_IN_FLIGHT)
            .min(MAX_PSN_SPAN)
    }

    /// Handles a request ahead of the expected PSN (IBTA 9.7.5.2).
    pub(super) fn out_of_sequence(
        &mut self,
        now: Instant,
        bth: &Bth,
        backend: &mut impl Backend,
    ) -> Handled {
        let (psn, mark) = (bth.psn, self.request_mark(bth));
        let ahead = u32::try_from(psn.delta(self.resp.epsn)).unwrap_or(u32::MAX);
        if ahead > self.max_psns_ahead() {
            backend.count(Count::ImplausiblePsn);
            return Handled::Done;
        }
        backend.count(Count::OutOfSequence);
        if self.resp.nak_state == NakState::Rnr {
            return Handled::Done;
        }
        let kept = &mut self.resp.kept;
        if !kept.is_genuine(mark) {
            self.unproven_gap(now, bth, ahead, backend);
            return Handled::Done;
        }
        let lacks = kept.lacks(ahead);
        // A packet that was kept before is a probe: the NAK was lost. It may be if the peer expects
        // an acknowledgement.
        let probes = bth.ack_req || (!lacks && ahead <= MAX_AHEAD);
        if probes || kept.asks(self.resp.epsn, mark) {
            kept.learn(mark);
            self.ask_for_gap(now, ahead, backend);
        } else if !lacks {
            kept.on_overrun();
            self.unproven_gap(now, bth, ahead, backend);
        }
        match lacks {
            true => Handled::Ahead,
            false => Handled::Done,
        }
    }

    /// Asks for the packets from the expected one to the first that is kept, or to the one that is
    /// `ahead` of it and about to be.
    pub(super) fn ask_for_gap(&mut self, now: Instant, ahead: u32, backend: &mut impl Backend) {
        let count = match self.resp.kept.missing() {
            Missing::Packets { count, .. } => count.min(ahead),
            Missing::Unknown | Missing::All => ahead,
        };
        self.resp.kept.on_asked(self.resp.epsn, count);
        self.resp.nak_state = NakState::Sequence(Gap {
            next_seen: true,
            newest: self.resp.epsn.wrapping_add(ahead),
            at: now,
            nak: Nak::Sent(now),
            since: now,
            copies: 0,
            repetitions: 0,
            awaits_responses: false,
        });
        self.send_sequence_nak(now, true, backend);
    }

    /// A request is `ahead` of the expected PSN, which may be forged.
    fn unproven_gap(&mut self, now: Instant, bth: &Bth, ahead: u32, backend: &mut impl Backend) {
        let psn = bth.psn;
        let next = ahead == 1;
        let before = match self.resp.nak_state {
            NakState::Rnr => return,
            NakState::None => None,
            NakState::Sequence(gap) => Some(gap).filter(|gap| now.ns_since(gap.at) < GAP_EXPIRY_NS),
        };
        let interval = before.map_or(NAK_INTERVAL_NS, |gap| {
            NAK_INTERVAL_NS.wrapping_shl(gap.copies.into())
        });
        let mut copies = before.map_or(0, |gap| gap.copies);
        let send_nak = match before {
            None => next || !self.resp.nak_suppression.is_active(now),
            // If the packet after the expected one arrives again, the peer has gone back and the
            // expected packet was lost again; if the same packet arrives twice in a row, the NAK
            // was lost and the peer probes.
            Some(gap) => match gap.nak {
                Nak::Scheduled(_) => next,
                Nak::Sent(at) => {
                    let interval_over = now.ns_since(at) >= interval;
                    let copy = psn == gap.newest && interval_over;
                    if copy && !next {
                        copies = copies.saturating_add(1).min(MAX_BACKOFF);
                    }
                    copy || (next && (gap.next_seen || interval_over))
                }
            },
        };
        let nak = match before {
            _ if send_nak => Nak::Sent(now),
            Some(gap) => gap.nak,
            None => Nak::Scheduled(self.resp.nak_suppression.deadline(now)),
        };
        self.resp.nak_state = NakState::Sequence(Gap {
            next_seen: next || before.is_some_and(|gap| gap.next_seen),
            newest: psn,
            at: now,
            nak,
            since: before.map_or(now, |gap| gap.since),
            copies,
            repetitions: before.map_or(0, |gap| gap.repetitions),
            awaits_responses: takes_resource(bth.opcode.operation()),
        });
        if send_nak {
            self.send_sequence_nak(now, next, backend);
        }
    }

    /// Sends a NAK for the expected packet; `certain` if no forged packet can have caused it.
    fn send_sequence_nak(&mut self, now: Instant, certain: bool, backend: &mut impl Backend) {
        if !certain {
            self.resp.nak_suppression.nak_psn = Some(self.resp.epsn);
            self.resp.nak_suppression.duplicate_at = Some(now);
        }
        backend.count(Count::SequenceNakSent);
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        self.resp.owe_nak(self.resp.epsn, nak);
    }

    /// A duplicate request at `psn` arrived. If a NAK requested it, that NAK was spurious; if
    /// packets are missing, they follow the duplicate.
    pub(super) fn note_duplicate(&mut self, now: Instant, psn: Psn, backend: &mut impl Backend) {
        let suppression = &mut self.resp.nak_suppression;
        suppression.duplicate_at = Some(now);
        if suppression.nak_psn == Some(psn) {
            suppression.nak_psn = None;
            suppression.backoff = match now < suppression.until {
                true => suppression
                    .backoff
                    .saturating_add(1)
                    .min(MAX_SUPPRESS_BACKOFF),
                false => 0,
            };
            suppression.until = now.saturating_add(SUPPRESS_NS);
            backend.count(Count::SpuriousNak);
        }
        if let NakState::Sequence(gap) = &mut self.resp.nak_state {
            if now.ns_since(gap.since) < MAX_DUPLICATE_DELAY_NS {
                gap.nak = match gap.nak {
                    Nak::Scheduled(_) => Nak::Scheduled(suppression.deadline(now)),
                    Nak::Sent(_) => Nak::Sent(now),
                };
            }
        }
    }

    /// When the delayed NAK is due, or the repeated one (IBTA 9.7.5.2).
    pub(in crate::engine) fn nak_deadline(&self) -> Option<Instant> {
        if !matches!(self.state, State::Rtr | State::Rts | State::Sqd) {
            return None;
        }
        let gap = self.resp.nak_state.gap()?;
        match gap.nak {
            Nak::Scheduled(at) => Some(at),
            Nak::Sent(at) => {
                let repeats = gap.next_seen
                    && !gap.awaits_responses
                    && gap.repetitions < MAX_REPETITIONS
                    && self.resp.shows_progress();
                let answered =
                    u64::from(self.resp.nak_suppression.gap_open_us).saturating_mul(2000);
                let silence = SILENCE_NS.max(answered);
                let silence = silence.saturating_mul(1u64.wrapping_shl(gap.repetitions.into()));
                repeats.then(|| at.max(gap.at).saturating_add(silence))
            }
        }
    }

    /// Sends the NAK that is due, if one is.
    pub(in crate::engine) fn nak_timeout(&mut self, now: Instant, backend: &mut impl Backend) {
        if self.nak_deadline().is_none_or(|at| at > now) {
            return;
        }
        if let NakState::Sequence(gap) = &mut self.resp.nak_state {
            let repeated = gap.has_been_reported();
            gap.repetitions = gap.repetitions.saturating_add(repeated.into());
            gap.nak = Nak::Sent(now);
            self.send_sequence_nak(now, repeated, backend);
        }
    }
}
