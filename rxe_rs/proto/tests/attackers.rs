// SPDX-License-Identifier: GPL-2.0
//! Attackers who send packets: which numbers they must guess to do harm, and what the packets with
//! wrong guesses cost.
//!
//! The off-path attacker spoofs the address of the peer and knows both ports, the QP number where a
//! test says so, keys and addresses where they matter, but not the PSNs. Each test sends what
//! such an attacker can send into a live connection; `SECURITY.md` draws its tables from them.
//! [`packets_that_are_seen_show_all_numbers`] is about attackers who see the packets.
#![cfg(feature = "sim")]

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{FlushKind, SendOp};
use rxe_proto::engine::{Service, State};
use rxe_proto::ids::{Msn, Mtu, Psn, Qpn, RKey};
use rxe_proto::sim::{seeds, set_flush, wr, Link, Pair, RecvBuf, REMOTE, RKEY};
use rxe_proto::wire::aeth::NakCode;
use rxe_proto::wire::feth::Selectivity;
use rxe_proto::wire::{
    Aeth, Bth, HeaderSet, Headers, Opcode, Operation, Packet, Syndrome, Transport,
};

const SECOND: u64 = 1_000_000_000;
const MICROSECOND: u64 = 1_000;
const MTU: u32 = 1024;
/// Number of PSNs.
const PSNS: u32 = 1 << 24;

/// A valid packet to the QP of `side` except for what the caller changes.
fn forged(side: usize, opcode: Opcode, psn: Psn, len: u32) -> Headers {
    let mut bth = Bth::new(opcode, Qpn::new(0x11 + side as u32), psn);
    bth.ack_req = true;
    bth.pad = Bth::pad_for(len as usize);
    let set = opcode.headers();
    let mut headers = Headers::new(bth);
    if set.contains(HeaderSet::FETH) {
        headers = headers.feth(rxe_proto::wire::feth::Selectivity::Range, 1);
    }
    if set.contains(HeaderSet::RETH) {
        let dma_len = match opcode.operation() {
            Operation::WriteFirst => 2 * MTU,
            Operation::ReadRequest | Operation::Flush => 64,
            _ => len,
        };
        headers = headers.reth(REMOTE, RKEY, dma_len);
    }
    if set.contains(HeaderSet::ATOMIC_ETH) {
        headers = headers.atomic_eth(REMOTE, RKEY, 1, 1);
    }
    if set.contains(HeaderSet::AETH) {
        headers = headers.aeth(Aeth::new(Syndrome::ACK, Msn::new(0x5a_5a5a)));
    }
    if set.contains(HeaderSet::ATOMIC_ACK_ETH) {
        headers = headers.atomic_ack(7);
    }
    if set.contains(HeaderSet::IMM) {
        headers = headers.imm([1, 2, 3, 4]);
    }
    if set.contains(HeaderSet::IETH) {
        headers = headers.ieth(RKEY);
    }
    headers
}

/// A valid payload length of the operation.
fn length(operation: Operation) -> u32 {
    use Operation as Op;
    match operation {
        Op::SendFirst | Op::SendMiddle | Op::WriteFirst | Op::WriteMiddle => MTU,
        Op::ReadRespFirst | Op::ReadRespMiddle => MTU,
        Op::AtomicWrite => 8,
        Op::ReadRequest | Op::Acknowledge | Op::AtomicAck | Op::CmpSwap => 0,
        Op::FetchAdd | Op::Flush => 0,
        _ => 100,
    }
}

fn ack(psn: Psn, syndrome: Syndrome, msn: Msn) -> Headers {
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
    Headers::new(bth).aeth(Aeth::new(syndrome, msn))
}

fn requests() -> impl Iterator<Item = Opcode> {
    let all = Operation::ALL
        .iter()
        .map(|operation| Opcode::rc(*operation));
    all.filter(|opcode| !opcode.is_response() && opcode.operation() != Operation::Cnp)
}

fn data_responses() -> [Opcode; 5] {
    [
        Operation::ReadRespFirst,
        Operation::ReadRespMiddle,
        Operation::ReadRespLast,
        Operation::ReadRespOnly,
        Operation::AtomicAck,
    ]
    .map(Opcode::rc)
}

fn counts(pair: &Pair, side: usize, what: Count) -> u64 {
    pair.hosts[side].counts[what]
}

