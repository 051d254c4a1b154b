// SPDX-License-Identifier: GPL-2.0
//! Transmission: doorbells, timers and received packets lead here, and packets leave from here.
//!
//! One transmission round fills a batch of packets under the QP's lock ([`BatchTx`] is the engine's
//! sink) and sends it after unlocking, so that a packet that is looped back at once (loopback,
//! veth) finds the QP unlocked. Rounds of one QP never overlap: packets leave in the order of their
//! PSNs. Bottom halves stay disabled for a round, so that it is not preempted between filling and
//! sending.

use super::{
    QpCtx,
    QpInner, //
};
use crate::{
    clock,
    device::counters::Traffic,
    mr::MrAccess, //
};
use core::cell::Cell;
use kernel::{
    sync::{
        atomic::Relaxed,
        rcu,
        Arc,
        ArcBorrow, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};
use rxe_kapi::{
    crc::crc32_le,
    net::{
        flow::{
            Flow,
            CNP_TRAFFIC_CLASS, //
        },
        tx::{
            TxBatch,
            TxError, //
        },
    },
    rdma::{
        cq::Origin,
        event::QpEvent, //
    },
    sync::context::disable_bh, //
};
use rxe_proto::{
    engine::{
        backend::{
            Dest,
            Tx,
            TxFault, //
        },
        room::Room,
        same_host::HostTag,
        Events,
        Progress,
        Service,
        State,
        ToSend, //
    },
    ids::PKey,
    time::Instant,
    wire::{
        bytes::put,
        icrc::{
            icrc,
            Crc, //
        },
        reference::Reference,
        repr::Headers, //
    },
};

/// Rounds before the rest is left to the bottom half work queue, and nanoseconds after which it is
/// even if there were fewer. A round may copy 512 KiB; over loopback its packets have already been
/// received when it ends.
const MAX_ROUNDS: u32 = 32;
const BUDGET_NS: u64 = 1_000_000;

/// Bytes that a QP may have in the queues of the network stack, the device's included: 8 ms of a
/// link of 1 Gbit/s. More would only be dropped where a queue is full. On this host, a packet to
/// another namespace or to a device of this one counts until its receiver runs.
const MAX_QUEUED: usize = 1 << 20;

/// The same while other QPs of the device transmit, whose packets wait for those of this one.
const MAX_QUEUED_SHARED: usize = 1 << 16;

/// If a QP keeps filling the queues of a receiver on this host, they empty as soon as softirqs run,
/// and it resumes behind that. One of so many pauses ends by the timer instead, behind all
/// softirqs: if they were pending without a break, `ksoftirqd` would run them, and share the CPU
/// with the process that polls for completions.
const TIMER_EVERY: u8 = 4;

/// How often and how long [`QpCtx::quiesce`] sleeps for a round on another CPU to end: a round
/// takes microseconds, unless the host does not schedule that CPU of a virtual machine.
const QUIESCE_POLLS: u32 = 200;
const QUIESCE_POLL: Delta = Delta::from_micros(50);

/// Result of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Nothing is left to do, or another context runs a round.
    Done,
    /// There is more to send.
    More,
    /// There is more to send when at most so many bytes are in the queues of the network stack. The
    /// caller must see to that.
    Full(u32),
    /// A page fault must be handled or a FLUSH resumed, and the caller must start it. There may be
    /// more to send.
    PageIn,
}

impl QpInner {
    /// Records that the timer or the work item resumes transmission.
    fn note_resumed(&mut self) {
        self.resuming = false;
        self.sent_since_resumed = 0;
    }
}

impl QpCtx {
    /// Transmits what the QP has to send, within a budget. `origin` says whether a verb of the
    /// consumer is the caller.
    ///
    /// # Context
    ///
    /// Process context or softirq, no QP lock held.
    pub(crate) fn transmit(self: ArcBorrow<'_, Self>, mut now: Instant, origin: Origin) {
        let end = now.saturating_add(BUDGET_NS);
        for _ in 0..MAX_ROUNDS {
            match self.tx_round(now, origin) {
                Round::Done => return,
                Round::More => {}
                Round::Full(mark) => {
                    self.queued.wait(self.into(), mark);
                    // `destroy` cancels the wait once, and may have done so before.
                    if self.inner.lock().destroyed {
                        self.queued.cancel();
                    }
                    return;
                }
                Round::PageIn => self.start_page_in(),
            }
            now = clock::now();
            if now >= end {
                break;
            }
        }
        // The budget is used up: let softirqs and other tasks run.
        self.schedule_transmit();
    }

