// SPDX-License-Identifier: GPL-2.0
//! The RDMA core, for drivers of RoCEv2 devices with one port.
//!
//! A driver implements [`Device`](device::Device) and one trait per kind of object. The core
//! allocates the objects; each holds an `Arc` of the driver's context (see `object.rs`), so that
//! users in other contexts can keep what they work on alive.
//!
//! Not covered: XRC domains, receive work queues, flows, device memory and DMA handles.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

pub mod advise;
pub mod ah;
pub mod attr;
pub mod av;
pub mod counter;
pub mod cq;
mod deferred;
pub mod detail;
pub mod device;
pub mod event;
pub mod exclusion;
pub mod link;
pub mod mad;
pub mod mr;
pub mod mw;
mod object;
mod operation;
pub mod pd;
pub mod qp;
pub mod segment;
pub mod srq;
pub mod udata;
pub mod wc;
pub mod wr;
