// SPDX-License-Identifier: GPL-2.0
//! Tests of the wire formats.

mod captured;
mod golden;
mod hostile;
mod icrc;
mod payload;
mod pma;
mod roundtrip;
mod timers;

use super::*;
use crate::ids::{Msn, PKey, Psn, QKey, Qpn, RKey};
use proptest::prelude::*;

/// Every legal opcode.
fn opcodes() -> Vec<Opcode> {
    (0..=255u8).filter_map(Opcode::parse).collect()
}

prop_compose! {
    /// A BTH with any legal content.
    fn any_bth()(
        opcode in proptest::sample::select(opcodes()),
        (se, migreq, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
        pad in 0u8..4,
        resv7 in 0u8..128,
        pkey in any::<u16>(),
        qpn in any::<u32>(),
        psn in any::<u32>(),
    ) -> Bth {
        Bth {
            opcode, se, migreq, pad, fecn, becn, ack_req, resv7,
            pkey: PKey(pkey),
            dest_qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
        }
    }
}

/// Values for all extension headers at once.
#[derive(Clone, Copy, Debug)]
struct Values {
    a: u64,
    b: u64,
    c: u64,
    d: u32,
    e: u32,
    imm: [u8; 4],
    syndrome: Syndrome,
}

fn any_syndrome() -> impl Strategy<Value = Syndrome> {
    any::<u8>().prop_map(Syndrome::decode)
}

prop_compose! {
    fn any_values()(
        a in any::<u64>(), b in any::<u64>(), c in any::<u64>(), d in any::<u32>(),
        e in any::<u32>(), imm in any::<[u8; 4]>(), syndrome in any_syndrome(),
    ) -> Values {
        Values { a, b, c, d, e, imm, syndrome }
    }
}

/// The extension headers of the opcode of `bth`.
fn build(bth: Bth, v: &Values) -> Headers {
    let set = bth.opcode.headers();
    let mut headers = Headers::new(bth);
    if set.contains(HeaderSet::DETH) {
        headers = headers.deth(QKey(v.d), Qpn::new(v.e));
    }
    if set.contains(HeaderSet::FETH) {
        headers = headers.feth(feth::Selectivity::Region, Feth::GLOBAL);
    }
    if set.contains(HeaderSet::RETH) {
        headers = headers.reth(v.a, RKey(v.d), v.e);
    }
    if set.contains(HeaderSet::ATOMIC_ETH) {
        headers = headers.atomic_eth(v.a, RKey(v.d), v.b, v.c);
    }
    if set.contains(HeaderSet::AETH) {
        headers = headers.aeth(Aeth::new(v.syndrome, Msn::new(v.d)));
    }
    if set.contains(HeaderSet::ATOMIC_ACK_ETH) {
        headers = headers.atomic_ack(v.b);
    }
    if set.contains(HeaderSet::IMM) {
        headers = headers.imm(v.imm);
    }
    if set.contains(HeaderSet::IETH) {
        headers = headers.ieth(RKey(v.d));
    }
    headers
}

/// A packet of these headers: payload of `len` bytes, pad and four bytes for the ICRC.
fn packet_bytes(headers: &Headers, len: usize) -> Vec<u8> {
    let mut bytes = headers.as_slice().to_vec();
    bytes.extend((0..len).map(|at| at as u8));
    bytes.resize(bytes.len() + headers.pad_len() + Packet::ICRC_LEN, 0);
    bytes
}

/// Bytes from hexadecimal; blanks are skipped.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4) | pair[1])
        .collect()
}
