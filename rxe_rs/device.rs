// SPDX-License-Identifier: GPL-2.0
//! The RDMA device on top of one network device.

use crate::{
    ah::{
        AhCtx,
        AhPath,
        MAX_AH, //
    },
    counters::{
        self,
        Counters,
        Traffic, //
    },
    cq::{
        CqCtx,
        MAX_CQE, //
    },
    demux::Demux,
    gids::Gids,
    mcast::{
        self,
        Groups, //
    },
    mr::{
        MrCtx,
        Mrs,
        MAX_FAST_REG_PAGES,
        MAX_MR,
        MAX_MR_SIZE, //
    },
    mw::MAX_MW,
    path::Rx,
    pd::{
        PdCtx,
        MAX_PD, //
    },
    port::PortKeys,
    qp::{
        Backlog,
        QpCtx,
        MAX_WR, //
    },
    queue::MAX_SGE,
    raw::RawQps,
    srq::{
        SrqCtx,
        MAX_SRQ,
        MAX_SRQ_WR, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};
use rxe_kapi::{
    mem::persistence_supported,
    net::{
        flow::ROCE_UDP_PORT,
        netdev::NetDev,
        udp_tunnel::UdpEndpoint, //
    },
    rdma::{
        attr::{
            DeviceAttr,
            OnDemand,
            PortAttr, //
        },
        device::{
            Device,
            DeviceHandle,
            GidEntry, //
        },
        link::NewLink,
        mad::{
            Answer,
            MAD_LEN, //
        },
    },
    sync::RcuTable,
};
use rxe_proto::{
    engine::MAX_RD_ATOMIC,
    ids::PKey,
    table::pkeys,
    wire::pma, //
};

/// The device as `rxe_kapi` names it.
pub(crate) type RxeDevice = DeviceCtx;

/// Version of the driver, shown as that of the firmware.
const VERSION: (u32, u16, u16) = (0, 1, 0);

/// Number of the only port, as performance management names it.
const PORT: u8 = 1;

/// Most queue pairs, completion queues of a device.
const MAX_QUEUES: u32 = 1 << 20;

/// Whatever works on memory works on memory that is got on demand; frames are not in this list.
const ON_DEMAND: OnDemand = OnDemand {
    rc: OnDemand::SEND
        | OnDemand::RECV
        | OnDemand::WRITE
        | OnDemand::READ
        | OnDemand::ATOMIC
        | OnDemand::SRQ_RECV
        | OnDemand::FLUSH
        | OnDemand::ATOMIC_WRITE,
    uc: OnDemand::SEND | OnDemand::RECV | OnDemand::WRITE | OnDemand::SRQ_RECV,
    ud: OnDemand::SEND | OnDemand::RECV | OnDemand::SRQ_RECV,
};

/// Everything the driver knows of a device.
#[pin_data]
pub(crate) struct DeviceCtx {
    pub(crate) handle: DeviceHandle,
    pub(crate) netdev: NetDev,
    /// Keeps the RoCEv2 port of the namespace open; closing it sleeps.
    #[pin]
    endpoint: Mutex<Option<UdpEndpoint<Rx>>>,
    /// Identifier of the system, its bytes in wire order.
    system_image: Atomic<u64>,
    /// State of the port that consumers were told of last.
    pub(crate) was_up: Atomic<bool>,
    /// Queue pairs by number.
    pub(crate) demux: Arc<Demux>,
    pub(crate) counters: Counters,
    /// What of that queue pairs bound to counters of their own have counted.
    pub(crate) bound: Counters,
    pub(crate) pkeys: PortKeys,
    /// Held by who changes the P_Key table.
    #[pin]
    pub(crate) pkey_editor: Mutex<()>,
    #[pin]
    pub(crate) mrs: Mrs,
    #[pin]
    pub(crate) ahs: RcuTable<AhPath>,
    /// Its unicast addresses.
    #[pin]
    pub(crate) gids: Gids,
    /// Members of multicast groups.
    #[pin]
    pub(crate) groups: Groups,
    /// Packets that wait for memory.
    pub(crate) backlog: Arc<Backlog>,
    /// Who gets Ethernet frames.
    #[pin]
    pub(crate) raw: RawQps,
    /// Numbers in use; the rows stay empty.
    #[pin]
    pub(crate) pds: RcuTable<PdCtx>,
    /// As above.
    #[pin]
    pub(crate) srqs: RcuTable<SrqCtx>,
}

impl DeviceCtx {
    /// Makes the context of a device that is about to be registered.
    pub(crate) fn new(
        handle: DeviceHandle,
        link: &NewLink<'_>,
        demux: Arc<Demux>,
    ) -> Result<Arc<Self>> {
        let (counters, bound) = (Counters::new()?, Counters::new()?);
        let netdev = NetDev::of_link(link);
        let endpoint = UdpEndpoint::open(&netdev, ROCE_UDP_PORT)?;
        let guid = link.guid();
        let was_up = netdev.is_up();
        let raw = RawQps::new()?;
        let dev = Arc::pin_init(
            try_pin_init!(Self {
                handle,
                netdev,
                endpoint <- new_mutex!(Some(endpoint), "DeviceCtx::endpoint"),
                system_image: Atomic::new(u64::from_ne_bytes(guid)),
                was_up: Atomic::new(was_up),
                demux,
                counters,
                bound,
                pkeys: PortKeys::new(),
                pkey_editor <- new_mutex!((), "DeviceCtx::pkey_editor"),
                mrs <- Mrs::new(),
                ahs <- RcuTable::new(),
                gids <- Gids::new(),
                groups <- Groups::new(),
                backlog: Backlog::new()?,
                raw <- raw,
                pds <- RcuTable::new(),
                srqs <- RcuTable::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        dev.demux.add_device(&dev)?;
        Ok(dev)
    }
}

impl Device for DeviceCtx {
    type Pd = PdCtx;
    type Ah = AhCtx;
    type Cq = CqCtx;
    type Qp = QpCtx;
    type Srq = SrqCtx;
    type Counter = Counters;
    type Mr = MrCtx;
    type Mw = MrCtx;

    /// `RDMA_DRIVER_RXE`: what `librxe` looks for.
    const DRIVER_ID: u32 = 14;
    /// Version of `rdma_user_rxe.h`.
    const ABI_VERSION: u32 = 2;
    const NODE_DESC: &'static [u8] = b"rxe_rs";
    const COUNTERS: &'static [&'static str] = &counters::NAMES;

    fn attributes(&self) -> DeviceAttr {
        let sge = u32::try_from(MAX_SGE).unwrap_or(1);
        DeviceAttr {
            fw_ver: VERSION,
            sys_image_guid: self.system_image.load(Relaxed).to_ne_bytes(),
            max_mr_size: MAX_MR_SIZE,
            // Every power of two from 4 KiB.
            page_size_cap: !0xfff,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: MAX_QUEUES,
            max_qp_wr: MAX_WR,
            max_send_sge: sge,
            max_recv_sge: sge,
            max_sge_rd: sge,
            max_cq: MAX_QUEUES,
            max_cqe: MAX_CQE,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_SRQ_WR,
            max_srq_sge: sge,
            max_mr: MAX_MR,
            max_mw: MAX_MW,
            max_fast_reg_pages: MAX_FAST_REG_PAGES,
            max_pd: MAX_PD,
            max_ah: MAX_AH,
            max_raw_ethy_qp: if self.netdev.has_frames() {
                MAX_QUEUES
            } else {
                0
            },
            max_mcast_grp: mcast::MAX_GROUPS,
            max_mcast_qp_attach: mcast::MAX_MEMBERS,
            max_total_mcast_qp_attach: mcast::MAX_ATTACHED,
            max_qp_rd_atom: u32::from(MAX_RD_ATOMIC),
            max_pkeys: u16::try_from(pkeys::LEN).unwrap_or(u16::MAX),
            local_ca_ack_delay: 15,
            atomics: true,
            persistence: persistence_supported(),
            on_demand: ON_DEMAND,
        }
    }

    fn port(&self) -> PortAttr {
        self.port_attr()
    }

    fn pkey(&self, index: u16) -> Result<u16> {
        let PKey(key) = self.pkeys.get(index).ok_or(EINVAL)?;
        Ok(key)
    }

    fn set_pkey(&self, index: u16, pkey: u16) -> Result {
        self.edit_pkeys(index, pkey)
    }

    fn set_system_image(&self, guid: [u8; 8]) {
        self.system_image.store(u64::from_ne_bytes(guid), Relaxed);
    }

    fn firmware(&self) -> &'static CStr {
        c"0.1.0"
    }

    fn add_gid(&self, gid: &GidEntry) -> Result {
        self.gids.add(gid)
    }

    fn del_gid(&self, gid: &GidEntry) {
        self.gids.remove(gid);
    }

    fn reset_qkey_violations(&self) {
        self.counters.reset_bad_qkey();
    }

    fn counters(&self, to: &mut [u64]) {
        self.counters.read_without(&self.bound, to);
        let endpoint = self.endpoint.lock();
        let refused = endpoint.as_ref().map_or(0, |endpoint| endpoint.refused());
        Counters::put(to, Traffic::Refused, refused);
    }

    fn mad(&self, request: &[u8; MAD_LEN], reply: &mut [u8; MAD_LEN]) -> Answer {
        match pma::answer(request, PORT, &self.totals(), reply) {
            Some(()) => Answer::Reply,
            None => Answer::Pass,
        }
    }

    fn unregistered(self: &Arc<Self>) {
        self.demux.remove_device(self);
        let endpoint = self.endpoint.lock().take();
        drop(endpoint);
    }
}
