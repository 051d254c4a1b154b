// SPDX-License-Identifier: GPL-2.0
//! READs with late or lost responses: what is retransmitted or probed.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::SendOp;
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Mtu, Psn, Qpn, RKey};
use rxe_proto::sim::{
    run_together, seeds, set_remote, set_rkey, wr, Link, Pair, RecvBuf, PAGE, REMOTE, RKEY,
};
use rxe_proto::wire::aeth::Syndrome;
use rxe_proto::wire::opcode::{Opcode, Operation};
use rxe_proto::wire::packet::Packet;
use rxe_proto::wire::repr::Headers;
use rxe_proto::wire::Bth;

const MEMORY: usize = 1 << 18;
const MTU: u32 = 1024;
/// Bytes and packets of one READ.
const LEN: u32 = 64 * MTU;
const PACKETS: u64 = 64;
const MS: u64 = 1_000_000;

/// A pair that reads [`LEN`] bytes, with the data in the memory of the responder.
fn reading(seed: u64, link: Link) -> Pair {
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, MEMORY);
    // 67 ms: no timer expires here.
    pair.qps[0].attrs.timeout = 14;
    for (at, byte) in pair.hosts[1].memory.borrow_mut().iter_mut().enumerate() {
        *byte = (at / 251) as u8;
    }
    pair.post(0, wr(SendOp::Read, 1, LEN), 0);
    pair
}

fn assert_read(pair: &Pair, seed: u64) {
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)], "seed {seed}");
    let remote = REMOTE as usize..REMOTE as usize + LEN as usize;
    assert!(
        pair.hosts[0].memory.borrow()[..LEN as usize] == pair.hosts[1].memory.borrow()[remote],
        "seed {seed}: other data"
    );
    let timeouts = pair.hosts[0].counts[Count::Timeout];
    assert_eq!(timeouts, 0, "seed {seed}");
}

/// A request is lost. A probe must not request one packet of it: the peer would execute that
/// instead of the whole. The first READ is not probed before the timer, because no round trip is
/// known.
#[test]
fn lost_read_request() {
    for seed in seeds(20) {
        let mut pair = reading(seed, Link::PERFECT);
        pair.run(60 * MS);
        pair.post(0, wr(SendOp::Read, 2, LEN), 0);
        pair.transmit(0);
        assert_eq!(pair.read_lengths(), [LEN]);
        pair.drop_in_flight();
        let mut lengths = Vec::new();
        while pair.hosts[0].sent.len() < 2 {
            assert!(pair.step(), "seed {seed}: stuck");
            pair.transmit(0);
            lengths.extend(pair.read_lengths());
        }
        lengths.dedup();
        assert_eq!(lengths, [LEN], "seed {seed}");
        assert_eq!(pair.packets_sent, 3 + 2 * PACKETS, "seed {seed}");
        pair.hosts[0].sent.pop();
        assert_read(&pair, seed);
    }
}

/// Any number of the last response packets is lost: a probe requests the next one, and when it
/// arrives the requester retransmits the rest.
#[test]
fn lost_last_responses() {
    for seed in seeds(PACKETS) {
        let mut pair = reading(seed, Link::PERFECT);
        pair.transmit(0);
        let now = pair.now;
        while pair.now == now {
            pair.step();
        }
        let arrives = 1 + (seed % (PACKETS - 1)) as usize;
        pair.transmit_packets(1, arrives);
        let now = pair.now;
        while pair.now == now {
            // The remaining responses are dropped.
            let before = pair.link;
            pair.link.loss = 1.0;
            pair.transmit(1);
            pair.link = before;
            pair.step();
        }
        pair.run(60 * MS);
        assert_read(&pair, seed);
        assert!(
            pair.packets_sent <= 1 + PACKETS + 1 + 1 + PACKETS,
            "seed {seed}: {} packets",
            pair.packets_sent
        );
    }
}

