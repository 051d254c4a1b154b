// SPDX-License-Identifier: GPL-2.0
//! Tables that lead received packets to queue pairs and devices.

use super::ingress::ByNamespace;
use crate::{
    clock,
    device::DeviceCtx,
    pager::{
        Pager,
        Queues, //
    },
    qp::QpCtx,
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    net::skb::RxSegment,
    new_spinlock_bh,
    sync::{
        ExitToken,
        NumberTable,
        Reservation,
        SpinLockBh, //
    }, //
};
use rxe_proto::{
    drop::DropReason,
    engine::Service,
    ids::Qpn,
    table::quarantine::{
        draw_free,
        Quarantine,
        WORDS, //
    },
};

/// Queue pairs by number, and the devices they are on.
///
/// Numbers are unique in the module, so that a packet finds its QP before its device is known; that
/// it arrived on that device is checked afterwards.
#[pin_data]
pub(crate) struct Demux {
    /// The work queues, which the module destroys after this table has been dropped.
    pub(crate) queues: Arc<Queues>,
    #[pin]
    pub(crate) pager: Pager,
    qps: NumberTable<QpCtx>,
    /// Numbers that packets in the network may still be addressed to.
    #[pin]
    quarantine: SpinLockBh<Quarantine<VVec<u64>>>,
    /// QP1 of every device.
    #[pin]
    gsi: ByNamespace<QpCtx>,
    /// All devices, for drops that belong to no QP.
    #[pin]
    devices: ByNamespace<DeviceCtx>,
    /// Must be last: devices and QPs hold references to this table, so none of them exists when it
    /// is dropped.
    _token: ExitToken,
}

/// QP numbers given to consumers: 0 and 1 are reserved, the last one denotes multicast
/// (IBTA A17.6).
const FIRST_QPN: u32 = 2;
const LAST_QPN: u32 = 0xff_fffe;

/// A reserved QP number that leads to no QP yet; dropping it frees the number.
pub(crate) type ReservedQpn<'a> = Reservation<'a, QpCtx>;

impl Demux {
    /// An empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(queues: Arc<Queues>, token: ExitToken) -> Result<impl PinInit<Self, Error>> {
        let store = || VVec::from_elem(0, WORDS, GFP_KERNEL);
        let quarantine = Quarantine::new(store()?, store()?, clock::now());
        Ok(try_pin_init!(Self {
            queues,
            pager <- Pager::new(),
            qps: NumberTable::new()?,
            quarantine <- new_spinlock_bh!(quarantine, "Demux::quarantine"),
            _token: token,
            gsi <- ByNamespace::new(),
            devices <- ByNamespace::new(),
        }))
    }

    /// Reserves a random QP number that is free and no longer in quarantine, unless nearly all are.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all numbers are in use, `ENOMEM`.
    pub(crate) fn reserve_qpn(&self) -> Result<ReservedQpn<'_>> {
        draw_free(
            || self.qps.reserve(FIRST_QPN..=LAST_QPN),
            |drawn| {
                self.quarantine
                    .lock()
                    .contains(clock::now(), drawn.number())
            },
        )
    }

    /// Enters `qp` into the tables, so that packets find it. `reserved` is its number, unless that
    /// is 1; `qp` returns it when it is [withdrawn](Self::withdraw).
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the namespace has too many devices, `ENOMEM`.
    pub(crate) fn publish(&self, qp: &Arc<QpCtx>, reserved: Option<ReservedQpn<'_>>) -> Result {
        match (reserved, qp.service) {
            (None, _) => self.gsi.add(qp.dev.net, qp.clone())?,
            // Packets do not find it by its number.
            (Some(reserved), Service::Raw) => {
                qp.dev.raw.add(&qp.dev, qp)?;
                reserved.keep();
            }
            (Some(reserved), _) => reserved.publish(qp.clone()),
        }
        Ok(())
    }

    /// Removes `qp` from the tables; packets no longer find it.
    pub(crate) fn withdraw(&self, qp: &Arc<QpCtx>) {
        match qp.service {
            Service::Gsi => return self.gsi.remove(qp),
            Service::Raw => qp.dev.raw.remove(qp),
            _ => {}
        }
        self.quarantine.lock().add(clock::now(), qp.qpn);
        self.qps.remove(qp.qpn);
    }

    /// Adds a device.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the namespace has too many devices, `ENOMEM`.
    pub(crate) fn add_device(&self, dev: &Arc<DeviceCtx>) -> Result {
        self.devices.add(dev.net, dev.clone())
    }

    /// Removes a device.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn remove_device(&self, dev: &Arc<DeviceCtx>) {
        self.devices.remove_sync(dev);
    }

    /// Returns the QP with number `qpn`.
    #[inline]
    pub(crate) fn find<'g>(&'g self, guard: &'g rcu::Guard, qpn: Qpn) -> Option<&'g Arc<QpCtx>> {
        self.qps.borrow(qpn.get(), guard)
    }

    /// Counts a drop for the device that received `segment`.
    pub(crate) fn count_drop(&self, segment: &RxSegment<'_>, rcu: &rcu::Guard, reason: DropReason) {
        if let Some(dev) = self.device_of(segment, rcu) {
            dev.counters.drop(reason);
        }
    }

    /// Returns the device that received `segment`.
    pub(crate) fn device_of<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
    ) -> Option<&'g Arc<DeviceCtx>> {
        self.devices.of(segment, rcu, |dev| dev)
    }

    /// Calls `each` with the devices that receive what `segment` has for a multicast group.
    pub(crate) fn each_of_group<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
        each: impl FnMut(&'g Arc<DeviceCtx>),
    ) {
        self.devices.each_of_group(segment, rcu, each);
    }

    /// Returns QP1 of the device that received `segment`.
    pub(crate) fn find_gsi<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
    ) -> Option<&'g Arc<QpCtx>> {
        self.gsi.of(segment, rcu, |qp| &qp.dev)
    }
}
