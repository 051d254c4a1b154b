// SPDX-License-Identifier: GPL-2.0
//! Decoding of send WQEs from the ring of a user.

use super::layout::{AtomicWr, FlushWr, MwWr, RdmaWr, RingSendWqe, Sge, UdWr, SGE_LEN};
use crate::check::window::Bind;
use crate::engine::wc::WcStatus;
use crate::engine::wr::{FlushKind, LocalOp, SendFlags, SendOp, SendWqe, SendWr, UdDest};
use crate::engine::Service;
use crate::ids::{QKey, Qpn, RKey};
use crate::wire::feth::{Feth, Selectivity};
use zerocopy::FromBytes;

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
    wr.imm = ring_wqe.ex;
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

/// The operation of an opcode number on this transport (IBTA 10.8.2).
fn operation(opcode: u32, service: Service) -> Option<SendOp> {
    let op = match opcode {
        0 => SendOp::Write,
        1 => SendOp::WriteImm,
        2 => SendOp::Send,
        3 => SendOp::SendImm,
        4 => SendOp::Read,
        5 => SendOp::CmpSwp,
        6 => SendOp::FetchAdd,
        7 => SendOp::LocalInv,
        8 => SendOp::BindMw,
        9 => SendOp::SendInv,
        14 => SendOp::Flush,
        15 => SendOp::AtomicWrite,
        _ => return None,
    };
    let exists = match service {
        Service::Rc => true,
        Service::Uc => !op.needs_response() && !matches!(op, SendOp::SendInv | SendOp::LocalInv),
        Service::Ud | Service::Gsi => matches!(op, SendOp::Send | SendOp::SendImm),
        Service::Raw => matches!(op, SendOp::Send),
    };
    exists.then_some(op)
}

/// Fills in the fields that depend on the operation and returns the used part of `data`.
fn fill<'a>(
    wr: &mut SendWr,
    wqe: &RingSendWqe,
    data: &'a [u8],
    limits: &SendLimits,
) -> Result<&'a [u8], WcStatus> {
    const MALFORMED: WcStatus = WcStatus::LocQpOpErr;
    wr.op = operation(wqe.opcode.get(), limits.service).ok_or(MALFORMED)?;
    match wr.op {
        SendOp::Write | SendOp::WriteImm | SendOp::Read => {
            let (own, _) = RdmaWr::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
            wr.remote_addr = own.remote_addr.get();
            wr.rkey = RKey(own.rkey.get());
        }
        SendOp::CmpSwp | SendOp::FetchAdd => {
            let (own, _) = AtomicWr::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
            wr.remote_addr = own.remote_addr.get();
            wr.rkey = RKey(own.rkey.get());
            wr.compare_add = own.compare_add.get();
            wr.swap = own.swap.get();
            if wr.remote_addr % 8 != 0 {
                return Err(MALFORMED);
            }
        }
        SendOp::Send | SendOp::SendImm if limits.service.is_datagram() => {
            let (own, _) = UdWr::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
            wr.ud = UdDest {
                qpn: Qpn::new(own.remote_qpn.get()),
                qkey: QKey(own.remote_qkey.get()),
                ah: own.ah_num.get(),
                pkey_index: 0,
            };
        }
        SendOp::Send | SendOp::SendImm => {}
        SendOp::SendInv => wr.rkey = invalidated(wqe),
        SendOp::AtomicWrite => {
            let (own, _) = RdmaWr::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
            wr.remote_addr = own.remote_addr.get();
            wr.rkey = RKey(own.rkey.get());
            // The newer interface of librxe stores the word in place of inline data; the older one
            // stores nothing.
            let whole = wqe.dma.num_sge.get() == 0 && wqe.dma.length.get() == 8;
            if !whole || wr.remote_addr % 8 != 0 {
                return Err(MALFORMED);
            }
            wr.flags.inline = true;
            wr.length = 8;
            return data.get(..8).ok_or(MALFORMED);
        }
        SendOp::Flush => {
            let (own, _) = FlushWr::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
            wr.remote_addr = own.remote_addr.get();
            wr.rkey = RKey(own.rkey.get());
            wr.length = wqe.dma.length.get();
            let known = own.placement & !(Feth::GLOBAL | Feth::PERSISTENT) == 0;
            let selectivity = match own.level {
                0 => Selectivity::Range,
                1 => Selectivity::Region,
                _ => return Err(MALFORMED),
            };
            if !known || own.placement == 0 {
                return Err(MALFORMED);
            }
            if wr.length > MAX_MESSAGE {
                return Err(WcStatus::LocLenErr);
            }
            wr.set_flush(FlushKind {
                placement: own.placement,
                selectivity,
            });
            return Ok(&[]);
        }
        SendOp::LocalInv => {
            wr.set_local_op(&LocalOp::Invalidate(invalidated(wqe)));
            return Ok(&[]);
        }
        SendOp::BindMw => {
            let (own, _) = MwWr::ref_from_prefix(&wqe.wr).map_err(|_| MALFORMED)?;
            wr.set_local_op(&LocalOp::Bind(Bind {
                window: RKey(own.window.get()),
                key: RKey(own.key.get()),
                region: own.region.get(),
                addr: own.addr.get(),
                length: own.length.get(),
                access: own.access.get(),
            }));
            return Ok(&[]);
        }
        // Its parameters are kernel pointers, so it has no opcode in a user ring.
        SendOp::RegMr => return Err(MALFORMED),
    }
    let num_sge = wqe.dma.num_sge.get();
    let claimed = wqe.dma.length.get();
    let wants_inline = wqe.send_flags.get() & INLINE != 0;
    if wr.op.carries_payload() && (wants_inline || (num_sge == 0 && claimed != 0)) {
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
    wr.length = list_length(list)
        .filter(|len| *len <= MAX_MESSAGE)
        .ok_or(WcStatus::LocLenErr)?;
    if matches!(wr.op, SendOp::CmpSwp | SendOp::FetchAdd) {
        // A longer buffer is valid, but only its first word is written.
        if wr.length < 8 {
            return Err(WcStatus::LocLenErr);
        }
        wr.length = 8;
    }
    Ok(list)
}

/// The key to invalidate, stored in place of immediate data, but in native byte order.
fn invalidated(wqe: &RingSendWqe) -> RKey {
    RKey(u32::from_ne_bytes(wqe.ex))
}

/// Sum of the lengths of a scatter/gather list, if it fits 32 bits.
pub(super) fn list_length(list: &[u8]) -> Option<u32> {
    list.chunks_exact(SGE_LEN).try_fold(0u32, |sum, bytes| {
        let sge = Sge::ref_from_bytes(bytes).ok()?;
        sum.checked_add(sge.length.get())
    })
}