/// A response is lost, and lost again in each of the next retransmissions. The responses behind it
/// that arrive a second time show that, without any timer.
#[test]
fn response_lost_again() {
    const LOSSES: u64 = 4;
    for seed in seeds(PACKETS - 1) {
        let mut pair = reading(seed, Link::PERFECT);
        pair.run(60 * MS);
        pair.hosts[0].sent.clear();
        let first = pair.qps[0].sq_psn();
        pair.post(0, wr(SendOp::Read, 1, LEN), 0);
        let missing = first.wrapping_add(seed as u32);
        let (begin, sent_before) = (pair.now, pair.packets_sent);
        let mut losses = 0;
        while pair.hosts[0].sent.is_empty() {
            pair.transmit(1);
            if losses < LOSSES {
                let lost = |packet: &Packet<'_>| {
                    packet.opcode().is_response() && packet.bth().psn == missing
                };
                losses += pair.drop_chosen(lost) as u64;
            }
            assert!(pair.step(), "seed {seed}: stuck");
        }
        assert_eq!(losses, LOSSES, "seed {seed}");
        assert_read(&pair, seed);
        // Two latencies of the wire for each attempt; a probe would take 250 us at least.
        assert!(
            pair.now.ns_since(begin) < 200_000,
            "seed {seed}: {} ns",
            pair.now.ns_since(begin)
        );
        let attempts = LOSSES * (1 + PACKETS - seed);
        let sent = pair.packets_sent - sent_before;
        assert_eq!(sent, 1 + PACKETS + attempts, "seed {seed}");
    }
}

/// A round trip longer than the first probe timeout: nothing is lost, nothing is requested twice.
#[test]
fn late_response() {
    for seed in seeds(20) {
        let link = Link {
            latency_ns: 5 * MS,
            ..Link::PERFECT
        };
        let mut pair = reading(seed, link);
        pair.run(60 * MS);
        assert_read(&pair, seed);
        assert_eq!(pair.packets_sent, 1 + PACKETS, "seed {seed}");
    }
}

/// The same in the middle of a slow response: a probe neither drops pending responses nor causes
/// duplicates of them.
#[test]
fn slow_response() {
    for seed in seeds(20) {
        let mut pair = reading(seed, Link::PERFECT);
        // Longer than two probe timeouts, shorter than the acknowledgement timer.
        pair.link.packet_ns = 700_000;
        pair.link.stall = 0.2;
        pair.link.stall_ns = 10 * MS;
        for id in 2..6 {
            pair.post(0, wr(SendOp::Read, id, LEN), LEN as usize / 2);
        }
        pair.run(10_000 * MS);
        assert_eq!(pair.hosts[0].sent.len(), 5, "seed {seed}");
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
        assert_eq!(pair.hosts[0].counts[Count::ImpliedNak], 0);
        let needed = 5 + 5 * PACKETS;
        assert!(
            pair.packets_sent < needed * 5 / 4,
            "seed {seed}: {} packets",
            pair.packets_sent
        );
    }
}

/// A duplicate of a READ arrives while responses to later READs are pending, which the peer does
/// not request again: a probe, because the responder is late. All of them are sent nevertheless.
#[test]
fn duplicate_before_pending_responses() {
    for sent in [0, 1, 10, PACKETS, PACKETS + 6, 2 * PACKETS] {
        let mut pair = reading(4, Link::PERFECT);
        let psn = pair.qps[0].sq_psn();
        for id in 2..6 {
            pair.post(0, wr(SendOp::Read, id, LEN), 0);
        }
        pair.execute();
        pair.transmit_packets(1, sent as usize);
        let bth = Bth::new(Opcode::rc(Operation::ReadRequest), Qpn::new(0x12), psn);
        pair.inject(1, Headers::new(bth).reth(REMOTE, RKEY, LEN), &[]);
        pair.run(60 * MS);
        let done = [1, 2, 3, 4, 5].map(|id| (id, WcStatus::Success));
        assert_eq!(pair.statuses(0), done, "{sent} packets sent before");
        // The first response twice, as far as it had been sent, and no other.
        let twice = sent.min(PACKETS);
        assert_eq!(
            pair.packets_sent,
            5 + 5 * PACKETS + twice,
            "{sent} packets sent before"
        );
    }
}

