// SPDX-License-Identifier: GPL-2.0
//! The engine's packet sink over a batch of socket buffers.

use super::QpCtx;
use crate::device::counters::Traffic;
use kernel::sync::Arc;
use rxe_kapi::{
    crc::crc32_le,
    net::{
        flow::{
            Flow,
            NOTICE_CLASS, //
        },
        tx::{
            TxBatch,
            TxError, //
        }, //
    },
};
use rxe_proto::{
    engine::backend::{
        Dest,
        Tx,
        TxFault, //
    },
    ids::PKey,
    wire::{
        icrc::{
            icrc,
            Crc, //
        },
        repr::Headers, //
    },
};

/// The kernel's CRC-32.
pub(crate) struct KernelCrc;

impl Crc for KernelCrc {
    #[inline]
    fn crc32_le(&self, seed: u32, data: &[u8]) -> u32 {
        crc32_le(seed, data)
    }
}

/// Bytes of the ICRC.
const ICRC_BYTES: usize = 4;

/// Fills a batch.
pub(super) struct BatchTx<'a, 'b> {
    pub(super) ctx: &'a QpCtx,
    pub(super) batch: &'a mut TxBatch<'b>,
    /// Bytes that the queues below may take.
    pub(super) room: usize,
    /// Path to the connected peer.
    pub(super) flow: Option<&'a Arc<Flow>>,
}

impl Tx for BatchTx<'_, '_> {
    fn has_room(&self) -> bool {
        !self.batch.is_full() && self.batch.bytes() < self.room
    }

    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        if headers.pkey() == PKey::INVALID {
            // The partition was taken away: to the protocol the packet is lost, until it is back.
            self.ctx.dev.counters.traffic(Traffic::TxErrors, 1);
            return Ok(());
        }
        let of_ah;
        let flow = match to {
            Dest::Peer => self.flow,
            Dest::Ah(number) => {
                of_ah = self.ctx.dev.flow_of_ah(number, self.ctx.pd);
                of_ah.as_ref()
            }
        };
        let flow = flow.ok_or(TxFault::Unreachable)?;
        let head = headers.as_slice();
        // A packet is at most a path MTU long, so nothing here comes near an overflow.
        let body = head.len().wrapping_add(payload_len);
        let padded = body.wrapping_add(3) & !3;
        let write = |net: &[u8], dst: &mut [u8]| -> Result<(), Option<E>> {
            let (to, rest) = dst.split_at_mut_checked(head.len()).ok_or(None)?;
            to.copy_from_slice(head);
            let (to, rest) = rest.split_at_mut_checked(payload_len).ok_or(None)?;
            fill(to).map_err(Some)?;
            if let Some(pad) = rest.get_mut(..padded.wrapping_sub(body)) {
                pad.fill(0);
            }
            let (covered, to) = dst.split_at_mut_checked(padded).ok_or(None)?;
            let (bth, rest) = covered.split_first_chunk::<12>().ok_or(None)?;
            let crc = icrc(&KernelCrc, net, bth, [rest]);
            to.first_chunk_mut::<ICRC_BYTES>()
                .ok_or(None)
                .map(|to| *to = crc)
        };
        let class = headers.is_notice().then_some(NOTICE_CLASS);
        match self
            .batch
            .packet(flow, class, padded.wrapping_add(ICRC_BYTES), write)
        {
            Ok(()) => Ok(()),
            Err(TxError::Fill(Some(e))) => Err(TxFault::Fill(e)),
            Err(TxError::Fill(None)) => Err(TxFault::Unreachable),
            // A route may come back: to the protocol this is a lost packet.
            Err(TxError::NoMemory | TxError::NoRoute | TxError::Full) => Err(TxFault::Busy),
            Err(TxError::TooLong) => Err(TxFault::Unreachable),
        }
    }

    #[inline]
    fn place(&self) -> u32 {
        self.batch.place()
    }

    fn end_trains(&mut self) {
        self.batch.end_trains();
    }

    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>> {
        match self.batch.frame(&self.ctx.dev.netdev, len, fill) {
            Ok(()) => Ok(()),
            Err(TxError::Fill(e)) => Err(TxFault::Fill(e)),
            Err(TxError::NoMemory | TxError::NoRoute | TxError::Full) => Err(TxFault::Busy),
            Err(TxError::TooLong) => Err(TxFault::Unreachable),
        }
    }
}
