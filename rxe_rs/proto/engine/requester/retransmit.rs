// SPDX-License-Identifier: GPL-2.0
//! Retransmission: go-back-N, selective repeat, timeouts, probes.

use super::{ack_deadline, index_before, packets, Requester};
use crate::engine::attrs::{Progress, State};
use crate::engine::backend::{Backend, Count, LocalFault, Tx, TxFault};
use crate::engine::qp::Qp;
use crate::engine::wc::WcStatus;
use crate::engine::window::CongestionWindow;
use crate::engine::wr::{SendBody, SendWqe};
use crate::ids::Psn;
use crate::time::Instant;

/// Maximum response packets of a READ without any response that a probe may request again.
const MAX_PROBE_PACKETS: u32 = 256;
/// The same before the first round trip sample.
const MAX_PROBE_PACKETS_INITIAL: u32 = 16;

/// Assumed round trip time before the first sample, in nanoseconds.
const INITIAL_RTT_NS: u64 = 500_000;

/// A selective repeat in progress: the cursor is before `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat {
    /// PSN after the last packet that is repeated.
    end: Psn,
    /// Where the cursor was before.
    resume: Psn,
    /// PSN of the first packet that is repeated, if one behind them is to show that they have been
    /// lost again.
    begin: Option<Psn>,
}

impl Requester {
    /// True while packets are repeated that are in flight already, whatever the window is.
    #[inline]
    pub(super) fn is_repeating(&self) -> bool {
        self.repeat.is_some()
    }

    /// True if the next packet is the first one of a selective repeat.
    pub(super) fn begins_repeat(&self) -> bool {
        self.repeat
            .is_some_and(|repeat| repeat.begin == Some(self.psn))
    }

    /// True if the packet before `psn` is the last one that is repeated.
    #[inline]
    pub(super) fn ends_repeat(&self, psn: Psn) -> bool {
        self.repeat.is_some_and(|repeat| !psn.is_before(repeat.end))
    }
}

impl Qp {
    /// Moves the cursor to `psn`, which is between `una_psn` and `max_psn`.
    pub(in crate::engine) fn move_cursor(&mut self, psn: Psn, backend: &mut impl Backend) {
        self.req.repeat = None;
        self.req.fault_pending = false;
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
        if self.covers_or_uses_retry(now, backend) {
            self.go_back(now, from, backend);
        }
        true
    }

    /// Handles a NAK for `count` packets from `from` on: the peer has kept what follows them.
    pub(in crate::engine) fn repeat(
        &mut self,
        now: Instant,
        from: Psn,
        count: u32,
        toggle: bool,
        backend: &mut impl Backend,
    ) {
        self.req.marks_requests = true;
        let resume = self.req.repeat.map_or(self.req.psn, |repeat| repeat.resume);
        if !from.is_before(resume) {
            // Its retransmission is already pending.
            return;
        }
        if self.req.repeated == Some(from) && toggle != self.req.toggle {
            // A copy of a NAK: the peer has not received what was sent since.
            return;
        }
        if self.gso.is_suspect() {
            // Retransmit more than one batch: the first packet of the next one shows at once that
            // the second packet of this one was damaged again.
            self.handle_loss(now, from, backend);
            return;
        }
        if !self.covers_or_uses_retry(now, backend) {
            return;
        }
        backend.count(Count::SelectiveRepeat);
        self.on_retransmit(now, from, backend);
        let end = from.wrapping_add(count);
        let end = if end.is_before(resume) { end } else { resume };
        self.move_cursor(from, backend);
        self.req.repeat = Some(Repeat {
            end,
            resume,
            begin: Some(from),
        });
        self.req.repeated = Some(from);
        self.req.rearm(now, &self.attrs);
    }

    /// Moves the cursor, which is before `una_psn`, to what is to be sent next. What follows a
    /// selective repeat is not sent again.
    pub(in crate::engine) fn skip_acknowledged(&mut self, backend: &mut impl Backend) {
        let una = self.req.una_psn;
        match self
            .req
            .repeat
            .filter(|repeat| una.is_before(repeat.resume))
        {
            Some(repeat) if una.is_before(repeat.end) => {
                self.move_cursor(una, backend);
                self.req.repeat = Some(repeat);
            }
            Some(repeat) => self.move_cursor(repeat.resume, backend),
            None => self.move_cursor(una, backend),
        }
    }

    /// Moves the cursor to the packet `psn`, and then to `resume`.
    fn repeat_packet(&mut self, psn: Psn, resume: Psn, backend: &mut impl Backend) {
        self.move_cursor(psn, backend);
        self.req.repeat = Some(Repeat {
            end: psn.next(),
            resume,
            begin: None,
        });
    }

