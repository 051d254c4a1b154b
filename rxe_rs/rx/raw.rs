// SPDX-License-Identifier: GPL-2.0
//! Raw packet queue pairs of a device, which receive Ethernet frames of its network device.
//!
//! Every one that is ready to receive gets a copy of each frame that the network device receives;
//! the network stack still receives all of them. The tap is open only while such queue pairs exist.

use crate::{
    clock,
    device::DeviceCtx,
    mr::MrAccess,
    qp::{
        QpCtx,
        QpInner, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        rcu,
        Arc,
        Mutex, //
    },
};
use rxe_kapi::{
    net::tap::{
        Listen,
        Tap, //
    },
    rdma::cq::Origin,
    sync::RcuTable, //
};
use rxe_proto::{
    engine::ToSend,
    wire::packet::Payload, //
};

/// Raw packet queue pairs by number.
#[pin_data]
pub(crate) struct Listeners {
    #[pin]
    qps: RcuTable<QpCtx>,
}

impl Listen for Listeners {
    fn frame(&self, frame: &[u8]) {
        let rcu = rcu::read_lock();
        let mut next = 0;
        while let Some((number, qp)) = self.qps.borrow_next(next, &rcu) {
            qp.receive_frame(&rcu, frame);
            next = number.wrapping_add(1);
        }
    }
}

/// The tap and the queue pairs that it delivers to.
#[pin_data]
pub(crate) struct RawQps {
    listeners: Arc<Listeners>,
    #[pin]
    tap: Mutex<Option<(Tap<Listeners>, u32)>>,
}

impl RawQps {
    /// Creates a set without queue pairs.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let listeners = Arc::pin_init(
            pin_init!(Listeners {
                qps <- RcuTable::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(pin_init!(Self {
            listeners,
            tap <- new_mutex!(None, "RawQps::tap"),
        }))
    }

    /// Starts delivery of frames to `qp`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, dev: &DeviceCtx, qp: &Arc<QpCtx>) -> Result {
        let mut tap = self.tap.lock();
        self.listeners.qps.insert_at(qp.qpn, qp.clone())?;
        match &mut *tap {
            Some((_, users)) => *users = users.wrapping_add(1),
            None => match Tap::open(&dev.netdev, &self.listeners) {
                Ok(opened) => *tap = Some((opened, 1)),
                Err(e) => {
                    self.listeners.qps.remove(qp.qpn);
                    return Err(e);
                }
            },
        }
        Ok(())
    }

    /// Stops delivery of frames to `qp`.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn remove(&self, qp: &Arc<QpCtx>) {
        let mut tap = self.tap.lock();
        if !self.listeners.qps.remove(qp.qpn) {
            return;
        }
        let mut left = 0;
        if let Some((_, users)) = &mut *tap {
            *users = users.wrapping_sub(1);
            left = *users;
        }
        if left == 0 {
            drop(tap.take());
        }
    }
}

impl QpCtx {
    /// Receives a frame if a receive WQE is posted for it.
    fn receive_frame(self: &Arc<Self>, rcu: &rcu::Guard, frame: &[u8]) {
        let mut inner = self.inner.lock();
        if inner.destroyed {
            return;
        }
        if inner.engine.state().receives().is_err() {
            return;
        }
        let mrs = self.mr_access(rcu, &inner);
        self.take_frame(&mut inner, &mrs, &Payload::from_slice(frame));
        let to_send = self.to_send(&mut inner, &mrs);
        drop(mrs);
        self.unlock_and_notify(rcu, inner, Origin::Event);
        // A page fault or an event, too.
        if to_send != ToSend::Nothing {
            self.as_arc_borrow().transmit(clock::now(), Origin::Event);
        }
    }
}

impl QpCtx {
    /// Passes one Ethernet frame to the engine.
    fn take_frame(&self, inner: &mut QpInner, mrs: &MrAccess<'_>, frame: &Payload<'_>) {
        let (engine, mut backend, _) = inner.split(self, mrs);
        engine.handle_frame(frame, &mut backend);
        inner.extent = mrs.hint.get();
        inner.paging.note_fault(mrs);
    }
}
