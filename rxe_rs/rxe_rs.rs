// SPDX-License-Identifier: GPL-2.0
//! RoCEv2 RDMA device on top of any network device, compatible with stock `librxe`.
#![forbid(unsafe_code)]

use kernel::prelude::*;

module! {
    type: RxeRs,
    name: "rxe_rs",
    authors: ["The rxe_rs developers"],
    description: "Software RDMA over Converged Ethernet v2",
    license: "GPL",
    alias: ["rdma-link-rxe_rs"],
}

/// The loaded module.
struct RxeRs;

impl kernel::Module for RxeRs {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        rxe_kapi::layout::check()?;
        Ok(Self)
    }
}
