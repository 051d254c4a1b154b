// SPDX-License-Identifier: GPL-2.0
//! UD and raw packet QPs, with one packet per message, and the receive side of UC.

use super::attrs::{Progress, RxMeta, Service, State};
use super::backend::{Backend, Count, Dest, Handled, LocalFault, TakenRecv, Tx, TxFault};
use super::qp::Qp;
use super::requester::pad_of;
use super::responder::{Message, RequestFault};
use super::wc::{NetworkType, Wc, WcOpcode, WcStatus};
use super::wr::{RecvWr, SendBody, SendWqe};
use crate::check::qkey;
use crate::time::Instant;
use crate::wire::bth::Bth;
use crate::wire::opcode::{Opcode, Operation};
use crate::wire::packet::{Packet, Payload};
use crate::wire::repr::Headers;

/// Bytes of the GRH area at the start of a UD receive buffer (IBTA 11.4.1.2).
const GRH_BYTES: u32 = 40;

/// Why a message was not sent.
enum SendError {
    /// No room now.
    Busy,
    /// Its payload caused a page fault.
    PageFault,
    /// It completes in error.
    Fail(WcStatus),
}

impl From<TxFault<LocalFault>> for SendError {
    fn from(fault: TxFault<LocalFault>) -> Self {
        match fault {
            TxFault::Busy => Self::Busy,
            TxFault::Fill(LocalFault::NotPresent) => Self::PageFault,
            TxFault::Fill(LocalFault::Refused | LocalFault::Gone) => {
                Self::Fail(WcStatus::LocProtErr)
            }
            TxFault::Unreachable => Self::Fail(WcStatus::LocQpOpErr),
        }
    }
}

