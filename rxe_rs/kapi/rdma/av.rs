// SPDX-License-Identifier: GPL-2.0
//! Address vectors of queue pairs and address handles.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use kernel::prelude::*;

/// IP version of a RoCEv2 path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// IPv4; the GIDs are IPv4-mapped.
    V4,
    /// IPv6.
    V6,
}

/// A RoCEv2 address vector that the RDMA core has resolved (IBTA A17.4.2). It holds no reference to
/// the core's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// Port of the device, 1-based.
    pub port: u32,
    /// Service level, 0..=15.
    pub sl: u8,
    /// Static rate, as specified by the consumer.
    pub static_rate: u8,
    /// IP version.
    pub network: Network,
    /// Index of the source GID in the GID table.
    pub sgid_index: u8,
    /// Source GID.
    pub sgid: [u8; 16],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Ethernet address of the next hop.
    pub dmac: [u8; 6],
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Hop limit or time to live; 0 for the default.
    pub hop_limit: u8,
    /// Interface index of the network device of the source GID (a VLAN device, for example); 0 if
    /// the device has been removed.
    pub ifindex: u32,
}

impl AddressVector {
    /// Converts the core's attribute.
    ///
    /// # Errors
    ///
    /// `EINVAL` without a source GID, if the GID is not of type RoCEv2, or if source and
    /// destination are of different address families.
    ///
    /// # Safety
    ///
    /// `attr` is an address handle attribute the core passed to a running operation.
    pub(crate) unsafe fn from_raw(attr: *const bindings::rdma_ah_attr) -> Result<Self> {
        let mut raw = bindings::rxe_rs_path::default();
        // SAFETY: By the caller's guarantee; `raw` is valid for writes.
        kernel::error::to_result(unsafe { bindings::rxe_rs_path_from_attr(attr, &mut raw) })?;
        Ok(Self {
            port: raw.port,
            sl: raw.sl,
            static_rate: raw.static_rate,
            network: if raw.ipv6 != 0 {
                Network::V6
            } else {
                Network::V4
            },
            sgid_index: raw.sgid_index,
            sgid: raw.sgid,
            dgid: raw.dgid,
            dmac: raw.dmac,
            flow_label: raw.flow_label & 0xf_ffff,
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
            ifindex: raw.ifindex,
        })
    }
}

impl AddressVector {
    /// Fills in the core's attribute for a query.
    pub(crate) fn store(&self, to: &mut bindings::rdma_ah_attr) {
        let mut raw: bindings::rxe_rs_path = pin_init::zeroed();
        raw.port = self.port;
        raw.flow_label = self.flow_label;
        raw.sl = self.sl;
        raw.static_rate = self.static_rate;
        raw.sgid_index = self.sgid_index;
        raw.traffic_class = self.traffic_class;
        raw.hop_limit = self.hop_limit;
        raw.dgid = self.dgid;
        raw.dmac = self.dmac;
        // SAFETY: Both are valid; the function writes plain fields only.
        unsafe { bindings::rxe_rs_path_to_attr(to, &raw) };
    }
}
