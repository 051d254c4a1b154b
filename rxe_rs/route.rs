// SPDX-License-Identifier: GPL-2.0
//! Routes: where the packets to an address vector or an address handle go.

use crate::device::DeviceCtx;
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    mem::gfp_atomic_account,
    net::flow::{
        Flow,
        FlowSpec, //
    },
    rdma::av::AddressVector, //
};
use rxe_proto::{
    ids::Qpn,
    wire::sport::source_port, //
};

impl DeviceCtx {
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
