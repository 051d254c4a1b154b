// SPDX-License-Identifier: GPL-2.0
//! Queue pairs: the implementation of the verbs over the engine.
//!
//! Lock order: `config` (sleeping), `inner` (bottom halves off), the kernel consumer's queues and
//! the completion queue's ring (interrupts off). See `README.md`.

mod backend;
mod create;
mod kept;
mod modify;
mod offers;
mod paging;
mod post;
mod responses;
mod rq;
mod sq;
mod stored;
mod tx;

use crate::{
    device::{
        counters::{
            CounterSet,
            Counters, //
        },
        DeviceCtx,
        RxeDevice, //
    },
    mr::{
        MrAccess,
        MrCtx,
        TiedMrs, //
    },
    queue::{
        RecvStore,
        SendStore, //
    },
    verbs::{
        cq::CqCtx,
        srq::SrqCtx, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Atomic,
        rcu,
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        Work,
        WorkItem, //
    },
};
use rxe_kapi::{
    mem::Memory,
    net::{
        flow::Flow,
        tx::{
            TxOwner,
            TxSender, //
        }, //
    },
    rdma::{
        av::AddressVector,
        cq::Origin,
        detail::Details,
        event::QpEvents,
        qp::{
            QpCap,
            QpChange,
            QpCreated,
            QpInit,
            QpReport,
            QpState,
            QpToken,
            QueuePair, //
        },
        wr::{
            RecvChain,
            SendChain, //
        },
    },
    sync::{
        SpinLockBh,
        SpinLockBhGuard,
        SpinLockIrq, //
    },
    time::{
        SoftTimer,
        TimerTarget, //
    },
};
use rxe_proto::{
    engine::{
        wc::WcStatus,
        Qp as Engine,
        Service,
        State, //
    },
    ids::Gid, //
};

pub(crate) use stored::Received;
pub(crate) use tx::KernelCrc;

/// Work queues that a kernel consumer posts to from any context.
#[pin_data]
pub(crate) struct KernelQueues {
    #[pin]
    sq: SpinLockIrq<SendStore>,
    #[pin]
    rq: SpinLockIrq<RecvStore>,
    /// True while the state accepts posted requests. Read with the queue locked, and written before
    /// the queue is emptied, so that nothing is posted to a QP in RESET.
    sq_open: Atomic<bool>,
    rq_open: Atomic<bool>,
    /// False if the send queue is empty. Written with it locked; a round that follows a post sees
    /// it, because both lock the QP.
    sq_posted: Atomic<bool>,
    /// True if packets were in flight when the last transmission round ended; a hint.
    in_flight: Atomic<bool>,
    /// The memory that `LOCAL_DMA_LKEY` stands for.
    memory: &'static Memory,
}

/// CQs whose consumers are notified when the QP is unlocked.
#[derive(Clone, Copy, Default)]
struct PendingNotify {
    send: bool,
    recv: bool,
    /// The first work request that completed in error, for the debug log.
    failed: Option<FailedWr>,
}

/// A work request that completed in error; flushed ones are not recorded.
#[derive(Clone, Copy)]
struct FailedWr {
    queue: WorkQueue,
    status: WcStatus,
}

/// One of the two work queues of a QP.
#[derive(Clone, Copy)]
enum WorkQueue {
    Send,
    Receive,
}

impl PendingNotify {
    /// Records that a work request of `queue` completed with `status`.
    #[inline]
    fn note(&mut self, queue: WorkQueue, status: WcStatus) {
        if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.failed.get_or_insert(FailedWr { queue, status });
        }
    }
}

