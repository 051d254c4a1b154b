// SPDX-License-Identifier: GPL-2.0
//! A work item in an `Arc` that holds no reference to it.
//!
//! `kernel::workqueue::Work` cannot be cancelled. Calls of a consumer's handler must have ended
//! before the object is freed that they are about, so this type is stopped explicitly:
//! [`Deferred::stop`] waits for a running call, and later kicks do nothing.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::bindings;
use core::{
    ffi::c_int,
    marker::PhantomPinned, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        LockClassKey, //
    },
    types::Opaque, //
};

/// What a [`Deferred`] does when it runs.
pub(crate) trait Target: Send + Sync {
    /// Called in the context of the queue passed to [`Deferred::kick`]; calls do not overlap.
    /// Returns false to be called again, after other work items.
    fn run(&self) -> bool;
}

/// Which queue a [`Deferred`] runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queue {
    /// Softirq context of the kicking CPU.
    Bh,
    /// Process context.
    Process,
}

/// Work that is deferred until the caller holds no lock.
///
/// # Invariants
///
/// The work item is queued only while the containing allocation exists: the owner of the value
/// calls [`Deferred::stop`] before it drops the last reference.
#[pin_data(PinnedDrop)]
pub(crate) struct Deferred<T: Target> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    /// [`stop`](Self::stop) has been called.
    stopped: Atomic<bool>,
    target: T,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The work item may be queued and stopped from any thread; `T` is `Send`.
unsafe impl<T: Target> Send for Deferred<T> {}
// SAFETY: As above; the queue functions synchronize among themselves and `T` is `Sync`.
unsafe impl<T: Target> Sync for Deferred<T> {}

impl<T: Target> Deferred<T> {
    /// Creates one; `name` and `key` are for lockdep.
    pub(crate) fn new(
        target: T,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is pinned and valid for writes; name and key are static.
            work <- Opaque::ffi_init(|slot| unsafe {
                bindings::init_work_with_key(
                    slot,
                    Some(Self::work_callback),
                    false,
                    name.as_char_ptr(),
                    key.as_ptr(),
                )
            }),
            stopped: Atomic::new(false),
            target,
            _pin: PhantomPinned,
        })
    }

    /// What runs.
    pub(crate) fn target(&self) -> &T {
        &self.target
    }

    /// Queues the callback unless it is queued already or has been stopped.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn kick(&self, queue: Queue) {
        let cpu = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;
        // SAFETY: The system queues are static.
        let wq = unsafe {
            match queue {
                Queue::Bh => bindings::system_bh_wq,
                Queue::Process => bindings::system_dfl_wq,
            }
        };
        // SAFETY: The work item is initialized and, by the type invariant, stopped before it is
        // freed. Queueing a disabled work item does nothing.
        unsafe { bindings::queue_work_on(cpu, wq, self.work.get()) };
    }

    /// As [`kick`](Self::kick), for softirq context of `cpu`; false, and nothing done, if that is
    /// the calling CPU or offline.
    ///
    /// # Context
    ///
    /// Any context.
    pub(crate) fn kick_elsewhere(&self, cpu: u32) -> bool {
        // SAFETY: As in `kick`.
        unsafe { bindings::rxe_rs_queue_bh_elsewhere(cpu, self.work.get()) }
    }

    /// Waits for a running callback; afterwards it never runs again.
    ///
    /// # Context
    ///
    /// Process context.
    pub(crate) fn stop(&self) {
        // SAFETY: The work item is initialized.
        unsafe { bindings::disable_work_sync(self.work.get()) };
        self.stopped.store(true, Relaxed);
    }

    /// Entry point of the work queue.
    ///
    /// # Safety
    ///
    /// Called by the work queue with the `work` member of a live `Self`.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        let work = Opaque::cast_from(work);
        // SAFETY: By the caller's guarantee `work` is the member of a `Self`, which by the type
        // invariant lives until `stop`, and `stop` waits for this function.
        let this = unsafe { &*kernel::container_of!(work, Self, work) };
        if !this.target.run() {
            this.kick(Queue::Bh);
        }
    }
}

#[pinned_drop]
impl<T: Target> PinnedDrop for Deferred<T> {
    fn drop(self: Pin<&mut Self>) {
        // An object whose creation failed was never kicked and need not be stopped; a forgotten
        // stop would free a queued work item.
        if !self.stopped.load(Relaxed) {
            // SAFETY: The work item is initialized, and queries do not change it.
            let busy = unsafe { bindings::work_busy(self.work.get()) };
            if busy != 0 {
                pr_err!("deferred callback dropped while queued\n");
            }
        }
    }
}
