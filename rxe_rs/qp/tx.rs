// SPDX-License-Identifier: GPL-2.0
//! Transmission: doorbells, timers and received packets end here, and packets leave.
//!
//! One round fills a batch of packets under the QP's lock ([`BatchTx`] is the engine's sink) and sends it
//! after unlocking, so that a packet that comes straight back (loopback, veth) finds the QP unlocked.
//! Rounds of one QP never overlap: packets leave in the order of their PSNs. Bottom halves stay off for a
//! round, so that nobody is preempted between filling and sending.

use super::{
    QpCtx,
    QpInner, //
};
use crate::device::counters::Traffic;
use kernel::{
    sync::{
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
            NOTICE_CLASS, //
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
    sync::context::disable_bh,
    time::now_ns, //
};
use rxe_proto::{
    engine::{
        backend::{
            Dest,
            Tx,
            TxFault, //
        },
        Events,
        Progress, //
    },
    ids::PKey,
    wire::{
        icrc::{
            icrc,
            Crc, //
        },
        repr::Headers, //
    },
};

/// Turns before the rest is left to the bottom half work queue, and nanoseconds after which it is
/// even if there were fewer. A turn may copy 512 KiB, and over loopback what it sent is not in the
/// way of the next one.
const ROUNDS: u32 = 32;
const BUDGET_NS: u64 = 1_000_000;

/// Bytes that a QP may have in the queues below it, the device's among them: 8 ms of a link of
/// 1 Gbit/s. More would only make the others wait, and be lost where a queue is full.
const MAX_QUEUED: usize = 1 << 20;

/// Times that [`QpCtx::quiesce`] waits for a turn on another CPU to end, and for how long: a turn
/// takes microseconds, unless that CPU's virtual machine does not get the host's.
const WAITS: u32 = 200;
const WAIT: Delta = Delta::from_micros(50);

/// What a turn ended with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Nothing left to do, or somebody else is at it.
    Done,
    /// There is more to send.
    More,
    /// Memory is to be got, or a FLUSH to go on, and the caller is the one to see to it. There may
    /// be more to send.
    Page,
}

impl QpCtx {
    /// Sends what the QP has to send, within a budget, in a call of a consumer or not.
    ///
    /// Context: process or softirq, no QP lock held.
    pub(crate) fn drive(self: ArcBorrow<'_, Self>, origin: Origin) {
        let mut end = None;
        for _ in 0..ROUNDS {
            match self.tx_round(origin) {
                Round::Done => return,
                Round::More => {}
                Round::Page => self.page(),
            }
            let now = now_ns();
            if now >= *end.get_or_insert(now.saturating_add(BUDGET_NS)) {
                break;
            }
        }
        // Leave the CPU to others for a moment.
        self.drive_later();
    }

    /// As [`drive`](Self::drive), soon, in softirq. Any context.
    pub(super) fn drive_later(self: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = self.into();
        // If it is queued already, that turn is still to come.
        let _ = self.dev.demux.queues.softirq.enqueue::<_, 0>(this);
    }

    /// Takes turns, for callers without a reference to share, until `done` agrees that there is
    /// nothing left to do; it is asked each time that a turn finds nothing, and must agree in the
    /// end. False if there is more to send, or memory to be got: nobody is at it then.
    fn run_rounds(&self, origin: Origin, mut done: impl FnMut() -> bool) -> bool {
        for _ in 0..ROUNDS {
            let mut round = self.tx_round(origin);
            while round == Round::Done {
                if done() {
                    return true;
                }
                round = self.tx_round(origin);
            }
            if round == Round::Page {
                self.inner.lock().paging.postpone();
                break;
            }
        }
        false
    }

    /// As [`drive`](Self::drive), for callers without a reference to share.
    pub(super) fn kick(&self, origin: Origin) {
        if !self.run_rounds(origin, || true) {
            self.timer.arm_at(now_ns());
        }
    }

    /// Acknowledges what has come before the QP stops. Whoever sees a completion may destroy the QP
    /// at once, or take it to ERR or RESET, while the CPU that received the message has not come to
    /// answering yet; the peer would send it again to nobody until its retries run out.
    ///
    /// What waits for the rate limit or for the queues below is not waited for.
    ///
    /// Context: process, no lock of the QP held.
    pub(super) fn quiesce(&self) {
        let mut waits = WAITS;
        self.run_rounds(Origin::Verb, || {
            if !self.inner.lock().busy {
                return true;
            }
            fsleep(WAIT);
            waits -= 1;
            waits == 0
        });
    }

    fn tx_round(&self, origin: Origin) -> Round {
        let bh = disable_bh();
        let mut batch = TxBatch::new(&bh);
        let now = now_ns();
        let rcu = rcu::read_lock();
        let (round, events, notify) = {
            let mut inner = self.inner.lock();
            if inner.dead {
                return Round::Done;
            }
            if inner.busy {
                inner.again = true;
                return Round::Done;
            }
            inner.again = false;
            if Self::takes_sends(inner.engine.state()) {
                inner.sends.pull(self.kernel.as_deref());
            }
            let progress = self.fill(&rcu, &mut inner, now, &mut batch);
            // A packet that is kept may be the one that the timer is about.
            if !inner.paging.defers_responses() {
                if let Some(deadline) = inner.engine.poll_timeout() {
                    self.timer.arm_at(deadline);
                }
            }
            inner.busy = !batch.is_empty();
            let events = inner.engine.take_events();
            let round = if inner.paging.start() {
                Round::Page
            } else if progress == Progress::More {
                Round::More
            } else {
                Round::Done
            };
            (round, events, Self::unlock(inner))
        };
        self.raise(events);
        if batch.is_empty() {
            self.notify_cqs(&rcu, notify, origin);
            return round;
        }
        let outcome = batch.send(&self.queued);
        self.notify_cqs(&rcu, notify, origin);
        let mut inner = self.inner.lock();
        self.tally(&inner).each(|counters| counters.sent(&outcome));
        inner.busy = false;
        if outcome.congested && !inner.dead {
            inner.engine.on_congestion(now);
            if let Some(deadline) = inner.engine.poll_timeout() {
                self.timer.arm_at(deadline);
            }
        }
        if round == Round::Done && inner.again {
            Round::More
        } else {
            round
        }
    }

