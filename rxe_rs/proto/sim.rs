// SPDX-License-Identifier: GPL-2.0
//! Pair simulator: two engines, a virtual clock and a lossy wire, all from one seed.
//!
//! The seed of a failing run reproduces it exactly. The wire carries real packets with ICRC, so
//! the receiver detects corruption as on a real network.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions
)]

mod clock;
pub mod fuzz;
mod host;
mod in_flight;
pub mod mutate;
mod queue;
pub mod random;
mod sink;

use crate::check::window::Bind;
use crate::engine::backend::Handled;
use crate::engine::repeat::KeptPacket;
use crate::engine::same_host::HostTag;
use crate::engine::wc::{NetworkType, WcStatus};
use crate::engine::wr::{
    FlushKind, LocalOp, Register, RemoteAddr, SendBody, SendOp, SendWqe, SendWr, UdDest,
};
use crate::engine::{Progress, Qp, ReceiveQueue, RxMeta, Service, State, ToSend};
use crate::ids::{Mtu, Psn, Qpn, RKey};
use crate::time::Instant;
use crate::wire::feth::Selectivity;
use crate::wire::packet::{Packet, Payload};
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;
pub use host::{Host, RecvBuf};
pub use queue::{run_together, Queue};
pub use sink::FRAME_LEN;
use sink::{icrc_of, net_header, Sink};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::vec::Vec;

/// The seeds of a test: `0..count`, or `RXE_SIM_SCALE` times as many from `RXE_SIM_SEED` on. One of
/// them in an interpreter, a thousand times as slow.
pub fn seeds(count: u64) -> core::ops::Range<u64> {
    let count = if cfg!(miri) { 1 } else { count };
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let first = number("RXE_SIM_SEED").unwrap_or(0);
    first..first + count * number("RXE_SIM_SCALE").unwrap_or(1)
}

/// Maximum payload of a merged packet, in bytes.
const MAX_MERGED: u32 = 61_440;

/// Bytes of a page of on-demand memory.
pub const PAGE: usize = 1024;

/// Maximum number of deferred packets; further packets are dropped.
const MAX_DEFERRED_PACKETS: usize = 64;

/// Maximum number of packets in a GSO batch of most pairs.
const GSO_MAX_SEGS: u32 = 15;

/// Time to handle a page fault, in nanoseconds.
const PAGE_FAULT_NS: u64 = 40_000;

/// Time between two calls for one FLUSH, in nanoseconds.
const FLUSH_CALL_NS: u64 = 3_000;

/// R_Key of the only region of each host.
pub const RKEY: RKey = RKey(0x1234_5678);

/// Remote address that [`wr`] reads and writes.
pub const REMOTE: u64 = 0x8000;

/// A signaled request that accesses the region of the peer, with operands of 0. A local operation
/// is one on [`RKEY`].
pub fn wr(op: SendOp, wr_id: u64, length: u32) -> SendWr {
    let at = RemoteAddr {
        addr: REMOTE,
        rkey: RKEY,
    };
    let mut wr = SendWr::EMPTY;
    wr.body = match op {
        SendOp::Send => SendBody::Send,
        SendOp::SendImm => SendBody::SendImm([0; 4]),
        SendOp::SendInv => SendBody::SendInv(RKEY),
        SendOp::Write => SendBody::Write(at),
        SendOp::WriteImm => SendBody::WriteImm(at, [0; 4]),
        SendOp::Read => SendBody::Read(at),
        SendOp::CmpSwp => SendBody::CmpSwp {
            at,
            compare: 0,
            swap: 0,
        },
        SendOp::FetchAdd => SendBody::FetchAdd { at, add: 0 },
        SendOp::AtomicWrite => SendBody::AtomicWrite(at),
        SendOp::Flush => SendBody::Flush(
            at,
            FlushKind {
                placement: 0,
                selectivity: Selectivity::Range,
            },
        ),
        SendOp::LocalInv => SendBody::Local(LocalOp::Invalidate(RKEY)),
        SendOp::BindMw => SendBody::Local(LocalOp::Bind(Bind {
            window: RKEY,
            key: RKEY,
            region: RKEY.0,
            addr: 0,
            length: 0,
            access: 0,
        })),
        SendOp::RegMr => SendBody::Local(LocalOp::Register(Register {
            key: RKEY,
            iova: 0,
            length: 0,
            access: 0,
        })),
    };
    wr.wr_id = wr_id;
    wr.length = length;
    wr.flags.signaled = true;
    wr
}

