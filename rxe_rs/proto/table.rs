// SPDX-License-Identifier: GPL-2.0
//! Plain rows: partition keys, memory regions, how keys change, numbers not to be used again yet. No locks, no pointers.

pub mod keygen;
pub mod pkeys;
pub mod quarantine;
pub mod region;

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
