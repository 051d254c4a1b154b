// SPDX-License-Identifier: GPL-2.0
//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    deferred::{
        Deferred,
        Queue,
        Target, //
    },
    detail::Details,
    device::{
        self,
        Device, //
    },
    object::CoreObject,
    operation::Operation,
    udata::UserCall,
    wc::WcSink, //
};
use crate::{
    bindings,
    sync::{
        Pending,
        Users, //
    },
};
use core::ffi::c_int;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc, //
    },
};

/// Completions that a consumer requests notification for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// The next solicited completion or error.
    Solicited,
    /// The next completion of any kind.
    Next,
}

/// Arguments of CQ creation.
pub struct CqInit<'a> {
    /// Requested number of CQEs; not zero.
    pub cqe: u32,
    /// Bits of `enum ib_uverbs_ex_create_cq_flags`.
    pub flags: u32,
    /// Notifies the consumer; holds no reference to the driver's context.
    pub notify: &'a Arc<CqNotify>,
    /// The calling process; `None` for a kernel consumer.
    pub user: Option<UserCall<'a>>,
}

/// A completion queue of a driver.
pub trait CompletionQueue: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Cq = Self>;

    /// Creates a CQ and returns it with its capacity in CQEs.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the device's limit, `EOPNOTSUPP` for flags not supported, `ENOMEM`.
    fn create(dev: &Arc<Self::Device>, init: CqInit<'_>) -> Result<(Arc<Self>, u32)>;

    /// Resizes a user CQ, keeping its CQEs, and returns the new capacity.
    ///
    /// # Context
    ///
    /// Process context; may sleep. Calls may be concurrent.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the device's limit or below the number of unread CQEs, `ENOMEM`.
    fn resize(&self, dev: &Arc<Self::Device>, cqe: u32, user: &UserCall<'_>) -> Result<u32>;

    /// Moves CQEs of a kernel CQ to `to`.
    ///
    /// # Context
    ///
    /// Any context.
    fn poll(&self, to: &mut WcSink<'_>);

    /// Returns the number of unread CQEs, at most `limit`.
    ///
    /// # Context
    ///
    /// Any context.
    fn peek(&self, limit: u32) -> u32;

    /// Adds driver-specific attributes for `rdma resource`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    fn describe(&self, to: &mut Details<'_>) -> Result;

    /// Arms the CQ (`ib_req_notify_cq`); returns true if it has unread CQEs.
    ///
    /// # Context
    ///
    /// Any context.
    fn arm(&self, what: Arm) -> bool;

    /// Sets moderation: notifies the consumer after `count` completions, or at the latest
    /// `period_us` microseconds after the first of them; a count below 2 or a period of 0 disables
    /// it. No pending notification may be lost by the change.
    ///
    /// # Context
    ///
    /// Process context; may sleep. Calls may be concurrent.
    fn moderate(self: &Arc<Self>, count: u16, period_us: u16);

    /// Stops the CQ: it must raise no event afterwards and must remove its mmap entries.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    fn destroy(self: &Arc<Self>, dev: &Arc<Self::Device>);
}

/// The origin of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A verb that a consumer has called and that has not returned: the consumer may hold locks
    /// that its completion handler takes (Documentation/infiniband/core_locking.rst).
    Verb,
    /// Anything else: a received packet, a timer, a work item.
    Event,
}

/// Calls the completion handler of one CQ.
struct CompTarget {
    cq: *mut bindings::ib_cq,
    /// Undelivered completions; whoever adds the first must make sure that the handler is called.
    pending: Pending,
    /// The CPU on which the handler was called last; `u32::MAX` if it never was.
    last_comp_cpu: Atomic<u32>,
}

// SAFETY: The pointer is dereferenced only while the handler may be called, which has ended before
// the CQ is freed.
unsafe impl Send for CompTarget {}
// SAFETY: As above.
unsafe impl Sync for CompTarget {}

/// Consecutive calls of the handler before the CPU is yielded.
const CALLS: u32 = 4;

impl CompTarget {
    /// Calls the handler until all completions have been notified; returns false if that takes too
    /// long.
    fn call(&self) -> bool {
        // SAFETY: Reads a number.
        let cpu = unsafe { bindings::rxe_rs_this_cpu() };
        self.last_comp_cpu.store(cpu, Relaxed);
        self.pending.deliver(CALLS, || {
            // SAFETY: `destroy_cq` makes sure that this has ended before the core frees the CQ, and
            // the handler and its context do not change before.
            unsafe {
                if let Some(handler) = (*self.cq).comp_handler {
                    handler(self.cq, (*self.cq).cq_context);
                }
            }
        })
    }
}

impl Target for CompTarget {
    fn run(&self) -> bool {
        self.call()
    }
}

/// Reports a CQ in error.
struct ErrorTarget(*mut bindings::ib_cq);

// SAFETY: As for `CompTarget`.
unsafe impl Send for ErrorTarget {}
// SAFETY: As for `CompTarget`.
unsafe impl Sync for ErrorTarget {}

impl Target for ErrorTarget {
    fn run(&self) -> bool {
        // SAFETY: As in `CompTarget::run`.
        unsafe {
            let mut raw: bindings::ib_event = pin_init::zeroed();
            raw.device = (*self.0).device;
            *raw.element.cq.as_mut() = self.0;
            raw.event = bindings::ib_event_type_IB_EVENT_CQ_ERR;
            if let Some(handler) = (*self.0).event_handler {
                handler(&mut raw, (*self.0).cq_context);
            }
        }
        true
    }
}

/// Notifies the consumer of one CQ. Calls of the completion handler of one CQ never overlap, and
/// run on the CPU of its vector, if that is not 0 (see [`completion`](Self::completion)); error
/// events are raised in process context.
#[pin_data]
pub struct CqNotify {
    vector: u32,
    /// The CPU on which the consumer is notified; `None` for the CPU of the completion.
    cpu: Option<u32>,
    /// The consumer is a process, whose handler wakes it up and takes no lock of a caller.
    user: bool,
    #[pin]
    completion: Deferred<CompTarget>,
    #[pin]
    error: Deferred<ErrorTarget>,
    /// Callers of the handler.
    callers: Users,
}

impl CqNotify {
    fn new(cq: *mut bindings::ib_cq, vector: u32, user: bool) -> Result<Arc<Self>> {
        // Consumers that do not care use vector 0, and another CPU between a completion and its
        // consumer costs time: 4 of 36 µs to wake up a process. In a virtual machine an idle CPU
        // has to be woken by the host first.
        let steered = vector != 0;
        // SAFETY: Process context.
        let cpu = steered.then(|| unsafe { bindings::rxe_rs_vector_cpu(vector) });
        Arc::pin_init(
            pin_init!(Self {
                vector,
                cpu,
                user,
                completion <- Deferred::new(
                    CompTarget {
                        cq,
                        pending: Pending::new(),
                        last_comp_cpu: Atomic::new(u32::MAX),
                    },
                    c"CqNotify::completion",
                    kernel::static_lock_class!(),
                ),
                error <- Deferred::new(
                    ErrorTarget(cq),
                    c"CqNotify::error",
                    kernel::static_lock_class!(),
                ),
                callers: Users::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Calls the completion handler, unless it is running: then it is called again.
    ///
    /// It is called here if this is the CPU of the CQ's vector, if that is offline, or if the
    /// vector is 0; otherwise in softirq on that CPU. A consumer in the kernel is never called
    /// from its own verbs, but in softirq later.
    ///
    /// # Context
    ///
    /// Process context or softirq, no lock held, as the handler may poll and post. The CQ may have
    /// been destroyed.
    #[inline]
    pub fn completion(&self, _rcu: &rcu::Guard, origin: Origin) {
        let target = self.completion.target();
        if !target.pending.add() {
            return;
        }
        // A completion may have been added before the CQ was destroyed.
        let Some(_caller) = self.callers.try_get() else {
            return;
        };
        if self
            .cpu
            .is_some_and(|cpu| self.completion.kick_elsewhere(cpu))
        {
            return;
        }
        if origin == Origin::Verb && !self.user || !target.call() {
            self.completion.kick(Queue::Bh);
        }
    }

    /// Adds the vector of the CQ and the CPU of the last notification for `rdma resource`.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    pub fn describe(&self, to: &mut Details<'_>) -> Result {
        to.number(c"comp_vector", self.vector)?;
        if let Some(cpu) = self.cpu {
            to.number(c"vector_cpu", cpu)?;
        }
        match self.completion.target().last_comp_cpu.load(Relaxed) {
            u32::MAX => Ok(()),
            cpu => to.number(c"last_comp_cpu", cpu),
        }
    }

    /// Reports that the CQ has overflowed or failed otherwise.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn error(&self) {
        self.error.kick(Queue::Process);
    }

    /// Waits until no handler runs; none is called afterwards.
    ///
    /// # Context
    ///
    /// Process context.
    fn stop(&self) {
        self.callers.close();
        self.completion.stop();
        self.error.stop();
    }
}

/// Slot of the object of a CQ.
pub(crate) struct CqSlot<T> {
    ctx: Arc<T>,
    notify: Arc<CqNotify>,
}

impl<T> CqSlot<T> {
    /// The context.
    pub(crate) fn ctx(&self) -> &Arc<T> {
        &self.ctx
    }
}

/// The object that the core allocates.
pub(crate) type CqObject<T> = CoreObject<bindings::ib_cq, CqSlot<T>>;

/// Callbacks of [`CompletionQueue`].
pub(crate) struct CqOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> CqOps<D> {
    /// # Safety
    ///
    /// `cq` is a live CQ of this driver, and stays so for `'a`.
    pub(crate) unsafe fn ctx<'a>(cq: *mut bindings::ib_cq) -> &'a Arc<D::Cq> {
        // SAFETY: By the caller's guarantee.
        unsafe { &CqObject::<D::Cq>::slot(cq).ctx }
    }

    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn create_cq_callback(
        cq: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*cq).device, c"create_cq") };
        operation.run(|| {
            let udata = if attrs.is_null() {
                core::ptr::null_mut()
            } else {
                // SAFETY: The bundle of the running call.
                unsafe { &raw mut (*attrs).__bindgen_anon_1.hdr.driver_udata }
            };
            // SAFETY: The core passes valid arguments and filled in the live device.
            let (attr, dev) = unsafe { (&*attr, device::ctx::<D>((*cq).device)) };
            // The core checks the vector of processes, not that of kernel consumers.
            // SAFETY: A plain field that does not change.
            let vectors = unsafe { (*(*cq).device).num_comp_vectors };
            if !u32::try_from(vectors).is_ok_and(|vectors| attr.comp_vector < vectors) {
                return Err(EINVAL);
            }
            let notify = CqNotify::new(cq, attr.comp_vector, !udata.is_null())?;
            let init = CqInit {
                cqe: attr.cqe,
                flags: attr.flags,
                notify: &notify,
                // SAFETY: The argument of this very call.
                user: unsafe { UserCall::from_raw(udata) },
            };
            let (ctx, cqe) = D::Cq::create(dev, init)?;
            // SAFETY: `cq` is not shared yet.
            unsafe { (*cq).cqe = c_int::try_from(cqe)? };
            // SAFETY: The core allocated `CqObject::SIZE` bytes and `cq` is not shared yet.
            unsafe { CqObject::<D::Cq>::init(cq, CqSlot { ctx, notify }) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live CQ.
    pub(crate) unsafe extern "C" fn resize_user_cq_callback(
        cq: *mut bindings::ib_cq,
        cqe: core::ffi::c_uint,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core filled in the live device, which outlives the call.
        let operation = unsafe { Operation::new((*cq).device, c"resize_user_cq") };
        operation.run(|| {
            // SAFETY: A live CQ of this driver on a live device; `udata` is of this very call.
            let (ctx, dev, user) = unsafe {
                (
                    Self::ctx(cq),
                    device::ctx::<D>((*cq).device),
                    UserCall::from_raw(udata).ok_or(EINVAL)?,
                )
            };
            let cqe = ctx.resize(dev, cqe, &user)?;
            // SAFETY: A plain field that the core reads after this call.
            unsafe { (*cq).cqe = c_int::try_from(cqe)? };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core with a live CQ and an array of `count` completions.
    pub(crate) unsafe extern "C" fn poll_cq_callback(
        cq: *mut bindings::ib_cq,
        count: c_int,
        wc: *mut bindings::ib_wc,
    ) -> c_int {
        let Ok(count) = usize::try_from(count) else {
            return EINVAL.to_errno();
        };
        if count == 0 || wc.is_null() {
            return 0;
        }
        // SAFETY: By the caller's guarantee.
        let (ctx, entries) = unsafe {
            (
                Self::ctx(cq),
                core::slice::from_raw_parts_mut(wc.cast(), count),
            )
        };
        let mut sink = WcSink {
            entries: entries.iter_mut(),
            filled: 0,
        };
        ctx.poll(&mut sink);
        sink.filled
    }

    /// # Safety
    ///
    /// Called by the core with a live CQ.
    pub(crate) unsafe extern "C" fn peek_cq_callback(
        cq: *mut bindings::ib_cq,
        count: c_int,
    ) -> c_int {
        // SAFETY: A live CQ of this driver.
        let ctx = unsafe { Self::ctx(cq) };
        ctx.peek(u32::try_from(count).unwrap_or(0)) as c_int
    }

    /// # Safety
    ///
    /// Called by the core with a live CQ.
    pub(crate) unsafe extern "C" fn req_notify_cq_callback(
        cq: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        // SAFETY: A live CQ of this driver.
        let ctx = unsafe { Self::ctx(cq) };
        // SAFETY: A live object has a live device, which outlives the call.
        let operation = unsafe { Operation::new((*cq).device, c"req_notify_cq") };
        let has = |flag: bindings::ib_cq_notify_flags| flags & flag != 0;
        // SMC sets both flags, which together stand for every completion.
        let what = if has(bindings::ib_cq_notify_flags_IB_CQ_NEXT_COMP) {
            Arm::Next
        } else if has(bindings::ib_cq_notify_flags_IB_CQ_SOLICITED) {
            Arm::Solicited
        } else {
            return operation.errno(Err(EINVAL));
        };
        let waiting = ctx.arm(what);
        let report = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
        c_int::from(report && waiting)
    }

    /// # Safety
    ///
    /// Called by the core with a live CQ.
    pub(crate) unsafe extern "C" fn modify_cq_callback(
        cq: *mut bindings::ib_cq,
        count: u16,
        period_us: u16,
    ) -> c_int {
        // SAFETY: A live CQ of this driver.
        unsafe { Self::ctx(cq) }.moderate(count, period_us);
        0
    }

    /// # Safety
    ///
    /// Called by the core with a live CQ that nobody else uses any more.
    pub(crate) unsafe extern "C" fn destroy_cq_callback(
        cq: *mut bindings::ib_cq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        {
            // SAFETY: A live CQ of this driver on a live device.
            let (slot, dev) =
                unsafe { (CqObject::<D::Cq>::slot(cq), device::ctx::<D>((*cq).device)) };
            slot.ctx.destroy(dev);
            slot.notify.stop();
        }
        // SAFETY: The last use; the core frees the object next.
        drop(unsafe { CqObject::<D::Cq>::take(cq) });
        0
    }
}