/// Where a request accesses the memory of the peer; `None` if it does not.
pub fn remote_mut(wr: &mut SendWr) -> Option<&mut RemoteAddr> {
    match &mut wr.body {
        SendBody::Write(at)
        | SendBody::WriteImm(at, _)
        | SendBody::Read(at)
        | SendBody::CmpSwp { at, .. }
        | SendBody::FetchAdd { at, .. }
        | SendBody::AtomicWrite(at)
        | SendBody::Flush(at, _) => Some(at),
        _ => None,
    }
}

/// Sets the remote address of a request, if it has one.
pub fn set_remote(wr: &mut SendWr, addr: u64) {
    if let Some(at) = remote_mut(wr) {
        at.addr = addr;
    }
}

/// Sets the remote key of a request that has a remote address.
pub fn set_rkey(wr: &mut SendWr, rkey: RKey) {
    remote_mut(wr).expect("a remote access").rkey = rkey;
}

/// Sets the immediate data of a request, if it has some.
pub fn set_imm(wr: &mut SendWr, new: [u8; 4]) {
    if let SendBody::SendImm(imm) | SendBody::WriteImm(_, imm) | SendBody::DatagramImm(_, imm) =
        &mut wr.body
    {
        *imm = new;
    }
}

/// Sets the addend of an ATOMIC fetch and add.
pub fn set_addend(wr: &mut SendWr, new: u64) {
    match &mut wr.body {
        SendBody::FetchAdd { add, .. } => *add = new,
        other => panic!("{other:?} has no addend"),
    }
}

/// Sets the parameters of a FLUSH.
pub fn set_flush(wr: &mut SendWr, new: FlushKind) {
    match &mut wr.body {
        SendBody::Flush(_, kind) => *kind = new,
        other => panic!("{other:?} is no FLUSH"),
    }
}

/// Makes a datagram of a SEND.
pub fn to_datagram(wr: &mut SendWr, to: UdDest) {
    wr.body = match wr.body {
        SendBody::Send => SendBody::Datagram(to),
        SendBody::SendImm(imm) => SendBody::DatagramImm(to, imm),
        other => other,
    };
}

/// Impairments of the wire; probabilities are per packet, 0.0..=1.0.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// Probability of being delayed by up to ten times the latency.
    pub reorder: f64,
    pub latency_ns: u64,
    /// Probability that the sender has no room or memory for a packet.
    pub busy: f64,
    /// Probability that a router marks the packet CE.
    pub mark: f64,
    /// Serialization time of a packet, in nanoseconds; 0: none.
    pub packet_ns: u64,
    /// Maximum number of packets queued for the wire; further packets are dropped.
    pub queue: u64,
    /// Probability that the wire stalls before a packet, as when a virtual machine is not
    /// scheduled.
    pub stall: f64,
    /// Maximum duration of a stall, in nanoseconds.
    pub stall_ns: u64,
}

impl Link {
    pub const PERFECT: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        corrupt: 0.0,
        reorder: 0.0,
        latency_ns: 5_000,
        busy: 0.0,
        mark: 0.0,
        packet_ns: 0,
        queue: u64::MAX,
        stall: 0.0,
        stall_ns: 0,
    };
}

/// A packet in flight.
struct InFlight {
    /// The side that it is sent to.
    to: usize,
    /// From the BTH to the ICRC.
    bytes: Vec<u8>,
    /// Marked CE by a queue.
    marked: bool,
    tag: HostTag,
}

