// SPDX-License-Identifier: GPL-2.0
//! RoCEv2 RDMA device on top of any network device, compatible with stock `librxe`.
#![forbid(unsafe_code)]

mod clock;
mod device;
mod limits;
mod mr;
mod pager;
mod qp;
mod queue;
mod route;
mod rx;
mod verbs;
mod version;

use crate::{
    device::{
        netdev_events::NetdevEventHandler,
        DeviceCtx, //
    },
    pager::Queues,
    rx::{
        tables::Demux,
        DEMUX, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::{
    net::{
        self,
        notifier::NetdevNotifier, //
    },
    rdma::{
        device::{
            register,
            unregister_all, //
        },
        exclusion::Exclusion,
        link::{
            Link,
            NewLink,
            Registration, //
        },
    },
    series::is_set, //
    sync::{
        exit_pair,
        ExitWait,
        Filled, //
    },
};

module! {
    type: RxeRs,
    name: "rxe_rs",
    authors: ["The rxe_rs developers"],
    description: "Software RDMA over Converged Ethernet v2",
    license: "GPL",
    alias: ["rdma-link-rxe_rs"],
    params: {
        link_type_rxe: u8 {
            default: 0,
            description: "1: the link type is rxe, as that of rdma_rxe, instead of rxe_rs",
        },
        egress_guard: u8 {
            default: 1,
            description: "0: processes without CAP_NET_RAW may send to the RoCE port, so forge packets (for RoCE stacks and generators in user space)",
        },
        ecn: u8 {
            default: 1,
            description: "0: packets of connections are not marked as ECN-capable (ECT(0))",
        },
        same_host_icrc: u8 {
            default: 0,
            description: "1: packets between queue pairs of this kernel have an ICRC, too, and are not merged (for captures)",
        },
        same_host_copy: u8 {
            default: 0,
            description: "1: packets between queue pairs of this kernel contain their payload, which is copied twice then (for captures)",
        },
        selective_repeat: u8 {
            default: 1,
            description: "0: connections with another rxe_rs retransmit all that follows a lost packet, as with other peers",
        },
        hardware_parent: u8 {
            default: 0,
            description: "1: links have the hardware of their network device as parent in sysfs, so a bus address and a NUMA node (udev then renames them)",
        },
    },
}

/// Creates devices for `rdma link add NAME type rxe_rs netdev DEV`.
struct RxeLink {
    demux: Arc<Demux>,
    module: &'static ThisModule,
}

/// Returns the link type that the module parameter selects.
fn link_type() -> &'static CStr {
    if is_set(module_parameters::link_type_rxe.value()) {
        c"rxe"
    } else {
        c"rxe_rs"
    }
}

/// Returns true if ordinary sockets may not send to the RoCE port of a namespace with a link.
fn egress_guard() -> bool {
    is_set(module_parameters::egress_guard.value())
}

/// Returns true if packets that stay in the memory of this kernel may be sent without an ICRC.
pub(crate) fn omits_icrc() -> bool {
    !is_set(module_parameters::same_host_icrc.value())
}

/// Returns true if packets that stay in the memory of this kernel may refer to their payload.
pub(crate) fn sends_by_reference() -> bool {
    !is_set(module_parameters::same_host_copy.value())
}

/// Returns true if packets of connected QPs are sent as ECN-capable.
pub(crate) fn uses_ecn() -> bool {
    is_set(module_parameters::ecn.value())
}

/// Returns true if connections keep packets ahead of a lost one.
fn selective_repeat() -> bool {
    is_set(module_parameters::selective_repeat.value())
}

/// Returns true if devices are below the hardware of their network device in sysfs.
fn has_hardware_parent() -> bool {
    is_set(module_parameters::hardware_parent.value())
}

impl Link for RxeLink {
    fn new_link(&self, link: &NewLink<'_>) -> Result {
        Exclusion::check()?;
        if link.netdev().is_vlan() {
            // The RDMA core adds the addresses of VLAN devices to the GID table of the link below
            // them.
            pr_err!("a link on a VLAN device has no addresses: make one on the device below\n");
            return Err(EINVAL);
        }
        register::<DeviceCtx>(link, self.module, has_hardware_parent(), |handle| {
            DeviceCtx::new(handle, link, self.demux.clone(), selective_repeat())
        })
    }
}

/// The loaded module; its fields are dropped in the order of their declaration.
struct RxeRs {
    links: Option<Pin<KBox<Registration<RxeLink>>>>,
    demux: Option<Filled<Demux>>,
    demux_exit: Option<ExitWait>,
    queues: Option<Arc<Queues>>,
    _events: Pin<KBox<NetdevNotifier<NetdevEventHandler>>>,
    _net: net::Registration,
    _alone: Exclusion,
}

impl kernel::Module for RxeRs {
    fn init(module: &'static ThisModule) -> Result<Self> {
        rxe_kapi::layout::check()?;
        let alone = Exclusion::new()?;
        let net = net::Registration::new(egress_guard())?;
        let (token, demux_exit) = exit_pair()?;
        let queues = Arc::new(Queues::new()?, GFP_KERNEL)?;
        let demux = Arc::pin_init(Demux::new(queues.clone(), token)?, GFP_KERNEL)?;
        let filled = DEMUX.set(demux.clone())?;
        let events = NetdevEventHandler::new(module);
        let events = KBox::pin_init(NetdevNotifier::register(events), GFP_KERNEL)?;
        let links = KBox::pin_init(
            Registration::new(RxeLink { demux, module }, link_type()),
            GFP_KERNEL,
        )?;
        Ok(Self {
            links: Some(links),
            demux: Some(filled),
            demux_exit: Some(demux_exit),
            queues: Some(queues),
            _events: events,
            _net: net,
            _alone: alone,
        })
    }
}

impl Drop for RxeRs {
    fn drop(&mut self) {
        // First no new devices, then no devices, then none of their memory that is still to be
        // freed.
        drop(self.links.take());
        unregister_all::<DeviceCtx>();
        rxe_kapi::sync::detach_mappings();
        drop(self.demux.take());
        rxe_kapi::sync::rcu_barrier();
        if let Some(demux_exit) = self.demux_exit.take() {
            demux_exit.wait();
        }
        // A work item may not have returned yet after it dropped the last reference to one of
        // these, and what it dropped may be freed after a grace period. No test forces this moment:
        // between that drop and the return are a few instructions, which no fault injection of
        // the kernel prolongs. `manage.rmmod_under_traffic` unloads while work items run,
        // `manage.queues_destroyed_at_exit` counts the queues, and `qemu/selftest_structure.py`
        // checks the order of these lines.
        drop(self.queues.take());
        rxe_kapi::sync::rcu_barrier();
        rxe_kapi::sync::flush_freed();
    }
}
