// SPDX-License-Identifier: GPL-2.0
//! Routing: from an address vector or an address handle to a flow.

use crate::device::DeviceCtx;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    alloc::gfp_atomic_account,
    net::flow::{
        Flow,
        FlowSpec, //
    },
    rand::random_u32,
    rdma::av::AddressVector, //
};
use rxe_proto::{
    engine::wr::AhName,
    ids::Qpn,
    wire::sport::source_port, //
};

impl DeviceCtx {
    /// Returns the path to `av`, with `sport` as UDP source port. Only connected QPs use
    /// ECN-capable packets, as they respond to marks (RFC 3168); datagrams have no sending rate,
    /// and their sender gets no congestion notification.
    ///
    /// # Errors
    ///
    /// As [`Flow::new`], `ENOMEM`.
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
            host_tags: connected && crate::omits_icrc(),
            references: crate::sends_by_reference(),
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
            ifindex: av.ifindex,
        };
        let flow = Flow::new(&self.netdev, &spec)?;
        Ok(Arc::new(flow, gfp_atomic_account())?)
    }

    /// Returns the path of address handle `name`, if that belongs to protection domain `pd`.
    ///
    /// # Context
    ///
    /// Any context that may take locks with bottom halves disabled.
    pub(crate) fn flow_of_ah(&self, name: AhName, pd: u64) -> Option<Arc<Flow>> {
        let number = match name {
            AhName::Number(number) => number,
            AhName::Vector(digest) => return self.vectors.flow(pd, digest),
        };
        let guard = rcu::read_lock();
        self.ahs
            .with(number, &guard, |path| {
                (path.pd == pd).then(|| path.flow.clone())
            })
            .flatten()
    }

    /// Returns the UDP source port of datagrams to `av`, which belong to no connection: from the
    /// flow label, or else a random one, so that routers and receive queues can distribute them.
    pub(crate) fn datagram_port(av: &AddressVector) -> u16 {
        let random = random_u32();
        source_port(
            av.flow_label,
            Qpn::new(random.wrapping_mul(0x9e37)),
            Qpn::new(random | 1),
        )
    }
}
