// SPDX-License-Identifier: GPL-2.0
//! Decoding of send WQEs from the ring of a user.

use super::layout::{AtomicWr, FlushWr, MwWr, RdmaWr, RingSendWqe, Sge, UdWr, Vector, SGE_LEN};
use super::vector::VectorKey;
use crate::check::window::Bind;
use crate::engine::wc::WcStatus;
use crate::engine::wr::{
    AhName, FlushKind, LocalOp, RemoteAddr, SendBody, SendFlags, SendWqe, SendWr, UdDest,
};
use crate::engine::Service;
use crate::ids::{QKey, Qpn, RKey};
use crate::wire::feth::{Feth, Selectivity};
use zerocopy::byteorder::native_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout};

pub use crate::engine::wr::MAX_MESSAGE;

const FENCE: u32 = 1 << 0;
const SIGNALED: u32 = 1 << 1;
const SOLICITED: u32 = 1 << 2;
const INLINE: u32 = 1 << 3;

/// Creation attributes of the QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendLimits {
    /// Transport service; determines the valid operations.
    pub service: Service,
    /// Maximum number of scatter/gather entries.
    pub max_sge: u8,
    /// Maximum bytes of inline data.
    pub max_inline: u32,
    /// All requests are signaled (`IB_SIGNAL_ALL_WR`).
    pub signal_all: bool,
}

/// A decoded send request.
#[derive(Clone, Copy, Debug)]
pub struct SendEntry<'a> {
    /// The request; [`SendWqe::invalid`] is set if it must fail in order.
    pub wqe: SendWqe,
    /// Its scatter/gather list ([`SendWr::num_sge`] entries of 16 bytes) or, if
    /// [`SendFlags::inline`] is set, its payload of [`SendWr::length`] bytes.
    pub data: &'a [u8],
}

/// Decodes a send WQE from the copy of a ring element: 208 bytes and the data after them.
///
/// The length of a message is recomputed from its scatter/gather list. Old versions of
/// librxe do not set the inline flag; a list without entries and a length that is not 0 is
/// therefore treated as inline data. Unknown flags are ignored, unknown and misplaced operations
/// complete with [`WcStatus::LocQpOpErr`].
///
/// # Examples
///
/// ```
/// use rxe_proto::abi::{decode_send, SendLimits};
/// use rxe_proto::engine::wc::WcStatus;
/// use rxe_proto::engine::Service;
///
/// let limits = SendLimits {
///     service: Service::Rc,
///     max_sge: 1,
///     max_inline: 64,
///     signal_all: false,
/// };
/// // An element of zeros is a WRITE of no bytes; one that is too short completes in error.
/// assert_eq!(decode_send(&[0; 256], &limits).wqe.wr.length, 0);
/// assert_eq!(decode_send(&[0; 100], &limits).wqe.invalid, Some(WcStatus::LocQpOpErr));
/// ```
pub fn decode_send<'a>(element: &'a [u8], limits: &SendLimits) -> SendEntry<'a> {
    let Ok((ring_wqe, data)) = RingSendWqe::ref_from_prefix(element) else {
        let wqe = SendWqe::invalid(SendWr::EMPTY, WcStatus::LocQpOpErr);
        return SendEntry { wqe, data: &[] };
    };
    let flags = ring_wqe.send_flags.get();
    let mut wr = SendWr::EMPTY;
    wr.wr_id = ring_wqe.wr_id.get();
    wr.flags = SendFlags {
        signaled: limits.signal_all || flags & SIGNALED != 0,
        solicited: flags & SOLICITED != 0,
        fence: flags & FENCE != 0,
        inline: false,
    };
    match fill(&mut wr, ring_wqe, data, limits) {
        Ok(data) => SendEntry {
            wqe: SendWqe::new(wr),
            data,
        },
        Err(status) => {
            wr.length = 0;
            wr.num_sge = 0;
            wr.flags.inline = false;
            SendEntry {
                wqe: SendWqe::invalid(wr, status),
                data: &[],
            }
        }
    }
}

/// A malformed request, or an operation that the service does not have.
const MALFORMED: WcStatus = WcStatus::LocQpOpErr;

/// The fields of an operation.
fn part<T: FromBytes + KnownLayout + Immutable>(wqe: &RingSendWqe) -> Result<&T, WcStatus> {
    let (part, _) = T::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
    Ok(part)
}

fn remote_addr(addr: U64, rkey: U32) -> RemoteAddr {
    RemoteAddr {
        addr: addr.get(),
        rkey: RKey(rkey.get()),
    }
}

/// Where WRITE, READ and ATOMIC WRITE access the memory of the peer.
fn remote(wqe: &RingSendWqe) -> Result<RemoteAddr, WcStatus> {
    let own: &RdmaWr = part(wqe)?;
    Ok(remote_addr(own.remote_addr, own.rkey))
}

fn key_of(vector: &Vector) -> VectorKey {
    VectorKey {
        dgid: vector.dgid,
        flow_label: vector.flow_label.get(),
        sgid_index: vector.sgid_index,
        traffic_class: vector.traffic_class,
    }
}

/// The destination of a datagram.
fn ud_dest(wqe: &RingSendWqe) -> Result<UdDest, WcStatus> {
    let own: &UdWr = part(wqe)?;
    Ok(UdDest {
        qpn: Qpn::new(own.remote_qpn.get()),
        qkey: QKey(own.remote_qkey.get()),
        ah: match own.ah_num.get() {
            0 => AhName::Vector(key_of(&own.vector).digest()),
            number => AhName::Number(number),
        },
        pkey_index: 0,
    })
}