    /// Continues transmission, on the bottom half work queue.
    pub(super) fn resume_transmit(self: ArcBorrow<'_, Self>) {
        self.inner.lock().note_resumed();
        self.transmit(clock::now(), Origin::Event);
    }

    /// Schedules [`resume_transmit`](Self::resume_transmit) on the bottom half work queue.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn schedule_transmit(self: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = self.into();
        // If the work item is queued already, its round is still to come.
        let _ = self.dev.demux.queues.softirq.enqueue::<_, 0>(this);
    }

    /// As [`transmit`](Self::transmit), for callers that hold no `Arc`.
    pub(super) fn kick(&self, origin: Origin) {
        self.kick_until(origin, || true);
    }

    /// As [`kick`](Self::kick), until `done` returns true; it is called after each round that finds
    /// nothing to do, and must return true eventually.
    fn kick_until(&self, origin: Origin, mut done: impl FnMut() -> bool) {
        for _ in 0..MAX_ROUNDS {
            let mut round = self.tx_round(clock::now(), origin);
            while round == Round::Done {
                if done() {
                    return;
                }
                round = self.tx_round(clock::now(), origin);
            }
            match round {
                Round::Done | Round::More => continue,
                Round::Full(_) => {}
                Round::PageIn => self.inner.lock().paging.postpone_work(),
            }
            break;
        }
        // There is more to send or a page fault to handle, and no other context does it. The timer
        // must run a round: what a doorbell has posted meanwhile is still in the ring.
        self.inner.lock().sq.leave_posted();
        self.timer.arm_at(clock::now().as_ns());
    }

    /// Transmits pending acknowledgements before the QP stops. A consumer that sees a completion
    /// may at once destroy the QP, or move it to ERR or RESET, while the CPU that received the
    /// message has not sent the ACK yet; the peer would retransmit until its retries are exhausted.
    ///
    /// Does not wait for packets held back by the rate limit or by full queues.
    ///
    /// # Context
    ///
    /// Process context, no lock of the QP held; may sleep.
    pub(super) fn quiesce(&self) {
        self.inner.lock().engine.release_ack();
        let mut waits = QUIESCE_POLLS;
        self.kick_until(Origin::Verb, || {
            if !self.inner.lock().transmitting {
                return true;
            }
            fsleep(QUIESCE_POLL);
            waits -= 1;
            waits == 0
        });
    }

    /// Runs one transmission round: fetches posted WQEs and fills a batch with the QP locked, then
    /// sends the batch, raises events and notifies consumers with the QP unlocked. If a round of
    /// the QP is running in another context, that context runs one more instead.
    fn tx_round(&self, now: Instant, origin: Origin) -> Round {
        let bh = disable_bh();
        let mut batch = TxBatch::new(&bh);
        let rcu = rcu::read_lock();
        let accounts;
        let (round, events, notify) = {
            let mut inner = self.inner.lock();
            if inner.destroyed {
                return Round::Done;
            }
            if inner.transmitting {
                inner.round_requested = true;
                return Round::Done;
            }
            inner.round_requested = false;
            let left = Self::accepts_sends(inner.engine.state()) && self.fetch_sends(&mut inner);
            let failed = inner.engine.state() == State::Err;
            let (progress, wait) = self.fill_batch(&rcu, &mut inner, now, &mut batch);
            // The response that the timer waits for may be among the deferred packets.
            let deadline = match inner.paging.defers_responses() {
                true => inner.engine.poll_resume(),
                false => inner.engine.poll_timeout(),
            };
            if let Some(deadline) = deadline {
                self.timer.arm_at(deadline.as_ns());
            }
            self.note_in_flight(&inner);
            inner.transmitting = !batch.is_empty();
            // The window of an RC QP, or that of its peer, limits how many of them are queued.
            accounts = self.service != Service::Rc || !batch.is_small();
            inner.accounted |= accounts && !batch.is_empty();
            let events = inner.engine.take_events();
            let starts = match inner.paging.waits_for_room(now) {
                Some(at) => {
                    self.timer.arm_at(at.as_ns());
                    false
                }
                None => inner.paging.start_work(),
            };
            let round = if starts {
                inner.resuming = false;
                Round::PageIn
            } else if let Some(mark) = wait {
                Round::Full(mark)
            } else if progress == Progress::More
                || (left && inner.sq.has_free_slots())
                || (!failed && inner.engine.state() == State::Err)
                || (inner.engine.state() == State::Sqe && inner.sq.may_have_more())
            {
                // If a request has failed, the next round looks for receives that are posted, and
                // for requests that waited for room in the CQ.
                Round::More
            } else {
                Round::Done
            };
            (round, events, Self::unlock(inner))
        };
        self.raise_events(events);
        if batch.is_empty() {
            self.notify_cqs(&rcu, notify, origin);
            return round;
        }
        let outcome = batch.send(accounts.then_some(&self.queued));
        self.notify_cqs(&rcu, notify, origin);
        let mut inner = self.inner.lock();
        self.counter_set(&inner)
            .each(|counters| counters.sent(&outcome));
        inner.transmitting = false;
        if outcome.congested && !inner.destroyed {
            inner.engine.on_congestion(now);
            if let Some(deadline) = inner.engine.poll_timeout() {
                self.timer.arm_at(deadline.as_ns());
            }
        }
        if round == Round::Done && inner.round_requested {
            Round::More
        } else {
            round
        }
    }

    /// Fetches posted WQEs. Returns true if there may be more that can be fetched soon; those for
    /// whose completions the CQ of the process has no room stay in the ring, and the timer looks
    /// again.
    #[inline]
    fn fetch_sends(&self, inner: &mut QpInner) -> bool {
        let kernel = self.kernel.as_deref();
        if kernel.is_some() || !self.send_cq.is_crowded() {
            return inner.sq.fetch(kernel, u32::MAX);
        }
        match self.room_for_sends(inner) {
            Room::For(room) => inner.sq.fetch(kernel, room),
            Room::WaitUntil(at) => {
                inner.sq.leave_posted();
                self.timer.arm_at(at.as_ns());
                false
            }
        }
    }

    #[cold]
    fn room_for_sends(&self, inner: &QpInner) -> Room {
        // What is flushed does not wait: after SQE it might be executed instead.
        let executes = matches!(inner.engine.state(), State::Rts | State::Sqd);
        if !executes || !inner.sq.is_pending() {
            return Room::For(u32::MAX);
        }
        self.send_cq.room(inner.sq.expected())
    }

    /// Returns what a transmission round would send. If that is nothing, also arms the timer as the
    /// round would.
    #[inline]
    pub(crate) fn to_send(&self, inner: &mut QpInner, mrs: &MrAccess<'_>) -> ToSend {
        if !inner.paging.is_idle() || inner.sq.may_have_more() {
            return ToSend::Other;
        }
        let (engine, backend, _) = inner.split(self, mrs);
        let to_send = engine.to_send(&backend);
        if to_send == ToSend::Nothing {
            if let Some(deadline) = engine.poll_timeout() {
                self.timer.arm_at(deadline.as_ns());
            }
        }
        if to_send != ToSend::Other {
            self.note_in_flight(inner);
        }
        to_send
    }

    /// Returns true if a consumer in the kernel is about to be notified of a message, to which it
    /// may reply before a work item runs.
    #[inline]
    pub(crate) fn may_reply(&self, inner: &QpInner) -> bool {
        self.kernel.is_some() && inner.notify.recv
    }

    /// Keeps the hint for the posts of a consumer in the kernel.
    #[inline]
    fn note_in_flight(&self, inner: &QpInner) {
        if let Some(kernel) = &self.kernel {
            kernel
                .in_flight
                .store(inner.engine.in_flight() != 0, Relaxed);
        }
    }

    /// Returns the accounted bytes in the queues of the network stack.
    #[inline]
    fn queued_bytes(&self, inner: &mut QpInner) -> usize {
        // The socket of one QP among many is in no cache.
        if !inner.accounted {
            return 0;
        }
        let bytes = self.queued.bytes();
        inner.accounted = bytes != 0;
        bytes
    }

    /// Fills `batch`. If its packets fill the queues of the network stack, also returns to how many
    /// bytes these are to drain before transmission is resumed, unless that is arranged already.
    fn fill_batch(
        &self,
        rcu: &rcu::Guard,
        inner: &mut QpInner,
        now: Instant,
        batch: &mut TxBatch<'_>,
    ) -> (Progress, Option<u32>) {
        let mrs = self.mr_access(rcu, inner);
        inner.paging.apply_denied(&mrs);
        let shared = self.dev.senders.note(self.qpn, now);
        inner.shares_device = shared;
        let limit = if shared {
            MAX_QUEUED_SHARED
        } else {
            MAX_QUEUED
        };
        let quota = limit.saturating_sub(self.queued_bytes(inner));
        let (engine, mut backend, flow) = inner.split(self, &mrs);
        let tag = match flow {
            Some(flow) if flow.has_host_tags() => engine.tag(),
            _ => HostTag::None,
        };
        batch.set_tag(tag.bits());
        let mut tx = BatchTx {
            ctx: self,
            batch,
            quota,
            flow,
            has_icrc: tag.has_icrc(),
            mtu: engine.attrs.mtu.bytes(),
            max_merged: Cell::new(None),
        };
        let mut progress = engine.poll_transmit(now, &mut backend, &mut tx);
        let sent = inner.sent_since_full.saturating_add(batch.bytes());
        inner.sent_since_full = sent;
        inner.sent_since_resumed = inner.sent_since_resumed.saturating_add(batch.bytes());
        let mut wait = None;
        if progress == Progress::More && !batch.is_full() {
            progress = Progress::Idle;
            // Received packets may cause rounds before transmission is resumed.
            if !inner.resuming {
                inner.resuming = true;
                inner.sent_since_full = 0;
                inner.pauses = inner.pauses.wrapping_add(1);
                let by_timer = !shared && sent >= limit / 2 && inner.pauses % TIMER_EVERY == 0;
                if by_timer {
                    self.timer.arm_at(now.as_ns());
                } else {
                    wait = u32::try_from(limit / 2).ok();
                }
            }
        }
        inner.extent = mrs.hint.get();
        inner.paging.note_fault(&mrs);
        inner.paging.clear_denied();
        (progress, wait)
    }

    /// The QP's timer expired.
    ///
    /// Mostly what it was armed for has happened: progress moves deadlines, but not the timer.
    /// Nothing is to be sent then, and the timer is armed again if a deadline is left.
    pub(crate) fn handle_timer(self: ArcBorrow<'_, Self>) {
        let now = clock::now();
        let to_send = {
            let rcu = rcu::read_lock();
            let mut inner = self.inner.lock();
            if inner.destroyed {
                return;
            }
            inner.note_resumed();
            let mrs = self.mr_access(&rcu, &inner);
            if !inner.paging.defers_responses() {
                let (engine, mut backend, _) = inner.split(&self, &mrs);
                engine.handle_timeout(now, &mut backend);
            }
            let to_send = self.to_send(&mut inner, &mrs);
            self.unlock_and_notify(&rcu, inner, Origin::Event);
            to_send
        };
        if to_send != ToSend::Nothing {
            self.transmit(now, Origin::Event);
        }
    }

    /// Raises asynchronous events.
    fn raise_events(&self, events: Events) {
        if events.is_empty() {
            return;
        }
        let list = [
            (events.comm_est, QpEvent::CommEstablished),
            (events.sq_drained, QpEvent::SqDrained),
            (events.fatal, QpEvent::Fatal),
            (events.request_error, QpEvent::RequestError),
            (events.access_error, QpEvent::AccessError),
            (events.last_wqe, QpEvent::LastWqeReached),
        ];
        for (_, event) in list.into_iter().filter(|(raised, _)| *raised) {
            self.events.raise(event);
        }
    }
}

