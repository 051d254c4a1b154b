// SPDX-License-Identifier: GPL-2.0
//! The receive path, from the buffer that the network stack delivers to the engine of a queue pair.
//!
//! It runs in softirq, directly in UDP's receive path. [`LockedQp::deliver`] and [`admit`] make
//! every check that can drop a packet, before anything is queued, and drops are counted by reason.
//! Consecutive packets for one QP are handled under one acquisition of its lock; the responses that
//! they cause are transmitted after the lock is released.
//!
//! Follow a packet from [`Rx::receive`] to [`RxBatch::packet`], `LockedQp::deliver` and
//! [`QpCtx::receive`], which calls the engine. The folder also holds the tables of queue pairs and
//! devices, the multicast groups, and the tap of raw packet queue pairs.

pub(crate) mod multicast;
pub(crate) mod raw;
pub(crate) mod tables;

mod ingress;

use self::tables::Demux;
use crate::{
    clock,
    device::counters::Traffic,
    mr::MrAccess,
    qp::{
        KernelCrc,
        QpCtx,
        QpInner,
        Received, //
    },
};
use kernel::sync::{
    rcu,
    Arc, //
};
use rxe_kapi::{
    net::{
        skb::{
            RxSegment,
            RxSkb,
            MAX_FRAGS, //
        },
        udp_tunnel::Receive, //
    },
    prefetch::prefetch,
    rdma::cq::Origin,
    sync::{
        Global,
        SpinLockBhGuard, //
    }, //
};
use rxe_proto::{
    check::admit::{
        admit,
        AdmissionAttrs,
        Path, //
    },
    drop::DropReason,
    engine::{
        backend::Handled,
        same_host::HostTag,
        wc::NetworkType,
        RxMeta,
        Service,
        ToSend, //
    },
    ids::{
        Gid,
        PKey,
        Qpn, //
    },
    time::Instant,
    wire::{
        bth::Bth,
        icrc::icrc,
        packet::{
            Packet,
            Payload, //
        },
        reference::Reference,
        Transport, //
    },
};

/// Bytes that a QP which shares the device with others may send before received packets no longer
/// cause it to transmit at once, but to be scheduled. On this host, packets that a received one
/// causes to be sent are received in the same pass over the softirqs, which a stream would keep
/// going until the budget of the network stack is used up, milliseconds later: softirqs behind it,
/// such as those that call completion handlers, also of other QPs, would wait for that.
const MAX_SENT_SINCE_RESUMED: usize = 1 << 16;

/// Tables that route received packets; the network stack's callback carries no context pointer.
pub(crate) static DEMUX: Global<Demux> = Global::new();

/// The receiver of the RoCEv2 port.
pub(crate) struct Rx;

impl Receive for Rx {
    #[inline]
    fn receive(skb: RxSkb) {
        let guard = rcu::read_lock();
        DEMUX.with(&guard, |demux| {
            let mut batch = RxBatch::new(demux, &guard);
            skb.for_each_segment(|segment| batch.packet(segment));
            batch.end();
        });
    }

    fn refuse(skb: RxSkb) {
        let guard = rcu::read_lock();
        DEMUX.with(&guard, |demux| {
            skb.for_each_segment(|segment| demux.count_drop(segment, &guard, DropReason::Policy));
        });
    }
}

/// A datagram in more fragments would be dropped on every retransmission; the C side linearizes a
/// buffer with more fragments than it allows.
const _: () = assert!(MAX_FRAGS <= Payload::MAX_FRAGS);

/// Packets that arrived in one buffer, from one peer and with one timestamp.
pub(crate) struct RxBatch<'g> {
    demux: &'g Demux,
    guard: &'g rcu::Guard,
    now: Instant,
    current: Option<LockedQp<'g>>,
}

