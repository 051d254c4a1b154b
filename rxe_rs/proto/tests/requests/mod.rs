// SPDX-License-Identifier: GPL-2.0
//! What a requester sends and a responder takes, packet by packet: the rules of IBTA 9.7.3 and
//! IBTA 9.7.4.1.
#![cfg(feature = "sim")]

mod naks;

use rxe_proto::engine::backend::Count;
use rxe_proto::engine::wc::WcStatus;
use rxe_proto::engine::wr::{SendOp, MAX_MESSAGE};
use rxe_proto::engine::{Progress, Service, State};
use rxe_proto::ids::{Msn, Psn, Qpn};
use rxe_proto::sim::{wr, Link, Pair, RecvBuf, REMOTE, RKEY};
use rxe_proto::wire::aeth::NakCode;
use rxe_proto::wire::feth::Selectivity;
use rxe_proto::wire::{Aeth, Bth, Feth, Headers, Opcode, Operation, Packet, Syndrome, Transport};

const SECOND: u64 = 1_000_000_000;
const MTU: u32 = 1024;

fn pair() -> Pair {
    Pair::small(Service::Rc, 7, Link::PERFECT)
}

fn post_receives(pair: &mut Pair, side: usize, count: u64) {
    pair.hosts[side]
        .receives
        .extend((0..count).map(|wr_id| RecvBuf {
            wr_id,
            at: 0,
            len: 8 * MTU,
        }));
}

/// The packets in flight.
fn in_flight(pair: &Pair) -> Vec<(Bth, Option<Aeth>)> {
    let packets = pair.packets_in_flight();
    let parsed = packets.map(|bytes| Packet::parse(bytes, bytes.len()).expect("a valid packet"));
    parsed.map(|p| (*p.bth(), p.aeth())).collect()
}

/// A request to side 1 without its extension headers.
fn bth(operation: Operation, psn: Psn, len: u32) -> Bth {
    let mut bth = Bth::new(Opcode::rc(operation), Qpn::new(0x12), psn);
    bth.pad = Bth::pad_for(len as usize);
    bth
}

/// Sends side 1 a packet with `len` bytes of payload and, where the operation has one, a RETH of
/// `total` bytes.
fn send(pair: &mut Pair, ahead: u32, operation: Operation, len: u32, total: u32) {
    let psn = pair.qps[0].sq_psn().wrapping_add(ahead);
    let headers = Headers::new(bth(operation, psn, len));
    let headers = match operation {
        Operation::WriteFirst
        | Operation::WriteOnly
        | Operation::ReadRequest
        | Operation::AtomicWrite => headers.reth(REMOTE, RKEY, total),
        Operation::CmpSwap | Operation::FetchAdd => headers.atomic_eth(REMOTE, RKEY, 1, 0),
        Operation::Flush => headers
            .feth(Selectivity::Range, Feth::GLOBAL)
            .reth(REMOTE, RKEY, total),
        _ => headers,
    };
    pair.inject(1, headers, &vec![0x5a; len as usize]);
}

/// Side 1 has answered with one NAK of this code and is in error.
fn assert_refused(pair: &mut Pair, code: NakCode, what: &str) {
    pair.drop_in_flight();
    pair.transmit(1);
    let naks: Vec<_> = in_flight(pair)
        .iter()
        .filter_map(|(_, aeth)| aeth.map(|aeth| aeth.syndrome()))
        .filter(|syndrome| matches!(syndrome, Syndrome::Nak(_)))
        .collect();
    assert_eq!(naks, [Syndrome::Nak(code)], "{what}");
    assert_eq!(pair.qps[1].state(), State::Err, "{what}");
}

