// SPDX-License-Identifier: GPL-2.0
//! Selective repeat: what two QPs that keep packets gain, and that each request is executed exactly
//! once whatever the peer, the network and the owner of the QP do.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::repeat::MAX_OFFERS;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::State;
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{seeds, set_addend, set_imm, set_remote, wr, Link, Pair, RecvBuf};

const SECOND: u64 = 1_000_000_000;
const MEMORY: usize = 1 << 20;
/// The operand of ATOMICs.
const COUNTER: u64 = 0;
/// What READs read and SENDs send: the same at both hosts, and never written.
const PATTERN: usize = 0x1_0000;
/// Where WRITEs write.
const WRITTEN: u64 = 0x4_0000;
/// Where messages arrive.
const ARRIVAL: usize = 0x5_0000;
/// Where READs put their data, one after the other.
const READ_DATA: usize = 0x6_0000;
/// Bytes of the data of each READ.
const READ_SLOT: usize = 0x4000;

fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) >> 3) as u8 ^ (at >> 9) as u8
}

fn pair(seed: u64, link: Link) -> Pair {
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
    for (side, host) in pair.hosts.iter_mut().enumerate() {
        let memory = host.memory.get_mut();
        memory.fill(0);
        for (at, byte) in memory
            .iter_mut()
            .enumerate()
            .take(2 * PATTERN)
            .skip(PATTERN)
        {
            *byte = pattern(at);
        }
        let qp = &mut pair.qps[side];
        qp.attrs.max_rd_atomic = 8;
        host.set_max_dest_rd_atomic(qp, 8);
    }
    pair
}

const OPS: [SendOp; 8] = [
    SendOp::SendImm,
    SendOp::Read,
    SendOp::Write,
    SendOp::FetchAdd,
    SendOp::Read,
    SendOp::WriteImm,
    SendOp::AtomicWrite,
    SendOp::SendImm,
];

/// Moves `count` requests in each direction that runs, and checks that each was executed exactly
/// once and in order.
fn traffic(pair: &mut Pair, what: &str, count: usize, directions: [bool; 2]) {
    let mut posted = [0; 2];
    let mut arrivals = [Vec::new(), Vec::new()];
    let mut adds = [0u64; 2];
    let mut reads = [Vec::new(), Vec::new()];
    loop {
        for side in (0..2).filter(|side| directions[*side]) {
            while posted[side] < count && pair.hosts[side].outstanding() < 12 {
                let id = posted[side];
                posted[side] += 1;
                let op = OPS[pair.rng.usize(0..OPS.len())];
                let length = match op {
                    SendOp::FetchAdd | SendOp::AtomicWrite => 8,
                    _ => pair.rng.u32(0..=READ_SLOT as u32),
                };
                let mut request = wr(op, id as u64, length);
                let from = PATTERN + 8 * pair.rng.usize(0..1000);
                let mut local = from;
                match op {
                    SendOp::FetchAdd => {
                        set_remote(&mut request, COUNTER);
                        set_addend(&mut request, 1);
                        adds[1 - side] += 1;
                        local = 8;
                    }
                    SendOp::Read => {
                        set_remote(&mut request, from as u64);
                        local = READ_DATA + READ_SLOT * (id % 16);
                        reads[side].push((id, from, local, length as usize));
                    }
                    SendOp::Write | SendOp::WriteImm => set_remote(&mut request, WRITTEN),
                    SendOp::AtomicWrite => set_remote(&mut request, 16),
                    _ => {}
                }
                if matches!(op, SendOp::SendImm | SendOp::WriteImm) {
                    set_imm(&mut request, (id as u32).to_be_bytes());
                    arrivals[1 - side].push((id as u32).to_be_bytes());
                    pair.hosts[1 - side].receives.push_back(RecvBuf {
                        wr_id: id as u64,
                        at: ARRIVAL,
                        len: READ_SLOT as u32,
                    });
                }
                pair.post(side, request, local);
            }
        }
        // The data of each READ, before another one takes its place.
        for (host, reads) in pair.hosts.iter().zip(&mut reads) {
            reads.retain(|(id, from, local, length)| {
                if *id >= host.sent.len() {
                    return true;
                }
                let mut memory = host.memory.borrow_mut();
                let data = &mut memory[*local..*local + *length];
                for (at, byte) in data.iter().enumerate() {
                    assert_eq!(*byte, pattern(*from + at), "{what}: READ {id}, byte {at}");
                }
                data.fill(0);
                false
            });
        }
        let done = |side: usize| !directions[side] || pair.hosts[side].sent.len() == count;
        if done(0) && done(1) {
            break;
        }
        assert!(pair.step(), "{what}: stuck");
    }
    pair.run(SECOND);
    for side in 0..2 {
        assert_eq!(pair.qps[side].state(), State::Rts, "{what}");
        let expected = if directions[side] { count } else { 0 };
        let sent: Vec<_> = (0..expected as u64)
            .map(|id| (id, WcStatus::Success))
            .collect();
        assert_eq!(pair.statuses(side), sent, "{what}");
        let host = &pair.hosts[side];
        let imms: Vec<_> = host.received.iter().filter_map(|(wc, _)| wc.imm).collect();
        assert_eq!(imms, arrivals[side], "{what}: side {side} received others");
        let counter = host.memory.borrow()[..8].try_into().unwrap();
        assert_eq!(u64::from_ne_bytes(counter), adds[side], "{what}: ATOMICs");
        assert!(!pair.qps[side].keeps_packets(), "{what}");
    }
}