    /// Moves the cursor back to where it was if all that was to be repeated has been sent.
    #[inline]
    pub(super) fn end_repeat(&mut self, backend: &mut impl Backend) {
        if let Some(repeat) = self
            .req
            .repeat
            .filter(|_| self.req.ends_repeat(self.req.psn))
        {
            self.req.repeat = None;
            if !self.req.psn.is_before(repeat.resume) {
                return;
            }
            let sent = u32::try_from(repeat.resume.delta(self.req.una_psn)).unwrap_or(0);
            let stops = sent >= self.req.window.limit() || repeat.resume == self.req.max_psn;
            match repeat.begin {
                // Nothing else follows that would show that the repeated packets were lost again.
                Some(begin) if stops => {
                    let last = self.newest_probe(begin, repeat.resume, backend);
                    self.repeat_packet(last, repeat.resume, backend);
                }
                _ => self.move_cursor(repeat.resume, backend),
            }
        }
    }

    /// Retransmits from the oldest unacknowledged packet.
    fn retransmit_all(&mut self, now: Instant, backend: &mut impl Backend) {
        if self.gso.on_timeout(now, self.req.una_psn) {
            backend.count(Count::GsoFallback);
        }
        self.req.duplicate_responses = 0;
        self.req.rearm_limit = None;
        self.go_back(now, self.req.una_psn, backend);
    }

    /// Uses a retry; false if the oldest WQE has failed. The packet may still be in a queue: one
    /// retry covers one round trip. It covers twice as long as the one before it if nothing has
    /// arrived since, because the round trip time is not known as long as all is retransmitted.
    fn covers_or_uses_retry(&mut self, now: Instant, backend: &mut impl Backend) -> bool {
        let usual = self.req.prober.current_rtt_ns().unwrap_or(INITIAL_RTT_NS);
        let used = self.attrs.retry_cnt.saturating_sub(self.req.retries);
        let covers = usual.saturating_mul(1u64.wrapping_shl(used.into()));
        let covered = |at| now.ns_since(at) < covers;
        self.req.retry_used_at.is_some_and(covered) || self.use_retry(now, backend)
    }

    /// Responses are missing that [`KeptResponses`](crate::engine::repeat::KeptResponses) has
    /// noted; they are requested again.
    pub(in crate::engine) fn on_missing_responses(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
    ) {
        if !self.covers_or_uses_retry(now, backend) {
            return;
        }
        backend.count(Count::SelectiveRepeat);
        if self.req.responses.misses_expected() {
            self.req.probe_pending = false;
        }
        self.note_loss(now, self.req.una_psn);
        self.req.rearm(now, &self.attrs);
    }

    /// Requests the missing responses again. Returns how to go on if not all could be requested.
    pub(super) fn request_missing(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Option<Progress> {
        self.find_expected_response(backend);
        while let Some((psn, count)) = self.req.responses.missing() {
            if !tx.has_room() {
                return Some(Progress::More);
            }
            let Some((index, wqe)) = self.begun_at(psn, backend) else {
                self.req.responses.forget_missing();
                break;
            };
            let rest = u32::try_from(wqe.psns.last.delta(psn)).unwrap_or(0);
            let rest = rest.saturating_add(1);
            // What follows them is requested, too: when it arrives again, and they have not, they
            // were lost again.
            let more = count.saturating_add(1).min(rest);
            let result = match &wqe.wr.body {
                SendBody::Read(from) => self.send_missing_read(&wqe, from, psn, more, backend, tx),
                body if body.is_single() => self.send_single(index, &wqe, true, backend, tx),
                // The response to a later request acknowledges it.
                _ => Ok(()),
            };
            match result {
                Ok(()) => {
                    let (count, end) = (count.min(rest), psn.wrapping_add(more));
                    let next = self.req.max_psn;
                    self.req.responses.on_requested(psn, count, end, next);
                }
                Err(TxFault::Busy) => {
                    self.pause(now);
                    return Some(Progress::Idle);
                }
                // It stays missing until the page is there, which begins another round. If it is
                // the oldest request, nothing behind it is sent meanwhile.
                Err(TxFault::Fill(LocalFault::NotPresent)) if psn == self.req.una_psn => {
                    self.oldest_waits_for_page(now);
                    return Some(Progress::Idle);
                }
                Err(TxFault::Fill(LocalFault::NotPresent)) => break,
                Err(TxFault::Fill(_)) if psn == self.req.una_psn => {
                    self.fail_oldest(&wqe, WcStatus::LocProtErr, backend);
                    return Some(Progress::Idle);
                }
                Err(TxFault::Unreachable | TxFault::Fill(_)) => {
                    self.req.responses.forget_missing();
                }
            }
            self.oldest_waits_for_peer(now);
        }
        None
    }

    /// The oldest request, which has been sent before, waits for a page, a local wait that uses no
    /// retries: neither the acknowledgement timer nor that of probes runs.
    fn oldest_waits_for_page(&mut self, now: Instant) {
        self.req.deadline = None;
        self.req.prober.on_retransmit(now);
        self.req.prober.rearm(now, false);
    }

    /// The oldest request has been sent again: restarts the probe timer, and starts the
    /// acknowledgement timer unless it runs, or the requester waits after an RNR NAK.
    fn oldest_waits_for_peer(&mut self, now: Instant) {
        let outstanding = self.req.rnr_until.is_none();
        if outstanding && self.req.deadline.is_none() {
            self.req.deadline = ack_deadline(now, &self.attrs);
        }
        self.req.prober.rearm(now, outstanding);
    }

    /// The WQE in flight that has the PSN `psn`, and its index.
    fn begun_at(&self, psn: Psn, backend: &mut impl Backend) -> Option<(u32, SendWqe)> {
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let wqe = *backend.send_wqe(index)?;
            if !wqe.psns.last.is_before(psn) {
                return (!psn.is_before(wqe.psns.first)).then_some((index, wqe));
            }
            index = index.wrapping_add(1);
        }
        None
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
        self.on_retransmit(now, from, backend);
        self.req.responses.forget_requested();
        if from == self.req.una_psn {
            self.req.probe_pending = false;
        }
        self.move_cursor(from, backend);
        self.req.rearm(now, &self.attrs);
    }

