// SPDX-License-Identifier: GPL-2.0
//! Decoding of receive WQEs from the ring of a user.

use super::layout::{RingRecvWqe, SGE_LEN};
use super::send::list_length;
use crate::engine::wr::RecvWr;
use zerocopy::FromBytes;

/// A decoded receive request.
#[derive(Clone, Copy, Debug)]
pub struct RecvEntry<'a> {
    /// The request; its length saturates at more than the longest message.
    pub wr: RecvWr,
    /// Its scatter list, 16 bytes per entry.
    pub list: &'a [u8],
}

/// A receive request that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRecv {
    /// The identifier of the consumer, 0 if it could not be read.
    pub wr_id: u64,
}

/// Decodes a receive WQE from the copy of a ring element: 40 bytes and the scatter list.
///
/// # Errors
///
/// [`BadRecv`] if the list has more than `max_sge` entries or more than `element` holds.
pub fn decode_recv(element: &[u8], max_sge: u8) -> Result<RecvEntry<'_>, BadRecv> {
    let Ok((wqe, data)) = RingRecvWqe::ref_from_prefix(element) else {
        return Err(BadRecv { wr_id: 0 });
    };
    let wr_id = wqe.wr_id.get();
    let bad = BadRecv { wr_id };
    let num_sge = wqe.dma.num_sge.get();
    if num_sge > u32::from(max_sge) {
        return Err(bad);
    }
    let num_sge = usize::try_from(num_sge).map_err(|_| bad)?;
    let list = data.get(..num_sge.saturating_mul(SGE_LEN)).ok_or(bad)?;
    let length = list_length(list).unwrap_or(u32::MAX);
    Ok(RecvEntry {
        wr: RecvWr { wr_id, length },
        list,
    })
}
