// SPDX-License-Identifier: GPL-2.0
//! The rings shared with user space: layout of `rdma_user_rxe.h` and what the driver believes of
//! it.
//!
//! Everything in a ring was written by a program that may be wrong or hostile, and may still be
//! writing. The driver copies an element once; the functions here look at the copy only. They are
//! total: whatever the bytes are, the result is a request that is safe to execute, or one that
//! completes with an error in its turn.
//!
//! All integers are of the machine's byte order, except immediate data.

mod cqe;
pub mod layout;
mod recv;
mod send;

pub use cqe::encode_cqe;
pub use recv::{decode_recv, BadRecv, RecvEntry};
pub use send::{decode_send, SendEntry, SendLimits, MAX_MESSAGE};

#[cfg(test)]
#[path = "tests/abi.rs"]
mod tests;
