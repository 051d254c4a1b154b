// SPDX-License-Identifier: GPL-2.0
//! Protection domains: a number that memory keys, queue pairs and address handles must share.

use crate::device::DeviceCtx;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::rdma::pd::ProtectionDomain;

/// A protection domain (IBTA 10.2.3).
pub(crate) struct PdCtx {
    number: u64,
}

impl PdCtx {
    /// Returns the number, unique on the device and not 0.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl ProtectionDomain for PdCtx {
    type Device = DeviceCtx;

    fn create(dev: &Arc<DeviceCtx>) -> Result<Self> {
        let number = dev.pds.get()?;
        Ok(Self { number })
    }

    fn destroy(self, dev: &Arc<DeviceCtx>) {
        dev.pds.put();
    }
}