/// A requester that has its data invalidates the region, or has it deregistered. A duplicate of the
/// READ that arrives afterwards, such as a probe, does not end the connection.
#[test]
fn duplicate_when_the_region_is_gone() {
    let mut pair = reading(1, Link::PERFECT);
    let psn = pair.qps[0].sq_psn();
    pair.run(60 * MS);
    assert_read(&pair, 1);
    pair.hosts[1].invalid.set(true);
    let bth = Bth::new(Opcode::rc(Operation::ReadRequest), Qpn::new(0x12), psn);
    pair.inject(1, Headers::new(bth).reth(REMOTE, RKEY, LEN), &[]);
    pair.transmit(1);
    pair.run(60 * MS);
    assert_eq!(pair.qps[1].state(), State::Rts);
    assert_eq!(pair.qps[0].state(), State::Rts);
    pair.hosts[1].invalid.set(false);
    pair.post(0, wr(SendOp::Write, 2, 100), 0);
    pair.run(60 * MS);
    assert_eq!(pair.statuses(0).last(), Some(&(2, WcStatus::Success)));
}

/// The region is gone, and the requester has not got all of its data: it learns that from the
/// answer to what it requests again, and need not wait until its retries are exhausted. Requests
/// behind the READ may have been executed.
#[test]
fn lost_responses_when_the_region_is_gone() {
    for (lost, behind) in [(1, 0), (64, 0), (1, 3), (64, 3)] {
        let mut pair = reading(2, Link::PERFECT);
        pair.run(60 * MS);
        let first = pair.qps[0].sq_psn();
        pair.post(0, wr(SendOp::Read, 2, LEN), 0);
        for id in 0..behind {
            pair.post(0, wr(SendOp::Write, 3 + id, 100), 0);
        }
        pair.execute();
        pair.transmit(1);
        let kept = PACKETS as i32 - lost;
        pair.drop_chosen(|packet| packet.bth().psn.delta(first) >= kept);
        pair.hosts[1].invalid.set(true);
        pair.run(60 * MS);
        let refused = Some((2, WcStatus::RemAccessErr));
        assert_eq!(
            pair.statuses(0).get(1).copied(),
            refused,
            "{lost} lost, {behind} behind"
        );
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
        assert_eq!(pair.hosts[0].counts[Count::SuspectNak], 0);
    }
}

/// Two READs, 2 and 3, each of which loses a response: the first loss shows that the peer keeps
/// packets.
fn lose_responses(pair: &mut Pair) {
    for id in [2, 3] {
        pair.post(0, wr(SendOp::Read, id, LEN), 0);
        pair.execute();
        let psn = pair.qps[0].sq_psn();
        pair.transmit(1);
        pair.drop_chosen(|packet| packet.bth().psn.delta(psn) == -9);
        pair.run(60 * MS);
    }
}

/// PSN, MSN and syndrome of each ACK and NAK in flight.
fn acknowledgements(pair: &Pair) -> Vec<(Psn, u32, Syndrome)> {
    pair.packets_in_flight()
        .filter_map(|udp| Packet::parse(udp, udp.len()).ok())
        .filter(|packet| packet.opcode().operation() == Operation::Acknowledge)
        .filter_map(|packet| packet.aeth().map(|aeth| (packet.bth().psn, aeth)))
        .map(|(psn, aeth)| (psn, aeth.msn().get(), aeth.syndrome()))
        .collect()
}

