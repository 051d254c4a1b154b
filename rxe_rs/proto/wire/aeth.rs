// SPDX-License-Identifier: GPL-2.0
//! Acknowledge extended transport header (IBTA 9.3.5).

use crate::ids::Msn;
use zerocopy::byteorder::big_endian::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Reason of a negative acknowledgement (IBTA 9.7.5.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// PSN sequence error: a packet is missing; requests its retransmission.
    PsnSequence,
    /// The request is malformed or not allowed on this QP.
    InvalidRequest,
    /// The key does not grant the access.
    RemoteAccess,
    /// The responder failed for a local reason.
    RemoteOperational,
    /// Reliable datagrams only.
    InvalidRd,
}

impl NakCode {
    const fn bits(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRd => 4,
        }
    }
}

/// Syndrome of an AETH.
///
/// # Examples
///
/// ```
/// use rxe_proto::wire::{NakCode, Syndrome};
///
/// assert_eq!(Syndrome::decode(0x60), Syndrome::Nak(NakCode::PsnSequence));
/// assert_eq!(Syndrome::decode(0x2c), Syndrome::RnrNak { timer: 12 });
/// assert_eq!(Syndrome::ACK.encode(), 0x1f);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Everything up to the PSN has arrived.
    Ack {
        /// Credit code, 0 to 31; see [`Syndrome::NO_CREDITS`] and [`credit_count`].
        credits: u8,
    },
    /// RNR NAK: no receive was posted; the requester retries after the timer.
    RnrNak {
        /// Timer code, 0 to 31; see [`super::rnr`].
        timer: u8,
    },
    /// The request is refused.
    Nak(NakCode),
    /// A value that the architecture reserves; ignored.
    Reserved,
}

impl Syndrome {
    /// Credit code without flow control information.
    pub const NO_CREDITS: u8 = 0x1f;

    /// A positive acknowledgement without flow control information (IBTA 9.7.7.2).
    pub const ACK: Self = Self::Ack {
        credits: Self::NO_CREDITS,
    };

    /// Decodes the syndrome byte; defined for all values.
    #[inline]
    pub const fn decode(byte: u8) -> Self {
        let low = byte & 0x1f;
        match (byte & 0xe0, low) {
            (0x00, _) => Self::Ack { credits: low },
            (0x20, _) => Self::RnrNak { timer: low },
            (0x60, 0) => Self::Nak(NakCode::PsnSequence),
            (0x60, 1) => Self::Nak(NakCode::InvalidRequest),
            (0x60, 2) => Self::Nak(NakCode::RemoteAccess),
            (0x60, 3) => Self::Nak(NakCode::RemoteOperational),
            (0x60, 4) => Self::Nak(NakCode::InvalidRd),
            _ => Self::Reserved,
        }
    }

    /// The syndrome byte.
    #[inline]
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code.bits(),
            Self::Reserved => 0x40,
        }
    }
}

/// Number of receive work requests for a credit code (IBTA 9.7.7.2): 0 to 32768;
/// `None` for the code without credits and above.
pub const fn credit_count(code: u8) -> Option<u16> {
    Some(match code {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 3,
        4 => 4,
        5 => 6,
        6 => 8,
        7 => 12,
        8 => 16,
        9 => 24,
        10 => 32,
        11 => 48,
        12 => 64,
        13 => 96,
        14 => 128,
        15 => 192,
        16 => 256,
        17 => 384,
        18 => 512,
        19 => 768,
        20 => 1024,
        21 => 1536,
        22 => 2048,
        23 => 3072,
        24 => 4096,
        25 => 6144,
        26 => 8192,
        27 => 12288,
        28 => 16384,
        29 => 24576,
        30 => 32768,
        _ => return None,
    })
}

/// AETH of acknowledgements and of first, last and only READ responses, 4 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Aeth {
    bits: U32,
}

impl Aeth {
    /// An AETH with `syndrome` and the MSN of the responder.
    #[inline]
    pub const fn new(syndrome: Syndrome, msn: Msn) -> Self {
        let [_, a, b, c] = msn.get().to_be_bytes();
        Self {
            bits: U32::new(u32::from_be_bytes([syndrome.encode(), a, b, c])),
        }
    }

    /// The syndrome.
    #[inline]
    pub const fn syndrome(&self) -> Syndrome {
        let [syndrome, ..] = self.bits.get().to_be_bytes();
        Syndrome::decode(syndrome)
    }

    /// The MSN of the responder.
    #[inline]
    pub const fn msn(&self) -> Msn {
        Msn::new(self.bits.get())
    }
}
