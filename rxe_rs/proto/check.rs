// SPDX-License-Identifier: GPL-2.0
//! Admission checks of packets and memory accesses: pure comparisons.

pub mod admit;
pub mod pkey;
pub mod qkey;
pub mod rkey;
pub mod window;

#[cfg(test)]
#[path = "tests/check.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/admit.rs"]
mod admit_tests;
