// SPDX-License-Identifier: GPL-2.0
//! Pair simulator: two engines, a virtual clock and a lossy wire, all from one seed.
//!
//! A failing run is repeated exactly by its seed. The wire carries real packets, bytes and ICRC
//! included, so corruption is found the way a receiver finds it.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions
)]

pub mod fuzz;
pub mod mutate;

use crate::engine::ports::{
    AtomicOp, Count, Dest, Flushed, Handled, LocalFault, Ports, RemoteFault, RemoteRight, Taken,
    Tx, TxFault,
};
use crate::engine::qp::{JOBS, RESOURCES};
use crate::engine::wc::{NetKind, Wc, WcStatus};
use crate::engine::wr::{FlushKind, KeyFault, KeyOp, RecvWr, SendOp, SendWr, SqSlot};
use crate::engine::{Job, Progress, Qp, Resource, Service, State, UdMeta};
use crate::ids::{Mtu, PKey, Psn, Qpn, RKey};
use crate::wire::feth::Selectivity;
use crate::wire::icrc::{icrc, SoftCrc};
use crate::wire::packet::{Packet, Payload};
use crate::wire::repr::Headers;
use crate::wire::Feth;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

/// The seeds of a test: `0..count`, or `RXE_SIM_SCALE` times as many from `RXE_SIM_SEED` on.
pub fn seeds(count: u64) -> core::ops::Range<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let first = number("RXE_SIM_SEED").unwrap_or(0);
    first..first + count * number("RXE_SIM_SCALE").unwrap_or(1)
}

/// Bytes of a page that comes and goes.
pub const PAGE: usize = 1024;

/// Packets kept while a page is being got; what comes on top of them is lost.
const KEPT: usize = 64;

/// Time it takes to get pages, in nanoseconds.
const PAGE_IN_NS: u64 = 40_000;

/// Time between two pieces of a FLUSH, in nanoseconds.
const PIECE_NS: u64 = 3_000;

/// Key of each host's only region.
pub const RKEY: RKey = RKey(0x1234_5678);

/// Where in the peer's memory [`wr`] reads and writes.
pub const REMOTE: u64 = 0x8000;

/// A signaled request that names the peer's region.
pub fn wr(op: SendOp, wr_id: u64, length: u32) -> SendWr {
    let mut wr = SendWr::EMPTY;
    wr.op = op;
    wr.wr_id = wr_id;
    wr.length = length;
    wr.flags.signaled = true;
    wr.rkey = RKEY;
    wr.remote_addr = REMOTE;
    wr
}

/// What the wire does to packets; probabilities are per packet, 0.0..=1.0.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// Probability of being delayed by up to ten times the latency.
    pub reorder: f64,
    pub latency_ns: u64,
    /// Probability that the sender has no room or memory for a packet just now.
    pub busy: f64,
    /// Probability that a router marks it for congestion.
    pub mark: f64,
    /// Time a packet takes on the wire, one after the other; 0: none.
    pub packet_ns: u64,
    /// Packets that wait for the wire at most; what comes on top of them is lost.
    pub queue: u64,
    /// Probability that the wire stands still before a packet, as when a virtual machine does
    /// not get the processor.
    pub stall: f64,
    /// For how long at most, in nanoseconds.
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

/// A receive buffer posted by the test: where it lies in the host's memory.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuf {
    pub wr_id: u64,
    pub at: usize,
    pub len: u32,
}

/// Everything around one engine.
#[derive(Default)]
pub struct Host {
    pub memory: RefCell<Vec<u8>>,
    slots: Vec<SqSlot>,
    /// Where the payload of each request lies in `memory`, by index.
    buffers: Vec<usize>,
    retired: u32,
    pub receives: VecDeque<RecvBuf>,
    current: Option<RecvBuf>,
    pub sent: Vec<Wc>,
    pub received: Vec<(Wc, RecvBuf)>,
    pub counts: [u64; Count::COUNT],
    /// Number of remote accesses refused from now on (0: none).
    pub no_access: bool,
    /// Lowest address that the peer may access.
    pub grant_from: usize,
    /// The region's key is invalidated.
    pub invalid: Cell<bool>,
    /// Requests about keys that were executed, with the number of send completions before each.
    pub key_ops: RefCell<Vec<(KeyOp, usize)>>,
    /// FLUSHes executed: address, length and kind.
    pub flushes: RefCell<Vec<(u64, u32, FlushKind)>>,
    /// What a loss of power would leave; as long as the memory, or empty if nobody asks.
    pub persistent: RefCell<Vec<u8>>,
    /// Bytes that are made persistent at once.
    pub piece: usize,
    /// Pieces that have been made persistent.
    pub pieces: Cell<usize>,
    /// A FLUSH has begun and is not done.
    flushing: Cell<bool>,
    /// Keys that no such request may name.
    pub bad_keys: Vec<RKey>,
    /// Send requests whose local buffers turn out to be unusable.
    pub bad_local: Vec<u32>,
    /// Pages of [`PAGE`] bytes that are not there.
    pub absent: RefCell<BTreeSet<usize>>,
    /// Those of them that an access has missed.
    wanted: RefCell<BTreeSet<usize>>,
    jobs: Vec<Job>,
    resources: Vec<Resource>,
}