/// The response to a READ or ATOMIC is lost with the ACK of the WRITE before it, and the WRITE
/// arrives again. The ACK names the WRITE: with the PSN of the READ it would tell rdma_rxe that the
/// READ is complete, without its data.
#[test]
fn ack_of_a_duplicate_names_no_read() {
    for (op, len, count) in [
        (SendOp::Read, 100, 1),
        (SendOp::Read, 100, 3),
        (SendOp::Read, 3 * MTU, 1),
        (SendOp::FetchAdd, 8, 1),
        (SendOp::AtomicWrite, 8, 2),
    ] {
        let mut pair = reading(3, Link::PERFECT);
        pair.run(60 * MS);
        let psn = pair.qps[0].sq_psn();
        pair.post(0, wr(SendOp::Write, 2, 100), 0);
        for id in 0..count {
            pair.post(0, wr(op, 3 + id, len), 0);
        }
        pair.execute();
        pair.transmit(1);
        pair.drop_in_flight();
        let mut bth = Bth::new(Opcode::rc(Operation::WriteOnly), Qpn::new(0x12), psn);
        bth.ack_req = true;
        pair.inject(1, Headers::new(bth).reth(REMOTE, RKEY, 100), &[0; 100]);
        pair.transmit(1);
        let credits = 0x1f;
        let ack = (psn, 2, Syndrome::Ack { credits });
        assert_eq!(
            acknowledgements(&pair),
            [ack],
            "{count} {op:?} of {len} bytes"
        );
        pair.run(60 * MS);
        let all = 1 + 1 + count as usize;
        assert_eq!(pair.hosts[0].sent.len(), all, "{op:?}");
        assert!(pair
            .statuses(0)
            .iter()
            .all(|(_, s)| *s == WcStatus::Success));
    }
}

/// As above, and the ACK is sent before the data of another READ, which a rate limit holds back.
#[test]
fn ack_before_a_held_read_names_no_read() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let psn = pair.qps[1].rq_psn();
    let request = |operation, psn, len| {
        let mut bth = Bth::new(Opcode::rc(operation), Qpn::new(0x12), psn);
        bth.ack_req = true;
        Headers::new(bth).reth(REMOTE, RKEY, len)
    };
    let credits = 0x1f;
    let ack = (psn, 1, Syndrome::Ack { credits });
    pair.inject(1, request(Operation::WriteOnly, psn, 0), &[]);
    pair.transmit(1);
    assert_eq!(acknowledgements(&pair), [ack]);
    pair.inject(1, request(Operation::ReadRequest, psn.next(), 8), &[]);
    pair.transmit(1);
    pair.drop_in_flight();
    let mut cnp = Bth::new(Opcode::CNP, Qpn::new(0x12), Psn::new(0));
    cnp.becn = true;
    pair.inject(1, Headers::new(cnp), &[0; 16]);
    let second = psn.wrapping_add(2);
    pair.inject(1, request(Operation::ReadRequest, second, 8), &[]);
    pair.transmit(1);
    assert_eq!(pair.packets_in_flight().count(), 0, "the data is not held");
    pair.inject(1, request(Operation::WriteOnly, psn, 0), &[]);
    pair.transmit(1);
    assert_eq!(acknowledgements(&pair), [ack]);
}

/// The data of a READ waits for a page, and the acknowledgement of the WRITE before it does not.
#[test]
fn ack_before_a_page_fault() {
    let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
    let psn = pair.qps[1].rq_psn();
    pair.hosts[1]
        .absent
        .get_mut()
        .insert(REMOTE as usize / PAGE);
    for (operation, psn, len) in [
        (Operation::WriteOnly, psn, 0),
        (Operation::ReadRequest, psn.next(), 8),
    ] {
        let mut bth = Bth::new(Opcode::rc(operation), Qpn::new(0x12), psn);
        bth.ack_req = true;
        pair.inject(1, Headers::new(bth).reth(REMOTE, RKEY, len), &[]);
    }
    pair.transmit(1);
    let ack = (psn, 1, Syndrome::Ack { credits: 0x1f });
    assert_eq!(acknowledgements(&pair), [ack]);
    assert_eq!(pair.packets_in_flight().count(), 1);
    pair.transmit(1);
    assert_eq!(acknowledgements(&pair), [ack], "acknowledged twice");
}

