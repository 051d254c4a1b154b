// SPDX-License-Identifier: GPL-2.0
//! Sending once more: going back, timeouts, questions to a peer that is silent.

use super::{index_before, packets};
use crate::engine::attrs::State;
use crate::engine::ports::{Count, Ports, Tx};
use crate::engine::qp::Qp;
use crate::engine::wc::WcStatus;
use crate::engine::wr::SendOp;
use crate::ids::Psn;

/// Packets of a READ without any answer that may be asked for again before the timer expires.
const MAX_ASKED: u32 = 256;
/// The same before it is known how long a round trip takes.
const MAX_ASKED_EARLY: u32 = 16;

/// What is taken for a round trip as long as none has been measured, in nanoseconds.
const EARLY_ROUND_TRIP_NS: u64 = 500_000;

impl Qp {
    /// Puts the cursor on `psn`, which lies between `una_psn` and `top`.
    pub(in crate::engine) fn seek(&mut self, psn: Psn, ports: &mut impl Ports) {
        let mtu = self.attrs.mtu.bytes();
        let mut index = self.req.una;
        while index_before(index, self.req.fresh) {
            let Some(slot) = ports.sq_slot(index) else {
                break;
            };
            let run = slot.run;
            if !run.last.is_before(psn) {
                self.req.cur = index;
                let ahead = u32::try_from(psn.delta(run.first)).unwrap_or(0);
                if slot.wr.op.needs_response() {
                    self.req.offset = 0;
                    let done = run.placed.checked_div(mtu).unwrap_or(0);
                    self.req.psn = run.first.wrapping_add(done);
                } else {
                    self.req.offset = ahead.saturating_mul(mtu);
                    self.req.psn = psn;
                }
                return;
            }
            index = index.wrapping_add(1);
        }
        self.req.cur = self.req.fresh;
        self.req.offset = 0;
        self.req.psn = self.req.top;
    }

    /// A NAK, or a hole in the responses, says that the packet `from` is lost.
    ///
    /// What is in flight from there on is sent again once for a round trip, however often it is said:
    /// only a packet that has been sent since can have been lost since. False if nothing was sent
    /// again now.
    pub(in crate::engine) fn repeat(
        &mut self,
        now: u64,
        from: Psn,
        ports: &mut impl Ports,
    ) -> bool {
        if !from.is_before(self.req.psn) {
            // It is about to be sent.
            return false;
        }
        let least = self.req.prober.least_round_trip();
        let recent = |at: &u64| now.saturating_sub(*at) < least.wrapping_shr(1);
        if let Some(at) = self.req.repeated.filter(recent) {
            // The peer said so before it had any of that. If round trips are shorter than they
            // used to be it said so after all, and nothing will have come by then.
            let usual = self.req.prober.recent().unwrap_or(least);
            let due = at.saturating_add(usual.saturating_mul(2));
            self.req.gap_due.get_or_insert(due);
            return false;
        }
        // The packet may still be on its way in some queue: so long it costs nothing.
        let usual = self.req.prober.recent().unwrap_or(EARLY_ROUND_TRIP_NS);
        let paid = |at| now.saturating_sub(at) < usual;
        if self.req.paid.is_some_and(paid) || self.pay(now, ports) {
            self.go_back(now, from, ports);
        }
        true
    }

    /// Sends again from the oldest unacknowledged packet, or gives up.
    pub(in crate::engine) fn retry(&mut self, now: u64, ports: &mut impl Ports) {
        if self.pay(now, ports) {
            if self.trains.on_timeout(now, self.req.una_psn) {
                ports.count(Count::TrainsEnded);
            }
            self.go_back(now, self.req.una_psn, ports);
        }
    }

    /// Uses up a retry. False if there is none: the oldest request has failed.
    fn pay(&mut self, now: u64, ports: &mut impl Ports) -> bool {
        if self.req.retries == 0 {
            ports.count(Count::RetryExceeded);
            if let Some(slot) = ports.sq_slot(self.req.una).map(|s| *s) {
                self.fail(&slot, WcStatus::RetryExcErr, ports);
            }
            return false;
        }
        ports.count(Count::Retry);
        self.req.retries = self.req.retries.saturating_sub(1);
        self.req.paid = Some(now);
        true
    }

