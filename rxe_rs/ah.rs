// SPDX-License-Identifier: GPL-2.0
//! Address handles, found by number when a datagram is sent.

use crate::{
    device::DeviceCtx,
    pd::PdCtx, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        Arc,
        UniqueArc, //
    },
};
use rxe_kapi::{
    net::flow::Flow,
    rdma::{
        ah::AddressHandle,
        av::AddressVector,
        udata::UserCall, //
    },
};

/// Most handles of a device. User space gets the number, which must not be 0.
pub(crate) const MAX_AH: u32 = 1 << 20;

/// An address handle.
pub(crate) struct AhCtx {
    number: u32,
    pd: u32,
    av: AddressVector,
    flow: Option<Arc<Flow>>,
}

impl AhCtx {
    /// Number of the handle, unique on the device and not 0.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Number of the protection domain.
    #[inline]
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// The path its datagrams take.
    #[inline]
    pub(crate) fn flow(&self) -> Option<&Arc<Flow>> {
        self.flow.as_ref()
    }
}

impl AddressHandle for AhCtx {
    type Device = DeviceCtx;

    fn create(
        dev: &Arc<DeviceCtx>,
        pd: &Arc<PdCtx>,
        av: AddressVector,
        user: Option<UserCall<'_>>,
        flags: Flags,
    ) -> Result<Arc<Self>> {
        let mut ctx = UniqueArc::new(
            Self {
                number: 0,
                pd: pd.number(),
                av,
                flow: None,
            },
            flags,
        )?;
        let number = dev.ahs.reserve_random(1..=MAX_AH)?;
        ctx.number = number;
        match dev.flow_for(&av, DeviceCtx::datagram_port(&av, number)) {
            Ok(flow) => ctx.flow = Some(flow),
            Err(e) => {
                dev.ahs.remove(number);
                return Err(e);
            }
        }
        let ctx: Arc<Self> = ctx.into();
        let run = || {
            dev.ahs.publish(number, ctx.clone())?;
            if let Some(user) = user {
                // `struct rxe_create_ah_resp`: the number and a reserved word.
                let mut response = [0; 8];
                if let Some(to) = response.first_chunk_mut::<4>() {
                    *to = number.to_ne_bytes();
                }
                user.respond(&response)?;
            }
            Ok(())
        };
        match run() {
            Ok(()) => Ok(ctx),
            Err(e) => {
                dev.ahs.remove(number);
                Err(e)
            }
        }
    }

    fn query(&self) -> AddressVector {
        self.av
    }

    fn destroy(self: &Arc<Self>, dev: &Arc<DeviceCtx>) {
        dev.ahs.remove(self.number);
    }
}