/// The locked QP that consecutive packets of a batch are addressed to.
struct LockedQp<'g> {
    qp: &'g Arc<QpCtx>,
    inner: SpinLockBhGuard<'g, QpInner>,
    mrs: MrAccess<'g>,
    path: Path,
    /// Index of the network device with the destination address.
    netdev: u32,
    /// A packet was passed to the engine.
    delivered: bool,
    /// Packets that were admitted, and their bytes after the UDP headers. Those to a group are
    /// counted once for all its members.
    packets: usize,
    bytes: usize,
    /// Of these packets, those that had no ICRC.
    without_icrc: u64,
    /// Of these, those that were merged. Each counts as several in `packets`.
    merged: u64,
    /// Packets by reference.
    by_reference: u64,
}

impl<'g> RxBatch<'g> {
    /// Creates a batch of which no packet has been handled yet.
    pub(crate) fn new(demux: &'g Demux, guard: &'g rcu::Guard) -> Self {
        Self {
            demux,
            guard,
            now: clock::now(),
            current: None,
        }
    }

    /// Handles the next packet.
    pub(crate) fn packet(&mut self, segment: &RxSegment<'_>) {
        let now = self.now;
        let dropped = match Packet::parse(segment.head(), segment.len()) {
            Ok(packet) => match self.lock_qp(segment, packet.bth().dest_qpn) {
                Ok(Some(locked)) => return locked.handle(now, segment, packet),
                Ok(None) if packet.bth().dest_qpn == Qpn::GSI => return self.gsi(segment, packet),
                Ok(None) => return self.multicast(segment, packet),
                Err(reason) => reason,
            },
            Err(reason) => reason,
        };
        match &self.current {
            Some(locked) => locked.count_drop(dropped),
            None => self.demux.count_drop(segment, self.guard, dropped),
        }
    }

    /// Returns the locked QP that a packet is addressed to; `None` for QP1 and for multicast groups
    /// (IBTA 9.6.1.1).
    #[inline]
    fn lock_qp(
        &mut self,
        segment: &RxSegment<'_>,
        qpn: Qpn,
    ) -> Result<Option<&mut LockedQp<'g>>, DropReason> {
        let is_current = self.current.as_ref().is_some_and(|s| s.qp.qpn == qpn.get());
        if !is_current {
            self.end();
            if qpn == Qpn::GSI || qpn == Qpn::MULTICAST {
                return Ok(None);
            }
            let qp = self.demux.find(self.guard, qpn).ok_or(DropReason::NoQp)?;
            prefetch(&**qp);
            self.current = Some(LockedQp::lock(self.guard, segment, qp)?);
        }
        Ok(self.current.as_mut())
    }

    /// Handles a packet for QP1, of which every device has its own.
    fn gsi(&self, segment: &RxSegment<'_>, packet: Packet<'_>) {
        let Some(qp) = self.demux.find_gsi(segment, self.guard) else {
            return self.demux.count_drop(segment, self.guard, DropReason::NoQp);
        };
        match LockedQp::lock(self.guard, segment, qp) {
            Ok(mut locked) => {
                locked.handle(self.now, segment, packet);
                locked.finish(self.guard, self.now);
            }
            Err(reason) => qp.dev.counters.drop(reason),
        };
    }

    /// Delivers a packet to every QP of its devices that is attached to its group, one after the
    /// other.
    ///
    /// The sender's own QP also receives it if the packet is looped back to this host
    /// (IBTA 10.5.2).
    fn multicast(&self, segment: &RxSegment<'_>, packet: Packet<'_>) {
        // The ICRC is verified once for all members.
        let mut intact = None;
        let mut delivered = false;
        let mut refused = DropReason::NoGroup;
        let group = Gid(segment.destination());
        self.demux.each_of_group(segment, self.guard, |dev| {
            let mut here = false;
            dev.groups.each_member(&group, self.guard, |qp| {
                match self.deliver_to_member(qp, segment, packet, &mut intact) {
                    Ok(()) => here = true,
                    Err(reason) => refused = reason,
                }
            });
            if here {
                dev.counters.received(1, segment.len());
                delivered = true;
            }
        });
        if !delivered {
            self.demux.count_drop(segment, self.guard, refused);
        }
    }

    /// Delivers a packet to a QP that is attached to its group. `intact` says whether the ICRC
    /// matches, as soon as it has been verified for one of the members.
    fn deliver_to_member(
        &self,
        qp: &'g Arc<QpCtx>,
        segment: &RxSegment<'_>,
        packet: Packet<'_>,
        intact: &mut Option<bool>,
    ) -> Result<(), DropReason> {
        let mut locked = LockedQp::lock(self.guard, segment, qp)?;
        let verify = |packet: &Packet<'_>, segment: &RxSegment<'_>, all: &Payload<'_>| {
            *intact.get_or_insert_with(|| icrc_matches(packet, segment, all))
        };
        let result = locked.deliver(self.now, segment, packet, None, verify);
        locked.finish(self.guard, self.now);
        result
    }

    /// Unlocks the QP of the last packets and transmits what they caused to be sent.
    pub(crate) fn end(&mut self) {
        if let Some(locked) = self.current.take() {
            locked.finish(self.guard, self.now);
        }
    }
}

