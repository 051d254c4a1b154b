// SPDX-License-Identifier: GPL-2.0
//! Queue pairs: the verbs on one side, the engine on the other.
//!
//! Lock order: `config` (sleeping), `inner` (bottom halves off), the kernel consumer's queues and
//! the completion queue's ring (interrupts off). See `README.md`.

mod backend;
mod create;
mod modify;
mod paging;
mod post;
mod rq;
mod sq;
mod tx;

use crate::{
    device::counters::{
        Counters,
        Tally, //
    },
    device::{
        DeviceCtx,
        RxeDevice, //
    },
    mr::{
        MrAccess,
        Ties, //
    },
    pager::PageIn,
    queue::{
        RecvStore,
        SendStore, //
    },
    verbs::cq::CqCtx,
    verbs::srq::SrqCtx,
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
    net::{
        flow::Flow,
        tx::TxOwner, //
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
        PendingResponse,
        Qp as Engine,
        ReplayEntry,
        Service,
        State, //
    },
    ids::Gid, //
};

pub(crate) use paging::Backlog;
pub(crate) use tx::KernelCrc;

/// Queues a kernel consumer posts to from any context.
#[pin_data]
pub(crate) struct KernelQueues {
    #[pin]
    sends: SpinLockIrq<SendStore>,
    #[pin]
    receives: SpinLockIrq<RecvStore>,
    /// The state takes what is posted: read with the queue locked, and written before the queue
    /// is emptied, so that nothing is posted to RESET.
    open_sends: Atomic<bool>,
    open_receives: Atomic<bool>,
}

/// The engine's slots for responses.
struct Responses {
    pending: KVec<PendingResponse>,
    replay: KVec<ReplayEntry>,
}

/// Consumers to tell of completions when the QP is unlocked.
#[derive(Clone, Copy, Default)]
struct PendingNotify {
    send: bool,
    recv: bool,
    /// The first work request that completed in error, for the debug log.
    failed: Option<Failed>,
}

/// A work request that completed in error; those that were flushed because of it are not noted.
#[derive(Clone, Copy)]
struct Failed {
    queue: &'static CStr,
    status: WcStatus,
}

impl PendingNotify {
    /// Notes that a work request of `queue` completed with `status`.
    #[inline]
    fn note(&mut self, queue: &'static CStr, status: WcStatus) {
        if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.failed.get_or_insert(Failed { queue, status });
        }
    }
}

/// What the lock of a QP guards.
pub(crate) struct QpInner {
    pub(crate) engine: Engine,
    sends: sq::Sends,
    receives: rq::Receives,
    responses: Responses,
    notify: PendingNotify,
    /// Path to the peer of a connected QP.
    flow: Option<Arc<Flow>>,
    /// Addresses of the peer and of ourselves that packets of a connected QP must carry.
    pub(crate) peer: Gid,
    pub(crate) own: Gid,
    pub(crate) pkey_index: u16,
    /// Where in a region the last access was.
    pub(crate) extent: usize,
    pub(crate) paging: paging::Paging,
    /// Regions that end with it.
    ties: Option<Arc<Ties>>,
    /// The counter the QP is bound to.
    bound: Option<Arc<Counters>>,
    /// A batch is on its way to the network.
    busy: bool,
    /// Something happened meanwhile.
    again: bool,
    /// Destroyed: nothing may be done any more.
    pub(crate) dead: bool,
}

/// Attributes that only the verbs need.
struct Config {
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
    pub(crate) pd: u32,
    /// Where receives come from that the QP shares with others.
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
    config: Mutex<Config>,
    #[pin]
    pub(crate) inner: SpinLockBh<QpInner>,
    /// What the QP has in the queues below it.
    queued: TxOwner,
    #[pin]
    timer: SoftTimer<QpCtx>,
    #[pin]
    work: Work<QpCtx>,
    /// Goes on when memory is there, or with a FLUSH.
    #[pin]
    resume_work: Work<QpCtx, 1>,
    page_in: Arc<PageIn>,
}

impl_has_work! {
    impl HasWork<Self> for QpCtx { self.work }
    impl HasWork<Self, 1> for QpCtx { self.resume_work }
}

impl WorkItem for QpCtx {
    type Pointer = Arc<QpCtx>;

    fn run(this: Arc<QpCtx>) {
        this.as_arc_borrow().drive(Origin::Event);
    }
}

impl TimerTarget for QpCtx {
    fn fire(this: ArcBorrow<'_, Self>) {
        this.expire();
    }
}

impl QpCtx {
    /// What the QP may access, for as long as `guard` lives.
    pub(crate) fn memory<'g>(&'g self, guard: &'g rcu::Guard, inner: &QpInner) -> MrAccess<'g> {
        MrAccess::new(&self.dev, guard, (self.pd, self.qpn), inner.extent)
    }

    /// Where to count what this QP does.
    #[inline]
    pub(crate) fn tally<'a>(&'a self, inner: &'a QpInner) -> Tally<'a> {
        Tally {
            dev: &self.dev,
            bound: inner.bound.as_deref(),
        }
    }

    /// Unlocks the QP; returns whom to [`notify_cqs`](Self::notify_cqs) afterwards.
    #[inline]
    #[must_use]
    fn unlock(mut inner: SpinLockBhGuard<'_, QpInner>) -> PendingNotify {
        if inner.ties.is_some() && inner.engine.state() == State::Err {
            if let Some(ties) = inner.ties.take() {
                ties.cut_and_release_later();
            }
        }
        core::mem::take(&mut inner.notify)
    }