/// A message is sent as first, middle and last packet with consecutive PSNs; a READ takes the PSNs
/// of its responses.
#[test]
fn psns_of_a_message() {
    use Operation as Op;
    let mut pair = pair();
    let first = pair.qps[0].sq_psn();
    for (id, (op, len)) in [
        (SendOp::Write, 3 * MTU - 1),
        (SendOp::Send, 0),
        (SendOp::Read, 2 * MTU + 1),
        (SendOp::FetchAdd, 8),
        (SendOp::Send, 2 * MTU),
    ]
    .into_iter()
    .enumerate()
    {
        pair.post(0, wr(op, id as u64, len), 0);
    }
    pair.transmit(0);
    let sent: Vec<_> = in_flight(&pair)
        .iter()
        .map(|(bth, _)| (bth.opcode.operation(), bth.psn.delta(first)))
        .collect();
    let expected = [
        (Op::WriteFirst, 0),
        (Op::WriteMiddle, 1),
        (Op::WriteLast, 2),
        (Op::SendOnly, 3),
        (Op::ReadRequest, 4),
        (Op::FetchAdd, 7),
        (Op::SendFirst, 8),
        (Op::SendLast, 9),
    ];
    assert_eq!(sent, expected);
    assert_eq!(pair.qps[0].sq_psn(), first.wrapping_add(10));
}

/// Only the last packet of a message that takes a receive request carries the solicited event bit;
/// the last packet of all asks for an acknowledgement.
#[test]
fn bits_of_the_last_packet() {
    for (op, solicits) in [
        (SendOp::Send, true),
        (SendOp::SendImm, true),
        (SendOp::SendInv, true),
        (SendOp::WriteImm, true),
        (SendOp::Write, false),
    ] {
        for wanted in [false, true] {
            let mut pair = pair();
            let mut request = wr(op, 0, 3 * MTU);
            request.flags.solicited = wanted;
            pair.post(0, request, 0);
            pair.transmit(0);
            let bits: Vec<_> = in_flight(&pair)
                .iter()
                .map(|(bth, _)| (bth.se, bth.ack_req))
                .collect();
            let last = (wanted && solicits, true);
            assert_eq!(bits, [(false, false), (false, false), last], "{op:?}");
        }
    }
}

/// No more READs and ATOMICs are outstanding than the peer has resources for, and all are executed
/// in the end.
#[test]
fn reads_outstanding() {
    for op in [SendOp::Read, SendOp::FetchAdd, SendOp::AtomicWrite] {
        let mut pair = pair();
        pair.qps[0].attrs.max_rd_atomic = 2;
        pair.set_max_dest_rd_atomic(1, 2);
        for id in 0..7 {
            pair.post(0, wr(op, id, 8), 0);
        }
        pair.transmit(0);
        assert_eq!(in_flight(&pair).len(), 2, "{op:?}");
        pair.run(SECOND);
        let expected: Vec<_> = (0..7).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(pair.statuses(0), expected, "{op:?}");
    }
}

/// A request with a fence waits for the READ before it, another one does not.
#[test]
fn fence() {
    for fence in [false, true] {
        let mut pair = pair();
        post_receives(&mut pair, 1, 1);
        let mut fenced = wr(SendOp::Send, 1, 100);
        fenced.flags.fence = fence;
        pair.post(0, wr(SendOp::Read, 0, 2 * MTU), 0);
        pair.post(0, fenced, 0);
        pair.transmit(0);
        assert_eq!(in_flight(&pair).len(), if fence { 1 } else { 2 });
        pair.run(SECOND);
        let success = WcStatus::Success;
        assert_eq!(pair.statuses(0), [(0, success), (1, success)]);
    }
}

/// Requests without the signal complete only if they fail.
#[test]
fn unsignaled() {
    let mut pair = pair();
    let mut write = wr(SendOp::Write, 1, 100);
    write.flags.signaled = false;
    pair.post(0, write, 0);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0), []);
    assert_eq!(pair.hosts[0].outstanding(), 0);
    pair.hosts[1].no_access = true;
    write.wr_id = 2;
    pair.post(0, write, 0);
    pair.run(SECOND);
    assert_eq!(pair.statuses(0), [(2, WcStatus::RemAccessErr)]);
}

