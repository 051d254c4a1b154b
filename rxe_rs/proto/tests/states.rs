// SPDX-License-Identifier: GPL-2.0
//! State changes, the flushing that goes with them, and the events they raise.
#![cfg(feature = "sim")]

use rxe_proto::drop::DropReason;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::{Events, Qp, ReceiveQueue, Service, State};
use rxe_proto::ids::{Mtu, Psn, Qpn, RKey};
use rxe_proto::sim::{set_rkey, wr, Link, Pair, RecvBuf};

const SECOND: u64 = 1_000_000_000;

fn post_receives(pair: &mut Pair, side: usize, ids: core::ops::Range<u64>) {
    for wr_id in ids {
        let buf = RecvBuf {
            wr_id,
            at: 0,
            len: 10_000,
        };
        pair.hosts[side].receives.push_back(buf);
    }
}

/// Attaches the receiver to a shared receive queue and sets its expected PSN to `psn`.
fn share(pair: &mut Pair, side: usize, psn: Psn) {
    let mut qp = Qp::new(Service::Rc, Qpn::new(0x12), ReceiveQueue::Shared);
    qp.attrs = pair.qps[side].attrs;
    qp.set_rq_psn(psn);
    qp.set_state(State::Rtr, &mut pair.hosts[side]);
    qp.set_state(State::Rts, &mut pair.hosts[side]);
    pair.qps[side] = qp;
}

/// A failed QP does not flush a shared receive queue, flushes the WQE in use, and raises the last
/// WQE event once.
#[test]
fn shared_receive_queues_are_not_flushed() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let psn = pair.qps[1].rq_psn();
    share(&mut pair, 1, psn);
    post_receives(&mut pair, 1, 0..4);
    pair.post(0, wr(SendOp::Send, 1, 100), 0);
    pair.post(0, wr(SendOp::Send, 2, 5000), 0);
    // The second message stays incomplete.
    pair.transmit_packets(0, 3);
    pair.hosts[0].receives.clear();
    let host = &mut pair.hosts[0];
    pair.qps[0].set_state(State::Err, host);
    pair.run(SECOND);
    assert_eq!(pair.qps[1].take_events(), Events::default());
    for _ in 0..2 {
        let host = &mut pair.hosts[1];
        pair.qps[1].set_state(State::Err, host);
    }
    let done: Vec<_> = pair.hosts[1]
        .received
        .iter()
        .map(|(wc, _)| (wc.wr_id, wc.status))
        .collect();
    assert_eq!(done, [(0, WcStatus::Success), (1, WcStatus::WrFlushErr)]);
    assert_eq!(pair.hosts[1].receives.len(), 2);
    let events = pair.qps[1].take_events();
    assert!(events.last_wqe && !events.fatal);
    let host = &mut pair.hosts[1];
    pair.qps[1].set_state(State::Err, host);
    pair.transmit(1);
    assert!(pair.qps[1].take_events().is_empty());
    assert_eq!(pair.hosts[1].receives.len(), 2);
}

/// The owner reports that packets were dropped, but the QP that sent them has been reset meanwhile:
/// the next connection does not begin with a loss.
#[test]
fn packets_dropped_after_a_reset() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let window = pair.qps[0].window();
    pair.post(0, wr(SendOp::Write, 1, 5000), 0);
    pair.transmit(0);
    let (now, host) = (pair.now, &mut pair.hosts[0]);
    pair.qps[0].set_state(State::Reset, host);
    pair.qps[0].on_congestion(now);
    assert_eq!(pair.qps[0].poll_timeout(), None);
    for state in [State::Init, State::Rtr, State::Rts] {
        pair.qps[0].set_state(state, &mut pair.hosts[0]);
    }
    assert_eq!(pair.qps[0].window(), window);
}

/// A QP with its own receive queue flushes all of it, also later posts, and raises no event.
#[test]
fn receive_queues_are_flushed() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    post_receives(&mut pair, 1, 0..3);
    let host = &mut pair.hosts[1];
    pair.qps[1].set_state(State::Err, host);
    assert_eq!(pair.hosts[1].received.len(), 3);
    post_receives(&mut pair, 1, 3..5);
    pair.transmit(1);
    let ids = pair.hosts[1].received.iter().map(|(wc, _)| wc.wr_id);
    assert_eq!(ids.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(pair.qps[1].take_events().is_empty());
}