/// An ATOMIC, of two operands and the word.
fn atomic(
    wqe: &RingSendWqe,
    body: impl FnOnce(RemoteAddr, u64, u64) -> SendBody,
) -> Result<SendBody, WcStatus> {
    let own: &AtomicWr = part(wqe)?;
    let at = remote_addr(own.remote_addr, own.rkey);
    Ok(body(at, own.compare_add.get(), own.swap.get()))
}

fn flush(wqe: &RingSendWqe) -> Result<SendBody, WcStatus> {
    let own: &FlushWr = part(wqe)?;
    let at = remote_addr(own.remote_addr, own.rkey);
    let kind = FlushKind {
        placement: own.placement,
        selectivity: match own.level {
            0 => Selectivity::Range,
            1 => Selectivity::Region,
            _ => return Err(MALFORMED),
        },
    };
    Ok(SendBody::Flush(at, kind))
}

fn bind(wqe: &RingSendWqe) -> Result<Bind, WcStatus> {
    let own: &MwWr = part(wqe)?;
    Ok(Bind {
        window: RKey(own.window.get()),
        key: RKey(own.key.get()),
        region: own.region.get(),
        addr: own.addr.get(),
        length: own.length.get(),
        access: own.access.get(),
    })
}

/// The operation of an opcode number on this service, with its parameters (IBTA 10.8.2). A fast
/// registration has no opcode in a user ring: its parameters are kernel pointers.
fn operation(wqe: &RingSendWqe, service: Service) -> Result<SendBody, WcStatus> {
    let rc = service == Service::Rc;
    let connected = service.is_connected();
    let datagram = service.is_datagram();
    // Stored in place of immediate data, but in native byte order.
    let invalidated = RKey(u32::from_ne_bytes(wqe.ex));
    Ok(match wqe.opcode.get() {
        0 if connected => SendBody::Write(remote(wqe)?),
        1 if connected => SendBody::WriteImm(remote(wqe)?, wqe.ex),
        2 if datagram => SendBody::Datagram(ud_dest(wqe)?),
        2 => SendBody::Send,
        3 if datagram => SendBody::DatagramImm(ud_dest(wqe)?, wqe.ex),
        3 if connected => SendBody::SendImm(wqe.ex),
        4 if rc => SendBody::Read(remote(wqe)?),
        5 if rc => atomic(wqe, |at, compare, swap| SendBody::CmpSwp {
            at,
            compare,
            swap,
        })?,
        6 if rc => atomic(wqe, |at, add, _| SendBody::FetchAdd { at, add })?,
        7 if rc => SendBody::Local(LocalOp::Invalidate(invalidated)),
        8 if connected => SendBody::Local(LocalOp::Bind(bind(wqe)?)),
        9 if rc => SendBody::SendInv(invalidated),
        14 if rc => flush(wqe)?,
        15 if rc => SendBody::AtomicWrite(remote(wqe)?),
        _ => return Err(MALFORMED),
    })
}

/// Fills in the fields that depend on the operation and returns the used part of `data`.
fn fill<'a>(
    wr: &mut SendWr,
    wqe: &RingSendWqe,
    data: &'a [u8],
    limits: &SendLimits,
) -> Result<&'a [u8], WcStatus> {
    wr.body = operation(wqe, limits.service)?;
    match &wr.body {
        SendBody::Local(_) => return Ok(&[]),
        SendBody::Flush(_, kind) => {
            let known = kind.placement & !(Feth::GLOBAL | Feth::PERSISTENT) == 0;
            if !known || kind.placement == 0 {
                return Err(MALFORMED);
            }
            wr.length = wqe.dma.length.get();
            if wr.length > MAX_MESSAGE {
                return Err(WcStatus::LocLenErr);
            }
            return Ok(&[]);
        }
        SendBody::AtomicWrite(at) => {
            // The newer interface of librxe stores the word in place of inline data; the older one
            // stores nothing.
            let whole = wqe.dma.num_sge.get() == 0 && wqe.dma.length.get() == 8;
            if !whole || at.addr % 8 != 0 {
                return Err(MALFORMED);
            }
            wr.flags.inline = true;
            wr.length = 8;
            return data.get(..8).ok_or(MALFORMED);
        }
        _ => {}
    }
    let num_sge = wqe.dma.num_sge.get();
    let claimed = wqe.dma.length.get();
    let wants_inline = wqe.send_flags.get() & INLINE != 0;
    if wr.body.carries_payload() && (wants_inline || (num_sge == 0 && claimed != 0)) {
        let len = usize::try_from(claimed).map_err(|_| WcStatus::LocLenErr)?;
        if claimed > limits.max_inline {
            return Err(WcStatus::LocLenErr);
        }
        let data = data.get(..len).ok_or(WcStatus::LocLenErr)?;
        wr.flags.inline = true;
        wr.length = claimed;
        return Ok(data);
    }
    if wants_inline || num_sge > u32::from(limits.max_sge) {
        return Err(MALFORMED);
    }
    wr.num_sge = u8::try_from(num_sge).map_err(|_| MALFORMED)?;
    let list_len = usize::from(wr.num_sge).saturating_mul(SGE_LEN);
    let list = data.get(..list_len).ok_or(MALFORMED)?;
    wr.set_length(list_length(list).ok_or(WcStatus::LocLenErr)?)?;
    Ok(list)
}

/// Sum of the lengths of a scatter/gather list, if it fits 32 bits.
pub(super) fn list_length(list: &[u8]) -> Option<u32> {
    list.chunks_exact(SGE_LEN).try_fold(0u32, |sum, bytes| {
        let sge = Sge::ref_from_bytes(bytes).ok()?;
        sum.checked_add(sge.length.get())
    })
}
