// SPDX-License-Identifier: GPL-2.0
//! The state of an RDMA device on top of one network device.

pub(crate) mod backlog;
pub(crate) mod counters;
pub(crate) mod gids;
pub(crate) mod netdev_events;
pub(crate) mod pd_numbers;
pub(crate) mod port;
pub(crate) mod senders;
pub(crate) mod vectors;

use self::{
    backlog::Backlog,
    counters::Counters,
    gids::Gids,
    pd_numbers::PdNumbers,
    port::PKeyTable,
    senders::Senders,
    vectors::Vectors, //
};
use crate::{
    mr::Mrs,
    rx::{
        multicast::Groups,
        raw::RawQps,
        tables::Demux,
        Rx, //
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
    workqueue::{
        new_work,
        Work, //
    },
};
use rxe_kapi::{
    net::{
        flow::{
            Flow,
            ROCE_UDP_PORT, //
        },
        netdev::{
            NetDev,
            NetId, //
        },
        udp_tunnel::UdpEndpoint, //
    },
    rdma::{
        av::AddressVector,
        device::DeviceHandle,
        link::NewLink, //
    },
    sync::{
        Ida,
        RcuTable, //
    },
};

/// The name under which `rxe_kapi`'s types are instantiated.
pub(crate) type RxeDevice = DeviceCtx;

/// The destination of an address handle, which the handle's number leads to.
pub(crate) struct AhPath {
    /// Number of the protection domain.
    pub(crate) pd: u64,
    pub(crate) av: AddressVector,
    /// The path that datagrams take.
    pub(crate) flow: Arc<Flow>,
}

/// The state of a device.
#[pin_data]
pub(crate) struct DeviceCtx {
    pub(crate) handle: DeviceHandle,
    pub(crate) netdev: NetDev,
    /// The namespace of that when the device was created. A device whose network device leaves it
    /// is unregistered.
    pub(crate) net: NetId,
    /// Keeps the RoCEv2 port of the namespace open; closing it sleeps.
    #[pin]
    endpoint: Mutex<Option<UdpEndpoint<Rx>>>,
    /// System image GUID, in wire byte order.
    system_image: Atomic<u64>,
    /// State of the port after the last event of its network device. Changes under RTNL.
    pub(crate) last_up: Atomic<bool>,
    /// Queue pairs by number.
    pub(crate) demux: Arc<Demux>,
    /// Connections keep packets ahead of a lost one, if the peer does.
    pub(crate) selective_repeat: bool,
    pub(crate) counters: Counters,
    /// The part of that counted by queue pairs that are bound to counters of their own.
    pub(crate) bound_counters: Counters,
    pub(crate) pkeys: PKeyTable,
    /// Serializes changes of the P_Key table.
    #[pin]
    pub(crate) pkey_lock: Mutex<()>,
    pub(crate) mrs: Mrs,
    /// Address handles by number.
    #[pin]
    pub(crate) ahs: RcuTable<AhPath>,
    /// Address handles of libraries that do not know their numbers.
    #[pin]
    pub(crate) vectors: Vectors,
    /// Its unicast GIDs.
    #[pin]
    pub(crate) gids: Gids,
    /// Members of multicast groups.
    #[pin]
    pub(crate) groups: Groups,
    /// Joins the groups on the network devices that have addresses of the device.
    #[pin]
    pub(crate) join_work: Work<DeviceCtx>,
    /// Deferred packets of its queue pairs.
    pub(crate) backlog: Arc<Backlog>,
    /// Which queue pairs transmit.
    pub(crate) senders: Senders,
    /// Raw packet queue pairs, which receive Ethernet frames.
    #[pin]
    pub(crate) raw: RawQps,
    /// Numbers of protection domains.
    pub(crate) pds: PdNumbers,
    /// Numbers of SRQs.
    #[pin]
    pub(crate) srqs: Ida,
}

impl DeviceCtx {
    /// Creates the context of a device that is about to be registered.
    ///
    /// # Errors
    ///
    /// As [`UdpEndpoint::open`]; `ENOSPC` if the namespace has too many devices, `ENOMEM`.
    pub(crate) fn new(
        handle: DeviceHandle,
        link: &NewLink<'_>,
        demux: Arc<Demux>,
        selective_repeat: bool,
    ) -> Result<Arc<Self>> {
        let (counters, bound_counters) = (Counters::new()?, Counters::new()?);
        let netdev = link.netdev().clone();
        let endpoint = UdpEndpoint::open(&netdev, ROCE_UDP_PORT)?;
        let guid = link.guid();
        let last_up = netdev.is_up();
        let raw = RawQps::new()?;
        let dev = Arc::pin_init(
            try_pin_init!(Self {
                handle,
                netdev,
                net: link.net_id(),
                endpoint <- new_mutex!(Some(endpoint), "DeviceCtx::endpoint"),
                system_image: Atomic::new(u64::from_ne_bytes(guid)),
                last_up: Atomic::new(last_up),
                demux,
                selective_repeat,
                counters,
                bound_counters,
                pkeys: PKeyTable::new(),
                pkey_lock <- new_mutex!((), "DeviceCtx::pkey_lock"),
                mrs: Mrs::new()?,
                ahs <- RcuTable::new(),
                vectors <- Vectors::new(),
                gids <- Gids::new(),
                groups <- Groups::new(),
                join_work <- new_work!("DeviceCtx::join_work"),
                backlog: Backlog::new()?,
                senders: Senders::new(),
                raw <- raw,
                pds: PdNumbers::new(),
                srqs <- Ida::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        dev.demux.add_device(&dev)?;
        Ok(dev)
    }

    /// Returns the system image GUID, in wire byte order.
    pub(crate) fn system_image(&self) -> [u8; 8] {
        self.system_image.load(Relaxed).to_ne_bytes()
    }

    /// Replaces the system image GUID.
    pub(crate) fn set_system_image(&self, guid: [u8; 8]) {
        self.system_image.store(u64::from_ne_bytes(guid), Relaxed);
    }

    /// Returns the number of datagrams that the guard of the RoCE port has dropped in the device's
    /// namespace.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn refused_datagrams(&self) -> u64 {
        let endpoint = self.endpoint.lock();
        endpoint.as_ref().map_or(0, |endpoint| endpoint.refused())
    }

    /// Closes the RoCE port, after the device can no longer receive packets.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    pub(crate) fn close_endpoint(&self) {
        let endpoint = self.endpoint.lock().take();
        drop(endpoint);
    }
}