/// What begins with a middle or last packet, or is interrupted by the packet of another message, is
/// an invalid request.
#[test]
fn opcodes_out_of_sequence() {
    use Operation as Op;
    let length = |op| match op {
        Op::SendFirst | Op::SendMiddle | Op::WriteFirst | Op::WriteMiddle => MTU,
        Op::ReadRequest => 0,
        _ => 100,
    };
    for begun in [None, Some(Op::SendFirst), Some(Op::WriteFirst)] {
        for next in [
            Op::SendFirst,
            Op::SendMiddle,
            Op::SendLast,
            Op::SendOnly,
            Op::WriteFirst,
            Op::WriteMiddle,
            Op::WriteLast,
            Op::WriteOnly,
            Op::ReadRequest,
        ] {
            let mut pair = pair();
            post_receives(&mut pair, 1, 2);
            if let Some(op) = begun {
                send(&mut pair, 0, op, MTU, 4 * MTU);
                assert_eq!(pair.qps[1].state(), State::Rts);
            }
            let total = match next {
                Op::WriteFirst => 4 * MTU,
                _ => 100,
            };
            send(&mut pair, begun.map_or(0, |_| 1), next, length(next), total);
            let starts = Opcode::rc(next).starts_message();
            let fits = match begun {
                None => starts,
                Some(Op::SendFirst) => matches!(next, Op::SendMiddle | Op::SendLast),
                // The last packet has to end the message.
                Some(_) => next == Op::WriteMiddle,
            };
            let what = format!("{begun:?} {next:?}");
            if fits {
                assert_eq!(pair.qps[1].state(), State::Rts, "{what}");
            } else {
                assert_refused(&mut pair, NakCode::InvalidRequest, &what);
            }
        }
    }
}

/// First and middle packets carry exactly a path MTU, last ones at least a byte, none more than a
/// path MTU, READ, ATOMIC and FLUSH requests nothing. Reserved opcodes have no valid length.
#[test]
fn lengths_of_packets() {
    use Operation as Op;
    let cases = [
        (None, Op::SendFirst, MTU - 4),
        (None, Op::SendFirst, MTU + 4),
        (None, Op::SendOnly, MTU + 1),
        (None, Op::WriteOnly, MTU + 1),
        (Some(Op::SendFirst), Op::SendMiddle, MTU - 1),
        (Some(Op::SendFirst), Op::SendLast, 0),
        (Some(Op::SendFirst), Op::SendLast, MTU + 1),
        (Some(Op::WriteFirst), Op::WriteMiddle, 0),
        (None, Op::ReadRequest, 4),
        (None, Op::CmpSwap, 8),
        (None, Op::FetchAdd, 8),
        (None, Op::Flush, 4),
        (None, Op::AtomicWrite, 4),
        (None, Op::AtomicWrite, 12),
        (None, Op::Reserved, 0),
        (None, Op::Reserved, MTU),
        (Some(Op::SendFirst), Op::Reserved, MTU),
    ];
    for (begun, next, len) in cases {
        let mut pair = pair();
        post_receives(&mut pair, 1, 1);
        if let Some(op) = begun {
            send(&mut pair, 0, op, MTU, 4 * MTU);
        }
        let total = if next == Op::AtomicWrite { 8 } else { len };
        send(&mut pair, begun.map_or(0, |_| 1), next, len, total);
        assert_refused(
            &mut pair,
            NakCode::InvalidRequest,
            &format!("{next:?} {len}"),
        );
    }
    for (next, len) in [
        (Op::ReadRequest, 0),
        (Op::CmpSwap, 0),
        (Op::FetchAdd, 0),
        (Op::Flush, 0),
        (Op::AtomicWrite, 8),
    ] {
        let mut pair = pair();
        send(&mut pair, 0, next, len, 8);
        assert_eq!(pair.qps[1].state(), State::Rts, "{next:?}");
    }
    for len in [0, 1, MTU] {
        let mut pair = pair();
        post_receives(&mut pair, 1, 1);
        send(&mut pair, 0, Op::SendOnly, len, 0);
        assert_eq!(pair.hosts[1].received[0].0.byte_len, len);
    }
}

