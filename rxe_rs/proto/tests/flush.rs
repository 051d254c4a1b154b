// SPDX-License-Identifier: GPL-2.0
//! FLUSH to persistence: executed in several calls, once, before its response and before later
//! requests.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{FlushKind, SendBody, SendOp, SendWr};
use rxe_proto::engine::State;
use rxe_proto::ids::Mtu;
use rxe_proto::sim::{seeds, set_flush, set_remote, wr, Link, Pair, RecvBuf};
use rxe_proto::wire::feth::Selectivity;
use rxe_proto::wire::Feth;

const MEMORY: usize = 1 << 18;
const FLUSH_STEP: usize = 1024;
const SECOND: u64 = 1_000_000_000;
/// Bytes of a message and of its part of the memory.
const MESSAGE: u32 = 5000;
const SLOT: usize = 8192;
const ROUNDS: usize = MEMORY / SLOT;

fn pair(seed: u64, link: Link) -> Pair {
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
    for side in 0..2 {
        pair.qps[side].attrs.remote_flush = Feth::GLOBAL | Feth::PERSISTENT;
        let host = &mut pair.hosts[side];
        host.flush_step = FLUSH_STEP;
        host.persistent = vec![0; MEMORY].into();
    }
    fastrand::Rng::with_seed(seed).fill(&mut pair.hosts[0].memory.borrow_mut());
    pair
}

fn flush(wr_id: u64, addr: usize, length: u32, selectivity: Selectivity) -> SendWr {
    let mut request = wr(SendOp::Flush, wr_id, length);
    set_remote(&mut request, addr as u64);
    let kind = FlushKind {
        placement: Feth::PERSISTENT,
        selectivity,
    };
    set_flush(&mut request, kind);
    request
}

fn range(wr_id: u64, addr: usize, length: u32) -> SendWr {
    flush(wr_id, addr, length, Selectivity::Range)
}

fn write(wr_id: u64, addr: usize, length: u32) -> SendWr {
    let mut request = wr(SendOp::Write, wr_id, length);
    set_remote(&mut request, addr as u64);
    request
}

/// Number of calls that make `length` bytes persistent.
fn calls_for(length: usize) -> usize {
    length.div_ceil(FLUSH_STEP)
}

/// WRITEs and FLUSHes of ranges and of the region, followed by requests that must not overtake
/// them, which the simulator checks. When a FLUSH completes, all earlier WRITEs are persistent. On
/// any wire each FLUSH is executed once.
fn traffic(seed: u64, link: Link) -> Pair {
    let mut pair = pair(seed, link);
    let mut expected = 0;
    let mut flushes = Vec::new();
    for n in 0..ROUNDS {
        let (at, id) = (n * SLOT, 4 * n as u64);
        pair.post(0, write(id, at, MESSAGE), at);
        if n % 5 == 4 {
            pair.post(0, flush(id + 1, 0, 0, Selectivity::Region), 0);
            expected += calls_for(MEMORY);
        } else {
            pair.post(0, range(id + 1, at, MESSAGE), 0);
            expected += calls_for(MESSAGE as usize);
        }
        flushes.push((id + 1, at));
        // After the flushed range.
        let mut word = wr(SendOp::AtomicWrite, id + 2, 8);
        set_remote(&mut word, (at + SLOT - 8) as u64);
        pair.post(0, word, at);
        let mut other = wr(
            [SendOp::Send, SendOp::Read, SendOp::FetchAdd][n % 3],
            id + 3,
            8,
        );
        set_remote(&mut other, (at + SLOT - 16) as u64);
        if other.body == SendBody::Send {
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id: id,
                at: at + SLOT - 24,
                len: 8,
            });
        }
        pair.post(0, other, at + MESSAGE as usize);
    }
    let mut seen = 0;
    let end = pair.now + 1000 * SECOND;
    while pair.now < end && pair.step() {
        for wc in pair.hosts[0].sent.iter().skip(seen) {
            let Some((_, at)) = flushes.iter().find(|(id, _)| *id == wc.wr_id) else {
                continue;
            };
            let bytes = *at..at + MESSAGE as usize;
            assert_eq!(
                pair.hosts[1].persistent.borrow()[bytes.clone()],
                pair.hosts[0].memory.borrow()[bytes],
                "seed {seed}: {} is not persistent",
                wc.wr_id
            );
        }
        seen = pair.hosts[0].sent.len();
    }
    let all: Vec<_> = (0..4 * ROUNDS as u64)
        .map(|id| (id, WcStatus::Success))
        .collect();
    assert_eq!(pair.statuses(0), all, "seed {seed}");
    assert_eq!(
        pair.hosts[1].flushes.borrow().len(),
        ROUNDS,
        "seed {seed}: lost or doubled"
    );
    assert_eq!(
        pair.hosts[1].flush_calls.get(),
        expected,
        "seed {seed}: calls lost or doubled"
    );
    pair
}

