// SPDX-License-Identifier: GPL-2.0
//! Requester: send queue to request packets (order, PSNs, window, fences, completion).
//! `build` builds the packets, `retransmit` handles retransmission.

mod build;
mod retransmit;

use retransmit::Repeat;

use super::attrs::{Attrs, Progress, Service, State};
use super::backend::{Backend, Count, LocalFault, Tx, TxFault};
use super::merge::Merging;
use super::probe::Prober;
use super::qp::Qp;
use super::repeat::KeptResponses;
use super::wc::{Wc, WcStatus};
use super::window::CongestionWindow;
use super::wr::{LocalOp, SendBody, SendWqe, SendWr};
use crate::ids::{Msn, Psn};
use crate::time::Instant;

/// Maximum number of PSNs between the oldest unacknowledged packet and the newest; keeps the
/// 24-bit comparison of PSNs valid for any mix of outstanding large READs.
pub(super) const MAX_PSN_SPAN: u32 = 1 << 22;

/// Minimum acknowledgement timeout, in nanoseconds. The architecture allows up to four times the
/// configured timeout (IBTA 9.7.6.1.3).
const MIN_TIMEOUT_NS: u64 = 8_000_000;

/// Timeouts of a connection that use no retry because a peer whose MSN is out of step has answered
/// (`completer/validate.rs`). Whoever forges such answers delays the failure of a connection by as
/// many.
const MAX_FREE_TIMEOUTS: u8 = 16;

/// Requester state of a QP.
///
/// Indices are free-running: `una <= cur <= unsent <= sends_posted()`. PSNs:
/// `una_psn <= psn <= sent_psn <= max_psn`.
#[derive(Debug)]
pub(super) struct Requester {
    /// Index of the oldest WQE that has not completed.
    pub(super) una: u32,
    /// Index of the oldest WQE that has not been started.
    pub(super) unsent: u32,
    /// Cursor: index of the WQE of the next packet.
    pub(super) cur: u32,
    /// Payload bytes of `cur` that precede the next packet.
    pub(super) offset: u32,
    /// Oldest PSN not acknowledged.
    pub(super) una_psn: Psn,
    /// PSN of the next packet to send.
    pub(super) psn: Psn,
    /// One past the highest PSN of a packet that has been sent, and of its responses.
    pub(super) sent_psn: Psn,
    /// One past the highest PSN in use: a message has all of its PSNs from its first packet on.
    pub(super) max_psn: Psn,
    /// One past the highest PSN that the peer is known to have received. Beyond `una_psn` if a
    /// response of a READ or ATOMIC was lost.
    pub(super) received_psn: Psn,
    /// Transport retries and RNR retries left.
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    /// Expiry of the acknowledgement timer.
    pub(super) deadline: Option<Instant>,
    /// Expiry of the RNR NAK timer.
    pub(super) rnr_until: Option<Instant>,
    /// PSN of the last RNR NAK, until the packet is sent again.
    pub(super) rnr_psn: Option<Psn>,
    /// When the first RNR NAK since the last progress arrived.
    pub(super) rnr_since: Option<Instant>,
    /// READ and ATOMIC requests outstanding.
    pub(super) rd_atomic_outstanding: u8,
    /// Packets sent since the last one with the AckReq bit, at most `u16::MAX`.
    since_ack_req: u16,
    /// When one with the AckReq bit was last sent.
    ack_requested_at: Instant,
    /// Packets with payload sent since the last one that followed another in a GSO batch.
    singles: u8,
    /// The next packet waits for a page fault.
    fault_pending: bool,
    /// Set the AckReq bit in the next packet.
    pub(super) ack_now: bool,
    pub(super) window: CongestionWindow,
    pub(super) merging: Merging,
    /// Requests have marks: the peer keeps packets ahead of a missing one ([`super::repeat`]).
    pub(super) marks_requests: bool,
    /// READs that had marks before the peer was known to keep packets.
    offers: u8,
    /// The toggle of the marks.
    toggle: bool,
    /// The packets that are repeated at the moment, and where to go on then.
    repeat: Option<Repeat>,
    /// PSN of the NAK for which packets were repeated last.
    repeated: Option<Psn>,
    /// PSN of the missing response that the last implied NAK was for.
    pub(super) implied_nak_psn: Option<Psn>,
    /// PSN of the request that was sent next after its retransmission.
    pub(super) implied_nak_end: Psn,
    /// PSN of the latest response that proved one before it to be missing.
    pub(super) latest_ahead: Option<Psn>,
    /// Responses ahead of the expected one that are kept.
    pub(super) responses: KeptResponses,
    /// Retransmit the oldest request, a READ or ATOMIC, as a probe.
    pub(super) probe_pending: bool,
    /// The last probe passed over READs with long responses that end before this PSN.
    passed_over: Option<Psn>,
    /// PSN of the response packet that a probe READ requested.
    pub(super) probed_psn: Option<Psn>,
    /// Duplicate responses since the last progress or retry.
    pub(super) duplicate_responses: u16,
    /// Time up to which they, and early ones, may extend the acknowledgement timer.
    pub(super) rearm_limit: Option<Instant>,
    /// Loss timer: when to retransmit the oldest request after an unproven or early sign of loss.
    pub(super) loss_deadline: Option<Instant>,
    /// When packets were last retransmitted.
    pub(super) retransmitted_at: Option<Instant>,
    /// When a retransmission last used a retry.
    pub(super) retry_used_at: Option<Instant>,
    /// MSN of a peer that has executed everything before `una`.
    pub(super) una_msn: Msn,
    /// Resyncs of the peer's MSN.
    pub(super) msn_resyncs: u8,
    /// An acknowledgement was rejected because of its MSN since the last progress.
    pub(super) msn_rejected: bool,
    /// The same since the last timeout.
    pub(super) rejected_since_timeout: bool,
    /// Timeouts after such acknowledgements that leave the retry counter as it is.
    pub(super) free_timeouts: u8,
    pub(super) drained_reported: bool,
    /// PSN of a NAK that refuses a request, and the status that the request completes with.
    pub(super) refusal: Option<(Psn, WcStatus)>,
    pub(super) prober: Prober,
}