/// The packets of a WRITE carry as many bytes as its RETH says, and not more than the longest
/// message.
#[test]
fn lengths_of_writes() {
    use Operation as Op;
    let invalid = NakCode::InvalidRequest;
    for (len, total) in [(100, 99), (100, 101), (0, 1), (1, 0), (0, MAX_MESSAGE + 1)] {
        let mut pair = pair();
        send(&mut pair, 0, Op::WriteOnly, len, total);
        assert_refused(&mut pair, invalid, &format!("{len} of {total}"));
    }
    // More than one packet is announced by a first packet, and the last one has the rest.
    for (total, last) in [(MTU, None), (MTU + 100, Some(99)), (MTU + 100, Some(101))] {
        let mut pair = pair();
        send(&mut pair, 0, Op::WriteFirst, MTU, total);
        if let Some(len) = last {
            send(&mut pair, 1, Op::WriteLast, len, 0);
        }
        assert_refused(&mut pair, invalid, &format!("{total} {last:?}"));
    }
    let mut pair = pair();
    send(&mut pair, 0, Op::ReadRequest, 0, MAX_MESSAGE + 1);
    assert_refused(&mut pair, invalid, "READ");
}

/// A READ for which there is no resource is an invalid request; the ones before it are answered.
#[test]
fn more_reads_than_resources() {
    let mut pair = pair();
    pair.set_max_dest_rd_atomic(1, 2);
    for ahead in 0..2 {
        send(&mut pair, ahead, Operation::ReadRequest, 0, 100);
        assert_eq!(pair.qps[1].state(), State::Rts);
    }
    send(&mut pair, 2, Operation::ReadRequest, 0, 100);
    assert_refused(&mut pair, NakCode::InvalidRequest, "third READ");
    assert_eq!(in_flight(&pair).len(), 3);
}

/// Pending responses and replay entries stay when the responder's memory is exchanged, wherever the
/// oldest response lies in it.
#[test]
fn responder_memory_is_exchanged() {
    for answered in 0..3 {
        let mut pair = pair();
        pair.set_max_dest_rd_atomic(1, 2);
        for ahead in 0..answered {
            send(&mut pair, ahead, Operation::ReadRequest, 0, 100);
            pair.transmit(1);
        }
        pair.drop_in_flight();
        for ahead in answered..answered + 2 {
            send(&mut pair, ahead, Operation::ReadRequest, 0, 100);
        }
        // A third READ would have been refused.
        pair.set_max_dest_rd_atomic(1, 3);
        send(&mut pair, answered + 2, Operation::ReadRequest, 0, 100);
        let first = pair.qps[0].sq_psn();
        let psns = |pair: &Pair| -> Vec<u32> {
            let psns = in_flight(pair)
                .into_iter()
                .map(|(bth, _)| bth.psn.delta(first) as u32);
            psns.collect()
        };
        // The simulator's packets arrive out of order if they are from one call: one call each.
        let mut sent = Vec::new();
        for _ in 0..3 {
            let _ = pair.transmit_packets(1, 1);
            sent.extend(psns(&pair));
            pair.drop_in_flight();
        }
        assert_eq!(sent, [answered, answered + 1, answered + 2]);
        for ahead in answered..answered + 3 {
            send(&mut pair, ahead, Operation::ReadRequest, 0, 100);
            pair.transmit(1);
            assert_eq!(psns(&pair), [ahead], "duplicate");
            pair.drop_in_flight();
        }
        assert_eq!(pair.hosts[1].counts[Count::DuplicateMismatch], 0);
    }
}

/// An ATOMIC at an address that is no multiple of eight is an invalid request.
#[test]
fn misaligned_atomics() {
    for operation in [Operation::CmpSwap, Operation::FetchAdd] {
        for shift in 0..8 {
            let mut pair = pair();
            let headers = Headers::new(bth(operation, pair.qps[0].sq_psn(), 0));
            pair.inject(1, headers.atomic_eth(REMOTE + shift, RKEY, 1, 0), &[]);
            if shift == 0 {
                assert_eq!(pair.qps[1].state(), State::Rts);
            } else {
                assert_refused(&mut pair, NakCode::InvalidRequest, "misaligned");
            }
        }
    }
}

