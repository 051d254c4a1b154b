// SPDX-License-Identifier: GPL-2.0
//! Devices that segment GSO batches without incrementing the IPv4 identification, so that only the
//! first packet of each batch arrives undamaged, or that fragment them, so that none does.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::Progress;
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{seeds, wr, Link, Pair, RecvBuf};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const MINUTE: u64 = 60 * SECOND;
const MEMORY: usize = 1 << 18;

/// A link without faults.
const LINK: Link = Link {
    latency_ns: 50_000,
    ..Link::PERFECT
};

fn fallbacks(pair: &Pair) -> [u64; 2] {
    [0, 1].map(|side| pair.hosts[side].counts[Count::GsoFallback])
}

/// The messages that `side` sent, whose bytes are all 1, have arrived: at the remote address of
/// WRITEs and the buffer of SENDs of side 0, at the local address of READs from side 1.
fn assert_arrived(pair: &Pair, side: usize, length: u32) {
    let at = [0x8000, 0][side];
    let memory = pair.hosts[1 - side].memory.borrow();
    let arrived = &memory[at..at + length as usize];
    assert!(arrived.iter().all(|byte| *byte == 1));
}

/// Posts `count` messages of `length` bytes, `depth` of them at a time, and waits for all of them.
fn move_messages(pair: &mut Pair, op: SendOp, length: u32, count: usize, depth: usize) {
    let before = pair.hosts[0].sent.len();
    let mut posted = 0;
    while pair.hosts[0].sent.len() < before + count {
        while posted < count && pair.hosts[0].outstanding() < depth {
            if op == SendOp::Send {
                let buf = RecvBuf {
                    wr_id: 0,
                    at: 0x8000,
                    len: length,
                };
                pair.hosts[1].receives.push_back(buf);
            }
            pair.post(0, wr(op, 0, length), 0);
            posted += 1;
        }
        assert!(pair.step(), "the pair is stuck");
    }
    let done = &pair.hosts[0].sent[before..];
    assert!(
        done.iter().all(|wc| wc.status == WcStatus::Success),
        "{:?} {:?} {:?}",
        done,
        pair.hosts[0].counts,
        pair.hosts[1].counts
    );
}

/// The requests of several messages leave in one GSO buffer. The responder, to which the packets of
/// a buffer are passed before it transmits, acknowledges all of them at once.
#[test]
fn messages_share_a_buffer_and_an_acknowledgement() {
    const COUNT: usize = 8;
    for op in [SendOp::Send, SendOp::Write] {
        let mut pair = Pair::new(1, LINK, Mtu::Mtu1024, MEMORY);
        for n in 0..COUNT {
            let buf = RecvBuf {
                wr_id: 0,
                at: 0x8000,
                len: 64,
            };
            pair.hosts[1].receives.push_back(buf);
            pair.post(0, wr(op, n as u64, 64), 0);
        }
        assert_eq!(pair.transmit_packets(0, usize::MAX), Progress::Idle);
        assert_eq!(pair.packets_in_flight().count(), COUNT, "{op:?}");
        // All but the first one continue a buffer.
        assert_eq!(pair.later_segments, COUNT as u64 - 1, "{op:?}");
        pair.deliver_all();
        pair.transmit(1);
        assert_eq!(pair.packets_in_flight().count(), 1, "{op:?}");
        pair.deliver_all();
        assert_eq!(pair.hosts[0].sent.len(), COUNT, "{op:?}");
    }
}

