// SPDX-License-Identifier: GPL-2.0
//! Base transport header (IBTA 9.2).

use super::opcode::Opcode;
use crate::drop::DropReason;
use crate::ids::{PKey, Psn, Qpn};

/// Base transport header, the first 12 bytes of every packet (IBTA A17.4.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// Solicited event: the completion at the receiver notifies a CQ armed for solicited events.
    pub se: bool,
    /// Migration state; 1 (migrated) while automatic path migration is not in use.
    pub migreq: bool,
    /// Pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// P_Key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination QP.
    pub dest_qpn: Qpn,
    /// AckReq: the sender requests an acknowledgement.
    pub ack_req: bool,
    /// The seven reserved bits behind AckReq, 0 to 127. The architecture says that receivers
    /// ignore them; between two queue pairs of this driver they hold a
    /// [`Mark`](crate::engine::repeat::Mark).
    pub resv7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header with every flag clear but MigReq, no pad, and the default P_Key.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            se: false,
            migreq: true,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            resv7: 0,
            psn,
        }
    }

    /// Pad bytes that a payload of `len` bytes needs: up to the next multiple of four.
    #[inline]
    pub const fn pad_for(len: usize) -> u8 {
        let [low, ..] = len.to_le_bytes();
        low.wrapping_neg() & 3
    }

    /// Reads the header (IBTA 9.6.1.1).
    ///
    /// # Errors
    ///
    /// [`DropReason::BadVersion`] unless the header version is 0, [`DropReason::UnknownOpcode`]
    /// for opcodes outside the table. The reserved bits behind FECN and BECN are ignored.
    #[inline]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, DropReason> {
        let [code, flags, p0, p1, ecn, q0, q1, q2, ack, s0, s1, s2] = *bytes;
        if flags & 0x0f != 0 {
            return Err(DropReason::BadVersion);
        }
        let Some(opcode) = Opcode::parse(code) else {
            return Err(DropReason::UnknownOpcode);
        };
        Ok(Self {
            opcode,
            se: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: (flags >> 4) & 3,
            pkey: PKey(u16::from_be_bytes([p0, p1])),
            fecn: ecn & 0x80 != 0,
            becn: ecn & 0x40 != 0,
            dest_qpn: Qpn::from_be_bytes([q0, q1, q2]),
            ack_req: ack & 0x80 != 0,
            resv7: ack & 0x7f,
            psn: Psn::from_be_bytes([s0, s1, s2]),
        })
    }

    /// The bytes of the header; the version and the reserved bits behind FECN and BECN are zero.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        const fn bit(flag: bool, value: u8) -> u8 {
            if flag {
                value
            } else {
                0
            }
        }
        let flags = bit(self.se, 0x80) | bit(self.migreq, 0x40) | ((self.pad & 3) << 4);
        let ecn = bit(self.fecn, 0x80) | bit(self.becn, 0x40);
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let [q0, q1, q2] = self.dest_qpn.to_be_bytes();
        let [s0, s1, s2] = self.psn.to_be_bytes();
        let ack = bit(self.ack_req, 0x80) | (self.resv7 & 0x7f);
        [
            self.opcode.to_u8(),
            flags,
            p0,
            p1,
            ecn,
            q0,
            q1,
            q2,
            ack,
            s0,
            s1,
            s2,
        ]
    }
}