/// The state that the lock of a QP protects.
pub(crate) struct QpInner {
    pub(crate) engine: Engine,
    sq: sq::Sq,
    offered: offers::Offered,
    rq: rq::Rq,
    responses: responses::Responses,
    notify: PendingNotify,
    /// Path to the peer of a connected QP.
    flow: Option<Arc<Flow>>,
    /// Addresses of the peer and of this side that packets of a connected QP must carry.
    pub(crate) peer: Gid,
    pub(crate) own: Gid,
    pub(crate) pkey_index: u16,
    /// Index of the extent in its region that the last access used.
    pub(crate) extent: usize,
    pub(crate) paging: paging::Paging,
    pub(crate) kept: kept::KeptPackets,
    /// Regions that end with it; revoked if it has failed.
    tied_mrs: Option<Arc<TiedMrs>>,
    /// The counter the QP is bound to.
    counter: Option<Arc<Counters>>,
    /// A batch of packets is being transmitted without the lock.
    transmitting: bool,
    /// A round was requested while the QP was transmitting.
    round_requested: bool,
    /// How often the QP has found the queues full; wraps.
    pauses: u8,
    /// Bytes sent since the QP last found the queues full.
    sent_since_full: usize,
    /// Bytes sent since the QP's timer or work item last ran.
    pub(crate) sent_since_resumed: usize,
    /// Packets that are accounted to the socket may be queued.
    accounted: bool,
    /// Other QPs of the device transmit, too.
    pub(crate) shares_device: bool,
    /// Transmission found the queues full and is about to be resumed.
    resuming: bool,
    /// Destroyed: no operation is allowed any more.
    pub(crate) destroyed: bool,
}

/// Attributes that only the verbs use.
struct VerbsAttrs {
    access_flags: u32,
    av: Option<AddressVector>,
    port: u32,
}

/// A queue pair.
#[pin_data]
pub(crate) struct QpCtx {
    pub(crate) qpn: u32,
    pub(crate) service: Service,
    /// Number of the protection domain.
    pub(crate) pd: u64,
    /// The shared receive queue, if the QP uses one.
    srq: Option<Arc<SrqCtx>>,
    pub(crate) dev: Arc<DeviceCtx>,
    token: QpToken,
    cap: QpCap,
    signal_all: bool,
    events: Arc<QpEvents>,
    send_cq: Arc<CqCtx>,
    recv_cq: Arc<CqCtx>,
    kernel: Option<Pin<KBox<KernelQueues>>>,
    #[pin]
    config: Mutex<VerbsAttrs>,
    #[pin]
    pub(crate) inner: SpinLockBh<QpInner>,
    /// Memory that the peer may copy from.
    #[pin]
    offers: offers::Offers,
    /// Accounts the QP's packets in the queues of the network stack.
    queued: TxOwner<QpCtx>,
    #[pin]
    timer: SoftTimer<QpCtx>,
    #[pin]
    work: Work<QpCtx>,
    /// Resumes the QP after a page fault, or a FLUSH.
    #[pin]
    resume_work: Work<QpCtx, 1>,
}

impl_has_work! {
    impl HasWork<Self> for QpCtx { self.work }
    impl HasWork<Self, 1> for QpCtx { self.resume_work }
}

impl WorkItem for QpCtx {
    type Pointer = Arc<QpCtx>;

    fn run(this: Arc<QpCtx>) {
        this.as_arc_borrow().resume_transmit();
    }
}

impl TxSender for QpCtx {
    fn drained(this: Arc<Self>) {
        this.as_arc_borrow().schedule_transmit();
    }
}

impl TimerTarget for QpCtx {
    fn fire(this: ArcBorrow<'_, Self>) {
        this.handle_timer();
    }
}

impl QpCtx {
    /// Returns access to the memory regions that the QP may use, for the lifetime of `guard`.
    pub(crate) fn mr_access<'g>(&'g self, guard: &'g rcu::Guard, inner: &QpInner) -> MrAccess<'g> {
        self.mr_access_from(guard, inner.extent)
    }

    /// As [`mr_access`](Self::mr_access), with the hint that an earlier one ended with.
    fn mr_access_from<'g>(&'g self, guard: &'g rcu::Guard, hint: usize) -> MrAccess<'g> {
        let all_memory = self.kernel.as_ref().map(|kernel| kernel.memory);
        let qp = (self.pd, self.qpn);
        MrAccess::new(&self.dev, guard, qp, all_memory, hint)
    }

    /// Returns the counters that this QP's traffic is added to.
    #[inline]
    pub(crate) fn counter_set<'a>(&'a self, inner: &'a QpInner) -> CounterSet<'a> {
        CounterSet {
            dev: &self.dev,
            bound: inner.counter.as_deref(),
        }
    }