    /// Packets from `from` on are retransmitted.
    fn on_retransmit(&mut self, now: Instant, from: Psn, backend: &mut impl Backend) {
        if self.gso.on_go_back(now, from) {
            backend.count(Count::GsoFallback);
        }
        self.req.toggle = !self.req.toggle;
        self.req.retransmitted_at = Some(now);
        self.note_loss(now, from);
    }

    /// The packet `psn`, or its response, was lost.
    fn note_loss(&mut self, now: Instant, psn: Psn) {
        self.req.loss_deadline = None;
        self.req
            .window
            .on_loss(self.req.max_psn, self.req.least_window());
        self.req.merging.on_loss();
        self.req.prober.on_retransmit(now);
        self.req.prober.on_loss(psn);
    }

    /// True if the oldest request has a response of its own.
    fn oldest_needs_response(&self, backend: &mut impl Backend) -> bool {
        let oldest = backend.send_wqe(self.req.una);
        oldest.is_some_and(|wqe| wqe.wr.body.needs_response())
    }

    /// The probe timer expired. Retransmits the last packet, but not a READ with a long response
    /// if there is another, and if that had no response the oldest one; or a READ or ATOMIC as
    /// [`probe_oldest`](Self::probe_oldest) describes.
    fn probe(&mut self, now: Instant, backend: &mut impl Backend) {
        let idle = self.req.psn == self.req.una_psn
            || self.req.rnr_until.is_some()
            || self.req.repeat.is_some();
        if idle || !matches!(self.state, State::Rts | State::Sqd) {
            return;
        }
        self.same_host.forget();
        if self.oldest_needs_response(backend) {
            self.find_expected_response(backend);
            if !self.req.responses.note_missing(true) {
                self.req.probe_pending = true;
            }
        } else {
            let (oldest, end) = (self.req.una_psn, self.req.psn);
            let psn = match self.req.prober.repeats_oldest() {
                true => oldest,
                false => self.newest_probe(oldest, end, backend),
            };
            self.req.passed_over = Some(end).filter(|end| psn.next() != *end);
            if self.gso.on_probe(now, oldest, psn) {
                backend.count(Count::GsoFallback);
            }
            self.req.ack_now = true;
            self.repeat_packet(psn, end, backend);
        }
    }

    /// Maximum response packets of a READ without any response that a probe may request again: the
    /// peer may just be slow.
    fn max_probe_packets(&self) -> u32 {
        match self.req.prober.srtt_ns() {
            Some(_) => MAX_PROBE_PACKETS,
            None => MAX_PROBE_PACKETS_INITIAL,
        }
    }

    /// PSN of the newest packet in flight, from `begin` to before `end`. It is not of a READ with a
    /// response that is too long for a probe, unless all are.
    fn newest_probe(&self, begin: Psn, end: Psn, backend: &mut impl Backend) -> Psn {
        let (max_packets, mtu) = (self.max_probe_packets(), self.attrs.mtu.bytes());
        let last = end.prev();
        let mut newest = last;
        let mut index = self.req.una;
        while index_before(index, self.req.unsent) {
            let Some(wqe) = backend.send_wqe(index) else {
                break;
            };
            let psns = wqe.psns;
            if !psns.first.is_before(end) {
                break;
            }
            let body = &wqe.wr.body;
            let long =
                matches!(body, SendBody::Read(_)) && packets(wqe.wr.length, mtu) > max_packets;
            if !psns.last.is_before(begin) && !long && !body.is_local() {
                newest = if psns.last.is_before(last) {
                    psns.last
                } else {
                    last
                };
            }
            index = index.wrapping_add(1);
        }
        newest
    }

