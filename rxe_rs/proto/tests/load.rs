// SPDX-License-Identifier: GPL-2.0
//! Long and dense traffic: large messages, random limits, posting while running, and the
//! utilization of a lossy wire.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{RemoteAddr, SendBody, SendOp};
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Mtu, Psn};
use rxe_proto::sim::{
    run_together, seeds, set_addend, set_remote, wr, Link, Pair, Queue, RecvBuf, REMOTE, RKEY,
};
use rxe_proto::time::Instant;

const MEMORY: usize = 1 << 20;

/// A message of more packets than the maximum window.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn large_unreliable_message() {
    let mut pair = Pair::of(Service::Uc, 1, Link::PERFECT, Mtu::Mtu256, 8 << 20);
    pair.hosts[0].memory.borrow_mut().fill(7);
    pair.post(0, wr(SendOp::Write, 1, 4 << 20), 0);
    pair.post(0, wr(SendOp::Write, 2, 100), 0);
    pair.run(10_000_000_000);
    assert_eq!(pair.hosts[0].sent.len(), 2);
    let to = REMOTE as usize;
    assert!(pair.hosts[1].memory.borrow()[to..to + (4 << 20)]
        .iter()
        .all(|byte| *byte == 7));
}

/// Requests posted in bursts while others run, most of them unsignaled, under random limits.
#[test]
fn posting_while_running() {
    for seed in seeds(1500) {
        let link = match seed % 4 {
            0 => Link::PERFECT,
            1 => Link {
                loss: 0.01,
                reorder: 0.05,
                ..Link::PERFECT
            },
            2 => Link {
                busy: 0.3,
                duplicate: 0.1,
                ..Link::PERFECT
            },
            _ => Link {
                loss: 0.03,
                corrupt: 0.01,
                busy: 0.1,
                latency_ns: 200_000,
                ..Link::PERFECT
            },
        };
        let mtu = [
            Mtu::Mtu256,
            Mtu::Mtu512,
            Mtu::Mtu1024,
            Mtu::Mtu2048,
            Mtu::Mtu4096,
        ][(seed / 4) as usize % 5];
        let mut pair = Pair::new(seed, link, mtu, MEMORY);
        for side in 0..2 {
            let depth = [1, 2, 4, 16, 128][pair.rng.usize(0..5)];
            pair.qps[side].attrs.max_rd_atomic = depth;
            pair.set_max_dest_rd_atomic(1 - side, depth);
            pair.qps[side].attrs.min_rnr_timer = pair.rng.u8(1..14);
        }
        let mut posted = [0u64; 2];
        let mut expected: [Vec<(u64, u32)>; 2] = Default::default();
        let mut adds = [0u64; 2];
        let mut wanted = [0u64; 2];
        for _ in 0..40 {
            for side in 0..2 {
                for _ in 0..pair.rng.usize(0..5) {
                    let id = posted[side];
                    posted[side] += 1;
                    let op = [
                        SendOp::Send,
                        SendOp::WriteImm,
                        SendOp::Write,
                        SendOp::Read,
                        SendOp::FetchAdd,
                        SendOp::CmpSwp,
                    ][pair.rng.usize(0..6)];
                    let len = match op {
                        SendOp::FetchAdd | SendOp::CmpSwp => 8,
                        _ => pair.rng.u32(0..9000),
                    };
                    let mut request = wr(op, id, len);
                    request.flags.signaled = pair.rng.u8(0..3) == 0;
                    request.flags.fence = pair.rng.u8(0..8) == 0;
                    request.flags.solicited = pair.rng.bool();
                    set_remote(&mut request, 0x80000);
                    match op {
                        SendOp::FetchAdd => {
                            set_remote(&mut request, 0);
                            set_addend(&mut request, 1);
                            adds[1 - side] += 1;
                        }
                        SendOp::CmpSwp => {
                            // Counts in the second word, each step depending on the one before.
                            request.body = SendBody::CmpSwp {
                                at: RemoteAddr {
                                    addr: 8,
                                    rkey: RKEY,
                                },
                                compare: wanted[side],
                                swap: wanted[side] + 1,
                            };
                            wanted[side] += 1;
                        }
                        _ => {}
                    }
                    if matches!(op, SendOp::Send | SendOp::WriteImm) {
                        let buf = RecvBuf {
                            wr_id: id,
                            at: 0xc0000,
                            len: 9000,
                        };
                        pair.hosts[1 - side].receives.push_back(buf);
                    }
                    if request.flags.signaled {
                        expected[side].push((id, len));
                    }
                    pair.post(side, request, 0x40000);
                }
            }
            for _ in 0..pair.rng.usize(0..30) {
                pair.step();
            }
        }
        pair.run(1_000_000_000_000);
        for side in 0..2 {
            assert_eq!(
                pair.qps[side].state(),
                State::Rts,
                "seed {seed}: side {side} failed"
            );
            assert_eq!(
                pair.hosts[side].outstanding(),
                0,
                "seed {seed}: side {side} is stuck"
            );
            let done: Vec<_> = pair.hosts[side]
                .sent
                .iter()
                .map(|wc| (wc.wr_id, wc.byte_len))
                .collect();
            assert_eq!(done, expected[side], "seed {seed}");
            assert!(
                pair.hosts[side].receives.is_empty(),
                "seed {seed}: receives left over"
            );
            let memory = pair.hosts[side].memory.borrow();
            let word = |at: usize| u64::from_ne_bytes(memory[at..at + 8].try_into().unwrap());
            let fill = u64::from_ne_bytes([memory[16]; 8]);
            assert_eq!(word(0), fill.wrapping_add(adds[side]), "seed {seed}: adds");
            // The first comparison fails unless memory was filled with zeros.
            let swaps = if fill == 0 { wanted[1 - side] } else { fill };
            assert_eq!(word(8), swaps, "seed {seed}: swaps");
        }
    }
}