/// Two connected hosts.
pub struct Pair {
    pub now: Instant,
    pub link: Link,
    pub rng: fastrand::Rng,
    pub qps: [Qp; 2],
    pub hosts: [Host; 2],
    /// Packets in flight, by arrival time and a tie breaker.
    wire: BTreeMap<(Instant, u64), InFlight>,
    /// Queue that the packets to each side pass besides the wire.
    pub queues: [Option<Rc<RefCell<Queue>>>; 2],
    serial: u64,
    /// When the wire to each side becomes idle.
    wire_free: [Instant; 2],
    pub packets_sent: u64,
    /// Their bytes from BTH to ICRC.
    pub bytes_sent: u64,
    /// Number of intact packets to each side that were lost, in the network or before they were
    /// handled.
    pub lost: [u64; 2],
    /// Probability that a page is invalidated in a step.
    pub evict: f64,
    /// Deferred packets of each side, oldest first.
    deferred: [VecDeque<(Vec<u8>, HostTag)>; 2],
    /// Packets ahead of the expected one that each side keeps.
    kept: [Vec<(KeptPacket, Vec<u8>, HostTag)>; 2],
    /// Number of packets that were kept.
    pub kept_packets: u64,
    /// Probability that a side has no memory to keep a packet, and that one it kept is gone.
    pub forget: f64,
    /// When the page faults in progress are handled.
    faults_done_at: [Option<Instant>; 2],
    /// Number of deferred packets.
    pub deferred_packets: u64,
    /// The sides whose packets stay in the memory of one kernel, so that their tags arrive.
    pub same_host: [bool; 2],
    /// Number of packets that were sent without an ICRC.
    pub without_icrc: u64,
    /// Maximum payload of a merged packet, and the number of them that were sent.
    pub max_merged: u32,
    /// Maximum payload of a packet by reference: 0, unless a test sets it.
    pub max_by_reference: u32,
    pub merged: u64,
    /// A device between both sides drops merged packets.
    pub drops_merged: bool,
    /// Number of packets of each side whose reserved bits behind AckReq are not 0.
    pub with_reserved_bits: [u64; 2],
    /// Modifies the packets of side 1 before their ICRC is computed.
    pub rewrite: Option<fn(&mut [u8])>,
    /// The device of each side gives all segments of a GSO batch the same IPv4 identification.
    pub same_ip_id: [bool; 2],
    /// The device of each side sends a GSO batch as one datagram, in fragments: all its packets are
    /// lost.
    pub one_datagram: [bool; 2],
    /// Maximum number of packets in a GSO batch; 1 if the devices cannot segment.
    pub gso_max_segs: u32,
    /// Number of packets that were not the first of a GSO batch.
    pub later_segments: u64,
    /// The packet being delivered is marked CE.
    marked: bool,
}

