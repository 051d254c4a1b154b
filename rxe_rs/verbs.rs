// SPDX-License-Identifier: GPL-2.0
//! The verbs of a device: which type implements which object, and the operations of the device
//! itself. The operations of an object are in its file.

pub(crate) mod ah;
pub(crate) mod cq;
pub(crate) mod pd;
pub(crate) mod srq;

use self::{
    ah::AhCtx,
    cq::CqCtx,
    pd::PdCtx,
    srq::SrqCtx, //
};
use crate::{
    device::{
        counters::{
            self,
            Counters,
            Traffic, //
        },
        DeviceCtx, //
    },
    limits,
    mr::MrCtx,
    qp::QpCtx,
    version, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::{
    mem::persistence_supported,
    rdma::{
        attr::{
            DeviceAttr,
            PortAttr, //
        },
        device::{
            Device,
            GidEntry, //
        },
        mad::{
            MadResult,
            MAD_LEN, //
        },
    },
};
use rxe_proto::{
    engine::MAX_RD_ATOMIC,
    ids::PKey,
    table::pkeys,
    wire::pma, //
};

/// Number of the only port, as used in performance management.
const PORT: u8 = 1;

impl Device for DeviceCtx {
    type Pd = PdCtx;
    type Ah = AhCtx;
    type Cq = CqCtx;
    type Qp = QpCtx;
    type Srq = SrqCtx;
    type Counter = Counters;
    type Mr = MrCtx;
    type Mw = MrCtx;

    /// `RDMA_DRIVER_RXE`, which `librxe` matches.
    const DRIVER_ID: u32 = 14;
    /// Version of `rdma_user_rxe.h`.
    const ABI_VERSION: u32 = 2;
    const NODE_DESC: &'static [u8] = b"rxe_rs";
    const COUNTERS: &'static [&'static str] = &counters::NAMES;

    /// Attributes of the device (IBTA 11.2).
    fn attributes(&self) -> DeviceAttr {
        let sge = u32::try_from(limits::MAX_SGE).unwrap_or(1);
        let [major, minor, patch] = version::NUMBERS;
        DeviceAttr {
            fw_ver: (major.into(), minor, patch),
            sys_image_guid: self.system_image(),
            max_mr_size: limits::MAX_MR_SIZE,
            // Every power of two from 4 KiB.
            page_size_cap: !0xfff,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: limits::MAX_QUEUES,
            max_qp_wr: limits::MAX_WR,
            max_send_sge: sge,
            max_recv_sge: sge,
            max_sge_rd: sge,
            max_cq: limits::MAX_QUEUES,
            max_cqe: limits::MAX_CQE,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_SRQ_WR,
            max_srq_sge: sge,
            max_mr: limits::MAX_MR,
            max_mw: limits::MAX_MW,
            max_fast_reg_pages: limits::MAX_FAST_REG_PAGES,
            max_pd: limits::MAX_PD,
            max_ah: limits::MAX_AH,
            max_raw_ethy_qp: if self.netdev.is_ethernet() {
                limits::MAX_QUEUES
            } else {
                0
            },
            max_mcast_grp: limits::MAX_GROUPS,
            max_mcast_qp_attach: limits::MAX_MEMBERS,
            max_total_mcast_qp_attach: limits::MAX_ATTACHED,
            max_qp_rd_atom: u32::from(MAX_RD_ATOMIC),
            max_pkeys: u16::try_from(pkeys::LEN).unwrap_or(u16::MAX),
            local_ca_ack_delay: 15,
            atomics: true,
            persistence: persistence_supported(),
            on_demand: limits::ON_DEMAND,
        }
    }

    fn port(&self) -> PortAttr {
        self.port_attr()
    }

    fn pkey(&self, index: u16) -> Result<u16> {
        let PKey(key) = self.pkeys.get(index).ok_or(EINVAL)?;
        Ok(key)
    }

    fn set_pkey(&self, index: Option<u16>, pkey: u16) -> Result {
        self.edit_pkeys(index, pkey)
    }

    fn set_system_image(&self, guid: [u8; 8]) {
        DeviceCtx::set_system_image(self, guid);
    }

    fn firmware(&self) -> &'static CStr {
        version::TEXT
    }

    fn add_gid(self: &Arc<Self>, gid: &GidEntry) -> Result {
        // The core also offers the addresses of network devices that containers have above that of
        // the link. It can neither receive what is sent to them nor find a route for them, and the
        // connection manager would choose it for a container that has a link of its own.
        if gid.net != self.net {
            let reason = c"the address is that of a network device in another namespace";
            return Err(self.handle.refuse_with(ENODEV, reason));
        }
        self.gids.add(gid)?;
        self.gids_changed();
        Ok(())
    }

    fn del_gid(self: &Arc<Self>, gid: &GidEntry) {
        self.gids.remove(gid);
        self.gids_changed();
    }

    fn reset_qkey_violations(&self) {
        self.counters.reset_bad_qkey();
    }

    fn counters(&self, to: &mut [u64]) {
        self.counters.read_without(&self.bound_counters, to);
        Counters::put(to, Traffic::Refused, self.refused_datagrams());
    }

    fn enable(self: &Arc<Self>) -> Result {
        if self.netdev.is_in(self.net) {
            return Ok(());
        }
        // The event that would have unregistered the device came while the core did not find it.
        self.handle.unregister();
        Err(ENODEV)
    }

    fn mad(&self, request: &[u8; MAD_LEN], reply: &mut [u8; MAD_LEN]) -> MadResult {
        match pma::answer(request, PORT, &self.totals(), reply) {
            Some(()) => MadResult::Reply,
            None => MadResult::Pass,
        }
    }

    fn unregistered(self: &Arc<Self>) {
        self.demux.remove_device(self);
        self.close_endpoint();
    }
}
