// SPDX-License-Identifier: GPL-2.0
//! Counters that queue pairs are bound to (`rdma statistic qp`).
//!
//! The core adds the values of such counters to those of the port, so [`Device::counters`] must not
//! contain events that are counted in one of them.
//!
//! C header: [`include/rdma/rdma_counter.h`](srctree/include/rdma/rdma_counter.h)

use super::{
    device::{
        self,
        Device,
        Ops, //
    },
    object::CoreObject,
    operation::Operation,
    qp::{
        QpObject,
        QueuePair, //
    },
};
use crate::bindings;
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// The counters of the queue pairs that are bound to it, the same as those of the port.
pub trait QpCounter: Sized + Send + Sync + 'static {
    /// The device it belongs to.
    type Device: Device<Counter = Self>;

    /// Creates a set of counters, all of which are zero.
    ///
    /// # Context
    ///
    /// Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn create(dev: &Arc<Self::Device>) -> Result<Arc<Self>>;

    /// Reads the values, in the order of [`Device::COUNTERS`].
    ///
    /// # Context
    ///
    /// Process context.
    fn read(&self, to: &mut [u64]);
}

/// The object that the core allocates. The core may free one that was never bound without a call of
/// `counter_dealloc`, so the slot is empty until the first QP is bound.
pub(crate) type CounterObject<T> = CoreObject<bindings::rdma_counter, Option<Arc<T>>>;

/// The identifier of the last counter; the core requires that they are unique.
static LAST_ID: Atomic<u32> = Atomic::new(0);

/// Callbacks of [`QpCounter`].
pub(crate) struct CounterOps<D: Device>(core::marker::PhantomData<D>);

impl<D: Device> CounterOps<D> {
    /// # Safety
    ///
    /// Called by the core with a new object, whose slot is not initialized.
    pub(crate) unsafe extern "C" fn counter_init_callback(counter: *mut bindings::rdma_counter) {
        // SAFETY: The core allocated `CounterObject::SIZE` bytes and nobody else accesses them yet.
        unsafe { CounterObject::<D::Counter>::init(counter, None) };
    }

    /// # Safety
    ///
    /// Called by the core with an initialized counter.
    pub(crate) unsafe extern "C" fn counter_alloc_stats_callback(
        _counter: *mut bindings::rdma_counter,
    ) -> *mut bindings::rdma_hw_stats {
        Ops::<D>::new_stats()
    }

    /// # Safety
    ///
    /// Called by the core with an initialized counter, whose lock it holds, and a live QP of the
    /// same device that is not bound.
    pub(crate) unsafe extern "C" fn counter_bind_qp_callback(
        counter: *mut bindings::rdma_counter,
        qp: *mut bindings::ib_qp,
        _port: u32,
    ) -> c_int {
        let bind = || {
            // SAFETY: The slot is initialized.
            let known = unsafe { CounterObject::<D::Counter>::slot(counter) }.clone();
            let ctx = match known {
                Some(ctx) => ctx,
                None => {
                    // SAFETY: The core filled in the live device.
                    let dev = unsafe { device::ctx::<D>((*counter).device) };
                    let made = D::Counter::create(dev)?;
                    // SAFETY: The lock of the counter keeps others from the slot and the number.
                    unsafe {
                        drop(CounterObject::<D::Counter>::take(counter));
                        CounterObject::<D::Counter>::init(counter, Some(made.clone()));
                        while (*counter).id == 0 {
                            (*counter).id = LAST_ID.fetch_add(1, Relaxed).wrapping_add(1);
                        }
                    }
                    made
                }
            };
            // SAFETY: A live QP of this driver; the core serializes changes of its counter.
            unsafe {
                QpObject::<D::Qp>::slot(qp).ctx().bind_counter(Some(ctx));
                (*qp).counter = counter;
            }
            Ok(())
        };
        // SAFETY: A live QP has a live device.
        unsafe { Operation::new((*qp).device, c"counter_bind_qp") }.errno(bind())
    }

    /// # Safety
    ///
    /// Called by the core with a live QP that is bound to a counter, whose lock it holds.
    pub(crate) unsafe extern "C" fn counter_unbind_qp_callback(
        qp: *mut bindings::ib_qp,
        _port: u32,
    ) -> c_int {
        // SAFETY: A live QP of this driver; the core serializes changes of its counter.
        unsafe {
            QpObject::<D::Qp>::slot(qp).ctx().bind_counter(None);
            (*qp).counter = core::ptr::null_mut();
        }
        0
    }

    /// # Safety
    ///
    /// Called by the core with a counter that nothing is bound to any more and that it frees next.
    pub(crate) unsafe extern "C" fn counter_dealloc_callback(
        counter: *mut bindings::rdma_counter,
    ) -> c_int {
        // SAFETY: The last use of the slot; it stays initialized.
        unsafe {
            drop(CounterObject::<D::Counter>::take(counter));
            CounterObject::<D::Counter>::init(counter, None);
        }
        0
    }

    /// # Safety
    ///
    /// Called by the core with an initialized counter, whose lock it holds, and its statistics.
    pub(crate) unsafe extern "C" fn counter_update_stats_callback(
        counter: *mut bindings::rdma_counter,
    ) -> c_int {
        // SAFETY: The slot is initialized; the values were allocated for this many counters and
        // are guarded by the lock of the counter.
        let (ctx, values) = unsafe {
            let values = bindings::rxe_rs_hw_stats_values((*counter).stats);
            (
                CounterObject::<D::Counter>::slot(counter),
                core::slice::from_raw_parts_mut(values, D::COUNTERS.len()),
            )
        };
        if let Some(ctx) = ctx {
            ctx.read(values);
        }
        0
    }
}
