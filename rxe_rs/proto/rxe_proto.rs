// SPDX-License-Identifier: GPL-2.0
//! RoCEv2 protocol engine of the `rxe_rs` driver: pure Rust over `core` and `zerocopy`.
//!
//! The same file is built twice: as an object of the kernel module by Kbuild and as an ordinary
//! library by cargo, where it is tested. It never allocates, never reads a clock and holds no
//! lock; all external state is an argument or behind the traits of
//! [`engine::backend`].
//!
//! Layers, lowest first: [`ids`] (number types), [`time`] (points in time) and [`mod@drop`] (drop
//! reasons), [`wire`] (bytes to values and back) and [`table`] (plain tables: P_Keys, regions),
//! [`check`] (admission of packets and memory accesses), [`engine`] (the queue pair itself),
//! [`abi`] (the rings shared with user space). A module imports from lower layers only.
#![cfg_attr(not(any(test, feature = "sim", MODULE)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// Tests may panic: that is how they fail.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::as_conversions
    )
)]

#[macro_use]
mod counter;

pub mod abi;
pub mod check;
pub mod drop;
pub mod engine;
pub mod ids;
#[cfg(feature = "sim")]
pub mod sim;
pub mod table;
pub mod time;
pub mod wire;
