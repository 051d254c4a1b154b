// SPDX-License-Identifier: GPL-2.0
//! Runs a QP to completion: doorbells, timers and received packets end here.
//!
//! One turn fills a batch of packets under the QP's lock and sends it after unlocking, so that a
//! packet that comes straight back (loopback, veth) finds the QP unlocked. Turns of one QP never
//! overlap: packets leave in the order of their PSNs. Bottom halves stay off for a turn, so that
//! nobody is preempted between filling and sending.

use super::{
    tx::BatchTx,
    QpCore,
    QpCtx, //
};
use crate::mr::MrAccess;
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
    net::tx::TxBatch,
    rdma::{
        cq::Origin,
        event::QpEvent, //
    },
    sync::context::disable_bh,
    time::now_ns, //
};
use rxe_proto::{
    engine::{
        ports::Handled,
        Events,
        Progress,
        UdMeta, //
    },
    wire::packet::{
        Packet,
        Payload, //
    },
};

/// Turns before the rest is left to the bottom half work queue, and nanoseconds after which it is
/// even if there were fewer. A turn may copy 512 KiB, and over loopback what it sent is not in the
/// way of the next one.
const TURNS: u32 = 32;
const BUDGET_NS: u64 = 1_000_000;

/// Bytes that a QP may have in the queues below it, the device's among them: 8 ms of a link of
/// 1 Gbit/s. More would only make the others wait, and be lost where a queue is full.
const MAX_QUEUED: usize = 1 << 20;

/// Times that [`QpCtx::settle`] waits for a turn on another CPU to end, and for how long: a turn
/// takes microseconds, unless that CPU's virtual machine does not get the host's.
const WAITS: u32 = 200;
const WAIT: Delta = Delta::from_micros(50);

/// What a turn ended with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
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
        for _ in 0..TURNS {
            match self.turn(origin) {
                Turn::Done => return,
                Turn::More => {}
                Turn::Page => self.page(),
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
    fn take_turns(&self, origin: Origin, mut done: impl FnMut() -> bool) -> bool {
        for _ in 0..TURNS {
            let mut turn = self.turn(origin);
            while turn == Turn::Done {
                if done() {
                    return true;
                }
                turn = self.turn(origin);
            }
            if turn == Turn::Page {
                self.core.lock().paging.postpone();
                break;
            }
        }
        false
    }

    /// As [`drive`](Self::drive), for callers without a reference to share.
    pub(super) fn kick(&self, origin: Origin) {
        if !self.take_turns(origin, || true) {
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
    pub(super) fn settle(&self) {
        let mut waits = WAITS;
        self.take_turns(Origin::Verb, || {
            if !self.core.lock().busy {
                return true;
            }
            fsleep(WAIT);
            waits -= 1;
            waits == 0
        });
    }

    fn turn(&self, origin: Origin) -> Turn {
        let bh = disable_bh();
        let mut batch = TxBatch::new(&bh);
        let now = now_ns();
        let rcu = rcu::read_lock();
        let (turn, events, due) = {
            let mut core = self.core.lock();
            if core.dead {
                return Turn::Done;
            }
            if core.busy {
                core.again = true;
                return Turn::Done;
            }
            core.again = false;
            if Self::takes_sends(core.engine.state()) {
                core.sends.pull(self.kernel.as_deref());
            }
            let progress = self.fill(&rcu, &mut core, now, &mut batch);
            // A packet that is kept may be the one that the timer is about.
            if !core.paging.keeps_answers() {
                if let Some(deadline) = core.engine.poll_timeout() {
                    self.timer.arm_at(deadline);
                }
            }
            core.busy = !batch.is_empty();
            let events = core.engine.take_events();
            let turn = if core.paging.start() {
                Turn::Page
            } else if progress == Progress::More {
                Turn::More
            } else {
                Turn::Done
            };
            (turn, events, Self::unlock(core))
        };
        self.raise(events);
        if batch.is_empty() {
            self.tell(&rcu, due, origin);
            return turn;
        }
        let outcome = batch.send(&self.queued);
        self.tell(&rcu, due, origin);
        let mut core = self.core.lock();
        self.tally(&core).each(|counters| counters.sent(&outcome));
        core.busy = false;
        if outcome.congested && !core.dead {
            core.engine.on_congestion(now);
            if let Some(deadline) = core.engine.poll_timeout() {
                self.timer.arm_at(deadline);
            }
        }
        if turn == Turn::Done && core.again {
            Turn::More
        } else {
            turn
        }
    }

    fn fill(
        &self,
        rcu: &rcu::Guard,
        core: &mut QpCore,
        now: u64,
        batch: &mut TxBatch<'_>,
    ) -> Progress {
        let mrs = self.memory(rcu, core);
        core.paging.warn(&mrs);
        let (engine, mut ports, flow) = core.split(self, &mrs);
        let mut tx = BatchTx {
            ctx: self,
            batch,
            room: MAX_QUEUED.saturating_sub(self.queued.bytes()),
            flow,
        };
        let mut progress = engine.poll_transmit(now, &mut ports, &mut tx);
        if progress == Progress::More && !tx.batch.is_full() {
            engine.wait_for_queue(now);
            progress = Progress::Idle;
        }
        core.extent = mrs.hint.get();
        core.paging.note(&mrs);
        core.paging.tried();
        progress
    }

    /// Feeds one admitted packet; the caller drives the QP when its train has ended.
    pub(crate) fn receive(
        &self,
        core: &mut QpCore,
        mrs: &MrAccess<'_>,
        now: u64,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &UdMeta<'_>,
    ) {
        if core.paging.is_keeping() {
            return self.put_off(core, packet, payload, meta);
        }
        let (engine, mut ports, _) = core.split(self, mrs);
        let handled = engine.handle_packet(now, packet, payload, meta, &mut ports);
        core.extent = mrs.hint.get();
        if handled == Handled::Later {
            core.paging.note(mrs);
            self.put_off(core, packet, payload, meta);
        }
    }

    /// Feeds one Ethernet frame.
    pub(crate) fn take_frame(&self, core: &mut QpCore, mrs: &MrAccess<'_>, frame: &Payload<'_>) {
        let (engine, mut ports, _) = core.split(self, mrs);
        engine.handle_frame(frame, &mut ports);
        core.extent = mrs.hint.get();
        core.paging.note(mrs);
    }

    /// The QP's timer expired.
    pub(crate) fn expire(self: ArcBorrow<'_, Self>) {
        {
            let rcu = rcu::read_lock();
            let mut core = self.core.lock();
            if core.dead {
                return;
            }
            if !core.paging.keeps_answers() {
                let mrs = self.memory(&rcu, &core);
                let (engine, mut ports, _) = core.split(&self, &mrs);
                engine.handle_timeout(now_ns(), &mut ports);
            }
            self.release(&rcu, core, Origin::Event);
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
