// SPDX-License-Identifier: GPL-2.0
//! Asynchronous events of queue pairs, completion queues and ports.
//!
//! Events are raised from any context and delivered from a work queue, because consumers may
//! sleep in their handlers.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::deferred::{
    Deferred,
    Queue,
    Target, //
};
use crate::{
    bindings,
    sync::PendingSet, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Asynchronous event of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEvent {
    /// The QP entered the error state, and no work request is the reason.
    Fatal,
    /// The QP received an invalid request and entered the error state.
    RequestError,
    /// The QP received a request without the access rights for it and entered the error state.
    AccessError,
    /// The QP received its first packet in state RTR.
    CommEstablished,
    /// The send queue has drained after a change to SQD.
    SqDrained,
    /// A QP with a shared receive queue consumes no further WQE after an error.
    LastWqeReached,
}

impl QpEvent {
    const fn raw(self) -> bindings::ib_event_type {
        match self {
            Self::Fatal => bindings::ib_event_type_IB_EVENT_QP_FATAL,
            Self::RequestError => bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
            Self::AccessError => bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
            Self::CommEstablished => bindings::ib_event_type_IB_EVENT_COMM_EST,
            Self::SqDrained => bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
            Self::LastWqeReached => bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
        }
    }
}

/// Delivers the pending events of one QP.
struct QpTarget {
    pending: PendingSet,
    qp: *mut bindings::ib_qp,
}

// SAFETY: The pointer is dereferenced only by `run`, which has ended before the QP is freed.
unsafe impl Send for QpTarget {}
// SAFETY: As above.
unsafe impl Sync for QpTarget {}

impl Target for QpTarget {
    fn run(&self) -> bool {
        let pending = self.pending.take();
        for event in 0..u32::BITS {
            if pending & (1 << event) == 0 {
                continue;
            }
            // SAFETY: `destroy_qp` stops this target before the core frees the QP, and the
            // handler was set before `create_qp`.
            unsafe {
                let qp = self.qp;
                let mut raw: bindings::ib_event = pin_init::zeroed();
                raw.device = (*qp).device;
                *raw.element.qp.as_mut() = qp;
                raw.event = event;
                if let Some(handler) = (*qp).event_handler {
                    handler(&mut raw, (*qp).qp_context);
                }
            }
        }
        true
    }
}

/// Raises asynchronous events of one QP. Keeps no reference to the QP's context.
#[pin_data]
pub struct QpEvents {
    #[pin]
    deferred: Deferred<QpTarget>,
}

impl QpEvents {
    pub(crate) fn new(qp: *mut bindings::ib_qp) -> Result<Arc<Self>> {
        let target = QpTarget {
            pending: PendingSet::new(),
            qp,
        };
        Arc::pin_init(
            pin_init!(Self {
                deferred <- Deferred::new(target, c"QpEvents", kernel::static_lock_class!()),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Raises `event`; events of one kind that have not been delivered are merged.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn raise(&self, event: QpEvent) {
        self.deferred.target().pending.raise(1 << event.raw());
        self.deferred.kick(Queue::Process);
    }

    /// Waits for a running handler; none runs afterwards.
    pub(crate) fn stop(&self) {
        self.deferred.stop();
    }
}

/// Delivers the limit event of one SRQ.
struct SrqTarget(*mut bindings::ib_srq);

// SAFETY: The pointer is dereferenced only by `run`, which has ended before the SRQ is freed.
unsafe impl Send for SrqTarget {}
// SAFETY: As above.
unsafe impl Sync for SrqTarget {}

impl Target for SrqTarget {
    fn run(&self) -> bool {
        // SAFETY: `destroy_srq` stops this target before the core frees the SRQ, and the handler
        // was set before `create_srq`.
        unsafe {
            let srq = self.0;
            let mut raw: bindings::ib_event = pin_init::zeroed();
            raw.device = (*srq).device;
            *raw.element.srq.as_mut() = srq;
            raw.event = bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED;
            if let Some(handler) = (*srq).event_handler {
                handler(&mut raw, (*srq).srq_context);
            }
        }
        true
    }
}

/// Raises asynchronous events of one SRQ. Keeps no reference to the SRQ's context.
#[pin_data]
pub struct SrqEvents {
    #[pin]
    deferred: Deferred<SrqTarget>,
}

impl SrqEvents {
    pub(crate) fn new(srq: *mut bindings::ib_srq) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                deferred <- Deferred::new(
                    SrqTarget(srq),
                    c"SrqEvents",
                    kernel::static_lock_class!(),
                ),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Raises the event that the number of outstanding requests has fallen below the limit.
    ///
    /// # Context
    ///
    /// Any context.
    pub fn limit_reached(&self) {
        self.deferred.kick(Queue::Process);
    }

    /// Waits for a running handler; none runs afterwards.
    pub(crate) fn stop(&self) {
        self.deferred.stop();
    }
}

/// Asynchronous event of a port. The RDMA core raises those about its state and its GID table
/// itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// The P_Key table changed.
    PkeyChange,
    /// Attributes of the port, such as its MTU, changed.
    ClientReregister,
}

impl PortEvent {
    pub(crate) const fn raw(self) -> bindings::ib_event_type {
        match self {
            Self::PkeyChange => bindings::ib_event_type_IB_EVENT_PKEY_CHANGE,
            Self::ClientReregister => bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER,
        }
    }
}
