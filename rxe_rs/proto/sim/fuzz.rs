// SPDX-License-Identifier: GPL-2.0
//! Fuzz targets: turn arbitrary bytes into packets, ring elements or a history of a QP. Each
//! function panics if an invariant is violated and returns otherwise.

use super::{set_remote, to_datagram, wr, Link, Pair, RecvBuf, RKEY};
use crate::abi::{decode_recv, decode_send, SendLimits, MAX_MESSAGE};
use crate::engine::wr::{AhName, SendBody, SendFlags, SendOp, SendWr, UdDest};
use crate::engine::{Service, State};
use crate::ids::{Mtu, QKey, Qpn, RKey};
use crate::wire::feth::Selectivity;
use crate::wire::{Aeth, Bth, HeaderSet, Headers, Opcode, Packet, Syndrome};
use std::string::ToString;
use std::vec::Vec;

/// Parses a packet, all its headers and its dump.
pub fn packet(data: &[u8]) {
    for len in [data.len(), data.len().wrapping_mul(3)] {
        let Ok(packet) = Packet::parse(data, len) else {
            continue;
        };
        assert_eq!(packet.icrc_offset() + Packet::ICRC_LEN, len);
        assert_eq!(packet.header_bytes().len(), packet.opcode().header_len());
        let _ = packet.to_string();
        // A parsed packet can be emitted again, except for reserved bits.
        let bth = packet.bth().emit();
        assert_eq!(Bth::parse(&bth), Ok(*packet.bth()));
    }
}

/// Decodes ring elements; the first byte selects the service of the QP.
pub fn rings(data: &[u8]) {
    let Some((&choice, element)) = data.split_first() else {
        return;
    };
    let services = [
        Service::Rc,
        Service::Uc,
        Service::Ud,
        Service::Gsi,
        Service::Raw,
    ];
    let service = services[usize::from(choice) % services.len()];
    let limits = SendLimits {
        service,
        max_sge: choice % 33,
        max_inline: 512,
        signal_all: choice > 127,
    };
    let entry = decode_send(element, &limits);
    let wr = entry.wqe.wr;
    assert!(wr.length <= MAX_MESSAGE && wr.num_sge <= limits.max_sge);
    if entry.wqe.invalid.is_none() {
        let expected = if wr.flags.inline {
            wr.length
        } else {
            16 * u32::from(wr.num_sge)
        };
        assert_eq!(entry.data.len() as u32, expected);
    }
    if let Ok(entry) = decode_recv(element, limits.max_sge) {
        assert!(entry.list.len() <= 16 * usize::from(limits.max_sge));
    }
}

/// Bytes consumed from the front; zeros at the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn done(&self) -> bool {
        self.0.is_empty()
    }

    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        (u32::from(self.u16()) << 16) | u32::from(self.u16())
    }

    /// A number that is small, near `hint`, or anything.
    fn near(&mut self, hint: u64) -> u64 {
        match self.u8() {
            kind @ 0..=127 => hint.wrapping_add(u64::from(kind) % 8).wrapping_sub(2),
            128..=191 => u64::from(self.u16()),
            192..=223 => u64::MAX - u64::from(self.u8()),
            _ => (u64::from(self.u32()) << 32) | u64::from(self.u32()),
        }
    }
}

/// Memory below this is private to the host.
const PRIVATE: usize = 0x4000;
const MEMORY: usize = 0x10000;

/// Plays a history: the bytes select what the application posts, what the peer sends and how time
/// passes. The first byte selects the service.
///
/// Invariants: no memory is written without the right, every request completes exactly once and in
/// order, and all requests have completed at the end.
pub fn engine(data: &[u8]) {
    let mut bytes = Bytes(data);
    let service = [Service::Rc, Service::Rc, Service::Uc, Service::Ud][usize::from(bytes.u8()) % 4];
    let seed = u64::from(bytes.u8());
    let link = Link {
        loss: 1.0,
        ..Link::PERFECT
    };
    let mut pair = Pair::of(service, seed, link, Mtu::Mtu256, MEMORY);
    pair.hosts[0].grant_from = PRIVATE;
    pair.hosts[0].memory.borrow_mut()[..PRIVATE].fill(0x5a);
    pair.set_max_dest_rd_atomic(0, bytes.u8() % 6);
    let mut sends = 0;
    let mut receives = 0;
    while !bytes.done() {
        match bytes.u8() % 16 {
            0 | 1 => {
                let wr = request(&mut bytes, service, sends);
                sends += 1;
                pair.post(0, wr, 0x8000);
            }
            2 | 3 => {
                let at = PRIVATE + 8 * usize::from(bytes.u8());
                let len = u32::from(bytes.u16() % 2048);
                pair.hosts[0].receives.push_back(RecvBuf {
                    wr_id: receives,
                    at,
                    len,
                });
                receives += 1;
            }
            4 => {
                let room = usize::from(bytes.u8() % 8);
                pair.transmit_packets(0, room);
            }
            5 => {
                pair.now += 1 << (bytes.u8() % 28);
                let (now, host) = (pair.now, &mut pair.hosts[0]);
                pair.qps[0].handle_timeout(now, host);
            }
            6 => {
                let states = [State::Rts, State::Sqd, State::Rts, State::Rts, State::Err];
                let state = states[usize::from(bytes.u8()) % states.len()];
                if matches!(pair.qps[0].state(), State::Rts | State::Sqd) {
                    let host = &mut pair.hosts[0];
                    pair.qps[0].set_state(state, host);
                }
            }
            7 => {
                let now = pair.now;
                pair.qps[0].on_congestion(now);
            }
            _ => forge(&mut bytes, service, &mut pair),
        }
    }
    assert!(
        pair.hosts[0].memory.borrow()[..PRIVATE]
            .iter()
            .all(|byte| *byte == 0x5a),
        "wrote where it may not"
    );
    // The peer is gone: all requests exceed their retries, or are flushed.
    if pair.qps[0].state() != State::Err {
        pair.run(1 << 42);
        let host = &mut pair.hosts[0];
        pair.qps[0].set_state(State::Err, host);
    }
    pair.transmit(0);
    let host = &mut pair.hosts[0];
    pair.qps[0].flush_posted(host);
    let sent: Vec<u64> = pair.hosts[0].sent.iter().map(|wc| wc.wr_id).collect();
    assert!(
        sent.iter().copied().eq(0..sends),
        "sends: {sent:?} of {sends}"
    );
    let received: Vec<u64> = pair.hosts[0].received.iter().map(|r| r.0.wr_id).collect();
    assert!(
        received.iter().copied().eq(0..receives),
        "receives: {received:?} of {receives}"
    );
}

