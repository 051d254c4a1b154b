// SPDX-License-Identifier: GPL-2.0
//! Completions for kernel consumers.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    av::Network,
    qp::QpToken, //
};
use crate::bindings;
use core::ffi::c_int;

/// What a completion carries besides its lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcExtra {
    /// Nothing.
    None,
    /// Immediate data in wire order.
    Imm([u8; 4]),
    /// The local key that was invalidated.
    Invalidated(u32),
}

/// A completion for a kernel consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wc {
    /// The consumer's identifier.
    pub wr_id: u64,
    /// `enum ib_wc_status`.
    pub status: u32,
    /// `enum ib_wc_opcode`; meaningful on success.
    pub opcode: u32,
    /// Number of bytes moved; of a receive completion the length of the message.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: WcExtra,
    /// The QP.
    pub qp: QpToken,
    /// QP number of the sender.
    pub src_qp: u32,
    /// Index of the P_Key (GSI).
    pub pkey_index: u16,
    /// Set if the network header stands in front of the data.
    pub grh: Option<Network>,
    /// Ethernet address of the sender, if known (GSI).
    pub smac: Option<[u8; 6]>,
    /// VLAN of the packet, if it had one (GSI).
    pub vlan: Option<u16>,
}

/// Receives the completions of [`CompletionQueue::poll`](super::cq::CompletionQueue::poll).
///
/// # Context
///
/// Any context, within [`CompletionQueue::poll`](super::cq::CompletionQueue::poll).
pub struct WcSink<'a> {
    pub(super) entries: core::slice::IterMut<'a, core::mem::MaybeUninit<bindings::ib_wc>>,
    pub(super) filled: c_int,
}

impl WcSink<'_> {
    /// Returns true if it is full.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.entries.len() == 0
    }

    /// Adds a completion; returns false if it is full.
    #[inline]
    pub fn push(&mut self, wc: &Wc) -> bool {
        let Some(to) = self.entries.next() else {
            return false;
        };
        let mut raw: bindings::ib_wc = pin_init::zeroed();
        raw.__bindgen_anon_1.bindgen_union_field = wc.wr_id;
        raw.status = wc.status;
        raw.opcode = wc.opcode;
        raw.byte_len = wc.byte_len;
        raw.qp = wc.qp.0;
        raw.src_qp = wc.src_qp;
        raw.pkey_index = wc.pkey_index;
        raw.port_num = 1;
        let mut flags = 0;
        match wc.extra {
            WcExtra::None => {}
            WcExtra::Imm(imm) => {
                flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM;
                raw.ex.bindgen_union_field = u32::from_ne_bytes(imm);
            }
            WcExtra::Invalidated(key) => {
                flags |= bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE;
                raw.ex.bindgen_union_field = key;
            }
        }
        if let Some(network) = wc.grh {
            flags |=
                bindings::ib_wc_flags_IB_WC_GRH | bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE;
            raw.network_hdr_type = match network {
                Network::V4 => bindings::rdma_network_type_RDMA_NETWORK_IPV4 as u8,
                Network::V6 => bindings::rdma_network_type_RDMA_NETWORK_IPV6 as u8,
            };
        }
        if let Some(smac) = wc.smac {
            flags |= bindings::ib_wc_flags_IB_WC_WITH_SMAC;
            raw.smac = smac;
        }
        raw.vlan_id = 0xffff;
        if let Some(vlan) = wc.vlan {
            flags |= bindings::ib_wc_flags_IB_WC_WITH_VLAN;
            raw.vlan_id = vlan;
        }
        raw.wc_flags = flags as c_int;
        to.write(raw);
        self.filled += 1;
        true
    }
}
