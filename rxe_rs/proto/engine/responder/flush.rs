// SPDX-License-Identifier: GPL-2.0
//! FLUSH, which may take several calls.

use super::{Message, RequestFault, INVALID};
use crate::engine::backend::{Backend, Flushed};
use crate::engine::qp::Qp;
use crate::engine::wr::FlushKind;
use crate::ids::{Psn, RKey};
use crate::wire::packet::Packet;
use crate::wire::Feth;

/// A FLUSH in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PartialFlush {
    psn: Psn,
    rkey: RKey,
    /// First address and bytes of the range that the peer requested.
    addr: u64,
    len: u32,
    kind: FlushKind,
}

impl Qp {
    /// Executes a FLUSH (IBTA A19).
    pub(super) fn execute_flush(
        &mut self,
        packet: &Packet<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        let between = matches!(self.resp.message, Message::None);
        let (Some(reth), Some(feth), true) = (
            packet.reth(),
            packet.feth(),
            between && self.has_free_resource(),
        ) else {
            return Err(INVALID);
        };
        let placement = feth.placement();
        let known = placement & !(Feth::GLOBAL | Feth::PERSISTENT) == 0 && placement != 0;
        let Some(selectivity) = feth.selectivity().filter(|_| known) else {
            return Err(INVALID);
        };
        if placement & !self.attrs.remote_flush != 0 {
            return Err(INVALID);
        }
        let kind = FlushKind {
            placement,
            selectivity,
        };
        let (rkey, addr, len) = (reth.rkey(), reth.va(), reth.dma_len());
        let this = PartialFlush {
            psn: self.resp.epsn,
            rkey,
            addr,
            len,
            kind,
        };
        // A different request with this PSN may have been started and dropped before.
        let begun = self
            .resp
            .partial_flush
            .take()
            .filter(|begun| begun.0 == this);
        let from = begun.map(|(_, at)| at);
        match backend.remote_flush(rkey, addr, len, kind, from)? {
            Flushed::All => self.respond_empty(rkey, addr, backend),
            Flushed::UpTo(at) => {
                // Later packets wait behind it, so no request overtakes the FLUSH.
                self.resp.partial_flush = Some((this, at));
                return Err(RequestFault::Deferred);
            }
        }
        Ok(())
    }
}
