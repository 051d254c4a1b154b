// SPDX-License-Identifier: GPL-2.0
//! Validation of responses against off-path attackers.
//!
//! An attacker who spoofs the peer's address must guess the QP number, 24 bits. Any PSN in flight
//! is valid in an acknowledgement, up to 2^22 of 2^24, so the PSN alone may be worth only two bits.
//! But the MSN of an acknowledgement counts the requests that the peer has executed,
//! so the PSN determines it. The rules:
//!
//! - An ACK or NAK is accepted if its MSN matches its PSN: one value of 2^24 for each PSN in
//!   flight, 24 + 24 + 24 - 22 = 50 bits at least.
//! - A peer whose MSN starts elsewhere or is out of step must not be cut off. An ACK for exactly
//!   the newest packet sent, or a NAK for exactly the oldest one in flight, is accepted with any
//!   MSN, which the requester then adopts (MSN resync): 24 + 24 = 48 bits. Such an acknowledgement
//!   always arrives, because the last packet of a window requests one. After
//!   `MAX_RESYNCS` resyncs the MSN of the peer is no longer checked.
//! - READ data and ATOMIC results are accepted if their PSN is the expected one: 48 bits. A later
//!   response implies a NAK if it has the PSN right after the expected one, or an MSN that matches.
//!   Any other may be forged, and only starts a timer: if the expected data arrives while traffic
//!   runs, nothing was lost.
//! - A response ahead of the expected one is kept if it has the token of this QP (`repeat.rs`).
//!
//! A rejected response is counted, and changes nothing but what happens after a timeout. If it was
//! genuine, the next probe (`probe.rs`) causes another, or in the end a timeout: all of an initial
//! window is sent again then, because only the acknowledgement of its newest packet is accepted
//! from a peer that is out of step, and a limited number of such timeouts use no retry.

use crate::engine::attrs::State;
use crate::engine::backend::{Backend, Count, Handled};
use crate::engine::qp::Qp;
use crate::engine::repeat::KeptResponses;
use crate::engine::requester::index_before;
use crate::engine::wr::SendWqe;
use crate::ids::{Msn, Psn};
use crate::time::Instant;
use crate::wire::packet::Packet;

/// How long to wait for the expected response after an unproven later one, in nanoseconds.
const GAP_WAIT_NS: u64 = 200_000;

/// MSN resyncs after which the MSN of the peer is no longer checked.
const MAX_RESYNCS: u8 = 3;

