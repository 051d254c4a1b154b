// SPDX-License-Identifier: GPL-2.0
//! The GID table of a device, for look-ups by received packets (IBTA 10.2.2.1, IBTA A17.4.3).
//!
//! A row of the RCU table is one entry. The rows of an address begin at its hash and are numbered
//! by the entry's index, so every entry has a row of its own, whatever the hashes are.

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

/// Returns the first row of an address.
fn first_row(gid: &Gid) -> u32 {
    hash(gid) & !(ENTRIES.wrapping_sub(1))
}

/// Returns the row of an entry.
fn row_of(entry: &GidEntry) -> u32 {
    first_row(&Gid(entry.gid)) | (u32::from(entry.index) & ENTRIES.wrapping_sub(1))
}

/// The unicast addresses of a device. The core serializes changes.
#[pin_data]
pub(crate) struct Gids {
    #[pin]
    rows: RcuTable<Gid>,
}

impl Gids {
    /// Creates an empty table.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            rows <- RcuTable::new(),
        })
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, entry: &GidEntry) -> Result {
        let gid = Arc::new(Gid(entry.gid), GFP_KERNEL)?;
        self.rows.insert_at(row_of(entry), gid)
    }

    /// Removes an entry; another one may have the same address.
    pub(crate) fn remove(&self, entry: &GidEntry) {
        self.rows.remove(row_of(entry));
    }

    /// Returns true if the device has this address. Takes no lock.
    pub(crate) fn contains(&self, gid: &Gid, rcu: &rcu::Guard) -> bool {
        let last = first_row(gid) | ENTRIES.wrapping_sub(1);
        let mut next = first_row(gid);
        while let Some((row, entry)) = self.rows.borrow_next(next, rcu) {
            if row > last {
                return false;
            }
            if **entry == *gid {
                return true;
            }
            if row == last {
                return false;
            }
            next = row.wrapping_add(1);
        }
        false
    }
}