    /// Unlocks the QP; returns what to pass to [`notify_cqs`](Self::notify_cqs) afterwards.
    #[inline]
    #[must_use]
    fn unlock(mut inner: SpinLockBhGuard<'_, QpInner>) -> PendingNotify {
        if inner.engine.state() == State::Err {
            // Nothing is received any more: they would occupy memory that the device has for all of
            // its QPs until the consumer resets or destroys this one.
            if !inner.kept.is_empty() {
                inner.kept.clear();
            }
            if inner.paging.is_deferring() {
                inner.paging.drop_deferred();
            }
        }
        core::mem::take(&mut inner.notify)
    }

    /// What regions that are to end with the QP are tied to.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it has failed, `ENOMEM`.
    fn tied_mrs(&self) -> Result<Arc<TiedMrs>> {
        let fresh = TiedMrs::new(&self.dev)?;
        let mut inner = self.inner.lock();
        if inner.destroyed || inner.engine.state() == State::Err {
            drop(inner);
            let reason = c"the queue pair is in the error state";
            return Err(self.dev.handle.refuse(reason));
        }
        match &inner.tied_mrs {
            Some(tied_mrs) => Ok(tied_mrs.clone()),
            None => {
                inner.tied_mrs = Some(fresh.clone());
                Ok(fresh)
            }
        }
    }

    /// Notifies the consumers of completions, in the RCU read-side critical section in which the QP
    /// was locked: a CQ is destroyed after its QPs, and waits for such sections.
    #[inline]
    fn notify_cqs(&self, rcu: &rcu::Guard, notify: PendingNotify, origin: Origin) {
        if notify.send {
            self.send_cq.notify(rcu, origin);
        }
        if notify.recv {
            self.recv_cq.notify(rcu, origin);
        }
        if let Some(FailedWr { queue, status }) = notify.failed {
            let queue = match queue {
                WorkQueue::Send => c"send",
                WorkQueue::Receive => c"receive",
            };
            self.dev.handle.failed(self.qpn, queue, status.to_u32());
        }
    }

    /// Unlocks the QP and notifies the consumers of its completions.
    pub(crate) fn unlock_and_notify(
        &self,
        rcu: &rcu::Guard,
        inner: SpinLockBhGuard<'_, QpInner>,
        origin: Origin,
    ) {
        let notify = Self::unlock(inner);
        self.notify_cqs(rcu, notify, origin);
    }

    /// Adds the QP to the lists of its completion queues, which move it to the error state if they
    /// overflow.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the caller must then call [`leave_cqs`](Self::leave_cqs) as well.
    fn join_cqs(self: &Arc<Self>) -> Result {
        self.send_cq.add_qp(self)?;
        if Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            return Ok(());
        }
        self.recv_cq.add_qp(self)
    }

    /// Removes the QP from the lists of its completion queues.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn leave_cqs(self: &Arc<Self>) {
        self.send_cq.remove_qp(self);
        self.recv_cq.remove_qp(self);
    }

    /// Moves the QP to the error state because a CQ can take no more of its completions.
    ///
    /// # Context
    ///
    /// Process context, no lock held.
    pub(crate) fn fail(&self) {
        {
            let rcu = rcu::read_lock();
            let mut inner = self.inner.lock();
            // A QP that has failed is skipped: a process that keeps posting requests could
            // otherwise keep the caller here.
            if inner.destroyed || matches!(inner.engine.state(), State::Reset | State::Err) {
                return;
            }
            if Self::accepts_sends(inner.engine.state()) {
                inner.sq.fetch(self.kernel.as_deref(), u32::MAX);
            }
            let mrs = self.mr_access(&rcu, &inner);
            let (engine, mut backend, _) = inner.split(self, &mrs);
            engine.fail_locally(&mut backend);
            self.unlock_and_notify(&rcu, inner, Origin::Event);
        }
        self.kick(Origin::Event);
    }
}

impl QueuePair for QpCtx {
    type Device = RxeDevice;

    fn create(dev: &Arc<DeviceCtx>, init: QpInit<'_, RxeDevice>) -> Result<QpCreated<Self>> {
        Self::create_qp(dev, init)
    }