impl Host {
    /// Send requests not retired.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.retired as usize
    }

    fn range(&self, at: usize, len: usize) -> Option<core::ops::Range<usize>> {
        let end = at.checked_add(len)?;
        (end <= self.memory.borrow().len()).then_some(at..end)
    }

    /// Whether all of a range is there; notes what is not.
    fn present(&self, at: usize, len: usize) -> bool {
        let absent = self.absent.borrow();
        let mut missed = (at / PAGE..(at + len).div_ceil(PAGE))
            .filter(|page| absent.contains(page))
            .peekable();
        let all = missed.peek().is_none();
        self.wanted.borrow_mut().extend(missed);
        all
    }

    fn local(&self, at: usize, len: usize) -> Result<core::ops::Range<usize>, LocalFault> {
        let range = self.range(at, len).ok_or(LocalFault::Refused)?;
        if self.present(at, len) {
            Ok(range)
        } else {
            Err(LocalFault::NotPresent)
        }
    }

    /// As [`remote`](Self::remote), for an access that happens now.
    fn reach(&self, rkey: RKey, addr: u64, len: usize) -> Result<usize, RemoteFault> {
        let at = self.remote(rkey, addr, len)?;
        if self.present(at, len) {
            Ok(at)
        } else {
            Err(RemoteFault::NotPresent)
        }
    }

    /// What comes behind a FLUSH waits for it.
    fn change(&self) {
        assert!(!self.flushing.get(), "a request has overtaken a FLUSH");
    }

    /// Makes a piece of `at..end` persistent and returns its end.
    fn persist(&self, at: usize, end: usize) -> usize {
        let to = end.min(at.saturating_add(self.piece));
        let mut image = self.persistent.borrow_mut();
        if let Some(image) = image.get_mut(at..to) {
            image.copy_from_slice(&self.memory.borrow()[at..to]);
        }
        self.pieces.set(self.pieces.get() + 1);
        to
    }

    fn remote(&self, rkey: RKey, addr: u64, len: usize) -> Result<usize, RemoteFault> {
        let at = usize::try_from(addr).map_err(|_| RemoteFault::Refused)?;
        let fits = self.range(at, len).is_some() && at >= self.grant_from;
        if rkey == RKEY && fits && !self.no_access && !self.invalid.get() {
            Ok(at)
        } else {
            Err(RemoteFault::Refused)
        }
    }
}

impl Ports for Host {
    fn sq_produced(&self) -> u32 {
        self.slots.len() as u32
    }

    fn sq_slot(&mut self, index: u32) -> Option<&mut SqSlot> {
        assert!(index >= self.retired, "the engine looked at a retired slot");
        self.slots.get_mut(index as usize)
    }

    fn sq_retire(&mut self, index: u32) {
        assert!(index >= self.retired && index <= self.slots.len() as u32);
        self.retired = index;
    }

    fn gather(&self, index: u32, offset: u32, dst: &mut [u8]) -> Result<(), LocalFault> {
        if self.bad_local.contains(&index) {
            return Err(LocalFault::Refused);
        }
        let at = self.buffers[index as usize] + offset as usize;
        let range = self.local(at, dst.len())?;
        dst.copy_from_slice(&self.memory.borrow()[range]);
        Ok(())
    }

    fn scatter(&self, index: u32, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        assert!(index >= self.retired, "response data for a retired request");
        if self.bad_local.contains(&index) {
            return Err(LocalFault::Refused);
        }
        let wr = &self.slots[index as usize].wr;
        assert!(offset as usize + src.len() <= wr.length as usize);
        let at = self.buffers[index as usize] + offset as usize;
        let range = self.local(at, src.len())?;
        src.copy_to(&mut self.memory.borrow_mut()[range]);
        Ok(())
    }