fn count(pair: &Pair, what: Count) -> u64 {
    pair.hosts.iter().map(|host| host.counts[what]).sum()
}

const LOSSY: Link = Link {
    loss: 0.03,
    packet_ns: 500,
    latency_ns: 5_000,
    ..Link::PERFECT
};

/// All operations in both directions, with all that a network does.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn both_sides_keep_packets() {
    let rough = Link {
        loss: 0.03,
        duplicate: 0.03,
        corrupt: 0.01,
        reorder: 0.03,
        busy: 0.02,
        ..LOSSY
    };
    for (link, name) in [(LOSSY, "loss"), (rough, "rough")] {
        let mut kept = 0;
        for seed in seeds(60) {
            let mut pair = pair(seed, link);
            traffic(&mut pair, &format!("{name}, seed {seed}"), 150, [true; 2]);
            kept += pair.kept_packets;
            assert_eq!(count(&pair, Count::SuspectMark), 0, "seed {seed}");
        }
        assert!(kept > 1000, "{name}: {kept}");
    }
}

/// Memory that is not present: kept packets are deferred like others.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn kept_packets_cause_page_faults() {
    let mut deferred = 0;
    for seed in seeds(40) {
        let mut pair = pair(seed, LOSSY);
        pair.evict = 0.05;
        traffic(&mut pair, &format!("seed {seed}"), 100, [true; 2]);
        deferred += pair.deferred_packets;
        assert!(pair.kept_packets > 0);
    }
    assert!(deferred > 100, "{deferred}");
}

/// A QP without a token neither keeps packets nor makes its peer keep some, and its peer, which has
/// one, soon stops to say so in the reserved bits.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn one_side_has_no_token() {
    for without in 0..2 {
        for seed in seeds(20) {
            let mut pair = pair(seed, LOSSY);
            pair.qps[without].attrs.token = 0;
            traffic(&mut pair, &format!("seed {seed}"), 200, [true; 2]);
            assert_eq!(pair.kept_packets, 0, "seed {seed}");
            let offers = pair.with_reserved_bits;
            let most = 2 * u64::from(MAX_OFFERS);
            assert_eq!(offers[without], 0, "seed {seed}");
            assert!(
                (1..=most).contains(&offers[1 - without]),
                "seed {seed}: {offers:?}"
            );
        }
    }
}