/// The kernel's CRC-32.
pub(crate) struct KernelCrc;

impl Crc for KernelCrc {
    #[inline]
    fn crc32_le(&self, seed: u32, data: &[u8]) -> u32 {
        crc32_le(seed, data)
    }
}

/// Converts the result of adding a packet for the engine. Without a route the packet is lost, and
/// counted as an error: the route may come back, but other packets do not wait for it.
#[inline]
fn sent<E>(ctx: &QpCtx, result: Result<(), TxError<Option<E>>>) -> Result<(), TxFault<E>> {
    match result {
        Ok(()) => Ok(()),
        Err(TxError::Fill(Some(e))) => Err(TxFault::Fill(e)),
        Err(TxError::Fill(None)) => Err(TxFault::Unreachable),
        Err(TxError::NoRoute) => {
            ctx.dev.counters.traffic(Traffic::TxErrors, 1);
            Ok(())
        }
        Err(TxError::NoMemory | TxError::Full) => Err(TxFault::Busy),
        Err(TxError::TooLong) => Err(TxFault::Unreachable),
    }
}

/// Length of the ICRC in bytes.
const ICRC_BYTES: usize = 4;

/// The engine's sink, which fills a batch.
struct BatchTx<'a, 'b> {
    ctx: &'a QpCtx,
    batch: &'a mut TxBatch<'b>,
    /// Bytes that the QP may still queue in the network stack.
    quota: usize,
    /// Path to the connected peer.
    flow: Option<&'a Arc<Flow>>,
    /// The packets have an ICRC.
    has_icrc: bool,
    /// The path MTU to the connected peer, in bytes.
    mtu: u32,
    /// Maximum payload of a merged packet, once it has been asked for.
    max_merged: Cell<Option<u32>>,
}