/// True if free-running index `a` is before `b`.
#[inline]
pub(super) fn index_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

/// Number of packets of a message of `len` bytes, at least one.
#[inline]
pub(super) fn packets(len: u32, mtu: u32) -> u32 {
    // Not `div_ceil`, whose sum is checked for overflow: a panic in the object's symbols.
    let whole = len.checked_div(mtu).unwrap_or(0);
    let rest = len.checked_rem(mtu).unwrap_or(0);
    whole.saturating_add(u32::from(rest != 0)).max(1)
}

/// Pad count of the BTH for `len` bytes of payload.
#[inline]
pub(super) fn pad_of(len: u32) -> u8 {
    match len & 3 {
        1 => 3,
        2 => 2,
        3 => 1,
        _ => 0,
    }
}

impl Requester {
    pub(super) fn new() -> Self {
        Self {
            una: 0,
            unsent: 0,
            cur: 0,
            offset: 0,
            una_psn: Psn::new(0),
            psn: Psn::new(0),
            sent_psn: Psn::new(0),
            max_psn: Psn::new(0),
            received_psn: Psn::new(0),
            retries: 0,
            rnr_retries: 0,
            deadline: None,
            rnr_until: None,
            rnr_psn: None,
            rnr_since: None,
            rd_atomic_outstanding: 0,
            since_ack_req: 0,
            ack_requested_at: Instant::ZERO,
            singles: 0,
            fault_pending: false,
            ack_now: false,
            window: CongestionWindow::new(),
            merging: Merging::new(),
            marks_requests: false,
            offers: 0,
            toggle: false,
            repeat: None,
            repeated: None,
            implied_nak_psn: None,
            implied_nak_end: Psn::new(0),
            latest_ahead: None,
            responses: KeptResponses::new(),
            probe_pending: false,
            passed_over: None,
            probed_psn: None,
            duplicate_responses: 0,
            rearm_limit: None,
            loss_deadline: None,
            retransmitted_at: None,
            retry_used_at: None,
            una_msn: Msn::new(0),
            msn_resyncs: 0,
            msn_rejected: false,
            rejected_since_timeout: false,
            free_timeouts: MAX_FREE_TIMEOUTS,
            drained_reported: false,
            refusal: None,
            prober: Prober::new(),
        }
    }