    /// What regions that are to end with the QP are tied to.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it has failed, `ENOMEM`.
    pub(crate) fn ties(&self) -> Result<Arc<Ties>> {
        let fresh = Ties::new(&self.dev)?;
        let mut inner = self.inner.lock();
        if inner.dead || inner.engine.state() == State::Err {
            drop(inner);
            let reason = c"the queue pair is in the error state";
            return Err(self.dev.handle.refuse(reason));
        }
        match &inner.ties {
            Some(ties) => Ok(ties.clone()),
            None => {
                inner.ties = Some(fresh.clone());
                Ok(fresh)
            }
        }
    }

    /// Tells consumers of completions, in the RCU read side section in which the QP was locked: a
    /// CQ is destroyed after its QPs, and waits for such sections.
    #[inline]
    fn notify_cqs(&self, rcu: &rcu::Guard, notify: PendingNotify, origin: Origin) {
        if notify.send {
            self.send_cq.notify(rcu, origin);
        }
        if notify.recv {
            self.recv_cq.notify(rcu, origin);
        }
        if let Some(Failed { queue, status }) = notify.failed {
            self.dev.handle.failed(self.qpn, queue, status.to_u32());
        }
    }

    /// Unlocks the QP and tells consumers what happened.
    pub(crate) fn release(
        &self,
        rcu: &rcu::Guard,
        inner: SpinLockBhGuard<'_, QpInner>,
        origin: Origin,
    ) {
        let notify = Self::unlock(inner);
        self.notify_cqs(rcu, notify, origin);
    }

    /// Joins its completion queues, which fail it if they do.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the QP is to [leave](Self::leave) then as well.
    fn join(self: &Arc<Self>) -> Result {
        self.send_cq.join(self)?;
        if Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            return Ok(());
        }
        self.recv_cq.join(self)
    }

    /// Leaves its completion queues. Process context.
    fn leave(self: &Arc<Self>) {
        self.send_cq.leave(self);
        self.recv_cq.leave(self);
    }

    /// The QP cannot report completions any more: fails it. Process context, no lock held.
    pub(crate) fn fail(&self) {
        {
            let rcu = rcu::read_lock();
            let mut inner = self.inner.lock();
            // One that has failed is not looked at again: what a process goes on posting could
            // keep the caller here.
            if inner.dead || matches!(inner.engine.state(), State::Reset | State::Err) {
                return;
            }
            if Self::takes_sends(inner.engine.state()) {
                inner.sends.pull(self.kernel.as_deref());
            }
            let mrs = self.memory(&rcu, &inner);
            let (engine, mut backend, _) = inner.split(self, &mrs);
            engine.fail_locally(&mut backend);
            self.release(&rcu, inner, Origin::Event);
        }
        self.kick(Origin::Event);
    }
}

impl QueuePair for QpCtx {
    type Device = RxeDevice;

    fn create(dev: &Arc<DeviceCtx>, init: QpInit<'_, RxeDevice>) -> Result<QpCreated<Self>> {
        Self::make(dev, init)
    }

    fn modify(&self, dev: &Arc<DeviceCtx>, change: &QpChange<'_>) -> Result {
        self.change(dev, change)
    }

    fn query(&self) -> QpReport {
        self.report()
    }

    fn bind_counter(&self, counter: Option<Arc<Counters>>) {
        // The lock is given back first: what was bound may be freed here.
        let old = core::mem::replace(&mut self.inner.lock().bound, counter);
        drop(old);
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        let (unfinished, in_flight, window, (retries, rnr_retries), round_trip, rate) = {
            let inner = self.inner.lock();
            let engine = &inner.engine;
            (
                inner.sends.unfinished(),
                engine.in_flight(),
                engine.window(),
                engine.retries_left(),
                engine.round_trip(),
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
        let ties = {
            let mut inner = self.inner.lock();
            inner.dead = true;
            inner.ties.take()
        };
        self.timer.shutdown();
        self.leave();
        self.page_in.unbind();
        self.dev.demux.pager.cancel(&self.page_in);
        if let Some(ties) = ties {
            ties.cut();
            ties.release();
        }
        if self.kernel.is_some() {
            // The consumer may not see a QP that is gone in its completions.
            self.send_cq.forget(self.token);
            self.recv_cq.forget(self.token);
        }
    }

    fn doorbell(self: &Arc<Self>) -> Result {
        self.ring()
    }

    fn post_send(self: &Arc<Self>, chain: &mut SendChain<'_, RxeDevice>) -> Result {
        self.post_sends(chain)
    }

    fn post_recv(self: &Arc<Self>, chain: &mut RecvChain<'_>) -> Result {
        self.post_receives(chain)
    }

    fn attach(self: &Arc<Self>, dev: &Arc<DeviceCtx>, group: &[u8; 16]) -> Result {
        dev.groups.attach(dev, Gid(*group), self)
    }

    fn detach(self: &Arc<Self>, dev: &Arc<DeviceCtx>, group: &[u8; 16]) -> Result {
        dev.groups.detach(Gid(*group), self)
    }
}

/// The verbs' name of an engine state.
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

/// The engine's name of a state.
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
