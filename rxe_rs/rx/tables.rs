// SPDX-License-Identifier: GPL-2.0
//! Queue pairs by number: where received packets find theirs.

use super::ingress::ByNamespace;
use crate::{
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
        RcuTable,
        SpinLockBh, //
    },
    time::now_ns, //
};
use rxe_proto::{
    drop::DropReason,
    engine::Service,
    ids::Qpn,
    table::quarantine::{
        Quarantine,
        WORDS, //
    },
};

/// Queue pairs by number, and the devices they are on.
///
/// Numbers are unique in the module, so that a packet finds its QP without knowing its device
/// first; that it came in by that device is checked afterwards.
#[pin_data]
pub(crate) struct Demux {
    /// The module destroys them when all of this is gone.
    pub(crate) queues: Arc<Queues>,
    #[pin]
    pub(crate) pager: Pager,
    #[pin]
    qps: RcuTable<QpCtx>,
    /// Numbers that packets may still be on the way to.
    #[pin]
    quarantine: SpinLockBh<Quarantine<VVec<u64>>>,
    /// QP1 of every device.
    #[pin]
    gsi: ByNamespace<QpCtx>,
    /// All devices, for drops that belong to no QP.
    #[pin]
    devices: ByNamespace<DeviceCtx>,
    /// Devices and QPs hold the demultiplexer: when it goes, they are gone. Last.
    _token: ExitToken,
}

/// QP numbers given to consumers: 0 and 1 are reserved, the last one means multicast.
const FIRST_QPN: u32 = 2;
const LAST_QPN: u32 = 0xff_fffe;

/// Random numbers tried. Half of all being held back would make one call in 2^64 fail.
const QPN_TRIES: u32 = 64;

/// A QP number that is taken and leads to no QP yet; free again when it is dropped.
pub(crate) struct ReservedQpn<'a> {
    demux: &'a Demux,
    qpn: u32,
}

impl ReservedQpn<'_> {
    /// The number.
    pub(crate) fn get(&self) -> u32 {
        self.qpn
    }

    /// The number belongs to a QP from now on, which gives it back when it is
    /// [withdrawn](Demux::withdraw).
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for ReservedQpn<'_> {
    fn drop(&mut self) {
        self.demux.qps.remove(self.qpn);
    }
}

impl Demux {
    /// An empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(queues: Arc<Queues>, token: ExitToken) -> Result<impl PinInit<Self, Error>> {
        let store = || VVec::from_elem(0, WORDS, GFP_KERNEL);
        let quarantine = Quarantine::new(store()?, store()?, now_ns());
        Ok(try_pin_init!(Self {
            queues,
            pager <- Pager::new(),
            qps <- RcuTable::new(),
            quarantine <- new_spinlock_bh!(quarantine, "Demux::quarantine"),
            _token: token,
            gsi <- ByNamespace::new(),
            devices <- ByNamespace::new(),
        }))
    }

    /// Takes a random QP number that is free and has been for a while.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if (next to) all numbers are in use or were so lately, `ENOMEM`.
    pub(crate) fn reserve_qpn(&self) -> Result<ReservedQpn<'_>> {
        for _ in 0..QPN_TRIES {
            let qpn = self.qps.reserve_random(FIRST_QPN..=LAST_QPN)?;
            let reserved = ReservedQpn { demux: self, qpn };
            if !self.quarantine.lock().holds(now_ns(), qpn) {
                return Ok(reserved);
            }
        }
        Err(ENOSPC)
    }

    /// Lets packets find `qp`.
    pub(crate) fn publish(&self, qp: &Arc<QpCtx>) -> Result {
        match qp.service {
            Service::Gsi => self.gsi.add(qp.dev.netdev.net(), qp.clone()),
            // Its number stays reserved: packets do not find it.
            Service::Raw => qp.dev.raw.add(&qp.dev, qp),
            _ => self.qps.publish(qp.qpn, qp.clone()),
        }
    }

    /// Packets no longer find `qp`.
    pub(crate) fn withdraw(&self, qp: &Arc<QpCtx>) {
        match qp.service {
            Service::Gsi => return self.gsi.remove(qp),
            Service::Raw => qp.dev.raw.remove(qp),
            _ => {}
        }
        self.quarantine.lock().hold(now_ns(), qp.qpn);
        self.qps.remove(qp.qpn);
    }

    /// Adds a device.
    pub(crate) fn add_device(&self, dev: &Arc<DeviceCtx>) -> Result {
        self.devices.add(dev.netdev.net(), dev.clone())
    }

    /// Removes a device. Process context.
    pub(crate) fn remove_device(&self, dev: &Arc<DeviceCtx>) {
        self.devices.remove_sync(dev);
    }

    /// The QP that packets to `qpn` are for.
    #[inline]
    pub(crate) fn find<'g>(&'g self, guard: &'g rcu::Guard, qpn: Qpn) -> Option<&'g Arc<QpCtx>> {
        self.qps.borrow(qpn.get(), guard)
    }

    /// Counts a drop for the device that `segment` came in by.
    pub(crate) fn count_drop(&self, segment: &RxSegment<'_>, rcu: &rcu::Guard, reason: DropReason) {
        if let Some(dev) = self.device_of(segment, rcu) {
            dev.counters.drop(reason);
        }
    }

    /// The device that `segment` came in by.
    pub(crate) fn device_of<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
    ) -> Option<&'g Arc<DeviceCtx>> {
        self.devices.of(segment, rcu, |dev| dev)
    }

    /// QP1 of the device that `segment` came in by.
    pub(crate) fn find_gsi<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
    ) -> Option<&'g Arc<QpCtx>> {
        self.gsi.of(segment, rcu, |qp| &qp.dev)
    }
}