/// A process posts receive requests to a failed QP without a call. They are flushed after no more
/// than the time since the failure, and a QP that is left in ERR causes few looks.
#[test]
fn receives_that_nobody_announces_are_flushed() {
    const MS: u64 = 1_000_000;
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let mut qp = Qp::new(Service::Rc, Qpn::new(0x12), ReceiveQueue::Unannounced);
    qp.attrs = pair.qps[1].attrs;
    for state in [State::Init, State::Rtr, State::Rts, State::Err] {
        qp.set_state(state, &mut pair.hosts[1]);
    }
    pair.qps[1] = qp;
    pair.transmit(1);
    let failed_at = pair.now;
    // The driver's timer.
    let pass = |pair: &mut Pair, end| {
        let mut looks = 0;
        while let Some(at) = pair.qps[1].poll_timeout().filter(|at| *at <= end) {
            pair.now = at;
            pair.qps[1].handle_timeout(at, &mut pair.hosts[1]);
            pair.transmit(1);
            looks += 1;
        }
        pair.now = end;
        looks
    };
    for (id, after) in [(0, 0), (1, 3), (2, 40), (3, 2000)] {
        pass(&mut pair, failed_at + after * MS);
        assert_eq!(pair.hosts[1].received.len(), id);
        let id = id as u64;
        post_receives(&mut pair, 1, id..id + 1);
        let end = pair.now + after.max(1) * MS;
        pass(&mut pair, end);
        let (wc, _) = pair.hosts[1].received.last().unwrap();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlushErr));
    }
    let end = pair.now + 3600 * SECOND;
    let looks = pass(&mut pair, end);
    assert!((1..20).contains(&looks), "{looks}");
    pair.qps[1].set_state(State::Reset, &mut pair.hosts[1]);
    assert_eq!(pair.qps[1].poll_timeout(), None);
}

/// A QP that cannot report completions fails with an event, once, unless it has failed already.
#[test]
fn failure_without_a_completion() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.post(0, wr(SendOp::Send, 1, 5000), 0);
    pair.transmit_packets(0, 2);
    let host = &mut pair.hosts[0];
    pair.qps[0].fail_locally(host);
    assert_eq!(pair.qps[0].state(), State::Err);
    assert_eq!(pair.hosts[0].sent.len(), 1);
    assert!(pair.qps[0].take_events().fatal);
    let host = &mut pair.hosts[0];
    pair.qps[0].fail_locally(host);
    assert!(pair.qps[0].take_events().is_empty());
    let mut fresh = Qp::new(Service::Rc, Qpn::new(0x13), ReceiveQueue::Announced);
    fresh.fail_locally(&mut pair.hosts[0]);
    assert_eq!(fresh.state(), State::Reset);
    assert!(fresh.take_events().is_empty());
}

/// The driver learns that a QP enters ERR before its consumer can: no completion that reports a
/// failure comes earlier.
#[test]
fn error_is_announced_before_completions() {
    let check = |pair: &Pair, side: usize| {
        let host = &pair.hosts[side];
        assert_eq!(pair.qps[side].state(), State::Err);
        let statuses = host
            .sent
            .iter()
            .chain(host.received.iter().map(|(wc, _)| wc));
        let good = statuses.filter(|wc| wc.status == WcStatus::Success).count();
        assert!(host.sent.len() + host.received.len() > good);
        assert_eq!(host.completions_before_error, Some(good));
    };
    // Refused by the sender itself, by the receiver whose buffer is too short, and by the consumer.
    for (bad_local, length, by_consumer) in [(2, 100, false), (9, 10_001, false), (9, 100, true)] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.hosts[0].bad_local.push(bad_local);
        post_receives(&mut pair, 0, 0..2);
        post_receives(&mut pair, 1, 0..4);
        pair.post(0, wr(SendOp::Send, 0, 100), 0);
        pair.post(0, wr(SendOp::Send, 1, length), 0);
        pair.post(0, wr(SendOp::Send, 2, 100), 0);
        if by_consumer {
            pair.transmit_packets(0, 1);
            let host = &mut pair.hosts[0];
            pair.qps[0].set_state(State::Err, host);
        }
        pair.run(SECOND);
        check(&pair, 0);
        if length > 10_000 {
            check(&pair, 1);
        }
    }
    // No packet is an answer to this one.
    let mut pair = Pair::small(Service::Uc, 1, Link::PERFECT);
    let at = usize::MAX / 2;
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: 0,
        at,
        len: 200,
    });
    pair.post(0, wr(SendOp::Send, 0, 100), 0);
    pair.run(SECOND);
    check(&pair, 1);
}

