// SPDX-License-Identifier: GPL-2.0
//! Forged requests.

use super::*;

/// Requests at any PSN but the expected one: nothing is executed, nothing fails, no completion and
/// no event is raised, not even COMM_EST.
#[test]
fn requests_need_the_expected_psn() {
    let mut pair = Pair::small(Service::Rc, 5, Link::PERFECT);
    let expected = pair.qps[1].rq_psn();
    pair.qps[1].set_state(State::Rtr, &mut pair.hosts[1]);
    pair.hosts[1].memory.borrow_mut().fill(0x5a);
    pair.hosts[1].receives.push_back(RecvBuf {
        wr_id: 1,
        at: 0,
        len: 4096,
    });
    for psn in psns(&mut pair, expected, 6000) {
        for opcode in requests() {
            let len = length(opcode.operation());
            pair.inject(1, forged(1, opcode, psn, len), &vec![0xee; len as usize]);
        }
    }
    assert_eq!(pair.qps[1].state(), State::Rtr);
    assert_eq!(pair.qps[1].rq_psn(), expected);
    assert!(pair.hosts[1].received.is_empty());
    assert!(pair.hosts[1].memory.borrow().iter().all(|b| *b == 0x5a));
    assert!(pair.qps[1].take_events().is_empty());
    assert!(counts(&pair, 1, Count::ImplausiblePsn) > 0);
    // And the expected one: 24 + 24 = 48 bits.
    let opcode = Opcode::rc(Operation::SendOnly);
    pair.inject(1, forged(1, opcode, expected, 100), &[0xee; 100]);
    assert_eq!(pair.hosts[1].received.len(), 1);
    assert!(pair.qps[1].take_events().comm_est);
}

/// A request further ahead than the peer can have sent causes no NAK.
#[test]
fn requests_far_ahead_cause_no_nak() {
    for (reads, far) in [(true, 1 << 22), (false, 1 << 16)] {
        for (ahead, nak) in [(far, true), (far + 1, false), (0x7f_ffff, false)] {
            let mut pair = Pair::small(Service::Rc, 11, Link::PERFECT);
            pair.qps[1].attrs.remote_read = reads;
            let psn = pair.qps[1].rq_psn().wrapping_add(ahead);
            let opcode = Opcode::rc(Operation::SendOnly);
            pair.inject(1, forged(1, opcode, psn, 100), &[0; 100]);
            pair.transmit(1);
            assert_eq!(pair.packets_sent, nak.into(), "{reads} {ahead:#x}");
            let dropped = counts(&pair, 1, Count::ImplausiblePsn);
            assert_eq!(dropped, (!nak).into(), "{reads} {ahead:#x}");
        }
    }
}

/// No packet moves an unreliable connection to ERR. An attacker who knows its QP number can inject
/// a message with any PSN: 24 bits. WRITEs need a key, an address and the right as well.
#[test]
fn unreliable_connections_never_enter_err() {
    let rounds = if cfg!(miri) { 1_000 } else { 20_000 };
    for shared in [false, true] {
        let mut pair = Pair::small(Service::Uc, 12, Link::PERFECT);
        if shared {
            let mut qp = rxe_proto::engine::Qp::new(
                Service::Uc,
                Qpn::new(0x12),
                rxe_proto::engine::ReceiveQueue::Shared,
            );
            let host = &mut pair.hosts[1];
            qp.set_state(State::Init, host);
            qp.attrs = pair.qps[1].attrs;
            qp.set_state(State::Rtr, host);
            qp.set_state(State::Rts, host);
            pair.qps[1] = qp;
        }
        for round in 0..rounds {
            if pair.hosts[1].receives.len() < 2 {
                pair.hosts[1].receives.push_back(RecvBuf {
                    wr_id: round,
                    at: 0,
                    len: 1500,
                });
            }
            let operation = *pair.rng.choice(Operation::ALL).unwrap();
            let Some(opcode) = Opcode::new(Transport::Uc, operation) else {
                continue;
            };
            let len = match pair.rng.u8(0..4) {
                0 => pair.rng.u32(0..4000),
                _ => length(operation),
            };
            let psn = match pair.rng.bool() {
                true => pair.qps[1].rq_psn(),
                false => Psn::new(pair.rng.u32(..)),
            };
            pair.inject(1, forged(1, opcode, psn, len), &vec![0xee; len as usize]);
            assert_eq!(pair.qps[1].state(), State::Rts, "{opcode:?} {len}");
        }
        let statuses = pair.hosts[1].received.iter().map(|r| r.0.status);
        let (good, bad): (Vec<_>, Vec<_>) = statuses.partition(|s| *s == WcStatus::Success);
        assert!(good.len() as u64 > rounds / 200);
        // With a shared queue the receive of a message that is too long completes in error.
        assert_eq!(shared, !bad.is_empty());
        assert!(bad.iter().all(|status| *status == WcStatus::LocLenErr));
        // The next message arrives.
        pair.hosts[1].received.clear();
        pair.post(0, wr(SendOp::Send, 1, 1500), 0);
        pair.run(SECOND);
        assert_eq!(pair.hosts[1].received.len(), 1);
        assert_eq!(pair.hosts[1].received[0].0.status, WcStatus::Success);
    }
}

/// No packet completes a request of an unreliable connection: it completes when its own packets
/// have been sent.
#[test]
fn no_packet_completes_an_unreliable_request() {
    for seed in seeds(20) {
        let mut pair = Pair::small(Service::Uc, seed, Link::PERFECT);
        for id in 0..3 {
            pair.post(0, wr(SendOp::Write, id, 3 * MTU), 0x4000);
        }
        let next = pair.qps[0].sq_psn();
        for at in 0..300 {
            for operation in Operation::ALL {
                // A CNP is the only packet of another service type that a UC QP admits.
                let opcode = match operation {
                    Operation::Cnp => Some(Opcode::CNP),
                    _ => Opcode::new(Transport::Uc, *operation),
                };
                let Some(opcode) = opcode else { continue };
                let psn = match at % 2 {
                    0 => next.wrapping_add(PSNS + at / 2 - 75),
                    _ => Psn::new(pair.rng.u32(..)),
                };
                let len = match operation {
                    Operation::Cnp => 16,
                    _ => length(*operation),
                };
                pair.inject(0, forged(0, opcode, psn, len), &vec![0xee; len as usize]);
            }
        }
        assert_eq!(pair.statuses(0), [], "seed {seed}");
        assert_eq!(pair.qps[0].state(), State::Rts, "seed {seed}");
        pair.run(SECOND);
        let all = [0, 1, 2].map(|id| (id, WcStatus::Success));
        assert_eq!(pair.statuses(0), all, "seed {seed}");
    }
}

/// An operation that the QP does not allow is an invalid request, as in IBTA 9.7.4.1 and
/// `rdma_rxe`; a key that does not allow it is an access error.
#[test]
fn operations_that_the_qp_does_not_allow() {
    for op in [
        SendOp::Write,
        SendOp::Read,
        SendOp::FetchAdd,
        SendOp::AtomicWrite,
    ] {
        let mut pair = Pair::small(Service::Rc, 13, Link::PERFECT);
        pair.qps[1].attrs.remote_read = false;
        pair.qps[1].attrs.remote_write = false;
        pair.qps[1].attrs.remote_atomic = false;
        pair.post(0, wr(op, 1, 8), 0);
        pair.run(SECOND);
        assert_eq!(pair.statuses(0), [(1, WcStatus::RemInvReqErr)], "{op:?}");
        let events = pair.qps[1].take_events();
        assert!(events.request_error && !events.access_error);
    }
}