impl Qp {
    /// The MSN of a peer that has executed everything before `upto`, and whether the next MSN is
    /// valid as well: a READ counts when its execution starts, before its last PSN.
    fn msn_before(&self, upto: Psn, backend: &mut impl Backend) -> (Msn, bool) {
        let mut msn = self.req.una_msn;
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let Some(wqe) = backend.send_wqe(index) else {
                break;
            };
            let local = wqe.wr.body.is_local();
            if !local && !wqe.psns.last.is_before(upto) {
                let begun = !upto.is_before(wqe.psns.first);
                return (msn, begun && wqe.wr.body.needs_response());
            }
            if !local {
                msn = msn.next();
            }
            index = index.wrapping_add(1);
        }
        (msn, false)
    }

    fn msn_matches(&self, msn: Msn, upto: Psn, backend: &mut impl Backend) -> bool {
        let (least, one_more) = self.msn_before(upto, backend);
        msn == least || (one_more && msn == least.next())
    }

    /// True if an ACK, or a `negative` acknowledgement, for a PSN in flight is to be accepted: if
    /// its MSN is the one that belongs to the PSN (IBTA 9.7.7.1), or is adopted.
    pub(super) fn is_plausible(
        &mut self,
        psn: Psn,
        negative: bool,
        msn: Msn,
        backend: &mut impl Backend,
    ) -> bool {
        let upto = if negative { psn } else { psn.next() };
        if self.req.msn_resyncs >= MAX_RESYNCS || self.msn_matches(msn, upto, backend) {
            return true;
        }
        let exact = if negative {
            psn == self.req.una_psn
        } else {
            upto == self.req.psn
        };
        if exact {
            backend.count(Count::MsnResync);
            self.req.msn_resyncs = self.req.msn_resyncs.saturating_add(1);
            let (least, _) = self.msn_before(upto, backend);
            self.req.una_msn = self.req.una_msn.ahead_by(msn, least);
        }
        exact
    }

    /// The oldest request that awaits a response, to which the next response must belong.
    pub(super) fn oldest_awaiting_response(
        &self,
        backend: &mut impl Backend,
    ) -> Option<(u32, SendWqe)> {
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let wqe = *backend.send_wqe(index)?;
            if wqe.wr.body.needs_response() {
                return Some((index, wqe));
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// PSN of the next packet of the response to `wqe`.
    pub(in crate::engine) fn expected_response(&self, wqe: &SendWqe) -> Psn {
        let done = wqe.placed.checked_div(self.attrs.mtu.bytes());
        wqe.psns.first.wrapping_add(done.unwrap_or(0))
    }

    /// PSN after the last request before `upto` that awaits a response.
    pub(super) fn end_of_responses(&self, upto: Psn, backend: &mut impl Backend) -> Psn {
        let mut end = self.req.una_psn;
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let Some(wqe) = backend.send_wqe(index) else {
                break;
            };
            if !wqe.psns.first.is_before(upto) {
                break;
            }
            if wqe.wr.body.needs_response() {
                end = wqe.psns.last.next();
            }
            index = index.wrapping_add(1);
        }
        end
    }

    /// Notes which response the next one must be, if responses are kept or missing.
    pub(in crate::engine) fn find_expected_response(&mut self, backend: &mut impl Backend) {
        if !self.req.responses.is_unused() {
            self.expect_response(backend);
        }
    }

    /// Notes which response the next one must be.
    pub(super) fn expect_response(&mut self, backend: &mut impl Backend) {
        match self.oldest_awaiting_response(backend) {
            Some((_, wqe)) => {
                let expected = self.expected_response(&wqe);
                self.req.responses.expect(expected);
            }
            None => self.req.responses = KeptResponses::new(),
        }
    }

    /// A response of the peer, as its token shows, that is ahead of the `expected` one.
    pub(super) fn response_ahead(
        &mut self,
        now: Instant,
        psn: Psn,
        expected: Psn,
        backend: &mut impl Backend,
    ) -> Handled {
        // It acknowledges everything before the request that awaits its response.
        self.acknowledge(now, expected, backend);
        self.req.responses.expect(expected);
        let arrival = self.req.responses.arrive(psn);
        if arrival.lost {
            self.on_missing_responses(now, backend);
        }
        match arrival.new && self.state != State::Err {
            true => Handled::Ahead,
            false => Handled::Done,
        }
    }

    /// A response with a PSN after the `expected` one.
    pub(super) fn response_out_of_order(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        expected: Psn,
        backend: &mut impl Backend,
    ) {
        let psn = packet.bth().psn;
        let certain = psn == expected.next()
            || packet
                .aeth()
                .is_some_and(|aeth| self.msn_matches(aeth.msn(), psn.next(), backend));
        if certain {
            // A peer that does not send the token wants nothing to be kept.
            self.req.responses.clear();
            // It acknowledges everything before the request that awaits its response.
            self.acknowledge(now, expected, backend);
            let latest = self.req.latest_ahead.replace(psn);
            if latest.is_some_and(|latest| !latest.is_before(psn)) {
                // It arrived before: the peer has answered the retransmitted request, and the
                // expected response was lost again.
                self.req.implied_nak_psn = None;
            }
            self.implied_nak(now, None, backend);
            return;
        }
        // The peer may still send what was requested before.
        self.extend_timer(now);
        if self.req.implied_nak_psn != Some(self.req.una_psn) {
            let due = now.saturating_add(GAP_WAIT_NS);
            self.req.loss_deadline.get_or_insert(due);
        }
    }
}
