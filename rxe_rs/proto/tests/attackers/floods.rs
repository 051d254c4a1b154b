// SPDX-License-Identifier: GPL-2.0
//! What many packets with wrong guesses cost a connection.

use super::*;

/// Attack on a connection at each event on the wire.
type Attack = fn(&mut Pair);

fn future_request(pair: &mut Pair) {
    let psn = pair.qps[1].rq_psn().wrapping_add(5000);
    let opcode = Opcode::rc(Operation::SendOnly);
    pair.inject(1, forged(1, opcode, psn, 100), &[0xee; 100]);
}

fn repeated_request(pair: &mut Pair) {
    let opcode = Opcode::rc(Operation::SendOnly);
    let psn = Psn::new(if pair.qps[1].rq_psn().get() < 1 << 23 {
        0x70_0000
    } else {
        0xf0_0000
    });
    pair.inject(1, forged(1, opcode, psn, 100), &[0xee; 100]);
}

fn any_request(pair: &mut Pair) {
    let opcodes: Vec<_> = requests().collect();
    let opcode = *pair.rng.choice(&opcodes).unwrap();
    let near = pair.qps[1].rq_psn().wrapping_add(2 + pair.rng.u32(0..300));
    let psn = [Psn::new(pair.rng.u32(..)), near][pair.rng.usize(0..2)];
    // Neither the expected packet nor the one after it.
    if (0..2).contains(&psn.delta(pair.qps[1].rq_psn())) {
        return;
    }
    let len = length(opcode.operation());
    pair.inject(1, forged(1, opcode, psn, len), &vec![0xee; len as usize]);
}

fn any_response(pair: &mut Pair) {
    let opcode = pair.rng.choice(data_responses()).unwrap();
    let newest = pair.qps[0].sq_psn();
    let near = newest.wrapping_add(PSNS - 1 - pair.rng.u32(0..300));
    let psn = [Psn::new(pair.rng.u32(..)), near][pair.rng.usize(0..2)];
    let oldest = newest.wrapping_add(PSNS - pair.qps[0].in_flight());
    if (0..2).contains(&psn.delta(oldest)) {
        return;
    }
    let len = length(opcode.operation());
    pair.inject(0, forged(0, opcode, psn, len), &vec![0xee; len as usize]);
}

fn any_acknowledgement(pair: &mut Pair) {
    let newest = pair.qps[0].sq_psn();
    let psn = newest.wrapping_add(PSNS - 2 - pair.rng.u32(0..300));
    if newest.delta(psn) >= pair.qps[0].in_flight() as i32 {
        return;
    }
    let syndrome = Syndrome::decode(pair.rng.u8(..));
    // High MSNs: the connection is young.
    let msn = Msn::new(0x80_0000 + pair.rng.u32(0..1 << 20));
    pair.inject(0, ack(psn, syndrome, msn), &[]);
}

/// Transfers 16 MiB under attack: virtual time, packets and the pair afterwards.
fn transfer(op: SendOp, seed: u64, attack: Option<Attack>) -> (u64, u64, Pair) {
    let link = Link {
        latency_ns: 20 * MICROSECOND,
        packet_ns: 3 * MICROSECOND,
        ..Link::PERFECT
    };
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, 1 << 20);
    pair.qps[0].attrs.timeout = 14;
    for id in 0..256 {
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: id,
            at: 0,
            len: 1 << 16,
        });
        pair.post(0, wr(op, id, 1 << 16), 0);
    }
    let begin = pair.now;
    let mut next = begin;
    while pair.hosts[0].sent.len() < 256 && pair.step() {
        if let Some(attack) = attack.filter(|_| pair.now >= next) {
            attack(&mut pair);
            // The simulated wire takes as long for a short packet as for a long one: responses to
            // duplicates must not fill its queue.
            next = pair.now + 4 * link.packet_ns;
        }
    }
    (pair.now - begin, pair.packets_sent, pair)
}

/// An attacker who knows the QP number sends a quarter as many packets as the peer: the connection
/// survives, nothing is executed or completed, and the transfer takes hardly longer.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn blind_packets_do_not_slow_a_connection() {
    let attacks: [(&str, Attack); 5] = [
        ("request ahead", future_request),
        ("copies of one request", repeated_request),
        ("any request", any_request),
        ("any response", any_response),
        ("any acknowledgement", any_acknowledgement),
    ];
    for (what, attack) in attacks {
        for op in [SendOp::Send, SendOp::Write, SendOp::Read] {
            for seed in seeds(2) {
                let (time, packets, pair) = transfer(op, seed, None);
                let needed = pair.hosts[1].received.len();
                let (longer, more, pair) = transfer(op, seed, Some(attack));
                let case = format!("{what}, {op:?}, seed {seed}");
                let done = pair.statuses(0);
                assert_eq!(done.len(), 256, "{case}");
                assert!(
                    done.iter().all(|(_, status)| *status == WcStatus::Success),
                    "{case}: {done:?}"
                );
                assert_eq!(pair.hosts[1].received.len(), needed, "{case}");
                assert_eq!(pair.qps[1].state(), State::Rts, "{case}");
                let retries = counts(&pair, 0, Count::Retry);
                assert!(retries <= 8, "{case}: {retries} go-backs");
                assert!(longer <= time * 6 / 5, "{case}: {longer} for {time} ns");
                // At most one acknowledgement for each duplicate is added.
                assert!(more <= packets * 2, "{case}: {more} for {packets} packets");
            }
        }
    }
}

