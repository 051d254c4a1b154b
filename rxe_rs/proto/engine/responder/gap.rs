// SPDX-License-Identifier: GPL-2.0
//! Requests that come before the expected one: when to send a sequence NAK.
//!
//! One NAK a gap is enough (IBTA vol1 9.7.5.1.2), and a NAK makes the peer send again all that is in
//! flight. A packet from a stranger who guessed the number of the queue pair (24 bits) but not the
//! PSN lands ahead of the expected PSN every other time and looks like a gap, so:
//!
//! - A PSN further ahead than a peer can have sent is dropped.
//! - The packet right behind the expected one is believed at once: a stranger does not hit it.
//! - Any other is believed until that turned out wrong: a duplicate of the packet that a NAK asked for
//!   means that it had not been lost. For a while then a NAK is put off for a moment, in which
//!   the expected packet arrives if traffic runs, and for longer if that turns out needless, too. The
//!   same helps where the network changes the order.
//!   So it is while duplicates arrive: the peer has gone back, and what is expected comes behind them.
//! - Copies of a packet do not make more of it: what asks for another NAK that way is heard ever
//!   less often.

use super::NakState;
use crate::engine::attrs::State;
use crate::engine::backend::{Backend, Count};
use crate::engine::qp::Qp;
use crate::engine::requester::{packets, MAX_PSN_SPAN};
use crate::engine::wr::MAX_MESSAGE;
use crate::ids::Psn;
use crate::wire::aeth::{NakCode, Syndrome};

/// Least time between two NAKs for a gap that packets which anybody may have sent ask for, and how
/// long a NAK is put off, in nanoseconds.
const NAK_INTERVAL_NS: u64 = 200_000;

/// Longest time that duplicates put a NAK off, in nanoseconds.
const MAX_DUPLICATE_DELAY_NS: u64 = 10_000_000;

/// Times that the pause between two NAKs doubles.
const MAX_BACKOFF: u32 = 9;

/// Times that the time doubles for which a NAK is put off.
const MAX_SUPPRESS_BACKOFF: u32 = 7;

/// Time after which a gap that has not been closed is taken for a new one, in nanoseconds: what
/// opened it while nothing was in flight says nothing about what is lost later.
const GAP_EXPIRY_NS: u64 = 1_000_000_000;

/// For how long NAKs are put off after one turned out needless, in nanoseconds.
const SUPPRESS_NS: u64 = 1_000_000_000;

/// Packets that may be in flight in front of the expected one, READ responses aside.
const MAX_IN_FLIGHT: u32 = 1 << 16;

/// The expected packet is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    /// The packet right behind it has been seen since.
    next_seen: bool,
    /// The packet that arrived last.
    newest: Psn,
    /// When that was.
    at: u64,
    /// When the last NAK was sent, or is to be sent.
    nak: Nak,
    /// When the gap was found.
    since: u64,
    /// NAKs that copies asked for.
    copies: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nak {
    Sent(u64),
    Scheduled(u64),
}

/// How far packets ahead of the expected one are to be believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct NakSuppression {
    /// PSN that was asked for by a NAK which a stranger may have caused.
    nak_psn: Option<Psn>,
    /// Until when NAKs are put off.
    until: u64,
    /// When the last duplicate arrived, or a NAK left that a stranger may have caused.
    duplicate_at: Option<u64>,
    /// NAKs that turned out needless since there was a reason to put them off.
    backoff: u32,
}

impl NakSuppression {
    pub(super) const fn new() -> Self {
        Self {
            nak_psn: None,
            until: 0,
            duplicate_at: None,
            backoff: 0,
        }
    }

    /// Whether a packet that anybody may have sent is to be doubted for now.
    fn is_active(&self, now: u64) -> bool {
        let recent = |at| now.saturating_sub(at) < NAK_INTERVAL_NS;
        now < self.until || self.duplicate_at.is_some_and(recent)
    }

    /// When to send a NAK that is put off now.
    fn deadline(&self, now: u64) -> u64 {
        now.saturating_add(NAK_INTERVAL_NS.wrapping_shl(self.backoff))
    }
}

impl Qp {
    /// Greatest distance of a request from the expected one that a peer can cause: a READ takes as
    /// many PSNs as its response has packets.
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

    /// A request that is ahead of the expected one.
    pub(super) fn out_of_sequence(&mut self, now: u64, psn: Psn, backend: &mut impl Backend) {
        let ahead = u32::try_from(psn.delta(self.resp.epsn)).unwrap_or(u32::MAX);
        if ahead > self.max_psns_ahead() {
            return backend.count(Count::ImplausiblePsn);
        }
        backend.count(Count::OutOfSequence);
        let next = ahead == 1;
        let before = match self.resp.nak_state {
            NakState::Rnr => return,
            NakState::None => None,
            NakState::Sequence(gap) => {
                Some(gap).filter(|gap| now.saturating_sub(gap.at) < GAP_EXPIRY_NS)
            }
        };
        let interval = before.map_or(NAK_INTERVAL_NS, |gap| {
            NAK_INTERVAL_NS.wrapping_shl(gap.copies)
        });
        let mut copies = before.map_or(0, |gap| gap.copies);
        let send_nak = match before {
            None => next || !self.resp.nak_suppression.is_active(now),
            // If the packet behind it comes again, the peer has gone back and the missing packet
            // was lost once more; and if the same packet comes twice in a row, the peer has not
            // heard us and asks.
            Some(gap) => match gap.nak {
                Nak::Scheduled(_) => next,
                Nak::Sent(at) => {
                    let interval_over = now.saturating_sub(at) >= interval;
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
        });
        if send_nak {
            self.send_sequence_nak(now, next, backend);
        }
    }

    /// Asks for the expected packet, for a reason that is `sure` or not.
    fn send_sequence_nak(&mut self, now: u64, certain: bool, backend: &mut impl Backend) {
        if !certain {
            self.resp.nak_suppression.nak_psn = Some(self.resp.epsn);
            self.resp.nak_suppression.duplicate_at = Some(now);
        }
        backend.count(Count::SequenceNakSent);
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        self.resp.ack = Some((self.resp.epsn, nak));
    }

    /// A duplicate at `psn` arrived. If that was asked for, it had not been lost; and if more is
    /// missing, that comes behind it.
    pub(super) fn note_duplicate(&mut self, now: u64, psn: Psn, backend: &mut impl Backend) {
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
            backend.count(Count::NeedlessNak);
        }
        if let NakState::Sequence(gap) = &mut self.resp.nak_state {
            if now.saturating_sub(gap.since) < MAX_DUPLICATE_DELAY_NS {
                gap.nak = match gap.nak {
                    Nak::Scheduled(_) => Nak::Scheduled(suppression.deadline(now)),
                    Nak::Sent(_) => Nak::Sent(now),
                };
            }
        }
    }

    /// When a NAK that was put off is to be sent.
    pub(in crate::engine) fn nak_deadline(&self) -> Option<u64> {
        let receiving = matches!(self.state, State::Rtr | State::Rts | State::Sqd);
        match self.resp.nak_state {
            NakState::Sequence(Gap {
                nak: Nak::Scheduled(at),
                ..
            }) if receiving => Some(at),
            _ => None,
        }
    }

    /// Sends the NAK that was put off if its time has come.
    pub(in crate::engine) fn nak_timeout(&mut self, now: u64, backend: &mut impl Backend) {
        if self.nak_deadline().is_none_or(|at| at > now) {
            return;
        }
        if let NakState::Sequence(gap) = &mut self.resp.nak_state {
            gap.nak = Nak::Sent(now);
            self.send_sequence_nak(now, false, backend);
        }
    }
}