/// A READ is repeated whose memory is gone, in the midst of the response to a later one. rdma_rxe
/// would take a NAK there for the later READ's.
#[test]
fn no_nak_amid_a_response() {
    for sent in [0, 1, 30] {
        let mut pair = reading(5, Link::PERFECT);
        let psn = pair.qps[0].sq_psn();
        pair.run(60 * MS);
        let mut later = wr(SendOp::Read, 2, LEN);
        set_remote(&mut later, REMOTE + u64::from(LEN));
        pair.post(0, later, 0);
        pair.execute();
        pair.transmit_packets(1, sent);
        pair.hosts[1].grant_from = REMOTE as usize + LEN as usize;
        let bth = Bth::new(Opcode::rc(Operation::ReadRequest), Qpn::new(0x12), psn);
        pair.inject(1, Headers::new(bth).reth(REMOTE, RKEY, LEN), &[]);
        pair.transmit(1);
        let naks = acknowledgements(&pair).len();
        assert_eq!(naks, usize::from(sent == 0), "{sent} packets sent before");
        pair.run(60 * MS);
        assert_eq!(pair.statuses(0).last(), Some(&(2, WcStatus::Success)));
    }
}

/// A region is invalidated while its READ is answered, and responses before the refused one are
/// lost. The NAK for the READ ends it: the responder answers no more requests.
#[test]
fn refused_amid_lost_responses() {
    let mut pair = reading(6, Link::PERFECT);
    let psn = pair.qps[0].sq_psn();
    pair.execute();
    pair.transmit_packets(1, 7);
    pair.hosts[1].invalid.set(true);
    pair.transmit(1);
    assert_eq!(pair.qps[1].state(), State::Err);
    assert_eq!(
        pair.drop_chosen(|packet| [5, 6].contains(&packet.bth().psn.delta(psn))),
        2
    );
    pair.run(600 * MS);
    assert_eq!(pair.statuses(0), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
}

/// A WRITE waits for a page of its own memory behind a READ of which a response is lost, so that
/// the window closes. When the page is there the WRITE waits for the READ, not for the page: if the
/// peer is gone, the retries end.
#[test]
fn peer_gone_behind_a_page_fault() {
    let mut pair = reading(7, Link::PERFECT);
    pair.run(60 * MS);
    lose_responses(&mut pair);
    let psn = pair.qps[0].sq_psn();
    pair.post(0, wr(SendOp::Read, 4, LEN), 0);
    pair.hosts[0]
        .absent
        .get_mut()
        .insert(2 * LEN as usize / PAGE);
    pair.post(0, wr(SendOp::Write, 5, 100), 2 * LEN as usize);
    pair.transmit(0);
    while pair.qps[1].rq_psn() != psn.wrapping_add(PACKETS as u32) {
        assert!(pair.step());
    }
    pair.transmit(1);
    assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == psn), 1);
    while pair.packets_in_flight().next().is_some() {
        assert!(pair.step());
    }
    pair.link.loss = 1.0;
    pair.run(4000 * MS);
    let gone = Some((4, WcStatus::RetryExcErr));
    assert_eq!(pair.statuses(0).get(3).copied(), gone);
}

/// The response to a READ is lost, and then packets of the WRITE behind it, one after the other. As
/// the peer keeps no packets, each loss makes the requester go back. The peer receives more between
/// one loss and the next, so they do not exhaust the retries of the connection.
#[test]
fn losses_behind_a_lost_response() {
    const LOSSES: u32 = 20;
    let mut pair = reading(8, Link::PERFECT);
    pair.qps[1].attrs.token = 0;
    pair.run(60 * MS);
    let first = pair.qps[0].sq_psn();
    pair.post(0, wr(SendOp::Read, 2, MTU), 0);
    pair.execute();
    pair.transmit(1);
    pair.drop_in_flight();
    pair.post(0, wr(SendOp::Write, 3, 2 * LOSSES * MTU), 0);
    pair.transmit(0);
    for loss in 0..LOSSES {
        let lost = first.wrapping_add(1 + loss);
        assert_eq!(pair.drop_chosen(|packet| packet.bth().psn == lost), 1);
        let before = pair.hosts[0].counts[Count::SequenceNakReceived];
        while pair.hosts[0].counts[Count::SequenceNakReceived] == before {
            assert!(pair.step());
            // The READ is answered when all packets have arrived.
            pair.transmit(1);
            pair.drop_chosen(|packet| packet.bth().psn == first);
        }
        pair.transmit(0);
    }
    pair.run(600 * MS);
    let done = [1, 2, 3].map(|id| (id, WcStatus::Success));
    assert_eq!(pair.statuses(0), done);
}