/// A connection in which side 0 has sent `count` messages of three packets, all still in flight.
/// Returns the PSN of the first.
fn in_flight(seed: u64, op: SendOp, count: u64) -> (Pair, Psn) {
    let mut pair = Pair::small(Service::Rc, seed, Link::PERFECT);
    pair.qps[0].attrs.max_rd_atomic = 64;
    pair.set_max_dest_rd_atomic(1, 64);
    let first = pair.qps[0].sq_psn();
    for id in 0..count {
        pair.post(0, wr(op, id, 3 * MTU), 0x4000);
    }
    pair.transmit(0);
    assert_eq!(pair.qps[0].sq_psn(), first.wrapping_add(3 * count as u32));
    (pair, first)
}

/// PSNs to test: all near `at`, and `others` random ones; a few of both in an interpreter.
fn psns(pair: &mut Pair, at: Psn, others: u32) -> Vec<Psn> {
    let (near, others) = if cfg!(miri) { (8, 8) } else { (600, others) };
    let mut list: Vec<Psn> = (0..2 * near)
        .map(|n| at.wrapping_add(PSNS + n - near))
        .collect();
    list.extend((0..others).map(|_| Psn::new(pair.rng.u32(..))));
    list.retain(|psn| *psn != at);
    list
}

/// ACKs and NAKs of all kinds, for every PSN in flight, with MSNs that do not match it: nothing
/// completes, nothing fails, nothing is retransmitted, no timer is extended.
///
/// One pair of PSN and MSN is accepted for each PSN in flight. With 2^22 PSNs in flight, the
/// maximum, that is 24 + 48 - 22 = 50 bits together with the QP number.
#[test]
fn acknowledgements_need_the_msn() {
    let (count, guesses) = if cfg!(miri) { (3, 1) } else { (60, 40) };
    let (mut pair, first) = in_flight(1, SendOp::Write, count);
    let timer = pair.qps[0].poll_timeout();
    let syndromes = [
        Syndrome::ACK,
        Syndrome::RnrNak { timer: 0 },
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Nak(NakCode::RemoteOperational),
    ];
    let (mut acks, mut naks) = (0, 0);
    for ahead in 0..3 * count as u32 {
        let psn = first.wrapping_add(ahead);
        for syndrome in syndromes {
            let positive = syndrome == Syndrome::ACK;
            // These two are accepted for their PSN, see `exact_psn_is_accepted_with_any_msn`.
            if positive && ahead + 1 == 3 * count as u32 || !positive && ahead == 0 {
                continue;
            }
            let right = if positive { (ahead + 1) / 3 } else { ahead / 3 };
            let mut wrong = vec![right + 1, right + 2, right + 60, right + 0x80_0000];
            wrong.extend((0..guesses).map(|_| pair.rng.u32(0..PSNS)));
            wrong.extend(right.checked_sub(1));
            for msn in wrong {
                if Msn::new(msn) == Msn::new(right) {
                    continue;
                }
                pair.inject(0, ack(psn, syndrome, Msn::new(msn)), &[]);
                *(if positive { &mut acks } else { &mut naks }) += 1;
            }
        }
    }
    assert!(pair.hosts[0].sent.is_empty());
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert_eq!(pair.qps[0].in_flight(), 3 * count as u32);
    assert_eq!(pair.qps[0].poll_timeout(), timer);
    assert_eq!(counts(&pair, 0, Count::SuspectAck), acks);
    assert_eq!(counts(&pair, 0, Count::SuspectNak), naks);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0).len(), count as usize);
    assert_eq!(counts(&pair, 0, Count::Retry), 0);
    assert_eq!(counts(&pair, 0, Count::MsnResync), 0);
}

/// Every MSN but one for one PSN.
#[test]
fn one_msn_is_accepted_per_psn() {
    let (mut pair, first) = in_flight(2, SendOp::Write, 8);
    let step = match seeds(1).end {
        _ if cfg!(miri) => 99_991,
        1 => 61,
        _ => 1,
    };
    for msn in (0..PSNS).step_by(step).filter(|msn| *msn != 4) {
        let fatal = Syndrome::Nak(NakCode::RemoteAccess);
        pair.inject(0, ack(first.wrapping_add(12), fatal, Msn::new(msn)), &[]);
    }
    assert_eq!(pair.qps[0].state(), State::Rts);
    assert!(pair.hosts[0].sent.is_empty());
    let fatal = Syndrome::Nak(NakCode::RemoteAccess);
    pair.inject(0, ack(first.wrapping_add(12), fatal, Msn::new(4)), &[]);
    assert_eq!(pair.qps[0].state(), State::Err);
}

