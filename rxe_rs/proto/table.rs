// SPDX-License-Identifier: GPL-2.0
//! Plain tables: P_Keys, memory regions and their segments, QP numbers in quarantine.
//! No locks, no pointers.

pub mod pkeys;
pub mod quarantine;
pub mod region;
pub mod segments;

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
