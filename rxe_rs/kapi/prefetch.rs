// SPDX-License-Identifier: GPL-2.0
//! Prefetching of objects that are in no cache of the CPU.
//!
//! C header: [`include/linux/prefetch.h`](srctree/include/linux/prefetch.h)

use crate::bindings;

/// Starts to load all of `value` into the caches, without waiting for it. Its cache lines arrive at
/// the same time, while each access to one that is missing takes as long as a memory access.
///
/// # Context
///
/// Any context.
#[inline]
pub fn prefetch<T>(value: &T) {
    // SAFETY: A prefetch has no effect but on caches.
    unsafe { bindings::rxe_rs_prefetch(core::ptr::from_ref(value).cast(), size_of::<T>()) };
}
