// SPDX-License-Identifier: GPL-2.0
//! Keeps a module out that cannot share the kernel with this one.
//!
//! The core tells drivers apart by their driver id alone, and the provider library fixes that id.
//! Two modules with the same one would take each other's devices for their own.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// While it lives, the other module cannot be loaded.
pub struct Exclusion(());

impl Exclusion {
    /// Makes sure that the module `rdma_rxe` is not there and does not come.
    ///
    /// # Context
    ///
    /// Process context; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is loaded, `EOPNOTSUPP` if it is built into this kernel; the log says which.
    pub fn new() -> Result<Self> {
        // SAFETY: Called once per module load, from its initialisation.
        to_result(unsafe { bindings::rxe_rs_exclusion_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        // SAFETY: Started in `new`.
        unsafe { bindings::rxe_rs_exclusion_stop() };
    }
}
