// SPDX-License-Identifier: GPL-2.0
//! NAKs: for packets that are missing, and for receivers that are not ready.

use super::*;

/// A gap causes one NAK, for the missing packet; that is acknowledged when it has arrived, and the
/// next gap causes another NAK.
#[test]
fn one_nak_for_a_gap() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 10);
    let first = pair.qps[0].sq_psn();
    let mut sent = Vec::new();
    for ahead in [1, 2, 3, 5, 0, 2, 3] {
        send(&mut pair, ahead, Operation::SendOnly, 0, 0);
        sent.push(answers(&mut pair, first));
    }
    let nak = |missing| vec![(missing, Syndrome::Nak(NakCode::PsnSequence))];
    let credits = 31;
    let ack = vec![(0, Syndrome::Ack { credits })];
    let none = Vec::new;
    // The one for 1 is sent when the packet right behind it arrives.
    let expected = [nak(0), none(), none(), none(), ack, nak(1), none()];
    assert_eq!(sent, expected);
}

/// PSNs, counted from the first, and syndromes of what side 1 sends.
fn answers(pair: &mut Pair, first: Psn) -> Vec<(i32, Syndrome)> {
    pair.transmit(1);
    let answers = in_flight(pair);
    pair.drop_in_flight();
    let answer = |(bth, aeth): &(Bth, Option<Aeth>)| {
        let syndrome = aeth.expect("an AETH").syndrome();
        (bth.psn.delta(first), syndrome)
    };
    answers.iter().map(answer).collect()
}

/// What has arrived before a gap, and has not been acknowledged yet, is acknowledged by an ACK
/// before the NAK.
#[test]
fn ack_before_a_nak() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 10);
    let first = pair.qps[0].sq_psn();
    for ahead in [0, 1, 3] {
        send(&mut pair, ahead, Operation::SendOnly, 0, 0);
    }
    let ack = Syndrome::Ack { credits: 31 };
    let nak = Syndrome::Nak(NakCode::PsnSequence);
    assert_eq!(answers(&mut pair, first), [(1, ack), (2, nak)]);
    send(&mut pair, 4, Operation::SendOnly, 0, 0);
    assert_eq!(answers(&mut pair, first), []);
}

/// A peer that has sent a READ gets no such acknowledgements: rdma_rxe fails the connection if one
/// overtakes READ data, or is overtaken by it.
#[test]
fn no_ack_before_a_nak_after_reads() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 10);
    let first = pair.qps[0].sq_psn();
    send(&mut pair, 0, Operation::ReadRequest, 0, 100);
    pair.transmit(1);
    pair.drop_in_flight();
    for ahead in [1, 2, 4] {
        send(&mut pair, ahead, Operation::SendOnly, 0, 0);
    }
    let nak = |missing| (missing, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(answers(&mut pair, first), [nak(3)]);
    send(&mut pair, 3, Operation::SendOnly, 0, 0);
    assert_eq!(answers(&mut pair, first), []);
    send(&mut pair, 5, Operation::SendOnly, 0, 0);
    assert_eq!(answers(&mut pair, first), [nak(4)]);
    assert_eq!(pair.qps[1].poll_timeout(), None);
}

/// While nothing arrives behind a gap, its NAK is repeated after 8, 16 and 32 ms: it may have been
/// lost. Not if the packet that showed the gap may have been forged, or is a READ, whose
/// responses the peer may wait for.
#[test]
fn naks_are_repeated() {
    for (ahead, operation, repeated) in [
        (1, Operation::SendOnly, 3),
        (2, Operation::SendOnly, 0),
        (1, Operation::ReadRequest, 0),
    ] {
        let mut pair = pair();
        post_receives(&mut pair, 1, 10);
        let first = pair.qps[0].sq_psn();
        send(&mut pair, ahead, operation, 0, 0);
        let nak = (0, Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(answers(&mut pair, first), [nak]);
        let begin = pair.now;
        let mut at = Vec::new();
        while let Some(next) = pair.qps[1].poll_timeout() {
            pair.now = next;
            pair.qps[1].handle_timeout(next, &mut pair.hosts[1]);
            assert_eq!(answers(&mut pair, first), [nak]);
            at.push(next.ns_since(begin) / 1_000_000);
        }
        assert_eq!(at, [8, 24, 56][..repeated], "{operation:?}, {ahead} ahead");
    }
}

/// A NAK is repeated after twice the time that the gap before was open, if that is longer: the
/// round trip may take so long.
#[test]
fn repeated_naks_wait_for_the_round_trip() {
    const MS: u64 = 1_000_000;
    let mut pair = pair();
    post_receives(&mut pair, 1, 10);
    let first = pair.qps[0].sq_psn();
    send(&mut pair, 1, Operation::SendOnly, 0, 0);
    answers(&mut pair, first);
    pair.now = pair.now.saturating_add(7 * MS);
    send(&mut pair, 0, Operation::SendOnly, 0, 0);
    answers(&mut pair, first);
    send(&mut pair, 2, Operation::SendOnly, 0, 0);
    answers(&mut pair, first);
    let repeated = pair.qps[1].poll_timeout();
    assert_eq!(repeated.map(|at| at.ns_since(pair.now)), Some(14 * MS));
}

/// Repeated NAKs may all be lost in an outage: they do not count as offers to keep packets that the
/// peer has not understood.
#[test]
fn repeated_naks_are_no_offers() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 100);
    let mut says = Vec::new();
    for gap in 0..6 {
        send(&mut pair, 2 * gap + 1, Operation::SendOnly, 0, 0);
        pair.transmit(1);
        while let Some(next) = pair.qps[1].poll_timeout() {
            pair.now = next;
            pair.qps[1].handle_timeout(next, &mut pair.hosts[1]);
            pair.transmit(1);
        }
        says.extend(in_flight(&pair).iter().map(|(bth, _)| bth.resv7));
        for ahead in [2 * gap, 2 * gap + 1] {
            send(&mut pair, ahead, Operation::SendOnly, 0, 0);
        }
        pair.transmit(1);
        pair.drop_in_flight();
    }
    assert_eq!(says, [0x3f; 24]);
}

