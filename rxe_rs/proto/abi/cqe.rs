// SPDX-License-Identifier: GPL-2.0
//! Encoding of CQEs for the ring of a user.

use super::layout::CQE_LEN;
use crate::engine::wc::{NetworkType, Wc, WcStatus};
use crate::ids::RKey;
use zerocopy::byteorder::native_endian::{U16, U32, U64};
use zerocopy::IntoBytes;
use zerocopy_derive::{Immutable, IntoBytes};

const GRH: u32 = 1 << 0;
const WITH_IMM: u32 = 1 << 1;
/// Of `enum ibv_wc_flags`, to which librxe copies it; the bit of the kernel is different.
const WITH_INV: u32 = 1 << 3;

/// RoCE has no service level on the wire. Hardware (ConnectX) reports the kind of packet in its
/// place, and programs read it to find the source's address in the header that precedes a
/// datagram: UCX, for which a 0 is RoCE v1 and an IPv4 peer unreachable.
const PACKET_HAS_UDP: u8 = 1 << 3;
const PACKET_IPV6: u8 = 1;
const PACKET_IPV4: u8 = 2;

/// `struct ib_uverbs_wc`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Cqe {
    wr_id: U64,
    status: U32,
    opcode: U32,
    vendor_err: U32,
    byte_len: U32,
    ex: [u8; 4],
    qp_num: U32,
    src_qp: U32,
    wc_flags: U32,
    pkey_index: U16,
    slid: U16,
    sl: u8,
    dlid_path_bits: u8,
    port_num: u8,
    reserved: u8,
}

const _: () = assert!(size_of::<Cqe>() == CQE_LEN);

/// The 48 bytes of a CQE as librxe copies them to the application (IBTA A17.4.5.1).
///
/// In an error completion only identifier, status and QP number are valid
/// (IBTA 11.4.2.1); the rest is zero.
pub fn encode_cqe(wc: &Wc) -> [u8; CQE_LEN] {
    let mut cqe = Cqe {
        wr_id: U64::new(wc.wr_id),
        status: U32::new(wc.status.to_u32()),
        opcode: U32::ZERO,
        vendor_err: U32::ZERO,
        byte_len: U32::ZERO,
        ex: [0; 4],
        qp_num: U32::new(wc.qpn),
        src_qp: U32::ZERO,
        wc_flags: U32::ZERO,
        pkey_index: U16::ZERO,
        slid: U16::ZERO,
        sl: 0,
        dlid_path_bits: 0,
        port_num: 1,
        reserved: 0,
    };
    if matches!(wc.status, WcStatus::Success) {
        cqe.opcode = U32::new(wc.opcode.to_u32());
        cqe.byte_len = U32::new(wc.byte_len);
        cqe.src_qp = U32::new(wc.src_qpn);
        cqe.pkey_index = U16::new(wc.pkey_index);
        let mut flags = 0;
        if let Some(imm) = wc.imm {
            cqe.ex = imm;
            flags |= WITH_IMM;
        }
        if let Some(RKey(key)) = wc.invalidated {
            cqe.ex = key.to_ne_bytes();
            flags |= WITH_INV;
        }
        if let Some(kind) = wc.grh {
            flags |= GRH;
            cqe.sl = PACKET_HAS_UDP
                | match kind {
                    NetworkType::V6 => PACKET_IPV6,
                    NetworkType::V4 => PACKET_IPV4,
                };
        }
        cqe.wc_flags = U32::new(flags);
    }
    let mut bytes = [0; CQE_LEN];
    bytes.copy_from_slice(cqe.as_bytes());
    bytes
}