/// Virtual nanoseconds, packets and timeouts of a transfer of 4 MiB.
fn cost(op: SendOp, loss: f64, seed: u64) -> (u64, u64, u64) {
    let link = Link {
        loss,
        ..Link::PERFECT
    };
    cost_over(op, link, 4, seed)
}

/// As [`cost`], over any wire and with `reads` READs outstanding.
fn cost_over(op: SendOp, link: Link, reads: u8, seed: u64) -> (u64, u64, u64) {
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
    pair.qps[0].attrs.max_rd_atomic = reads;
    pair.set_max_dest_rd_atomic(1, reads);
    pair.qps[0].attrs.timeout = 14;
    for id in 0..64 {
        if op == SendOp::Send {
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id: id,
                at: 0,
                len: 65536,
            });
        }
        pair.post(0, wr(op, id, 65536), 0);
    }
    let begin = pair.now;
    while pair.hosts[0].sent.len() < 64 {
        assert!(pair.step(), "stuck");
    }
    assert!(pair.hosts[0]
        .sent
        .iter()
        .all(|wc| wc.status == WcStatus::Success));
    (
        pair.now - begin,
        pair.packets_sent,
        pair.hosts[0].counts[Count::Timeout],
    )
}

/// One per cent loss costs some retransmissions, but never an acknowledgement timeout.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn loss_is_repaired_without_the_timer() {
    for op in [SendOp::Write, SendOp::Send, SendOp::Read] {
        let (mut packets, mut timeouts, mut time, mut runs) = (0, 0, 0, 0);
        for seed in seeds(20) {
            let (t, p, n) = cost(op, 0.01, seed);
            packets += p;
            timeouts += n;
            time += t;
            runs += 1;
        }
        let packets = packets / runs;
        println!(
            "{op:?}: {packets} packets, {timeouts} timeouts, {} us",
            time / runs / 1000
        );
        assert!(packets < 3 * 4096, "{op:?}: {packets} packets a run");
        assert!(
            timeouts <= runs / 10,
            "{op:?}: {timeouts} timeouts in {runs} runs"
        );
    }
}

/// A wire that is slow, stalls for longer than many round trips and drops packets when its queue is
/// full: the virtual network between two emulated machines. Packets in flight are not
/// retransmitted.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn slow_wire_is_not_flooded() {
    for op in [SendOp::Write, SendOp::Send, SendOp::Read] {
        for queue in [256, u64::MAX] {
            let link = Link {
                packet_ns: 50_000,
                queue,
                stall: 0.005,
                stall_ns: 30_000_000,
                ..Link::PERFECT
            };
            let (mut packets, mut timeouts, mut runs) = (0, 0, 0);
            for seed in seeds(5) {
                let (_, p, n) = cost_over(op, link, 16, seed);
                packets += p;
                timeouts += n;
                runs += 1;
            }
            let packets = packets / runs;
            println!("{op:?}, queue of {queue}: {packets} packets, {timeouts} timeouts");
            assert!(packets < 4096 * 7 / 4, "{op:?}: {packets} packets a run");
        }
    }
}