    /// Drops all state of WQEs before `index`, which is the next to start.
    pub(super) fn reset_to(&mut self, index: u32) {
        self.una = index;
        self.unsent = index;
        self.cur = index;
        self.offset = 0;
        self.una_psn = self.max_psn;
        self.psn = self.max_psn;
        self.sent_psn = self.max_psn;
        self.received_psn = self.max_psn;
        self.rd_atomic_outstanding = 0;
        self.deadline = None;
        self.rnr_until = None;
        self.rnr_psn = None;
        self.rnr_since = None;
        self.implied_nak_psn = None;
        self.latest_ahead = None;
        self.responses = KeptResponses::new();
        self.probe_pending = false;
        self.passed_over = None;
        self.probed_psn = None;
        self.duplicate_responses = 0;
        self.rearm_limit = None;
        self.loss_deadline = None;
        self.retransmitted_at = None;
        self.retry_used_at = None;
        self.since_ack_req = 0;
        self.fault_pending = false;
        self.ack_now = false;
        self.repeat = None;
        self.refusal = None;
        self.prober = Prober::new();
    }

    /// The cursor has passed packets that have been sent.
    #[inline]
    fn note_sent(&mut self) {
        if self.sent_psn.is_before(self.psn) {
            self.sent_psn = self.psn;
        }
    }

    pub(super) fn refill_retries(&mut self, attrs: &Attrs) {
        self.retries = attrs.retry_cnt;
        self.rnr_retries = attrs.rnr_retry;
    }

    /// The peer has received all packets before `upto`. Retries, and the wait after an RNR NAK, are
    /// for the packet that is missing now (IBTA 9.7.6), even if `una_psn` stays at a READ whose
    /// response was lost.
    pub(super) fn on_received(&mut self, now: Instant, upto: Psn, attrs: &Attrs) {
        if self.received_psn.is_before(upto) {
            self.received_psn = upto;
            self.refill_retries(attrs);
            self.rnr_since = None;
            if self.rnr_until.take().is_some() {
                self.rearm(now, attrs);
            }
        }
    }

    /// True if the cursor is past all `posted` WQEs and nothing else is to be sent.
    #[inline]
    pub(super) fn has_sent_all(&self, posted: u32) -> bool {
        self.cur == posted && !self.probe_pending && !self.responses.has_missing()
    }

    /// True if all requests that have been sent are acknowledged.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.una_psn == self.max_psn
    }

    /// The minimum window after losses.
    pub(super) fn least_window(&self) -> u32 {
        match self.marks_requests {
            true => CongestionWindow::MIN_REPEAT,
            false => CongestionWindow::MIN,
        }
    }

    /// Packets in flight: requests and expected READ responses, which load the same network.
    fn in_flight(&self) -> u32 {
        u32::try_from(self.psn.delta(self.una_psn)).unwrap_or(0)
    }

    /// Restarts the acknowledgement timer if anything is outstanding, else stops it. It does not
    /// run during the wait after an RNR NAK: what is sent then shows what else was lost. While the
    /// next packet waits for a page, what has been sent is outstanding: the timer starts again with
    /// that packet.
    pub(super) fn rearm(&mut self, now: Instant, attrs: &Attrs) {
        let end = match self.fault_pending {
            true => self.psn,
            false => self.max_psn,
        };
        let outstanding = self.una_psn != end && self.rnr_until.is_none();
        self.deadline = if outstanding {
            ack_deadline(now, attrs)
        } else {
            None
        };
        self.prober.rearm(now, outstanding);
    }
}