impl Pair {
    /// Send completions of a side so far: `wr_id` and status.
    pub fn statuses(&self, side: usize) -> Vec<(u64, WcStatus)> {
        let sent = self.hosts[side].sent.iter();
        sent.map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// The pair of most tests: path MTU 1024, and 64 KiB of memory on each side.
    pub fn small(service: Service, seed: u64, link: Link) -> Self {
        Self::of(service, seed, link, Mtu::Mtu1024, 1 << 16)
    }

    /// A connected RC pair with `memory` bytes on each side.
    pub fn new(seed: u64, link: Link, mtu: Mtu, memory: usize) -> Self {
        Self::of(Service::Rc, seed, link, mtu, memory)
    }

    /// A pair of any service.
    pub fn of(service: Service, seed: u64, link: Link, mtu: Mtu, memory: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Every second pair starts close to the wrap.
        let psn = [(); 2].map(|()| match rng.bool() {
            true => Psn::new(0u32.wrapping_sub(rng.u32(0..300))),
            false => Psn::new(rng.u32(..)),
        });
        let mut pair = Self {
            now: Instant::from_ns(1),
            link,
            rng,
            qps: [
                Qp::new(service, Qpn::new(0x11), ReceiveQueue::Announced),
                Qp::new(service, Qpn::new(0x12), ReceiveQueue::Announced),
            ],
            hosts: [Host::default(), Host::default()],
            wire: BTreeMap::new(),
            queues: [None, None],
            serial: 0,
            wire_free: [Instant::ZERO; 2],
            packets_sent: 0,
            bytes_sent: 0,
            lost: [0; 2],
            evict: 0.0,
            deferred: Default::default(),
            kept: Default::default(),
            kept_packets: 0,
            forget: 0.0,
            faults_done_at: [None; 2],
            deferred_packets: 0,
            with_reserved_bits: [0; 2],
            rewrite: None,
            same_ip_id: [false; 2],
            one_datagram: [false; 2],
            same_host: [false; 2],
            without_icrc: 0,
            max_merged: MAX_MERGED,
            max_by_reference: 0,
            merged: 0,
            drops_merged: false,
            gso_max_segs: GSO_MAX_SEGS,
            later_segments: 0,
            marked: false,
        };
        for side in 0..2 {
            let fill = pair.rng.u8(..);
            pair.hosts[side].memory = RefCell::new(vec![fill; memory]);
            pair.hosts[side].flush_step = usize::MAX;
            let qp = &mut pair.qps[side];
            let host = &mut pair.hosts[side];
            qp.set_state(State::Init, host);
            qp.attrs.dest_qpn = Qpn::new(0x12 - side as u32);
            qp.attrs.mtu = mtu;
            qp.attrs.timeout = 10;
            qp.attrs.retry_cnt = 7;
            qp.attrs.rnr_retry = 7;
            qp.attrs.min_rnr_timer = 12;
            qp.attrs.max_rd_atomic = 4;
            host.set_max_dest_rd_atomic(qp, 4);
            qp.attrs.remote_read = true;
            qp.attrs.remote_write = true;
            qp.attrs.remote_atomic = true;
            qp.attrs.sqd_async_notify = true;
            qp.attrs.remote_flush = 1;
            qp.attrs.token = 1 + ((seed + 31 * side as u64) % 63) as u8;
            qp.set_rq_psn(psn[1 - side]);
            qp.set_state(State::Rtr, host);
            qp.set_sq_psn(psn[side]);
            qp.set_state(State::Rts, host);
        }
        pair
    }

    /// Changes the number of responder resources of a side.
    pub fn set_max_dest_rd_atomic(&mut self, side: usize, resources: u8) {
        self.hosts[side].set_max_dest_rd_atomic(&mut self.qps[side], resources);
    }

    /// Posts a send request with its payload at offset `at` of the memory of the side.
    pub fn post(&mut self, side: usize, wr: SendWr, at: usize) {
        self.hosts[side].wqes.push(SendWqe::new(wr));
        self.hosts[side].buffers.push(at);
    }

    /// Posts a send request that failed validation.
    pub fn post_invalid(&mut self, side: usize, wr: SendWr, status: WcStatus) {
        self.hosts[side].wqes.push(SendWqe::invalid(wr, status));
        self.hosts[side].buffers.push(0);
    }

    /// Runs one transmission round of a side.
    pub fn transmit(&mut self, side: usize) {
        loop {
            let room = self.rng.usize(1..20);
            if self.transmit_packets(side, room) == Progress::Idle {
                return;
            }
        }
    }

    /// Runs one transmission round of a side of up to `room` packets.
    pub fn transmit_packets(&mut self, side: usize, room: usize) -> Progress {
        let tag = self.qps[side].tag();
        let mut sink = Sink {
            packets: Vec::new(),
            room,
            net: net_header(side, 0),
            fails_at: usize::MAX,
            gso_max_segs: self.gso_max_segs,
            gso_indices: Vec::new(),
            open_batch: None,
            gso_disabled: false,
            has_icrc: tag.has_icrc(),
            max_merged: self.max_merged,
            merged: Vec::new(),
            max_by_reference: self.max_by_reference,
        };
        if self.link.busy > 0.0 && self.rng.f64() < self.link.busy {
            sink.fails_at = self.rng.usize(0..room);
        }
        let qp = &mut self.qps[side];
        let idle = qp.to_send(&self.hosts[side]) == ToSend::Nothing;
        let progress = qp.poll_transmit(self.now, &mut self.hosts[side], &mut sink);
        assert!(
            !idle
                || sink.packets.is_empty()
                    && progress == Progress::Idle
                    && qp.to_send(&self.hosts[side]) == ToSend::Nothing,
            "an idle QP sent"
        );
        let indices = &sink.gso_indices;
        for (at, (mut packet, merged)) in sink.packets.into_iter().zip(sink.merged).enumerate() {
            let gso_index = indices[at];
            let in_batch = gso_index > 0 || indices.get(at + 1).is_some_and(|next| *next > 0);
            self.merged += u64::from(merged);
            self.later_segments += u64::from(gso_index > 0);
            self.without_icrc += u64::from(!tag.has_icrc());
            let damaged = gso_index > 0 && self.same_ip_id[side] && tag.has_icrc();
            if damaged || in_batch && self.one_datagram[side] {
                // The ICRC was computed for another identification, or for one packet.
                let end = packet.len() - 4;
                packet[end..].iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            self.send(1 - side, packet, tag, merged);
        }
        progress
    }

    /// Injects a forged packet.
    pub fn inject(&mut self, to: usize, headers: Headers, payload: &[u8]) {
        let mut udp = headers.as_slice().to_vec();
        udp.extend(payload);
        udp.resize(udp.len() + headers.pad_len(), 0);
        let net = net_header(1 - to, udp.len() + 4);
        let crc = icrc_of(&net, &udp);
        udp.extend(crc);
        assert!(Packet::parse(&udp, udp.len()).is_ok());
        self.receive(to, &udp, HostTag::None);
    }

    fn send(&mut self, to: usize, mut packet: Vec<u8>, tag: HostTag, merged: bool) {
        // A tag is not on the wire.
        let mut tag = match self.same_host[1 - to] {
            true => tag,
            false => HostTag::None,
        };
        self.packets_sent += 1;
        self.bytes_sent += packet.len() as u64;
        self.with_reserved_bits[1 - to] += u64::from(packet[8] & 0x7f != 0);
        if let Some(rewrite) = self.rewrite.filter(|_| to == 0) {
            tag = HostTag::None;
            let end = packet.len() - 4;
            rewrite(&mut packet[..end]);
            let crc = icrc_of(&net_header(1 - to, packet.len()), &packet[..end]);
            packet[end..].copy_from_slice(&crc);
        }
        let copies = if self.rng.f64() < self.link.duplicate {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let Some((waits, marked)) = self.pass_network(to, packet.len()) else {
                self.lost[to] += 1;
                continue;
            };
            let mut delay = waits + self.link.latency_ns;
            if self.rng.f64() < self.link.reorder {
                delay += self.rng.u64(0..10 * self.link.latency_ns.max(1));
            }
            if self.rng.f64() < self.link.corrupt {
                let at = self.rng.usize(0..packet.len());
                packet[at] ^= 1 << self.rng.u8(0..8);
                tag = HostTag::None;
            }
            if merged && (self.drops_merged || tag == HostTag::None) {
                self.lost[to] += 1;
                continue;
            }
            self.serial += 1;
            self.wire.insert(
                (self.now + delay, self.serial),
                InFlight {
                    to,
                    bytes: packet.clone(),
                    marked,
                    tag,
                },
            );
        }
    }

    fn deliver(&mut self, packet: InFlight) {
        let InFlight {
            to,
            bytes,
            marked,
            tag,
        } = packet;
        let udp = &bytes;
        if self.qps[to].service() == Service::Raw {
            return self.qps[to].handle_frame(&Payload::from_slice(udp), &mut self.hosts[to]);
        }
        self.marked = marked;
        self.receive(to, udp, tag);
        self.marked = false;
    }

    fn receive(&mut self, to: usize, udp: &[u8], tag: HostTag) {
        if !self.deferred[to].is_empty() || self.handle_packet(to, udp, tag) == Handled::Deferred {
            self.defer(to, udp, tag);
        } else {
            self.replay_kept(to);
        }
    }

    fn defer(&mut self, to: usize, udp: &[u8], tag: HostTag) {
        self.deferred_packets += 1;
        if self.deferred[to].len() < MAX_DEFERRED_PACKETS {
            self.deferred[to].push_back((udp.to_vec(), tag));
        } else {
            self.lost[to] += 1;
        }
    }

    /// Passes the kept packets to the engine that are next.
    fn replay_kept(&mut self, to: usize) {
        while let Some(next) = self.qps[to].take_kept(&mut self.hosts[to]) {
            let Some(at) = self.kept[to].iter().position(|kept| kept.0 == next) else {
                continue;
            };
            let (_, udp, tag) = self.kept[to].swap_remove(at);
            if self.forgets() {
                self.lost[to] += 1;
                continue;
            }
            if self.handle_packet(to, &udp, tag) == Handled::Deferred {
                return self.defer(to, &udp, tag);
            }
        }
        if !self.qps[to].keeps_packets() {
            self.kept[to].clear();
        }
    }

    fn forgets(&mut self) -> bool {
        self.forget > 0.0 && self.rng.f64() < self.forget
    }

    /// Completes the page faults and processes the deferred packets.
    fn finish_page_faults(&mut self, side: usize) {
        self.faults_done_at[side] = None;
        let faulted = core::mem::take(self.hosts[side].faulted.get_mut());
        for page in faulted {
            self.hosts[side].absent.get_mut().remove(&page);
        }
        while let Some((udp, tag)) = self.deferred[side].pop_front() {
            if self.handle_packet(side, &udp, tag) == Handled::Deferred {
                self.deferred[side].push_front((udp, tag));
                return;
            }
        }
        self.replay_kept(side);
    }

    /// Drops the deferred packets of one side.
    pub fn drop_deferred(&mut self, side: usize) {
        self.deferred[side].clear();
    }

    /// Invalidates pages at random, and starts to handle page faults and FLUSHes in progress.
    fn start_page_faults(&mut self) {
        for side in 0..2 {
            let host = &mut self.hosts[side];
            if self.evict > 0.0 && self.rng.f64() < self.evict {
                let pages = host.memory.get_mut().len() / PAGE;
                host.absent.get_mut().insert(self.rng.usize(0..pages));
            }
            if !host.faulted.get_mut().is_empty() && self.faults_done_at[side].is_none() {
                self.faults_done_at[side] = Some(self.now + PAGE_FAULT_NS);
            }
            if !self.deferred[side].is_empty() && self.faults_done_at[side].is_none() {
                self.faults_done_at[side] = Some(self.now + FLUSH_CALL_NS);
            }
        }
    }

    /// Withdraws all that a side offers, as if the memory were deregistered for a while.
    pub fn withdraw_offers(&mut self, side: usize) {
        self.hosts[side].withdraw_all();
    }

    fn handle_packet(&mut self, to: usize, udp: &[u8], tag: HostTag) -> Handled {
        let Ok(packet) = Packet::parse(udp, udp.len()) else {
            return Handled::Done;
        };
        let body = &udp[..udp.len() - 4];
        let intact = || icrc_of(&net_header(1 - to, udp.len()), body) == udp[udp.len() - 4..];
        if tag.has_icrc() && !intact() {
            return Handled::Done;
        }
        let reference = match tag.has_icrc() {
            true => None,
            false => Reference::parse(&packet, udp),
        };
        let start = packet.payload_offset();
        let (packet, payload) = match reference {
            None => {
                let payload = &udp[start..start + packet.payload_len()];
                (packet, Payload::from_slice(payload))
            }
            Some(Reference { source, len, .. }) => {
                let len = len as usize;
                self.hosts[to].of_peer = self.hosts[1 - to].offered_payload(source, len);
                let packet = packet.with_payload_len(len).unwrap();
                (packet, Payload::by_reference(source, len))
            }
        };
        let of_peer = self.qps[1 - to].attrs.mtu.bytes();
        let mut ip_header = net_header(1 - to, udp.len());
        if self.link.mark > 0.0 && self.rng.f64() < self.link.mark {
            ip_header[1] = 3;
        }
        if self.marked {
            ip_header[1] = 3;
        }
        let meta = RxMeta {
            net: NetworkType::V4,
            ip_header: &ip_header[..20],
            pkey_index: 0,
            vlan: None,
            tag,
            merged: match packet.payload_len() > of_peer as usize && !tag.has_icrc() {
                true => of_peer,
                false => 0,
            },
        };
        let host = &mut self.hosts[to];
        let handled = self.qps[to].handle_packet(self.now, &packet, &payload, &meta, host);
        if handled == Handled::Ahead && self.forgets() {
            self.lost[to] += 1;
        } else if handled == Handled::Ahead {
            let host = &mut self.hosts[to];
            self.kept_packets += 1;
            let which = KeptPacket::of(&packet);
            self.kept[to].retain(|kept| kept.0 != which);
            self.kept[to].push((which, udp.to_vec(), tag));
            self.qps[to].on_kept(&packet, host);
        }
        handled
    }

    /// Delivers the packet that arrives next, and nothing is sent; false if none is in flight.
    pub fn deliver_next(&mut self) -> bool {
        let Some(entry) = self.wire.first_entry() else {
            return false;
        };
        self.now = self.now.max(entry.key().0);
        let packet = entry.remove();
        self.deliver(packet);
        true
    }

    /// Advances to the next arrival or timer; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next_event() else {
            return false;
        };
        self.advance(next);
        true
    }

