// SPDX-License-Identifier: GPL-2.0
//! Completion queues, filled from softirq and process context.
//!
//! The ring's lock is the innermost one. Consumers are notified after the QP is unlocked.
//!
//! A completion that finds the queue full is lost, and the queue is in error:
//! a CQ_ERR event is raised once, and all queue pairs that complete to the CQ go to ERR. Its CQEs
//! can still be polled, and flushed requests are added while there is space, because consumers wait
//! for those. Requests wait before they fill the queue of a process ([`room`]).

use crate::{
    clock,
    device::DeviceCtx,
    limits::MAX_CQE,
    qp::QpCtx,
    queue::map_info, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    },
};
use rxe_kapi::{
    mem::ring::CompletionRing,
    new_spinlock_irq,
    rdma::{
        av::Network,
        cq::{
            Arm,
            CompletionQueue,
            CqInit,
            CqNotify,
            Origin, //
        },
        detail::Details,
        qp::QpToken,
        udata::{
            Mapping,
            UserCall, //
        },
        wc::{
            self,
            WcExtra,
            WcSink, //
        },
    },
    series::unsupported,
    sync::SpinLockIrq,
    time::{
        SoftTimer,
        TimerTarget, //
    },
};
use rxe_proto::{
    abi::encode_cqe,
    engine::{
        notify::{
            ArmType,
            CqArm,
            Notify, //
        },
        room::{
            self,
            Room,
            RoomWait, //
        },
        wc::{
            NetworkType,
            Wc, //
        },
    },
    ids::RKey, //
};

/// Bytes of a CQE in the user's ring, of which 48 are used.
const CQE_BYTES: usize = 64;

/// A completion queue.
#[pin_data]
pub(crate) struct CqCtx {
    dev: Arc<DeviceCtx>,
    #[pin]
    ring: SpinLockIrq<CqRing>,
    /// The queue of a process was [crowded](room::is_crowded) when it was last looked at. Spares
    /// others the lock.
    crowded: Atomic<bool>,
    notify: Arc<CqNotify>,
    /// Allows the process to mmap the user's ring.
    #[pin]
    mmap_entry: Mutex<Option<Mapping>>,
    /// The queue pairs that complete to this CQ, keyed by address; each is removed when it is
    /// destroyed.
    #[pin]
    qps: Mutex<RBTree<usize, Arc<QpCtx>>>,
    /// Moves the queue pairs of a CQ in error to the error state.
    #[pin]
    error_work: Work<CqCtx>,
    /// Delivers notifications that moderation delays. Bound when the CQ is first moderated.
    #[pin]
    timer: SoftTimer<CqCtx>,
}

impl TimerTarget for CqCtx {
    fn fire(this: ArcBorrow<'_, Self>) {
        let rcu = rcu::read_lock();
        let when = {
            let mut ring = this.ring.lock();
            if ring.destroyed {
                return;
            }
            ring.arm.expired(clock::now())
        };
        if this.arm_timer(when) {
            this.notify(&rcu, Origin::Event);
        }
    }
}

impl_has_work! {
    impl HasWork<Self> for CqCtx { self.error_work }
}

impl WorkItem for CqCtx {
    type Pointer = Arc<CqCtx>;

    fn run(this: Arc<CqCtx>) {
        // A tree of the CQ's own, because a scan of all queue pairs would cost as much as others
        // have. `qemu/selftest_structure.py` checks that their table offers no scan.
        let mut from = 0;
        while let Some((at, qp)) = this.next_qp(from) {
            qp.fail();
            from = at.wrapping_add(1);
        }
    }
}

/// The state that the lock protects.
struct CqRing {
    store: Store,
    arm: CqArm,
    /// A completion was lost: the CQ is in error. Reported once.
    overflowed: bool,
    destroyed: bool,
    /// How long there has been no room.
    wait: RoomWait,
}

/// Storage of the CQEs.
enum Store {
    /// In a ring shared with a user process, which has been granted so many of its elements.
    User { ring: CompletionRing, granted: u32 },
    /// In kernel memory.
    Kernel(KernelRing),
}

/// Completions of a kernel consumer.
struct KernelRing {
    entries: KVVec<(Wc, QpToken)>,
    limit: usize,
    /// Position of the oldest CQE.
    head: usize,
    len: usize,
}

impl KernelRing {
    fn new(limit: u32) -> Result<Self> {
        let limit = usize::try_from(limit)?;
        Ok(Self {
            entries: KVVec::with_capacity(limit, GFP_KERNEL_ACCOUNT)?,
            limit,
            head: 0,
            len: 0,
        })
    }