    /// Sends again what is in flight from `from` on.
    fn go_back(&mut self, now: u64, from: Psn, ports: &mut impl Ports) {
        if self.trains.on_go_back(now, from) {
            ports.count(Count::TrainsEnded);
        }
        self.req.repeated = Some(now);
        self.req.gap_due = None;
        self.req.window.on_loss(self.req.top);
        self.req.prober.on_repeat(now);
        self.seek(from, ports);
        self.req.rearm(now, &self.attrs);
    }

    /// Nothing was heard for some round trips: asks again. For READs and ATOMICs see
    /// [`ask`](Self::ask), of anything else the last packet is sent once more.
    fn probe(&mut self, now: u64, ports: &mut impl Ports) {
        let idle = self.req.psn == self.req.una_psn || self.req.rnr_until.is_some();
        if idle || !matches!(self.state, State::Rts | State::Sqd) {
            return;
        }
        let oldest = ports.sq_slot(self.req.una).map(|slot| slot.wr.op);
        if oldest.is_some_and(SendOp::needs_response) {
            self.req.question = true;
        } else {
            let last = self.req.psn.prev();
            if self.trains.on_silence(now, self.req.una_psn, last) {
                ports.count(Count::TrainsEnded);
            }
            self.req.ack_now = true;
            self.seek(last, ports);
        }
    }

    /// Asks once more for the oldest request, a READ or ATOMIC, and leaves the cursor where it is.
    ///
    /// The peer may just be slow, with all responses on their way, and a READ asked for twice is
    /// sent twice, so of a READ that has begun to arrive only the packet that is expected next is
    /// asked for. A responder works in order: if that packet is still missing when this answer
    /// comes, everything before the answer is lost, and only then all is asked for again. IBTA
    /// vol1 9.7.5.1.3 lets a repeated READ ask for a part of the original; but if the original was
    /// lost the part would take its place.
    pub(super) fn ask(&mut self, ports: &mut impl Ports, tx: &mut impl Tx) {
        self.req.question = false;
        let index = self.req.una;
        let Some(slot) = ports.sq_slot(index).map(|s| *s) else {
            return;
        };
        let mtu = self.attrs.mtu.bytes();
        // If it cannot be sent now, the next question is soon enough.
        let _ = match slot.wr.op {
            SendOp::Read if slot.run.placed > 0 => {
                self.req.asked_at = Some(self.req.una_psn);
                self.send_read(&slot, mtu, ports, tx)
            }
            SendOp::Read => {
                let most = match self.req.prober.round_trip() {
                    Some(_) => MAX_ASKED,
                    None => MAX_ASKED_EARLY,
                };
                if packets(slot.wr.length, mtu) > most {
                    return;
                }
                self.send_read(&slot, u32::MAX, ports, tx)
            }
            SendOp::CmpSwp | SendOp::FetchAdd => self.send_atomic(&slot, ports, tx),
            SendOp::AtomicWrite | SendOp::Flush => self.send_placed(index, &slot, ports, tx),
            _ => Ok(()),
        };
    }

    /// Acknowledgement and receiver-not-ready timers.
    pub(in crate::engine) fn request_timeout(&mut self, now: u64, ports: &mut impl Ports) {
        if self.req.rnr_until.is_some_and(|at| at <= now) {
            self.req.rnr_until = None;
            self.req.rearm(now, &self.attrs);
        }
        if self.req.prober.expired(now) {
            self.probe(now, ports);
        }
        if self.req.gap_due.is_some_and(|at| at <= now) {
            self.req.gap_due = None;
            let oldest = ports.sq_slot(self.req.una).map(|slot| slot.wr.op);
            if oldest.is_some_and(SendOp::needs_response) {
                self.response_missing(now, ports);
            } else {
                self.repeat(now, self.req.una_psn, ports);
            }
        }
        if self.req.deadline.is_some_and(|at| at <= now) {
            self.req.deadline = None;
            if self.req.stalled {
                // The peer is not to blame: it may have answered all there was to answer.
                self.req.rearm(now, &self.attrs);
                return;
            }
            if matches!(self.state, State::Rts | State::Sqd) && self.req.una_psn != self.req.top {
                ports.count(Count::Timeout);
                self.req.gap_at = None;
                self.req.window.on_timeout(self.req.top);
                self.retry(now, ports);
            }
        }
    }
}
