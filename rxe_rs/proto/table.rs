// SPDX-License-Identifier: GPL-2.0
//! Plain rows: partition keys, memory regions and their segments, how keys change, numbers not to be used again yet. No locks, no
//! pointers.

pub mod keygen;
pub mod pkeys;
pub mod quarantine;
pub mod region;
pub mod segments;

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
