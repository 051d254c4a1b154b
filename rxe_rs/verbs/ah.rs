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
use rxe_proto::abi::VectorKey;

/// Bytes of `struct rxe_create_ah_resp`: the number and a reserved word.
const RESPONSE_LEN: usize = 8;

/// An address handle (IBTA 11.2.2); its number leads to its [`AhPath`].
pub(crate) struct AhCtx {
    number: u32,
    /// The digest of its vector, if requests name it by that.
    vector: Option<u32>,
    pd: u64,
}

impl AhCtx {
    /// Returns the number of the handle, unique on the device and not 0.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

fn key_of(av: &AddressVector) -> VectorKey {
    VectorKey {
        dgid: av.dgid,
        flow_label: av.flow_label,
        sgid_index: av.sgid_index,
        traffic_class: av.traffic_class,
    }
}

/// Creates the destination of a handle. `modify_ah` replaces it.
fn path_to(dev: &DeviceCtx, pd: u64, av: AddressVector, flags: Flags) -> Result<Arc<AhPath>> {
    let flow = dev.flow_for(&av, DeviceCtx::datagram_port(&av), false)?;
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
        let pd = pd.number();
        let path = path_to(dev, pd, av, flags)?;
        let number = dev.ahs.insert_lowest(1..=MAX_AH, path.clone())?;
        let answer = || -> Result<Option<u32>> {
            match user {
                Some(user) if user.out_len() < RESPONSE_LEN => {
                    let key = key_of(&av);
                    dev.vectors.add(pd, key, &path.flow)?;
                    Ok(Some(key.digest()))
                }
                Some(user) => {
                    let mut response = [0; RESPONSE_LEN];
                    if let Some(to) = response.first_chunk_mut::<4>() {
                        *to = number.to_ne_bytes();
                    }
                    user.respond(&response)?;
                    Ok(None)
                }
                None => Ok(None),
            }
        };
        let vector = answer().inspect_err(|_| {
            dev.ahs.remove(number);
        })?;
        Ok(Self { number, vector, pd })
    }

    fn modify(&self, dev: &Arc<DeviceCtx>, av: AddressVector) -> Result {
        let path = path_to(dev, self.pd, av, GFP_ATOMIC)?;
        dev.ahs.replace(self.number, path)
    }

    fn query(&self, dev: &Arc<DeviceCtx>) -> Result<AddressVector> {
        Ok(dev.ahs.get(self.number).ok_or(EINVAL)?.av)
    }

    fn destroy(self, dev: &Arc<DeviceCtx>) {
        if let Some(digest) = self.vector {
            dev.vectors.remove(self.pd, digest);
        }
        dev.ahs.remove(self.number);
    }
}
