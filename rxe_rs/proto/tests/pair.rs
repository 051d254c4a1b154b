// SPDX-License-Identifier: GPL-2.0
//! Two engines over a lossy wire: correct data, completions in order, no hang.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::repeat::Missing;
use rxe_proto::engine::wc::{WcOpcode, WcStatus};
use rxe_proto::engine::wr::{FlushKind, SendOp, SendWr};
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Msn, Mtu, Qpn};
use rxe_proto::sim::{seeds, set_addend, set_flush, set_imm, set_remote, wr, Link, Pair, RecvBuf};
use rxe_proto::wire::aeth::NakCode;
use rxe_proto::wire::feth::Selectivity;
use rxe_proto::wire::{Aeth, Bth, Headers, Opcode, Syndrome};

/// Bytes of memory on each side; every request gets a part of its own.
const MEMORY: usize = 4 << 20;
/// Word that all atomics of a run add to.
const COUNTER: usize = 0;

struct Planned {
    side: usize,
    op: SendOp,
    wr: SendWr,
    local: usize,
    remote: usize,
    data: Vec<u8>,
}

/// Immediate data of request `i`.
fn imm_of(i: usize) -> [u8; 4] {
    (i as u32).to_be_bytes()
}

fn flush_kind(i: usize) -> FlushKind {
    FlushKind {
        placement: 1,
        selectivity: [Selectivity::Range, Selectivity::Region][i % 2],
    }
}