/// The acknowledgement timer expires once its time has passed, and before four times of it.
#[test]
fn acknowledgement_timeout() {
    for code in 1..=20 {
        let mut pair = pair();
        pair.qps[0].attrs.timeout = code;
        pair.link.loss = 1.0;
        pair.post(0, wr(SendOp::Write, 1, 100), 0);
        pair.transmit(0);
        let begin = pair.now;
        while pair.hosts[0].counts[Count::Timeout] == 0 {
            assert!(pair.step());
        }
        let timeout = 4096 << code;
        let waited = pair.now - begin;
        assert!(
            (timeout..=4 * timeout).contains(&waited),
            "{code}: {waited} ns"
        );
    }
    // Without a timer nothing expires.
    let mut pair = pair();
    pair.qps[0].attrs.timeout = 0;
    pair.link.loss = 1.0;
    pair.post(0, wr(SendOp::Write, 1, 100), 0);
    pair.run(SECOND);
    assert_eq!(pair.hosts[0].counts[Count::Timeout], 0);
    assert_eq!(pair.statuses(0), []);
}

/// One acknowledgement is for all requests that have arrived; it offers no credits.
#[test]
fn one_acknowledgement_for_many() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 10);
    let first = pair.qps[0].sq_psn();
    for ahead in 0..10 {
        let mut bth = bth(Operation::SendOnly, first.wrapping_add(ahead), 0);
        bth.ack_req = ahead % 3 == 0;
        pair.inject(1, Headers::new(bth), &[]);
    }
    pair.transmit(1);
    let answers = in_flight(&pair);
    let [(bth, Some(aeth))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(bth.opcode.operation(), Operation::Acknowledge);
    assert_eq!(bth.psn, first.wrapping_add(9));
    assert_eq!(aeth.syndrome(), Syndrome::Ack { credits: 0x1f });
    assert_eq!(aeth.msn(), Msn::new(10));
}

/// Requests go before an ACK, but no more of them than leave in the same round.
#[test]
fn acknowledgement_after_requests() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 1);
    let bth = bth(Operation::SendOnly, pair.qps[0].sq_psn(), 0);
    pair.inject(
        1,
        Headers::new(Bth {
            ack_req: true,
            ..bth
        }),
        &[],
    );
    for id in 0..3 {
        pair.post(1, wr(SendOp::Write, id, 100), 0);
    }
    let operations = |pair: &Pair| -> Vec<Operation> {
        let packets = in_flight(pair).into_iter();
        packets.map(|(bth, _)| bth.opcode.operation()).collect()
    };
    assert_eq!(pair.transmit_packets(1, 2), Progress::More);
    assert_eq!(operations(&pair), [Operation::WriteOnly; 2]);
    assert_eq!(pair.transmit_packets(1, 2), Progress::Idle);
    let [_, _, third, fourth] = operations(&pair)[..] else {
        panic!("{:?}", operations(&pair));
    };
    assert_eq!(
        (third, fourth),
        (Operation::Acknowledge, Operation::WriteOnly)
    );
}

/// A message that was received is acknowledged, although the queue pair fails in the same round.
#[test]
fn acknowledgement_before_a_failure() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 1);
    pair.post(0, wr(SendOp::Send, 1, 8), 0);
    while pair.hosts[1].received.is_empty() {
        assert!(pair.step(), "the message does not arrive");
    }
    pair.post_invalid(1, wr(SendOp::Send, 2, 8), WcStatus::LocLenErr);
    pair.run(SECOND);
    assert_eq!(pair.statuses(1), [(2, WcStatus::LocLenErr)]);
    assert_eq!(pair.qps[1].state(), State::Err);
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
}

/// Each NAK code has its completion status; a PSN sequence error only makes the requester go back.
#[test]
fn statuses_of_refused_requests() {
    for (code, status) in [
        (NakCode::PsnSequence, WcStatus::Success),
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
    ] {
        let mut pair = pair();
        let psn = pair.qps[0].sq_psn();
        pair.post(0, wr(SendOp::Write, 1, 100), 0);
        pair.transmit(0);
        pair.drop_in_flight();
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn);
        let aeth = Aeth::new(Syndrome::Nak(code), Msn::new(0));
        pair.inject(0, Headers::new(bth).aeth(aeth), &[]);
        pair.run(SECOND);
        assert_eq!(pair.statuses(0), [(1, status)], "{code:?}");
        let failed = pair.qps[0].state() == State::Err;
        assert_eq!(failed, status != WcStatus::Success);
    }
}

