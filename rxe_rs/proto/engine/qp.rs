// SPDX-License-Identifier: GPL-2.0
//! The queue pair and the entry points of the engine.
//!
//! Inputs: [`Qp::handle_packet`], [`Qp::handle_timeout`], [`Qp::set_state`]. Outputs:
//! [`Qp::poll_transmit`], [`Qp::poll_timeout`], [`Qp::take_events`]. Everything else is a getter.
//! Times are nanoseconds of one monotonic clock; spurious timeouts are harmless.

use super::attrs::{Attrs, Events, Progress, Service, State, UdMeta};
use super::backend::{Backend, Count, Dest, Handled, Taken, Tx};
use super::congestion::{is_marked, notice, CnpGenerator, Meter, Trust, NOTICE_BYTES};
use super::pacer::{Pacer, PathFacts};
use super::requester::Requester;
use super::responder::{ReplayEntry, Responder};
use super::trains::Trains;
use super::wc::{Wc, WcStatus};
use crate::ids::{PKey, Psn, Qpn};
use crate::wire::opcode::Opcode;
use crate::wire::packet::{Packet, Payload};

/// Pause after a local transmit failure, in nanoseconds.
const TX_PAUSE_NS: u64 = 100_000;

/// Pause while enough is queued below the QP, in nanoseconds.
const QUEUE_PAUSE_NS: u64 = 250_000;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) service: Service,
    pub(super) state: State,
    /// The attributes; write them only while no packet can be in between, that is under the lock
    /// that guards the QP.
    pub attrs: Attrs,
    pub(super) req: Requester,
    pub(super) resp: Responder,
    pub(super) events: Events,
    pub(super) tx_resume: Option<u64>,
    /// End of a pause that the sending rate asks for.
    pub(super) paced_until: Option<u64>,
    cnp: CnpGenerator,
    trust: Trust,
    pub(super) pacer: Pacer,
    pub(super) trains: Trains,
    seen_packet: bool,
    pub(super) shared_receives: bool,
}