/// Random traffic in both directions; panics with the seed if anything is wrong.
fn traffic(seed: u64, link: Link, mtu: Mtu, requests: usize, max_len: u32) -> Pair {
    let mut pair = Pair::new(seed, link, mtu, MEMORY);
    pair.same_host = [seed % 3 == 0; 2];
    let mut next = [64usize; 2];
    let mut plan: Vec<Planned> = Vec::new();
    let mut late: Vec<(usize, RecvBuf)> = Vec::new();
    let mut adds = [0u64; 2];
    for i in 0..requests {
        let side = pair.rng.usize(0..2);
        let op = [
            SendOp::Send,
            SendOp::SendImm,
            SendOp::Write,
            SendOp::WriteImm,
            SendOp::Read,
            SendOp::FetchAdd,
            SendOp::AtomicWrite,
            SendOp::Flush,
        ][pair.rng.usize(0..8)];
        let len = match (op, pair.rng.u8(0..8)) {
            (SendOp::FetchAdd | SendOp::AtomicWrite, _) => 8,
            (_, 0) => 0,
            (_, 1) => mtu.bytes(),
            (_, 2) => mtu.bytes() + 1,
            _ => pair.rng.u32(0..max_len),
        };
        let mut wr = wr(op, i as u64, len);
        set_imm(&mut wr, imm_of(i));
        wr.flags.fence = pair.rng.u8(0..4) == 0;
        let mut place = |s: usize| {
            let at = next[s];
            next[s] += (len as usize).next_multiple_of(8);
            assert!(next[s] < MEMORY);
            at
        };
        let (local, remote) = (place(side), place(1 - side));
        let data: Vec<u8> = match op {
            SendOp::Flush => Vec::new(),
            _ => (0..len).map(|_| pair.rng.u8(..)).collect(),
        };
        set_remote(&mut wr, remote as u64);
        if op == SendOp::Flush {
            set_flush(&mut wr, flush_kind(i));
        }
        if op == SendOp::FetchAdd {
            set_remote(&mut wr, COUNTER as u64);
            set_addend(&mut wr, 1);
            adds[1 - side] += 1;
        } else {
            let (source, at) = if op == SendOp::Read {
                (1 - side, remote)
            } else {
                (side, local)
            };
            pair.hosts[source].memory.borrow_mut()[at..at + data.len()].copy_from_slice(&data);
        }
        if matches!(op, SendOp::Send | SendOp::SendImm | SendOp::WriteImm) {
            let buf = RecvBuf {
                wr_id: i as u64,
                at: remote,
                len,
            };
            late.push((1 - side, buf));
        }
        pair.post(side, wr, local);
        plan.push(Planned {
            side,
            op,
            wr,
            local,
            remote,
            data,
        });
    }
    for side in 0..2 {
        pair.hosts[side].memory.borrow_mut()[COUNTER..8].fill(0);
    }
    // Receives are posted while traffic runs, so that some messages find none.
    let mut late = late.into_iter().peekable();
    for _ in 0..2_000_000 {
        if pair.rng.u8(0..4) == 0 {
            if let Some((side, buf)) = late.next() {
                pair.hosts[side].receives.push_back(buf);
            }
        }
        if !pair.step() && late.peek().is_none() {
            break;
        }
    }
    for (side, added) in adds.into_iter().enumerate() {
        assert_eq!(
            pair.qps[side].state(),
            State::Rts,
            "seed {seed}: side {side} failed"
        );
        let sent: Vec<_> = plan.iter().filter(|p| p.side == side).collect();
        let done = &pair.hosts[side].sent;
        assert_eq!(done.len(), sent.len(), "seed {seed}: side {side} is stuck");
        for (wc, p) in done.iter().zip(&sent) {
            assert_eq!(
                wc.wr_id, p.wr.wr_id,
                "seed {seed}: completions out of order"
            );
            assert_eq!(wc.status, WcStatus::Success, "seed {seed}");
        }
        let arrived: Vec<_> = plan
            .iter()
            .filter(|p| p.side != side)
            .filter(|p| matches!(p.op, SendOp::Send | SendOp::SendImm | SendOp::WriteImm))
            .collect();
        let received = &pair.hosts[side].received;
        assert_eq!(
            received.len(),
            arrived.len(),
            "seed {seed}: messages lost or doubled"
        );
        for ((wc, _), p) in received.iter().zip(&arrived) {
            assert_eq!(wc.wr_id, p.wr.wr_id, "seed {seed}: messages out of order");
            assert_eq!(wc.byte_len, p.wr.length, "seed {seed}");
            let imm = (p.op != SendOp::Send).then_some(imm_of(p.wr.wr_id as usize));
            assert_eq!(wc.imm, imm, "seed {seed}");
            let write = p.op == SendOp::WriteImm;
            let opcode = if write {
                WcOpcode::RecvRdmaWithImm
            } else {
                WcOpcode::Recv
            };
            assert_eq!(wc.opcode, opcode, "seed {seed}");
        }
        let flushes: Vec<_> = plan
            .iter()
            .enumerate()
            .filter(|(_, p)| p.side != side && p.op == SendOp::Flush)
            .map(|(i, p)| (p.remote as u64, p.wr.length, flush_kind(i)))
            .collect();
        assert_eq!(
            *pair.hosts[side].flushes.borrow(),
            flushes,
            "seed {seed}: flushes lost or doubled"
        );
        let requests: [(Count, &[SendOp]); 3] = [
            (Count::ReadRequest, &[SendOp::Read]),
            (Count::WriteRequest, &[SendOp::Write, SendOp::WriteImm]),
            (
                Count::AtomicRequest,
                &[SendOp::FetchAdd, SendOp::AtomicWrite],
            ),
        ];
        for (count, ops) in requests {
            let planned = plan.iter().filter(|p| p.side != side);
            assert_eq!(
                pair.hosts[side].counts[count] as usize,
                planned.filter(|p| ops.contains(&p.op)).count(),
                "seed {seed}: {count:?}"
            );
        }
        let counter = &pair.hosts[side].memory.borrow()[COUNTER..COUNTER + 8];
        assert_eq!(
            counter,
            added.to_ne_bytes(),
            "seed {seed}: atomics lost or doubled"
        );
    }
    let mut originals = [Vec::new(), Vec::new()];
    for p in &plan {
        let (side, at) = match p.op {
            SendOp::Read => (p.side, p.local),
            SendOp::FetchAdd => {
                let memory = pair.hosts[p.side].memory.borrow();
                let bytes = memory[p.local..p.local + 8].try_into().unwrap();
                originals[p.side].push(u64::from_ne_bytes(bytes));
                continue;
            }
            _ => (1 - p.side, p.remote),
        };
        let memory = pair.hosts[side].memory.borrow();
        assert!(
            memory[at..at + p.data.len()] == p.data[..],
            "seed {seed}: {:?} differs",
            p.wr
        );
    }
    for list in originals {
        let expected: Vec<u64> = (0..list.len() as u64).collect();
        assert_eq!(
            list, expected,
            "seed {seed}: atomics executed out of order or twice"
        );
    }
    pair
}