/// A peer with another MSN is not cut off: an ACK of exactly the newest packet and a NAK of exactly
/// the oldest one are accepted. That is one PSN each: 24 + 24 = 48 bits.
#[test]
fn exact_psn_is_accepted_with_any_msn() {
    let (mut pair, first) = in_flight(3, SendOp::Write, 8);
    let newest = first.wrapping_add(23);
    pair.inject(0, ack(newest, Syndrome::ACK, Msn::new(0x1234)), &[]);
    assert_eq!(pair.statuses(0).len(), 8);
    assert_eq!(counts(&pair, 0, Count::MsnResync), 1);
    let (mut pair, first) = in_flight(3, SendOp::Write, 8);
    let fatal = Syndrome::Nak(NakCode::RemoteAccess);
    pair.inject(0, ack(first, fatal, Msn::new(0x1234)), &[]);
    assert_eq!(pair.qps[0].state(), State::Err);
}

fn offset_msn(packet: &mut [u8]) {
    if Opcode::parse(packet[0]).is_some_and(|o| o.headers().contains(HeaderSet::AETH)) {
        packet[13] ^= 0x55;
    }
}

fn meaningless_msn(packet: &mut [u8]) {
    if Opcode::parse(packet[0]).is_some_and(|o| o.headers().contains(HeaderSet::AETH)) {
        packet[14] = packet[11].wrapping_mul(37);
    }
}

/// Peers whose MSN starts elsewhere, or is meaningless: traffic runs without a timeout, and with
/// loss after the first MSN resync.
#[test]
fn peers_with_other_msns() {
    for rewrite in [offset_msn as fn(&mut [u8]), meaningless_msn] {
        for seed in seeds(60) {
            let mut pair = Pair::small(Service::Rc, seed, Link::PERFECT);
            pair.rewrite = Some(rewrite);
            if seed % 2 == 1 {
                for id in 0..4 {
                    pair.post(0, wr(SendOp::Write, id, 5000), 0x4000);
                    pair.run(SECOND);
                }
                assert_eq!(pair.statuses(0).len(), 4);
                pair.hosts[0].sent.clear();
                pair.link.loss = 0.02;
            }
            for id in 0..60 {
                let op = [SendOp::Send, SendOp::Write, SendOp::Read, SendOp::FetchAdd]
                    [pair.rng.usize(0..4)];
                let len = match op {
                    SendOp::FetchAdd => 8,
                    _ => pair.rng.u32(0..9000),
                };
                let buf = RecvBuf {
                    wr_id: id,
                    at: 0,
                    len: 9000,
                };
                if op == SendOp::Send {
                    pair.hosts[1].receives.push_back(buf);
                }
                pair.post(0, wr(op, id, len), 0x4000);
            }
            pair.run(100 * SECOND);
            let done = pair.statuses(0);
            assert_eq!(done.len(), 60, "seed {seed}");
            assert!(
                done.iter().all(|(_, status)| *status == WcStatus::Success),
                "seed {seed}: {done:?}"
            );
            assert!(counts(&pair, 0, Count::MsnResync) <= 3, "seed {seed}");
            if seed % 2 == 0 {
                assert_eq!(counts(&pair, 0, Count::Timeout), 0, "seed {seed}");
            }
        }
    }
}

/// Responses with data at any PSN but the expected one: no memory changes, nothing completes or
/// fails, and the retransmissions that they cause are bounded.
#[test]
fn read_data_needs_the_next_psn() {
    for op in [SendOp::Read, SendOp::Write] {
        let (mut pair, first) = in_flight(4, op, 40);
        pair.hosts[0].memory.borrow_mut().fill(0x5a);
        for psn in psns(&mut pair, first, 3000) {
            for opcode in data_responses() {
                // The packet right after the expected one implies a NAK.
                if psn == first.next() {
                    continue;
                }
                let len = length(opcode.operation());
                pair.inject(0, forged(0, opcode, psn, len), &vec![0xee; len as usize]);
            }
        }
        assert!(pair.hosts[0].sent.is_empty(), "{op:?}");
        assert_eq!(pair.qps[0].state(), State::Rts);
        assert!(pair.hosts[0]
            .memory
            .borrow()
            .iter()
            .all(|byte| *byte == 0x5a));
        assert_eq!(counts(&pair, 0, Count::Retry), 0, "{op:?}");
        pair.run(SECOND);
        assert_eq!(pair.statuses(0).len(), 40);
        assert_eq!(counts(&pair, 0, Count::Retry), 0, "{op:?}");
    }
}

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

