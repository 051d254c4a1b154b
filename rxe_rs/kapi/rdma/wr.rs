// SPDX-License-Identifier: GPL-2.0
//! Work requests of kernel consumers.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! # Context
//!
//! Any context, within the verb that posts the requests.

use super::device::Device;
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A scatter/gather entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Start in the address space of the region.
    pub addr: u64,
    /// Length of the buffer in bytes, up to 2^32 - 1.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// Opcode of a send request; the numbers are those of `enum ib_wr_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // The names say it.
pub enum WrOpcode {
    RdmaWrite,
    RdmaWriteWithImm,
    Send,
    SendWithImm,
    RdmaRead,
    AtomicCmpAndSwp,
    AtomicFetchAndAdd,
    SendWithInv,
    LocalInv,
    RegMr,
    Flush,
    AtomicWrite,
    /// Anything else, to be refused.
    Other(u32),
}

/// Flag of [`SendWr::flags`]: wait for earlier READ and ATOMIC requests.
pub const SEND_FENCE: u32 = bindings::ib_send_flags_IB_SEND_FENCE as u32;
/// Flag of [`SendWr::flags`]: generate a completion on success.
pub const SEND_SIGNALED: u32 = bindings::ib_send_flags_IB_SEND_SIGNALED as u32;
/// Flag of [`SendWr::flags`]: raise a solicited event at the receiver.
pub const SEND_SOLICITED: u32 = bindings::ib_send_flags_IB_SEND_SOLICITED as u32;
/// Flag of [`SendWr::flags`]: the data is copied from kernel addresses when the request is posted.
pub const SEND_INLINE: u32 = bindings::ib_send_flags_IB_SEND_INLINE as u32;

/// Remote fields of RDMA requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaPart {
    /// Remote virtual address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Remote fields of ATOMIC requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicPart {
    /// Remote virtual address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value compared with, or added.
    pub compare_add: u64,
    /// Value that CMP_SWAP stores if the comparison succeeds.
    pub swap: u64,
}

/// Fields of registration requests.
pub struct RegPart<'a, D: Device> {
    /// The region.
    pub region: &'a Arc<D::Mr>,
    /// The new key.
    pub key: u32,
    /// `ACCESS_*` bits.
    pub access: u32,
    /// Address of the first byte as the list of pages gives it.
    pub iova: u64,
    /// Length of what the list of pages covers, in bytes.
    pub length: u64,
}

/// Fields of sends on UD and GSI queue pairs.
pub struct UdPart<'a, D: Device> {
    /// Address handle.
    pub ah: &'a D::Ah,
    /// Number of the destination QP; unchecked, 24 bits are valid.
    pub remote_qpn: u32,
    /// Q_Key.
    pub remote_qkey: u32,
    /// Index into the P_Key table (GSI only).
    pub pkey_index: u16,
}

/// A send request.
pub struct SendWr<'a, D: Device> {
    raw: &'a bindings::ib_send_wr,
    qp_type: bindings::ib_qp_type,
    _dev: PhantomData<D>,
}

impl<'a, D: Device> SendWr<'a, D> {
    /// The consumer's identifier.
    pub fn wr_id(&self) -> u64 {
        self.raw.__bindgen_anon_1.bindgen_union_field
    }

