// SPDX-License-Identifier: GPL-2.0
//! The device that a received packet belongs to, when no queue pair determines it.
//!
//! Anybody on the network can send packets to queue pairs that do not exist. Each is counted for a
//! device, so this look-up takes no lock: no CPU and no namespace waits for another. The tables are
//! read under RCU (`RcuTable::borrow_next`), and the counters are atomic. `qemu/structure.py`
//! refuses a lock here, and in the look-ups that this uses.

use crate::device::DeviceCtx;
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
use rxe_kapi::{
    net::{
        netdev::{
            DevId,
            NetId, //
        },
        skb::RxSegment, //
    },
    sync::RcuTable, //
};
use rxe_proto::ids::Gid;

/// Indices per namespace, a power of two; namespaces whose hashes collide share indices.
const INDICES: u32 = 1 << 20;

/// Devices, or objects of which each device has one, by network namespace, in the order in which
/// they were added.
#[pin_data]
pub(crate) struct ByNamespace<T: Send + Sync + 'static> {
    #[pin]
    table: RcuTable<T>,
    /// How many have been added; 2^20 later the order begins anew.
    added: Atomic<u32>,
}

/// Returns the first index of a namespace.
fn first_index(net: NetId) -> u32 {
    // The highest bits of the product depend on all bits of the number (2^64 by the golden ratio).
    let [a, b, c, d, ..] = net.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    u32::from_be_bytes([a, b, c, d]) & !(INDICES.wrapping_sub(1))
}

/// Returns the last index of a namespace.
fn last_index(net: NetId) -> u32 {
    first_index(net) | INDICES.wrapping_sub(1)
}

impl<T: Send + Sync + 'static> ByNamespace<T> {
    /// Creates an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- RcuTable::new(),
            added: Atomic::new(0),
        })
    }

    /// Adds the object of a device of namespace `net`.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all indices of the namespace are used, `ENOMEM`.
    pub(crate) fn add(&self, net: NetId, item: Arc<T>) -> Result {
        let (first, last) = (first_index(net), last_index(net));
        let next = first | (self.added.fetch_add(1, Relaxed) % INDICES);
        match self.table.insert_lowest(next..=last, item.clone()) {
            Err(e) if e == ENOSPC => self.table.insert_lowest(first..=last, item),
            added => added,
        }
        .map(|_| ())
    }

    /// Removes `item`, whose device may have moved to another namespace. The reference is dropped
    /// in softirq after a grace period.
    pub(crate) fn remove(&self, item: &Arc<T>) {
        let mut found = None;
        self.table.for_each(|index, other| {
            found = core::ptr::eq(other, &**item).then_some(index);
            found.is_none()
        });
        if let Some(index) = found {
            self.table.remove(index);
        }
    }

    /// As [`remove`](Self::remove), and waits until the reference has been dropped.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn remove_sync(&self, item: &Arc<T>) {
        self.table
            .remove_if_sync(|other| core::ptr::eq(other, &**item));
    }

    /// Returns the first item of a namespace for which `matches` returns true. Items of namespaces
    /// that share its indices are passed to it as well.
    fn find<'g>(
        &'g self,
        net: NetId,
        rcu: &'g rcu::Guard,
        mut matches: impl FnMut(&'g Arc<T>) -> bool,
    ) -> Option<&'g Arc<T>> {
        let mut next = first_index(net);
        while let Some((index, item)) = self.table.borrow_next(next, rcu) {
            if index > last_index(net) {
                return None;
            }
            if matches(item) {
                return Some(item);
            }
            if index == last_index(net) {
                return None;
            }
            next = index.wrapping_add(1);
        }
        None
    }

    /// Returns the item whose device is on the network device `id` of a namespace.
    fn on<'g>(
        &'g self,
        net: NetId,
        id: DevId,
        rcu: &'g rcu::Guard,
        device: impl Fn(&T) -> &DeviceCtx,
    ) -> Option<&'g Arc<T>> {
        self.find(net, rcu, |item| device(item).netdev.id() == id)
    }

    /// Returns the item whose device is on the network device that received `segment`, or on that
    /// of its VRF, unless it is a loopback device, on which packets for all others of the host
    /// arrive, as they do on that of a VRF: if it does not own the destination address, one that
    /// does and may have received the packet comes first. Otherwise returns any item whose device
    /// may have received it. Of several the first that was added is returned, because the RDMA CM
    /// binds a listener on an address to the first device that has it (`cma_acquire_dev_by_src_ip`
    /// in `drivers/infiniband/core/cma.c`). Takes no lock.
    pub(crate) fn of<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
        device: impl Fn(&T) -> &DeviceCtx,
    ) -> Option<&'g Arc<T>> {
        let net = segment.net();
        let to = Gid(segment.destination());
        let owns = |item: &Arc<T>| device(item).gids.contains(&to, rcu);
        let mut any = None;
        if !segment.is_loopback() {
            let on = |id| self.on(net, id, rcu, &device);
            any = on(segment.netdev()).or_else(|| segment.vrf().and_then(|(id, _)| on(id)));
            let exact = any.filter(|&item| to.is_multicast() || owns(item));
            if exact.is_some() {
                return exact;
            }
        }
        let owner = self.find(net, rcu, |item| {
            if !device(item).is_ingress(segment, rcu) {
                return false;
            }
            any = any.or(Some(item));
            owns(item)
        });
        owner.or(any)
    }
}

impl ByNamespace<DeviceCtx> {
    /// Calls `each` with the devices that receive what `segment` has for a multicast group: that on
    /// the network device that received it, or, if none is, all for which it may have arrived, such
    /// as those on the ports of a bridge or bond. Takes no lock.
    pub(crate) fn each_of_group<'g>(
        &'g self,
        segment: &RxSegment<'_>,
        rcu: &'g rcu::Guard,
        mut each: impl FnMut(&'g Arc<DeviceCtx>),
    ) {
        let net = segment.net();
        let exact = match segment.is_loopback() {
            true => None,
            false => self.on(net, segment.netdev(), rcu, |dev| dev),
        };
        if let Some(dev) = exact {
            return each(dev);
        }
        self.find(net, rcu, |dev| {
            if dev.is_ingress(segment, rcu) {
                each(dev);
            }
            false
        });
    }
}

impl DeviceCtx {
    /// Returns true if a packet for this device may arrive the way `segment` did: on its network
    /// device, over loopback, or on a network device above its own, whose addresses are GIDs of
    /// this device as well. A copy of what arrives on its network device is not for it.
    #[inline]
    pub(crate) fn is_ingress(&self, segment: &RxSegment<'_>, rcu: &rcu::Guard) -> bool {
        segment.netdev() == self.netdev.id()
            || segment.is_loopback_of(&self.netdev)
            || (segment.is_above(&self.netdev, rcu) && !segment.is_copy_for(&self.netdev, rcu))
            || self.is_ingress_of_vrf(segment, rcu)
    }

    /// Returns true if this device is on that of the VRF in which `segment` was received, or below
    /// it and `segment` is for an address of that: those are reached by all ports of the VRF.
    fn is_ingress_of_vrf(&self, segment: &RxSegment<'_>, rcu: &rcu::Guard) -> bool {
        segment.vrf().is_some_and(|(id, ifindex)| {
            let to = Gid(segment.destination());
            id == self.netdev.id()
                || (segment.is_of_vrf_above(&self.netdev, rcu)
                    && self.gids.netdev_of(&to, ifindex, rcu) == Some(ifindex))
        })
    }
}
