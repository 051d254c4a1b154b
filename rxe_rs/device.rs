// SPDX-License-Identifier: GPL-2.0
//! The state of an RDMA device on top of one network device.

pub(crate) mod counters;
pub(crate) mod gids;
pub(crate) mod netdev_events;
pub(crate) mod port;

use self::{
    counters::Counters,
    gids::Gids,
    port::PortKeys, //
};
use crate::{
    mr::Mrs,
    qp::Backlog,
    rx::{
        multicast::Groups,
        raw::RawQps,
        tables::Demux,
        Rx, //
    },
    verbs::{
        ah::AhPath,
        pd::PdCtx,
        srq::SrqCtx, //
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
    net::{
        flow::ROCE_UDP_PORT,
        netdev::NetDev,
        udp_tunnel::UdpEndpoint, //
    },
    rdma::{
        device::DeviceHandle,
        link::NewLink, //
    },
    sync::RcuTable,
};

/// The device as `rxe_kapi` names it.
pub(crate) type RxeDevice = DeviceCtx;

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

    /// Identifier of the system, its bytes in wire order.
    pub(crate) fn system_image(&self) -> [u8; 8] {
        self.system_image.load(Relaxed).to_ne_bytes()
    }

    /// Replaces the identifier of the system.
    pub(crate) fn set_system_image(&self, guid: [u8; 8]) {
        self.system_image.store(u64::from_ne_bytes(guid), Relaxed);
    }

    /// Datagrams that the guard of the RoCE port has refused in the device's namespace. Process
    /// context.
    pub(crate) fn refused_datagrams(&self) -> u64 {
        let endpoint = self.endpoint.lock();
        endpoint.as_ref().map_or(0, |endpoint| endpoint.refused())
    }

    /// Closes the RoCE port, once nothing is received for the device any more. Process context,
    /// sleeps.
    pub(crate) fn close_endpoint(&self) {
        let endpoint = self.endpoint.lock().take();
        drop(endpoint);
    }
}
