// SPDX-License-Identifier: GPL-2.0
//! Work queues of the module.
//!
//! The kernel crate provides the system's work queues only. Work whose duration user space
//! determines must not delay other drivers' work there, and only the destruction of a work queue
//! ensures that no work item runs code of the module when it is unloaded.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::bindings;
use core::{
    ffi::c_int,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    workqueue::{
        Queue,
        RawWorkItem, //
    },
};

/// The context in which the work items of a queue run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// In softirq context of the CPU that enqueued them.
    Softirq,
    /// In process context on the CPU that enqueued them, or on the one specified. They may sleep,
    /// but do not wait for user space.
    Local,
    /// In process context on any CPU. They may sleep for an unlimited time.
    Unbound {
        /// Maximum number of work items that run at the same time.
        max_active: u16,
    },
}

/// A work queue.
///
/// Dropping it waits until all work items have returned, so the last owner drops it in process
/// context, outside of the queue's own work items; no work item may be enqueued meanwhile.
///
/// # Invariants
///
/// The pointer is a live work queue that only `drop` destroys.
pub struct WorkQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: The queue functions may be called from any thread.
unsafe impl Send for WorkQueue {}
// SAFETY: As above; they synchronize among themselves.
unsafe impl Sync for WorkQueue {}

impl WorkQueue {
    /// Creates a queue; the kernel shows `name`.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(name: &'static CStr, kind: Kind) -> Result<Self> {
        let (kind, max_active) = match kind {
            Kind::Softirq => (bindings::RXE_RS_WORK_SOFTIRQ, 0),
            Kind::Local => (bindings::RXE_RS_WORK_LOCAL, 0),
            Kind::Unbound { max_active } => (bindings::RXE_RS_WORK_UNBOUND, max_active),
        };
        // SAFETY: The name is static; the function copies it.
        let raw = unsafe {
            bindings::rxe_rs_workqueue_new(name.as_char_ptr(), kind, c_int::from(max_active))
        };
        // INVARIANT: Just made.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Enqueues a work item on this CPU, or on any if the queue is unbound.
    ///
    /// # Context
    ///
    /// Any context; fails as [`Queue::enqueue`] does if the work item is in a queue already.
    #[inline]
    pub fn enqueue<W, const ID: u64>(&self, work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        // SAFETY: Live by the type invariant, and the reference does not outlive `self`.
        let queue: &Queue = unsafe { Queue::from_raw(self.0.as_ptr()) };
        queue.enqueue(work)
    }

    /// As [`enqueue`](Self::enqueue) for `cpu`, or for this one if that is offline.
    ///
    /// # Context
    ///
    /// As of [`enqueue`](Self::enqueue).
    pub fn enqueue_on<W, const ID: u64>(&self, cpu: u32, work: W) -> W::EnqueueOutput
    where
        W: RawWorkItem<ID> + Send + 'static,
    {
        let queue = self.0.as_ptr();
        // SAFETY: The closure returns false only if the work item is in a queue already, and the
        // kernel looks at it later only if it returned true. The item is `Send` and `'static`,
        // and the queue is live by the type invariant.
        unsafe { work.__enqueue(move |work| bindings::rxe_rs_queue_on(cpu, queue, work)) }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        // SAFETY: Live by the type invariant, and this is the last use.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// The CPU that this runs on; another one soon, unless preemption is off.
///
/// # Context
///
/// Any context.
#[inline]
pub fn this_cpu() -> u32 {
    // SAFETY: Reads a number.
    unsafe { bindings::rxe_rs_this_cpu() }
}

/// Prevents the module from being unloaded, for work that `rmmod` should not wait for: it fails
/// with `EBUSY`.
///
/// The module may be unloaded as soon as this is dropped, so the exit function of the module must
/// wait for code that runs after that, as for the work items of a [`WorkQueue`].
///
/// # Invariants
///
/// Holds a reference on the module.
pub struct ModuleRef(());

impl ModuleRef {
    /// `None` if the module is being unloaded.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn get() -> Option<Self> {
        // SAFETY: No requirement.
        // INVARIANT: The reference was just taken.
        unsafe { bindings::rxe_rs_module_get() }.then_some(Self(()))
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: Drops the reference of the type invariant.
        unsafe { bindings::rxe_rs_module_put() };
    }
}
