// SPDX-License-Identifier: GPL-2.0
//! Sending once more: going back, timeouts, questions to a peer that is silent.

use super::{index_before, packets};
use crate::engine::attrs::State;
use crate::engine::backend::{Backend, Count, Tx};
use crate::engine::qp::Qp;
use crate::engine::wc::WcStatus;
use crate::engine::wr::SendOp;
use crate::ids::Psn;

/// Packets of a READ without any answer that may be asked for again before the timer expires.
const MAX_PROBE_PACKETS: u32 = 256;
/// The same before it is known how long a round trip takes.
const MAX_PROBE_PACKETS_INITIAL: u32 = 16;

/// What is taken for a round trip as long as none has been measured, in nanoseconds.
const INITIAL_RTT_NS: u64 = 500_000;

impl Qp {
    /// Puts the cursor on `psn`, which lies between `una_psn` and `top`.
    pub(in crate::engine) fn move_cursor(&mut self, psn: Psn, backend: &mut impl Backend) {
        let mtu = self.attrs.mtu.bytes();
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let Some(wqe) = backend.send_wqe(index) else {
                break;
            };
            let psns = wqe.psns;
            if !psns.last.is_before(psn) {
                self.req.cur = index;
                let ahead = u32::try_from(psn.delta(psns.first)).unwrap_or(0);
                if wqe.wr.op.needs_response() {
                    self.req.offset = 0;
                    let done = wqe.placed.checked_div(mtu).unwrap_or(0);
                    self.req.psn = psns.first.wrapping_add(done);
                } else {
                    self.req.offset = ahead.saturating_mul(mtu);
                    self.req.psn = psn;
                }
                return;
            }
            index = index.wrapping_add(1);
        }
        self.req.cur = self.req.unsent;
        self.req.offset = 0;
        self.req.psn = self.req.max_psn;
    }

    /// A NAK, or a hole in the responses, says that the packet `from` is lost.
    ///
    /// What is in flight from there on is sent again once for a round trip, however often it is said:
    /// only a packet that has been sent since can have been lost since. False if nothing was sent
    /// again now.
    pub(in crate::engine) fn handle_loss(
        &mut self,
        now: u64,
        from: Psn,
        backend: &mut impl Backend,
    ) -> bool {
        if !from.is_before(self.req.psn) {
            // It is about to be sent.
            return false;
        }
        let least = self.req.prober.min_rtt();
        let recent = |at: &u64| now.saturating_sub(*at) < least.wrapping_shr(1);
        if let Some(at) = self.req.retransmitted_at.filter(recent) {
            // The peer said so before it had any of that. If round trips are shorter than they
            // used to be it said so after all, and nothing will have come by then.
            let usual = self.req.prober.current_rtt().unwrap_or(least);
            let due = at.saturating_add(usual.saturating_mul(2));
            self.req.loss_deadline.get_or_insert(due);
            return false;
        }
        // The packet may still be on its way in some queue: so long it costs nothing.
        let usual = self.req.prober.current_rtt().unwrap_or(INITIAL_RTT_NS);
        let covered = |at| now.saturating_sub(at) < usual;
        if self.req.retry_used_at.is_some_and(covered) || self.use_retry(now, backend) {
            self.go_back(now, from, backend);
        }
        true
    }

    /// Sends again from the oldest unacknowledged packet, or gives up.
    pub(in crate::engine) fn retry(&mut self, now: u64, backend: &mut impl Backend) {
        if self.use_retry(now, backend) {
            if self.gso.on_timeout(now, self.req.una_psn) {
                backend.count(Count::SegmentationFallback);
            }
            self.go_back(now, self.req.una_psn, backend);
        }
    }

    /// Uses up a retry. False if there is none: the oldest request has failed.
    fn use_retry(&mut self, now: u64, backend: &mut impl Backend) -> bool {
        if self.req.retries == 0 {
            backend.count(Count::RetryExceeded);
            if let Some(wqe) = backend.send_wqe(self.req.una).map(|wqe| *wqe) {
                self.fail_oldest(&wqe, WcStatus::RetryExcErr, backend);
            }
            return false;
        }
        backend.count(Count::Retry);
        self.req.retries = self.req.retries.saturating_sub(1);
        self.req.retry_used_at = Some(now);
        true
    }

    /// Sends again what is in flight from `from` on.
    fn go_back(&mut self, now: u64, from: Psn, backend: &mut impl Backend) {
        if self.gso.on_go_back(now, from) {
            backend.count(Count::SegmentationFallback);
        }
        self.req.retransmitted_at = Some(now);
        self.req.loss_deadline = None;
        self.req.window.on_loss(self.req.max_psn);
        self.req.prober.on_retransmit(now);
        self.move_cursor(from, backend);
        self.req.rearm(now, &self.attrs);
    }

    /// Nothing was heard for some round trips: asks again. For READs and ATOMICs see
    /// [`ask`](Self::ask), of anything else the last packet is sent once more.
    fn probe(&mut self, now: u64, backend: &mut impl Backend) {
        let idle = self.req.psn == self.req.una_psn || self.req.rnr_until.is_some();
        if idle || !matches!(self.state, State::Rts | State::Sqd) {
            return;
        }
        let oldest = backend.send_wqe(self.req.una).map(|wqe| wqe.wr.op);
        if oldest.is_some_and(SendOp::needs_response) {
            self.req.probe_pending = true;
        } else {
            let last = self.req.psn.prev();
            if self.gso.on_probe(now, self.req.una_psn, last) {
                backend.count(Count::SegmentationFallback);
            }
            self.req.ack_now = true;
            self.move_cursor(last, backend);
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
    pub(super) fn probe_oldest(&mut self, backend: &mut impl Backend, tx: &mut impl Tx) {
        self.req.probe_pending = false;
        let index = self.req.una;
        let Some(wqe) = backend.send_wqe(index).map(|wqe| *wqe) else {
            return;
        };
        let mtu = self.attrs.mtu.bytes();
        // If it cannot be sent now, the next question is soon enough.
        let _ = match wqe.wr.op {
            SendOp::Read if wqe.placed > 0 => {
                self.req.probed_psn = Some(self.req.una_psn);
                self.send_read(&wqe, mtu, backend, tx)
            }
            SendOp::Read => {
                let most = match self.req.prober.srtt() {
                    Some(_) => MAX_PROBE_PACKETS,
                    None => MAX_PROBE_PACKETS_INITIAL,
                };
                if packets(wqe.wr.length, mtu) > most {
                    return;
                }
                self.send_read(&wqe, u32::MAX, backend, tx)
            }
            SendOp::CmpSwp | SendOp::FetchAdd => self.send_atomic(&wqe, backend, tx),
            SendOp::AtomicWrite | SendOp::Flush => self.send_placement(index, &wqe, backend, tx),
            _ => Ok(()),
        };
    }

    /// Acknowledgement and receiver-not-ready timers.
    pub(in crate::engine) fn request_timeout(&mut self, now: u64, backend: &mut impl Backend) {
        if self.req.rnr_until.is_some_and(|at| at <= now) {
            self.req.rnr_until = None;
            self.req.rearm(now, &self.attrs);
        }
        if self.req.prober.expired(now) {
            self.probe(now, backend);
        }
        if self.req.loss_deadline.is_some_and(|at| at <= now) {
            self.req.loss_deadline = None;
            let oldest = backend.send_wqe(self.req.una).map(|wqe| wqe.wr.op);
            if oldest.is_some_and(SendOp::needs_response) {
                self.implied_nak(now, backend);
            } else {
                self.handle_loss(now, self.req.una_psn, backend);
            }
        }
        if self.req.deadline.is_some_and(|at| at <= now) {
            self.req.deadline = None;
            if self.req.fault_pending {
                // The peer is not to blame: it may have answered all there was to answer.
                self.req.rearm(now, &self.attrs);
                return;
            }
            if matches!(self.state, State::Rts | State::Sqd) && self.req.una_psn != self.req.max_psn
            {
                backend.count(Count::Timeout);
                self.req.implied_nak_psn = None;
                self.req.window.on_timeout(self.req.max_psn);
                self.retry(now, backend);
            }
        }
    }
}
