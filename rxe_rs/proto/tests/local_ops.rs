// SPDX-License-Identifier: GPL-2.0
//! Local operations (REG_MR, BIND_MW, LOCAL_INV): executed and completed in order.
#![cfg(feature = "sim")]

use rxe_proto::check::window::Bind;
use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::{WcOpcode, WcStatus};
use rxe_proto::engine::wr::{FlushKind, LocalOp, Register, SendBody, SendFlags, SendOp, SendWr};
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Mtu, RKey};
use rxe_proto::sim::{seeds, set_flush, set_remote, set_rkey, wr, Link, Pair, RecvBuf, RKEY};
use rxe_proto::wire::feth::Selectivity;

const SECOND: u64 = 1_000_000_000;
/// A key that the simulator does not use.
const OTHER: RKey = RKey(0x4242_4201);

const BAD: Link = Link {
    loss: 0.05,
    duplicate: 0.05,
    corrupt: 0.01,
    reorder: 0.05,
    busy: 0.02,
    ..Link::PERFECT
};

fn signaled() -> SendFlags {
    SendFlags {
        signaled: true,
        ..SendFlags::default()
    }
}

fn key(op: LocalOp, wr_id: u64) -> SendWr {
    let mut wr = SendWr::EMPTY;
    wr.wr_id = wr_id;
    wr.flags = signaled();
    wr.body = SendBody::Local(op);
    wr
}

fn register(key: RKey) -> LocalOp {
    LocalOp::Register(Register {
        key,
        iova: 0x1_0000_0000,
        length: 1 << 33,
        access: 7,
    })
}

fn ids(pair: &Pair, side: usize) -> Vec<u64> {
    pair.hosts[side].sent.iter().map(|wc| wc.wr_id).collect()
}

/// A registration does not wait for requests in flight; its completion does.
#[test]
fn registration_does_not_wait() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.post(0, wr(SendOp::Write, 0, 100), 0);
    pair.post(0, key(register(OTHER), 1), 0);
    pair.post(0, wr(SendOp::Write, 2, 100), 0);
    pair.transmit(0);
    assert_eq!(pair.packets_sent, 2, "both messages leave at once");
    assert_eq!(pair.hosts[0].local_ops.borrow().len(), 1);
    assert!(pair.hosts[0].sent.is_empty(), "nothing is acknowledged yet");
    pair.run(SECOND);
    let expected: Vec<_> = (0..3).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(pair.statuses(0), expected);
    assert_eq!(pair.hosts[0].sent[1].opcode, WcOpcode::RegMr);
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
}

/// Alone in the queue they complete at once, without a packet, on RC and UC.
#[test]
fn local_operations_send_no_packet() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::small(service, 3, Link::PERFECT);
        let bind = LocalOp::Bind(Bind {
            window: RKey(0x8765_4321),
            key: RKey(0x8765_4322),
            region: 0xfedc_ba98,
            addr: 0x7fff_0123_4567_89ab,
            length: 0x11_2233_4455,
            access: 0x2f,
        });
        let ops = [LocalOp::Invalidate(OTHER), bind, register(OTHER)];
        for (id, op) in ops.into_iter().enumerate() {
            pair.post(0, key(op, id as u64), 0);
        }
        pair.transmit(0);
        assert_eq!(ids(&pair, 0), [0, 1, 2]);
        let done = pair.hosts[0].local_ops.borrow().clone();
        assert!(done.into_iter().map(|(op, _)| op).eq(ops));
        assert_eq!(pair.packets_sent, 0);
        assert_eq!(pair.qps[0].poll_timeout(), None);
    }
}

/// An invalidation waits for earlier requests, and later requests wait for it.
#[test]
fn invalidation_waits_for_earlier_requests() {
    for (seed, op) in [(0, SendOp::Write), (1, SendOp::Send), (2, SendOp::Read)] {
        let mut pair = Pair::small(Service::Rc, seed, Link::PERFECT);
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: 0,
            at: 0,
            len: 8000,
        });
        pair.post(0, wr(op, 0, 8000), 0);
        pair.post(0, key(LocalOp::Invalidate(OTHER), 1), 0);
        pair.post(0, wr(SendOp::Write, 2, 100), 0);
        pair.transmit(0);
        assert!(pair.hosts[0].local_ops.borrow().is_empty(), "{op:?}");
        pair.run(SECOND);
        assert_eq!(ids(&pair, 0), [0, 1, 2], "{op:?}");
        assert_eq!(
            *pair.hosts[0].local_ops.borrow(),
            [(LocalOp::Invalidate(OTHER), 1)]
        );
        let counts = &pair.hosts[0].counts;
        assert_eq!(counts[Count::Timeout], 0, "{op:?}");
    }
}