/// Posts a READ, whose last response is lost `losses` times, and a SEND behind it, for which a
/// receive is posted when the READ has completed. Asserts that the SEND is not sent again before
/// the time that an RNR NAK demands, and that all requests complete.
fn read_and_send_to_busy(pair: &mut Pair, losses: usize, case: &str) {
    /// Longer than the acknowledgement timer.
    const WAIT: u64 = 163_840_000;
    pair.qps[1].attrs.min_rnr_timer = 28;
    let done = pair.statuses(0).len();
    pair.post(0, wr(SendOp::Read, done as u64 + 1, LEN), 0);
    let last = pair.qps[0].sq_psn().wrapping_add(PACKETS as u32 - 1);
    pair.post(0, wr(SendOp::Send, done as u64 + 2, 4 * MTU), 0);
    let (mut lost, mut naks, mut resume, mut posted) = (0, 0, None, false);
    while pair.statuses(0).len() < done + 2 {
        if pair.statuses(0).len() == done + 1 && !posted {
            posted = true;
            pair.hosts[1].receives.push_back(RecvBuf {
                wr_id: 9,
                at: 0,
                len: 4 * MTU,
            });
        }
        pair.transmit(1);
        if lost < losses {
            lost += pair
                .drop_chosen(|packet| packet.opcode().is_response() && packet.bth().psn == last);
        }
        pair.transmit(0);
        let sends = pair.packets_in_flight().any(|udp| {
            let packet = Packet::parse(udp, udp.len()).unwrap();
            !packet.opcode().is_response() && last.is_before(packet.bth().psn)
        });
        let waits = resume.is_some_and(|at| pair.now < at);
        assert!(!sends || !waits, "{case}: sent during the wait");
        assert!(naks < 20 && pair.step(), "{case}: {naks} RNR NAKs");
        if pair.hosts[0].counts[Count::RnrNakReceived] != naks {
            naks = pair.hosts[0].counts[Count::RnrNakReceived];
            resume = Some(pair.now + WAIT);
        }
    }
    assert!(lost == losses && naks > 0, "{case}: {lost} lost");
    let all: Vec<_> = (1..=done as u64 + 2)
        .map(|id| (id, WcStatus::Success))
        .collect();
    assert_eq!(pair.statuses(0), all, "{case}");
}

/// The last response to a READ is lost, up to three times, and no receive is posted for the SEND
/// behind it before the READ has completed. The requester waits as the RNR NAK demands, and sends
/// the message again; only the response is requested again meanwhile, or when the next RNR NAK
/// shows that it was lost again.
#[test]
fn receiver_not_ready_behind_a_lost_response() {
    for (seed, losses) in seeds(20).flat_map(|seed| [1, 2, 3].map(|losses| (seed, losses))) {
        let case = format!("seed {seed}, {losses} losses");
        let mut pair = reading(seed, Link::PERFECT);
        pair.run(60 * MS);
        lose_responses(&mut pair);
        assert!(
            pair.hosts[0].counts[Count::SelectiveRepeat] > 0,
            "{case}: the peer keeps nothing"
        );
        read_and_send_to_busy(&mut pair, losses, &case);
        assert_eq!(pair.hosts[0].counts[Count::Timeout], 0, "{case}");
    }
}