/// A QP that failed works again after RESET.
#[test]
fn reset_and_reuse() {
    for seed in seeds(200) {
        let mut pair = Pair::new(seed, Link::PERFECT, Mtu::Mtu1024, MEMORY);
        for id in 0..20 {
            let op = [SendOp::Write, SendOp::Read, SendOp::FetchAdd][pair.rng.usize(0..3)];
            let len = if op == SendOp::FetchAdd { 8 } else { 5000 };
            pair.post(0, wr(op, id, len), 0);
            pair.post(1, wr(op, id, len), 0);
        }
        for _ in 0..pair.rng.usize(0..8) {
            pair.step();
        }
        pair.drop_in_flight();
        for side in 0..2 {
            let attrs = pair.qps[side].attrs;
            let host = &mut pair.hosts[side];
            let qp = &mut pair.qps[side];
            qp.set_state(State::Err, host);
            qp.set_state(State::Reset, host);
            assert_eq!(host.outstanding(), 0);
            host.sent.clear();
            host.received.clear();
            host.receives.clear();
            qp.attrs = attrs;
            qp.set_state(State::Init, host);
            qp.set_rq_psn(Psn::new(100 * (1 - side as u32)));
            qp.set_state(State::Rtr, host);
            qp.set_sq_psn(Psn::new(100 * side as u32));
            qp.set_state(State::Rts, host);
        }
        for id in 0..20 {
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id: id,
                at: 0,
                len: 5000,
            });
            pair.post(0, wr(SendOp::Send, id, 5000), 0);
            pair.post(1, wr(SendOp::Read, id, 5000), 0);
        }
        pair.run(1_000_000_000);
        for side in 0..2 {
            assert_eq!(pair.qps[side].state(), State::Rts, "seed {seed}");
            let sent = &pair.hosts[side].sent;
            assert_eq!(sent.len(), 20, "seed {seed}");
            assert!(
                sent.iter().all(|wc| wc.status == WcStatus::Success),
                "seed {seed}"
            );
        }
        assert_eq!(pair.hosts[1].received.len(), 20, "seed {seed}");
    }
}

/// A link becomes slow, so that a round trip takes a hundred times as long as before, and packets
/// are lost behind the queue. No sample shows that yet, but the packets in flight are old: they are
/// retransmitted about once per actual round trip, which does not exhaust the retries.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn losses_behind_a_long_queue() {
    for (loss, reorder) in [(0.001, 0.0), (0.01, 0.0), (0.0, 0.02)] {
        for seed in seeds(2) {
            let queue = Queue::new(seed, 1_250_000, 16_000_000).shared();
            let mut pair = Pair::new(
                seed,
                Link {
                    latency_ns: 15_000,
                    ..Link::PERFECT
                },
                Mtu::Mtu1024,
                1 << 17,
            );
            pair.queues[1] = Some(queue.clone());
            for qp in &mut pair.qps {
                qp.attrs.timeout = 18;
                qp.attrs.retry_cnt = 6;
            }
            let run = |pair: &mut Pair, until_ns: u64| {
                let until = Instant::from_ns(until_ns);
                run_together(core::slice::from_mut(pair), until, |_, pair| {
                    while pair.hosts[0].outstanding() < 12 && pair.qps[0].state() == State::Rts {
                        pair.post(0, wr(SendOp::Write, 1, 65_536), 0);
                    }
                });
            };
            run(&mut pair, 100_000_000);
            queue.borrow_mut().rate = 12_500;
            (pair.link.loss, pair.link.reorder) = (loss, reorder);
            let (sent, done) = (pair.packets_sent, pair.hosts[0].sent.len());
            run(&mut pair, 1_500_000_000);
            let statuses = pair.statuses(0);
            let what = format!(
                "loss {loss}, reorder {reorder}, seed {seed}: {} messages in {} packets, {} retries",
                statuses.len() - done,
                pair.packets_sent - sent,
                pair.hosts[0].counts[Count::Retry]
            );
            println!("{what}");
            assert!(
                statuses
                    .iter()
                    .all(|(_, status)| *status == WcStatus::Success),
                "{what}"
            );
        }
    }
}

/// Virtual nanoseconds of 256 messages of 64 KiB over a wire of 2 GB/s with a round trip of 14 us.
fn time_over_lossy_wire(op: SendOp, loss: f64, seed: u64) -> u64 {
    let link = Link {
        loss,
        packet_ns: 2_000,
        ..Link::PERFECT
    };
    let mut pair = Pair::new(seed, link, Mtu::Mtu4096, MEMORY);
    pair.gso_max_segs = 1;
    pair.qps[0].attrs.max_rd_atomic = 16;
    pair.set_max_dest_rd_atomic(1, 16);
    pair.qps[0].attrs.timeout = 14;
    for id in 0..256 {
        pair.post(0, wr(op, id, 65536), 0);
    }
    let begin = pair.now;
    while pair.hosts[0].sent.len() < 256 {
        assert!(pair.step(), "stuck");
    }
    let sent = &pair.hosts[0].sent;
    assert!(sent.iter().all(|wc| wc.status == WcStatus::Success));
    pair.now - begin
}

/// With losses the wire carries a good share of what it carries without: the requester neither
/// waits for long when an acknowledgement is lost, nor has more in flight than it can request
/// again.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn share_of_a_lossy_wire() {
    for (op, loss, least) in [
        (SendOp::Write, 0.01, 0.6),
        (SendOp::Write, 0.03, 0.4),
        (SendOp::Read, 0.01, 0.6),
        (SendOp::Read, 0.03, 0.32),
    ] {
        let (mut ideal, mut time) = (0, 0);
        for seed in seeds(8) {
            ideal += time_over_lossy_wire(op, 0.0, seed);
            time += time_over_lossy_wire(op, loss, seed);
        }
        let share = ideal as f64 / time as f64;
        println!("{op:?}, loss {loss}: share {share:.2}");
        assert!(share > least, "{op:?}, loss {loss}: share {share:.2}");
    }
}
