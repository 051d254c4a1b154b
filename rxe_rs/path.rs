// SPDX-License-Identifier: GPL-2.0
//! Paths between addresses: which packets belong to a device, and where its packets go.

use crate::{
    demux::Demux, //
    device::DeviceCtx,
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    mem::gfp_atomic_account,
    net::{
        flow::{
            Flow,
            FlowSpec, //
        },
        skb::{
            RxSegment,
            RxSkb, //
        },
        udp_tunnel::Receive, //
    },
    rdma::av::AddressVector,
    sync::Global, //
};
use rxe_proto::{
    ids::Qpn,
    wire::sport::source_port, //
};

/// Where received packets go; the network stack's callback carries no context.
pub(crate) static DEMUX: Global<Demux> = Global::new();

/// The receiver of the RoCEv2 port.
pub(crate) struct Rx;

impl Receive for Rx {
    #[inline]
    fn receive(skb: RxSkb) {
        let guard = rcu::read_lock();
        DEMUX.with(&guard, |demux| demux.receive(&guard, skb));
    }

    fn refuse(skb: RxSkb) {
        let guard = rcu::read_lock();
        DEMUX.with(&guard, |demux| demux.refuse(&guard, skb));
    }
}

impl DeviceCtx {
    /// True if a packet for this device may come in the way `segment` did: by its network device,
    /// over loopback, or by a network device above its own, whose addresses are GIDs of this
    /// device too.
    #[inline]
    pub(crate) fn is_ingress(&self, segment: &RxSegment<'_>, rcu: &rcu::Guard) -> bool {
        segment.netdev() == self.netdev.id()
            || segment.is_loopback_of(&self.netdev)
            || segment.is_above(&self.netdev, rcu)
    }

    /// The path to `av`, with `sport` as UDP source port. Routers may mark packets of connections,
    /// which heed that (RFC 3168); datagrams have no sending rate, and nobody tells their sender.
    pub(crate) fn flow_for(
        &self,
        av: &AddressVector,
        sport: u16,
        connected: bool,
    ) -> Result<Arc<Flow>> {
        let spec = FlowSpec {
            source: av.sgid,
            destination: av.dgid,
            source_port: sport,
            traffic_class: av.traffic_class,
            ecn: connected && crate::uses_ecn(),
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
            ifindex: av.ifindex,
        };
        let flow = Flow::new(&self.netdev, &spec)?;
        Ok(Arc::new(flow, gfp_atomic_account())?)
    }

    /// The path of address handle `number`, if that is of protection domain `pd`.
    ///
    /// Any context that may take locks with bottom halves off.
    pub(crate) fn flow_of_ah(&self, number: u32, pd: u32) -> Option<Arc<Flow>> {
        let guard = rcu::read_lock();
        self.ahs
            .with(number, &guard, |path| {
                (path.pd == pd).then(|| path.flow.clone())
            })
            .flatten()
    }

    /// UDP source port of datagrams to `av`, which are of no connection: by the flow label, or
    /// else by the number of the handle.
    pub(crate) fn datagram_port(av: &AddressVector, number: u32) -> u16 {
        source_port(
            av.flow_label,
            Qpn::new(number.wrapping_mul(0x9e37)),
            Qpn::new(number | 1),
        )
    }
}
