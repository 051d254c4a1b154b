// SPDX-License-Identifier: GPL-2.0
//! The queue pair and the entry points of the engine.
//!
//! Inputs: [`Qp::handle_packet`], [`Qp::handle_timeout`], [`Qp::set_state`]. Outputs:
//! [`Qp::poll_transmit`], [`Qp::poll_timeout`], [`Qp::take_events`]. Everything else is a getter.
//! Times are nanoseconds of one monotonic clock; spurious timeouts are harmless.

use super::attrs::{Attrs, Events, Progress, RxMeta, Service, State, ToSend};
use super::backend::{Backend, Count, Dest, Handled, Storage, TakenRecv, Tx};
use super::congestion::{
    cnp_headers, is_marked, CnpFilter, CnpGenerator, Meter, CNP_PAYLOAD_BYTES,
};
use super::gso::GsoPolicy;
use super::late_receives::{LateReceives, ReceiveQueue};
use super::pacer::{Pacer, PathState};
use super::repeat::{KeptPacket, MAX_AHEAD};
use super::requester::{packets, Requester};
use super::responder::{ReplayEntry, Responder};
use super::same_host::{HostTag, SameHost};
use super::wc::{Wc, WcStatus};
use crate::ids::{PKey, Psn, Qpn};
use crate::time::Instant;
use crate::wire::aeth::Syndrome;
use crate::wire::opcode::Opcode;
use crate::wire::packet::{Packet, Payload};

/// Transmission pause after a local transmit failure, in nanoseconds.
const TX_PAUSE_NS: u64 = 100_000;

/// A queue pair.
///
/// # Examples
///
/// Two of them in the simulator, which implements the [traits](super::backend) that the engine
/// works on:
///
/// ```
/// use rxe_proto::engine::wc::WcStatus;
/// use rxe_proto::engine::wr::SendOp;
/// use rxe_proto::engine::Service;
/// use rxe_proto::sim::{wr, Link, Pair, REMOTE};
///
/// // The wire loses every tenth packet.
/// let link = Link { loss: 0.1, ..Link::PERFECT };
/// let mut pair = Pair::small(Service::Rc, 1, link);
/// let data: Vec<u8> = (0..20_000).map(|n| n as u8).collect();
/// pair.hosts[0].memory.borrow_mut()[..data.len()].copy_from_slice(&data);
///
/// pair.post(0, wr(SendOp::Write, 7, 20_000), 0);
/// pair.transmit(0);
/// pair.run(1_000_000_000);
///
/// assert_eq!(pair.statuses(0), [(7, WcStatus::Success)]);
/// let at = REMOTE as usize;
/// assert_eq!(pair.hosts[1].memory.borrow()[at..][..data.len()], data);
/// ```
#[derive(Debug)]
pub struct Qp {
    pub(super) service: Service,
    pub(super) state: State,
    /// The attributes; write them only under the lock of the QP.
    pub attrs: Attrs,
    pub(super) req: Requester,
    pub(super) resp: Responder,
    pub(super) events: Events,
    pub(super) tx_resume: Option<Instant>,
    /// End of a pause for pacing.
    pub(super) paced_until: Option<Instant>,
    cnp: CnpGenerator,
    cnp_filter: CnpFilter,
    pub(super) pacer: Pacer,
    pub(super) gso: GsoPolicy,
    pub(super) same_host: SameHost,
    seen_packet: bool,
    receives: ReceiveQueue,
    late_receives: LateReceives,
}

// With the locks and queues of the driver around it, it fits into an allocation of 2 KiB. The next
// larger one has 4 KiB, for each queue pair.
const _: () = assert!(size_of::<Qp>() <= 1008);

impl Qp {
    /// A QP in RESET, which takes its receive requests from `receives`.
    #[inline]
    pub fn new(service: Service, qpn: Qpn, receives: ReceiveQueue) -> Self {
        Self {
            service,
            state: State::Reset,
            attrs: Attrs::new(qpn),
            req: Requester::new(),
            resp: Responder::new(),
            events: Events::default(),
            tx_resume: None,
            paced_until: None,
            cnp: CnpGenerator::default(),
            cnp_filter: CnpFilter::new(),
            pacer: Pacer::new(),
            gso: GsoPolicy::new(),
            same_host: SameHost::default(),
            seen_packet: false,
            receives,
            late_receives: LateReceives::default(),
        }
    }