    /// Returns the position of the CQE `n` after the oldest one.
    fn position(&self, n: usize) -> usize {
        let at = self.head.wrapping_add(n);
        if at >= self.limit {
            at.wrapping_sub(self.limit)
        } else {
            at
        }
    }

    fn push(&mut self, wc: &Wc, qp: QpToken) -> bool {
        if self.len >= self.limit {
            return false;
        }
        let at = self.position(self.len);
        match self.entries.get_mut(at) {
            Some(entry) => *entry = (*wc, qp),
            // Appended the first time: positions are used in order then.
            None => {
                if self.entries.push_within_capacity((*wc, qp)).is_err() {
                    return false;
                }
            }
        }
        self.len = self.len.wrapping_add(1);
        true
    }

    fn pop_into(&mut self, to: &mut WcSink<'_>) -> bool {
        if self.len == 0 || to.is_full() {
            return false;
        }
        if let Some((wc, qp)) = self.entries.get(self.head) {
            to.push(&for_consumer(wc, *qp));
        }
        self.head = self.position(1);
        self.len = self.len.wrapping_sub(1);
        true
    }

    /// Removes the CQEs of one QP.
    fn purge_qp(&mut self, qp: QpToken) {
        let mut kept = 0usize;
        for n in 0..self.len {
            let Some(entry) = self.entries.get(self.position(n)).copied() else {
                continue;
            };
            if entry.1 == qp {
                continue;
            }
            let at = self.position(kept);
            if let Some(to) = self.entries.get_mut(at) {
                *to = entry;
                kept = kept.wrapping_add(1);
            }
        }
        self.len = kept;
    }
}

impl CqRing {
    fn len(&self) -> u32 {
        match &self.store {
            Store::User { ring, .. } => ring.len(),
            Store::Kernel(ring) => u32::try_from(ring.len).unwrap_or(u32::MAX),
        }
    }

    /// Returns how often the process's index had an impossible value and was repaired.
    fn repairs(&self) -> u32 {
        match &self.store {
            Store::User { ring, .. } => ring.repairs(),
            Store::Kernel(_) => 0,
        }
    }
}

impl CqCtx {
    /// Adds a completion of `qp`; if it finds no room, the CQ is in error (IBTA 11.6.3). Returns
    /// true if the caller must [`notify`](Self::notify) the consumer, in the same RCU read-side
    /// critical section.
    ///
    /// # Context
    ///
    /// Any context.
    #[must_use]
    pub(crate) fn push(self: &Arc<Self>, wc: &Wc, qp: QpToken) -> bool {
        let (when, lost) = {
            let mut guard = self.ring.lock();
            let ring = &mut *guard;
            if ring.destroyed {
                return false;
            }
            let stored = match &mut ring.store {
                Store::User {
                    ring: user,
                    granted,
                } => {
                    if ring.wait.is_over(user.consumed()) {
                        // `push` reads the index, too, which is enough for all others.
                        user.sync_consumer();
                    }
                    let lost = ring.wait.is_over(user.consumed()) && user.held() >= *granted;
                    let stored = !lost && user.push(&encode_cqe(wc));
                    self.note_fill(user, *granted, &mut ring.wait);
                    stored
                }
                Store::Kernel(kernel) => kernel.push(wc, qp),
            };
            let when = if stored {
                ring.arm.added(wc.solicited, clock::now)
            } else {
                ring.arm.lost()
            };
            let lost = (!stored).then(|| !core::mem::replace(&mut ring.overflowed, true));
            (when, lost)
        };
        if let Some(first) = lost {
            self.overflow(first);
        }
        self.arm_timer(when)
    }