/// The congestion bits of a packet other than a CNP change nothing.
#[test]
fn congestion_bits_of_requests() {
    let mut pair = pair();
    post_receives(&mut pair, 1, 1);
    let (window, psn) = (pair.qps[1].window(), pair.qps[0].sq_psn());
    let mut bth = bth(Operation::SendOnly, psn, 0);
    (bth.fecn, bth.becn) = (true, true);
    pair.inject(1, Headers::new(bth), &[]);
    assert_eq!(pair.hosts[1].received.len(), 1);
    assert_eq!(
        (pair.qps[1].window(), pair.qps[1].rate_limit()),
        (window, None)
    );
    let counts = pair.hosts[1].counts;
    assert_eq!(counts[Count::CnpHandled] + counts[Count::CnpIgnored], 0);
    pair.transmit(1);
    assert!(in_flight(&pair)
        .iter()
        .all(|(bth, _)| bth.opcode != Opcode::CNP));
}

/// The consumer withdraws the right to WRITE amid a message: nothing is written after that.
#[test]
fn right_to_write_is_withdrawn() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = Pair::small(service, 1, Link::PERFECT);
        let psn = pair.qps[1].rq_psn();
        let transport = match service {
            Service::Uc => Transport::Uc,
            _ => Transport::Rc,
        };
        let headers = |operation, psn| {
            let opcode = Opcode::new(transport, operation).expect("an opcode of RC and UC");
            Headers::new(Bth::new(opcode, Qpn::new(0x12), psn))
        };
        let at = REMOTE as usize;
        let size = MTU as usize;
        pair.hosts[1].memory.borrow_mut().fill(0);
        let first = headers(Operation::WriteFirst, psn).reth(REMOTE, RKEY, 2 * MTU);
        pair.inject(1, first, &vec![1; size]);
        pair.qps[1].attrs.remote_write = false;
        let last = headers(Operation::WriteLast, psn.next());
        pair.inject(1, last, &vec![1; size]);
        {
            let memory = pair.hosts[1].memory.borrow();
            let (before, after) = memory[at..at + 2 * size].split_at(size);
            assert!(before.iter().all(|byte| *byte == 1), "{service:?}");
            assert!(after.iter().all(|byte| *byte == 0), "{service:?}");
        }
        if service == Service::Rc {
            assert_refused(&mut pair, NakCode::InvalidRequest, "WRITE last");
        }
    }
}

/// The consumer withdraws the right to READ: no data is sent after that, neither what is left of a
/// response nor in response to a duplicate.
#[test]
fn right_to_read_is_withdrawn() {
    for repeated in [true, false] {
        let mut pair = pair();
        send(&mut pair, 0, Operation::ReadRequest, 0, 2 * MTU);
        pair.transmit_packets(1, if repeated { 10 } else { 1 });
        let sent = in_flight(&pair).len();
        assert_eq!(sent, if repeated { 2 } else { 1 });
        pair.drop_in_flight();
        pair.qps[1].attrs.remote_read = false;
        if repeated {
            send(&mut pair, 0, Operation::ReadRequest, 0, 2 * MTU);
        }
        pair.transmit(1);
        let data = |bth: &Bth| bth.opcode != Opcode::RC_ACKNOWLEDGE;
        let found = in_flight(&pair).iter().filter(|(b, _)| data(b)).count();
        assert_eq!(found, 0, "repeated: {repeated}");
    }
}

/// rdma_rxe repeats an ATOMIC WRITE or FLUSH whose response was lost with address 0.
#[test]
fn duplicates_of_rdma_rxe() {
    for operation in [Operation::AtomicWrite, Operation::Flush] {
        let mut pair = pair();
        let psn = pair.qps[1].rq_psn();
        let payload: &[u8] = match operation {
            Operation::AtomicWrite => &[7; 8],
            _ => &[],
        };
        for addr in [REMOTE, 0] {
            let headers = Headers::new(bth(operation, psn, 8));
            let headers = match operation {
                Operation::Flush => headers.feth(Selectivity::Range, 1),
                _ => headers,
            };
            pair.inject(1, headers.reth(addr, RKEY, 8), payload);
            pair.transmit(1);
            let responses = in_flight(&pair).len();
            assert_eq!(responses, 1, "{operation:?}, address {addr:#x}");
            pair.drop_in_flight();
        }
    }
}
