// SPDX-License-Identifier: GPL-2.0
//! Creation of a queue pair: sizes are granted, queues allocated and mapped, a number reserved, and
//! the QP entered into the tables that received packets are routed by.

use super::{
    kept::KeptPackets,
    offers::{
        Offered,
        Offers, //
    },
    paging::Paging,
    responses::Responses,
    rq::{
        Rq,
        Source as ReceiveSource, //
    },
    sq::{
        Source as SendSource,
        Sq, //
    },
    Engine,
    KernelQueues,
    PendingNotify,
    QpCtx,
    QpInner,
    VerbsAttrs, //
};
use crate::{
    device::{
        DeviceCtx,
        RxeDevice, //
    },
    limits::{
        MAX_INLINE,
        MAX_SGE,
        MAX_WR, //
    },
    pager::PageIn,
    queue::{
        map_info,
        RecvList,
        RecvStore,
        SendStore,
        SGE_BYTES, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc, //
    },
    workqueue::new_work, //
};
use rxe_kapi::{
    mem::ring::UserRing,
    net::tx::TxOwner,
    new_spinlock_bh,
    new_spinlock_irq,
    rdma::{
        qp::{
            QpCap,
            QpConsumer,
            QpCreated,
            QpInit,
            QpType, //
        },
        udata::Mapping, //
    },
    series::unsupported,
    time::SoftTimer, //
};
use rxe_proto::{
    abi::{
        layout::{
            RECV_WQE_LEN,
            SEND_WQE_LEN, //
        },
        SendLimits, //
    },
    engine::Service,
    ids::{
        Gid,
        Qpn, //
    },
};

/// Returns the entries of a ring for `wanted` requests; one of them always stays empty.
fn ring_entries(wanted: u32) -> Result<u32> {
    if wanted > MAX_WR {
        return Err(EINVAL);
    }
    Ok((wanted.max(1) + 1).next_power_of_two())
}

