// SPDX-License-Identifier: GPL-2.0
//! Posting of work requests: the doorbell of user space and the calls of kernel consumers.

use super::{
    KernelQueues,
    QpCtx, //
};
use crate::{
    clock,
    device::RxeDevice,
    limits::MAX_SGE,
    queue::{
        SendStore,
        Sge,
        SGE_BYTES, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
};
use rxe_kapi::{
    rdma::{
        cq::Origin,
        wr::{
            RecvChain,
            SendChain,
            SendWr as KernelWr,
            WrOpcode,
            SEND_FENCE,
            SEND_INLINE,
            SEND_SIGNALED,
            SEND_SOLICITED, //
        }, //
    },
    sync::context, //
};
use rxe_proto::{
    engine::{
        wr::{
            AhName,
            LocalOp,
            Register,
            RemoteAddr,
            SendBody,
            SendFlags,
            SendWqe,
            SendWr,
            UdDest, //
        },
        Service,
        State, //
    },
    ids::{
        QKey,
        Qpn,
        RKey, //
    },
};

/// Bytes of the longest scatter/gather list or inline data.
const MAX_WQE_DATA: usize = MAX_SGE * SGE_BYTES;

/// Most lists have no more entries. A buffer for these takes less time to clear.
const FEW_SGES: usize = 4;

impl QpCtx {
    /// Returns true if the state accepts send requests; some states flush them (IBTA 10.8.2).
    pub(super) fn accepts_sends(state: State) -> bool {
        matches!(state, State::Rts | State::Sqd | State::Sqe | State::Err)
    }

    /// Handles the doorbell of a process (IBTA 11.4.1.1).
    ///
    /// Requests are mostly executed at once; between two links of this host they are even completed
    /// before the doorbell returns. A process that posts a request for each completion that
    /// `ibv_next_poll` returns would always find one more, and never come to `ibv_end_poll`, where
    /// librxe publishes the consumer index: the CQ would overflow although it is empty. So requests
    /// stay in the ring as long as their completions would find no room
    /// ([`CqCtx::room`](crate::verbs::cq::CqCtx::room)).
    ///
    /// # Errors
    ///
    /// `EINVAL` in a state that takes no send requests; they have been discarded then.
    pub(super) fn ring_doorbell(self: &Arc<Self>) -> Result {
        let shortage = {
            let mut inner = self.inner.lock();
            if !Self::accepts_sends(inner.engine.state()) {
                // They are discarded: they must not be executed after a later transition.
                inner.sq.discard(None);
                drop(inner);
                let reason = c"the queue pair's state takes no send requests";
                return Err(self.dev.handle.refuse(reason));
            }
            inner.sq.shortage()
        };
        if let Some(slots) = shortage {
            self.add_send_slots(slots);
        }
        self.as_arc_borrow().transmit(clock::now(), Origin::Verb);
        Ok(())
    }

    /// Gives the send queue `slots` slots, if there is memory for them. The process that posts is
    /// charged.
    #[cold]
    fn add_send_slots(&self, slots: u32) {
        let wqe_data_len = self.inner.lock().sq.store.wqe_data_len();
        if let Ok(mut larger) = SendStore::new(slots, wqe_data_len) {
            self.inner.lock().sq.store.replace(&mut larger);
        }
    }

    /// Posts the send requests of a kernel consumer, up to the first that is refused
    /// (IBTA 11.4.1.1).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a request that the queue pair cannot execute, or in a state that takes none;
    /// `ENOMEM` if the queue is full. The chain is at the request that was refused; those before it
    /// have been posted.
    pub(super) fn post_sends(self: &Arc<Self>, chain: &mut SendChain<'_, RxeDevice>) -> Result {
        let kernel = self.kernel.as_ref().ok_or(EINVAL)?;
        let mut result = Ok(());
        let mut any = false;
        while let Some(wr) = chain.current() {
            result = self.post_one(kernel, &wr);
            if result.is_err() {
                break;
            }
            any = true;
            chain.advance();
        }
        if any {
            // A consumer that takes completions in softirq context posts one request for each. They
            // wait for the end of its handler, to leave together, unless the QP is idle: then the
            // first one is what the peer waits for.
            let wait = context::serving_softirq() && kernel.in_flight.load(Relaxed);
            if context::softirq_allowed() && !wait {
                self.as_arc_borrow().transmit(clock::now(), Origin::Verb);
            } else {
                self.as_arc_borrow().schedule_transmit();
            }
        }
        result
    }

    /// Posts one send request of a kernel consumer.
    fn post_one(&self, kernel: &KernelQueues, wr: &KernelWr<'_, RxeDevice>) -> Result {
        let mut short = [0u8; FEW_SGES * SGE_BYTES];
        let mut long;
        let is_short = wr.flags() & SEND_INLINE == 0 && wr.sges().nth(FEW_SGES).is_none();
        let data: &mut [u8] = if is_short {
            &mut short
        } else {
            long = [0u8; MAX_WQE_DATA];
            &mut long
        };
        let (wqe, used) = self.translate(wr, data)?;
        let data = data.get(..used).ok_or(EINVAL)?;
        let mut posted = kernel.sq.lock();
        if !kernel.sq_open.load(Relaxed) || data.len() > posted.wqe_data_len() {
            return Err(EINVAL);
        }
        if posted.push(wqe, data) {
            kernel.sq_posted.store(true, Relaxed);
            Ok(())
        } else {
            Err(ENOMEM)
        }
    }

    /// Returns the operation of a kernel consumer's request, with its parameters, if the service
    /// has it (IBTA 10.8.2).
    fn operation(&self, wr: &KernelWr<'_, RxeDevice>) -> Result<SendBody> {
        let rc = self.service == Service::Rc;
        let connected = self.service.is_connected();
        let remote = || -> Result<RemoteAddr> {
            let own = wr.rdma().ok_or(EINVAL)?;
            Ok(RemoteAddr {
                addr: own.remote_addr,
                rkey: RKey(own.rkey),
            })
        };
        let atomic = || -> Result<(RemoteAddr, u64, u64)> {
            let own = wr.atomic().ok_or(EINVAL)?;
            let at = RemoteAddr {
                addr: own.remote_addr,
                rkey: RKey(own.rkey),
            };
            Ok((at, own.compare_add, own.swap))
        };
        let datagram = || -> Result<UdDest> {
            let own = wr.ud().ok_or(EINVAL)?;
            Ok(UdDest {
                qpn: Qpn::new(own.remote_qpn),
                qkey: QKey(own.remote_qkey),
                ah: AhName::Number(own.ah.number()),
                pkey_index: own.pkey_index,
            })
        };
        let invalidated = RKey(wr.invalidate_rkey());
        Ok(match wr.opcode() {
            WrOpcode::Send if connected => SendBody::Send,
            WrOpcode::Send => SendBody::Datagram(datagram()?),
            WrOpcode::SendWithImm if connected => SendBody::SendImm(wr.imm()),
            WrOpcode::SendWithImm => SendBody::DatagramImm(datagram()?, wr.imm()),
            WrOpcode::SendWithInv if rc => SendBody::SendInv(invalidated),
            WrOpcode::RdmaWrite if connected => SendBody::Write(remote()?),
            WrOpcode::RdmaWriteWithImm if connected => SendBody::WriteImm(remote()?, wr.imm()),
            WrOpcode::RdmaRead if rc => SendBody::Read(remote()?),
            WrOpcode::AtomicCmpAndSwp if rc => {
                let (at, compare, swap) = atomic()?;
                SendBody::CmpSwp { at, compare, swap }
            }
            WrOpcode::AtomicFetchAndAdd if rc => {
                let (at, add, _) = atomic()?;
                SendBody::FetchAdd { at, add }
            }
            WrOpcode::LocalInv if rc => SendBody::Local(LocalOp::Invalidate(invalidated)),
            WrOpcode::RegMr if rc => {
                let reg = wr.reg().ok_or(EINVAL)?;
                let key = RKey(reg.key);
                if !reg.region.has_key(key) {
                    return Err(EINVAL);
                }
                SendBody::Local(LocalOp::Register(Register {
                    key,
                    iova: reg.iova,
                    length: reg.length,
                    access: reg.access,
                }))
            }
            _ => return Err(EINVAL),
        })
    }

    /// Translates a kernel consumer's request; returns the number of bytes of `data` in use.
    fn translate(&self, wr: &KernelWr<'_, RxeDevice>, data: &mut [u8]) -> Result<(SendWqe, usize)> {
        let flags = wr.flags();
        let mut out = SendWr::EMPTY;
        out.wr_id = wr.wr_id();
        out.body = self.operation(wr)?;
        out.flags = SendFlags {
            signaled: self.signal_all || flags & SEND_SIGNALED != 0,
            solicited: flags & SEND_SOLICITED != 0,
            fence: flags & SEND_FENCE != 0,
            inline: flags & SEND_INLINE != 0,
        };
        if out.body.is_local() {
            return Ok((SendWqe::new(out), 0));
        }
        let (used, checked);
        if out.flags.inline {
            if !out.body.carries_payload() {
                return Err(EINVAL);
            }
            used = wr.copy_inline(data)?;
            out.length = u32::try_from(used)?;
            checked = Ok(());
        } else {
            let mut length = 0u32;
            let mut chunks = data.chunks_exact_mut(SGE_BYTES);
            for sge in wr.sges() {
                let to = chunks.next().ok_or(EINVAL)?;
                let sge = Sge {
                    addr: sge.addr,
                    length: sge.length,
                    lkey: sge.lkey,
                };
                *to.first_chunk_mut().ok_or(EINVAL)? = sge.to_bytes();
                out.num_sge = out.num_sge.wrapping_add(1);
                length = length.checked_add(sge.length).ok_or(EINVAL)?;
            }
            used = usize::from(out.num_sge) * SGE_BYTES;
            checked = out.set_length(length);
        }
        match checked {
            Ok(()) => Ok((SendWqe::new(out), used)),
            Err(status) => Ok((SendWqe::invalid(out, status), used)),
        }
    }

    /// Posts the receive requests of a kernel consumer (IBTA 10.8.2), up to the first that is
    /// refused.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a request with too many scatter/gather entries, in RESET, or if the queue pair
    /// uses an SRQ; `ENOMEM` if the queue is full. The chain is at the request that was refused;
    /// those before it have been posted.
    pub(super) fn post_receives(self: &Arc<Self>, chain: &mut RecvChain<'_>) -> Result {
        let kernel = self.kernel.as_ref().ok_or(EINVAL)?;
        if self.srq.is_some() {
            // It has no receive queue of its own (IBTA 11.4.1.2).
            return Err(EINVAL);
        }
        let result = {
            let mut posted = kernel.rq.lock();
            if !kernel.rq_open.load(Relaxed) {
                // Nothing may be posted in RESET (IBTA 10.3.1).
                return Err(EINVAL);
            }
            let mut push = || {
                while let Some(wr) = chain.current() {
                    let sges = wr.sges().map(|s| Sge {
                        addr: s.addr,
                        length: s.length,
                        lkey: s.lkey,
                    });
                    posted.push(wr.wr_id(), sges)?;
                    chain.advance();
                }
                Ok(())
            };
            push()
        };
        // A QP in the error state flushes what is posted to it: consumers wait for the completions.
        if !context::softirq_allowed() {
            self.as_arc_borrow().schedule_transmit();
        } else if self.inner.lock().engine.state() == State::Err {
            self.as_arc_borrow().transmit(clock::now(), Origin::Verb);
        }
        result
    }
}