/// A request with AckReq and one that overtakes another arrive before anything is sent. The NAK
/// becomes obsolete, but the ACK for which it stood is sent.
#[test]
fn obsolete_nak_in_place_of_an_ack() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 10);
    let first = pair.qps[0].sq_psn();
    let mut request = bth(Operation::SendOnly, first, 0);
    request.ack_req = true;
    pair.inject(1, Headers::new(request), &[]);
    for ahead in [2, 1] {
        send(&mut pair, ahead, Operation::SendOnly, 0, 0);
    }
    let credits = 31;
    let ack = (1, Syndrome::Ack { credits });
    assert_eq!(answers(&mut pair, first), [ack]);
    // It is owed once.
    send(&mut pair, 2, Operation::SendOnly, 0, 0);
    pair.transmit(1);
    assert_eq!(in_flight(&pair).len(), 0);
}

/// An RNR NAK for a packet that is to be repeated, and one for a packet behind it: neither is sent
/// before the time that the NAK demands.
#[test]
fn rnr_nak_before_a_repetition() {
    /// The time that timer 20 stands for, 10.24 ms.
    const WAIT: u64 = 10_240_000;
    for refused in 0..2 {
        let mut pair = pair();
        let psn = pair.qps[0].sq_psn().wrapping_add(refused);
        for id in 0..2 {
            pair.post(0, wr(SendOp::Send, id, 100), 0);
        }
        // The timer has expired, and nothing has been sent since.
        while pair.hosts[0].counts[Count::Timeout] == 0 {
            pair.transmit(0);
            pair.drop_in_flight();
            assert!(pair.step());
        }
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
        let aeth = Aeth::new(Syndrome::RnrNak { timer: 20 }, Msn::new(refused));
        pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
        let resume = pair.now + WAIT;
        while pair.packets_in_flight().count() == 0 {
            assert!(pair.step(), "{refused}");
            pair.transmit(0);
        }
        assert!(pair.now >= resume, "{refused}: {:?} {resume:?}", pair.now);
        if refused == 0 {
            post_receives(&mut pair, 1, 2);
            pair.run(SECOND);
            let done = [0, 1].map(|id| (id, WcStatus::Success));
            assert_eq!(pair.statuses(0), done);
        }
    }
}

/// The peer had a receive for a copy of the packet that it had refused, but none for the next one:
/// that is not sent before the time that the second RNR NAK demands.
#[test]
fn rnr_nak_for_a_later_packet() {
    const WAIT: u64 = 10_240_000;
    let mut pair = pair();
    let first = pair.qps[0].sq_psn();
    for id in 0..2 {
        pair.post(0, wr(SendOp::Send, id, 100), 0);
    }
    pair.transmit(0);
    pair.drop_in_flight();
    for refused in 0..2 {
        let psn = first.wrapping_add(refused);
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
        let aeth = Aeth::new(Syndrome::RnrNak { timer: 20 }, Msn::new(refused));
        pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
        pair.transmit(0);
        assert_eq!(in_flight(&pair), [], "{refused}");
    }
    let resume = pair.now + WAIT;
    while pair.packets_in_flight().count() == 0 {
        assert!(pair.step());
        pair.transmit(0);
    }
    assert!(pair.now >= resume, "{:?} {resume:?}", pair.now);
    assert_eq!(pair.statuses(0), [(0, WcStatus::Success)]);
}

/// rdma_rxe sends a sequence NAK for the packets behind the one that it has refused with an RNR
/// NAK. It arrives when that has been sent again: nothing is lost, and no retry is used.
#[test]
fn sequence_nak_behind_an_rnr_nak() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 1);
    pair.post(0, wr(SendOp::Send, 0, 100), 0);
    pair.run(SECOND);
    assert!(pair.qps[0].round_trip_ns().is_some());
    let psn = pair.qps[0].sq_psn();
    for id in 1..4 {
        pair.post(0, wr(SendOp::Send, id, 100), 0);
    }
    let answer = |pair: &mut Pair, syndrome| {
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
        pair.inject(
            0,
            Headers::new(bth).aeth(Aeth::new(syndrome, Msn::new(1))),
            &[],
        );
    };
    let wait = |pair: &mut Pair, ns| {
        pair.now += ns;
        let (now, host) = (pair.now, &mut pair.hosts[0]);
        pair.qps[0].handle_timeout(now, host);
        pair.transmit(0);
        let sent = in_flight(pair).len();
        pair.drop_in_flight();
        sent
    };
    assert_eq!(wait(&mut pair, 0), 3);
    for round in 0..3 {
        // 10 us, as long as a round trip.
        answer(&mut pair, Syndrome::RnrNak { timer: 1 });
        assert_eq!(wait(&mut pair, 10_000), 3, "{round}");
        answer(&mut pair, Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(wait(&mut pair, 0), 0, "{round}");
        // In the next round the next RNR NAK is the response to what was sent again in this one.
        assert_eq!(wait(&mut pair, 6000), 0, "{round}");
    }
    assert_eq!(pair.hosts[0].counts[Count::Retry], 0);
}