/// The response to a READ or ATOMIC is lost, and lost again when the requester has gone back, while
/// one WRITE after the other follows. The ACKs of those that were sent later show that it was lost
/// again; they must not postpone its recovery beyond four times the timeout (IBTA 9.7.6.1.3).
#[test]
fn lost_again_under_writes() {
    const PAUSE: u64 = 200_000;
    for (op, len) in [(SendOp::Read, 100), (SendOp::FetchAdd, 8)] {
        // A peer that keeps no packets, and one that is not yet known to do so.
        for token in [0, 7] {
            let case = format!("{op:?}, token {token}");
            let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, MEMORY);
            pair.qps[1].attrs.token = token;
            // A large window.
            for id in 0..64 {
                pair.post(0, wr(SendOp::Write, id, 128 * MTU), 0);
            }
            pair.run(60 * MS);
            let before = pair.hosts[0].sent.len();
            let psn = pair.qps[0].sq_psn();
            pair.post(0, wr(op, 100, len), 0);
            let (mut lost, mut lost_at, mut id) = (0, pair.now, 101);
            while pair.hosts[0].sent.len() == before {
                pair.post(0, wr(SendOp::Write, id, 100), 0);
                id += 1;
                let next = pair.now + PAUSE;
                while lost < 2 && pair.now < next {
                    pair.transmit(1);
                    let is_it = |p: &Packet<'_>| p.opcode().is_response() && p.bth().psn == psn;
                    if pair.drop_chosen(is_it) > 0 {
                        (lost, lost_at) = (lost + 1, pair.now);
                    }
                    assert!(pair.step(), "{case}: stuck");
                }
                run_together(core::slice::from_mut(&mut pair), next, |_, _| {});
                // The timeout is 4096 ns << 10.
                let waited = pair.now.ns_since(lost_at);
                assert!(waited <= 4 * (4096 << 10), "{case}: {waited} ns");
            }
            assert_eq!(lost, 2, "{case}");
        }
    }
}

/// The last response to a READ is lost, once or more often, and no receive is posted for the SEND
/// behind it before the READ has completed. The peer keeps no packets, so all is repeated, but the
/// SEND not before the time that the RNR NAK demands (IBTA 9.7.5.2.8), and without an
/// acknowledgement timer, too.
#[test]
fn not_ready_behind_a_response_lost_by_another_peer() {
    for (timeout, losses) in [14, 0].into_iter().flat_map(|t| [1, 2, 3].map(|l| (t, l))) {
        let case = format!("timeout {timeout}, {losses} losses");
        let mut pair = reading(1, Link::PERFECT);
        pair.qps[0].attrs.timeout = timeout;
        pair.qps[1].attrs.token = 0;
        pair.run(60 * MS);
        read_and_send_to_busy(&mut pair, losses, &case);
    }
}

/// The last response to a READ is lost, and the SEND behind it has no retries left when it finds no
/// receive. The READ has been executed and completes; it is the SEND that fails.
#[test]
fn never_ready_behind_a_lost_response() {
    for rnr_retry in [0, 2] {
        let mut pair = reading(1, Link::PERFECT);
        pair.qps[1].attrs.token = 0;
        pair.run(60 * MS);
        pair.qps[0].attrs.rnr_retry = rnr_retry;
        let done = pair.statuses(0).len();
        let (read, send) = (done as u64 + 1, done as u64 + 2);
        pair.post(0, wr(SendOp::Read, read, LEN), 0);
        let last = pair.qps[0].sq_psn().wrapping_add(PACKETS as u32 - 1);
        pair.post(0, wr(SendOp::Send, send, 4 * MTU), 0);
        let mut lost = 0;
        while pair.statuses(0).len() < done + 2 {
            pair.transmit(1);
            if lost < 3 {
                lost += pair.drop_chosen(|packet| {
                    packet.opcode().is_response() && packet.bth().psn == last
                });
            }
            assert!(pair.step());
        }
        assert_eq!(lost, 3);
        let expected = [(read, WcStatus::Success), (send, WcStatus::RnrRetryExcErr)];
        assert_eq!(pair.statuses(0)[done..], expected, "{rnr_retry} retries");
    }
}