/// Without the key an attacker gets no response from a replay entry and does not disturb pending
/// responses.
#[test]
fn duplicates_must_match_the_original() {
    for op in [
        SendOp::Read,
        SendOp::FetchAdd,
        SendOp::AtomicWrite,
        SendOp::Flush,
    ] {
        let mut pair = Pair::small(Service::Rc, 6, Link::PERFECT);
        let psn = pair.qps[0].sq_psn();
        let mut request = wr(op, 1, 8);
        if op == SendOp::Flush {
            let kind = FlushKind {
                placement: 1,
                selectivity: Selectivity::Range,
            };
            set_flush(&mut request, kind);
        }
        pair.post(0, request, 0);
        pair.run(SECOND);
        assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
        let opcode = Opcode::rc(match op {
            SendOp::Read => Operation::ReadRequest,
            SendOp::FetchAdd => Operation::FetchAdd,
            SendOp::AtomicWrite => Operation::AtomicWrite,
            _ => Operation::Flush,
        });
        let before = pair.packets_sent;
        for (addr, key) in [(REMOTE, RKey(0xbad)), (REMOTE + 8, RKEY)] {
            let bth = Bth::new(opcode, Qpn::new(0x12), psn);
            let headers = Headers::new(bth);
            let headers = match op {
                SendOp::FetchAdd => headers.atomic_eth(addr, key, 1, 0),
                SendOp::Flush => headers
                    .feth(rxe_proto::wire::feth::Selectivity::Range, 1)
                    .reth(addr, key, 8),
                _ => headers.reth(addr, key, 8),
            };
            let payload = if op == SendOp::AtomicWrite { 8 } else { 0 };
            pair.inject(1, headers, &vec![0; payload]);
            pair.transmit(1);
        }
        assert_eq!(pair.packets_sent, before, "{op:?}");
        assert_eq!(counts(&pair, 1, Count::DuplicateMismatch), 2, "{op:?}");
        assert_eq!(pair.qps[1].state(), State::Rts);
    }
}

/// PSNs wrap after 2^24. The replay entry of a request before the wrap is not used for the new
/// request with the same PSN.
#[test]
fn replay_entries_after_the_psn_wrapped() {
    let mut pair = Pair::small(Service::Rc, 7, Link::PERFECT);
    let psn = pair.qps[1].rq_psn();
    let add = |psn| {
        let bth = Bth::new(Opcode::rc(Operation::FetchAdd), Qpn::new(0x12), psn);
        Headers::new(bth).atomic_eth(REMOTE, RKEY, 1, 0)
    };
    pair.hosts[1].memory.borrow_mut().fill(0);
    pair.inject(1, add(psn), &[]);
    pair.transmit(1);
    pair.drop_in_flight();
    // The PSNs of many WRITEs.
    for quarter in 1..=4u32 {
        pair.qps[1].set_rq_psn(psn.wrapping_add(quarter << 22));
    }
    pair.inject(1, add(psn), &[]);
    pair.transmit(1);
    pair.drop_in_flight();
    assert_eq!(pair.qps[1].rq_psn(), psn.next());
    pair.inject(1, add(psn), &[]);
    pair.transmit(1);
    let response: Vec<Vec<u8>> = pair.packets_in_flight().map(<[u8]>::to_vec).collect();
    assert_eq!(response.len(), 1);
    let original = u64::from_be_bytes(response[0][16..24].try_into().unwrap());
    assert_eq!(original, 1, "the response from before the wrap");
    let word = pair.hosts[1].memory.borrow()[REMOTE as usize..][..8].to_vec();
    assert_eq!(word, 2u64.to_ne_bytes());
}