    /// Returns true if the CQ of a process may have to be asked for [`room`](Self::room). Those
    /// of kernel consumers always have some.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Relaxed)
    }

    /// Notes whether the ring was crowded when the process's index was last read, and returns true
    /// if it was.
    #[inline]
    fn note_fill(&self, ring: &CompletionRing, granted: u32, wait: &mut RoomWait) -> bool {
        let crowded = room::is_crowded(ring.held(), granted);
        if crowded != self.crowded.load(Relaxed) {
            self.crowded.store(crowded, Relaxed);
            wait.end();
        }
        crowded
    }

    /// Returns for how many completions the CQ of a process has room beside `expected` others, or
    /// when to look again if there is none, but the process may be about to make some. A CQ that is
    /// not [crowded](Self::is_crowded) has enough for a process that has left room for all that it
    /// has posted.
    ///
    /// # Context
    ///
    /// Any context.
    #[cold]
    pub(crate) fn room(&self, expected: u32) -> Room {
        let mut guard = self.ring.lock();
        let CqRing { store, wait, .. } = &mut *guard;
        let Store::User { ring, granted } = store else {
            return Room::For(u32::MAX);
        };
        ring.sync_consumer();
        if !self.note_fill(ring, *granted, wait) {
            return Room::For(u32::MAX);
        }
        let used = ring.held().saturating_add(expected);
        let room = granted.saturating_sub(used);
        if room != 0 {
            wait.end();
            return Room::For(room);
        }
        match wait.until(clock::now(), ring.consumed()) {
            Some(at) => Room::WaitUntil(at),
            None => Room::For(u32::MAX),
        }
    }

    /// Returns true if the consumer is to be notified now; arms the timer if later. The ring must
    /// not be locked.
    #[inline]
    fn arm_timer(&self, when: Notify) -> bool {
        if let Notify::At(deadline) = when {
            self.timer.arm_at(deadline.as_ns());
        }
        when == Notify::Now
    }

    /// Adds a queue pair that completes to this CQ.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add_qp(&self, qp: &Arc<QpCtx>) -> Result {
        let node = RBTreeNode::new(address(qp), qp.clone(), GFP_KERNEL_ACCOUNT)?;
        let old = self.qps.lock().insert(node);
        drop(old);
        Ok(())
    }

    /// Removes a queue pair that is being destroyed.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn remove_qp(&self, qp: &Arc<QpCtx>) {
        let node = self.qps.lock().remove_node(&address(qp));
        drop(node);
    }

    /// Returns the first queue pair at address `from` or above.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn next_qp(&self, from: usize) -> Option<(usize, Arc<QpCtx>)> {
        let qps = self.qps.lock();
        let cursor = qps.cursor_lower_bound(&from)?;
        let (at, qp) = cursor.current();
        Some((*at, qp.clone()))
    }

    /// Handles a lost completion, the first one or a further one (IBTA 11.6.3). The queue pairs are
    /// iterated each time, as some may have been created since.
    ///
    /// # Context
    ///
    /// Any context.
    #[cold]
    fn overflow(self: &Arc<Self>, first: bool) {
        if first {
            self.notify.error();
        }
        let _ = self.dev.demux.queues.local.enqueue(self.clone());
    }

    /// Notifies the consumer of completions. No lock may be held.
    pub(crate) fn notify(&self, rcu: &rcu::Guard, origin: Origin) {
        self.notify.completion(rcu, origin);
    }

    /// Removes the CQEs of a kernel consumer's QP that is being destroyed.
    pub(crate) fn purge_qp(&self, qp: QpToken) {
        if let Store::Kernel(kernel) = &mut self.ring.lock().store {
            kernel.purge_qp(qp);
        }
    }

    /// Creates a ring for `cqe` completions and some to spare, and its mmap entry.
    fn user_ring(cqe: u32, user: &UserCall<'_>) -> Result<(CompletionRing, Mapping)> {
        if cqe == 0 || cqe > MAX_CQE {
            return Err(EINVAL);
        }
        let elements = cqe.saturating_add(room::spare(cqe));
        let ring = CompletionRing::new(elements, CQE_BYTES)?;
        let mmap_entry = user.map(ring.buffer())?;
        Ok((ring, mmap_entry))
    }
}

/// Returns the key of a queue pair in the CQ's tree.
fn address(qp: &Arc<QpCtx>) -> usize {
    core::ptr::from_ref::<QpCtx>(qp).addr()
}

/// Converts a completion to the form that kernel consumers get.
fn for_consumer(wc: &Wc, qp: QpToken) -> wc::Wc {
    wc::Wc {
        wr_id: wc.wr_id,
        status: wc.status.to_u32(),
        opcode: wc.opcode.to_u32(),
        byte_len: wc.byte_len,
        extra: match (wc.imm, wc.invalidated) {
            (Some(imm), _) => WcExtra::Imm(imm),
            (None, Some(RKey(key))) => WcExtra::Invalidated(key),
            (None, None) => WcExtra::None,
        },
        qp,
        src_qp: wc.src_qpn,
        pkey_index: wc.pkey_index,
        grh: wc.grh.map(|kind| match kind {
            NetworkType::V4 => Network::V4,
            NetworkType::V6 => Network::V6,
        }),
        smac: None,
        vlan: wc.vlan,
    }
}

impl CompletionQueue for CqCtx {
    type Device = DeviceCtx;

