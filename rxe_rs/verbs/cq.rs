// SPDX-License-Identifier: GPL-2.0
//! Completion queues, filled from softirq and process context.
//!
//! The ring's lock is the innermost one. Consumers are told when the QP is unlocked again.
//!
//! A completion that finds no room is lost, and the queue has failed (IBTA vol1 11.6.3.1): that is
//! reported once, and all queue pairs that complete to it go to ERR. What is in it can still be
//! polled, and while there is room flushed requests are added, for consumers wait for those.

use crate::{
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
        unsupported,
        wc::{
            self,
            WcExtra,
            WcSink, //
        }, //
    },
    sync::SpinLockIrq,
    time::{
        now_ns,
        SoftTimer,
        TimerTarget, //
    },
};
use rxe_proto::{
    abi::encode_cqe,
    engine::{
        notify::{
            CqArm,
            Notify,
            Wanted, //
        },
        wc::{
            NetKind,
            Wc, //
        },
    },
    ids::RKey,
};

/// Bytes of an element in the user's ring: 48 are used.
const CQE_BYTES: usize = 64;

/// A completion queue.
#[pin_data]
pub(crate) struct CqCtx {
    dev: Arc<DeviceCtx>,
    #[pin]
    ring: SpinLockIrq<CqRing>,
    notify: Arc<CqNotify>,
    /// The offer to map the user's ring.
    #[pin]
    mmap_entry: Mutex<Option<Mapping>>,
    /// The queue pairs that complete to it, by their addresses; each leaves when it is destroyed.
    #[pin]
    qps: Mutex<RBTree<usize, Arc<QpCtx>>>,
    /// Fails the queue pairs of a queue that has failed.
    #[pin]
    failure: Work<CqCtx>,
    /// Tells of completions that moderation holds back. Bound when the queue is moderated first.
    #[pin]
    timer: SoftTimer<CqCtx>,
}

impl TimerTarget for CqCtx {
    fn fire(this: ArcBorrow<'_, Self>) {
        let rcu = rcu::read_lock();
        let when = {
            let mut ring = this.ring.lock();
            if ring.dead {
                return;
            }
            ring.arm.expired(now_ns())
        };
        if this.arm_timer(when) {
            this.notify(&rcu, Origin::Event);
        }
    }
}

impl_has_work! {
    impl HasWork<Self> for CqCtx { self.failure }
}

impl WorkItem for CqCtx {
    type Pointer = Arc<CqCtx>;

    fn run(this: Arc<CqCtx>) {
        let mut from = 0;
        while let Some((at, qp)) = this.next_qp(from) {
            qp.fail();
            from = at.wrapping_add(1);
        }
    }
}

/// What the lock guards.
struct CqRing {
    store: Store,
    arm: CqArm,
    /// A completion was lost: the queue has failed. Reported once.
    overflowed: bool,
    dead: bool,
}

/// Where completions wait.
enum Store {
    /// In a ring shared with a user process.
    User(CompletionRing),
    /// In kernel memory.
    Kernel(KernelRing),
}

/// Completions of a kernel consumer.
struct KernelRing {
    entries: KVVec<(Wc, QpToken)>,
    limit: usize,
    /// Position of the oldest one.
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

    /// Position of the entry `n` after the oldest one.
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
            // Filled for the first time: positions come in order then.
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

    /// Drops the completions of one QP.
    fn forget(&mut self, qp: QpToken) {
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
            Store::User(ring) => ring.len(),
            Store::Kernel(ring) => u32::try_from(ring.len).unwrap_or(u32::MAX),
        }
    }

    /// Times that the process's index was one that it cannot have.
    fn repairs(&self) -> u32 {
        match &self.store {
            Store::User(ring) => ring.repairs(),
            Store::Kernel(_) => 0,
        }
    }
}