/// The same for a READ: a new one whose PSNs those of an old one contain is answered again, from
/// its own memory; and for ATOMIC WRITE.
#[test]
fn repeated_reads_after_the_psn_wrapped() {
    for opcode in [Operation::ReadRequest, Operation::AtomicWrite] {
        let mut pair = Pair::small(Service::Rc, 7, Link::PERFECT);
        let psn = pair.qps[1].rq_psn();
        let request = |psn, addr, len| {
            let bth = Bth::new(Opcode::rc(opcode), Qpn::new(0x12), psn);
            Headers::new(bth).reth(addr, RKEY, len)
        };
        let (len, data) = match opcode {
            Operation::ReadRequest => (3 * MTU, 0),
            _ => (8, 8),
        };
        pair.inject(1, request(psn, REMOTE, len), &vec![1; data]);
        pair.transmit(1);
        pair.drop_in_flight();
        for quarter in 1..=4u32 {
            pair.qps[1].set_rq_psn(psn.wrapping_add(quarter << 22));
        }
        for _ in 0..2 {
            pair.inject(1, request(psn, REMOTE + 64, 8), &vec![2; data]);
            pair.transmit(1);
            assert_eq!(pair.packets_in_flight().count(), 1, "{opcode:?}");
            pair.drop_in_flight();
        }
        assert_eq!(counts(&pair, 1, Count::DuplicateMismatch), 0, "{opcode:?}");
    }
}

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

/// Duplicate data extends the acknowledgement timer, but not without limit; data further back than
/// the maximum window does not extend it.
#[test]
fn old_data_extends_the_timer_within_limits() {
    for behind in [1, 8, 9000, 0x40_0000] {
        let (mut pair, first) = in_flight(10, SendOp::Read, 2);
        pair.drop_in_flight();
        pair.link.loss = 1.0;
        let old = first.wrapping_add(PSNS - behind);
        let begin = pair.now;
        let opcode = Opcode::rc(Operation::ReadRespMiddle);
        while counts(&pair, 0, Count::Timeout) == 0 {
            pair.now += MICROSECOND * 500;
            pair.inject(0, forged(0, opcode, old, MTU), &[0xee; MTU as usize]);
            let (now, host) = (pair.now, &mut pair.hosts[0]);
            pair.qps[0].handle_timeout(now, host);
            assert!(pair.now < begin + SECOND, "the timer never expires");
        }
        // 4.2 ms are configured; up to four times that may pass, and then once more.
        let limit = if behind < 8192 { 60 } else { 20 };
        let waited = (pair.now - begin) / 1_000_000;
        assert!(waited <= limit, "{behind} back: {waited} ms");
    }
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
            let mut qp = rxe_proto::engine::Qp::new(Service::Uc, Qpn::new(0x12), true);
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

/// What the packets of a WRITE show to whoever sees them.
struct Seen {
    /// QP number of the responder.
    qpn: Qpn,
    /// PSN of the last packet.
    psn: Psn,
    va: u64,
    rkey: RKey,
}

/// Posts a WRITE of one packet on a side, and reads the numbers from the packet.
fn observe(pair: &mut Pair, side: usize) -> Seen {
    pair.post(side, wr(SendOp::Write, 9, 100), 0x4000);
    pair.transmit(side);
    let udp = pair.packets_in_flight().last().unwrap();
    let packet = Packet::parse(udp, udp.len()).unwrap();
    let reth = packet.reth().unwrap();
    Seen {
        qpn: packet.bth().dest_qpn,
        psn: packet.bth().psn,
        va: reth.va(),
        rkey: reth.rkey(),
    }
}

/// Who sees the packets of a connection, as an on-path attacker or its peer does, guesses nothing:
/// a forged packet ends an RC connection, sends into it, completes a request of it, writes to
/// memory, and throttles it. On UC the same, except that no packet ends it and none completes a
/// request.
/// There is no defence in RoCE v2.
#[test]
fn packets_that_are_seen_show_all_numbers() {
    let rc = Opcode::rc;
    let uc = |operation| Opcode::new(Transport::Uc, operation).unwrap();
    // What the attacker needs to know of both directions, and a request of side 0 that the attacker
    // has kept from its responder.
    let start = |service| {
        let mut pair = Pair::small(service, 14, Link::PERFECT);
        let to = [1, 0].map(|side| {
            let seen = observe(&mut pair, side);
            pair.run(SECOND);
            seen.qpn
        });
        pair.hosts[0].sent.clear();
        pair.hosts[1].memory.borrow_mut().fill(0x5a);
        let seen = observe(&mut pair, 0);
        pair.drop_in_flight();
        assert_eq!(seen.qpn, to[1]);
        (pair, to[0], seen)
    };
    let cnp = |qpn| {
        Headers::new(Bth {
            becn: true,
            migreq: false,
            ..Bth::new(Opcode::CNP, qpn, Psn::new(0))
        })
    };
    for syndrome in [Syndrome::ACK, Syndrome::Nak(NakCode::RemoteAccess)] {
        let (mut pair, requester, seen) = start(Service::Rc);
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, requester, seen.psn);
        let headers = Headers::new(bth).aeth(Aeth::new(syndrome, Msn::new(2)));
        pair.inject(0, headers, &[]);
        match syndrome {
            Syndrome::ACK => assert_eq!(pair.statuses(0), [(9, WcStatus::Success)]),
            _ => assert_eq!(pair.qps[0].state(), State::Err),
        }
        assert!(pair.hosts[1].memory.borrow().iter().all(|b| *b == 0x5a));
    }
    let (mut pair, _, seen) = start(Service::Rc);
    let bth = Bth::new(rc(Operation::WriteOnly), seen.qpn, seen.psn);
    let headers = Headers::new(bth).reth(seen.va, RKey(seen.rkey.0 ^ 1), 100);
    pair.inject(1, headers, &[0xee; 100]);
    assert_eq!(pair.qps[1].state(), State::Err);
    for service in [Service::Rc, Service::Uc] {
        let opcode = |operation| match service {
            Service::Rc => rc(operation),
            _ => uc(operation),
        };
        let (mut pair, requester, seen) = start(service);
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: 1,
            at: 0,
            len: 4096,
        });
        let bth = Bth::new(opcode(Operation::SendOnly), seen.qpn, seen.psn);
        pair.inject(1, Headers::new(bth), &[0xee; 100]);
        assert_eq!(pair.hosts[1].received.len(), 1, "{service:?}");
        let bth = Bth::new(opcode(Operation::WriteOnly), seen.qpn, seen.psn.next());
        let headers = Headers::new(bth).reth(seen.va, seen.rkey, 100);
        pair.inject(1, headers, &[0xee; 100]);
        let written = pair.hosts[1].memory.borrow()[seen.va as usize..][..100].to_vec();
        assert_eq!(written, [0xee; 100], "{service:?}");
        assert_eq!(pair.qps[0].rate_limit(), None, "{service:?}");
        pair.inject(0, cnp(requester), &[0; 16]);
        assert!(pair.qps[0].rate_limit().is_some(), "{service:?}");
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