impl Qp {
    /// Sends messages of a datagram service.
    pub(super) fn transmit_datagrams(
        &mut self,
        now: Instant,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Progress {
        loop {
            if self.req.cur == backend.sends_posted() || self.state != State::Rts {
                return Progress::Idle;
            }
            if !tx.has_room() {
                return Progress::More;
            }
            let Some(wqe) = backend.send_wqe(self.req.cur).map(|wqe| *wqe) else {
                return Progress::Idle;
            };
            let status = match self.send_datagram(&wqe, backend, tx) {
                Ok(()) => WcStatus::Success,
                Err(SendError::Fail(status)) => status,
                Err(SendError::Busy) => {
                    self.pause(now);
                    return Progress::Idle;
                }
                Err(SendError::PageFault) => return Progress::Idle,
            };
            self.complete_oldest(&wqe, status, backend);
            if status != WcStatus::Success {
                self.enter_sqe(backend);
                return Progress::Idle;
            }
        }
    }

    /// Sends a message of one packet (IBTA 9.8.3).
    fn send_datagram(
        &mut self,
        wqe: &SendWqe,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), SendError> {
        if let Some(status) = wqe.invalid {
            return Err(SendError::Fail(status));
        }
        if self.service == Service::Raw {
            return self.send_frame(wqe, backend, tx);
        }
        let wr = &wqe.wr;
        let (to, imm) = match wr.body {
            SendBody::Datagram(to) => (to, None),
            SendBody::DatagramImm(to, imm) => (to, Some(imm)),
            _ => return Err(SendError::Fail(WcStatus::LocQpOpErr)),
        };
        if wr.length > self.attrs.mtu.bytes() {
            return Err(SendError::Fail(WcStatus::LocLenErr));
        }
        let opcode = match imm {
            Some(_) => Opcode::UD_SEND_ONLY_IMM,
            None => Opcode::UD_SEND_ONLY,
        };
        let bth = Bth {
            se: wr.flags.solicited,
            pad: pad_of(wr.length),
            pkey: match self.service {
                Service::Gsi => backend.pkey_at(to.pkey_index),
                _ => backend.pkey(),
            },
            ..Bth::new(opcode, to.qpn, self.req.max_psn)
        };
        let key = qkey::outgoing(to.qkey, self.attrs.qkey);
        let mut headers = Headers::new(bth).deth(key, self.attrs.qpn);
        if let Some(imm) = imm {
            headers = headers.imm(imm);
        }
        let index = self.req.cur;
        let source = &*backend;
        let size = usize::try_from(wr.length).unwrap_or(0);
        let fill = |dst: &mut [u8]| source.gather(index, 0, dst);
        tx.packet(Dest::Ah(to.ah), &headers, size, fill)?;
        self.req.max_psn = self.req.max_psn.next();
        Ok(())
    }

    /// Sends the frame of a raw packet QP, which a WQE has whole.
    fn send_frame(
        &mut self,
        wqe: &SendWqe,
        backend: &mut impl Backend,
        tx: &mut impl Tx,
    ) -> Result<(), SendError> {
        if wqe.wr.body != SendBody::Send {
            return Err(SendError::Fail(WcStatus::LocQpOpErr));
        }
        let index = self.req.cur;
        let source = &*backend;
        let size = usize::try_from(wqe.wr.length).unwrap_or(0);
        match tx.frame(size, |dst| source.gather(index, 0, dst)) {
            Err(TxFault::Unreachable) => Err(SendError::Fail(WcStatus::LocLenErr)),
            done => Ok(done?),
        }
    }

    /// Processes one Ethernet frame received by a raw packet QP. Like a datagram, it is dropped if
    /// no receive, or one too short, is posted, or while the CQ has no room.
    pub fn handle_frame(&mut self, frame: &Payload<'_>, backend: &mut impl Backend) {
        if self.state.receives().is_err() || self.service != Service::Raw {
            return;
        }
        if self.resp.recv.is_none() && !backend.cq_has_room() {
            // Frames are unreliable, and are not deferred.
            return backend.count(Count::PageFaultDropped);
        }
        let Some(wr) = self.take_recv_wqe(backend) else {
            return;
        };
        let len = u32::try_from(frame.len()).ok();
        let Some(byte_len) = len.filter(|len| *len <= wr.length) else {
            backend.count(Count::NoReceive);
            self.resp.recv = Some(wr);
            return;
        };
        match backend.scatter_recv(0, frame) {
            Ok(()) => {}
            Err(LocalFault::NotPresent) => {
                // Frames are unreliable: drop this one, the next will find the page present.
                backend.count(Count::PageFaultDropped);
                self.resp.recv = Some(wr);
                return;
            }
            Err(LocalFault::Refused | LocalFault::Gone) => {
                return self.fail_receive(wr.wr_id, WcStatus::LocProtErr, backend);
            }
        }
        backend.count(Count::ReceiveCompleted);
        backend.complete_recv(&Wc {
            wr_id: wr.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: None,
            qpn: self.attrs.qpn.get(),
            src_qpn: 0,
            pkey_index: 0,
            grh: None,
            vlan: None,
            invalidated: None,
            solicited: false,
        });
    }

    /// Takes the receive WQE for a message of one packet.
    fn take_recv_wqe(&mut self, backend: &mut impl Backend) -> Option<RecvWr> {
        let taken = self.resp.recv.take();
        match taken.map_or_else(|| backend.take_recv(), TakenRecv::Wr) {
            TakenRecv::Wr(wr) => Some(wr),
            TakenRecv::Empty => {
                backend.count(Count::NoReceive);
                None
            }
            TakenRecv::Invalid { wr_id } => {
                self.fail_receive(wr_id, WcStatus::LocQpOpErr, backend);
                None
            }
        }
    }

    /// Receives a datagram (IBTA 9.8.3.2.2). Q_Key and P_Key have been checked.
    pub(super) fn handle_datagram(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        meta: &RxMeta<'_>,
        backend: &mut impl Backend,
    ) -> Handled {
        let only = matches!(
            packet.opcode().operation(),
            Operation::SendOnly | Operation::SendOnlyImm
        );
        let (Some(deth), true) = (packet.deth(), only) else {
            backend.count(Count::Unexpected);
            return Handled::Done;
        };
        if self.resp.recv.is_none() && !backend.cq_has_room() {
            return Handled::Deferred;
        }
        let Some(wr) = self.take_recv_wqe(backend) else {
            return Handled::Done;
        };
        let len = u32::try_from(payload.len())
            .ok()
            .and_then(|len| len.checked_add(GRH_BYTES));
        let Some(byte_len) = len.filter(|len| *len <= wr.length) else {
            // Any host may send a datagram that is too long: it is dropped, and the next one uses
            // the receive WQE. A remote attacker must not be able to stop the QP.
            backend.count(Count::NoReceive);
            self.resp.recv = Some(wr);
            return Handled::Done;
        };
        match scatter_datagram(meta, payload, backend) {
            Ok(()) => {}
            Err(LocalFault::NotPresent) => {
                self.resp.recv = Some(wr);
                return Handled::Deferred;
            }
            Err(LocalFault::Refused | LocalFault::Gone) => {
                self.fail_receive(wr.wr_id, WcStatus::LocProtErr, backend);
                return Handled::Done;
            }
        }
        backend.count(Count::ReceiveCompleted);
        backend.complete_recv(&Wc {
            wr_id: wr.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: packet.imm(),
            invalidated: None,
            qpn: self.attrs.qpn.get(),
            src_qpn: deth.src_qpn().get(),
            pkey_index: meta.pkey_index,
            grh: Some(meta.net),
            vlan: meta.vlan,
            solicited: packet.bth().se,
        });
        Handled::Done
    }

    fn fail_receive(&mut self, wr_id: u64, status: WcStatus, backend: &mut impl Backend) {
        backend.entering_error();
        backend.complete_recv(&Wc::recv_error(wr_id, status, self.attrs.qpn.get()));
        self.enter_error(backend);
    }

    /// Receives a packet of a UC connection, which is never acknowledged: after a gap the
    /// incomplete message is dropped and the next one accepted (IBTA 9.8.2.2).
    pub(super) fn handle_uc(
        &mut self,
        packet: &Packet<'_>,
        payload: &Payload<'_>,
        backend: &mut impl Backend,
    ) -> Handled {
        let psn = packet.bth().psn;
        if psn != self.resp.epsn {
            backend.count(Count::OutOfSequence);
            self.resp.epsn = psn;
            // The next message uses the receive WQE.
            self.resp.message = Message::None;
        }
        if packet.opcode().starts_message() {
            self.resp.message = Message::None;
        } else if matches!(self.resp.message, Message::None) {
            backend.count(Count::Unexpected);
            self.resp.epsn = psn.next();
            return Handled::Done;
        }
        match self.execute_payload(packet, payload, backend) {
            Ok(()) => {}
            Err(RequestFault::Deferred) => return Handled::Deferred,
            Err(RequestFault::Rnr) => {
                backend.count(Count::NoReceive);
                self.skip_message(psn);
            }
            Err(RequestFault::Gone) => {
                backend.count(Count::ReferenceGone);
                self.skip_message(psn);
            }
            Err(RequestFault::Nak(_, WcStatus::WrFlushErr | WcStatus::LocAccessErr)) => {
                backend.count(Count::Unexpected);
                self.skip_message(psn);
            }
            Err(RequestFault::Nak(_, WcStatus::LocLenErr)) => {
                // Any host that knows the QP number may send a message that is too long. It is
                // dropped, and the next one uses the receive WQE (class D of IBTA 9.9.3); a WQE of
                // a shared receive queue completes in error without affecting the QP (class E).
                backend.count(Count::NoReceive);
                if self.uses_srq() {
                    if let Some(wr) = self.resp.recv.take() {
                        let status = WcStatus::LocLenErr;
                        backend.complete_recv(&Wc::recv_error(
                            wr.wr_id,
                            status,
                            self.attrs.qpn.get(),
                        ));
                    }
                }
                self.skip_message(psn);
            }
            Err(RequestFault::Nak(_, status)) => match self.resp.recv.take() {
                Some(wr) => self.fail_receive(wr.wr_id, status, backend),
                None => self.skip_message(psn),
            },
        }
        Handled::Done
    }

    fn skip_message(&mut self, psn: crate::ids::Psn) {
        self.resp.message = Message::None;
        self.resp.epsn = psn.next();
    }
}

/// Scatters the network header and the payload to the receive buffer.
fn scatter_datagram(
    meta: &RxMeta<'_>,
    payload: &Payload<'_>,
    backend: &mut impl Backend,
) -> Result<(), LocalFault> {
    let mut grh = [0u8; 40];
    // An IPv4 header is in the second half (IBTA A17.4.5.2).
    let room = match meta.net {
        NetworkType::V4 => grh.get_mut(20..40),
        NetworkType::V6 => grh.get_mut(0..40),
    };
    if let Some(room) = room {
        for (to, from) in room.iter_mut().zip(meta.ip_header) {
            *to = *from;
        }
    }
    backend.scatter_recv(0, &Payload::from_slice(&grh))?;
    if !payload.is_empty() {
        backend.scatter_recv(GRH_BYTES, payload)?;
    }
    Ok(())
}