    fn modify(&self, dev: &Arc<DeviceCtx>, change: &QpChange<'_>) -> Result {
        self.modify_qp(dev, change)
    }

    fn query(&self) -> QpReport {
        self.query_qp()
    }

    fn bind_counter(&self, counter: Option<Arc<Counters>>) {
        // The lock is released first: dropping the old counter may free it.
        let old = core::mem::replace(&mut self.inner.lock().counter, counter);
        drop(old);
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        let (unfinished, in_flight, window, (retries, rnr_retries), round_trip, rate) = {
            let inner = self.inner.lock();
            let engine = &inner.engine;
            (
                inner.sq.unfinished(),
                engine.in_flight(),
                engine.window(),
                engine.retries_left(),
                engine.round_trip_ns(),
                engine.rate_limit(),
            )
        };
        to.number(c"sends_unfinished", unfinished)?;
        to.wide(c"bytes_queued", u64::try_from(self.queued.bytes())?)?;
        if self.service != Service::Rc {
            return Ok(());
        }
        to.number(c"in_flight", in_flight)?;
        to.number(c"window", window)?;
        to.number(c"retries_left", retries.into())?;
        to.number(c"rnr_retries_left", rnr_retries.into())?;
        if let Some(ns) = round_trip {
            to.wide(c"rtt_ns", ns)?;
        }
        if let Some(rate) = rate {
            to.wide(c"bytes_per_ms", rate)?;
        }
        Ok(())
    }

    fn destroy(self: &Arc<Self>, _dev: &Arc<DeviceCtx>) {
        self.dev.demux.withdraw(self);
        self.quiesce();
        let (tied_mrs, page_in) = {
            let mut inner = self.inner.lock();
            inner.destroyed = true;
            self.offers.withdraw_all(&mut inner.offered);
            (inner.tied_mrs.take(), inner.paging.page_in())
        };
        self.timer.shutdown();
        self.queued.cancel();
        self.leave_cqs();
        self.dev.demux.pager.end(&page_in);
        if let Some(tied_mrs) = tied_mrs {
            tied_mrs.revoke();
            tied_mrs.release_memory();
        }
        if self.kernel.is_some() {
            // The completions of a consumer must not name a QP that no longer exists.
            self.send_cq.purge_qp(self.token);
            self.recv_cq.purge_qp(self.token);
        }
    }

    fn doorbell(self: &Arc<Self>) -> Result {
        self.ring_doorbell()
    }

    fn post_send(self: &Arc<Self>, chain: &mut SendChain<'_, RxeDevice>) -> Result {
        self.post_sends(chain)
    }

    fn post_recv(self: &Arc<Self>, chain: &mut RecvChain<'_>) -> Result {
        self.post_receives(chain)
    }

    fn tie(self: &Arc<Self>, dev: &Arc<DeviceCtx>, mr: &Arc<MrCtx>, rkey: u32) -> Result {
        mr.tie_to(dev, self.pd, rkey, || self.tied_mrs())
    }

    fn attach(self: &Arc<Self>, dev: &Arc<DeviceCtx>, group: &[u8; 16]) -> Result {
        dev.groups.attach(dev, Gid(*group), self)
    }

    fn detach(self: &Arc<Self>, dev: &Arc<DeviceCtx>, group: &[u8; 16]) -> Result {
        dev.groups.detach(Gid(*group), self)
    }
}

/// Converts an engine state to the verbs' state.
fn state_of(state: State) -> QpState {
    match state {
        State::Reset => QpState::Reset,
        State::Init => QpState::Init,
        State::Rtr => QpState::Rtr,
        State::Rts => QpState::Rts,
        State::Sqd => QpState::Sqd,
        State::Sqe => QpState::Sqe,
        State::Err => QpState::Err,
    }
}

/// Converts the verbs' state to an engine state.
fn engine_state(state: QpState) -> State {
    match state {
        QpState::Reset => State::Reset,
        QpState::Init => State::Init,
        QpState::Rtr => State::Rtr,
        QpState::Rts => State::Rts,
        QpState::Sqd => State::Sqd,
        QpState::Sqe => State::Sqe,
        QpState::Err => State::Err,
    }
}