    fn recv_take(&mut self) -> Taken {
        match self.receives.pop_front() {
            Some(buf) => {
                self.current = Some(buf);
                Taken::Wr(RecvWr {
                    wr_id: buf.wr_id,
                    length: buf.len,
                })
            }
            None => Taken::Empty,
        }
    }

    fn recv_scatter(&self, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        self.change();
        let buf = self.current.expect("a receive is in use");
        assert!(offset as usize + src.len() <= buf.len as usize);
        let range = self.local(buf.at + offset as usize, src.len())?;
        src.copy_to(&mut self.memory.borrow_mut()[range]);
        Ok(())
    }

    fn remote_check(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        _right: RemoteRight,
    ) -> Result<(), RemoteFault> {
        self.remote(rkey, addr, len as usize).map(|_| ())
    }

    fn remote_read(&self, rkey: RKey, addr: u64, dst: &mut [u8]) -> Result<(), RemoteFault> {
        let at = self.reach(rkey, addr, dst.len())?;
        dst.copy_from_slice(&self.memory.borrow()[at..at + dst.len()]);
        Ok(())
    }

    fn remote_write(&self, rkey: RKey, addr: u64, src: &Payload<'_>) -> Result<(), RemoteFault> {
        self.change();
        let at = self.reach(rkey, addr, src.len())?;
        src.copy_to(&mut self.memory.borrow_mut()[at..at + src.len()]);
        Ok(())
    }

    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteFault> {
        self.change();
        let at = self.reach(rkey, addr, 8)?;
        let word = &mut self.memory.borrow_mut()[at..at + 8];
        let old = u64::from_ne_bytes(word.try_into().unwrap());
        let new = match op {
            AtomicOp::CmpSwp { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwp { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::Write { value } => value,
        };
        word.copy_from_slice(&new.to_ne_bytes());
        Ok(old)
    }

    fn remote_flush(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        kind: FlushKind,
        from: Option<u64>,
    ) -> Result<Flushed, RemoteFault> {
        let (start, len_all) = match kind.selectivity {
            Selectivity::Range => (self.remote(rkey, addr, len as usize)?, len as usize),
            Selectivity::Region => {
                let start = self.remote(rkey, self.grant_from as u64, 0)?;
                (start, self.memory.borrow().len() - start)
            }
        };
        self.flushing.set(false);
        if kind.placement & Feth::PERSISTENT != 0 {
            let end = start + len_all;
            let at = from.map_or(start, |at| at as usize);
            assert!((start..=end).contains(&at), "a FLUSH goes on elsewhere");
            let to = self.persist(at, end);
            if to < end {
                self.flushing.set(true);
                return Ok(Flushed::UpTo(to as u64));
            }
        }
        self.flushes.borrow_mut().push((addr, len, kind));
        Ok(Flushed::All)
    }

    fn key_op(&self, op: &KeyOp) -> Result<(), KeyFault> {
        let (key, ends) = match *op {
            KeyOp::Invalidate(key) => (key, true),
            KeyOp::Bind(bind) => (bind.key, false),
            KeyOp::Register(reg) => (reg.key, false),
        };
        if self.bad_keys.contains(&key) {
            return Err(KeyFault);
        }
        if key == RKEY {
            self.invalid.set(ends);
        }
        self.key_ops.borrow_mut().push((*op, self.sent.len()));
        Ok(())
    }

    fn remote_invalidate(&self, rkey: RKey) -> Result<(), RemoteFault> {
        if rkey != RKEY || self.invalid.replace(true) {
            return Err(RemoteFault::Refused);
        }
        Ok(())
    }

    fn jobs(&mut self) -> &mut [Job] {
        self.jobs.resize(JOBS, Job::EMPTY);
        &mut self.jobs
    }

    fn resources(&mut self) -> &mut [Resource] {
        self.resources.resize(RESOURCES, Resource::EMPTY);
        &mut self.resources
    }

    fn complete_send(&mut self, wc: &Wc) {
        self.sent.push(*wc);
    }

    fn complete_recv(&mut self, wc: &Wc) {
        let buf = self.current.unwrap_or(RecvBuf {
            wr_id: wc.wr_id,
            at: 0,
            len: 0,
        });
        self.received.push((*wc, buf));
    }

    fn pkey(&self) -> PKey {
        self.pkey_at(0)
    }

    fn pkey_at(&self, index: u16) -> PKey {
        PKey(PKey::DEFAULT.0.wrapping_sub(index))
    }

    fn count(&mut self, what: Count) {
        self.counts[what.index()] += 1;
    }
}

/// Takes the packets of one turn.
struct Sink {
    packets: Vec<Vec<u8>>,
    room: usize,
    net: Vec<u8>,
    /// Number of packets after which there is no memory.
    fails_at: usize,
}

/// IPv4 and UDP header of a simulated packet; only what the ICRC covers matters.
fn net_header(from: usize, udp_payload: usize) -> Vec<u8> {
    let mut h = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    h.extend([10, 0, 0, 1 + from as u8, 10, 0, 0, 2 - from as u8]);
    h[2..4].copy_from_slice(&((28 + udp_payload) as u16).to_be_bytes());
    h.extend([0xc0, 0, 0x12, 0xb7]);
    h.extend(((8 + udp_payload) as u16).to_be_bytes());
    h.extend([0, 0]);
    h
}

fn icrc_of(net: &[u8], udp: &[u8]) -> [u8; 4] {
    let bth: &[u8; 12] = udp[..12].try_into().unwrap();
    icrc(&SoftCrc, net, bth, [&udp[12..]])
}

impl Tx for Sink {
    fn has_room(&self) -> bool {
        self.packets.len() < self.room
    }

    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine asked for room first");
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        assert!(matches!(to, Dest::Peer | Dest::Ah(_)));
        let mut udp = headers.as_slice().to_vec();
        let start = udp.len();
        udp.resize(start + payload_len, 0);
        fill(&mut udp[start..]).map_err(TxFault::Fill)?;
        udp.resize(udp.len().next_multiple_of(4), 0);
        let side = usize::from(self.net[15] - 1);
        let net = net_header(side, udp.len() + 4);
        let crc = icrc_of(&net, &udp);
        udp.extend(crc);
        self.packets.push(udp);
        Ok(())
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        assert!(self.has_room(), "the engine asked for room first");
        if self.packets.len() >= self.fails_at {
            return Err(TxFault::Busy);
        }
        if !FRAME_LEN.contains(&len) {
            return Err(TxFault::Unreachable);
        }
        let mut frame = vec![0; len];
        fill(&mut frame).map_err(TxFault::Fill)?;
        self.packets.push(frame);
        Ok(())
    }
}

/// Lengths of the frames of the simulated Ethernet.
pub const FRAME_LEN: std::ops::RangeInclusive<usize> = 14..=1518;

/// Two connected hosts.
pub struct Pair {
    pub now: u64,
    pub link: Link,
    pub rng: fastrand::Rng,
    pub qps: [Qp; 2],
    pub hosts: [Host; 2],
    /// Packets under way, by arrival time and a tie breaker.
    wire: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    serial: u64,
    /// When the wire to each side has sent what it has been given.
    wire_free: [u64; 2],
    pub packets_sent: u64,
    /// Probability that a page goes in a step.
    pub evict: f64,
    /// Packets put off on each side, oldest first.
    kept: [VecDeque<Vec<u8>>; 2],
    /// When the pages wanted will be there.
    page_in_at: [Option<u64>; 2],
    /// Packets that were put off.
    pub put_off: u64,
}

impl Pair {
    /// Send completions of a side so far: request and status.
    pub fn statuses(&self, side: usize) -> Vec<(u64, WcStatus)> {
        let sent = self.hosts[side].sent.iter();
        sent.map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// A connected RC pair with `memory` bytes on each side.
    pub fn new(seed: u64, link: Link, mtu: Mtu, memory: usize) -> Self {
        Self::of(Service::Rc, seed, link, mtu, memory)
    }

    /// A pair of any service, connected if it is that kind.
    pub fn of(service: Service, seed: u64, link: Link, mtu: Mtu, memory: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Every other time soon to wrap.
        let psn = [(); 2].map(|()| match rng.bool() {
            true => Psn::new(0u32.wrapping_sub(rng.u32(0..300))),
            false => Psn::new(rng.u32(..)),
        });
        let mut pair = Self {
            now: 1,
            link,
            rng,
            qps: [
                Qp::new(service, Qpn::new(0x11)),
                Qp::new(service, Qpn::new(0x12)),
            ],
            hosts: [Host::default(), Host::default()],
            wire: BTreeMap::new(),
            serial: 0,
            wire_free: [0; 2],
            packets_sent: 0,
            evict: 0.0,
            kept: Default::default(),
            page_in_at: [None; 2],
            put_off: 0,
        };
        for side in 0..2 {
            let fill = pair.rng.u8(..);
            pair.hosts[side].memory = RefCell::new(vec![fill; memory]);
            pair.hosts[side].piece = usize::MAX;
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
            qp.attrs.max_dest_rd_atomic = 4;
            qp.attrs.remote_read = true;
            qp.attrs.remote_write = true;
            qp.attrs.remote_atomic = true;
            qp.attrs.drain_notice = true;
            qp.attrs.remote_flush = 1;
            qp.set_rq_psn(psn[1 - side]);
            qp.set_state(State::Rtr, host);
            qp.set_sq_psn(psn[side]);
            qp.set_state(State::Rts, host);
        }
        pair
    }

    /// Posts a send request whose payload lies at `at` of the side's memory.
    pub fn post(&mut self, side: usize, wr: SendWr, at: usize) {
        self.hosts[side].slots.push(SqSlot::new(wr));
        self.hosts[side].buffers.push(at);
    }

    /// Posts a send request that was found invalid when it was copied from the ring.
    pub fn post_invalid(&mut self, side: usize, wr: SendWr, status: WcStatus) {
        self.hosts[side].slots.push(SqSlot::invalid(wr, status));
        self.hosts[side].buffers.push(0);
    }

    /// The packets under way.
    pub fn under_way(&self) -> impl Iterator<Item = &[u8]> {
        self.wire.values().map(|(_, packet)| &packet[..])
    }

    /// Lets one side send what it can.
    pub fn transmit(&mut self, side: usize) {
        loop {
            let room = self.rng.usize(1..20);
            if self.transmit_packets(side, room) == Progress::Idle {
                return;
            }
        }
    }

    /// Lets one side send up to `room` packets.
    pub fn transmit_packets(&mut self, side: usize, room: usize) -> Progress {
        let mut sink = Sink {
            packets: Vec::new(),
            room,
            net: net_header(side, 0),
            fails_at: usize::MAX,
        };
        if self.link.busy > 0.0 && self.rng.f64() < self.link.busy {
            sink.fails_at = self.rng.usize(0..room);
        }
        let qp = &mut self.qps[side];
        let progress = qp.poll_transmit(self.now, &mut self.hosts[side], &mut sink);
        for packet in sink.packets {
            self.launch(1 - side, packet);
        }
        progress
    }

    /// Loses everything that is under way.
    pub fn cut(&mut self) {
        self.wire.clear();
    }

    /// Delivers to one side a packet that nobody sent.
    pub fn inject(&mut self, to: usize, headers: Headers, payload: &[u8]) {
        let mut udp = headers.as_slice().to_vec();
        udp.extend(payload);
        udp.resize(udp.len() + headers.pad_len(), 0);
        let net = net_header(1 - to, udp.len() + 4);
        let crc = icrc_of(&net, &udp);
        udp.extend(crc);
        assert!(Packet::parse(&udp, udp.len()).is_ok());
        self.feed(to, &udp);
    }

    fn launch(&mut self, to: usize, mut packet: Vec<u8>) {
        self.packets_sent += 1;
        let copies = if self.rng.f64() < self.link.duplicate {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if self.rng.f64() < self.link.loss {
                continue;
            }
            let Some(waits) = self.queue_up(to) else {
                continue;
            };
            let mut delay = waits + self.link.latency_ns;
            if self.rng.f64() < self.link.reorder {
                delay += self.rng.u64(0..10 * self.link.latency_ns.max(1));
            }
            if self.rng.f64() < self.link.corrupt {
                let at = self.rng.usize(0..packet.len());
                packet[at] ^= 1 << self.rng.u8(0..8);
            }
            self.serial += 1;
            self.wire
                .insert((self.now + delay, self.serial), (to, packet.clone()));
        }
    }

    /// How long a packet waits until it has passed the wire; `None` if it finds the queue full.
    fn queue_up(&mut self, to: usize) -> Option<u64> {
        if self.link.packet_ns == 0 {
            return Some(0);
        }
        let begin = self.wire_free[to].max(self.now);
        if (begin - self.now) / self.link.packet_ns >= self.link.queue {
            return None;
        }
        let stall = match self.rng.f64() < self.link.stall {
            true => self.rng.u64(0..=self.link.stall_ns),
            false => 0,
        };
        self.wire_free[to] = begin + stall + self.link.packet_ns;
        Some(self.wire_free[to] - self.now)
    }

    fn deliver(&mut self, to: usize, udp: &[u8]) {
        if self.qps[to].service() == Service::Raw {
            return self.qps[to].handle_frame(&Payload::from_slice(udp), &mut self.hosts[to]);
        }
        self.feed(to, udp);
    }

    fn feed(&mut self, to: usize, udp: &[u8]) {
        if !self.kept[to].is_empty() || self.packet(to, udp) == Handled::Later {
            self.put_off += 1;
            if self.kept[to].len() < KEPT {
                self.kept[to].push_back(udp.to_vec());
            }
        }
    }

    /// The pages wanted are there: feeds what was put off.
    fn page_in(&mut self, side: usize) {
        self.page_in_at[side] = None;
        let wanted = core::mem::take(self.hosts[side].wanted.get_mut());
        for page in wanted {
            self.hosts[side].absent.get_mut().remove(&page);
        }
        while let Some(udp) = self.kept[side].pop_front() {
            if self.packet(side, &udp) == Handled::Later {
                self.kept[side].push_front(udp);
                return;
            }
        }
    }

    /// Forgets the packets that were put off on one side.
    pub fn forget(&mut self, side: usize) {
        self.kept[side].clear();
    }

    /// Lets pages go, and begins to get those that were missed; a FLUSH goes on soon.
    fn page(&mut self) {
        for side in 0..2 {
            let host = &mut self.hosts[side];
            if self.evict > 0.0 && self.rng.f64() < self.evict {
                let pages = host.memory.get_mut().len() / PAGE;
                host.absent.get_mut().insert(self.rng.usize(0..pages));
            }
            if !host.wanted.get_mut().is_empty() && self.page_in_at[side].is_none() {
                self.page_in_at[side] = Some(self.now + PAGE_IN_NS);
            }
            if !self.kept[side].is_empty() && self.page_in_at[side].is_none() {
                self.page_in_at[side] = Some(self.now + PIECE_NS);
            }
        }
    }

    fn packet(&mut self, to: usize, udp: &[u8]) -> Handled {
        let Ok(packet) = Packet::parse(udp, udp.len()) else {
            return Handled::Done;
        };
        let body = &udp[..udp.len() - 4];
        if icrc_of(&net_header(1 - to, udp.len()), body) != udp[udp.len() - 4..] {
            return Handled::Done;
        }
        let start = packet.payload_offset();
        let payload = Payload::from_slice(&udp[start..start + packet.payload_len()]);
        let mut ip_header = net_header(1 - to, udp.len());
        if self.link.mark > 0.0 && self.rng.f64() < self.link.mark {
            ip_header[1] = 3;
        }
        let meta = UdMeta {
            net: NetKind::V4,
            ip_header: &ip_header[..20],
            pkey_index: 0,
            vlan: None,
        };
        self.qps[to].handle_packet(self.now, &packet, &payload, &meta, &mut self.hosts[to])
    }

    /// Advances to the next arrival or timer; false if nothing will ever happen again.
    pub fn step(&mut self) -> bool {
        for side in 0..2 {
            self.transmit(side);
        }
        self.page();
        let arrival = self.wire.keys().next().map(|k| k.0);
        let mut timers = self.qps.each_ref().map(|qp| qp.poll_timeout());
        for (timer, kept) in timers.iter_mut().zip(&self.kept) {
            // What has come and waits may be what the timer is about.
            let answers = |udp: &Vec<u8>| {
                Packet::parse(udp, udp.len()).is_ok_and(|p| p.opcode().is_response())
            };
            if kept.iter().any(answers) {
                *timer = None;
            }
        }
        let pages = self.page_in_at;
        let next = [arrival, timers[0], timers[1], pages[0], pages[1]];
        let next = next.into_iter().flatten().min();
        let Some(next) = next else {
            return false;
        };
        self.now = self.now.max(next);
        for (side, timer) in timers.into_iter().enumerate() {
            if timer.is_some_and(|t| t <= self.now) {
                self.qps[side].handle_timeout(self.now, &mut self.hosts[side]);
            }
        }
        for (side, at) in pages.into_iter().enumerate() {
            if at.is_some_and(|at| at <= self.now) {
                self.page_in(side);
            }
        }
        // A train: everything that arrives now, before anybody answers.
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, packet) = entry.remove();
            self.deliver(to, &packet);
        }
        true
    }

    /// Runs until nothing is left to do or `limit_ns` of virtual time have passed.
    pub fn run(&mut self, limit_ns: u64) {
        let end = self.now + limit_ns;
        while self.now < end && self.step() {}
    }
}