impl<'g> LockedQp<'g> {
    /// Locks the QP that a packet is addressed to, if it may have arrived the way it did
    /// (IBTA 9.6.1.2.3).
    fn lock(
        guard: &'g rcu::Guard,
        segment: &RxSegment<'_>,
        qp: &'g Arc<QpCtx>,
    ) -> Result<Self, DropReason> {
        // QP numbers are unique in the module, so a packet finds its QP before its device is known.
        if !qp.dev.is_ingress(segment, guard) {
            return Err(DropReason::BadPeer);
        }
        // Connected QPs compare it with their own address (see `admit`); others accept any GID of
        // the device.
        let destination = Gid(segment.destination());
        let connected = matches!(qp.service, Service::Rc | Service::Uc);
        let mut netdev = segment.ifindex();
        if !connected && !destination.is_multicast() {
            let owner = qp.dev.gids.netdev_of(&destination, netdev, guard);
            netdev = owner.ok_or(DropReason::NoGid)?;
        }
        let inner = qp.inner.lock();
        if inner.destroyed {
            return Err(DropReason::NoQp);
        }
        Ok(Self {
            mrs: qp.mr_access(guard, &inner),
            qp,
            inner,
            path: Path {
                source: Gid(segment.source()),
                destination,
            },
            netdev,
            delivered: false,
            packets: 0,
            bytes: 0,
            without_icrc: 0,
            merged: 0,
            by_reference: 0,
        })
    }

    /// Counts a dropped packet.
    fn count_drop(&self, reason: DropReason) {
        self.qp
            .counter_set(&self.inner)
            .each(|counters| counters.drop(reason));
    }

    /// Unlocks the QP, notifies the consumers of completions and transmits what the packets, which
    /// arrived at `now`, caused to be sent.
    fn finish(self, rcu: &rcu::Guard, now: Instant) {
        let Self {
            qp,
            mut inner,
            mrs,
            delivered,
            packets,
            bytes,
            without_icrc,
            merged,
            by_reference,
            ..
        } = self;
        qp.counter_set(&inner).each(|counters| {
            counters.received(packets, bytes);
            counters.traffic(Traffic::RxWithoutIcrc, without_icrc);
            counters.traffic(Traffic::RxMerged, merged);
            counters.traffic(Traffic::RxByReference, by_reference);
        });
        let to_send = match delivered {
            true => qp.to_send(&mut inner, &mrs),
            false => ToSend::Nothing,
        };
        // Whoever deregisters the region used last does not wait for consumers and transmission.
        drop(mrs);
        let defers = inner.shares_device && inner.sent_since_resumed >= MAX_SENT_SINCE_RESUMED;
        // The ACK leaves together with the reply of the consumer, if there is one.
        let defers = defers || (to_send == ToSend::Ack && qp.may_reply(&inner));
        qp.unlock_and_notify(rcu, inner, Origin::Event);
        if to_send == ToSend::Nothing {
            return;
        }
        if defers {
            qp.as_arc_borrow().schedule_transmit();
        } else {
            qp.as_arc_borrow().transmit(now, Origin::Event);
        }
    }

