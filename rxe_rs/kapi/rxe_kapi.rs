// SPDX-License-Identifier: GPL-2.0
//! Kernel abstractions of the `rxe_rs` driver: the only unsafe Rust in the module.
//!
//! Written as if for `rust/kernel`: safe wrappers of the RDMA core ([`rdma`]), of pinned and
//! shared memory ([`mem`]) and of what the network and locking parts of the kernel crate lack.
#![deny(unsafe_op_in_unsafe_fn)]

/// Prefix of the log lines of this crate.
const __LOG_PREFIX: &[u8] = b"rxe_rs\0";

pub mod alloc;
mod bindings;
pub mod crc;
pub mod error;
#[cfg(CONFIG_KUNIT = "y")]
mod kunit;
pub mod layout;
pub mod mem;
pub mod net;
pub mod prefetch;
pub mod rand;
pub mod rdma;
pub mod series;
pub mod sync;
pub mod time;
pub mod work;