/// Each operation falls back within a few round trips, and the data is correct. With batches of two
/// packets only missing acknowledgements show the fault, which takes longer.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn falls_back() {
    for (op, faulty) in [(SendOp::Write, 0), (SendOp::Send, 0), (SendOp::Read, 1)] {
        for (length, depth, most_ms) in [
            (65_536, 4, 20),
            (65_536, 1, 20),
            (2048, 8, 100),
            (2048, 1, 400),
        ] {
            for mtu in [Mtu::Mtu1024, Mtu::Mtu256] {
                for seed in seeds(4) {
                    let what =
                        format!("{op:?} of {length} by {mtu:?}, {depth} at once, seed {seed}");
                    let mut pair = Pair::new(seed, LINK, mtu, MEMORY);
                    pair.same_ip_id[faulty] = true;
                    pair.hosts[faulty].memory.borrow_mut()[..MEMORY / 2].fill(1);
                    let start = pair.now;
                    while fallbacks(&pair)[faulty] == 0 {
                        move_messages(&mut pair, op, length, 1.max(depth * 2), depth);
                        let ms = (pair.now - start) / MS;
                        assert!(ms < most_ms, "{what}: {ms} ms");
                    }
                    let ms = (pair.now - start) / MS;
                    println!("{what}: {ms} ms");
                    // From now on nothing is lost.
                    let (start, later_segments) = (pair.now, pair.later_segments);
                    move_messages(&mut pair, op, length, 8 * depth, depth);
                    if faulty == 0 {
                        assert_eq!(pair.later_segments, later_segments, "{what}");
                    }
                    let us = (pair.now - start) / 1000 / 8;
                    assert!(us < 1000, "{what}: {us} us for each round");
                    assert_eq!(fallbacks(&pair)[faulty], 1, "{what}");
                    assert_eq!(fallbacks(&pair)[1 - faulty], 0, "{what}");
                    assert_arrived(&pair, faulty, length);
                }
            }
        }
    }
}

/// A device that sends each batch as one datagram, as the adapter igb that QEMU emulates does: no
/// packet of a batch arrives. Each operation falls back all the same, no request fails meanwhile,
/// and the data is correct.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn falls_back_if_no_packet_arrives() {
    for (op, faulty) in [(SendOp::Write, 0), (SendOp::Send, 0), (SendOp::Read, 1)] {
        for (length, depth) in [(65_536, 4), (65_536, 1), (2048, 8), (2048, 1)] {
            for seed in seeds(4) {
                let what = format!("{op:?} of {length}, {depth} at once, seed {seed}");
                let mut pair = Pair::new(seed, LINK, Mtu::Mtu1024, MEMORY);
                pair.one_datagram[faulty] = true;
                pair.hosts[faulty].memory.borrow_mut()[..MEMORY / 2].fill(1);
                let start = pair.now;
                while fallbacks(&pair)[faulty] == 0 {
                    move_messages(&mut pair, op, length, depth * 2, depth);
                    let ms = (pair.now - start) / MS;
                    assert!(ms < 1000, "{what}: {ms} ms, {:?}", pair.hosts[0].counts);
                }
                println!("{what}: {} ms", (pair.now - start) / MS);
                let start = pair.now;
                move_messages(&mut pair, op, length, 8 * depth, depth);
                let us = (pair.now - start) / 1000 / 8;
                assert!(us < 1000, "{what}: {us} us for each round");
                assert_eq!(fallbacks(&pair)[1 - faulty], 0, "{what}");
                assert_arrived(&pair, faulty, length);
            }
        }
    }
}

/// Random loss and reordering cause no fallback.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn random_loss_causes_no_fallback() {
    for (loss, reorder, count) in [(0.01, 0.0, 60), (0.05, 0.02, 60), (0.2, 0.0, 30)] {
        for (length, depth) in [(65_536, 4), (2048, 8), (2048, 1), (8192, 1)] {
            for (op, seed) in [SendOp::Write, SendOp::Send, SendOp::Read]
                .into_iter()
                .flat_map(|op| seeds(2).map(move |seed| (op, seed)))
            {
                let link = Link {
                    loss,
                    reorder,
                    latency_ns: 50_000,
                    ..Link::PERFECT
                };
                let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
                pair.qps.iter_mut().for_each(|qp| qp.attrs.retry_cnt = 100);
                move_messages(&mut pair, op, length, count * depth, depth);
                assert!(pair.later_segments > 0);
                assert_eq!(fallbacks(&pair), [0, 0], "{op:?} of {length}, seed {seed}");
            }
        }
    }
}