    /// What to do.
    pub fn opcode(&self) -> WrOpcode {
        match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => WrOpcode::RdmaWrite,
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => WrOpcode::RdmaWriteWithImm,
            bindings::ib_wr_opcode_IB_WR_SEND => WrOpcode::Send,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => WrOpcode::SendWithImm,
            bindings::ib_wr_opcode_IB_WR_RDMA_READ => WrOpcode::RdmaRead,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => WrOpcode::AtomicCmpAndSwp,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => WrOpcode::AtomicFetchAndAdd,
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => WrOpcode::SendWithInv,
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => WrOpcode::LocalInv,
            bindings::ib_wr_opcode_IB_WR_REG_MR => WrOpcode::RegMr,
            bindings::ib_wr_opcode_IB_WR_FLUSH => WrOpcode::Flush,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_WRITE => WrOpcode::AtomicWrite,
            other => WrOpcode::Other(other),
        }
    }

    /// `SEND_*` bits.
    pub fn flags(&self) -> u32 {
        self.raw.send_flags as u32
    }

    /// Immediate data in wire order; meaningful for opcodes that carry it.
    pub fn imm(&self) -> [u8; 4] {
        self.raw.ex.bindgen_union_field.to_ne_bytes()
    }

    /// Key to invalidate; meaningful for opcodes that carry it.
    pub fn invalidate_rkey(&self) -> u32 {
        self.raw.ex.bindgen_union_field
    }

    /// The scatter/gather list. With [`SEND_INLINE`] the addresses are kernel memory, see
    /// [`copy_inline`](Self::copy_inline).
    pub fn sges(&self) -> impl ExactSizeIterator<Item = Sge> + 'a {
        // SAFETY: Kernel consumers pass well-formed requests that live during the call.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Copies the data of an inline request into `dst` and returns its length.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request is not inline or its data is longer than `dst`.
    pub fn copy_inline(&self, dst: &mut [u8]) -> Result<usize> {
        if self.flags() & SEND_INLINE == 0 {
            return Err(EINVAL);
        }
        let mut done = 0usize;
        for sge in self.sges() {
            let len = sge.length as usize;
            let end = done.checked_add(len).ok_or(EINVAL)?;
            let to = dst.get_mut(done..end).ok_or(EINVAL)?;
            // SAFETY: An inline request of a kernel consumer names readable kernel memory, and
            // `to` has the same length.
            unsafe {
                core::ptr::copy_nonoverlapping(sge.addr as usize as *const u8, to.as_mut_ptr(), len)
            };
            done = end;
        }
        Ok(done)
    }

    /// The remote fields of an RDMA request.
    pub fn rdma(&self) -> Option<RdmaPart> {
        if !matches!(
            self.opcode(),
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm | WrOpcode::RdmaRead
        ) {
            return None;
        }
        // SAFETY: Requests with these opcodes are embedded in an `ib_rdma_wr`.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_rdma_wr>() };
        Some(RdmaPart {
            remote_addr: wr.remote_addr,
            rkey: wr.rkey,
        })
    }

    /// The remote fields of an ATOMIC request.
    pub fn atomic(&self) -> Option<AtomicPart> {
        if !matches!(
            self.opcode(),
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
        ) {
            return None;
        }
        // SAFETY: Requests with these opcodes are embedded in an `ib_atomic_wr`.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_atomic_wr>() };
        Some(AtomicPart {
            remote_addr: wr.remote_addr,
            rkey: wr.rkey,
            compare_add: wr.compare_add,
            swap: wr.swap,
        })
    }

    /// The fields of a registration request.
    pub fn reg(&self) -> Option<RegPart<'a, D>> {
        if self.opcode() != WrOpcode::RegMr {
            return None;
        }
        // SAFETY: Requests with this opcode are embedded in an `ib_reg_wr`.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_reg_wr>() };
        if wr.mr.is_null() {
            return None;
        }
        // SAFETY: A live region of this device, for the duration of the call.
        let (region, mr) = unsafe { (super::mr::MrOps::<D>::ctx(wr.mr), &*wr.mr) };
        Some(RegPart {
            region,
            key: wr.key,
            access: wr.access as u32,
            iova: mr.iova,
            length: mr.length,
        })
    }

    /// The fields of a send on a UD or GSI queue pair.
    pub fn ud(&self) -> Option<UdPart<'a, D>> {
        if !matches!(
            self.qp_type,
            bindings::ib_qp_type_IB_QPT_UD | bindings::ib_qp_type_IB_QPT_GSI
        ) || !matches!(self.opcode(), WrOpcode::Send | WrOpcode::SendWithImm)
        {
            return None;
        }
        // SAFETY: Sends to these queue pairs are embedded in an `ib_ud_wr`.
        let wr = unsafe { &*core::ptr::from_ref(self.raw).cast::<bindings::ib_ud_wr>() };
        if wr.ah.is_null() {
            return None;
        }
        Some(UdPart {
            // SAFETY: A live address handle of this device, for the duration of the call.
            ah: unsafe { super::ah::AhOps::<D>::ctx(wr.ah) },
            remote_qpn: wr.remote_qpn,
            remote_qkey: wr.remote_qkey,
            pkey_index: wr.pkey_index,
        })
    }
}

