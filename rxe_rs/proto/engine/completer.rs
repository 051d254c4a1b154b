// SPDX-License-Identifier: GPL-2.0
//! Completer: responses of the peer (acknowledgements, NAKs, READ and ATOMIC data).
//!
//! `validate` decides which of them are plausible and what an off-path attacker must guess.

mod validate;

use super::attrs::State;
use super::backend::{Backend, Count, Handled, LocalFault};
use super::qp::Qp;
use super::repeat::{Mark, Missing};
use super::requester::{ack_deadline, index_before};
use super::wc::WcStatus;
use super::window::CongestionWindow;
use super::wr::{SendBody, SendWqe};
use crate::ids::Psn;
use crate::time::Instant;
use crate::wire::aeth::{Aeth, NakCode, Syndrome};
use crate::wire::bth::Bth;
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};
use crate::wire::rnr::rnr_timer_ns;

/// The memory of the response data is not present; the access raised a page fault.
struct NotPresent;

/// Duplicate responses extend the acknowledgement timer to this multiple of its interval at most:
/// the time within which it must expire (IBTA 9.7.6.1.3).
const MAX_TIMER_EXTENSION: u64 = 4;

/// The number of RNR retries that stands for no limit.
const UNLIMITED_RNR_RETRIES: u8 = 7;

/// The timer code of the longest delay, 655.36 ms.
const LONGEST_RNR_TIMER: u8 = 0;

/// Result of acknowledging up to a PSN.
#[derive(PartialEq, Eq)]
enum Acked {
    /// All requests before the PSN are acknowledged.
    Complete,
    /// A READ or ATOMIC before the PSN has no response yet: the response was lost.
    ResponseMissing,
}

impl Qp {
    /// Handles a response packet of an RC connection (IBTA 9.7.6).
    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Handled {
        if !matches!(self.state, State::Rts | State::Sqd) {
            backend.count(Count::Unexpected);
            return Handled::Done;
        }
        let psn = packet.bth().psn;
        // Only PSNs in flight can be acknowledged.
        if psn.is_before(self.req.una_psn) || !psn.is_before(self.req.sent_psn) {
            backend.count(Count::UnmatchedResponse);
            self.duplicate_response(now, packet);
            return Handled::Done;
        }
        let handled = match packet.opcode().operation() {
            Operation::Acknowledge => {
                if let Some(aeth) = packet.aeth() {
                    self.handle_ack(now, packet.bth(), aeth, backend);
                }
                Ok(Handled::Done)
            }
            Operation::ReadRespFirst
            | Operation::ReadRespMiddle
            | Operation::ReadRespLast
            | Operation::ReadRespOnly
            | Operation::AtomicAck => self.handle_data(now, packet, payload, backend),
            _ => {
                backend.count(Count::Unexpected);
                Ok(Handled::Done)
            }
        };
        if self.req.refusal.is_some() && self.state != State::Err {
            self.refuse(now, backend);
        }
        if self.state == State::Sqd {
            self.note_drained();
        }
        handled.unwrap_or(Handled::Deferred)
    }

    /// A response outside the PSNs in flight. If it is duplicate data, the peer is still answering
    /// a retransmitted request before it sends the expected response, so the acknowledgement timer
    /// is extended. Data further back than the maximum window is ignored, and more of it than that.
    fn duplicate_response(&mut self, now: Instant, packet: &Packet<'_>) {
        let behind = u32::try_from(self.req.una_psn.delta(packet.bth().psn)).unwrap_or(0);
        let recent = (1..=CongestionWindow::MAX).contains(&behind);
        let data = packet.opcode().operation() != Operation::Acknowledge;
        if recent && data && u32::from(self.req.duplicate_responses) < CongestionWindow::MAX {
            self.req.duplicate_responses = self.req.duplicate_responses.saturating_add(1);
            self.extend_timer(now);
        }
    }

    /// Extends the acknowledgement timer, within limits, as the packet that shows that the peer is
    /// alive may be forged.
    fn extend_timer(&mut self, now: Instant) {
        if self.req.deadline.is_none() {
            return;
        }
        let Some(next) = ack_deadline(now, &self.attrs) else {
            return;
        };
        let wait = next.ns_since(now);
        let limit = now.saturating_add(wait.saturating_mul(MAX_TIMER_EXTENSION));
        let limit = *self.req.rearm_limit.get_or_insert(limit);
        if next <= limit {
            self.req.rearm(now, &self.attrs);
        }
    }

