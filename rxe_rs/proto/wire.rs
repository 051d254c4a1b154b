// SPDX-License-Identifier: GPL-2.0
//! Wire formats: parsing and emission of packets, independent of QPs.
//!
//! One header per file. On the wire everything is big-endian but the ICRC.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod bytes;
pub mod deth;
pub mod feth;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod opcode;
pub mod packet;
pub mod payload;
pub mod pma;
pub mod pretty;
pub mod reference;
pub mod repr;
pub mod reth;
pub mod rnr;
pub mod sport;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use opcode::{HeaderSet, Opcode, Operation, Transport};
pub use packet::Packet;
pub use payload::Payload;
pub use repr::Headers;
pub use reth::Reth;

#[cfg(test)]
#[path = "tests/wire/mod.rs"]
mod tests;