    fn create(dev: &Arc<DeviceCtx>, init: CqInit<'_>) -> Result<(Arc<Self>, u32)> {
        if init.flags != 0 {
            let reason = c"flags of completion queues are not supported";
            return Err(dev.handle.refuse_with(unsupported(), reason));
        }
        if init.cqe == 0 || init.cqe > MAX_CQE {
            return Err(dev
                .handle
                .refuse(c"no completions, or more than the device's limit"));
        }
        let (store, mmap_entry) = match &init.user {
            Some(user) => {
                let (ring, mmap_entry) = Self::user_ring(init.cqe, user)?;
                user.respond(&map_info(&mmap_entry)?)?;
                let granted = init.cqe;
                (Store::User { ring, granted }, Some(mmap_entry))
            }
            None => (Store::Kernel(KernelRing::new(init.cqe)?), None),
        };
        let ring = CqRing {
            store,
            arm: CqArm::default(),
            overflowed: false,
            destroyed: false,
            wait: RoomWait::default(),
        };
        let ctx = Arc::pin_init(
            pin_init!(Self {
                dev: dev.clone(),
                ring <- new_spinlock_irq!(ring, "CqCtx::ring"),
                crowded: Atomic::new(false),
                notify: init.notify.clone(),
                mmap_entry <- new_mutex!(mmap_entry, "CqCtx::mmap_entry"),
                qps <- new_mutex!(RBTree::new(), "CqCtx::qps"),
                error_work <- new_work!("CqCtx::error_work"),
                timer <- SoftTimer::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok((ctx, init.cqe))
    }

    fn resize(&self, _dev: &Arc<DeviceCtx>, cqe: u32, user: &UserCall<'_>) -> Result<u32> {
        let mut entry = self.mmap_entry.lock();
        let (mut ring, mmap_entry) = Self::user_ring(cqe, user)?;
        // Nothing may fail after the process has got its response.
        user.respond(&map_info(&mmap_entry)?)?;
        let (old, unread) = {
            let mut guard = self.ring.lock();
            let CqRing { store, wait, .. } = &mut *guard;
            let Store::User {
                ring: current,
                granted,
            } = store
            else {
                return Err(EINVAL);
            };
            if current.len() > cqe {
                return Err(EINVAL);
            }
            let unread = ring.take_over(current)?;
            let old = core::mem::replace(current, ring);
            *granted = cqe;
            self.note_fill(current, cqe, wait);
            (old, unread)
        };
        // Completions that arrive meanwhile are added behind these. The process reads the new ring
        // only after the call has returned, and no other call resizes the CQ, as `entry` is locked.
        unread.copy();
        let old_map = entry.replace(mmap_entry);
        drop(entry);
        drop((old, old_map));
        Ok(cqe)
    }

    fn poll(&self, to: &mut WcSink<'_>) {
        if let Store::Kernel(kernel) = &mut self.ring.lock().store {
            while kernel.pop_into(to) {}
        }
    }

    fn peek(&self, limit: u32) -> u32 {
        self.ring.lock().len().min(limit)
    }

    fn describe(&self, to: &mut Details<'_>) -> Result {
        let (waiting, overflowed, repairs, arm) = {
            let ring = self.ring.lock();
            let arm = ring.arm.clone();
            (ring.len(), ring.overflowed, ring.repairs(), arm)
        };
        to.number(c"waiting", waiting)?;
        to.number(c"armed", u32::from(arm.is_armed()))?;
        to.number(c"overflowed", u32::from(overflowed))?;
        if repairs != 0 {
            to.number(c"index_repairs", repairs)?;
        }
        self.notify.describe(to)?;
        if let Some((count, period_us)) = arm.moderation() {
            to.number(c"moderation_count", u32::from(count))?;
            to.number(c"moderation_period_us", u32::try_from(period_us)?)?;
        }
        Ok(())
    }

    fn arm(&self, what: Arm) -> bool {
        let mut ring = self.ring.lock();
        if let Store::User { ring: user, .. } = &mut ring.store {
            // The process is about to poll the ring itself.
            user.sync_consumer();
        }
        ring.arm.arm(match what {
            Arm::Solicited => ArmType::Solicited,
            Arm::Next => ArmType::Next,
        });
        ring.len() != 0
    }

    fn moderate(self: &Arc<Self>, count: u16, period_us: u16) {
        self.timer.bind(self);
        // A delayed notification goes through the timer: consumers must not be called from here.
        let when = self
            .ring
            .lock()
            .arm
            .moderate(count, period_us, clock::now());
        self.arm_timer(when);
    }

    fn destroy(self: &Arc<Self>, _dev: &Arc<DeviceCtx>) {
        self.ring.lock().destroyed = true;
        self.timer.shutdown();
        drop(self.mmap_entry.lock().take());
    }
}