    /// Runs a transmission round of both sides; returns the time of the next arrival or timer.
    fn next_event(&mut self) -> Option<Instant> {
        for side in 0..2 {
            self.transmit(side);
        }
        self.start_page_faults();
        let arrival = self.wire.keys().next().map(|k| k.0);
        let timers = self.timers();
        let pages = self.faults_done_at;
        let next = [arrival, timers[0], timers[1], pages[0], pages[1]];
        next.into_iter().flatten().min()
    }

    /// Whether one of the deferred packets of a side may be what its timers wait for.
    fn defers_responses(&self, side: usize) -> bool {
        self.deferred[side].iter().any(|(udp, _)| {
            Packet::parse(udp, udp.len()).is_ok_and(|packet| packet.opcode().is_response())
        })
    }

    /// When the timer of each side expires.
    fn timers(&self) -> [Option<Instant>; 2] {
        [0, 1].map(|side| match self.defers_responses(side) {
            true => self.qps[side].poll_resume(),
            false => self.qps[side].poll_timeout(),
        })
    }

    /// Processes all arrivals and timers up to `next`.
    fn advance(&mut self, next: Instant) {
        let (timers, pages) = (self.timers(), self.faults_done_at);
        self.now = self.now.max(next);
        for (side, timer) in timers.into_iter().enumerate() {
            if timer.is_some_and(|t| t <= self.now) && !self.defers_responses(side) {
                self.qps[side].handle_timeout(self.now, &mut self.hosts[side]);
            }
        }
        for (side, at) in pages.into_iter().enumerate() {
            if at.is_some_and(|at| at <= self.now) {
                self.finish_page_faults(side);
            }
        }
        // A receive batch: all packets that arrive now, before any response.
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let packet = entry.remove();
            self.deliver(packet);
        }
    }

    /// Changes the state of a QP that has not failed.
    pub fn set_state(&mut self, side: usize, state: State) {
        if self.qps[side].state() != State::Err {
            self.qps[side].set_state(state, &mut self.hosts[side]);
        }
    }

    /// Runs until there is no event left or `limit_ns` of virtual time have passed.
    pub fn run(&mut self, limit_ns: u64) {
        let end = self.now + limit_ns;
        while self.now < end && self.step() {}
    }
}
