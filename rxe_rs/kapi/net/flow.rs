// SPDX-License-Identifier: GPL-2.0
//! Flows: one direction of a path, with a cached route.

use super::{
    is_multicast,
    mapped_v4,
    netdev::NetDev,
    set_class,
    set_ipv4_id,
    set_lengths,
    HEADERS_V4,
    HEADERS_V6, //
};
use crate::{
    bindings,
    rand, //
};
use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// UDP destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;

/// ECN bits of the traffic class (RFC 3168, 5) and their value ECT(0): routers may mark the packet
/// instead of dropping it.
const ECN_MASK: u8 = 3;
const ECN_CAPABLE: u8 = 2;

/// Traffic class of congestion notifications: DSCP 48 (CS6, network control), the default of
/// ConnectX adapters (`cnp_dscp`), and not ECN-capable, because no one responds to a marked CNP.
pub const CNP_TRAFFIC_CLASS: u8 = 48 << 2;

/// Hop limit if none is specified.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Addresses and header fields of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowSpec {
    /// Local address; an IPv4 address in its mapped form.
    pub source: [u8; 16],
    /// Peer's address, of the same family.
    pub destination: [u8; 16],
    /// UDP source port.
    pub source_port: u16,
    /// Traffic class or type of service. Its ECN bits are ignored.
    pub traffic_class: u8,
    /// The packets are ECN-capable: their receiver reports marks, and their sender reduces its
    /// rate.
    pub ecn: bool,
    /// The packets may have host tags ([`TxBatch::set_tag`](super::tx::TxBatch::set_tag)).
    pub host_tags: bool,
    /// Packets with host tags may refer to payload in the memory of this kernel.
    pub references: bool,
    /// Hop limit or time to live; 0 means 64, or 1 to a multicast group.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the output device, which is above the flow's own (a VLAN device, for example); 0
    /// for the flow's own device.
    pub ifindex: u32,
}

/// The common header fields of packets from one local address to one peer, with a cached route.
///
/// Packets leave by the given network device or one above it only, or over loopback if the
/// destination is an address of this host. The route is looked up when it is first needed and again
/// when the kernel's tables have changed. A flow holds a reference to its network device: drop it
/// when the device is unregistered.
pub struct Flow {
    pub(super) raw: NonNull<bindings::rxe_rs_flow>,
    dev: NetDev,
    /// Unique among all flows.
    pub(super) id: u64,
    /// IPv4 identification of the next packet.
    next_id: Atomic<u32>,
    /// IP header and UDP header without lengths.
    headers: [u8; HEADERS_V6],
    v4: bool,
    class: u8,
    host_tags: bool,
    references: bool,
}

// SAFETY: The C part has its own lock.
unsafe impl Send for Flow {}
// SAFETY: As above.
unsafe impl Sync for Flow {}

static NEXT_FLOW: Atomic<u64> = Atomic::new(1);

