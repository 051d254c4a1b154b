// SPDX-License-Identifier: GPL-2.0
//! `kernel::sync`.

pub mod atomic;
pub mod rcu;

pub use crate::backend::Arc;