fn request(bytes: &mut Bytes<'_>, service: Service, wr_id: u64) -> SendWr {
    let ops = [
        SendOp::Send,
        SendOp::SendImm,
        SendOp::Write,
        SendOp::WriteImm,
        SendOp::Read,
        SendOp::CmpSwp,
        SendOp::FetchAdd,
        SendOp::SendInv,
        SendOp::AtomicWrite,
        SendOp::Flush,
        SendOp::LocalInv,
        SendOp::BindMw,
        SendOp::RegMr,
    ];
    let op = ops[usize::from(bytes.u8()) % ops.len()];
    let mut wr = wr(op, wr_id, 0);
    wr.length = match wr.body {
        SendBody::CmpSwp { .. } | SendBody::FetchAdd { .. } | SendBody::AtomicWrite(_) => 8,
        SendBody::Local(_) => 0,
        _ => u32::from(bytes.u16() % 2048),
    };
    set_remote(&mut wr, 0);
    if service.is_datagram() {
        let to = UdDest {
            qpn: Qpn::new(0x12),
            qkey: QKey(0),
            ah: AhName::Number(0),
            pkey_index: 0,
        };
        to_datagram(&mut wr, to);
    }
    let flags = bytes.u8();
    wr.flags = SendFlags {
        signaled: true,
        solicited: flags & 1 != 0,
        fence: flags & 2 != 0,
        inline: false,
    };
    wr
}

/// Sends an almost valid packet to the QP.
fn forge(bytes: &mut Bytes<'_>, service: Service, pair: &mut Pair) {
    let space = match service {
        Service::Rc => 0x00,
        Service::Uc => 0x20,
        Service::Ud | Service::Gsi | Service::Raw => 0x60,
    };
    let code = bytes.u8();
    let Some(opcode) = Opcode::parse(code & 0x1f | space).or(Opcode::parse(code)) else {
        return;
    };
    let hint = if opcode.is_response() {
        pair.qps[0].sq_psn().prev()
    } else {
        pair.qps[0].rq_psn()
    };
    let psn = bytes.near(u64::from(hint.get()).wrapping_add(2));
    let flags = bytes.u8();
    let psn = crate::ids::Psn::new(if flags & 8 != 0 {
        hint.get()
    } else {
        (psn & 0xff_ffff) as u32
    });
    let mut bth = Bth::new(opcode, Qpn::new(0x11), psn);
    bth.ack_req = flags & 1 != 0;
    bth.se = flags & 2 != 0;
    let len = match flags >> 6 {
        0 => 0,
        1 => 256,
        _ => usize::from(bytes.u16() % 600),
    };
    bth.pad = Bth::pad_for(len);
    let set = opcode.headers();
    let rkey = if flags & 4 != 0 {
        RKey(bytes.u32())
    } else {
        RKEY
    };
    let mut headers = Headers::new(bth);
    if set.contains(HeaderSet::DETH) {
        headers = headers.deth(QKey(0), Qpn::new(0x12));
    }
    if set.contains(HeaderSet::FETH) {
        headers = headers.feth(Selectivity::Range, bytes.u8());
    }
    if set.contains(HeaderSet::RETH) {
        let va = bytes.near(PRIVATE as u64);
        let dma_len = bytes.near(len as u64) as u32;
        headers = headers.reth(va, rkey, dma_len);
    }
    if set.contains(HeaderSet::ATOMIC_ETH) {
        let va = bytes.near(PRIVATE as u64) & if flags & 16 != 0 { !7 } else { !0 };
        headers = headers.atomic_eth(va, rkey, 1, 1);
    }
    if set.contains(HeaderSet::AETH) {
        let syndrome = Syndrome::decode(bytes.u8());
        headers = headers.aeth(Aeth::new(syndrome, Default::default()));
    }
    if set.contains(HeaderSet::ATOMIC_ACK_ETH) {
        headers = headers.atomic_ack(7);
    }
    if set.contains(HeaderSet::IMM) {
        headers = headers.imm([1, 2, 3, 4]);
    }
    if set.contains(HeaderSet::IETH) {
        headers = headers.ieth(rkey);
    }
    pair.inject(0, headers, &std::vec![0xee; len]);
}
