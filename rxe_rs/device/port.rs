// SPDX-License-Identifier: GPL-2.0
//! The port of a device: its state and its P_Key table.

use crate::{
    device::counters::Traffic,
    device::DeviceCtx, //
    limits::{
        GID_TABLE_LEN,
        MAX_MESSAGE, //
    },
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
    drop::violations,
    ids::{
        Mtu,
        PKey, //
    },
    table::pkeys,
    wire::pma::PortCounters, //
};

/// The P_Key table, read for every packet: single entries change atomically.
pub(crate) struct PortKeys {
    entries: [Atomic<u32>; pkeys::LEN],
}

impl PortKeys {
    /// As a P_Key table starts.
    pub(crate) fn new() -> Self {
        Self {
            entries: core::array::from_fn(|index| Atomic::new(u32::from(pkeys::initial(index).0))),
        }
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = (u16, PKey)> + '_ {
        (0..).zip(self.entries.iter().map(Self::load))
    }

    /// Entry `index`.
    #[inline]
    pub(crate) fn get(&self, index: u16) -> Option<PKey> {
        self.entries.get(usize::from(index)).map(Self::load)
    }

    #[inline]
    fn load(entry: &Atomic<u32>) -> PKey {
        u16::try_from(entry.load(Relaxed)).map_or(PKey::INVALID, PKey)
    }

    /// Replaces entry `index`; true if that changed something. The caller serialises writers.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the table, and for keys of partition 0 but [`PKey::INVALID`], which empties
    /// the entry; `EEXIST` if another entry holds the same key; `EBUSY` if the last valid entry
    /// would be emptied. Each with words for the kernel log.
    fn set(&self, index: u16, key: PKey) -> Result<bool, (Error, &'static CStr)> {
        let no_entry = (EINVAL, c"no such entry of the P_Key table");
        pkeys::check_set(self.iter(), index, key).map_err(|refusal| match refusal {
            pkeys::Refusal::NoEntry => no_entry,
            pkeys::Refusal::NoPartition => {
                (EINVAL, c"a P_Key of partition 0, which does not exist")
            }
            pkeys::Refusal::Duplicate => (EEXIST, c"a P_Key that another entry holds"),
            pkeys::Refusal::Last => (EBUSY, c"the last valid P_Key cannot be removed"),
        })?;
        let entry = self.entries.get(usize::from(index)).ok_or(no_entry)?;
        let old = entry.xchg(u32::from(key.0), Full);
        Ok(old != u32::from(key.0))
    }

    /// First entry whose member may talk to one with `key`.
    #[inline]
    pub(crate) fn find_matching(&self, key: PKey) -> Option<u16> {
        pkeys::find_matching(self.iter(), key)
    }
}

impl DeviceCtx {
    /// P_Key at `index`; one that matches nothing beyond the table.
    #[inline]
    pub(crate) fn pkey(&self, index: u16) -> PKey {
        self.pkeys.get(index).unwrap_or(PKey::INVALID)
    }

    /// Index of the first P_Key that lets in packets with `key`.
    #[inline]
    pub(crate) fn find_pkey(&self, key: PKey) -> Option<u16> {
        self.pkeys.find_matching(key)
    }

    /// True if `index` is in the table and its entry is in use.
    pub(crate) fn pkey_is_valid(&self, index: u16) -> bool {
        self.pkeys
            .get(index)
            .is_some_and(|key| key != PKey::INVALID)
    }

    /// Changes the P_Key table for the administrator; packets are checked by the new table from now
    /// on, and consumers are told. Process context.
    ///
    /// # Errors
    ///
    /// As [`PortKeys::set`].
    pub(crate) fn edit_pkeys(&self, index: u16, key: u16) -> Result {
        let changed = {
            let _one_at_a_time = self.pkey_editor.lock();
            self.pkeys.set(index, PKey(key))
        };
        let changed = changed.map_err(|(error, words)| self.handle.refuse_with(error, words))?;
        if changed {
            self.handle.dispatch(PortEvent::PkeyChange);
        }
        Ok(())
    }

    /// The largest path MTU the network device carries.
    pub(crate) fn link_mtu(&self) -> Mtu {
        Mtu::largest_fitting(self.netdev.mtu()).unwrap_or(Mtu::Mtu256)
    }

    /// The largest path MTU to any peer: what the network device carries, less what the IPsec policies
    /// that are in force now may add. Process context.
    pub(crate) fn active_mtu(&self) -> Mtu {
        let room = self
            .netdev
            .ipsec_room(ROCE_UDP_PORT, Mtu::IPSEC_RESERVE, Mtu::TUNNEL_RESERVE);
        let left = self.netdev.mtu().saturating_sub(room);
        Mtu::largest_fitting(left).unwrap_or(Mtu::Mtu256)
    }

    /// What to tell consumers if the port went up or down since they were told last.
    pub(crate) fn port_changed(&self) -> Option<PortEvent> {
        let up = self.netdev.is_up();
        match (self.was_up.xchg(up, Full), up) {
            (false, true) => Some(PortEvent::Active),
            (true, false) => Some(PortEvent::Error),
            _ => None,
        }
    }

    /// What performance management tells of the port.
    pub(crate) fn totals(&self) -> PortCounters {
        let of = |what| self.counters.total(what);
        PortCounters {
            xmit_bytes: of(Traffic::TxBytes),
            rcv_bytes: of(Traffic::RxBytes),
            xmit_packets: of(Traffic::TxPackets),
            rcv_packets: of(Traffic::RxPackets),
            link_downed: of(Traffic::LinkDowned),
            rcv_errors: self.counters.damaged(),
            xmit_discards: of(Traffic::TxErrors),
            rcv_constraint_errors: self.counters.bad_pkey(),
        }
    }

    /// State of the port.
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