impl Requester {
    /// Transmission pauses until `at`: postpones the acknowledgement timer if it runs. At the time
    /// for which it was set, a probe is sent if no other will be: pauses of READ data may follow
    /// each other for as long as the peer READs.
    pub(super) fn postpone(&mut self, at: Instant, attrs: &Attrs) {
        if let (Some(old), Some(new)) = (self.deadline, ack_deadline(at, attrs)) {
            self.deadline = Some(old.max(new));
            self.prober.deadline.get_or_insert(old);
        }
    }
}

/// When the acknowledgement timer expires that starts at `now` (IBTA 9.7.6.1.3); `None` if there is
/// none.
pub(super) fn ack_deadline(now: Instant, attrs: &Attrs) -> Option<Instant> {
    let timeout = crate::wire::rnr::ack_timeout_ns(attrs.timeout)?;
    let wait = timeout.max(MIN_TIMEOUT_NS.min(timeout.saturating_mul(4)));
    Some(now.saturating_add(wait))
}

/// Result of sending one packet.
enum SendOutcome {
    Sent,
    /// Not sent: no room or a page fault.
    Blocked,
    /// The WQE at the cursor fails with this status.
    Fail(WcStatus),
}

/// Result of executing a local operation.
enum LocalOutcome {
    /// Executed; the cursor is past it.
    Done,
    /// It must wait for earlier requests.
    Wait,
    Fail(WcStatus),
}

