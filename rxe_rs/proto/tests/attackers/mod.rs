// SPDX-License-Identifier: GPL-2.0
//! Attackers who send packets: which numbers they must guess to do harm, and what the packets with
//! wrong guesses cost.
//!
//! The off-path attacker spoofs the address of the peer and knows both ports, the QP number where a
//! test says so, keys and addresses where they matter, but not the PSNs. Each test sends what
//! such an attacker can send into a live connection; `SECURITY.md` draws its tables from them.
//! The module `seen` is about attackers who see the packets.
#![cfg(feature = "sim")]

mod duplicates;
mod floods;
mod kept;
mod requests;
mod responses;
mod seen;

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