    /// Checks one packet, passes it to the engine and counts it.
    #[inline]
    fn handle(&mut self, now: Instant, segment: &RxSegment<'_>, packet: Packet<'_>) {
        let has_icrc = host_tag(segment).has_icrc();
        let reference = match has_icrc {
            true => None,
            false => reference_in(&packet, segment),
        };
        let (packet, reference) = reference.map_or((packet, None), |(p, r)| (p, Some(r)));
        let payload = packet.payload_len();
        if let Err(reason) = self.deliver(now, segment, packet, reference, icrc_matches) {
            self.count_drop(reason);
            return;
        }
        let mut packets = 1;
        let mut bytes = segment.len();
        if !has_icrc {
            packets = self.inner.engine.packets_of(payload);
            self.without_icrc = self.without_icrc.wrapping_add(1);
            self.merged = self.merged.wrapping_add(u64::from(packets > 1));
        }
        if reference.is_some() {
            bytes = bytes.wrapping_add(payload);
            self.by_reference = self.by_reference.wrapping_add(1);
        }
        self.bytes = self.bytes.wrapping_add(bytes);
        self.packets = self.packets.wrapping_add(packets);
    }

    /// Passes one packet to the engine if the QP may process it (IBTA 9.6.1.1). `reference` is what
    /// it has in place of its payload.
    fn deliver(
        &mut self,
        now: Instant,
        segment: &RxSegment<'_>,
        packet: Packet<'_>,
        reference: Option<Reference>,
        verify: impl FnOnce(&Packet<'_>, &RxSegment<'_>, &Payload<'_>) -> bool,
    ) -> Result<(), DropReason> {
        let (qp, inner) = (self.qp, &mut *self.inner);
        let dev = &qp.dev;
        let mut all = Payload::from_slice(&[]);
        for frag in segment.frags() {
            // It fits: see the assertion above.
            if !all.push(frag) {
                return Err(DropReason::BadLength);
            }
        }
        inner.engine.state().receives()?;
        let transport = match qp.service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Ud | Service::Gsi => Transport::Ud,
            Service::Raw => return Err(DropReason::WrongTransport),
        };
        let own = inner.engine.attrs.mtu.bytes();
        // The port's MTU may have grown since a datagram QP was set up.
        let mtu = match transport {
            Transport::Ud => own.max(dev.link_mtu().bytes()),
            _ => own,
        };
        let attrs = AdmissionAttrs {
            transport,
            mtu: usize::try_from(mtu).unwrap_or(0),
            qpn: Qpn::new(qp.qpn),
            pkey: dev.pkey(inner.pkey_index),
            qkey: inner.engine.attrs.qkey,
            peer: inner.peer,
            own: inner.own,
        };
        let mut pkey_index = inner.pkey_index;
        let in_table = |pkey: PKey| {
            let found = dev.find_pkey(pkey);
            pkey_index = found.unwrap_or(pkey_index);
            found.is_some()
        };
        let icrc_ok = |packet: &Packet<'_>| verify(packet, segment, &all);
        let admitted = admit(packet, &attrs, &self.path, in_table, icrc_ok)?;
        let packet = admitted.packet();
        let payload = match reference {
            Some(reference) => Payload::by_reference(reference.source, packet.payload_len()),
            None => all.slice(packet.payload_offset(), packet.payload_len()),
        };
        let same_id = segment.same_id_hdr();
        let net = same_id.as_ref().map_or(segment.net_hdr(), |net| net);
        let (kind, ip) = match net.len() {
            28 => (NetworkType::V4, 20),
            _ => (NetworkType::V6, 40),
        };
        let meta = RxMeta {
            net: kind,
            ip_header: net.get(..ip).unwrap_or(&[]),
            pkey_index,
            // Only the completions of datagrams report it.
            vlan: match transport {
                Transport::Ud => segment.vlan_of(self.netdev),
                _ => None,
            },
            tag: host_tag(segment),
            merged: reference.map_or(segment.whole_size(), |reference| reference.mtu),
        };
        let received = Received {
            segment,
            packet,
            payload: &payload,
            meta: &meta,
        };
        qp.receive(inner, &self.mrs, now, &received);
        self.delivered = true;
        Ok(())
    }
}

