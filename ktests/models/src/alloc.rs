// SPDX-License-Identifier: GPL-2.0
//! Replacement for `rxe_rs/kapi/alloc.rs`.

use crate::prelude::Flags;

/// Allocation flags for any context.
pub fn gfp_atomic_account() -> Flags {
    Flags
}