    /// Handles an acknowledgement, RNR NAK or NAK (IBTA 9.7.5.2.2, IBTA 9.7.5.2.8).
    fn handle_ack(&mut self, now: Instant, bth: &Bth, aeth: Aeth, backend: &mut impl Backend) {
        let psn = bth.psn;
        let syndrome = aeth.syndrome();
        let negative = matches!(syndrome, Syndrome::RnrNak { .. } | Syndrome::Nak(_));
        if !self.is_plausible(psn, negative, aeth.msn(), backend) {
            self.req.msn_rejected = true;
            self.req.rejected_since_timeout = true;
            return backend.count(match negative {
                true => Count::SuspectNak,
                false => Count::SuspectAck,
            });
        }
        let refusal = self.req.refusal;
        if !matches!(syndrome, Syndrome::Nak(_))
            && refusal.is_some_and(|(refused, _)| refused.is_before(psn.next()))
        {
            // The refused request has arrived after all: the NAK was not the peer's.
            self.req.refusal = None;
        }
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge(now, psn.next(), backend) == Acked::ResponseMissing {
                    self.implied_nak(now, Some(psn.next()), backend);
                }
            }
            Syndrome::RnrNak { timer } => {
                backend.count(Count::RnrNakReceived);
                let acked = self.acknowledge(now, psn, backend);
                // An RNR NAK for a packet not retransmitted since the previous one is a duplicate.
                // If it is for a later packet, the wait has ended by now.
                let new = self.req.rnr_until.is_none() && self.req.rnr_psn != Some(psn);
                let mut from = psn;
                if acked == Acked::ResponseMissing {
                    if new {
                        self.req.responses.on_answered(psn.next());
                    }
                    self.implied_nak(now, Some(psn), backend);
                    // Unless only responses are requested again, the requests from the oldest on
                    // are repeated, after the wait.
                    let responses = &self.req.responses;
                    if !responses.has_missing() && !responses.has_requested_expected() {
                        from = self.req.una_psn;
                    }
                }
                if !new || self.state == State::Err {
                    return;
                }
                let limited = self.attrs.rnr_retry != UNLIMITED_RNR_RETRIES;
                if limited && self.req.rnr_retries == 0 {
                    if acked != Acked::ResponseMissing {
                        backend.count(Count::RnrRetryExceeded);
                        return self.fail_with(WcStatus::RnrRetryExcErr, backend);
                    }
                    // The oldest request has been executed, and its response was lost: it is not
                    // the one that was refused, and it completes first. Its retries go on.
                } else {
                    // The packet has arrived: retries are for what is lost from now on.
                    self.req.retries = self.attrs.retry_cnt;
                    if limited {
                        self.req.rnr_retries = self.req.rnr_retries.saturating_sub(1);
                    }
                }
                self.move_cursor(from, backend);
                self.req.rnr_psn = Some(psn);
                self.req.deadline = None;
                self.req.loss_deadline = None;
                self.req.prober.on_retransmit(now);
                self.req.prober.rearm(now, false);
                let wait = self.rnr_wait_ns(now, timer);
                self.req.rnr_until = Some(now.saturating_add(wait));
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                backend.count(Count::SequenceNakReceived);
                // The responder has executed all READs before the PSN, so their data is in flight,
                // or was lost, as the NAK follows it.
                let acked = self.acknowledge(now, psn, backend);
                let missing = match self.attrs.token {
                    // A QP that keeps nothing gives no meaning to the reserved bits.
                    0 => Missing::Unknown,
                    _ => Missing::parse(bth.resv7),
                };
                match missing {
                    Missing::Unknown => {
                        self.handle_loss(now, psn, backend);
                    }
                    Missing::All => {
                        self.req.marks_requests = true;
                        self.handle_loss(now, psn, backend);
                    }
                    Missing::Packets { count, toggle } => {
                        if acked == Acked::ResponseMissing {
                            self.implied_nak(now, Some(psn), backend);
                        }
                        self.repeat(now, psn, count, toggle, backend);
                    }
                }
            }
            Syndrome::Nak(code) => {
                let status = match code {
                    NakCode::InvalidRequest | NakCode::InvalidRd => WcStatus::RemInvReqErr,
                    NakCode::PsnSequence => return,
                    NakCode::RemoteAccess => WcStatus::RemAccessErr,
                    NakCode::RemoteOperational => WcStatus::RemOpErr,
                };
                // The peer refuses one request only. If there are two such NAKs, the first request
                // must not succeed.
                if !self
                    .req
                    .refusal
                    .is_some_and(|(first, _)| first.is_before(psn))
                {
                    self.req.refusal = Some((psn, status));
                }
                if !self.refuse(now, backend) {
                    self.implied_nak(now, Some(psn), backend);
                }
            }
            Syndrome::Reserved => backend.count(Count::Unexpected),
        }
    }

    /// How long to wait after an RNR NAK: at least as long as it requests (IBTA 9.7.5.2.8), in
    /// nanoseconds. If retries are unlimited, also an eighth of the time for which the responder
    /// has not been ready: with the shortest timer, 10 us, two QPs of a process could otherwise
    /// keep a CPU busy in softirq for ever, while the process sleeps.
    fn rnr_wait_ns(&mut self, now: Instant, timer: u8) -> u64 {
        let requested = rnr_timer_ns(timer);
        if self.attrs.rnr_retry != UNLIMITED_RNR_RETRIES {
            return requested;
        }
        let since = *self.req.rnr_since.get_or_insert(now);
        let extended = now.ns_since(since).wrapping_shr(3);
        requested.max(extended.min(rnr_timer_ns(LONGEST_RNR_TIMER)))
    }

    /// Fails the request that a NAK has refused, if there was such a NAK and what the peer has
    /// answered before has arrived; false if that is still missing. It may be late: the peer sends
    /// the NAK once.
    fn refuse(&mut self, now: Instant, backend: &mut impl Backend) -> bool {
        let Some((psn, status)) = self.req.refusal else {
            return true;
        };
        if psn.is_before(self.req.una_psn) {
            // Acknowledged meanwhile: the NAK was not the peer's.
            self.req.refusal = None;
            return true;
        }
        let missing = self.acknowledge(now, psn, backend) == Acked::ResponseMissing;
        // A NAK for the oldest request itself, a READ, ends it, even if responses before
        // the refused one were lost: the responder answers no more requests.
        let oldest = backend.send_wqe(self.req.una);
        let refused = oldest.is_some_and(|wqe| !wqe.psns.last.is_before(psn));
        if missing && !refused {
            return false;
        }
        self.fail_with(status, backend);
        true
    }

    fn fail_with(&mut self, status: WcStatus, backend: &mut impl Backend) {
        if let Some(wqe) = backend.send_wqe(self.req.una).map(|wqe| *wqe) {
            self.fail_oldest(&wqe, status, backend);
        }
    }

    /// Completes all requests whose last PSN is before `upto` and records the progress of the
    /// request that contains `upto` (IBTA 9.7.5.1.2).
    fn acknowledge(&mut self, now: Instant, upto: Psn, backend: &mut impl Backend) -> Acked {
        let before = self.req.una_psn;
        let mut result = Acked::Complete;
        while index_before(self.req.una, self.req.unsent) && self.req.una_psn.is_before(upto) {
            let Some(wqe) = backend.send_wqe(self.req.una).map(|wqe| *wqe) else {
                break;
            };
            if wqe.wr.body.needs_response() {
                result = Acked::ResponseMissing;
                break;
            }
            if wqe.psns.last.is_before(upto) {
                self.complete_oldest(&wqe, WcStatus::Success, backend);
            } else {
                self.req.una_psn = upto;
                break;
            }
        }
        self.complete_local(backend);
        self.on_ack_progress(now, before, backend);
        self.req.on_received(now, upto, &self.attrs);
        result
    }

    /// Updates retries, window, timers and pacing after `una_psn` may have advanced from `before`.
    fn on_ack_progress(&mut self, now: Instant, before: Psn, backend: &mut impl Backend) {
        let moved = u32::try_from(self.req.una_psn.delta(before)).unwrap_or(0);
        if moved == 0 {
            return;
        }
        self.req.refill_retries(&self.attrs);
        self.req.on_received(now, self.req.una_psn, &self.attrs);
        self.req.duplicate_responses = 0;
        self.req.msn_rejected = false;
        self.req.rearm_limit = None;
        self.req.loss_deadline = None;
        self.req.latest_ahead = None;
        self.req.probe_pending = false;
        self.gso.on_acknowledged(self.req.una_psn);
        self.req.merging.on_acknowledged(self.req.una_psn);
        self.req.window.on_progress(moved, self.req.una_psn);
        self.req.prober.on_progress(self.req.una_psn, now);
        let bytes = u64::from(moved).saturating_mul(self.attrs.mtu.bytes().into());
        self.pacer.on_acknowledged(now, bytes);
        self.req.rearm(now, &self.attrs);
        if self.req.psn.is_before(self.req.una_psn) {
            // Acknowledged after all during a retransmission.
            self.skip_acknowledged(backend);
        }
    }

    /// A response was lost (IBTA 9.7.6, implied NAK): retransmits the request at once, but
    /// only once per missing response, because the remaining old responses are still in flight.
    /// If they arrive a second time, the response was lost again, and the caller has cleared
    /// `implied_nak_psn`.
    ///
    /// The peer has sent the responses of the requests before `upto`; if it keeps packets, only
    /// what is missing of them is requested.
    pub(super) fn implied_nak(
        &mut self,
        now: Instant,
        upto: Option<Psn>,
        backend: &mut impl Backend,
    ) {
        self.req.loss_deadline = None;
        self.expect_response(backend);
        let end = self.req.implied_nak_end;
        let answered_later = upto.is_some_and(|upto| end.is_before(upto));
        let upto = upto.filter(|_| self.req.marks_requests && !self.gso.is_suspect());
        let lost = upto.is_some_and(|upto| {
            self.req.responses.on_answered(upto);
            let end = self.end_of_responses(upto, backend);
            self.req.responses.note_missing_before(end)
        });
        if lost || self.req.responses.note_missing(false) {
            return self.on_missing_responses(now, backend);
        }
        if self.req.responses.has_requested_expected() || self.req.responses.keeps_any() {
            self.req.rearm(now, &self.attrs);
            return;
        }
        let at = self.req.una_psn;
        // Unless the peer has answered what was sent later: then it was lost again.
        if self.req.implied_nak_psn == Some(at) && !answered_later {
            // The peer is alive and still sends the responses of earlier requests.
            self.req.rearm(now, &self.attrs);
            return;
        }
        if self.handle_loss(now, at, backend) {
            self.req.implied_nak_psn = Some(at);
            self.req.implied_nak_end = self.req.max_psn;
            backend.count(Count::ImpliedNak);
        }
    }

    /// The missing responses are lost, even if they have been requested again.
    pub(super) fn responses_overdue(&mut self, now: Instant, backend: &mut impl Backend) {
        self.req.responses.forget_requested();
        self.implied_nak(now, None, backend);
    }

    /// Handles a response of a READ, ATOMIC, ATOMIC WRITE or FLUSH (IBTA 9.7.6).
    fn handle_data(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Result<Handled, NotPresent> {
        let psn = packet.bth().psn;
        // Responses arrive in order, so only one PSN can be next.
        let Some((index, wqe)) = self.oldest_awaiting_response(backend) else {
            backend.count(Count::Unexpected);
            return Ok(Handled::Done);
        };
        let expected = self.expected_response(&wqe);
        if psn.is_before(expected) {
            if psn.is_before(wqe.psns.first) {
                backend.count(Count::Unexpected);
            }
            return Ok(Handled::Done);
        }
        let mark = Mark::parse(packet.bth().resv7);
        let own = self.has_own_token(packet.bth());
        if psn != expected {
            if own && self.req.marks_requests {
                return Ok(self.response_ahead(now, psn, expected, backend));
            }
            self.response_out_of_order(now, packet, expected, backend);
            return Ok(Handled::Done);
        }
        if mark.is_some() && !own && self.req.marks_requests {
            // Forged, or the peer uses the bits for something else.
            self.req.marks_requests = false;
            backend.count(Count::SuspectMark);
            return Ok(Handled::Done);
        }
        self.req.marks_requests |= own;
        self.handle_expected_data(now, packet, payload, (index, &wqe), backend)?;
        if self.state != State::Err {
            self.find_expected_response(backend);
            if self.req.responses.lacks_expected() {
                self.handle_loss(now, self.req.una_psn, backend);
            }
        }
        Ok(Handled::Done)
    }

    /// True if a response has the token of the requests.
    fn has_own_token(&self, bth: &Bth) -> bool {
        let own = Mark::new(self.attrs.token, false);
        own.is_some_and(|own| own.is_of_peer(Mark::parse(bth.resv7)))
    }

    /// Handles the response that `wqe`, with this index, expects.
    fn handle_expected_data(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        (index, wqe): (u32, &SendWqe),
        backend: &mut impl Backend,
    ) -> Result<(), NotPresent> {
        if index != self.req.una {
            // It acknowledges all requests before its own, none of which awaits a response.
            self.acknowledge(now, wqe.psns.first, backend);
        }
        match (
            &wqe.wr.body,
            packet.opcode().operation(),
            packet.atomic_ack(),
        ) {
            (
                SendBody::CmpSwp { .. } | SendBody::FetchAdd { .. },
                Operation::AtomicAck,
                Some(value),
            ) => self.handle_atomic_data(now, wqe, value.original(), backend),
            (_, Operation::AtomicAck, _)
            | (SendBody::CmpSwp { .. } | SendBody::FetchAdd { .. }, ..) => {
                backend.count(Count::Unexpected);
                Ok(())
            }
            (body, operation, _) => {
                let last = matches!(operation, Operation::ReadRespLast | Operation::ReadRespOnly);
                if matches!(body, SendBody::Read(_)) {
                    return self.handle_read_data(
                        now,
                        packet.bth().psn,
                        wqe,
                        last,
                        payload,
                        backend,
                    );
                }
                self.handle_empty_response(now, wqe, last && payload.is_empty(), backend);
                Ok(())
            }
        }
    }

    /// Places the data of a READ response packet, the next one that `wqe` expects; completes the
    /// WQE if it is the last one.
    fn handle_read_data(
        &mut self,
        now: Instant,
        psn: Psn,
        wqe: &SendWqe,
        last: bool,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), NotPresent> {
        let placed = wqe.placed;
        let left = wqe.wr.length.saturating_sub(placed);
        let payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let rest = left.checked_sub(payload_len);
        let Some((rest, count)) = rest.zip(self.psns_of(payload_len, rest == Some(0))) else {
            self.fail_oldest(wqe, WcStatus::BadRespErr, backend);
            return Ok(());
        };
        let next = psn.wrapping_add(count);
        // The response to a READ of a part of the data, as probes are, ends there.
        let probe_reply = last && rest > 0 && self.req.probed_psn == Some(psn);
        let part = last && rest > 0 && self.req.responses.is_end_of_part(next.prev());
        let ends = last && !probe_reply && !part;
        if ends != (rest == 0) {
            self.fail_oldest(wqe, WcStatus::BadRespErr, backend);
            return Ok(());
        }
        if payload_len > 0 && !self.scatter_response(wqe, placed, payload, backend)? {
            return Ok(());
        }
        let before = self.req.una_psn;
        if ends {
            self.complete_oldest(wqe, WcStatus::Success, backend);
            self.complete_local(backend);
        } else {
            if let Some(wqe) = backend.send_wqe(self.req.una) {
                wqe.placed = placed.saturating_add(payload_len);
            }
            self.req.una_psn = next;
        }
        self.on_ack_progress(now, before, backend);
        if probe_reply {
            // The responses still missing when the probe is answered are lost.
            self.responses_overdue(now, backend);
        }
        Ok(())
    }

    /// Scatters response data of the oldest request; false if that failed the request and the QP,
    /// or if the data can no longer be copied from the memory of the peer, so counts as lost.
    fn scatter_response(
        &mut self,
        wqe: &SendWqe,
        offset: u32,
        data: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Result<bool, NotPresent> {
        match backend.scatter(self.req.una, offset, data) {
            Ok(()) => Ok(true),
            Err(LocalFault::NotPresent) => Err(NotPresent),
            Err(LocalFault::Gone) => {
                backend.count(Count::ReferenceGone);
                Ok(false)
            }
            Err(LocalFault::Refused) => {
                self.fail_oldest(wqe, WcStatus::LocProtErr, backend);
                Ok(false)
            }
        }
    }

    /// Handles the response of ATOMIC WRITE and FLUSH: a READ response without payload.
    fn handle_empty_response(
        &mut self,
        now: Instant,
        wqe: &SendWqe,
        fits: bool,
        backend: &mut impl Backend,
    ) {
        if !fits {
            return self.fail_oldest(wqe, WcStatus::BadRespErr, backend);
        }
        let before = self.req.una_psn;
        self.complete_oldest(wqe, WcStatus::Success, backend);
        self.complete_local(backend);
        self.on_ack_progress(now, before, backend);
    }

    /// Places the result of an ATOMIC and completes its WQE.
    fn handle_atomic_data(
        &mut self,
        now: Instant,
        wqe: &SendWqe,
        value: u64,
        backend: &mut impl Backend,
    ) -> Result<(), NotPresent> {
        let bytes = value.to_ne_bytes();
        if !self.scatter_response(wqe, 0, &Payload::from_slice(&bytes), backend)? {
            return Ok(());
        }
        let before = self.req.una_psn;
        self.complete_oldest(wqe, WcStatus::Success, backend);
        self.complete_local(backend);
        self.on_ack_progress(now, before, backend);
        Ok(())
    }
}