#[test]
fn in_order_and_without_retries() {
    for seed in seeds(20) {
        let pair = traffic(seed, Link::PERFECT);
        assert!(pair.deferred_packets > 0);
        for side in 0..2 {
            for count in [
                Count::Timeout,
                Count::ImpliedNak,
                Count::RnrNakSent,
                Count::RemoteAccessError,
            ] {
                assert_eq!(pair.hosts[side].counts[count], 0, "seed {seed}: {count:?}");
            }
        }
    }
}

#[test]
fn executed_once_on_a_lossy_wire() {
    for seed in seeds(60) {
        let link = Link {
            loss: 0.03,
            duplicate: 0.1,
            reorder: 0.05,
            busy: 0.02,
            ..Link::PERFECT
        };
        traffic(seed, link);
    }
}

/// A lost response is sent again for the duplicate request, without executing the FLUSH again.
#[test]
fn duplicates_are_answered_without_another_flush() {
    let mut pair = pair(1, Link::PERFECT);
    pair.post(0, range(0, 0, 10 * FLUSH_STEP as u32), 0);
    while pair.hosts[1].flushes.borrow().is_empty() {
        assert!(pair.step());
    }
    pair.transmit(1);
    pair.drop_in_flight();
    assert!(pair.hosts[0].sent.is_empty());
    pair.run(100 * SECOND);
    assert_eq!(pair.statuses(0), [(0, WcStatus::Success)]);
    assert_eq!(pair.hosts[1].flush_calls.get(), 10);
    assert_eq!(pair.hosts[1].counts[Count::DuplicateRequest], 1);
}

/// Responses of earlier requests are sent while a FLUSH is in progress.
#[test]
fn earlier_responses_do_not_wait() {
    let mut pair = pair(2, Link::PERFECT);
    pair.qps[0].attrs.timeout = 0;
    pair.post(0, wr(SendOp::Read, 0, 8 * MESSAGE), 0);
    pair.post(0, flush(1, 0, 0, Selectivity::Region), 0);
    while pair.hosts[0].sent.is_empty() {
        assert!(pair.step());
    }
    assert_eq!(pair.statuses(0), [(0, WcStatus::Success)]);
    assert!(pair.hosts[1].flush_calls.get() < calls_for(MEMORY) / 2);
    pair.run(100 * SECOND);
    assert_eq!(pair.statuses(0)[1..], [(1, WcStatus::Success)]);
}

/// Runs a FLUSH of the whole region half-way.
fn run_half(pair: &mut Pair) {
    pair.post(0, flush(0, 0, 0, Selectivity::Region), 0);
    while pair.hosts[1].flush_calls.get() < calls_for(MEMORY) / 2 {
        assert!(pair.step());
    }
    assert!(pair.hosts[0].sent.is_empty());
}