#[test]
fn perfect_wire_sends_each_packet_once() {
    for seed in seeds(50) {
        let pair = traffic(seed, Link::PERFECT, Mtu::Mtu1024, 60, 20_000);
        for host in &pair.hosts {
            assert_eq!(host.counts[Count::Timeout], 0, "seed {seed}");
            assert_eq!(host.counts[Count::ImpliedNak], 0, "seed {seed}");
            assert_eq!(host.counts[Count::DuplicateRequest], 0, "seed {seed}");
        }
    }
}

#[test]
fn loss() {
    for seed in seeds(300) {
        let link = Link {
            loss: 0.05,
            ..Link::PERFECT
        };
        traffic(seed, link, Mtu::Mtu1024, 60, 20_000);
    }
}

#[test]
fn duplicates() {
    for seed in seeds(200) {
        let link = Link {
            duplicate: 0.3,
            ..Link::PERFECT
        };
        traffic(seed, link, Mtu::Mtu256, 60, 8_000);
    }
}

#[test]
fn reordering() {
    for seed in seeds(200) {
        let link = Link {
            reorder: 0.1,
            ..Link::PERFECT
        };
        traffic(seed, link, Mtu::Mtu512, 60, 8_000);
    }
}

#[test]
fn corruption() {
    for seed in seeds(200) {
        let link = Link {
            corrupt: 0.03,
            ..Link::PERFECT
        };
        traffic(seed, link, Mtu::Mtu1024, 60, 20_000);
    }
}

#[test]
fn everything_at_once() {
    for seed in seeds(400) {
        let link = Link {
            loss: 0.02,
            duplicate: 0.02,
            corrupt: 0.01,
            reorder: 0.02,
            latency_ns: 20_000,
            busy: 0.1,
            mark: 0.05,
            ..Link::PERFECT
        };
        let mtu = [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096][seed as usize % 3];
        traffic(seed, link, mtu, 80, 30_000);
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn large_messages_through_a_small_window() {
    for seed in seeds(5) {
        let link = Link {
            loss: 0.001,
            ..Link::PERFECT
        };
        traffic(seed, link, Mtu::Mtu256, 6, 600_000);
    }
}

#[test]
fn refused_access_fails_the_request_and_touches_nothing() {
    for op in [SendOp::Write, SendOp::Read, SendOp::FetchAdd] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.hosts[1].no_access = true;
        let before = pair.hosts[1].memory.borrow().clone();
        pair.post(0, wr(op, 1, 8), 0);
        pair.post(0, wr(SendOp::Write, 2, 8), 0);
        pair.run(1_000_000_000);
        let statuses: Vec<_> = pair.hosts[0].sent.iter().map(|wc| wc.status).collect();
        assert_eq!(
            statuses,
            [WcStatus::RemAccessErr, WcStatus::WrFlushErr],
            "{op:?}"
        );
        assert_eq!(pair.qps[0].state(), State::Err);
        assert_eq!(pair.qps[1].state(), State::Err);
        assert!(pair.qps[1].take_events().access_error);
        assert!(*pair.hosts[1].memory.borrow() == before);
        for count in [
            Count::ReadRequest,
            Count::WriteRequest,
            Count::AtomicRequest,
        ] {
            let counted = pair.hosts[1].counts[count];
            assert_eq!(counted, 0, "{op:?}: {count:?}");
        }
    }
}

#[test]
fn message_longer_than_the_buffer() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: 7,
        at: 0,
        len: 4000,
    });
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: 8,
        at: 0,
        len: 4000,
    });
    pair.post(0, wr(SendOp::Send, 1, 4001), 0);
    pair.run(1_000_000_000);
    assert_eq!(pair.hosts[0].sent[0].status, WcStatus::RemInvReqErr);
    let statuses: Vec<_> = pair.hosts[1]
        .received
        .iter()
        .map(|r| (r.0.wr_id, r.0.status))
        .collect();
    assert_eq!(
        statuses,
        [(7, WcStatus::LocLenErr), (8, WcStatus::WrFlushErr)]
    );
}

