// SPDX-License-Identifier: GPL-2.0
//! Counters of the port: their names, and memory for their values.

use super::{
    ctx,
    Device,
    Ops,
    PORT, //
};
use crate::bindings;
use kernel::{
    ffi::c_int,
    prelude::*, //
};

/// How long the core may show cached counters, in milliseconds.
const STATS_LIFESPAN_MS: usize = 10;

/// Most counters of a device.
const MAX_COUNTERS: usize = 96;

/// Space for the name of a counter and its terminator.
const MAX_NAME: usize = 48;

const EMPTY_DESC: bindings::rdma_stat_desc = bindings::rdma_stat_desc {
    name: core::ptr::null(),
    flags: 0,
    priv_: core::ptr::null(),
};

impl<D: Device> Ops<D> {
    /// The names with their terminators.
    const NAMES: &'static [[u8; MAX_NAME]; MAX_COUNTERS] = &{
        assert!(D::COUNTERS.len() <= MAX_COUNTERS);
        let mut names = [[0; MAX_NAME]; MAX_COUNTERS];
        let mut i = 0;
        while i < D::COUNTERS.len() {
            let name = D::COUNTERS[i].as_bytes();
            assert!(name.len() < MAX_NAME);
            let mut k = 0;
            while k < name.len() {
                names[i][k] = name[k];
                k += 1;
            }
            i += 1;
        }
        names
    };

    const DESCS: &'static [bindings::rdma_stat_desc; MAX_COUNTERS] = &{
        let mut descs = [EMPTY_DESC; MAX_COUNTERS];
        let mut i = 0;
        while i < D::COUNTERS.len() {
            descs[i].name = Self::NAMES[i].as_ptr().cast();
            i += 1;
        }
        descs
    };

    /// # Safety
    ///
    /// Called by the core with a live device.
    pub(super) unsafe extern "C" fn alloc_hw_port_stats_callback(
        _dev: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        Self::new_stats()
    }

    /// Space for the values of all counters; null without memory.
    pub(crate) fn new_stats() -> *mut bindings::rdma_hw_stats {
        // SAFETY: The descriptions are static and at least as many as stated.
        unsafe {
            bindings::rdma_alloc_hw_stats_struct(
                Self::DESCS.as_ptr(),
                D::COUNTERS.len() as c_int,
                STATS_LIFESPAN_MS,
            )
        }
    }

    /// # Safety
    ///
    /// Called by the core with a live device and its statistics, which are locked.
    pub(super) unsafe extern "C" fn get_hw_stats_callback(
        dev: *mut bindings::ib_device,
        stats: *mut bindings::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        if port != PORT || stats.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: The core passes a live device; the values were allocated for this many
        // counters, and the core holds their lock.
        let (ctx, values) = unsafe {
            let values = bindings::rxe_rs_hw_stats_values(stats);
            (
                ctx::<D>(dev),
                core::slice::from_raw_parts_mut(values, D::COUNTERS.len()),
            )
        };
        ctx.counters(values);
        D::COUNTERS.len() as c_int
    }
}
