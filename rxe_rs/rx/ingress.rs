// SPDX-License-Identifier: GPL-2.0
//! Which device a received packet belongs to, if its queue pair does not say so.
//!
//! Anybody on the network can send packets to queue pairs that are not there. Each is counted by a
//! device, so finding it takes no lock: no processor and no namespace waits for another.

use crate::device::DeviceCtx;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    net::{
        netdev::NetId,
        skb::RxSegment, //
    },
    sync::RcuTable, //
};
use rxe_proto::ids::Gid;

/// Rows of a namespace, a power of two; namespaces may share them.
const ROWS: u32 = 1 << 20;

/// Devices, or things of which each device has one, by network namespace.
#[pin_data]
pub(crate) struct ByNamespace<T: Send + Sync + 'static> {
    #[pin]
    rows: RcuTable<T>,
}

/// First row of a namespace.
fn first_row(net: NetId) -> u32 {
    // The highest bits of the product depend on all of the number (2^64 by the golden ratio).
    let [a, b, c, d, ..] = net.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    u32::from_be_bytes([a, b, c, d]) & !(ROWS.wrapping_sub(1))
}

/// Last row of a namespace.
fn last_row(net: NetId) -> u32 {
    first_row(net) | ROWS.wrapping_sub(1)
}

impl<T: Send + Sync + 'static> ByNamespace<T> {
    /// An empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            rows <- RcuTable::new(),
        })
    }

    /// Adds what belongs to a device of namespace `net`.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the namespace is full, `ENOMEM`.
    pub(crate) fn add(&self, net: NetId, item: Arc<T>) -> Result {
        let rows = first_row(net)..=last_row(net);
        self.rows.insert_random(rows, item).map(|_| ())
    }

    /// Removes `item`, whose device may be in another namespace meanwhile. The reference is dropped
    /// in softirq once nobody can still be using what was found here.
    pub(crate) fn remove(&self, item: &Arc<T>) {
        let mut found = None;
        self.rows.for_each(|row, other| {
            found = core::ptr::eq(other, &**item).then_some(row);
            found.is_none()
        });
        if let Some(row) = found {
            self.rows.remove(row);
        }
    }

    /// As [`remove`](Self::remove), and waits until the reference has been dropped. Process context,
    /// sleeps.
    pub(crate) fn remove_sync(&self, item: &Arc<T>) {
        self.rows
            .remove_if_sync(|other| core::ptr::eq(other, &**item));
    }

    /// The first item of a namespace for which `wanted` is true. Namespaces that share rows are
    /// seen, too.
    fn find<'g>(
        &'g self,
        net: NetId,
        rcu: &'g rcu::Guard,
        mut wanted: impl FnMut(&'g Arc<T>) -> bool,
    ) -> Option<&'g Arc<T>> {
        let mut next = first_row(net);
        while let Some((row, item)) = self.rows.borrow_next(next, rcu) {
            if row > last_row(net) {
                return None;
            }
            if wanted(item) {
                return Some(item);
            }
            if row == last_row(net) {
                return None;
            }
            next = row.wrapping_add(1);
        }
        None
    }

    /// The item whose device is on the very network device that `segment` came in by; else, since
    /// packets of a host to itself come by another one, the one whose device has its destination
    /// address; else one whose device it may have come in by. Takes no lock.
    pub(crate) fn of<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
        device: impl Fn(&T) -> &DeviceCtx,
    ) -> Option<&'g Arc<T>> {
        let net = segment.net();
        let exact = self.find(net, rcu, |item| {
            device(item).netdev.id() == segment.netdev()
        });
        if exact.is_some() {
            return exact;
        }
        let to = Gid(segment.destination());
        let mut any = None;
        let owner = self.find(net, rcu, |item| {
            let dev = device(item);
            if !dev.is_ingress(segment, rcu) {
                return false;
            }
            any = any.or(Some(item));
            dev.gids.holds(&to, rcu)
        });
        owner.or(any)
    }
}

impl DeviceCtx {
    /// True if a packet for this device may come in the way `segment` did: by its network device,
    /// over loopback, or by a network device above its own, whose addresses are GIDs of this
    /// device too.
    #[inline]
    pub(crate) fn is_ingress(&self, segment: &RxSegment<'_>, rcu: &rcu::Guard) -> bool {
        segment.netdev() == self.netdev.id()
            || segment.is_loopback_of(&self.netdev)
            || segment.is_above(&self.netdev, rcu)
    }
}