/// A local operation that is posted after all earlier packets were sent, and one with a fence while
/// a READ is outstanding.
#[test]
fn late_and_fenced() {
    let mut pair = Pair::small(Service::Rc, 5, Link::PERFECT);
    pair.post(0, wr(SendOp::Read, 0, 3000), 0);
    pair.transmit(0);
    let mut fenced = key(register(OTHER), 1);
    fenced.flags.fence = true;
    pair.post(0, fenced, 0);
    pair.transmit(0);
    assert!(pair.hosts[0].local_ops.borrow().is_empty());
    pair.run(SECOND);
    assert_eq!(*pair.hosts[0].local_ops.borrow(), [(register(OTHER), 1)]);
    assert_eq!(ids(&pair, 0), [0, 1]);
}

/// SEND with invalidate invalidates the key with the message: not earlier, and no access succeeds
/// later.
#[test]
fn send_with_invalidate() {
    for seed in seeds(40) {
        let mut pair = Pair::small(Service::Rc, seed, BAD);
        for (wr_id, len) in [(0, 3000), (1, 10)] {
            pair.hosts[1]
                .receives
                .push_back(RecvBuf { wr_id, at: 0, len });
        }
        pair.post(0, wr(SendOp::Write, 0, 5000), 0);
        pair.post(0, wr(SendOp::SendInv, 1, 2500), 0);
        pair.post(0, wr(SendOp::Send, 2, 10), 0);
        pair.run(100 * SECOND);
        // The NAK is sent once and must not be lost.
        pair.link = Link::PERFECT;
        pair.post(0, wr(SendOp::Write, 3, 5000), 0);
        pair.run(100 * SECOND);
        assert_eq!(
            pair.statuses(0),
            [
                (0, WcStatus::Success),
                (1, WcStatus::Success),
                (2, WcStatus::Success),
                (3, WcStatus::RemAccessErr)
            ],
            "seed {seed}"
        );
        assert_eq!(pair.hosts[0].sent[1].opcode, WcOpcode::Send);
        let wcs: Vec<_> = pair.hosts[1].received.iter().map(|r| r.0).collect();
        assert_eq!(wcs[0].invalidated, Some(RKEY), "seed {seed}");
        assert_eq!((wcs[0].byte_len, wcs[0].imm), (2500, None));
        assert_eq!(wcs[1].invalidated, None);
        assert!(pair.hosts[1].invalid.get());
    }
}

/// A key that cannot be invalidated completes in error at the sender and at the receiver.
#[test]
fn send_with_bad_invalidate() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: 7,
        at: 0,
        len: 100,
    });
    let mut bad = wr(SendOp::SendInv, 0, 10);
    bad.body = SendBody::SendInv(OTHER);
    pair.post(0, bad, 0);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0), [(0, WcStatus::RemAccessErr)]);
    let wc = pair.hosts[1].received[0].0;
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::RemInvReqErr));
    assert_eq!(pair.qps[1].state(), State::Err);
    assert!(!pair.hosts[1].invalid.get());
}

/// A refused local operation fails in order and stops the queue.
#[test]
fn refused_local_operation() {
    for good in 0..4u64 {
        let mut pair = Pair::small(Service::Rc, good, Link::PERFECT);
        pair.hosts[0].bad_keys.push(OTHER);
        for id in 0..good {
            pair.post(0, wr(SendOp::Write, id, 3000), 0);
        }
        pair.post(0, key(register(OTHER), good), 0);
        pair.post(0, wr(SendOp::Write, good + 1, 10), 0);
        pair.run(10 * SECOND);
        let mut expected: Vec<_> = (0..good).map(|id| (id, WcStatus::Success)).collect();
        expected.push((good, WcStatus::MwBindErr));
        expected.push((good + 1, WcStatus::WrFlushErr));
        assert_eq!(pair.statuses(0), expected);
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
        assert_eq!(pair.qps[0].state(), State::Err);
    }
}

