// SPDX-License-Identifier: GPL-2.0
//! Mutual exclusion with the module `rdma_rxe`.
//!
//! The core identifies drivers by their driver identifier only, and the provider library determines
//! that identifier. Two modules with the same one would treat each other's devices as their own.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// The other module cannot be loaded until this is dropped.
pub struct Exclusion(());

impl Exclusion {
    /// Checks that the module `rdma_rxe` is not loaded, and prevents it from being loaded.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is loaded, `EOPNOTSUPP` if it is built into this kernel; the log says which.
    pub fn new() -> Result<Self> {
        // SAFETY: Called once per module load, from its initialization.
        to_result(unsafe { bindings::rxe_rs_exclusion_start() })?;
        Ok(Self(()))
    }

    /// Checks again that the module `rdma_rxe` is not loaded: if both modules were loaded at the
    /// same moment, [`new`](Self::new) may have missed it.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is loaded; the log says so.
    pub fn check() -> Result {
        // SAFETY: The function has no requirements but its context.
        to_result(unsafe { bindings::rxe_rs_exclusion_check() })
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        // SAFETY: Started in `new`.
        unsafe { bindings::rxe_rs_exclusion_stop() };
    }
}
