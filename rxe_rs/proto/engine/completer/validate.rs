// SPDX-License-Identifier: GPL-2.0
//! What makes a response believable to somebody who may be answered by strangers.
//!
//! Whoever forges the peer's address must guess the number of the queue pair, 24 bits. Of the PSNs all
//! those in flight are good for an acknowledgement, up to 2^22 of 2^24, so a PSN alone may be worth two
//! bits only. But the MSN of an acknowledgement is no free choice: it counts the requests that the
//! peer has executed from its first on (IBTA vol1 9.7.7.1), so it follows from the PSN. The rules:
//!
//! - An ACK or NAK is believed if its MSN is the one that goes with its PSN: one value of 2^24 for each
//!   PSN in flight, 24 + 24 + 24 - 22 = 50 bits at the very least.
//! - A peer whose MSN counts from another start, or that has lost count, must not be stopped. An
//!   ACK for exactly the packet that was sent last, or a NAK for exactly the oldest one in flight, is
//!   believed whatever its MSN, which is taken over: 24 + 24 = 48 bits. Since the window ends
//!   somewhere and its last packet asks for an acknowledgement, such an answer comes. A peer that
//!   is out of step again and again is not asked for its MSN any more.
//! - READ data and results of ATOMICs are believed if their PSN is the one that comes next: 48 bits.
//!   That later ones have arrived, so that a response was lost, is believed of the PSN after that
//!   and of an MSN that fits. Anything else may be a stranger's, and if the data comes while traffic
//!   runs nothing had been lost.
//!
//! What is not believed is counted and changes nothing. If it was from the peer after all, the next
//! probe (`probe.rs`) brings another.

use crate::engine::backend::{Backend, Count};
use crate::engine::qp::Qp;
use crate::engine::requester::index_before;
use crate::engine::wr::SendWqe;
use crate::ids::{Msn, Psn};
use crate::wire::packet::Packet;

/// How long responses are waited for of which later ones seem to have arrived, in nanoseconds.
const GAP_WAIT_NS: u64 = 200_000;

/// Times that a peer's MSN is learnt anew before it is given up on.
const MAX_RESYNCS: u8 = 3;

impl Qp {
    /// The MSN of a peer that has executed everything before `upto`, and whether one more is as
    /// good: a READ counts when its execution begins, before its last PSN.
    fn msn_before(&self, upto: Psn, backend: &mut impl Backend) -> (Msn, bool) {
        let mut msn = self.req.una_msn;
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let Some(wqe) = backend.send_wqe(index) else {
                break;
            };
            let local = wqe.wr.op.is_local();
            if !local && !wqe.psns.last.is_before(upto) {
                let begun = !upto.is_before(wqe.psns.first);
                return (msn, begun && wqe.wr.op.needs_response());
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

    /// Whether to believe an acknowledgement, positive or negative, for a PSN in flight.
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
            backend.count(Count::MsnLearnt);
            self.req.msn_resyncs = self.req.msn_resyncs.saturating_add(1);
            let (least, _) = self.msn_before(upto, backend);
            self.req.una_msn = self.req.una_msn.ahead_by(msn, least);
        }
        exact
    }

    /// The oldest request that is answered by data: it alone can be answered next.
    pub(super) fn oldest_awaiting_response(
        &self,
        backend: &mut impl Backend,
    ) -> Option<(u32, SendWqe)> {
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let wqe = *backend.send_wqe(index)?;
            if wqe.wr.op.needs_response() {
                return Some((index, wqe));
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// A response that is further on than the `expected` one.
    pub(super) fn response_out_of_order(
        &mut self,
        now: u64,
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
            // What comes before the request that waits is acknowledged by this.
            self.acknowledge(now, expected, backend);
            self.implied_nak(now, backend);
        } else if self.req.implied_nak_psn != Some(self.req.una_psn) {
            let due = now.saturating_add(GAP_WAIT_NS);
            self.req.loss_deadline.get_or_insert(due);
        }
    }
}
