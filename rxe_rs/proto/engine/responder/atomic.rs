// SPDX-License-Identifier: GPL-2.0
//! ATOMICs and ATOMIC WRITE.

use super::replay::Replayed;
use super::{Message, RequestFault, INVALID};
use crate::engine::backend::{AtomicOp, Backend, Count};
use crate::engine::qp::Qp;
use crate::engine::response::ResponseBody;
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};

impl Qp {
    /// Executes an ATOMIC and queues its response (IBTA 9.4.5, IBTA 9.7.4.1).
    pub(super) fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        let between = matches!(self.resp.message, Message::None);
        let Some(eth) = packet
            .atomic_eth()
            .filter(|_| between && self.has_free_resource())
        else {
            return Err(INVALID);
        };
        if eth.va() & 7 != 0 {
            return Err(INVALID);
        }
        if !self.attrs.remote_atomic {
            return Err(INVALID);
        }
        let op = match packet.opcode().operation() {
            Operation::CmpSwap => AtomicOp::CmpSwp {
                compare: eth.compare(),
                swap: eth.swap_add(),
            },
            _ => AtomicOp::FetchAdd {
                add: eth.swap_add(),
            },
        };
        let original = backend.remote_atomic(eth.rkey(), eth.va(), op)?;
        let entry = Replayed::Atomic {
            psn: self.resp.extended_psn,
            rkey: eth.rkey(),
            addr: eth.va(),
            original,
            msn: self.resp.msn.next(),
        };
        self.respond_single(ResponseBody::Atomic { original }, entry, backend);
        backend.count(Count::AtomicRequest);
        Ok(())
    }

    /// Executes an ATOMIC WRITE (IBTA A19): 8 aligned bytes, written atomically.
    pub(super) fn execute_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        let between = matches!(self.resp.message, Message::None);
        let Some(reth) = packet
            .reth()
            .filter(|_| between && self.has_free_resource())
        else {
            return Err(INVALID);
        };
        let mut word = [0; 8];
        let whole = payload.len() == word.len() && payload.copy_to(&mut word) == word.len();
        if !whole || reth.dma_len() != 8 || reth.va() & 7 != 0 {
            return Err(INVALID);
        }
        if !self.attrs.remote_write {
            return Err(INVALID);
        }
        let value = u64::from_ne_bytes(word);
        backend.remote_atomic(reth.rkey(), reth.va(), AtomicOp::Write { value })?;
        self.respond_empty(reth.rkey(), reth.va(), backend);
        backend.count(Count::AtomicRequest);
        Ok(())
    }
}