/// The send queue drained event is raised only if requested.
#[test]
fn sq_drained_event() {
    for notify in [false, true] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.qps[0].attrs.sqd_async_notify = notify;
        let host = &mut pair.hosts[0];
        pair.qps[0].set_state(State::Sqd, host);
        assert!(pair.qps[0].is_drained());
        assert_eq!(pair.qps[0].take_events().sq_drained, notify);
    }
}

/// An event that has not been taken yet is raised although the next drain asks for none.
#[test]
fn sq_drained_event_stays() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    for notify in [true, false] {
        pair.qps[0].attrs.sqd_async_notify = notify;
        pair.set_state(0, State::Sqd);
        pair.set_state(0, State::Rts);
    }
    assert!(pair.qps[0].take_events().sq_drained);
}

/// A refused request raises its event, unless a receive completion reports it.
#[test]
fn events_of_refused_requests() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.hosts[1].no_access = true;
    let mut write = wr(SendOp::Write, 1, 100);
    pair.post(0, write, 0);
    pair.run(SECOND);
    assert_eq!(pair.qps[1].state(), State::Err);
    let events = pair.qps[1].take_events();
    assert!(events.access_error && !events.request_error);

    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    post_receives(&mut pair, 1, 0..1);
    pair.post(0, wr(SendOp::Send, 1, 10_001), 0);
    pair.run(SECOND);
    assert_eq!(pair.qps[1].state(), State::Err);
    assert_eq!(pair.hosts[1].received[0].0.status, WcStatus::LocLenErr);
    assert!(pair.qps[1].take_events().is_empty());

    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    pair.qps[1].attrs.mtu = Mtu::Mtu512;
    write.length = 5000;
    set_rkey(&mut write, RKey(0));
    pair.post(0, write, 0);
    pair.run(SECOND);
    let events = pair.qps[1].take_events();
    assert!(events.request_error && !events.access_error);
}

/// Getters of a QP: packets in flight, round trip time, retries left.
#[test]
fn getters() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    assert_eq!(pair.qps[0].round_trip_ns(), None);
    assert_eq!(
        (pair.qps[0].in_flight(), pair.qps[0].retries_left()),
        (0, (7, 7))
    );
    for wr_id in 0..4 {
        post_receives(&mut pair, 1, wr_id..wr_id + 1);
        pair.post(0, wr(SendOp::Send, wr_id, 3000), 0);
    }
    pair.step();
    assert!(pair.qps[0].in_flight() > 0);
    pair.run(SECOND);
    assert_eq!(pair.qps[0].in_flight(), 0);
    // A round trip.
    let round_trip = pair.qps[0].round_trip_ns();
    assert!(
        round_trip.is_some_and(|ns| (10_000..20_000).contains(&ns)),
        "{round_trip:?}"
    );
    // The peer has sent no request.
    assert_eq!(pair.qps[1].round_trip_ns(), None);
    // The peer does not respond.
    pair.post(0, wr(SendOp::Send, 9, 3000), 0);
    pair.qps[1].set_state(State::Reset, &mut pair.hosts[1]);
    for _ in 0..1000 {
        if pair.qps[0].retries_left() != (7, 7) {
            break;
        }
        pair.step();
    }
    assert_eq!(pair.qps[0].retries_left(), (6, 7));
}

/// Packets to a QP that is not ready to receive are dropped for another reason than those to a QP
/// in the error state.
#[test]
fn states_that_receive() {
    for (state, expected) in [
        (State::Reset, Err(DropReason::NotReady)),
        (State::Init, Err(DropReason::NotReady)),
        (State::Rtr, Ok(())),
        (State::Rts, Ok(())),
        (State::Sqd, Ok(())),
        (State::Sqe, Ok(())),
        (State::Err, Err(DropReason::BadState)),
    ] {
        assert_eq!(state.receives(), expected, "{state:?}");
    }
}

/// With the driver's own 1000 bytes a queue pair still fits into a slab object of 2 KiB. The next
/// size is 4 KiB.
#[test]
fn size_of_a_queue_pair() {
    assert!(size_of::<Qp>() <= 1040, "{}", size_of::<Qp>());
}