/// A connection in which both sides know that the peer keeps packets, with nothing in flight. Side
/// 1 knows the token of side 0, and sends it with READ data.
fn keeping(seed: u64) -> Pair {
    let link = Link {
        loss: 0.05,
        ..Link::PERFECT
    };
    let mut pair = Pair::new(seed, link, Mtu::Mtu1024, 1 << 18);
    pair.gso_max_segs = 1;
    for id in 0..10 {
        pair.hosts[1].receives.push_back(RecvBuf {
            wr_id: id,
            at: 0,
            len: 40 * MTU,
        });
        pair.post(0, wr(SendOp::Send, id, 40 * MTU), 0);
        pair.post(0, wr(SendOp::Read, id, 40 * MTU), 0);
    }
    pair.run(SECOND);
    assert_eq!(pair.hosts[0].sent.len(), 20);
    assert!(counts(&pair, 0, Count::Kept) > 0 && counts(&pair, 1, Count::Kept) > 0);
    pair.link = Link::PERFECT;
    pair.hosts[1].received.clear();
    pair.hosts[0].sent.clear();
    pair.hosts[0].memory.borrow_mut().fill(0x5a);
    pair.hosts[1].memory.borrow_mut().fill(0x5a);
    pair
}

/// The same with READ requests in flight, which get lost. Returns the first expected PSN.
fn keeping_and_reading(seed: u64) -> (Pair, Psn) {
    let mut pair = keeping(seed);
    let first = pair.qps[0].sq_psn();
    for id in 0..2 {
        pair.post(0, wr(SendOp::Read, id, 64 * MTU), 0);
    }
    pair.transmit(0);
    pair.drop_in_flight();
    (pair, first)
}