/// A lost request of the flushing side is retransmitted before the FLUSH is complete.
#[test]
fn lost_requests_are_retransmitted_during_a_flush() {
    let mut pair = pair(7, Link::PERFECT);
    pair.qps[0].attrs.timeout = 0;
    pair.qps[1].attrs.timeout = 4;
    run_half(&mut pair);
    pair.hosts[1].memory.borrow_mut()[..8].fill(0xa5);
    pair.post(1, write(9, SLOT, 8), 0);
    pair.transmit(1);
    pair.drop_in_flight();
    while pair.hosts[0].memory.borrow()[SLOT..SLOT + 8] != [0xa5; 8] {
        assert!(pair.step());
    }
    assert!(pair.hosts[0].sent.is_empty());
    pair.run(100 * SECOND);
    assert_eq!(pair.statuses(0), [(0, WcStatus::Success)]);
    assert_eq!(pair.statuses(1), [(9, WcStatus::Success)]);
}

/// The region is invalidated during a FLUSH: the peer gets a NAK, not a successful response.
#[test]
fn region_invalidated_during_a_flush() {
    let mut pair = pair(3, Link::PERFECT);
    run_half(&mut pair);
    pair.hosts[1].invalid.set(true);
    pair.run(100 * SECOND);
    assert_eq!(pair.statuses(0), [(0, WcStatus::RemAccessErr)]);
    assert_eq!(pair.qps[1].state(), State::Err);
    assert!(pair.hosts[1].flushes.borrow().is_empty());
}

/// The deferred request is dropped: the FLUSH continues with its retransmission.
#[test]
fn deferred_flush_is_dropped() {
    let mut pair = pair(4, Link::PERFECT);
    run_half(&mut pair);
    pair.drop_deferred(1);
    let before = pair.packets_sent;
    pair.run(100 * SECOND);
    assert_eq!(pair.statuses(0), [(0, WcStatus::Success)]);
    assert_eq!(pair.hosts[1].flush_calls.get(), calls_for(MEMORY));
    assert!(
        pair.packets_sent >= before + 2,
        "the request, and its response"
    );
}

/// A new connection starts with the same PSN and the same request: the progress of the old one is
/// not used.
#[test]
fn reset_discards_the_progress_of_a_flush() {
    let mut pair = pair(5, Link::PERFECT);
    let (psn, attrs) = (pair.qps[1].rq_psn(), pair.qps[1].attrs);
    run_half(&mut pair);
    pair.drop_deferred(1);
    let (qp, host) = (&mut pair.qps[1], &mut pair.hosts[1]);
    qp.set_state(State::Reset, host);
    qp.set_state(State::Init, host);
    qp.attrs = attrs;
    qp.set_rq_psn(psn);
    qp.set_state(State::Rtr, host);
    let before = host.flush_calls.replace(0);
    assert!(before < calls_for(MEMORY));
    pair.run(100 * SECOND);
    assert_eq!(pair.statuses(0), [(0, WcStatus::Success)]);
    assert_eq!(pair.hosts[1].flush_calls.get(), calls_for(MEMORY));
}

/// Each placement type needs its own right; unknown placement bits are refused.
#[test]
fn placement() {
    let (global, persistent) = (Feth::GLOBAL, Feth::PERSISTENT);
    for (right, placement, status) in [
        (global, persistent, WcStatus::RemInvReqErr),
        (global, global | persistent, WcStatus::RemInvReqErr),
        (persistent, global, WcStatus::RemInvReqErr),
        (persistent, persistent, WcStatus::Success),
        (global | persistent, global | persistent, WcStatus::Success),
        (global | persistent, persistent | 4, WcStatus::RemInvReqErr),
    ] {
        let mut pair = pair(6, Link::PERFECT);
        pair.qps[1].attrs.remote_flush = right;
        let mut request = range(0, 0, 100);
        let kind = FlushKind {
            placement,
            selectivity: Selectivity::Range,
        };
        set_flush(&mut request, kind);
        pair.post(0, request, 0);
        pair.run(SECOND);
        assert_eq!(pair.statuses(0), [(0, status)], "{right} {placement}");
    }
}