/// The responses to one READ take many times the acknowledgement timeout, and one of them is lost.
/// What follows it shows that the peer is alive: the READ is not given up before its lost part can
/// arrive.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn slow_responses() {
    let link = Link {
        packet_ns: 200_000,
        ..Link::PERFECT
    };
    let mut pair = Pair::new(1, link, Mtu::Mtu256, 1 << 20);
    for qp in &mut pair.qps {
        qp.attrs.token = 0;
        qp.attrs.timeout = 12;
    }
    pair.post(0, wr(SendOp::Read, 1, 400_000), 1 << 19);
    let psn = pair.qps[0].sq_psn().wrapping_add(20);
    let mut lost = 0;
    while pair.hosts[0].outstanding() > 0 && pair.step() {
        if lost == 0 {
            lost = pair.drop_chosen(|packet| packet.bth().psn == psn);
        }
    }
    assert_eq!(lost, 1);
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
}

/// The first response is lost, and the peer sends many of the others before it looks at the next
/// request, at a high rate: it is the time that limits how long they extend the timer.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn many_early_responses() {
    let mut pair = Pair::new(1, Link::PERFECT, Mtu::Mtu1024, 1 << 16);
    // 16.8 ms.
    pair.qps[0].attrs.timeout = 12;
    let first = pair.qps[0].sq_psn();
    pair.post(0, wr(SendOp::Read, 1, 20_000 * MTU), 0);
    pair.transmit(0);
    pair.drop_in_flight();
    for ahead in 2..20_000 {
        pair.now += 2000;
        let opcode = Opcode::rc(Operation::ReadRespMiddle);
        let bth = Bth::new(opcode, Qpn::new(0x11), first.wrapping_add(ahead));
        pair.inject(0, Headers::new(bth), &[0; MTU as usize]);
        let (now, host) = (pair.now, &mut pair.hosts[0]);
        pair.qps[0].handle_timeout(now, host);
        pair.transmit(0);
        pair.drop_in_flight();
    }
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
}

/// Many responses of READs are lost at a peer that answers few requests at a time and slowly: each
/// new one that arrives is progress.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn many_gaps() {
    for seed in seeds(100) {
        let link = Link {
            loss: 0.25,
            packet_ns: 200_000,
            ..Link::PERFECT
        };
        let mut pair = Pair::new(seed, link, Mtu::Mtu256, 1 << 20);
        pair.set_max_dest_rd_atomic(1, 1);
        pair.qps[0].attrs.max_rd_atomic = 1;
        pair.qps[0].attrs.timeout = 15;
        for wr_id in 0..8 {
            pair.post(0, wr(SendOp::Read, wr_id, 20_000), 1 << 19);
        }
        pair.run(20_000 * MS);
        let failed = pair
            .statuses(0)
            .into_iter()
            .find(|s| s.1 != WcStatus::Success);
        assert_eq!(failed, None, "seed {seed}");
        assert_eq!(pair.hosts[0].outstanding(), 0, "seed {seed}");
    }
}

/// The network delays READ data until after the NAK of a later request, whose status is still that
/// of the NAK: the peer, which is in ERR, sends no other.
#[test]
fn refusal_overtakes_read_data() {
    for token in [0, 5] {
        let mut pair = Pair::small(Service::Rc, 1, Link::PERFECT);
        for side in 0..2 {
            pair.qps[side].attrs.token = token;
        }
        pair.post(0, wr(SendOp::Read, 1, 4096), 0);
        let mut write = wr(SendOp::Write, 2, 100);
        set_rkey(&mut write, RKey(5));
        pair.post(0, write, 0);
        pair.transmit(0);
        // Deliver both requests; the receiver then owes four packets of data and the NAK.
        pair.link.latency_ns = 1_000;
        assert!(pair.deliver_next());
        assert!(pair.deliver_next());
        pair.transmit_packets(1, 3);
        pair.link.latency_ns = 300_000;
        pair.transmit_packets(1, 1);
        pair.link.latency_ns = 1_000;
        pair.transmit(1);
        pair.run(100_000_000_000);
        let expected = [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)];
        assert_eq!(
            pair.statuses(0),
            expected,
            "token {token}, {:?}",
            pair.hosts[0].counts
        );
    }
}
