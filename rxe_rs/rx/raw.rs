// SPDX-License-Identifier: GPL-2.0
//! Raw packet queue pairs of a device: Ethernet frames of its network device.
//!
//! Every one of them that is ready to receive gets a copy of each frame that the network device
//! receives; nothing is taken from the network stack. Without such queue pairs nobody listens.

use crate::{
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
use rxe_proto::wire::packet::Payload;

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

/// The tap and who listens.
#[pin_data]
pub(crate) struct RawQps {
    listeners: Arc<Listeners>,
    #[pin]
    tap: Mutex<Option<(Tap<Listeners>, u32)>>,
}

impl RawQps {
    /// Without queue pairs.
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

    /// `qp` gets frames from now on. Process context.
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

    /// `qp` gets no more frames. Process context.
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
    /// Takes a frame if there is a receive request for it.
    fn receive_frame(self: &Arc<Self>, rcu: &rcu::Guard, frame: &[u8]) {
        let mut inner = self.inner.lock();
        if inner.dead {
            return;
        }
        let mrs = self.memory(rcu, &inner);
        self.take_frame(&mut inner, &mrs, &Payload::from_slice(frame));
        let wants_memory = inner.waits_for_memory();
        self.release(rcu, inner, Origin::Event);
        if wants_memory {
            self.as_arc_borrow().drive(Origin::Event);
        }
    }
}

impl QpCtx {
    /// Feeds one Ethernet frame.
    fn take_frame(&self, inner: &mut QpInner, mrs: &MrAccess<'_>, frame: &Payload<'_>) {
        let (engine, mut backend, _) = inner.split(self, mrs);
        engine.handle_frame(frame, &mut backend);
        inner.extent = mrs.hint.get();
        inner.paging.note(mrs);
    }
}