    /// Retransmits the oldest request, a READ or ATOMIC, without moving the cursor.
    ///
    /// The peer may just be slow with all responses in flight, and answers a duplicate READ with a
    /// second copy of the data. So once a READ has begun to arrive, the probe requests only the
    /// next expected packet. A responder works in order: if earlier responses are still missing
    /// when the probe is answered they are lost, and only then the requester retransmits all.
    /// IBTA 9.4.4 allows a duplicate READ to request a part of the original; but if the
    /// original was lost, the part would be executed in its place. So a READ with a long response,
    /// none of which has arrived, is repeated only if the peer has acknowledged everything before
    /// it after a probe that passed it over, and then is silent.
    pub(super) fn probe_oldest(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) {
        self.req.probe_pending = false;
        let passed_over = self.req.passed_over.take();
        let index = self.req.una;
        if !index_before(index, self.req.unsent) {
            // The request has completed, and the next one has no PSN yet.
            return;
        }
        let Some(wqe) = backend.send_wqe(index).map(|wqe| *wqe) else {
            return;
        };
        let mtu = self.attrs.mtu.bytes();
        let sent = match &wqe.wr.body {
            SendBody::Read(from) if wqe.placed > 0 => {
                self.req.probed_psn = Some(self.req.una_psn);
                self.send_read(&wqe, from, mtu, backend, tx)
            }
            SendBody::Read(from) => {
                let answered = passed_over.is_some_and(|end| wqe.psns.first.is_before(end));
                if packets(wqe.wr.length, mtu) > self.max_probe_packets() && !answered {
                    return;
                }
                self.send_read(&wqe, from, u32::MAX, backend, tx)
            }
            body if body.is_single() => self.send_single(index, &wqe, false, backend, tx),
            _ => Ok(()),
        };
        match sent {
            // It is sent as soon as the page is there, which begins another round.
            Err(TxFault::Fill(LocalFault::NotPresent)) => {
                self.req.probe_pending = true;
                self.oldest_waits_for_page(now);
            }
            Err(TxFault::Fill(_)) => self.fail_oldest(&wqe, WcStatus::LocProtErr, backend),
            Err(TxFault::Busy) => {
                self.req.probe_pending = true;
                self.req.passed_over = passed_over;
                self.pause(now);
            }
            // It may have waited for a page.
            Ok(()) | Err(TxFault::Unreachable) if self.req.deadline.is_none() => {
                self.oldest_waits_for_peer(now);
            }
            Ok(()) | Err(TxFault::Unreachable) => {}
        }
    }

    /// Handles the acknowledgement, RNR NAK, probe and loss timers.
    pub(in crate::engine) fn request_timeout(&mut self, now: Instant, backend: &mut impl Backend) {
        if self.req.rnr_until.is_some_and(|at| at <= now) {
            self.req.rnr_until = None;
            // rdma_rxe sends a sequence NAK for the packets behind the one that it has refused. It
            // may arrive after that is sent again, but before a response to it can.
            self.req.retransmitted_at = Some(now);
            self.req.responses.on_retransmit(self.req.psn);
            self.req.rearm(now, &self.attrs);
        }
        if self.req.prober.expired(now) {
            self.probe(now, backend);
        }
        if self.req.loss_deadline.is_some_and(|at| at <= now) {
            self.req.loss_deadline = None;
            if self.oldest_needs_response(backend) {
                self.responses_overdue(now, backend);
            } else {
                self.handle_loss(now, self.req.una_psn, backend);
            }
        }
        if self.req.deadline.is_some_and(|at| at <= now) {
            self.req.deadline = None;
            if matches!(self.state, State::Rts | State::Sqd) && self.req.una_psn != self.req.max_psn
            {
                backend.count(Count::Timeout);
                self.same_host.forget();
                self.req.implied_nak_psn = None;
                let first = match self.req.msn_rejected {
                    // Of a peer whose MSN is out of step, an acknowledgement of exactly the newest
                    // packet sent is accepted. It may have received all of the initial window.
                    true => CongestionWindow::START,
                    false => CongestionWindow::MIN,
                };
                self.req.window.on_timeout(self.req.max_psn, first);
                // If the peer has answered, what it lacks arrives in the end.
                let answered = core::mem::take(&mut self.req.rejected_since_timeout);
                let free = answered && self.req.free_timeouts > 0;
                self.req.free_timeouts = self.req.free_timeouts.saturating_sub(free.into());
                if free || self.use_retry(now, backend) {
                    self.retransmit_all(now, backend);
                }
            }
        }
    }
}