/// A packet to `side` with all reserved bits that an attacker may choose.
fn marked(side: usize, operation: Operation, psn: Psn, bits: u8) -> Headers {
    let mut bth = Bth::new(Opcode::rc(operation), Qpn::new(0x11 + side as u32), psn);
    bth.resv7 = bits;
    Headers::new(bth)
}

/// The values of the reserved bits.
const BITS: u64 = 128;

/// With each value of the reserved bits, a request at any PSN: only those with the token of the
/// peer are kept ahead of the expected one, and that is executed with this token or none. So the
/// number of pairs of a PSN and bits that are accepted is not greater than the number of values of
/// the bits: an attacker has to guess 24 + 24 bits as without selective repeat.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn requests_ahead_need_the_token() {
    let mut accepted = 0;
    for bits in 0..BITS as u8 {
        let mut pair = keeping(7);
        let (expected, kept) = (pair.qps[1].rq_psn(), pair.kept_packets);
        let genuine = bits & 0x3f == pair.qps[0].attrs.token;
        let buf = RecvBuf {
            wr_id: 1,
            at: 0,
            len: 4096,
        };
        pair.hosts[1].receives.push_back(buf);
        for ahead in (1..100).chain([1000, 1 << 20, PSNS / 2 - 1]) {
            let psn = expected.wrapping_add(ahead);
            let headers = marked(1, Operation::SendOnly, psn, bits);
            pair.inject(1, headers, &[0xee; 100]);
        }
        let kept = pair.kept_packets - kept;
        assert_eq!(kept > 0, genuine, "{bits:#x}");
        accepted += kept;
        // Nothing is executed before the expected packet arrives.
        assert!(pair.hosts[1].received.is_empty());
        assert!(pair.hosts[1].memory.borrow().iter().all(|b| *b == 0x5a));
        assert_eq!(pair.qps[1].rq_psn(), expected);
        if !genuine {
            // Nothing of it is executed later either.
            pair.post(0, wr(SendOp::Write, 1, 100 * MTU), 0);
            pair.run(SECOND);
            assert_eq!(pair.statuses(0), [(1, WcStatus::Success)], "{bits:#x}");
            assert!(pair.hosts[1].received.is_empty());
        }

        let mut pair = keeping(7);
        pair.hosts[1].receives.push_back(buf);
        let headers = marked(1, Operation::SendOnly, expected, bits);
        pair.inject(1, headers, &[0xee; 100]);
        let executed = pair.hosts[1].received.len() as u64;
        assert_eq!(
            executed,
            u64::from(genuine || bits & 0x3f == 0),
            "{bits:#x}"
        );
        accepted += executed;
    }
    assert!(accepted <= BITS, "{accepted}");
}

/// The same for READ data.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn responses_ahead_need_the_token() {
    let mut accepted = 0;
    let payload = [0xee; MTU as usize];
    for bits in 0..BITS as u8 {
        let (mut pair, expected) = keeping_and_reading(7);
        let kept = pair.kept_packets;
        let genuine = bits & 0x3f == pair.qps[0].attrs.token;
        for ahead in 1..127 {
            let psn = expected.wrapping_add(ahead);
            let headers = marked(0, Operation::ReadRespMiddle, psn, bits);
            pair.inject(0, headers, &payload);
        }
        let kept = pair.kept_packets - kept;
        assert_eq!(kept > 0, genuine, "{bits:#x}");
        accepted += kept;
        assert!(pair.hosts[0].memory.borrow().iter().all(|b| *b == 0x5a));
        if !genuine {
            pair.run(SECOND);
            assert_eq!(pair.statuses(0), [0, 1].map(|id| (id, WcStatus::Success)));
            // The memory of the peer.
            assert!(pair.hosts[0].memory.borrow().iter().all(|b| *b == 0x5a));
        }

        let (mut pair, expected) = keeping_and_reading(7);
        let headers = marked(0, Operation::ReadRespMiddle, expected, bits);
        pair.inject(0, headers, &payload);
        let placed = pair.hosts[0].memory.borrow()[0] == 0xee;
        assert_eq!(placed, genuine || bits & 0x3f == 0, "{bits:#x}");
        accepted += u64::from(placed);
    }
    assert!(accepted <= BITS, "{accepted}");
}