    /// Transport service.
    #[inline]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Current state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// True if the receive requests are those of a shared receive queue.
    pub(super) fn uses_srq(&self) -> bool {
        self.receives == ReceiveQueue::Shared
    }

    /// PSN of the next new packet; retransmissions have lower PSNs.
    pub fn sq_psn(&self) -> Psn {
        self.req.max_psn
    }

    /// PSN of the next request expected from the peer.
    pub fn rq_psn(&self) -> Psn {
        self.resp.epsn
    }

    /// Congestion window in packets.
    pub fn window(&self) -> u32 {
        self.req.window.limit()
    }

    /// Packets in flight: sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        let sent = self.req.psn.delta(self.req.una_psn);
        u32::try_from(sent).unwrap_or(0)
    }

    /// Smoothed round trip time of an RC QP, in nanoseconds; `None` before the first sample.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.req.prober.srtt_ns()
    }

    /// Retries left before an RC QP fails: transport retries and RNR retries.
    pub fn retries_left(&self) -> (u8, u8) {
        (self.req.retries, self.req.rnr_retries)
    }

    /// The rate that CNPs limit the QP to, in bytes per millisecond; `None` without a limit.
    pub fn rate_limit(&self) -> Option<u64> {
        self.pacer.rate()
    }

    /// Sets the PSN of the first request to be sent. Call it before anything is sent.
    pub fn set_sq_psn(&mut self, psn: Psn) {
        self.req.una_psn = psn;
        self.req.received_psn = psn;
        self.req.psn = psn;
        self.req.sent_psn = psn;
        self.req.max_psn = psn;
    }

    /// Sets the expected PSN. Call it before any request arrives.
    pub fn set_rq_psn(&mut self, psn: Psn) {
        self.resp.expect(psn);
    }

    /// Moves the engine's memory for this QP from `from` to `to`, which the backend's
    /// [`storage`](Backend::storage) must return from now on. `to` must be empty, and not shorter
    /// than `from`. Allowed in any state; call it before
    /// [`max_dest_rd_atomic`](Attrs::max_dest_rd_atomic) is raised.
    ///
    /// # Examples
    ///
    /// ```
    /// use rxe_proto::engine::attrs::{pending_responses, replay_entries};
    /// use rxe_proto::engine::backend::Storage;
    /// use rxe_proto::engine::{PendingResponse, Qp, ReceiveQueue, ReplayEntry, Service};
    /// use rxe_proto::ids::Qpn;
    ///
    /// let mut qp = Qp::new(Service::Rc, Qpn::new(0x11), ReceiveQueue::Announced);
    /// let mut pending = [PendingResponse::EMPTY; 6];
    /// let mut replay = [ReplayEntry::EMPTY; 4];
    /// assert!(pending.len() >= pending_responses(3) && replay.len() >= replay_entries(3));
    ///
    /// let none = Storage { pending: &mut [], replay: &mut [] };
    /// qp.move_storage(none, Storage { pending: &mut pending, replay: &mut replay });
    /// qp.attrs.max_dest_rd_atomic = 3;
    /// ```
    pub fn move_storage(&mut self, from: Storage<'_>, to: Storage<'_>) {
        self.resp.pending.move_slots(from.pending, to.pending);
        let limit = self.attrs.max_dest_rd_atomic;
        self.resp.move_replay(from.replay, to.replay, limit);
    }

    /// True if the QP is in SQD and all started send requests have completed.
    pub fn is_drained(&self) -> bool {
        self.state == State::Sqd && self.req.una == self.req.unsent
    }

    /// Enters `state`; the caller has checked that the transition is allowed (IBTA 10.3.1,
    /// `transition::check`) and has stored the attributes.
    pub fn set_state(&mut self, state: State, backend: &mut impl Backend) {
        match state {
            State::Reset => {
                let produced = backend.sends_posted();
                let qpn = self.attrs.qpn;
                self.attrs = Attrs::new(qpn);
                self.req = Requester::new();
                self.req.reset_to(produced);
                backend.retire_sends(produced);
                self.resp = Responder::new();
                // No response of the old connection may be replayed to a new peer.
                backend.storage().replay.fill(ReplayEntry::EMPTY);
                self.events = Events::default();
                self.tx_resume = None;
                self.paced_until = None;
                self.cnp = CnpGenerator::default();
                self.cnp_filter = CnpFilter::new();
                self.pacer = Pacer::new();
                self.gso = GsoPolicy::new();
                self.same_host.forget();
                self.seen_packet = false;
                self.late_receives = LateReceives::default();
                self.state = State::Reset;
            }
            State::Err => {
                self.resp.stop();
                self.enter_error(backend);
            }
            State::Rts => {
                self.req.refill_retries(&self.attrs);
                self.state = State::Rts;
            }
            State::Sqd => {
                self.state = State::Sqd;
                self.req.drained_reported = false;
                self.note_drained();
            }
            State::Sqe => self.enter_sqe(backend),
            State::Init | State::Rtr => self.state = state,
        }
    }

    /// Moves the QP to ERR for a local failure that no completion can report (IBTA 11.6.3, local
    /// work queue catastrophic error). No-op in RESET and ERR.
    pub fn fail_locally(&mut self, backend: &mut impl Backend) {
        if !matches!(self.state, State::Reset | State::Err) {
            self.events.fatal = true;
            self.resp.stop();
            self.enter_error(backend);
        }
    }

    /// Returns the tag of the packets of the next transmission round, and with it whether they
    /// have an ICRC. Only RC detects that the peer does not receive them, and the loss of a packet
    /// or of the response to it must not be an error: a QP that sends requests needs a retry.
    #[inline]
    pub fn tag(&self) -> HostTag {
        let may_lose = self.attrs.retry_cnt > 0 || self.state == State::Rtr;
        match self.service {
            Service::Rc if may_lose => self.same_host.tag(),
            _ => HostTag::None,
        }
    }

    /// The path to the peer has changed.
    pub fn path_changed(&mut self) {
        self.same_host.forget();
    }

    /// Processes one admitted packet.
    ///
    /// While a packet is deferred ([`Handled::Deferred`]), the caller queues later packets behind
    /// it, or drops them.
    ///
    /// Call [`Qp::poll_transmit`] afterwards for the packets to send, once per receive batch.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &RxMeta<'_>,
        backend: &mut impl Backend,
    ) -> Handled {
        match self.state {
            State::Rtr | State::Rts | State::Sqd | State::Sqe => {}
            State::Reset | State::Init | State::Err => {
                backend.count(Count::Unexpected);
                return Handled::Done;
            }
        }
        self.same_host.on_packet(meta.tag, meta.merged);
        if !self.seen_packet && self.establishes_communication(packet) {
            self.seen_packet = true;
            self.events.comm_est = self.state == State::Rtr;
        }
        if packet.opcode() == Opcode::CNP {
            self.handle_cnp(now, packet, backend);
            return Handled::Done;
        }
        let handled = match self.service {
            Service::Rc => {
                if packet.opcode().is_response() {
                    self.handle_response(now, packet, payload, backend)
                } else {
                    self.handle_request(now, packet, payload, backend)
                }
            }
            Service::Uc => self.handle_uc(packet, payload, backend),
            Service::Ud | Service::Gsi => self.handle_datagram(packet, payload, meta, backend),
            Service::Raw => {
                backend.count(Count::Unexpected);
                Handled::Done
            }
        };
        // Counted once per packet, even if it was deferred before.
        if handled == Handled::Done && is_marked(meta) {
            backend.count(Count::EcnMarked);
            // Acknowledgements are not paced, so a CNP for one has no effect.
            if self.service.is_connected() && !packet.opcode().is_acknowledgement() {
                self.cnp.on_marked(now, packet.bth().pkey);
            }
        }
        handled
    }

    /// The caller has kept a copy of a packet for which [`Qp::handle_packet`] returned
    /// [`Handled::Ahead`].
    pub fn on_kept(&mut self, packet: &Packet<'_>, backend: &mut impl Backend) {
        backend.count(Count::Kept);
        let first = packet.bth().psn;
        let len = u32::try_from(packet.payload_len()).unwrap_or(0);
        // A merged packet may end behind the last one that could be kept.
        let count = packets(len, self.attrs.mtu.bytes()).min(MAX_AHEAD);
        for psn in (0..count).map(|i| first.wrapping_add(i)) {
            if packet.opcode().is_response() {
                if self.req.responses.insert(psn) {
                    // Retries are for what is missing now.
                    self.req.retries = self.attrs.retry_cnt;
                }
            } else {
                let ahead = u32::try_from(psn.delta(self.resp.epsn));
                self.resp.kept.insert(ahead.unwrap_or(u32::MAX));
            }
        }
    }

    /// True if packets are kept.
    #[inline]
    pub fn keeps_packets(&self) -> bool {
        !self.resp.kept.is_empty() || self.req.responses.keeps_any()
    }

    /// The kept packet that is to be passed to [`Qp::handle_packet`] now, if any. Call it after
    /// each packet until it returns `None`.
    #[inline]
    pub fn take_kept(&mut self, backend: &mut impl Backend) -> Option<KeptPacket> {
        let expected = self.resp.epsn;
        if self.resp.kept.take_expected() {
            return Some(KeptPacket::Request(expected));
        }
        self.find_expected_response(backend);
        let psn = self.req.responses.take_expected()?;
        Some(KeptPacket::Response(psn))
    }

    /// True if a packet proves that the peer has started to send (IBTA 11.6.3, communication
    /// established): on a reliable connection only a packet with the expected PSN, which an
    /// off-path attacker does not know.
    fn establishes_communication(&self, packet: &Packet<'_>) -> bool {
        self.service != Service::Rc
            || (!packet.opcode().is_response() && packet.bth().psn == self.resp.epsn)
    }

    /// Handles a CNP: a router on the path is congested (IBTA A17.9.3), unless the CNP is
    /// forged. A datagram QP has no peer to compare a CNP with and drops it.
    fn handle_cnp(&mut self, now: Instant, packet: &Packet<'_>, backend: &mut impl Backend) {
        if !self.service.is_connected() {
            return backend.count(Count::Unexpected);
        }
        if !packet.bth().becn || !self.cnp_filter.accepts(now) {
            backend.count(Count::CnpIgnored);
            if self.cnp_filter.is_rejecting(now) {
                self.pacer.release();
            }
            return;
        }
        backend.count(Count::CnpHandled);
        if self.pacer.on_cnp(now, self.path_state()) {
            // The packets in flight fill the path: end slow start.
            self.req.window.on_congestion();
        }
    }

    fn path_state(&self) -> PathState {
        PathState {
            min_rtt_ns: Some(self.req.prober.min_rtt_ns()).filter(|ns| *ns != 0),
            rtt_ns: self.req.prober.current_rtt_ns(),
            mtu: self.attrs.mtu.bytes(),
            next: self.req.psn,
            oldest: match self.service {
                Service::Rc => self.req.una_psn,
                _ => self.req.psn,
            },
        }
    }

    /// Processes all timers that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Instant, backend: &mut impl Backend) {
        if self.tx_resume.is_some_and(|at| at <= now) {
            self.tx_resume = None;
        }
        self.nak_timeout(now, backend);
        self.resp.delayed_ack.expire(now);
        self.late_receives.expire(now);
        if self.paced_until.is_some_and(|at| at <= now) {
            self.paced_until = None;
        }
        self.request_timeout(now, backend);
    }

    /// The next deadline: when to call [`Qp::handle_timeout`] and then
    /// [`Qp::poll_transmit`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        [
            self.req.deadline,
            self.req.prober.deadline,
            self.req.rnr_until,
            self.req.loss_deadline,
            self.nak_deadline(),
            self.delayed_ack_deadline(),
            self.tx_resume,
            self.paced_until,
            self.late_receives.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// As [`Qp::poll_timeout`] while received packets wait, one of which may be what the other
    /// timers are for: when [`Qp::poll_transmit`] sends again after a pause.
    pub fn poll_resume(&self) -> Option<Instant> {
        [self.tx_resume, self.paced_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns what [`Qp::poll_transmit`] would send. After most packets of a long message it is
    /// nothing, and the caller need not try.
    #[inline]
    pub fn to_send(&self, backend: &impl Backend) -> ToSend {
        let all_sent = match self.state {
            State::Rtr => true,
            State::Rts => self.req.has_sent_all(backend.sends_posted()),
            _ => false,
        };
        let ack_at_most = all_sent
            && self.resp.pending.is_empty()
            && self.cnp.due.is_none()
            && self.events.is_empty();
        match self.resp.ack {
            None if ack_at_most => ToSend::Nothing,
            Some((_, Syndrome::Ack { .. })) if ack_at_most => match self.delayed_ack_deadline() {
                Some(_) => ToSend::Nothing,
                None => ToSend::Ack,
            },
            _ => ToSend::Other,
        }
    }

    /// Queues packets on `tx` until there is nothing to send or no room. Responses go first;
    /// if only an ACK is to be sent, it follows the requests.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Progress {
        if !self.gso.is_allowed(now) {
            tx.disable_gso();
        }
        if let Some(pkey) = self.cnp.due.take() {
            self.send_cnp(pkey, backend, tx);
        }
        // A pause that is over must not stay a deadline while `handle_timeout` is not called.
        self.paced_until = self.paced_until.filter(|at| *at > now);
        if self.tx_resume.is_some_and(|at| at > now) {
            return Progress::Idle;
        }
        self.tx_resume = None;
        let path = self.path_state();
        let budget = match self.paced_until {
            Some(_) => 0,
            None => self.pacer.budget(now, path),
        };
        let mut tx = Meter::new(tx, budget);
        let progress = self.transmit(now, backend, &mut tx);
        let rate_limited = progress == Progress::More && tx.is_spent();
        if tx.packets > 0 {
            self.pacer.spend(now, tx.sent);
            self.cnp_filter.on_sent(now, tx.packets);
        }
        if !rate_limited {
            return progress;
        }
        if self.paced_until.is_none() {
            let resume = self.pacer.resume_at(now);
            self.paced_until = Some(resume);
            // A paced sender requests an acknowledgement for each burst, and the pause does not
            // count towards the acknowledgement timer, or it would expire for packets not sent yet.
            self.req.ack_now = true;
            self.req.postpone(resume, &self.attrs);
        }
        Progress::Idle
    }

    /// Sends a CNP to the peer. If it cannot be sent, the next packet marked CE causes another.
    fn send_cnp(&mut self, pkey: PKey, backend: &mut impl Backend, tx: &mut impl Tx) {
        if matches!(self.state, State::Reset | State::Init | State::Err) {
            return;
        }
        let headers = cnp_headers(self.attrs.dest_qpn, pkey);
        let fill = |dst: &mut [u8]| {
            dst.fill(0);
            Ok::<(), core::convert::Infallible>(())
        };
        if tx.has_room()
            && tx
                .packet(Dest::Peer, &headers, CNP_PAYLOAD_BYTES, fill)
                .is_ok()
        {
            backend.count(Count::CnpSent);
        }
    }

    /// Sends responses and requests, in this order unless the ACK waits for requests, or the
    /// responses left no room for requests last time: a peer that READs all the time must not stop
    /// them.
    fn transmit<T: Tx>(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut Meter<'_, T>,
    ) -> Progress {
        if self.state == State::Rts && !self.req.has_sent_all(backend.sends_posted()) {
            self.resp.delayed_ack.on_send(now, self.req.is_idle());
        }
        let ack = self.resp.ack;
        let ack_last = self.postpones_ack(backend);
        let has_room = tx.has_room();
        let requests_first = has_room && core::mem::take(&mut self.resp.left_no_room);
        let responses_last = ack_last || requests_first;
        if self.service == Service::Rc
            && !responses_last
            && self.transmit_responses(now, backend, tx) == Progress::More
        {
            self.resp.left_no_room |= has_room;
            return Progress::More;
        }
        let progress = self.transmit_sends(now, backend, tx);
        if !responses_last {
            return progress;
        }
        if self.state == State::Err && ack_last {
            // A request has failed, but the message of the peer is complete.
            self.resp.ack = ack;
            self.resp.closing = true;
        }
        match self.transmit_responses(now, backend, tx) {
            Progress::Idle => progress,
            Progress::More => Progress::More,
        }
    }

    /// True if requests go before the ACK, which is then, being shorter, the last packet of their
    /// GSO batch. It waits for one batch at most.
    fn postpones_ack(&mut self, backend: &impl Backend) -> bool {
        let postpones = self.state == State::Rts
            && !self.resp.ack_postponed
            && self.resp.pending.is_empty()
            && matches!(self.resp.ack, Some((_, Syndrome::Ack { .. })))
            && !self.req.has_sent_all(backend.sends_posted());
        self.resp.ack_postponed = postpones;
        postpones
    }

    /// Sends what is posted to the send queue.
    fn transmit_sends<T: Tx>(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut Meter<'_, T>,
    ) -> Progress {
        match self.state {
            State::Rts | State::Sqd => match self.service {
                Service::Rc | Service::Uc => self.transmit_requests(now, backend, tx),
                Service::Ud | Service::Gsi | Service::Raw => {
                    self.transmit_datagrams(now, backend, tx)
                }
            },
            State::Err | State::Sqe => {
                self.flush_posted(backend);
                if self.state == State::Err && self.receives == ReceiveQueue::Unannounced {
                    self.late_receives.on_look(now);
                }
                Progress::Idle
            }
            _ => Progress::Idle,
        }
    }

    /// Flushes work requests posted after the QP entered ERR (or SQE, for sends).
    pub fn flush_posted(&mut self, backend: &mut impl Backend) {
        match self.state {
            State::Err => {
                self.flush_sends(backend);
                self.flush_receives(backend);
            }
            State::Sqe => self.flush_sends(backend),
            _ => {}
        }
    }

    /// Reports that packets of [`Qp::poll_transmit`] were dropped locally (queue full, no memory):
    /// pauses transmission for a short time; the lost packets are retransmitted later. No-op if the
    /// QP has been reset meanwhile.
    pub fn on_congestion(&mut self, now: Instant) {
        if matches!(self.state, State::Reset | State::Init) {
            return;
        }
        self.req
            .window
            .on_loss(self.req.max_psn, self.req.least_window());
        self.pause(now);
    }

    /// Returns and clears the asynchronous events raised so far.
    #[inline]
    pub fn take_events(&mut self) -> Events {
        core::mem::take(&mut self.events)
    }

    pub(super) fn pause(&mut self, now: Instant) {
        self.tx_resume = Some(now.saturating_add(TX_PAUSE_NS));
    }

    pub(super) fn note_drained(&mut self) {
        if self.is_drained() && !self.req.drained_reported {
            self.req.drained_reported = true;
            self.events.sq_drained |= self.attrs.sqd_async_notify;
        }
    }

    /// Moves the QP to ERR and flushes both queues (IBTA 9.9.2.4.2). Pending responses, among them
    /// the NAK for the error, are still sent if `Responder::closing` is set.
    pub(super) fn enter_error(&mut self, backend: &mut impl Backend) {
        backend.entering_error();
        // Raised once, even if ERR is entered again (IBTA 11.6.3).
        self.events.last_wqe |= self.uses_srq() && self.state != State::Err;
        self.state = State::Err;
        self.resp.kept.clear();
        self.req.deadline = None;
        self.req.rnr_until = None;
        self.req.loss_deadline = None;
        self.req.prober.rearm(Instant::ZERO, false);
        self.tx_resume = None;
        self.paced_until = None;
        if let Some(wr) = self.resp.abort_message() {
            let wc = Wc::recv_error(wr.wr_id, WcStatus::WrFlushErr, self.attrs.qpn.get());
            backend.complete_recv(&wc);
        }
        self.flush_sends(backend);
        self.flush_receives(backend);
    }

    /// Moves a UC or UD QP to SQE and flushes its send queue.
    pub(super) fn enter_sqe(&mut self, backend: &mut impl Backend) {
        self.state = State::Sqe;
        self.req.deadline = None;
        self.flush_sends(backend);
    }

    /// Completes all WQEs of the send queue as flushed.
    fn flush_sends(&mut self, backend: &mut impl Backend) {
        let produced = backend.sends_posted();
        let qpn = self.attrs.qpn.get();
        while self.req.una != produced {
            let Some(wqe) = backend.send_wqe(self.req.una) else {
                break;
            };
            let wr = wqe.wr;
            let wc = Wc::send(wr.wr_id, wr.body.op(), WcStatus::WrFlushErr, 0, qpn);
            self.req.una = self.req.una.wrapping_add(1);
            backend.retire_sends(self.req.una);
            backend.complete_send(&wc);
        }
        let una = self.req.una;
        self.req.reset_to(una);
    }

    /// Completes what is posted to the receive queue as flushed. Requests of an SRQ stay there.
    fn flush_receives(&mut self, backend: &mut impl Backend) {
        if self.uses_srq() {
            return;
        }
        // Bounded: a process that posts as fast as this loop flushes must not keep it running.
        for _ in 0..FLUSH_BOUND {
            let wr_id = match backend.take_recv() {
                TakenRecv::Wr(wr) => wr.wr_id,
                TakenRecv::Invalid { wr_id } => wr_id,
                TakenRecv::Empty => return,
            };
            backend.complete_recv(&Wc::recv_error(
                wr_id,
                WcStatus::WrFlushErr,
                self.attrs.qpn.get(),
            ));
        }
    }
}

/// Maximum number of receives flushed per call; no ring is longer.
const FLUSH_BOUND: u32 = 1 << 16;
