// SPDX-License-Identifier: GPL-2.0
//! Retransmission: go-back-N, timeouts, probes.

use super::{index_before, packets};
use crate::engine::attrs::State;
use crate::engine::backend::{Backend, Count, Tx};
use crate::engine::qp::Qp;
use crate::engine::wc::WcStatus;
use crate::engine::wr::SendBody;
use crate::ids::Psn;
use crate::time::Instant;

/// Maximum response packets of a READ without any response that a probe may request again.
const MAX_PROBE_PACKETS: u32 = 256;
/// The same before the first round trip sample.
const MAX_PROBE_PACKETS_INITIAL: u32 = 16;

/// Assumed round trip time before the first sample, in nanoseconds.
const INITIAL_RTT_NS: u64 = 500_000;

impl Qp {
    /// Moves the cursor to `psn`, which is between `una_psn` and `max_psn`.
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
                if wqe.wr.body.needs_response() {
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

    /// Handles a NAK, or an implied NAK, for the packet `from`.
    ///
    /// Retransmits the packets in flight from there on, at most once per round trip: later NAKs in
    /// that time were caused by the same loss. False if it does not go back now.
    pub(in crate::engine) fn handle_loss(
        &mut self,
        now: Instant,
        from: Psn,
        backend: &mut impl Backend,
    ) -> bool {
        if !from.is_before(self.req.psn) {
            // Its retransmission is already pending.
            return false;
        }
        let least = self.req.prober.min_rtt_ns();
        let recent = |at: &Instant| now.ns_since(*at) < least.wrapping_shr(1);
        if let Some(at) = self.req.retransmitted_at.filter(recent) {
            // The peer sent this NAK before any retransmitted packet arrived. If the round trip has
            // become shorter, it did not, and the loss timer will expire.
            let usual = self.req.prober.current_rtt_ns().unwrap_or(least);
            let due = at.saturating_add(usual.saturating_mul(2));
            self.req.loss_deadline.get_or_insert(due);
            return false;
        }
        // The packet may still be in a queue: one retry covers one round trip.
        let usual = self.req.prober.current_rtt_ns().unwrap_or(INITIAL_RTT_NS);
        let covered = |at| now.ns_since(at) < usual;
        if self.req.retry_used_at.is_some_and(covered) || self.use_retry(now, backend) {
            self.go_back(now, from, backend);
        }
        true
    }

    /// Retransmits from the oldest unacknowledged packet, or fails the QP if no retry is left.
    pub(in crate::engine) fn retry(&mut self, now: Instant, backend: &mut impl Backend) {
        if self.use_retry(now, backend) {
            if self.gso.on_timeout(now, self.req.una_psn) {
                backend.count(Count::GsoFallback);
            }
            self.go_back(now, self.req.una_psn, backend);
        }
    }

    /// Decrements the transport retry counter (IBTA 9.7.6). False if it was zero: the oldest WQE
    /// has failed.
    fn use_retry(&mut self, now: Instant, backend: &mut impl Backend) -> bool {
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

    /// Go-back-N: retransmits the packets in flight from `from` on (IBTA 9.7.3).
    fn go_back(&mut self, now: Instant, from: Psn, backend: &mut impl Backend) {
        if self.gso.on_go_back(now, from) {
            backend.count(Count::GsoFallback);
        }
        self.req.retransmitted_at = Some(now);
        self.req.loss_deadline = None;
        self.req.window.on_loss(self.req.max_psn);
        self.req.prober.on_retransmit(now);
        self.req.prober.on_loss(from);
        self.move_cursor(from, backend);
        self.req.rearm(now, &self.attrs);
    }

    /// True if the oldest request has a response of its own.
    fn oldest_needs_response(&self, backend: &mut impl Backend) -> bool {
        let oldest = backend.send_wqe(self.req.una);
        oldest.is_some_and(|wqe| wqe.wr.body.needs_response())
    }

    /// The probe timer expired. Retransmits the last packet, or a READ or ATOMIC as
    /// [`probe_oldest`](Self::probe_oldest) describes.
    fn probe(&mut self, now: Instant, backend: &mut impl Backend) {
        let idle = self.req.psn == self.req.una_psn || self.req.rnr_until.is_some();
        if idle || !matches!(self.state, State::Rts | State::Sqd) {
            return;
        }
        self.same_host.forget();
        if self.oldest_needs_response(backend) {
            self.req.probe_pending = true;
        } else {
            let last = self.req.psn.prev();
            if self.gso.on_probe(now, self.req.una_psn, last) {
                backend.count(Count::GsoFallback);
            }
            self.req.ack_now = true;
            self.move_cursor(last, backend);
        }
    }

    /// Retransmits the oldest request, a READ or ATOMIC, without moving the cursor.
    ///
    /// The peer may just be slow with all responses in flight, and answers a duplicate READ with a
    /// second copy of the data. So once a READ has begun to arrive, the probe requests only the
    /// next expected packet. A responder works in order: if earlier responses are still missing
    /// when the probe is answered they are lost, and only then the requester retransmits all.
    /// IBTA 9.4.4 allows a duplicate READ to request a part of the original; but if the
    /// original was lost, the part would be executed in its place.
    pub(super) fn probe_oldest(&mut self, backend: &mut impl Backend, tx: &mut impl Tx) {
        self.req.probe_pending = false;
        let index = self.req.una;
        let Some(wqe) = backend.send_wqe(index).map(|wqe| *wqe) else {
            return;
        };
        let mtu = self.attrs.mtu.bytes();
        // If it cannot be sent now, the next probe is soon enough.
        let _ = match &wqe.wr.body {
            SendBody::Read(from) if wqe.placed > 0 => {
                self.req.probed_psn = Some(self.req.una_psn);
                self.send_read(&wqe, from, mtu, backend, tx)
            }
            SendBody::Read(from) => {
                let max_packets = match self.req.prober.srtt_ns() {
                    Some(_) => MAX_PROBE_PACKETS,
                    None => MAX_PROBE_PACKETS_INITIAL,
                };
                if packets(wqe.wr.length, mtu) > max_packets {
                    return;
                }
                self.send_read(&wqe, from, u32::MAX, backend, tx)
            }
            body if body.is_single() => self.send_single(index, &wqe, backend, tx),
            _ => Ok(()),
        };
    }

    /// Handles the acknowledgement, RNR NAK, probe and loss timers.
    pub(in crate::engine) fn request_timeout(&mut self, now: Instant, backend: &mut impl Backend) {
        if self.req.rnr_until.is_some_and(|at| at <= now) {
            self.req.rnr_until = None;
            self.req.rearm(now, &self.attrs);
        }
        if self.req.prober.expired(now) {
            self.probe(now, backend);
        }
        if self.req.loss_deadline.is_some_and(|at| at <= now) {
            self.req.loss_deadline = None;
            if self.oldest_needs_response(backend) {
                self.implied_nak(now, backend);
            } else {
                self.handle_loss(now, self.req.una_psn, backend);
            }
        }
        if self.req.deadline.is_some_and(|at| at <= now) {
            self.req.deadline = None;
            if self.req.fault_pending {
                // Transmission waits for a local page fault, the peer may have answered everything.
                self.req.rearm(now, &self.attrs);
                return;
            }
            if matches!(self.state, State::Rts | State::Sqd) && self.req.una_psn != self.req.max_psn
            {
                backend.count(Count::Timeout);
                self.same_host.forget();
                self.req.implied_nak_psn = None;
                self.req.window.on_timeout(self.req.max_psn);
                self.retry(now, backend);
            }
        }
    }
}
