// SPDX-License-Identifier: GPL-2.0
//! Selective repeat between two QPs of this driver.
//!
//! The architecture knows go-back-N only: a responder drops what is ahead of the
//! expected PSN. Two QPs of this driver keep such packets, so that only what was lost is sent
//! again. They agree on that by the seven reserved bits of the BTH behind AckReq, which the
//! architecture has receivers ignore; other peers see go-back-N.
//!
//! Requests:
//!
//! - A PSN sequence error NAK holds the number of missing packets ([`Missing`]), or says that
//!   nothing was kept. That alone tells the requester what its peer is able to do, and from then on
//!   its requests have a [`Mark`].
//! - The mark is a token, a random number of the QP, and a toggle, which changes with each
//!   retransmission: a packet ahead of the expected one that was sent after the retransmission
//!   shows that the retransmitted packet was lost, too.
//! - The responder learns the token from a packet with the expected PSN. It keeps a packet ahead
//!   of that only if its token is the same.
//!
//! Responses, that is READ data and results of ATOMICs:
//!
//! - A READ that is repeated has a mark even if the peer is not known to keep packets. The
//!   responder learns the token from it as above, or if it is a duplicate with the key and address
//!   of the original, and from then on its responses have the token. So the requester keeps
//!   responses ahead of the expected one if they have its own token.
//! - It requests what is missing at once, by duplicate requests for a part of the data. Such a
//!   request has the AckReq bit, which means nothing else with these operations: nothing behind it
//!   is repeated, so the responder keeps what it has still to send.
//!
//! The token takes the place of the bits that an off-path attacker does not have to guess because
//! one of [`MAX_AHEAD`] PSNs is enough (`completer/validate.rs`). There are as many values of the
//! six bits as PSNs that are accepted: none and the token with the expected PSN, and the token with
//! each of [`MAX_AHEAD`] others. Once the token is known, a packet with the expected PSN and
//! another token is dropped.
//!
//! A peer that does not react to [`MAX_OFFERS`] NAKs or repeated READs with such bits does not know
//! what they mean, or cannot use them: from then on they are 0 in what is sent to it.
//!
//! While GSO batches are suspected to be damaged (`gso.rs`), new requests and responses have no
//! marks, so that nothing more is kept.

mod requests;
mod responses;

pub(super) use requests::KeptRequests;
pub(super) use responses::KeptResponses;

use crate::ids::Psn;
use crate::wire::packet::Packet;

/// The greatest distance of a packet that is kept from the expected one.
pub const MAX_AHEAD: u32 = 62;

/// How many NAKs, and how many READs, say that packets would be kept before the peer is known to
/// understand that. Some of them may be lost.
pub const MAX_OFFERS: u8 = 8;

/// The bit of the reserved bits that holds a toggle, in marks and in NAKs, and the others.
const TOGGLE: u8 = 0x40;
const VALUE: u8 = 0x3f;

/// The reserved bits with a value, which has six bits, and a toggle.
#[inline]
const fn join(value: u8, toggle: bool) -> u8 {
    match toggle {
        true => value | TOGGLE,
        false => value,
    }
}

/// Mark of a request in the reserved bits of its BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    token: u8,
    toggle: bool,
}

impl Mark {
    /// A mark with a token, which must not be 0; other bits than the lower six are ignored.
    #[inline]
    pub const fn new(token: u8, toggle: bool) -> Option<Self> {
        match token & VALUE {
            0 => None,
            token => Some(Self { token, toggle }),
        }
    }

    /// The mark in the reserved bits of a BTH; `None` if there is none.
    #[inline]
    pub const fn parse(resv7: u8) -> Option<Self> {
        Self::new(resv7, resv7 & TOGGLE != 0)
    }

    /// True if `other` has the same token.
    #[inline]
    pub(super) fn is_of_peer(self, other: Option<Self>) -> bool {
        other.is_some_and(|other| other.token == self.token)
    }

    /// The reserved bits of a BTH with this mark.
    #[inline]
    pub const fn emit(self) -> u8 {
        join(self.token, self.toggle)
    }
}

/// What a PSN sequence error NAK says about the missing packets in the reserved bits of its BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The peer keeps nothing.
    Unknown,
    /// Nothing was kept, but will be if requests are marked.
    All,
    /// Some packets; what follows them was kept.
    Packets {
        /// How many, from the PSN of the NAK on: 1 to [`MAX_AHEAD`].
        count: u32,
        /// The toggle of the request that showed it.
        toggle: bool,
    },
}

impl Missing {
    const ALL: u8 = VALUE;

    /// Reads the reserved bits of the BTH of a NAK.
    #[inline]
    pub fn parse(resv7: u8) -> Self {
        match resv7 & VALUE {
            0 => Self::Unknown,
            Self::ALL => Self::All,
            count => Self::Packets {
                count: count.into(),
                toggle: resv7 & TOGGLE != 0,
            },
        }
    }

    /// The reserved bits of the BTH of a NAK.
    #[inline]
    pub fn emit(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::All => Self::ALL,
            Self::Packets { count, toggle } => {
                let count = u8::try_from(count).unwrap_or(Self::ALL).min(Self::ALL);
                join(count, toggle)
            }
        }
    }
}

/// A packet that was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptPacket {
    /// The request with this PSN.
    Request(Psn),
    /// The response with this PSN.
    Response(Psn),
}

impl KeptPacket {
    /// Which packet this is.
    pub fn of(packet: &Packet<'_>) -> Self {
        let psn = packet.bth().psn;
        match packet.opcode().is_response() {
            true => Self::Response(psn),
            false => Self::Request(psn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bits() {
        for bits in 0..128 {
            assert_eq!(Mark::parse(bits).is_none(), bits & 0x3f == 0);
            assert_eq!(
                Mark::parse(bits).map_or(0, Mark::emit),
                bits & {
                    if bits & 0x3f == 0 {
                        0
                    } else {
                        0x7f
                    }
                }
            );
            let missing = Missing::parse(bits);
            match missing {
                Missing::Unknown => assert_eq!(bits & 0x3f, 0),
                Missing::All => assert_eq!(bits & 0x3f, 0x3f),
                Missing::Packets { count, .. } => assert!((1..=MAX_AHEAD).contains(&count)),
            }
            assert_eq!(Missing::parse(missing.emit()), missing);
        }
        assert_eq!(Mark::new(0, true), None);
        assert_eq!(Mark::new(0xc0, true), None);
        let far = Missing::Packets {
            count: 1 << 22,
            toggle: false,
        };
        assert_eq!(Missing::parse(far.emit()), Missing::All);
    }
}
