// SPDX-License-Identifier: GPL-2.0
//! The port of a device: its state and its P_Key table.

use crate::{
    device::{
        counters::Traffic,
        DeviceCtx, //
    },
    limits::{
        GID_TABLE_LEN,
        MAX_MESSAGE, //
    }, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
};
use rxe_kapi::{
    net::flow::ROCE_UDP_PORT,
    rdma::{
        attr::PortAttr,
        event::PortEvent, //
    },
};
use rxe_proto::{
    check::pkey,
    drop::violations,
    ids::{
        Mtu,
        PKey, //
    },
    table::pkeys,
    wire::pma::PortCounters, //
};

/// The P_Key table, read for every packet: each entry is updated atomically.
pub(crate) struct PKeyTable {
    entries: [Atomic<u32>; pkeys::LEN],
}

impl PKeyTable {
    /// Creates a table with its initial entries.
    pub(crate) fn new() -> Self {
        Self {
            entries: core::array::from_fn(|index| Atomic::new(u32::from(pkeys::initial(index).0))),
        }
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = (u16, PKey)> + Clone + '_ {
        (0..).zip(self.entries.iter().map(Self::load))
    }

    /// Returns entry `index`.
    #[inline]
    pub(crate) fn get(&self, index: u16) -> Option<PKey> {
        self.entries.get(usize::from(index)).map(Self::load)
    }

    #[inline]
    fn load(entry: &Atomic<u32>) -> PKey {
        u16::try_from(entry.load(Relaxed)).map_or(PKey::INVALID, PKey)
    }

    /// Replaces entry `index`, or the first one that is not in use; returns true if that changed
    /// it. The caller serializes writers.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the table, and for keys of partition 0 but [`PKey::INVALID`], which empties
    /// the entry `index`; `EEXIST` if another entry holds the same key; `EBUSY` if the last valid
    /// entry would be emptied; `ENOSPC` if no entry is free. Each comes with a reason for the
    /// kernel log.
    fn set(&self, index: Option<u16>, key: PKey) -> Result<bool, (Error, &'static CStr)> {
        let no_entry = (EINVAL, c"no such entry of the P_Key table");
        let index = match index {
            Some(index) => pkeys::check_set(self.iter(), index, key).map(|()| index),
            None => pkeys::entry_for(self.iter(), key),
        };
        let index = index.map_err(|error| match error {
            pkeys::PKeyTableError::NoEntry => no_entry,
            pkeys::PKeyTableError::Full => (ENOSPC, c"every entry of the P_Key table is in use"),
            pkeys::PKeyTableError::NoPartition => {
                (EINVAL, c"a P_Key of partition 0, which does not exist")
            }
            pkeys::PKeyTableError::Duplicate => (EEXIST, c"a P_Key that another entry holds"),
            pkeys::PKeyTableError::Last => (EBUSY, c"the last valid P_Key cannot be removed"),
        })?;
        let entry = self.entries.get(usize::from(index)).ok_or(no_entry)?;
        let old = entry.xchg(u32::from(key.0), Full);
        Ok(old != u32::from(key.0))
    }

    /// Returns the first entry that matches `key`.
    #[inline]
    pub(crate) fn find_matching(&self, key: PKey) -> Option<u16> {
        pkey::find_matching(self.iter(), key)
    }
}

impl DeviceCtx {
    /// Returns the P_Key at `index`, or the invalid one beyond the table.
    #[inline]
    pub(crate) fn pkey(&self, index: u16) -> PKey {
        self.pkeys.get(index).unwrap_or(PKey::INVALID)
    }

    /// Returns the index of the first P_Key that admits packets with `key`.
    #[inline]
    pub(crate) fn find_pkey(&self, key: PKey) -> Option<u16> {
        self.pkeys.find_matching(key)
    }

    /// Returns true if `index` is in the table and its entry is in use.
    pub(crate) fn pkey_is_valid(&self, index: u16) -> bool {
        self.pkeys
            .get(index)
            .is_some_and(|key| key != PKey::INVALID)
    }

    /// Changes entry `index` of the P_Key table, or the first one that is not in use. Packets are
    /// checked against the new table at once, and a `PKEY_CHANGE` event is dispatched.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// As [`PKeyTable::set`].
    pub(crate) fn edit_pkeys(&self, index: Option<u16>, key: u16) -> Result {
        let changed = {
            let _guard = self.pkey_lock.lock();
            self.pkeys.set(index, PKey(key))
        };
        let changed = changed.map_err(|(error, reason)| self.handle.refuse_with(error, reason))?;
        if changed {
            self.handle.dispatch(PortEvent::PkeyChange);
        }
        Ok(())
    }

    /// Returns the largest path MTU that the network device carries.
    pub(crate) fn link_mtu(&self) -> Mtu {
        Mtu::largest_fitting(self.netdev.mtu()).unwrap_or(Mtu::Mtu256)
    }

    /// Returns the largest path MTU to any peer: what the network device carries, less the overhead
    /// of the IPsec policies in force now.
    ///
    /// # Context
    ///
    /// Process context.
    pub(crate) fn active_mtu(&self) -> Mtu {
        let overhead =
            self.netdev
                .ipsec_overhead(ROCE_UDP_PORT, Mtu::IPSEC_RESERVE, Mtu::TUNNEL_RESERVE);
        let left = self.netdev.mtu().saturating_sub(overhead);
        Mtu::largest_fitting(left).unwrap_or(Mtu::Mtu256)
    }

    /// Returns true if the port has gone down since the last call.
    pub(crate) fn went_down(&self) -> bool {
        let up = self.netdev.is_up();
        self.last_up.xchg(up, Full) && !up
    }

    /// Returns the counters that performance management reports.
    pub(crate) fn totals(&self) -> PortCounters {
        let total = |counter| self.counters.total(counter);
        PortCounters {
            xmit_bytes: total(Traffic::TxBytes),
            rcv_bytes: total(Traffic::RxBytes),
            xmit_packets: total(Traffic::TxPackets),
            rcv_packets: total(Traffic::RxPackets),
            link_downed: total(Traffic::LinkDowned),
            rcv_errors: self.counters.damaged(),
            xmit_discards: total(Traffic::TxErrors),
            rcv_constraint_errors: self.counters.bad_pkey(),
        }
    }

    /// Returns the attributes of the port.
    pub(crate) fn port_attr(&self) -> PortAttr {
        PortAttr {
            up: self.netdev.is_up(),
            max_mtu: Mtu::Mtu4096.bytes(),
            active_mtu: self.active_mtu().bytes(),
            phys_mtu: self.netdev.mtu(),
            gid_tbl_len: GID_TABLE_LEN,
            pkey_tbl_len: u16::try_from(pkeys::LEN).unwrap_or(u16::MAX),
            max_msg_sz: MAX_MESSAGE,
            bad_pkey_cntr: violations(self.counters.bad_pkey()),
            qkey_viol_cntr: violations(self.counters.bad_qkey()),
            speed: self.netdev.speed(),
        }
    }
}
