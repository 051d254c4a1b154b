// SPDX-License-Identifier: GPL-2.0
//! Address handles, looked up by number when a datagram is sent.

use crate::{
    device::{
        AhPath,
        DeviceCtx, //
    },
    limits::MAX_AH,
    verbs::pd::PdCtx, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::rdma::{
    ah::AddressHandle,
    av::AddressVector,
    udata::UserCall, //
};

/// An address handle (IBTA 11.2.2); its number leads to its [`AhPath`].
pub(crate) struct AhCtx {
    number: u32,
    pd: u64,
}

impl AhCtx {
    /// Returns the number of the handle, unique on the device and not 0.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

/// Creates the destination of handle `number`. `modify_ah` replaces it.
fn path_to(
    dev: &DeviceCtx,
    pd: u64,
    number: u32,
    av: AddressVector,
    flags: Flags,
) -> Result<Arc<AhPath>> {
    let flow = dev.flow_for(&av, DeviceCtx::datagram_port(&av, number), false)?;
    Ok(Arc::new(AhPath { pd, av, flow }, flags)?)
}

impl AddressHandle for AhCtx {
    type Device = DeviceCtx;

    fn create(
        dev: &Arc<DeviceCtx>,
        pd: &PdCtx,
        av: AddressVector,
        user: Option<UserCall<'_>>,
        flags: Flags,
    ) -> Result<Self> {
        let number = dev.ahs.reserve_lowest(1..=MAX_AH)?;
        let run = || {
            let pd = pd.number();
            let path = path_to(dev, pd, number, av, flags)?;
            dev.ahs.publish(number, path)?;
            if let Some(user) = user {
                // `struct rxe_create_ah_resp`: the number and a reserved word.
                let mut response = [0; 8];
                if let Some(to) = response.first_chunk_mut::<4>() {
                    *to = number.to_ne_bytes();
                }
                user.respond(&response)?;
            }
            Ok(Self { number, pd })
        };
        run().inspect_err(|_| {
            dev.ahs.remove(number);
        })
    }

    fn modify(&self, dev: &Arc<DeviceCtx>, av: AddressVector) -> Result {
        let path = path_to(dev, self.pd, self.number, av, GFP_ATOMIC)?;
        dev.ahs.replace(self.number, path)
    }

    fn query(&self, dev: &Arc<DeviceCtx>) -> Result<AddressVector> {
        Ok(dev.ahs.get(self.number).ok_or(EINVAL)?.av)
    }

    fn destroy(self, dev: &Arc<DeviceCtx>) {
        dev.ahs.remove(self.number);
    }
}
