// SPDX-License-Identifier: GPL-2.0
//! The GID table of a device, for look-ups by received packets.
//!
//! The indices of an address in the RCU table begin at its hash, and the entry's index in the GID
//! table is added: entries never collide, whatever the hashes are.

use crate::limits::GID_TABLE_LEN;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    rdma::device::GidEntry,
    sync::RcuTable, //
};
use rxe_proto::ids::Gid;

/// Most entries of a GID table, a power of two.
const ENTRIES: u32 = 1 << 12;

/// FNV-1a hash of an address, whose lowest bits depend on all of it.
pub(crate) fn hash(gid: &Gid) -> u32 {
    let hash = gid.0.iter().fold(0x811c_9dc5u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    hash ^ hash.wrapping_shl(13)
}

/// Returns the first index of an address.
fn first_index(gid: &Gid) -> u32 {
    hash(gid) & !(ENTRIES.wrapping_sub(1))
}

/// Returns the index of an entry.
fn index_of(entry: &GidEntry) -> u32 {
    first_index(&Gid(entry.gid)) | (u32::from(entry.index) & ENTRIES.wrapping_sub(1))
}

/// The unicast addresses of a device (IBTA 10.2.2.1, IBTA A17.4.3). The core serializes changes.
#[pin_data]
pub(crate) struct Gids {
    #[pin]
    table: RcuTable<Address>,
}

/// An address of a network device.
struct Address {
    gid: Gid,
    /// Index of the network device.
    ifindex: u32,
}

impl Gids {
    /// Creates an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- RcuTable::new(),
        })
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, entry: &GidEntry) -> Result {
        let address = Address {
            gid: Gid(entry.gid),
            ifindex: entry.ifindex,
        };
        self.table
            .insert_at(index_of(entry), Arc::new(address, GFP_KERNEL)?)
    }

    /// Removes an entry; another one may have the same address.
    pub(crate) fn remove(&self, entry: &GidEntry) {
        self.table.remove(index_of(entry));
    }

    /// Returns the index `port` of the network device of the port, and those of all others with
    /// addresses of the device, each once.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn netdevs(&self, port: u32) -> Result<KVec<u32>> {
        // As many as the table has entries, and the port's.
        let most = usize::try_from(GID_TABLE_LEN)?.wrapping_add(1);
        let mut netdevs = KVec::with_capacity(most, GFP_KERNEL)?;
        let _ = netdevs.push_within_capacity(port);
        let mut next = 0;
        while let Some((index, address)) = self.table.next(next) {
            if !netdevs.contains(&address.ifindex) {
                let _ = netdevs.push_within_capacity(address.ifindex);
            }
            next = match index.checked_add(1) {
                Some(next) => next,
                None => break,
            };
        }
        Ok(netdevs)
    }

    /// Returns true if the device has this address. Takes no lock.
    pub(crate) fn contains(&self, gid: &Gid, rcu: &rcu::Guard) -> bool {
        self.netdev_of(gid, 0, rcu).is_some()
    }

    /// Returns the index of the network device with this address: `near` if that is one of several.
    /// Takes no lock.
    pub(crate) fn netdev_of(&self, gid: &Gid, near: u32, rcu: &rcu::Guard) -> Option<u32> {
        let last = first_index(gid) | ENTRIES.wrapping_sub(1);
        let mut next = first_index(gid);
        let mut found = None;
        while let Some((index, address)) = self.table.borrow_next(next, rcu) {
            if index > last {
                break;
            }
            if address.gid == *gid {
                found = found
                    .filter(|ifindex| *ifindex == near)
                    .or(Some(address.ifindex));
            }
            if index == last {
                break;
            }
            next = index.wrapping_add(1);
        }
        found
    }
}