#[test]
fn retries_run_out() {
    let link = Link {
        loss: 1.0,
        ..Link::PERFECT
    };
    let mut pair = Pair::small(Service::Rc, 1, link);
    pair.qps[0].attrs.retry_cnt = 3;
    pair.qps[0].set_state(State::Rts, &mut pair.hosts[0]);
    pair.post(0, wr(SendOp::Send, 1, 10), 0);
    pair.run(10_000_000_000);
    assert_eq!(pair.hosts[0].sent[0].status, WcStatus::RetryExcErr);
    // The first transmission, three retries, and two probes before the first of them.
    assert_eq!(pair.packets_sent, 6);
    assert_eq!(pair.hosts[0].counts[Count::Retry], 3);
}

/// SENDs are counted when they complete, signaled or not, and received messages of any operation.
#[test]
fn messages_are_counted() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::small(service, 1, Link::PERFECT);
        for wr_id in 0..3 {
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id,
                at: 0x8000,
                len: 1000,
            });
        }
        let mut silent = wr(SendOp::Send, 1, 1000);
        silent.flags.signaled = false;
        pair.post(0, silent, 0);
        pair.post(0, wr(SendOp::SendImm, 2, 0), 0);
        pair.post(0, wr(SendOp::Write, 3, 500), 0);
        pair.post(0, wr(SendOp::WriteImm, 4, 500), 0);
        pair.run(1_000_000_000);
        let counts = |side: usize, what: Count| pair.hosts[side].counts[what];
        assert_eq!(counts(0, Count::SendCompleted), 2, "{service:?}");
        assert_eq!(counts(1, Count::ReceiveCompleted), 3, "{service:?}");
        assert_eq!(counts(1, Count::WriteRequest), 2, "{service:?}");
        assert_eq!(counts(0, Count::Retry), 0, "{service:?}");
    }
}

#[test]
fn receiver_not_ready_retries_run_out() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.qps[0].attrs.rnr_retry = 2;
    pair.qps[0].set_state(State::Rts, &mut pair.hosts[0]);
    pair.post(0, wr(SendOp::Send, 1, 10), 0);
    pair.run(10_000_000_000);
    assert_eq!(pair.hosts[0].sent[0].status, WcStatus::RnrRetryExcErr);
    assert_eq!(pair.hosts[1].counts[Count::RnrNakSent], 3);
    assert_eq!(pair.qps[1].state(), State::Rts);
}

