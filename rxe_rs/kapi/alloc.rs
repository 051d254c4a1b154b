// SPDX-License-Identifier: GPL-2.0
//! Allocation: what the kernel crate's `alloc` lacks.

pub mod kvec;

use kernel::{
    alloc::Flags,
    prelude::*, //
};

/// `GFP_ATOMIC`, charged to the memory cgroup of the calling process, if there is one. Such a
/// charge does not fail; the next one that may sleep reclaims memory for it, or fails.
///
/// # Context
///
/// Any context.
#[inline]
pub fn gfp_atomic_account() -> Flags {
    GFP_ATOMIC | (GFP_KERNEL_ACCOUNT & !GFP_KERNEL)
}

/// `GFP_NOWAIT`, charged as [`gfp_atomic_account`]; the allocation fails if the charge exceeds the
/// limit of the cgroup. In a softirq nothing is charged.
///
/// # Context
///
/// Any context.
#[inline]
pub fn gfp_nowait_account() -> Flags {
    GFP_NOWAIT | (GFP_KERNEL_ACCOUNT & !GFP_KERNEL)
}