/// Mixed requests over a lossy wire: each executed once, in order, and completed in order.
#[test]
fn mixed_on_a_lossy_wire() {
    for seed in seeds(150) {
        let mut pair = Pair::new(seed, BAD, Mtu::Mtu256, 1 << 16);
        let mut ops = Vec::new();
        let count = 60u64;
        for id in 0..count {
            let len = pair.rng.u32(0..2000);
            let mut next = match pair.rng.u8(0..7) {
                0 => wr(SendOp::Write, id, len),
                1 => wr(SendOp::Read, id, len),
                2 => wr(SendOp::FetchAdd, id, 8),
                3 => wr(SendOp::Send, id, len),
                4 => key(LocalOp::Invalidate(RKey(id as u32)), id),
                _ => key(register(RKey(id as u32)), id),
            };
            if next.body == SendBody::Send {
                pair.hosts[1].receives.push_back(RecvBuf {
                    wr_id: id,
                    at: 0,
                    len,
                });
            }
            next.flags.fence = pair.rng.u8(0..4) == 0;
            if let SendBody::Local(op) = next.body {
                ops.push(op);
            }
            pair.post(0, next, 0);
            if pair.rng.u8(0..3) == 0 {
                pair.step();
            }
        }
        pair.run(1000 * SECOND);
        let expected: Vec<_> = (0..count).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(pair.statuses(0), expected, "seed {seed}");
        let done: Vec<_> = pair.hosts[0]
            .local_ops
            .borrow()
            .iter()
            .map(|o| o.0)
            .collect();
        assert_eq!(done, ops, "seed {seed}");
        for (op, before) in pair.hosts[0].local_ops.borrow().iter() {
            if let LocalOp::Invalidate(RKey(id)) = op {
                assert_eq!(
                    *before, *id as usize,
                    "seed {seed}: waits for all before it"
                );
            }
        }
    }
}

/// ATOMIC WRITE and FLUSH that the responder must not execute.
#[test]
fn bad_atomic_writes_and_flushes() {
    let flush = |placement, selectivity| {
        let mut wr = wr(SendOp::Flush, 0, 100);
        let kind = FlushKind {
            placement,
            selectivity,
        };
        set_flush(&mut wr, kind);
        wr
    };
    let range = Selectivity::Range;
    let word = wr(SendOp::AtomicWrite, 0, 8);
    let with = |wr: SendWr, change: &dyn Fn(&mut SendWr)| {
        let mut wr = wr;
        change(&mut wr);
        wr
    };
    let no_access = WcStatus::RemAccessErr;
    let invalid = WcStatus::RemInvReqErr;
    let cases = [
        (with(word, &|wr| set_rkey(wr, OTHER)), no_access),
        (with(word, &|wr| set_remote(wr, 0x8004)), invalid),
        (with(word, &|wr| wr.length = 7), invalid),
        (with(word, &|wr| set_remote(wr, 1 << 16)), no_access),
        (with(flush(1, range), &|wr| set_rkey(wr, OTHER)), no_access),
        (
            with(flush(1, range), &|wr| set_remote(wr, 1 << 16)),
            no_access,
        ),
        (
            with(flush(1, Selectivity::Region), &|wr| set_rkey(wr, OTHER)),
            no_access,
        ),
        // The QP allows FLUSH to global visibility only.
        (flush(2, range), invalid),
        (flush(3, range), invalid),
        (flush(0, range), invalid),
        (flush(4, range), invalid),
    ];
    for (n, (bad, status)) in cases.into_iter().enumerate() {
        let mut pair = Pair::small(Service::Rc, n as u64, Link::PERFECT);
        let before = pair.hosts[1].memory.borrow().clone();
        pair.hosts[0].memory.borrow_mut()[..8].fill(0xee);
        pair.post(0, bad, 0);
        pair.run(SECOND);
        assert_eq!(pair.statuses(0), [(0, status)], "case {n}");
        assert_eq!(*pair.hosts[1].memory.borrow(), before, "case {n}");
        assert!(pair.hosts[1].flushes.borrow().is_empty(), "case {n}");
    }
    for right in [false, true] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.qps[1].attrs.remote_write = right;
        pair.post(0, word, 0);
        pair.run(SECOND);
        let expected = if right { WcStatus::Success } else { invalid };
        assert_eq!(pair.statuses(0), [(0, expected)]);
    }
}