/// A connection without a retry does not survive a forged packet ahead, and one with a retry does.
#[test]
fn a_gap_costs_the_only_try() {
    for retries in [0, 1] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        pair.qps[0].attrs.retry_cnt = retries;
        pair.post(0, wr(SendOp::Write, 1, 100), 0);
        pair.run(SECOND);
        pair.post(0, wr(SendOp::Write, 2, 100), 0);
        pair.transmit(0);
        future_request(&mut pair);
        pair.run(SECOND);
        let status = match retries {
            0 => WcStatus::RetryExcErr,
            _ => WcStatus::Success,
        };
        assert_eq!(pair.statuses(0), [(1, WcStatus::Success), (2, status)]);
    }
}

/// Copies of one packet before anything could have been retransmitted: one NAK, one retry, with any
/// number of retries.
#[test]
fn copies_of_one_packet_cost_one_retry() {
    let (mut pair, first) = in_flight(8, SendOp::Write, 20);
    for _ in 0..50 {
        future_request(&mut pair);
    }
    assert_eq!(counts(&pair, 1, Count::SequenceNakSent), 1);
    // And on the other side, from a responder that sends one each time.
    for _ in 0..50 {
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        pair.inject(0, ack(first, nak, Msn::new(0)), &[]);
    }
    assert_eq!(counts(&pair, 0, Count::Retry), 1);
    assert_eq!(pair.qps[0].state(), State::Rts);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0).len(), 20);
}

/// The same while the requester cannot retransmit, for many round trips.
#[test]
fn copies_cost_one_retry_while_nothing_is_sent() {
    let (mut pair, first) = in_flight(8, SendOp::Write, 20);
    for _ in 0..50 {
        pair.now += SECOND / 1000;
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        pair.inject(0, ack(first, nak, Msn::new(0)), &[]);
    }
    assert_eq!(counts(&pair, 0, Count::Retry), 1);
    assert_eq!(pair.qps[0].state(), State::Rts);
}

/// Copies of an RNR NAK neither use retries nor extend the RNR timer.
#[test]
fn copies_of_an_rnr_nak_cost_one_retry() {
    let (mut pair, first) = in_flight(9, SendOp::Send, 4);
    pair.qps[0].attrs.rnr_retry = 3;
    pair.qps[0].set_state(State::Rts, &mut pair.hosts[0]);
    pair.drop_in_flight();
    let nak = Syndrome::RnrNak { timer: 20 };
    pair.inject(0, ack(first, nak, Msn::new(0)), &[]);
    let until = pair.qps[0].poll_timeout();
    for _ in 0..20 {
        pair.now += 100;
        pair.inject(0, ack(first, nak, Msn::new(0)), &[]);
    }
    assert_eq!(pair.qps[0].retries_left().1, 2);
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.qps[0].poll_timeout(), until);
}

/// Nor after the wait, as long as nothing has been retransmitted.
#[test]
fn copies_of_an_rnr_nak_cost_one_retry_until_something_is_sent() {
    let (mut pair, first) = in_flight(9, SendOp::Send, 4);
    pair.qps[0].attrs.rnr_retry = 3;
    pair.qps[0].set_state(State::Rts, &mut pair.hosts[0]);
    pair.drop_in_flight();
    let nak = Syndrome::RnrNak { timer: 1 };
    for _ in 0..20 {
        pair.inject(0, ack(first, nak, Msn::new(0)), &[]);
        pair.now += SECOND / 1000;
        let (now, host) = (pair.now, &mut pair.hosts[0]);
        pair.qps[0].handle_timeout(now, host);
    }
    assert_eq!(pair.qps[0].retries_left().1, 2);
    assert_eq!(pair.qps[0].state(), State::Rts);
}

/// Duplicate and early data extends the acknowledgement timer, but not without limit; data further
/// back than the maximum window does not extend it.
#[test]
fn old_data_extends_the_timer_within_limits() {
    // 4.2 ms are configured; up to four times that may pass, and then once more.
    let far = PSNS - 9000;
    for (offset, limit) in [
        (PSNS - 1, 60),
        (PSNS - 8, 60),
        (far, 20),
        (PSNS / 4, 20),
        (4, 60),
    ] {
        let (mut pair, first) = in_flight(10, SendOp::Read, 2);
        pair.drop_in_flight();
        pair.link.loss = 1.0;
        let psn = first.wrapping_add(offset);
        let opcode = Opcode::rc(Operation::ReadRespMiddle);
        let (begin, mut timeouts) = (pair.now, 0);
        while pair.qps[0].state() != State::Err {
            pair.now += MICROSECOND * 500;
            pair.inject(0, forged(0, opcode, psn, MTU), &[0xee; MTU as usize]);
            let (now, host) = (pair.now, &mut pair.hosts[0]);
            pair.qps[0].handle_timeout(now, host);
            timeouts = counts(&pair, 0, Count::Timeout);
            let waited = (pair.now - begin) / 1_000_000;
            let all = limit * (timeouts + 1);
            assert!(waited <= all, "{offset}: {waited} ms, {timeouts} timeouts");
        }
        assert!(timeouts > 0);
    }
}
