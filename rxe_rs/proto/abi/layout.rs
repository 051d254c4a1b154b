// SPDX-License-Identifier: GPL-2.0
//! Sizes and offsets of the structures in `include/uapi/rdma/rdma_user_rxe.h`.

use zerocopy::byteorder::native_endian::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of a queue, `struct rxe_queue_buf`; elements follow it.
pub mod queue {
    /// Offset of the binary logarithm of the element size, 32 bits.
    pub const LOG2_ELEM_SIZE: usize = 0;
    /// Offset of the index mask, 32 bits: number of elements, a power of two, less one.
    pub const INDEX_MASK: usize = 4;
    /// Offset of the producer's index, 32 bits.
    pub const PRODUCER_INDEX: usize = 128;
    /// Offset of the consumer's index, 32 bits.
    pub const CONSUMER_INDEX: usize = 256;
    /// Bytes of the header.
    pub const HEADER_LEN: usize = 384;
}

/// Bytes of a send request before its scatter/gather list or inline data.
pub const SEND_WQE_LEN: usize = size_of::<RingSendWqe>();
/// Bytes of a receive request before its scatter list.
pub const RECV_WQE_LEN: usize = size_of::<RingRecvWqe>();
/// Bytes of a scatter/gather entry.
pub const SGE_LEN: usize = size_of::<Sge>();
/// Bytes of a completion, `struct ib_uverbs_wc`.
pub const CQE_LEN: usize = 48;

/// Scatter/gather entry, `struct rxe_sge`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: U64,
    /// Length of the buffer in bytes, up to 2^32 - 1.
    pub length: U32,
    /// Key of the region.
    pub lkey: U32,
}

/// Buffer part of a request, `struct rxe_dma_info`; fields not listed are private
/// progress state of `rdma_rxe` and unused here.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaInfo {
    /// Bytes of the message as computed by librxe; used for inline data only.
    pub length: U32,
    unused: [U32; 2],
    /// Scatter/gather entries that follow, unless the data is inline.
    pub num_sge: U32,
    unused_too: [U32; 2],
}

/// Send request, `struct rxe_send_wqe`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingSendWqe {
    /// The consumer's identifier.
    pub wr_id: U64,
    reserved: U32,
    /// `enum ib_wr_opcode`.
    pub opcode: U32,
    /// `enum ib_send_flags`.
    pub send_flags: U32,
    /// Immediate data in wire order, or the key to invalidate.
    pub ex: [u8; 4],
    /// Union of the fields by operation.
    pub wr: [u8; 120],
    scratch: [u8; 40],
    /// Buffer.
    pub dma: DmaInfo,
}

/// Fields of WRITE and READ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RdmaWr {
    /// Address at the responder.
    pub remote_addr: U64,
    /// Key of the region or window.
    pub rkey: U32,
}

/// Fields of the atomic operations.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicWr {
    /// Address at the responder.
    pub remote_addr: U64,
    /// Compare value or addend.
    pub compare_add: U64,
    /// Swap value.
    pub swap: U64,
    /// Key of the region or window.
    pub rkey: U32,
}

/// Fields of FLUSH.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FlushWr {
    /// Address at the responder.
    pub remote_addr: U64,
    /// Never set: the length is that of the buffer part.
    unused: U32,
    /// Key of the region or window.
    pub rkey: U32,
    /// Placement, `enum ib_placement_type`.
    pub placement: u8,
    /// Selectivity, `enum ib_selectivity_level`.
    pub level: u8,
}

/// Fields of a memory window bind.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MwWr {
    /// Address of the first byte in the region.
    pub addr: U64,
    /// Length of the window in bytes.
    pub length: U64,
    /// Local key of the region.
    pub region: U32,
    /// Current key of the window.
    pub window: U32,
    /// New key of the window.
    pub key: U32,
    /// Rights, `enum ib_access_flags`.
    pub access: U32,
}

/// Fields of datagrams.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UdWr {
    /// Destination QP.
    pub remote_qpn: U32,
    /// Q_Key.
    pub remote_qkey: U32,
    /// P_Key index and reserved: never set.
    unused: U32,
    /// Number of the address handle; 0 if librxe knows none and the address vector names it.
    pub ah_num: U32,
    pad: [U32; 4],
    /// Address vector, `struct rxe_av`.
    pub vector: Vector,
}

/// Address vector of a datagram, `struct rxe_av` without its socket addresses.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Vector {
    /// Port, network type and Ethernet address: not used.
    link: [u8; 8],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: U32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Hop limit: not used.
    hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Receive request, `struct rxe_recv_wqe`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingRecvWqe {
    /// The consumer's identifier.
    pub wr_id: U64,
    reserved: [U32; 2],
    /// Buffer.
    pub dma: DmaInfo,
}
