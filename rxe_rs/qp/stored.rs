// SPDX-License-Identifier: GPL-2.0
//! Received packets that a QP passes to its engine later: deferred ones (`paging`), and those ahead
//! of the expected one (`kept`).

use super::backend::QpBackend;
use crate::device::backlog::{
    Backlog,
    BacklogCharge, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::net::skb::{
    HeldDatagram,
    RxSegment,
    MAX_HEAD, //
};
use rxe_proto::{
    engine::{
        backend::Handled,
        same_host::HostTag,
        wc::NetworkType,
        Qp as Engine,
        RxMeta, //
    },
    ids::Psn,
    time::Instant,
    wire::{
        bytes::put,
        packet::{
            Packet,
            Payload, //
        },
        payload::Source, //
    },
};

/// A packet that a QP has admitted.
pub(crate) struct Received<'a> {
    pub(crate) segment: &'a RxSegment<'a>,
    pub(crate) packet: &'a Packet<'a>,
    pub(crate) payload: &'a Payload<'a>,
    pub(crate) meta: &'a RxMeta<'a>,
}

/// Peers determine how much is stored, and no process is charged for it: allocations use no
/// reserves and do not sleep.
pub(super) const FLAGS: Flags = GFP_NOWAIT;

/// Returns the most that the allocator uses for `size` bytes.
fn allocated(size: usize) -> usize {
    size.checked_next_power_of_two().unwrap_or(usize::MAX)
}

/// Payload from which on a packet's buffer is kept. Smaller ones are copied: the memory of their
/// buffers is many times their length.
const MIN_HELD: usize = 1024;

/// Headers and payload of a packet.
enum Contents {
    Copy(KVec<u8>),
    /// The buffer that it arrived in, and a copy of its first bytes, headers included.
    Buffer(HeldDatagram, [u8; MAX_HEAD]),
}

/// A packet, with all that the engine has to know of it.
pub(super) struct StoredPacket {
    /// It is a response to a request of this side.
    is_response: bool,
    psn: Psn,
    contents: Contents,
    /// Bytes from BTH to ICRC, with those of a payload elsewhere.
    len: usize,
    /// Where its payload is, if it is in the memory of the sender.
    source: Option<Source>,
    net: NetworkType,
    ip_header: [u8; 40],
    ip_len: usize,
    pkey_index: u16,
    vlan: Option<u16>,
    tag: HostTag,
    merged: u32,
    charge: BacklogCharge,
}

impl Contents {
    /// Copies a packet.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn copy(packet: &Packet<'_>, payload: &Payload<'_>) -> Result<Self> {
        let headers = packet.header_bytes();
        let size = headers.len().saturating_add(payload.len_in_packet());
        let mut bytes = KVec::from_elem(0, size, FLAGS)?;
        let rest = put(&mut bytes, headers).ok_or(ENOMEM)?;
        payload.copy_to(rest);
        Ok(Self::Copy(bytes))
    }
}

impl StoredPacket {
    /// Stores a packet if the backlog allows it; the QP has `own` bytes there.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(
        backlog: &Arc<Backlog>,
        own: usize,
        received: &Received<'_>,
    ) -> Result<KBox<Self>> {
        let Received {
            segment,
            packet,
            payload,
            meta,
        } = *received;
        let held = match payload.len_in_packet() < MIN_HELD {
            true => None,
            false => segment.hold(),
        };
        let size = match &held {
            Some((_, bytes)) => *bytes,
            None => {
                let headers = packet.header_bytes().len();
                let size = headers.checked_add(payload.len_in_packet());
                allocated(size.ok_or(ENOMEM)?)
            }
        };
        let all = size.saturating_add(allocated(core::mem::size_of::<Self>()));
        let charge = Backlog::charge(backlog, own, all).ok_or(ENOMEM)?;
        let contents = match held {
            Some((datagram, _)) => {
                let mut head = [0; MAX_HEAD];
                for (to, from) in head.iter_mut().zip(segment.head()) {
                    *to = *from;
                }
                Contents::Buffer(datagram, head)
            }
            None => Contents::copy(packet, payload)?,
        };
        let mut ip_header = [0; 40];
        for (to, from) in ip_header.iter_mut().zip(meta.ip_header) {
            *to = *from;
        }
        let stored = Self {
            is_response: packet.opcode().is_response(),
            psn: packet.bth().psn,
            contents,
            len: packet.icrc_offset().saturating_add(Packet::ICRC_LEN),
            source: payload.source(),
            net: meta.net,
            ip_header,
            ip_len: meta.ip_header.len(),
            pkey_index: meta.pkey_index,
            vlan: meta.vlan,
            tag: meta.tag,
            merged: meta.merged,
            charge,
        };
        Ok(KBox::new(stored, FLAGS)?)
    }

    /// Returns true if it is a response to a request of this side.
    pub(super) fn is_response(&self) -> bool {
        self.is_response
    }

    /// Returns its PSN.
    pub(super) fn psn(&self) -> Psn {
        self.psn
    }

    /// Returns the bytes charged for it.
    pub(super) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Returns the bytes from BTH to ICRC, with those of a payload that is in the memory of the
    /// sender.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the packet with its headers only.
    pub(super) fn packet(&self) -> Option<Packet<'_>> {
        let head = match &self.contents {
            Contents::Copy(bytes) => &bytes[..],
            Contents::Buffer(_, head) => &head[..],
        };
        // It was parsed before it was stored.
        Packet::parse(head, self.len).ok()
    }

    /// Passes the packet to the engine.
    pub(super) fn pass_to(
        &self,
        engine: &mut Engine,
        now: Instant,
        backend: &mut QpBackend<'_, '_>,
    ) -> Handled {
        backend.stored = true;
        match &self.contents {
            Contents::Copy(bytes) => self.pass(&Payload::from_slice(bytes), engine, now, backend),
            Contents::Buffer(datagram, _) => datagram.with_frags(|frags| {
                let mut all = Payload::new();
                for frag in frags {
                    // It fitted when the packet was received.
                    let _ = all.push(frag);
                }
                self.pass(&all, engine, now, backend)
            }),
        }
    }

    /// Passes the packet with all these bytes to the engine.
    fn pass(
        &self,
        all: &Payload<'_>,
        engine: &mut Engine,
        now: Instant,
        backend: &mut QpBackend<'_, '_>,
    ) -> Handled {
        let Some(packet) = self.packet() else {
            return Handled::Done;
        };
        let payload = match self.source {
            Some(source) => Payload::by_reference(source, packet.payload_len()),
            None => all.slice(packet.payload_offset(), packet.payload_len()),
        };
        engine.handle_packet(now, &packet, &payload, &self.meta(), backend)
    }

    fn meta(&self) -> RxMeta<'_> {
        RxMeta {
            net: self.net,
            ip_header: self.ip_header.get(..self.ip_len).unwrap_or(&[]),
            pkey_index: self.pkey_index,
            vlan: self.vlan,
            tag: self.tag,
            merged: self.merged,
        }
    }
}