/// Zeroes the reserved bits, as other devices do.
fn without_marks(packet: &mut [u8]) {
    packet[8] &= 0x80;
}

/// Puts something else there that does not change.
fn constant_bits(packet: &mut [u8]) {
    packet[8] = packet[8] & 0x80 | 0x2a;
}

/// Puts something else there that changes with each packet.
fn changing_bits(packet: &mut [u8]) {
    packet[8] = packet[8] & 0x80 | (packet[11].wrapping_mul(37) & 0x7f);
}

/// Peers that do not know what the bits mean.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn peers_with_other_reserved_bits() {
    for seed in seeds(20) {
        let mut pair = pair(seed, LOSSY);
        pair.rewrite = Some(without_marks);
        traffic(&mut pair, &format!("zero, seed {seed}"), 100, [true; 2]);
        let repeats = pair.hosts[0].counts[Count::SelectiveRepeat];
        assert_eq!(repeats, 0, "seed {seed}");
    }
    for (bits, name) in [
        (constant_bits as fn(&mut [u8]), "constant"),
        (changing_bits, "changing"),
    ] {
        for seed in seeds(20) {
            let mut pair = pair(seed, Link::PERFECT);
            pair.rewrite = Some(bits);
            traffic(&mut pair, &format!("{name}, seed {seed}"), 200, [true; 2]);
            // Such a peer loses a packet when it shows that it knows no tokens, and few afterwards.
            assert!(count(&pair, Count::SuspectMark) < 20, "{name}, seed {seed}");
            assert_eq!(count(&pair, Count::Timeout), 0, "{name}, seed {seed}");
        }
    }
}

/// A QP without a token gives no meaning to the reserved bits of such a peer, which keeps nothing.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn other_reserved_bits_without_a_token() {
    for bits in [constant_bits as fn(&mut [u8]), changing_bits] {
        for seed in seeds(20) {
            let mut pair = pair(seed, LOSSY);
            pair.qps.iter_mut().for_each(|qp| qp.attrs.token = 0);
            pair.rewrite = Some(bits);
            traffic(&mut pair, &format!("seed {seed}"), 100, [true; 2]);
            let repeats = pair.hosts[0].counts[Count::SelectiveRepeat];
            assert_eq!(repeats, 0, "seed {seed}");
        }
    }
}

/// The owner has no memory for some packets, or for any, and has lost some that it kept.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn owner_forgets_packets() {
    for forget in [0.1, 0.5, 1.0] {
        for seed in seeds(20) {
            let mut pair = pair(seed, LOSSY);
            pair.forget = forget;
            pair.qps.iter_mut().for_each(|qp| qp.attrs.retry_cnt = 50);
            let what = format!("{forget}, seed {seed}");
            traffic(&mut pair, &what, 100, [true; 2]);
            assert_eq!(pair.kept_packets > 0, forget < 1.0, "{what}");
        }
    }
}

/// A QP that is reset, or enters ERR, forgets what was kept.
#[test]
fn reset_and_error() {
    for (state, op) in [
        (State::Reset, SendOp::Write),
        (State::Reset, SendOp::Read),
        (State::Err, SendOp::Write),
        (State::Err, SendOp::Read),
    ] {
        // The side that keeps packets of the operation.
        let keeps = usize::from(op == SendOp::Write);
        let mut pair = pair(3, Link { loss: 0.1, ..LOSSY });
        for id in 0..1000 {
            pair.post(0, wr(op, id, 16 << 10), PATTERN);
        }
        while !pair.qps[keeps].keeps_packets() {
            assert!(pair.step());
        }
        pair.qps[keeps].set_state(state, &mut pair.hosts[keeps]);
        assert!(!pair.qps[keeps].keeps_packets());
        assert_eq!(pair.qps[keeps].take_kept(&mut pair.hosts[keeps]), None);
        let kept = pair.kept_packets;
        pair.run(SECOND);
        assert_eq!(pair.kept_packets, kept, "{state:?}, {op:?}");
        assert!(!pair.qps[keeps].keeps_packets());
    }
}

