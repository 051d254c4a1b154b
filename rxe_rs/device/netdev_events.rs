// SPDX-License-Identifier: GPL-2.0
//! Forwards events of a network device to the RDMA device on top of it.
//!
//! The RDMA core itself follows names, addresses (as GIDs) and the state of plain network devices.

use crate::device::{
    counters::Traffic,
    DeviceCtx, //
};
use kernel::prelude::*;
use rxe_kapi::{
    net::{
        netdev::NetDev,
        notifier::{
            NetdevEvent,
            NetdevEvents, //
        },
    },
    rdma::{
        device::with_netdev,
        event::PortEvent, //
    },
};

/// The receiver of the events of all network devices.
pub(crate) struct NetdevEventHandler {
    module: &'static ThisModule,
}

impl NetdevEventHandler {
    /// Creates a receiver that handles the devices of `module`.
    pub(crate) fn new(module: &'static ThisModule) -> Self {
        Self { module }
    }
}

impl NetdevEvents for NetdevEventHandler {
    fn event(&self, event: NetdevEvent, netdev: &NetDev) {
        with_netdev(self.module, netdev, |dev: &_| handle(dev, event, netdev));
    }
}

/// Handles an event of the network device of a link. RTNL is held.
fn handle(dev: &DeviceCtx, event: NetdevEvent, netdev: &NetDev) {
    use NetdevEvent::{
        Change,
        ChangeMtu,
        Down,
        Unregister,
        Up, //
    };
    // The loss of the carrier is a change.
    if matches!(event, Up | Down | Change) && dev.went_down() {
        dev.counters.traffic(Traffic::LinkDowned, 1);
    }
    match event {
        // Unregistering waits for all users, which must not happen under RTNL.
        Unregister => dev.handle.unregister(),
        // Consumers query the port again on this event.
        ChangeMtu => dev.handle.dispatch(PortEvent::ClientReregister),
        // The core leaves the state of bonds and teams to the driver.
        Up | Down | Change if netdev.is_aggregate() => dev.handle.dispatch_state(netdev),
        _ => {}
    }
}
