// SPDX-License-Identifier: GPL-2.0
//! The rings shared with user space: layout of `rdma_user_rxe.h`, validation of its content.
//!
//! The content of a ring is untrusted, and the program may modify it at any time. The driver copies
//! an element once; the functions here read the copy only. They are defined for all inputs: the
//! result is a work request that is safe to execute, or one that completes in error in order.
//!
//! All integers are in native byte order, except immediate data.

mod cqe;
pub mod layout;
mod recv;
mod send;
mod vector;

pub use cqe::encode_cqe;
pub use recv::{decode_recv, BadRecv, RecvEntry};
pub use send::{decode_send, SendEntry, SendLimits, MAX_MESSAGE};
pub use vector::VectorKey;

#[cfg(test)]
#[path = "tests/abi.rs"]
mod tests;
