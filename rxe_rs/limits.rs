// SPDX-License-Identifier: GPL-2.0
//! Limits that the device advertises (`ib_device_attr`, `ib_port_attr`) and, unless a limit says
//! otherwise, enforces.

use rxe_kapi::{
    mem::odp::USER_END,
    rdma::attr::OnDemand, //
};

/// Most queue pairs, and most completion queues, of a device. Not enforced: memory limits them, and
/// all devices share the 24-bit numbers of queue pairs.
pub(crate) const MAX_QUEUES: u32 = 1 << 20;

/// Most outstanding requests of a send queue or of a receive queue: a power of two less the entry
/// of a ring that stays empty, so that no queue is granted more than may be requested.
pub(crate) const MAX_WR: u32 = (1 << 15) - 1;

/// Most entries of a scatter/gather list, of sends and of receives.
pub(crate) const MAX_SGE: usize = 32;

/// Most bytes of inline data.
pub(crate) const MAX_INLINE: u32 = 512;

/// Most CQEs of a CQ: as many as `rdma_rxe` offers, less one for the entry that an old librxe
/// leaves unused; 128 MiB of the process's memory. ofi_rxm of libfabric requests more than
/// 2^18 - 2.
pub(crate) const MAX_CQE: u32 = (1 << 20) - 2;

/// Most shared receive queues of a device.
pub(crate) const MAX_SRQ: u32 = 1 << 20;

/// Most outstanding requests of a shared receive queue.
pub(crate) const MAX_SRQ_WR: u32 = (1 << 16) - 1;

/// Most protection domains of a device.
pub(crate) const MAX_PD: u32 = 1 << 20;

/// Most address handles of a device. User space gets the number, which must not be 0.
pub(crate) const MAX_AH: u32 = 1 << 20;

/// Most memory regions of a device: 24 bits of their keys distinguish them.
pub(crate) const MAX_MR: u32 = 0xff_ffff;

/// Most memory windows of a device; they share the table of regions.
pub(crate) const MAX_MW: u32 = MAX_MR;

/// Largest region in bytes: all addresses of a process.
pub(crate) const MAX_MR_SIZE: u64 = USER_END;

/// Most pages of a fast registration (`REG_MR`): 64 MiB of the smallest.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 1 << 14;

/// Most multicast groups of a device that have members.
pub(crate) const MAX_GROUPS: u32 = 8192;

/// Most queue pairs in a multicast group: the indices of the table per hash value.
pub(crate) const MAX_MEMBERS: u32 = 256;

/// Most memberships of multicast groups of a device: the entries of the table.
pub(crate) const MAX_ATTACHED: u32 = 1 << 16;

/// Entries of the GID table: an address vector has a one-byte index.
pub(crate) const GID_TABLE_LEN: u32 = 256;

pub(crate) use rxe_proto::engine::wr::MAX_MESSAGE;

/// Operations that may use memory regions with on-demand paging: all that access memory, except the
/// frames of raw packet queue pairs.
pub(crate) const ON_DEMAND: OnDemand = OnDemand {
    rc: OnDemand::SEND
        | OnDemand::RECV
        | OnDemand::WRITE
        | OnDemand::READ
        | OnDemand::ATOMIC
        | OnDemand::SRQ_RECV
        | OnDemand::FLUSH
        | OnDemand::ATOMIC_WRITE,
    uc: OnDemand::SEND | OnDemand::RECV | OnDemand::WRITE | OnDemand::SRQ_RECV,
    ud: OnDemand::SEND | OnDemand::RECV | OnDemand::SRQ_RECV,
};