/// Nanoseconds that messages of 64 KiB take.
fn duration(op: SendOp, loss: f64, seed: u64) -> u64 {
    let link = Link {
        loss,
        packet_ns: 2_300,
        latency_ns: 5_000,
        ..Link::PERFECT
    };
    const LEN: u32 = 1 << 16;
    const MESSAGES: u64 = 600;
    let mut pair = Pair::new(seed, link, Mtu::Mtu4096, 1 << 17);
    // Packets that are lost singly.
    pair.gso_max_segs = 1;
    pair.qps[0].attrs.max_rd_atomic = 16;
    pair.set_max_dest_rd_atomic(1, 16);
    pair.qps[0].attrs.timeout = 14;
    let begin = pair.now;
    let mut posted = 0;
    while (pair.hosts[0].sent.len() as u64) < MESSAGES {
        while posted < MESSAGES && pair.hosts[0].outstanding() < 16 {
            if op == SendOp::Send {
                pair.hosts[1].receives.push_back(RecvBuf {
                    wr_id: posted,
                    at: 0,
                    len: LEN,
                });
            }
            pair.post(0, wr(op, posted, LEN), 0);
            posted += 1;
        }
        assert!(pair.step(), "stuck");
    }
    pair.now - begin
}

/// What remains of the bandwidth without loss.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn share_of_the_bandwidth() {
    for op in [SendOp::Send, SendOp::Write, SendOp::Read] {
        for (loss, least) in [(0.001, 0.9), (0.01, 0.9), (0.03, 0.85)] {
            let least = if op == SendOp::Read {
                least - 0.03
            } else {
                least
            };
            let total = |loss| seeds(5).map(|seed| duration(op, loss, seed)).sum::<u64>();
            let share = total(0.0) as f64 / total(loss) as f64;
            println!("{op:?}, loss {loss}: {share:.2}");
            assert!(share >= least, "{op:?}, loss {loss}: {share:.2}");
        }
    }
}

/// A NAK that the network's reordering has caused, and the acknowledgement that follows as the
/// packet arrives after all, are handled before anything is sent, as they are if they arrive in one
/// buffer or while transmission pauses. What is in flight behind them is not sent again.
#[test]
fn acknowledged_before_the_repetition() {
    const PACKETS: usize = 100;
    let mut pair = pair(1, Link::PERFECT);
    let mut write = wr(SendOp::Write, 1, 40 * 1024);
    set_remote(&mut write, WRITTEN);
    pair.post(0, write, PATTERN);
    // A loss shows both sides that the other keeps packets.
    pair.transmit_packets(0, 5);
    pair.link.loss = 1.0;
    pair.transmit_packets(0, 1);
    pair.link.loss = 0.0;
    pair.run(SECOND);
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
    write.wr_id = 2;
    write.length = PACKETS as u32 * 1024;
    pair.post(0, write, PATTERN);
    for (packets, latency_ns) in [(10, 1_000), (1, 2_000), (30, 1_000), (PACKETS, 1_000_000)] {
        pair.link.latency_ns = latency_ns;
        pair.transmit_packets(0, packets);
    }
    assert_eq!(pair.qps[0].in_flight(), PACKETS as u32, "all has been sent");
    pair.link.latency_ns = 1_000;
    for _ in 0..40 {
        pair.deliver_next();
    }
    pair.transmit(1);
    // The late packet.
    pair.deliver_next();
    pair.transmit(1);
    let sent = pair.packets_sent;
    pair.deliver_next();
    pair.deliver_next();
    assert!(pair.hosts[0].counts[Count::SelectiveRepeat] > 0);
    pair.transmit(0);
    assert!(
        pair.packets_sent - sent <= 1,
        "{}",
        pair.packets_sent - sent
    );
    pair.run(SECOND);
    assert_eq!(pair.statuses(0).last(), Some(&(2, WcStatus::Success)));
}