impl Qp {
    /// Sends request packets of a connected service.
    pub(super) fn transmit_requests(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Progress {
        let receiver_not_ready = self.req.rnr_until.is_some();
        if self.req.probe_pending && !receiver_not_ready {
            if !tx.has_room() {
                return Progress::More;
            }
            self.probe_oldest(now, backend, tx);
            if self.req.probe_pending {
                return Progress::Idle;
            }
        }
        if self.req.responses.has_missing() {
            if let Some(progress) = self.request_missing(now, backend, tx) {
                return progress;
            }
        }
        if receiver_not_ready {
            // Only receives are missing: the responder answers earlier READs meanwhile.
            return Progress::Idle;
        }
        loop {
            self.end_repeat(backend);
            let produced = backend.sends_posted();
            if self.req.cur == produced || !matches!(self.state, State::Rts | State::Sqd) {
                return Progress::Idle;
            }
            let begun = index_before(self.req.cur, self.req.unsent);
            if !tx.has_room() {
                return Progress::More;
            }
            if !begun && self.state == State::Sqd {
                return self.request_ack(now, produced, backend, tx);
            }
            // UC has no acknowledgements that would open a window.
            let window_full = self.req.in_flight() >= self.req.window.limit();
            if self.service == Service::Rc && window_full && !self.req.is_repeating() {
                // It waits for acknowledgements, not for a page any more.
                self.req.fault_pending = false;
                return self.request_ack(now, produced, backend, tx);
            }
            let Some(wqe) = backend.send_wqe(self.req.cur).map(|wqe| *wqe) else {
                return Progress::Idle;
            };
            if !self.req.is_repeating() && self.exceeds_window(&wqe.wr) {
                self.req.fault_pending = false;
                return self.request_ack(now, produced, backend, tx);
            }
            let outcome = match (wqe.invalid, &wqe.wr.body) {
                (Some(status), _) => SendOutcome::Fail(status),
                (None, SendBody::Local(op)) => {
                    match self.execute_local(op, wqe.wr.flags.fence, begun, backend) {
                        LocalOutcome::Done => continue,
                        LocalOutcome::Wait => return self.request_ack(now, produced, backend, tx),
                        LocalOutcome::Fail(status) => SendOutcome::Fail(status),
                    }
                }
                (None, _) if !begun => match self.assign_psns(&wqe.wr, backend) {
                    Some(begun) => self.send_next(now, &begun, produced, backend, tx),
                    // The outstanding responses will make progress.
                    None if self.req.rd_atomic_outstanding > 0 => return Progress::Idle,
                    None => return self.request_ack(now, produced, backend, tx),
                },
                (None, _) => self.send_next(now, &wqe, produced, backend, tx),
            };
            match outcome {
                SendOutcome::Sent => {}
                SendOutcome::Blocked if self.req.fault_pending => {
                    // What has been sent is acknowledged meanwhile. What precedes the packets of
                    // a selective repeat has arrived.
                    if !self.req.begins_repeat() {
                        let repeat = self.req.repeat;
                        let _ = self.request_ack(now, produced, backend, tx);
                        self.req.repeat = repeat;
                        self.req.fault_pending = true;
                    }
                    if self.req.psn == self.req.una_psn {
                        self.req.rearm(now, &self.attrs);
                    }
                    return Progress::Idle;
                }
                SendOutcome::Blocked => return Progress::Idle,
                SendOutcome::Fail(status) => {
                    // Completions are in order: earlier requests complete first.
                    if self.req.cur != self.req.una {
                        return self.request_ack(now, produced, backend, tx);
                    }
                    if self.service == Service::Uc {
                        self.complete_oldest(&wqe, status, backend);
                        self.enter_sqe(backend);
                    } else {
                        self.fail_oldest(&wqe, status, backend);
                    }
                    return Progress::Idle;
                }
            }
        }
    }

    /// True if a READ has to wait because its response does not fit into the window, once the path
    /// limits that: when a response is lost, all that was requested behind it is requested again. A
    /// quarter more is allowed, so that the next response follows without a pause.
    fn exceeds_window(&self, wr: &SendWr) -> bool {
        let (in_flight, window) = (self.req.in_flight(), &self.req.window);
        let limit = window
            .limit()
            .saturating_add(window.limit().wrapping_shr(2));
        let response = packets(wr.length, self.attrs.mtu.bytes());
        matches!(wr.body, SendBody::Read(_))
            && window.is_limited_by_path()
            && in_flight > 0
            && in_flight.saturating_add(response) > limit
    }

    /// Executes the local operation at the cursor, unless it was executed before a go-back-N
    /// (IBTA 10.8.3.3).
    ///
    /// A registration or bind does not affect earlier requests and does not wait for their
    /// completion. An invalidation does: earlier requests may have to be retransmitted from memory
    /// under the key (IBTA 10.6.5.1 allows it to wait).
    fn execute_local(
        &mut self,
        op: &LocalOp,
        fence: bool,
        begun: bool,
        backend: &mut impl Backend,
    ) -> LocalOutcome {
        if !begun {
            let waits = match op {
                LocalOp::Invalidate(_) => self.req.cur != self.req.una,
                LocalOp::Bind(_) | LocalOp::Register(_) => {
                    fence && self.req.rd_atomic_outstanding > 0
                }
            };
            if waits {
                return LocalOutcome::Wait;
            }
            let result = backend.local_op(op);
            let Some(wqe) = backend.send_wqe(self.req.cur) else {
                return LocalOutcome::Wait;
            };
            if result.is_err() {
                // It fails in order and is not executed again.
                wqe.invalid = Some(WcStatus::MwBindErr);
                return LocalOutcome::Fail(WcStatus::MwBindErr);
            }
            // No packet: an empty PSN range.
            wqe.psns.first = self.req.max_psn;
            wqe.psns.last = self.req.max_psn.prev();
            self.req.unsent = self.req.unsent.wrapping_add(1);
        }
        self.req.cur = self.req.cur.wrapping_add(1);
        self.req.offset = 0;
        self.complete_local(backend);
        LocalOutcome::Done
    }

    /// Completes the oldest WQEs while they are executed local operations.
    pub(super) fn complete_local(&mut self, backend: &mut impl Backend) {
        while index_before(self.req.una, self.req.unsent) {
            let Some(wqe) = backend.send_wqe(self.req.una).map(|wqe| *wqe) else {
                return;
            };
            if !wqe.wr.body.is_local() || wqe.invalid.is_some() {
                return;
            }
            self.complete_oldest(&wqe, WcStatus::Success, backend);
        }
    }

    /// True if no packet follows the WQE before `next` for now: the queue ends there, or with a
    /// local operation, which may wait for earlier requests.
    fn ends_at(next: u32, produced: u32, backend: &mut impl Backend) -> bool {
        next == produced || backend.send_wqe(next).is_some_and(|s| s.wr.body.is_local())
    }

    /// The requester stops here. If the last packet has no AckReq bit, because another packet was
    /// to follow, the peer would never acknowledge it: retransmits it with the bit set.
    fn request_ack(
        &mut self,
        now: Instant,
        produced: u32,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Progress {
        let requested = self.req.since_ack_req == 0 || self.req.psn == self.req.una_psn;
        if requested || self.service != Service::Rc {
            return Progress::Idle;
        }
        let last = self.req.psn.prev();
        self.move_cursor(last, backend);
        self.req.ack_now = true;
        if let Some(wqe) = backend.send_wqe(self.req.cur).map(|wqe| *wqe) {
            // If it cannot be sent now, the cursor stays at it and it is sent later.
            let _ = self.send_next(now, &wqe, produced, backend, tx);
        }
        Progress::Idle
    }

    /// Starts the WQE at the cursor: assigns its PSNs (IBTA 9.7.3, IBTA 10.8.3.3). `None` if a
    /// fence, the READ limit or the PSN span blocks it.
    fn assign_psns(&mut self, wr: &SendWr, backend: &mut impl Backend) -> Option<SendWqe> {
        let read = wr.body.needs_response();
        if wr.flags.fence && self.req.rd_atomic_outstanding > 0 {
            return None;
        }
        if read
            && self.req.rd_atomic_outstanding >= self.attrs.max_rd_atomic
            && self.req.rd_atomic_outstanding > 0
        {
            return None;
        }
        let count = match wr.body.is_single() {
            true => 1,
            false => packets(wr.length, self.attrs.mtu.bytes()),
        };
        let top = self.req.max_psn.wrapping_add(count);
        let span = u32::try_from(self.req.max_psn.delta(self.req.una_psn)).unwrap_or(0);
        if span > 0 && span.saturating_add(count) > MAX_PSN_SPAN {
            return None;
        }
        let wqe = backend.send_wqe(self.req.cur)?;
        if read && (self.attrs.max_rd_atomic == 0 || self.service != Service::Rc) {
            wqe.invalid = Some(WcStatus::LocQpOpErr);
            return Some(*wqe);
        }
        wqe.psns.first = self.req.max_psn;
        wqe.psns.last = self.req.max_psn.wrapping_add(count.wrapping_sub(1));
        wqe.placed = 0;
        let wqe = *wqe;
        if read {
            self.req.rd_atomic_outstanding = self.req.rd_atomic_outstanding.saturating_add(1);
        }
        self.req.psn = self.req.max_psn;
        self.req.max_psn = top;
        self.req.offset = 0;
        self.req.unsent = self.req.unsent.wrapping_add(1);
        Some(wqe)
    }

    /// Sends the next packet of `wqe`, the WQE at the cursor, and moves the cursor. `produced` is
    /// the index after the newest WQE.
    fn send_next(
        &mut self,
        now: Instant,
        wqe: &SendWqe,
        produced: u32,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> SendOutcome {
        if let Some(status) = wqe.invalid {
            return SendOutcome::Fail(status);
        }
        let result = match &wqe.wr.body {
            body if body.carries_payload() => self.send_payload(now, wqe, produced, backend, tx),
            SendBody::Read(from) => self.send_read(wqe, from, u32::MAX, backend, tx),
            _ => self.send_single(self.req.cur, wqe, false, backend, tx),
        };
        if result.is_ok() && wqe.wr.body.needs_response() {
            self.advance_past(wqe);
        }
        self.req.fault_pending = false;
        match result {
            Ok(()) => {
                if self.service == Service::Rc {
                    let req = &mut self.req;
                    if req.rnr_psn.is_some_and(|psn| psn.is_before(req.psn)) {
                        req.rnr_psn = None;
                    }
                    if self.req.deadline.is_none() {
                        self.req.deadline = ack_deadline(now, &self.attrs);
                    }
                    // Each packet sent restarts the probe timer.
                    self.req.prober.rearm(now, true);
                    let first_sent =
                        self.req.psn == self.req.max_psn || !self.req.window.is_recovering();
                    if self.req.since_ack_req == 0 && first_sent {
                        self.req.prober.on_request_sent(self.req.psn.prev(), now);
                    }
                }
                SendOutcome::Sent
            }
            Err(TxFault::Busy) => {
                self.pause(now);
                SendOutcome::Blocked
            }
            Err(TxFault::Unreachable) => SendOutcome::Fail(WcStatus::LocQpOpErr),
            Err(TxFault::Fill(LocalFault::NotPresent)) => {
                self.req.fault_pending = true;
                SendOutcome::Blocked
            }
            Err(TxFault::Fill(LocalFault::Refused | LocalFault::Gone)) => {
                SendOutcome::Fail(WcStatus::LocProtErr)
            }
        }
    }

    /// Moves the cursor to the WQE after `wqe`.
    fn advance_past(&mut self, wqe: &SendWqe) {
        self.req.psn = wqe.psns.last.next();
        self.req.note_sent();
        self.req.cur = self.req.cur.wrapping_add(1);
        self.req.offset = 0;
        self.req.since_ack_req = 0;
        self.req.ack_now = false;
    }

    /// Completes the oldest WQE with `status` (IBTA 9.5, IBTA 10.7.3.1).
    pub(super) fn complete_oldest(
        &mut self,
        wqe: &SendWqe,
        status: WcStatus,
        backend: &mut impl Backend,
    ) {
        let wr = &wqe.wr;
        // First, because the consumer may post another request as soon as it sees the completion.
        backend.retire_sends(self.req.una.wrapping_add(1));
        if wr.body.is_send() {
            backend.count(Count::SendCompleted);
        }
        if wr.flags.signaled || status != WcStatus::Success {
            let len = if status == WcStatus::Success {
                wr.length
            } else {
                0
            };
            backend.complete_send(&Wc::send(
                wr.wr_id,
                wr.body.op(),
                status,
                len,
                self.attrs.qpn.get(),
            ));
        }
        let begun = index_before(self.req.una, self.req.unsent);
        if begun {
            if wr.body.needs_response() {
                self.req.rd_atomic_outstanding = self.req.rd_atomic_outstanding.saturating_sub(1);
            }
            self.req.una_psn = wqe.psns.last.next();
            if !wr.body.is_local() {
                self.req.una_msn = self.req.una_msn.next();
            }
        } else {
            self.req.unsent = self.req.unsent.wrapping_add(1);
        }
        self.req.una = self.req.una.wrapping_add(1);
        if index_before(self.req.cur, self.req.una) {
            self.req.fault_pending = false;
            self.req.cur = self.req.una;
            self.req.offset = 0;
            self.req.psn = self.req.una_psn;
        }
    }

    /// Completes the oldest WQE in error and moves the QP to ERR (IBTA 9.9.2).
    pub(super) fn fail_oldest(
        &mut self,
        wqe: &SendWqe,
        status: WcStatus,
        backend: &mut impl Backend,
    ) {
        backend.entering_error();
        self.complete_oldest(wqe, status, backend);
        self.resp.stop();
        self.enter_error(backend);
    }
}