impl Qp {
    /// A QP in RESET.
    pub fn new(service: Service, qpn: Qpn) -> Self {
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
            trust: Trust::new(),
            pacer: Pacer::new(),
            trains: Trains::new(),
            seen_packet: false,
            shared_receives: false,
        }
    }

    /// Receives come from a queue that other QPs use, too: it is not flushed with this QP.
    #[must_use]
    pub fn with_shared_receives(mut self) -> Self {
        self.shared_receives = true;
        self
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

    /// PSN of the next packet that has never been sent.
    pub fn sq_psn(&self) -> Psn {
        self.req.top
    }

    /// PSN of the next request expected from the peer.
    pub fn rq_psn(&self) -> Psn {
        self.resp.epsn
    }

    /// Packets that may be in flight now.
    pub fn window(&self) -> u32 {
        self.req.window.limit()
    }

    /// Packets sent and not answered yet.
    pub fn in_flight(&self) -> u32 {
        let sent = self.req.psn.delta(self.req.una_psn);
        u32::try_from(sent).unwrap_or(0)
    }

    /// Smoothed round trip time of an RC QP, in nanoseconds, once it has been measured.
    pub fn round_trip(&self) -> Option<u64> {
        self.req.prober.round_trip()
    }

    /// Retries left before an RC QP gives up: after timeouts and sequence errors, and while the
    /// peer has no receive posted.
    pub fn retries_left(&self) -> (u8, u8) {
        (self.req.retries, self.req.rnr_retries)
    }

    /// The rate that congestion notifications limit the QP to, in bytes per millisecond.
    pub fn rate_limit(&self) -> Option<u64> {
        self.pacer.rate()
    }

    /// Sets the PSN of the first request to be sent; while nothing has been sent.
    pub fn set_sq_psn(&mut self, psn: Psn) {
        self.req.una_psn = psn;
        self.req.psn = psn;
        self.req.top = psn;
    }

    /// Sets the PSN of the first request expected; while none has arrived.
    pub fn set_rq_psn(&mut self, psn: Psn) {
        self.resp.expect(psn);
    }

    /// True if the send queue is in SQD and everything begun has finished.
    pub fn is_drained(&self) -> bool {
        self.state == State::Sqd && self.req.una == self.req.fresh
    }

    /// Enters `state`; the caller has checked that the transition is allowed (IBTA vol1
    /// 10.3.1, `transition::check`) and has stored the attributes.
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
                // Nothing of the old connection may be replayed to a new peer.
                backend.storage().replay.fill(ReplayEntry::EMPTY);
                self.events = Events::default();
                self.tx_resume = None;
                self.paced_until = None;
                self.cnp = CnpGenerator::default();
                self.trust = Trust::new();
                self.pacer = Pacer::new();
                self.trains = Trains::new();
                self.seen_packet = false;
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
                self.req.drained_told = false;
                self.note_drained();
            }
            State::Sqe => self.enter_sqe(backend),
            State::Init | State::Rtr => self.state = state,
        }
    }

    /// The QP cannot go on for a reason on this side that no completion can report (IBTA vol1
    /// 11.6.3.2, local work queue catastrophic error). Does nothing to a QP in RESET or ERR.
    pub fn fail_locally(&mut self, backend: &mut impl Backend) {
        if !matches!(self.state, State::Reset | State::Err) {
            self.events.fatal = true;
            self.resp.stop();
            self.enter_error(backend);
        }
    }

    /// Feeds one admitted packet. `meta` is needed for the datagram services.
    ///
    /// Packets that come while one is put off ([`Handled::Deferred`]) are to be kept behind it, or
    /// to be dropped.
    ///
    /// Whatever it causes to be sent is fetched with [`Qp::poll_transmit`], which the caller does
    /// once after a train of packets.
    pub fn handle_packet(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &UdMeta<'_>,
        backend: &mut impl Backend,
    ) -> Handled {
        match self.state {
            State::Rtr | State::Rts | State::Sqd | State::Sqe => {}
            State::Reset | State::Init | State::Err => {
                backend.count(Count::Unexpected);
                return Handled::Done;
            }
        }
        if !self.seen_packet && self.proves_peer(packet) {
            self.seen_packet = true;
            self.events.comm_est = self.state == State::Rtr;
        }
        if packet.opcode() == Opcode::CNP {
            self.handle_notice(now, packet, backend);
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
        // Once for a packet, however often it is fed.
        if handled == Handled::Done && is_marked(meta) {
            backend.count(Count::Marked);
            // The sender of acknowledgements has no rate that could be less.
            if self.service.is_connected() && !packet.opcode().is_acknowledgement() {
                self.cnp.on_marked(now, packet.bth().pkey);
            }
        }
        handled
    }

    /// Whether a packet shows that the peer has begun to send (IBTA vol1 11.6.3.1, communication
    /// established): on a reliable connection only one with the PSN that is expected, which a
    /// stranger does not know.
    fn proves_peer(&self, packet: &Packet<'_>) -> bool {
        self.service != Service::Rc
            || (!packet.opcode().is_response() && packet.bth().psn == self.resp.epsn)
    }

    /// Some router on our way is congested (RoCEv2 annex A17.9.3), or somebody says so. A datagram
    /// QP has no peer that could be believed.
    fn handle_notice(&mut self, now: u64, packet: &Packet<'_>, backend: &mut impl Backend) {
        if !self.service.is_connected() {
            return backend.count(Count::Unexpected);
        }
        if !packet.bth().becn || !self.trust.believes(now) {
            backend.count(Count::NoticeIgnored);
            if self.trust.is_off(now) {
                self.pacer.release();
            }
            return;
        }
        backend.count(Count::NoticeHandled);
        if self.pacer.on_notice(now, self.path_facts()) {
            // What is in flight is enough for the path.
            self.req.window.on_congestion();
        }
    }

    fn path_facts(&self) -> PathFacts {
        PathFacts {
            least_round_trip: Some(self.req.prober.least_round_trip()).filter(|ns| *ns != 0),
            round_trip: self.req.prober.recent(),
            mtu: self.attrs.mtu.bytes(),
            next: self.req.psn,
            oldest: match self.service {
                Service::Rc => self.req.una_psn,
                _ => self.req.psn,
            },
        }
    }

    /// Feeds the passage of time.
    pub fn handle_timeout(&mut self, now: u64, backend: &mut impl Backend) {
        if self.tx_resume.is_some_and(|at| at <= now) {
            self.tx_resume = None;
        }
        self.nak_timeout(now, backend);
        if self.paced_until.is_some_and(|at| at <= now) {
            self.paced_until = None;
        }
        self.request_timeout(now, backend);
    }

    /// When [`Qp::handle_timeout`] (and then [`Qp::poll_transmit`]) wants to be called next.
    pub fn poll_timeout(&self) -> Option<u64> {
        [
            self.req.deadline,
            self.req.prober.at,
            self.req.rnr_until,
            self.req.gap_due,
            self.nak_due(),
            self.tx_resume,
            self.paced_until,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Hands packets to `tx` until there is nothing to send or no room. Responses go first.
    pub fn poll_transmit(
        &mut self,
        now: u64,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Progress {
        if !self.trains.are_allowed(now) {
            tx.end_trains();
        }
        if let Some(pkey) = self.cnp.due.take() {
            self.notify(pkey, backend, tx);
        }
        if self.tx_resume.is_some() {
            return Progress::Idle;
        }
        let path = self.path_facts();
        let budget = match self.paced_until {
            Some(at) if at > now => 0,
            _ => self.pacer.budget(now, path),
        };
        let mut tx = Meter::new(tx, budget);
        let progress = self.transmit(now, backend, &mut tx);
        let limited = progress == Progress::More && tx.is_spent();
        if tx.packets > 0 {
            self.pacer.spend(now, tx.sent);
            self.trust.on_sent(now, tx.packets);
        }
        if !limited {
            return progress;
        }
        if self.paced_until.is_none_or(|at| at <= now) {
            let resume = self.pacer.resume_at(now);
            self.paced_until = Some(resume);
            // Each train of a slow sender is acknowledged, and the time in which nothing may be sent
            // is not counted, or the timer would take packets for lost that are still here.
            self.req.ack_now = true;
            self.req.postpone(resume, &self.attrs);
        }
        Progress::Idle
    }

    /// Tells the peer that its packets come through a congested router. If that cannot be sent
    /// the next marked packet is reason enough for another.
    fn notify(&mut self, pkey: PKey, backend: &mut impl Backend, tx: &mut impl Tx) {
        if matches!(self.state, State::Reset | State::Init | State::Err) {
            return;
        }
        let headers = notice(self.attrs.dest_qpn, pkey);
        let fill = |dst: &mut [u8]| {
            dst.fill(0);
            Ok::<(), core::convert::Infallible>(())
        };
        if tx.has_room() && tx.packet(Dest::Peer, &headers, NOTICE_BYTES, fill).is_ok() {
            backend.count(Count::NoticeSent);
        }
    }

    fn transmit<T: Tx>(
        &mut self,
        now: u64,
        backend: &mut impl Backend,
        tx: &mut Meter<'_, T>,
    ) -> Progress {
        if self.service == Service::Rc
            && self.transmit_responses(now, backend, tx) == Progress::More
        {
            return Progress::More;
        }
        match self.state {
            State::Rts | State::Sqd => match self.service {
                Service::Rc | Service::Uc => self.transmit_requests(now, backend, tx),
                Service::Ud | Service::Gsi | Service::Raw => {
                    self.transmit_datagrams(now, backend, tx)
                }
            },
            State::Err | State::Sqe => {
                self.flush_posted(backend);
                Progress::Idle
            }
            _ => Progress::Idle,
        }
    }

    /// Flushes requests posted since the QP entered ERR (or SQE, for sends).
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

    /// The path could not take what [`Qp::poll_transmit`] produced (queue full, no memory): what
    /// was lost is sent again in time, and nothing is sent for a moment.
    pub fn on_congestion(&mut self, now: u64) {
        self.req.window.on_loss(self.req.top);
        self.pause(now);
    }

    /// What the QP has sent is still in the queues below it, and there is more to send: waits for
    /// a moment.
    pub fn wait_for_queue(&mut self, now: u64) {
        self.tx_resume = Some(now.saturating_add(QUEUE_PAUSE_NS));
    }

    /// Takes the events raised so far.
    #[inline]
    pub fn take_events(&mut self) -> Events {
        core::mem::take(&mut self.events)
    }

    pub(super) fn pause(&mut self, now: u64) {
        self.tx_resume = Some(now.saturating_add(TX_PAUSE_NS));
    }

    pub(super) fn note_drained(&mut self) {
        if self.is_drained() && !self.req.drained_told {
            self.req.drained_told = true;
            self.events.sq_drained = self.attrs.drain_notice;
        }
    }

    /// Moves the QP to ERR and flushes both queues. Responses already owed, among them the NAK
    /// that explains the error, still go out if the responder was told to close.
    pub(super) fn enter_error(&mut self, backend: &mut impl Backend) {
        // Once, however often the state is entered (IBTA vol1 11.6.3.1).
        self.events.last_wqe |= self.shared_receives && self.state != State::Err;
        self.state = State::Err;
        self.req.deadline = None;
        self.req.rnr_until = None;
        self.req.gap_due = None;
        self.req.prober.rearm(0, false);
        self.tx_resume = None;
        self.paced_until = None;
        if let Some(wr) = self.resp.abort_message() {
            let wc = Wc::recv_error(wr.wr_id, WcStatus::WrFlushErr, self.attrs.qpn.get());
            backend.complete_recv(&wc);
        }
        self.flush_sends(backend);
        self.flush_receives(backend);
    }

    /// Moves an UC or UD QP to SQE and flushes its send queue.
    pub(super) fn enter_sqe(&mut self, backend: &mut impl Backend) {
        self.state = State::Sqe;
        self.req.deadline = None;
        self.flush_sends(backend);
    }

    fn flush_sends(&mut self, backend: &mut impl Backend) {
        let produced = backend.sends_posted();
        let qpn = self.attrs.qpn.get();
        while self.req.una != produced {
            let Some(wqe) = backend.send_wqe(self.req.una) else {
                break;
            };
            let wr = wqe.wr;
            let wc = Wc::send(wr.wr_id, wr.op, WcStatus::WrFlushErr, 0, qpn);
            backend.complete_send(&wc);
            self.req.una = self.req.una.wrapping_add(1);
            backend.retire_sends(self.req.una);
        }
        let una = self.req.una;
        self.req.reset_to(una);
    }

    fn flush_receives(&mut self, backend: &mut impl Backend) {
        if self.shared_receives {
            return;
        }
        // Bounded: a process that posts as fast as we flush must not keep us here.
        for _ in 0..FLUSH_BOUND {
            let wr_id = match backend.take_recv() {
                Taken::Wr(wr) => wr.wr_id,
                Taken::Invalid { wr_id } => wr_id,
                Taken::Empty => return,
            };
            backend.complete_recv(&Wc::recv_error(
                wr_id,
                WcStatus::WrFlushErr,
                self.attrs.qpn.get(),
            ));
        }
    }
}

/// Receives flushed in one go; no ring is longer.
const FLUSH_BOUND: u32 = 1 << 16;