/// A chain of send requests being posted.
pub struct SendChain<'a, D: Device> {
    next: Option<&'a bindings::ib_send_wr>,
    qp_type: bindings::ib_qp_type,
    _dev: PhantomData<D>,
}

impl<'a, D: Device> SendChain<'a, D> {
    /// # Safety
    ///
    /// `wr` is null or the head of a well-formed chain that lives for `'a`, posted to a QP of
    /// type `qp_type`.
    pub(crate) unsafe fn new(
        wr: *const bindings::ib_send_wr,
        qp_type: bindings::ib_qp_type,
    ) -> Self {
        // SAFETY: By the caller's guarantee.
        let next = unsafe { wr.as_ref() };
        Self {
            next,
            qp_type,
            _dev: PhantomData,
        }
    }

    /// The request to handle now.
    pub fn current(&self) -> Option<SendWr<'a, D>> {
        let raw = self.next?;
        Some(SendWr {
            raw,
            qp_type: self.qp_type,
            _dev: PhantomData,
        })
    }

    /// The current request is taken.
    pub fn advance(&mut self) {
        if let Some(raw) = self.next {
            // SAFETY: Links of a well-formed chain are null or valid.
            self.next = unsafe { raw.next.as_ref() };
        }
    }

    pub(crate) fn as_ptr(&self) -> *const bindings::ib_send_wr {
        self.next.map_or(core::ptr::null(), core::ptr::from_ref)
    }
}

/// A receive request.
pub struct RecvWr<'a> {
    raw: &'a bindings::ib_recv_wr,
}

impl<'a> RecvWr<'a> {
    /// The consumer's identifier.
    pub fn wr_id(&self) -> u64 {
        self.raw.__bindgen_anon_1.bindgen_union_field
    }

    /// The scatter list.
    pub fn sges(&self) -> impl ExactSizeIterator<Item = Sge> + 'a {
        // SAFETY: Kernel consumers pass well-formed requests that live during the call.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }
}

/// A chain of receive requests being posted.
pub struct RecvChain<'a> {
    next: Option<&'a bindings::ib_recv_wr>,
}

impl<'a> RecvChain<'a> {
    /// # Safety
    ///
    /// `wr` is null or the head of a well-formed chain that lives for `'a`.
    pub(crate) unsafe fn new(wr: *const bindings::ib_recv_wr) -> Self {
        // SAFETY: By the caller's guarantee.
        let next = unsafe { wr.as_ref() };
        Self { next }
    }

    /// The request to handle now.
    pub fn current(&self) -> Option<RecvWr<'a>> {
        self.next.map(|raw| RecvWr { raw })
    }

    /// The current request is taken.
    pub fn advance(&mut self) {
        if let Some(raw) = self.next {
            // SAFETY: Links of a well-formed chain are null or valid.
            self.next = unsafe { raw.next.as_ref() };
        }
    }

    pub(crate) fn as_ptr(&self) -> *const bindings::ib_recv_wr {
        self.next.map_or(core::ptr::null(), core::ptr::from_ref)
    }
}

/// Iterates over a C scatter/gather list, which may be misaligned: the iSER initiator has those of
/// its receives in packed structures.
///
/// # Safety
///
/// `list` holds `count` entries for `'a`, or `count` is not positive.
unsafe fn sges<'a>(
    list: *const bindings::ib_sge,
    count: core::ffi::c_int,
) -> impl ExactSizeIterator<Item = Sge> + 'a {
    let count = if list.is_null() { 0 } else { count };
    (0..usize::try_from(count).unwrap_or(0)).map(move |n| {
        // SAFETY: By the caller's guarantee; no alignment is required.
        let sge = unsafe { list.add(n).read_unaligned() };
        Sge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }
    })
}