impl QpCtx {
    /// Passes one admitted packet to the engine; the caller runs transmission rounds after the
    /// batch.
    fn receive(
        &self,
        inner: &mut QpInner,
        mrs: &MrAccess<'_>,
        now: Instant,
        received: &Received<'_>,
    ) {
        if inner.paging.is_deferring() {
            return self.defer(inner, received);
        }
        let (engine, mut backend, _) = inner.split(self, mrs);
        let Received {
            packet,
            payload,
            meta,
            ..
        } = *received;
        let handled = engine.handle_packet(now, packet, payload, meta, &mut backend);
        inner.extent = mrs.hint.get();
        match handled {
            Handled::Done => {}
            Handled::Deferred => {
                inner.paging.note_fault(mrs);
                self.defer(inner, received);
            }
            Handled::Ahead => self.keep(inner, mrs, received),
        }
        if !inner.kept.is_empty() {
            self.replay_kept(inner, mrs, now);
        }
    }
}

/// Returns what a packet without an ICRC has in place of its payload, if it is by reference, and
/// the packet as it would be with the payload.
#[inline]
fn reference_in<'a>(
    packet: &Packet<'a>,
    segment: &RxSegment<'_>,
) -> Option<(Packet<'a>, Reference)> {
    // Such a packet is contiguous.
    let bytes = segment.head();
    if packet.opcode().transport() != Transport::Rc || bytes.len() != segment.len() {
        return None;
    }
    let reference = Reference::parse(packet, bytes)?;
    let packet = packet.with_payload_len(usize::try_from(reference.len).ok()?)?;
    Some((packet, reference))
}

/// Returns the tag that a packet arrived with.
fn host_tag(segment: &RxSegment<'_>) -> HostTag {
    HostTag::from_bits(segment.tag())
}

/// Verifies the ICRC, which covers the whole packet but the ICRC itself (IBTA A17.3.4).
///
/// The datagrams of a GRO buffer may have had identifications that increment or that are all equal,
/// and the buffer does not record which. If the ICRC does not match with the first, the second is
/// tried, at most once per packet, and kept for the rest of the buffer if it matches.
///
/// A packet that this kernel has sent without an ICRC counts as intact: its tag proves that it has
/// not left the memory since.
fn icrc_matches(packet: &Packet<'_>, segment: &RxSegment<'_>, all: &Payload<'_>) -> bool {
    if !host_tag(segment).has_icrc() {
        return true;
    }
    if icrc_matches_with(packet, segment.net_hdr(), all) {
        return true;
    }
    let Some(net) = segment.with_same_id() else {
        return false;
    };
    let matches = icrc_matches_with(packet, &net, all);
    if matches {
        segment.set_same_id();
    }
    matches
}

/// Returns true if the ICRC matches with the IP and UDP header `net`.
fn icrc_matches_with(packet: &Packet<'_>, net: &[u8], all: &Payload<'_>) -> bool {
    let end = packet.icrc_offset();
    let Some(bth) = packet.header_bytes().first_chunk::<{ Bth::LEN }>() else {
        return false;
    };
    let Some(body) = end.checked_sub(Bth::LEN) else {
        return false;
    };
    let mut found = [0u8; Packet::ICRC_LEN];
    if all.slice(end, found.len()).copy_to(&mut found) != found.len() {
        return false;
    }
    let rest = all.slice(Bth::LEN, body);
    icrc(&KernelCrc, net, bth, rest.frags()) == found
}