    fn fill(
        &self,
        rcu: &rcu::Guard,
        inner: &mut QpInner,
        now: u64,
        batch: &mut TxBatch<'_>,
    ) -> Progress {
        let mrs = self.memory(rcu, inner);
        inner.paging.warn(&mrs);
        let (engine, mut backend, flow) = inner.split(self, &mrs);
        let mut tx = BatchTx {
            ctx: self,
            batch,
            room: MAX_QUEUED.saturating_sub(self.queued.bytes()),
            flow,
        };
        let mut progress = engine.poll_transmit(now, &mut backend, &mut tx);
        if progress == Progress::More && !tx.batch.is_full() {
            engine.wait_for_queue(now);
            progress = Progress::Idle;
        }
        inner.extent = mrs.hint.get();
        inner.paging.note(&mrs);
        inner.paging.tried();
        progress
    }

    /// The QP's timer expired.
    pub(crate) fn expire(self: ArcBorrow<'_, Self>) {
        {
            let rcu = rcu::read_lock();
            let mut inner = self.inner.lock();
            if inner.dead {
                return;
            }
            if !inner.paging.defers_responses() {
                let mrs = self.memory(&rcu, &inner);
                let (engine, mut backend, _) = inner.split(&self, &mrs);
                engine.handle_timeout(now_ns(), &mut backend);
            }
            self.release(&rcu, inner, Origin::Event);
        }
        self.drive(Origin::Event);
    }

    /// Raises asynchronous events.
    fn raise(&self, events: Events) {
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

/// Bytes of the ICRC.
const ICRC_BYTES: usize = 4;

/// Fills a batch.
struct BatchTx<'a, 'b> {
    pub(super) ctx: &'a QpCtx,
    pub(super) batch: &'a mut TxBatch<'b>,
    /// Bytes that the queues below may take.
    pub(super) room: usize,
    /// Path to the connected peer.
    pub(super) flow: Option<&'a Arc<Flow>>,
}

impl Tx for BatchTx<'_, '_> {
    fn has_room(&self) -> bool {
        !self.batch.is_full() && self.batch.bytes() < self.room
    }

    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        if headers.pkey() == PKey::INVALID {
            // The partition was taken away: to the protocol the packet is lost, until it is back.
            self.ctx.dev.counters.traffic(Traffic::TxErrors, 1);
            return Ok(());
        }
        let of_ah;
        let flow = match to {
            Dest::Peer => self.flow,
            Dest::Ah(number) => {
                of_ah = self.ctx.dev.flow_of_ah(number, self.ctx.pd);
                of_ah.as_ref()
            }
        };
        let flow = flow.ok_or(TxFault::Unreachable)?;
        let head = headers.as_slice();
        // A packet is at most a path MTU long, so nothing here comes near an overflow.
        let body = head.len().wrapping_add(payload_len);
        let padded = body.wrapping_add(3) & !3;
        let write = |net: &[u8], dst: &mut [u8]| -> Result<(), Option<E>> {
            let (to, rest) = dst.split_at_mut_checked(head.len()).ok_or(None)?;
            to.copy_from_slice(head);
            let (to, rest) = rest.split_at_mut_checked(payload_len).ok_or(None)?;
            fill(to).map_err(Some)?;
            if let Some(pad) = rest.get_mut(..padded.wrapping_sub(body)) {
                pad.fill(0);
            }
            let (covered, to) = dst.split_at_mut_checked(padded).ok_or(None)?;
            let (bth, rest) = covered.split_first_chunk::<12>().ok_or(None)?;
            let crc = icrc(&KernelCrc, net, bth, [rest]);
            to.first_chunk_mut::<ICRC_BYTES>()
                .ok_or(None)
                .map(|to| *to = crc)
        };
        let class = headers.is_notice().then_some(NOTICE_CLASS);
        match self
            .batch
            .packet(flow, class, padded.wrapping_add(ICRC_BYTES), write)
        {
            Ok(()) => Ok(()),
            Err(TxError::Fill(Some(e))) => Err(TxFault::Fill(e)),
            Err(TxError::Fill(None)) => Err(TxFault::Unreachable),
            // A route may come back: to the protocol this is a lost packet.
            Err(TxError::NoMemory | TxError::NoRoute | TxError::Full) => Err(TxFault::Busy),
            Err(TxError::TooLong) => Err(TxFault::Unreachable),
        }
    }

    #[inline]
    fn place(&self) -> u32 {
        self.batch.place()
    }

    fn end_trains(&mut self) {
        self.batch.end_trains();
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