/// GSO is tried again after a minute, then after two; a device that has been fixed is used as
/// before.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn gso_is_tried_again() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
    pair.same_ip_id[0] = true;
    let round = |pair: &mut Pair| {
        let later_segments = pair.later_segments;
        move_messages(pair, SendOp::Write, 65_536, 8, 4);
        (fallbacks(pair)[0], pair.later_segments > later_segments)
    };
    assert_eq!(round(&mut pair).0, 1);
    let mut ended = pair.now;
    for (minutes, count) in [(1, 2), (2, 3), (4, 4)] {
        pair.now = ended + minutes * MINUTE - SECOND;
        assert_eq!(round(&mut pair), (count - 1, false));
        pair.now = ended + minutes * MINUTE;
        assert_eq!(round(&mut pair), (count, true));
        ended = pair.now;
    }
    pair.same_ip_id[0] = false;
    pair.now += 8 * MINUTE;
    for _ in 0..100 {
        assert_eq!(round(&mut pair), (4, true));
    }
    // The score is reset: the next fallback takes a minute again.
    pair.same_ip_id[0] = true;
    assert_eq!(round(&mut pair).0, 5);
    pair.now += MINUTE;
    pair.same_ip_id[0] = false;
    assert_eq!(round(&mut pair), (5, true));
}

/// On a host that stalls, timers expire without loss. Packets that are then retransmitted singly,
/// and arrive, do not reset the score.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn falls_back_on_a_slow_host() {
    for op in [SendOp::Write, SendOp::Send] {
        let mut longest = 0;
        for seed in seeds(20) {
            let link = Link {
                latency_ns: 50_000,
                packet_ns: 5_000,
                stall: 0.02,
                stall_ns: 40 * MS,
                ..Link::PERFECT
            };
            let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
            pair.same_ip_id[0] = true;
            pair.qps.iter_mut().for_each(|qp| qp.attrs.retry_cnt = 100);
            let mut messages = 0;
            while fallbacks(&pair)[0] == 0 {
                move_messages(&mut pair, op, 65_536, 4, 4);
                messages += 4;
                assert!(
                    messages <= 16,
                    "{op:?}, seed {seed}: {:?}",
                    pair.hosts[0].counts
                );
            }
            longest = longest.max(messages);
        }
        println!("{op:?}: {longest} messages");
    }
}

/// Each side replies to the message of the other one, `rounds` times.
fn ping_pong(pair: &mut Pair, rounds: usize) {
    for round in 0..rounds {
        let (from, to) = (round % 2, 1 - round % 2);
        let before = pair.hosts[to].received.len();
        let buf = RecvBuf {
            wr_id: 0,
            at: 0x8000,
            len: 8,
        };
        pair.hosts[to].receives.push_back(buf);
        pair.post(from, wr(SendOp::Send, 0, 8), 0);
        while pair.hosts[to].received.len() == before {
            assert!(pair.step(), "round {round}: the pair is stuck");
        }
    }
    pair.run(SECOND);
    for host in &pair.hosts {
        assert!(host.sent.iter().all(|wc| wc.status == WcStatus::Success));
    }
}

/// The ACK of a message leaves in one batch with the reply, if that has been posted.
#[test]
fn replies_and_acknowledgements() {
    let mut pair = Pair::new(1, LINK, Mtu::Mtu1024, MEMORY);
    ping_pong(&mut pair, 100);
    // The last message has no reply, and some rounds have room for one packet only.
    assert!((90..=99).contains(&pair.later_segments));
    assert_eq!(pair.packets_sent, 200);
    assert_eq!(fallbacks(&pair), [0, 0]);
}

/// A device that damages these ACKs is detected, because the messages arrive again; random loss of
/// them is no proof.
#[test]
fn falls_back_for_acknowledgements() {
    let mut pair = Pair::new(1, LINK, Mtu::Mtu1024, MEMORY);
    pair.same_ip_id[1] = true;
    let start = pair.now;
    while fallbacks(&pair)[1] == 0 {
        ping_pong(&mut pair, 2);
        assert!(pair.now - start < SECOND, "{:?}", pair.hosts[1].counts);
    }
    println!("{} ms", (pair.now - start) / MS);
    assert_eq!(fallbacks(&pair)[0], 0);

    for seed in seeds(20) {
        let link = Link { loss: 0.1, ..LINK };
        let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
        pair.qps.iter_mut().for_each(|qp| qp.attrs.retry_cnt = 100);
        ping_pong(&mut pair, 1000);
        assert!(pair.later_segments > 100);
        assert_eq!(fallbacks(&pair), [0, 0], "seed {seed}");
    }
}