/// With unlimited retries and the shortest timer, a responder that is never ready causes few
/// packets, and one that becomes ready late is noticed soon.
#[test]
fn unlimited_rnr_retries_are_spread() {
    for late in [100_000u64, 10_000_000, 10_000_000_000] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.qps[0].attrs.rnr_retry = 7;
        pair.qps[1].attrs.min_rnr_timer = 1;
        let begin = pair.now;
        pair.post(0, wr(SendOp::Send, 1, 10), 0);
        pair.run(late);
        let retries = pair.hosts[1].counts[Count::RnrNakSent];
        assert!(pair.hosts[0].sent.is_empty());
        assert!((3..150).contains(&retries), "{retries} in {late} ns");
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: 2,
            at: 0,
            len: 10,
        });
        let ready = pair.now - begin;
        while pair.hosts[0].sent.is_empty() && pair.step() {}
        assert_eq!(pair.hosts[0].sent[0].status, WcStatus::Success);
        let done = pair.now - begin;
        assert!(done <= ready / 8 * 9 + 100_000, "{done} after {ready} ns");
    }
}

#[test]
fn error_state_flushes_in_order() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    for i in 0..5 {
        pair.post(0, wr(SendOp::Send, i, 10), 0);
        pair.hosts[0].receives.push_back(RecvBuf {
            wr_id: 10 + i,
            at: 0,
            len: 4,
        });
    }
    let host = &mut pair.hosts[0];
    pair.qps[0].set_state(State::Err, host);
    let sent: Vec<_> = host.sent.iter().map(|w| (w.wr_id, w.status)).collect();
    let received: Vec<_> = host
        .received
        .iter()
        .map(|w| (w.0.wr_id, w.0.status))
        .collect();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(sent, (0..5).map(|i| (i, flushed)).collect::<Vec<_>>());
    assert_eq!(received, (10..15).map(|i| (i, flushed)).collect::<Vec<_>>());
}

/// A receiver that is not ready for a minute, over a lossy wire: each RNR NAK shows that a packet
/// has arrived, so the losses of that time do not add up.
#[test]
fn lossy_wire_to_a_receiver_not_ready() {
    let link = Link {
        loss: 0.1,
        ..Link::PERFECT
    };
    for seed in seeds(20) {
        let mut pair = Pair::small(Service::Rc, seed, link);
        pair.post(0, wr(SendOp::Send, 1, 100), 0);
        pair.run(60_000_000_000);
        assert!(pair.hosts[0].counts[Count::Timeout] > 7, "seed {seed}");
        assert_eq!(pair.qps[0].state(), State::Rts, "seed {seed}");
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: 1,
            at: 0,
            len: 100,
        });
        pair.run(60_000_000_000);
        assert_eq!(pair.statuses(0), [(1, WcStatus::Success)], "seed {seed}");
    }
}

/// The round trip time has grown by a queue, in which packets have overtaken others, so NAKs keep
/// arriving that were sent before what they ask for could have arrived. They do not use up the
/// retries.
#[test]
fn naks_of_a_time_before_the_repetition() {
    for marks in [false, true] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.qps[0].attrs.timeout = 14;
        for id in 0..100 {
            pair.post(0, wr(SendOp::Write, id, 100), 0);
            pair.run(1_000_000);
        }
        let usual = pair.qps[0].round_trip_ns().unwrap();
        pair.post(0, wr(SendOp::Write, 100, 20 * 1024), 0);
        let psn = pair.qps[0].sq_psn();
        pair.transmit(0);
        for count in 0..64 {
            let says = Missing::Packets {
                count: 1,
                toggle: count % 2 == 1,
            };
            let mut bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
            bth.resv7 = if marks { says.emit() } else { 0 };
            let nak = Aeth::new(Syndrome::Nak(NakCode::PsnSequence), Msn::new(100));
            pair.now += usual * 5 / 4;
            pair.inject(0, Headers::new(bth).aeth(nak), &[]);
            pair.transmit(0);
            assert_eq!(pair.qps[0].state(), State::Rts, "{marks}: {count}");
        }
        let sent = pair.hosts[0].counts[Count::Retry];
        assert!((5..=7).contains(&sent), "{marks}: {sent}");
        pair.run(1_000_000_000);
        assert_eq!(pair.statuses(0).last(), Some(&(100, WcStatus::Success)));
    }
}
