// SPDX-License-Identifier: GPL-2.0
//! SENDs and RDMA WRITEs of RC and UC, packet by packet.

use super::{Message, RequestFault, BAD_INVALIDATE, INVALID, NO_ACCESS};
use crate::engine::backend::{Backend, Count, LocalFault, RemoteRight, TakenRecv};
use crate::engine::qp::Qp;
use crate::engine::wc::{Wc, WcOpcode, WcStatus};
use crate::engine::wr::{RecvWr, MAX_MESSAGE};
use crate::wire::aeth::NakCode;
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, Payload};

impl Qp {
    /// Executes a packet of a SEND or WRITE; shared with UC (IBTA 9.4.1).
    pub(in crate::engine) fn execute_payload(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        use Operation as Op;
        let Ok(len) = u32::try_from(payload.len()) else {
            return Err(INVALID);
        };
        let (is_write, first, last) = match packet.opcode().operation() {
            Op::SendFirst => (false, true, false),
            Op::SendMiddle => (false, false, false),
            Op::SendLast | Op::SendLastImm | Op::SendLastInv => (false, false, true),
            Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInv => (false, true, true),
            Op::WriteFirst => (true, true, false),
            Op::WriteMiddle => (true, false, false),
            Op::WriteLast | Op::WriteLastImm => (true, false, true),
            Op::WriteOnly | Op::WriteOnlyImm => (true, true, true),
            _ => return Err(INVALID),
        };
        // Sequence of opcodes and lengths (IBTA 9.7.4.1, IBTA 9.7.4.1.6).
        let in_place = match self.resp.message {
            Message::None => first,
            Message::Send { .. } => !first && !is_write,
            Message::Write { .. } => !first && is_write,
        };
        let fits = len > 0 || (first && last);
        let Some(count) = self.psns_of(len, last).filter(|_| in_place && fits) else {
            return Err(INVALID);
        };
        let imm = packet.imm();
        if is_write {
            self.execute_write(packet, payload, len, first, last, imm.is_some(), backend)?;
        } else {
            self.execute_send(payload, len, first, backend)?;
        }
        if let Some(ieth) = packet.ieth() {
            // In order: after all earlier packets and before the completion of the message.
            backend
                .remote_invalidate(ieth.rkey())
                .map_err(|_| BAD_INVALIDATE)?;
        }
        self.resp.advance(count);
        if last {
            self.end_message(packet, imm, backend);
        }
        Ok(())
    }

    /// Returns the receive WQE of the current message; takes one from the queue if needed
    /// (IBTA 10.7.2.2).
    fn current_recv_wqe(&mut self, backend: &mut impl Backend) -> Result<RecvWr, RequestFault> {
        if let Some(wr) = self.resp.recv {
            return Ok(wr);
        }
        if !backend.cq_has_room() {
            return Err(RequestFault::Deferred);
        }
        match backend.take_recv() {
            TakenRecv::Wr(wr) => {
                self.resp.recv = Some(wr);
                Ok(wr)
            }
            TakenRecv::Empty => Err(RequestFault::Rnr),
            TakenRecv::Invalid { wr_id } => {
                self.resp.recv = Some(RecvWr { wr_id, length: 0 });
                Err(RequestFault::Nak(
                    NakCode::RemoteOperational,
                    WcStatus::LocQpOpErr,
                ))
            }
        }
    }

    /// Scatters a packet of a SEND to the receive WQE of the message (IBTA 9.4.1).
    fn execute_send(
        &mut self,
        payload: &Payload<'_>,
        len: u32,
        first: bool,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        let wr = self.current_recv_wqe(backend)?;
        let placed = match self.resp.message {
            Message::Send { placed } if !first => placed,
            _ => 0,
        };
        let end = placed.checked_add(len).filter(|end| *end <= wr.length);
        let Some(end) = end else {
            return Err(RequestFault::Nak(
                NakCode::InvalidRequest,
                WcStatus::LocLenErr,
            ));
        };
        if len > 0 {
            backend
                .scatter_recv(placed, payload)
                .map_err(|fault| match fault {
                    LocalFault::NotPresent => RequestFault::Deferred,
                    LocalFault::Gone => RequestFault::Gone,
                    LocalFault::Refused => {
                        RequestFault::Nak(NakCode::RemoteOperational, WcStatus::LocProtErr)
                    }
                })?;
        }
        self.resp.message = Message::Send { placed: end };
        Ok(())
    }

    /// Writes a packet of an RDMA WRITE (IBTA 9.4.3, IBTA 9.7.4.1, IBTA 9.7.4.1.6). The first one
    /// checks the key for the whole message.
    #[allow(clippy::too_many_arguments)]
    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        len: u32,
        first: bool,
        last: bool,
        with_imm: bool,
        backend: &mut impl Backend,
    ) -> Result<(), RequestFault> {
        // Each packet: the consumer may have withdrawn the right amid the message.
        if !self.attrs.remote_write {
            return Err(INVALID);
        }
        let (rkey, addr, left, total) = if first {
            let Some(reth) = packet.reth() else {
                return Err(INVALID);
            };
            let total = reth.dma_len();
            let (rkey, addr) = (reth.rkey(), reth.va());
            if total > MAX_MESSAGE {
                return Err(INVALID);
            }
            // A message of zero length accesses no memory and needs no key (IBTA 9.7.4.1.5).
            if total > 0
                && backend
                    .remote_check(rkey, addr, total, RemoteRight::Write)
                    .is_err()
            {
                return Err(NO_ACCESS);
            }
            (rkey, addr, total, total)
        } else if let Message::Write {
            rkey,
            addr,
            left,
            total,
        } = self.resp.message
        {
            (rkey, addr, left, total)
        } else {
            return Err(INVALID);
        };
        // The payloads must add up to the DMA length of the RETH exactly.
        let agrees = if last { len == left } else { len < left };
        if !agrees {
            return Err(INVALID);
        }
        if with_imm {
            self.current_recv_wqe(backend)?;
        }
        if len > 0 {
            backend.remote_write(rkey, addr, payload)?;
        }
        self.resp.message = Message::Write {
            rkey,
            addr: addr.wrapping_add(u64::from(len)),
            left: left.saturating_sub(len),
            total,
        };
        Ok(())
    }

    /// Counts an executed message and completes its receive WQE (IBTA 9.7.7.1).
    fn end_message(
        &mut self,
        packet: &Packet<'_>,
        imm: Option<[u8; 4]>,
        backend: &mut impl Backend,
    ) {
        self.resp.msn = self.resp.msn.next();
        let (opcode, byte_len) = match core::mem::replace(&mut self.resp.message, Message::None) {
            Message::Write { total, .. } => {
                backend.count(Count::WriteRequest);
                (WcOpcode::RecvRdmaWithImm, total)
            }
            Message::Send { placed } => (WcOpcode::Recv, placed),
            Message::None => return,
        };
        if opcode == WcOpcode::RecvRdmaWithImm && imm.is_none() {
            return;
        }
        if let Some(wr) = self.resp.recv.take() {
            backend.count(Count::ReceiveCompleted);
            backend.complete_recv(&Wc {
                wr_id: wr.wr_id,
                status: WcStatus::Success,
                opcode,
                byte_len,
                imm,
                invalidated: packet.ieth().map(|ieth| ieth.rkey()),
                qpn: self.attrs.qpn.get(),
                src_qpn: self.attrs.dest_qpn.get(),
                pkey_index: 0,
                grh: None,
                vlan: None,
                solicited: packet.bth().se,
            });
        }
    }
}