/// Upper bound of the bytes of a merged packet that are not payload: headers, pad, ICRC.
const MERGED_OVERHEAD: usize = 64;

impl BatchTx<'_, '_> {
    /// Returns true, and counts an error, if the P_Key was removed from the table: to the protocol
    /// the packets are lost until it is back.
    #[inline]
    fn lacks_pkey(&self, headers: &Headers) -> bool {
        let lacks = headers.pkey() == PKey::INVALID;
        if lacks {
            self.ctx.dev.counters.traffic(Traffic::TxErrors, 1);
        }
        lacks
    }

    /// Finds out how much payload a packet may have that is not segmented.
    fn find_max_merged(&self) -> u32 {
        let Some(flow) = self.flow.filter(|_| !self.has_icrc) else {
            return 0;
        };
        let most = self.batch.max_whole(flow).saturating_sub(MERGED_OVERHEAD);
        u32::try_from(most).unwrap_or(0)
    }
}

impl Tx for BatchTx<'_, '_> {
    fn has_room(&self) -> bool {
        !self.batch.is_full() && self.batch.bytes() < self.quota
    }

    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        if self.lacks_pkey(headers) {
            return Ok(());
        }
        let ah_flow;
        let flow = match to {
            Dest::Peer => self.flow,
            Dest::Ah(name) => {
                ah_flow = self.ctx.dev.flow_of_ah(name, self.ctx.pd);
                ah_flow.as_ref()
            }
        };
        let flow = flow.ok_or(TxFault::Unreachable)?;
        let head = headers.as_slice();
        // A packet is at most a path MTU long, so these sums do not overflow.
        let body = head.len().wrapping_add(payload_len);
        let padded = body.wrapping_add(3) & !3;
        let write = |net: &[u8], dst: &mut [u8]| -> Result<(), Option<E>> {
            let rest = put(dst, head).ok_or(None)?;
            let (to, rest) = rest.split_at_mut_checked(payload_len).ok_or(None)?;
            fill(to).map_err(Some)?;
            if let Some(pad) = rest.get_mut(..padded.wrapping_sub(body)) {
                pad.fill(0);
            }
            let (covered, to) = dst.split_at_mut_checked(padded).ok_or(None)?;
            let (bth, rest) = covered.split_first_chunk::<12>().ok_or(None)?;
            let crc = if self.has_icrc {
                icrc(&KernelCrc, net, bth, [rest])
            } else {
                [0; ICRC_BYTES]
            };
            to.first_chunk_mut::<ICRC_BYTES>()
                .ok_or(None)
                .map(|to| *to = crc)
        };
        let class = headers.is_cnp().then_some(CNP_TRAFFIC_CLASS);
        let len = padded.wrapping_add(ICRC_BYTES);
        sent(self.ctx, self.batch.packet(flow, class, len, write))
    }

    #[inline]
    fn max_merged(&self) -> u32 {
        self.max_merged.get().unwrap_or_else(|| {
            let most = self.find_max_merged();
            self.max_merged.set(Some(most));
            most
        })
    }

    fn merged<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        count: u32,
        mut fill: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        if self.lacks_pkey(headers) {
            return Ok(());
        }
        let flow = self.flow.ok_or(TxFault::Unreachable)?;
        let head = headers.as_slice();
        let body = head.len().wrapping_add(payload_len);
        let len = (body.wrapping_add(3) & !3).wrapping_add(ICRC_BYTES);
        let write = |at: usize, dst: &mut [u8]| -> Result<(), Option<E>> {
            let headers = head.get(at..).unwrap_or(&[]);
            let headers = headers.get(..dst.len()).unwrap_or(headers);
            let rest = put(dst, headers).ok_or(None)?;
            let from = at.wrapping_add(headers.len()).wrapping_sub(head.len());
            let payload = payload_len.saturating_sub(from).min(rest.len());
            let (to, rest) = rest.split_at_mut_checked(payload).ok_or(None)?;
            if !to.is_empty() {
                fill(u32::try_from(from).map_err(|_| None)?, to).map_err(Some)?;
            }
            // Pad, and zeros in place of the ICRC.
            rest.fill(0);
            Ok(())
        };
        sent(
            self.ctx,
            self.batch.whole(flow, len, (count, self.mtu), write),
        )
    }

    #[inline]
    fn max_by_reference(&self) -> u32 {
        let may_refer = self.flow.is_some_and(|flow| flow.may_refer());
        if !may_refer || self.max_merged() == 0 {
            return 0;
        }
        Reference::MAX
    }

    fn by_reference<E>(
        &mut self,
        headers: &Headers,
        reference: &Reference,
        count: u32,
    ) -> Result<(), TxFault<E>> {
        if self.lacks_pkey(headers) {
            return Ok(());
        }
        let flow = self.flow.ok_or(TxFault::Unreachable)?;
        let head = headers.as_slice();
        let len = head
            .len()
            .wrapping_add(Reference::LEN)
            .wrapping_add(ICRC_BYTES);
        let write = |_: &[u8], dst: &mut [u8]| -> Result<(), Option<E>> {
            let rest = put(dst, head).ok_or(None)?;
            let rest = put(rest, &reference.emit()).ok_or(None)?;
            put(rest, &Reference::MARK).map(|_| ()).ok_or(None)
        };
        let stands_for = (count, reference.len);
        sent(self.ctx, self.batch.single(flow, len, stands_for, write))
    }

    #[inline]
    fn gso_index(&self) -> u32 {
        self.batch.gso_index()
    }

    fn disable_gso(&mut self) {
        self.batch.disable_gso();
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        match self.batch.frame(&self.ctx.dev.netdev, len, fill) {
            Ok(()) => Ok(()),
            Err(TxError::Fill(e)) => Err(TxFault::Fill(e)),
            Err(TxError::NoMemory | TxError::NoRoute | TxError::Full) => Err(TxFault::Busy),
            Err(TxError::TooLong) => Err(TxFault::Unreachable),
        }
    }
}