impl Flow {
    /// Creates a flow. Looks up nothing yet.
    ///
    /// # Context
    ///
    /// Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the addresses are of different families, `ENOMEM`.
    pub fn new(dev: &NetDev, spec: &FlowSpec) -> Result<Self> {
        let (source, destination) = (mapped_v4(&spec.source), mapped_v4(&spec.destination));
        if source.is_some() != destination.is_some() {
            return Err(EINVAL);
        }
        let v4 = source.is_some();
        let class = Self::class_of(spec);
        let raw_spec = bindings::rxe_rs_flow_spec {
            saddr: spec.source,
            daddr: spec.destination,
            flow_label: spec.flow_label & 0xf_ffff,
            ifindex: spec.ifindex,
            sport: spec.source_port,
            dport: ROCE_UDP_PORT,
            tclass: class,
            v4,
        };
        // SAFETY: The device outlives the C flow: `self` holds it.
        let raw = unsafe { bindings::rxe_rs_flow_new(dev.as_ptr(), &raw_spec) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            dev: dev.clone(),
            id: NEXT_FLOW.fetch_add(1, Relaxed),
            next_id: Atomic::new(rand::random_u32()),
            headers: Self::template(spec, class),
            v4,
            class,
            host_tags: spec.host_tags,
            references: spec.references,
        })
    }

    /// Returns true if the packets may have host tags.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn has_host_tags(&self) -> bool {
        self.host_tags
    }

    /// Returns true if packets with host tags may refer to payload in the memory of this kernel.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn may_refer(&self) -> bool {
        self.references
    }

    /// Returns the traffic class on the wire (IBTA A17.3.1.1.3). The owner of the flow alone sets
    /// the ECN bits. A user who could mark packets as if they had met congestion would reduce the
    /// rate of all that share the QP of the sender; one who could mark them as ECN-capable, without
    /// a sender that responds to marks, would get more than a fair share of the bandwidth.
    fn class_of(spec: &FlowSpec) -> u8 {
        let ecn = if spec.ecn { ECN_CAPABLE } else { 0 };
        spec.traffic_class & !ECN_MASK | ecn
    }

    /// IP and UDP header of the flow's packets, without lengths and identification (IBTA A17.3.1.1,
    /// IBTA A17.3.1.2, IBTA A17.3.2.2).
    fn template(spec: &FlowSpec, tclass: u8) -> [u8; HEADERS_V6] {
        let hops = match spec.hop_limit {
            // The default of multicast sockets: packets are not routed.
            0 if is_multicast(&spec.destination) => 1,
            0 => DEFAULT_HOP_LIMIT,
            hops => hops,
        };
        let [s0, s1] = spec.source_port.to_be_bytes();
        let [d0, d1] = ROCE_UDP_PORT.to_be_bytes();
        let ports = [s0, s1, d0, d1];
        let mut headers = [0; HEADERS_V6];
        if let (Some(source), Some(destination)) =
            (mapped_v4(&spec.source), mapped_v4(&spec.destination))
        {
            // Version and length, type of service, total length, identification, "do not
            // fragment", time to live, UDP, checksum.
            headers[..12].copy_from_slice(&[0x45, tclass, 0, 0, 0, 0, 0x40, 0, hops, 17, 0, 0]);
            headers[12..16].copy_from_slice(&source);
            headers[16..20].copy_from_slice(&destination);
            headers[20..24].copy_from_slice(&ports);
        } else {
            let word = 6 << 28 | u32::from(tclass) << 20 | spec.flow_label & 0xf_ffff;
            headers[..4].copy_from_slice(&word.to_be_bytes());
            // Payload length, UDP, hop limit.
            headers[4..8].copy_from_slice(&[0, 0, 17, hops]);
            headers[8..24].copy_from_slice(&spec.source);
            headers[24..40].copy_from_slice(&spec.destination);
            headers[40..44].copy_from_slice(&ports);
        }
        headers
    }

    /// Returns the network device.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn dev(&self) -> &NetDev {
        &self.dev
    }

    /// Returns true for IPv4, false for IPv6.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.v4
    }

    /// Returns the length of the IP header and the UDP header.
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn headers_len(&self) -> usize {
        if self.v4 {
            HEADERS_V4
        } else {
            HEADERS_V6
        }
    }

    /// Largest IP packet that IPsec allows on the path, in bytes; `None` if nothing
    /// protects the packets of the flow, without a route, and as long as there are no keys.
    ///
    /// # Context
    ///
    /// Any context that may take locks with bottom halves disabled.
    pub fn ipsec_mtu(&self) -> Option<u32> {
        // SAFETY: The flow is alive.
        Some(unsafe { bindings::rxe_rs_flow_ipsec_mtu(self.raw.as_ptr()) }).filter(|&mtu| mtu != 0)
    }

    /// Returns the IPv4 identification of the next packet.
    #[inline]
    pub(super) fn next_id(&self) -> u16 {
        self.next_id.load(Relaxed) as u16
    }

    #[inline]
    pub(super) fn set_next_id(&self, id: u16) {
        self.next_id.store(id.into(), Relaxed);
    }

    /// Returns the traffic class of a packet: `own`, or that of the flow.
    #[inline]
    pub(super) fn class(&self, own: Option<u8>) -> u8 {
        own.unwrap_or(self.class)
    }

    /// The headers of a packet of this flow, as they are on the wire but for checksums, with a
    /// traffic class of their own if asked for.
    #[inline]
    pub(super) fn headers_of(&self, len: u16, id: u16, class: Option<u8>) -> [u8; HEADERS_V6] {
        let mut headers = self.headers;
        if let Some(class) = class {
            set_class(&mut headers, self.v4, class);
        }
        set_lengths(&mut headers, self.v4, len);
        if self.v4 {
            set_ipv4_id(&mut headers, id);
        }
        headers
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // SAFETY: The flow is alive and not used any more.
        unsafe { bindings::rxe_rs_flow_free(self.raw.as_ptr()) };
    }
}