impl CqCtx {
    /// Adds a completion of `qp`. True if the consumer is to be told, with [`tell`](Self::when),
    /// in the same RCU read side section. Any context.
    #[must_use]
    pub(crate) fn push(self: &Arc<Self>, wc: &Wc, qp: QpToken) -> bool {
        let (when, lost) = {
            let mut guard = self.ring.lock();
            let ring = &mut *guard;
            if ring.dead {
                return false;
            }
            let stored = match &mut ring.store {
                Store::User(user) => user.push(&encode_cqe(wc)),
                Store::Kernel(kernel) => kernel.push(wc, qp),
            };
            let when = if stored {
                ring.arm.added(wc.solicited, now_ns)
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

    /// True if the consumer is to be told now; sets the timer if later. Ring not locked.
    #[inline]
    fn arm_timer(&self, when: Notify) -> bool {
        if let Notify::At(deadline) = when {
            self.timer.arm_at(deadline);
        }
        when == Notify::Now
    }

    /// A queue pair is made that completes to this queue. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn join(&self, qp: &Arc<QpCtx>) -> Result {
        let node = RBTreeNode::new(address(qp), qp.clone(), GFP_KERNEL_ACCOUNT)?;
        let old = self.qps.lock().insert(node);
        drop(old);
        Ok(())
    }

    /// A queue pair is destroyed. Process context.
    pub(crate) fn leave(&self, qp: &Arc<QpCtx>) {
        let node = self.qps.lock().remove_node(&address(qp));
        drop(node);
    }

    /// The first queue pair at address `from` or above. Process context.
    fn next_qp(&self, from: usize) -> Option<(usize, Arc<QpCtx>)> {
        let qps = self.qps.lock();
        let cursor = qps.cursor_lower_bound(&from)?;
        let (at, qp) = cursor.current();
        Some((*at, qp.clone()))
    }

    /// A completion was lost, the first one or a further one. Every time the queue pairs are gone
    /// through, for some may have been made since. Any context.
    #[cold]
    fn overflow(self: &Arc<Self>, first: bool) {
        if first {
            self.notify.error();
        }
        let _ = self.dev.demux.queues.local.enqueue(self.clone());
    }

    /// Tells the consumer of completions. No lock held.
    pub(crate) fn notify(&self, rcu: &rcu::Guard, origin: Origin) {
        self.notify.completion(rcu, origin);
    }

    /// Drops the completions of a kernel consumer's QP that goes away.
    pub(crate) fn forget(&self, qp: QpToken) {
        if let Store::Kernel(kernel) = &mut self.ring.lock().store {
            kernel.forget(qp);
        }
    }

    /// A ring for at least `cqe` completions and the bytes that tell the process where it is.
    fn user_ring(cqe: u32, user: &UserCall<'_>) -> Result<(CompletionRing, Mapping)> {
        if cqe == 0 || cqe > MAX_CQE {
            return Err(EINVAL);
        }
        let ring = CompletionRing::new(cqe, CQE_BYTES)?;
        let mmap_entry = user.map(ring.buffer())?;
        Ok((ring, mmap_entry))
    }
}

/// What a queue knows a queue pair by.
fn address(qp: &Arc<QpCtx>) -> usize {
    core::ptr::from_ref::<QpCtx>(qp).addr()
}

/// A completion as kernel consumers see it.
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
            NetKind::V4 => Network::V4,
            NetKind::V6 => Network::V6,
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
        let (store, mmap_entry, cqe) = match &init.user {
            Some(user) => {
                let (ring, mmap_entry) = Self::user_ring(init.cqe, user)?;
                user.respond(&map_info(&mmap_entry)?)?;
                let cqe = ring.capacity();
                (Store::User(ring), Some(mmap_entry), cqe)
            }
            None => (Store::Kernel(KernelRing::new(init.cqe)?), None, init.cqe),
        };
        let ring = CqRing {
            store,
            arm: CqArm::default(),
            overflowed: false,
            dead: false,
        };
        let ctx = Arc::pin_init(
            pin_init!(Self {
                dev: dev.clone(),
                ring <- new_spinlock_irq!(ring, "CqCtx::ring"),
                notify: init.notify.clone(),
                mmap_entry <- new_mutex!(mmap_entry, "CqCtx::mmap_entry"),
                qps <- new_mutex!(RBTree::new(), "CqCtx::qps"),
                failure <- new_work!("CqCtx::failure"),
                timer <- SoftTimer::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok((ctx, cqe))
    }

    fn resize(&self, _dev: &Arc<DeviceCtx>, cqe: u32, user: &UserCall<'_>) -> Result<u32> {
        let mut held = self.mmap_entry.lock();
        let (mut ring, mmap_entry) = Self::user_ring(cqe, user)?;
        let granted = ring.capacity();
        // Nothing may fail once the process has been told.
        user.respond(&map_info(&mmap_entry)?)?;
        let (old, unread) = {
            let mut guard = self.ring.lock();
            let Store::User(current) = &mut guard.store else {
                return Err(EINVAL);
            };
            let unread = ring.succeed(current)?;
            (core::mem::replace(current, ring), unread)
        };
        // What completes meanwhile goes behind these. The process does not look before the call
        // has returned, nor does another one change the size: `held` is locked.
        unread.copy();
        let old_map = held.replace(mmap_entry);
        drop(held);
        drop((old, old_map));
        Ok(granted)
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
        if let Store::User(user) = &mut ring.store {
            // The process is about to look itself.
            user.look();
        }
        ring.arm.arm(match what {
            Arm::Solicited => Wanted::Solicited,
            Arm::Next => Wanted::Any,
        });
        ring.len() != 0
    }

    fn moderate(self: &Arc<Self>, count: u16, period_us: u16) {
        self.timer.bind(self);
        // What is held back goes through the timer: consumers must not be called from here.
        let when = self.ring.lock().arm.moderate(count, period_us, now_ns());
        self.arm_timer(when);
    }

    fn destroy(self: &Arc<Self>, _dev: &Arc<DeviceCtx>) {
        self.ring.lock().dead = true;
        self.timer.shutdown();
        drop(self.mmap_entry.lock().take());
    }
}