impl QpCtx {
    /// Creates a QP in RESET that packets find.
    ///
    /// # Errors
    ///
    /// `EINVAL` and `EOPNOTSUPP` for what the device does not support, `ENOMEM`; `EFAULT` if the
    /// response to the process cannot be written.
    pub(super) fn create_qp(
        dev: &Arc<DeviceCtx>,
        init: QpInit<'_, RxeDevice>,
    ) -> Result<QpCreated<Self>> {
        if init.create_flags != 0 {
            let reason = c"create_flags are not supported";
            return Err(dev.handle.refuse_with(unsupported(), reason));
        }
        let is_process = matches!(init.consumer, QpConsumer::Process(_));
        let service = match init.qp_type {
            QpType::Gsi => Service::Gsi,
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            // Raw packet QPs are for user space only.
            QpType::Raw if !is_process || !dev.netdev.is_ethernet() => {
                let reason = c"no raw packet queue pairs here";
                return Err(dev.handle.refuse_with(unsupported(), reason));
            }
            QpType::Raw => Service::Raw,
        };
        let mut requested = init.cap;
        if init.srq.is_some() {
            // There is no receive queue to size (IBTA 11.2.5.1).
            requested.max_recv_wr = 0;
            requested.max_recv_sge = 0;
        }
        let (mut cap, wqe_data_len, sq_entries, rq_entries) =
            Self::grant_caps(dev, &requested, is_process)?;
        if init.srq.is_some() {
            cap.max_recv_wr = 0;
        }
        let recv_sge = usize::try_from(requested.max_recv_sge)?;
        let recv_list = RecvList::new(init.srq.map_or(recv_sge, |srq| srq.max_sge()))?;
        let mut maps: [Option<Mapping>; 2] = [None, None];
        if init.srq.is_some() && service == Service::Gsi {
            return Err(dev.handle.refuse(c"QP1 has no shared receive queue"));
        }
        let (sends, receives, kernel) = match init.consumer {
            QpConsumer::Process(call) => {
                let sq_elem = SEND_WQE_LEN + wqe_data_len;
                let rq_elem = RECV_WQE_LEN + recv_sge * SGE_BYTES;
                let sq = UserRing::lazy(sq_entries, sq_elem.next_power_of_two())?;
                let sq_map = call.map(sq.buffer())?;
                let receives = match init.srq {
                    Some(_) => ReceiveSource::Shared,
                    None => {
                        let ring = UserRing::lazy(rq_entries, rq_elem.next_power_of_two())?;
                        maps[0] = Some(call.map(ring.buffer())?);
                        ReceiveSource::User {
                            ring,
                            max_sge: u8::try_from(recv_sge)?,
                            scratch: KVec::from_elem(0, rq_elem, GFP_KERNEL_ACCOUNT)?,
                        }
                    }
                };
                call.respond(&response(maps[0].as_ref(), &sq_map)?)?;
                maps[1] = Some(sq_map);
                let sends = SendSource::User {
                    ring: sq,
                    limits: SendLimits {
                        service,
                        max_sge: u8::try_from(cap.max_send_sge)?,
                        max_inline: cap.max_inline_data,
                        signal_all: init.signal_all,
                    },
                    scratch: KVec::from_elem(0, sq_elem, GFP_KERNEL_ACCOUNT)?,
                };
                (sends, receives, None)
            }
            QpConsumer::Kernel(memory) => {
                let posted = SendStore::new(sq_entries, wqe_data_len)?;
                let source = match init.srq {
                    Some(_) => ReceiveSource::Shared,
                    None => ReceiveSource::Kernel,
                };
                let receives = RecvStore::new(rq_entries, recv_sge)?;
                let queues = KBox::pin_init(
                    pin_init!(KernelQueues {
                        sq <- new_spinlock_irq!(posted, "KernelQueues::sq"),
                        rq <- new_spinlock_irq!(receives, "KernelQueues::rq"),
                        sq_open: Atomic::new(false),
                        sq_posted: Atomic::new(false),
                        rq_open: Atomic::new(false),
                        in_flight: Atomic::new(false),
                        memory,
                    }),
                    GFP_KERNEL_ACCOUNT,
                )?;
                (SendSource::Kernel, source, Some(queues))
            }
        };
        let demux = &dev.demux;
        let reserved = match service {
            Service::Gsi => None,
            _ => Some(demux.reserve_qpn()?),
        };
        let qpn = reserved
            .as_ref()
            .map_or(Qpn::GSI.get(), |reserved| reserved.number());
        let sq = Sq::new(sends, wqe_data_len)?;
        let page_in = PageIn::new()?;
        let paging = Paging::new(page_in.clone());
        // Initialized in place: it is too large for the stack.
        let inner = init!(QpInner {
            engine: Engine::new(service, Qpn::new(qpn), receives.kind()),
            sq,
            offered: Offered::default(),
            rq: Rq {
                source: receives,
                current: recv_list,
            },
            responses: Responses::new(),
            notify: PendingNotify::default(),
            flow: None,
            peer: Gid::ZERO,
            own: Gid::ZERO,
            pkey_index: 0,
            extent: 0,
            paging,
            kept: KeptPackets::new(),
            tied_mrs: None,
            counter: None,
            transmitting: false,
            sent_since_full: 0,
            pauses: 0,
            sent_since_resumed: 0,
            accounted: false,
            shares_device: false,
            resuming: false,
            round_requested: false,
            destroyed: false,
        });
        let config = VerbsAttrs {
            access_flags: 0,
            av: None,
            port: 1,
        };
        let ctx = Arc::pin_init(
            try_pin_init!(Self {
                qpn,
                service,
                pd: init.pd.number(),
                srq: init.srq.cloned(),
                dev: dev.clone(),
                token: init.token,
                cap,
                signal_all: init.signal_all,
                events: init.events.clone(),
                send_cq: init.send_cq.clone(),
                recv_cq: init.recv_cq.clone(),
                kernel,
                config <- new_mutex!(config, "QpCtx::config"),
                inner <- new_spinlock_bh!(inner, "QpCtx::inner"),
                offers <- Offers::new(),
                queued: TxOwner::new()?,
                timer <- SoftTimer::new(),
                work <- new_work!("QpCtx::work"),
                resume_work <- new_work!("QpCtx::resume_work"),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        let ctx: Arc<Self> = ctx?;
        ctx.timer.bind(&ctx);
        page_in.bind(&ctx);
        let joined = ctx.join_cqs();
        if let Err(e) = joined.and_then(|()| demux.publish(&ctx, reserved)) {
            ctx.leave_cqs();
            ctx.timer.shutdown();
            page_in.unbind();
            return Err(e);
        }
        Ok(QpCreated {
            ctx,
            qpn,
            cap,
            maps,
        })
    }

    /// Checks the requested sizes and grants at least as much.
    fn grant_caps(dev: &DeviceCtx, cap: &QpCap, user: bool) -> Result<(QpCap, usize, u32, u32)> {
        let sge = u32::try_from(MAX_SGE)?;
        if cap.max_send_sge > sge || cap.max_recv_sge > sge || cap.max_inline_data > MAX_INLINE {
            return Err(dev
                .handle
                .refuse(c"more SGEs or inline data than the device's limit"));
        }
        if cap.max_send_wr > MAX_WR || cap.max_recv_wr > MAX_WR {
            return Err(dev
                .handle
                .refuse(c"more work requests than the device's limit"));
        }
        let list = cap.max_send_sge.max(1) * 16;
        let wqe_data = list.max(cap.max_inline_data.next_multiple_of(16));
        // The queue of a kernel consumer is no ring, and needs no empty slot.
        let (sq, max_send_wr) = if user {
            let entries = ring_entries(cap.max_send_wr)?;
            (entries, entries - 1)
        } else {
            let slots = cap.max_send_wr.max(1).next_power_of_two();
            (slots, slots.min(MAX_WR))
        };
        let rq = ring_entries(cap.max_recv_wr)?;
        let granted = QpCap {
            max_send_wr,
            max_recv_wr: rq - 1,
            max_send_sge: if user {
                wqe_data / 16
            } else {
                cap.max_send_sge
            },
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: if user { wqe_data } else { cap.max_inline_data },
        };
        Ok((granted, usize::try_from(wqe_data)?, sq, rq))
    }
}

/// `struct rxe_create_qp_resp`: mmap offsets of the receive ring, if the QP has one, and of the
/// send ring.
fn response(rq: Option<&Mapping>, sq: &Mapping) -> Result<[u8; 32]> {
    let mut bytes = [0u8; 32];
    let (to_rq, to_sq) = bytes.split_at_mut(16);
    if let Some(rq) = rq {
        to_rq.copy_from_slice(&map_info(rq)?);
    }
    to_sq.copy_from_slice(&map_info(sq)?);
    Ok(bytes)
}
