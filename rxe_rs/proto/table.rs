// SPDX-License-Identifier: GPL-2.0
//! Plain rows: partition keys, memory regions, and how keys are made. No locks, no pointers.

pub mod keygen;
pub mod pkeys;
pub mod region;

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
