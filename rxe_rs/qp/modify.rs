// SPDX-License-Identifier: GPL-2.0
//! `modify_qp` and `query_qp`: all attributes are checked before any is stored.

use super::{
    engine_state,
    responses::Responses,
    state_of,
    QpCtx,
    QpInner, //
};
use crate::{
    device::DeviceCtx,
    queue::SendStore, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    net::flow::Flow,
    rand::random_u32,
    rdma::{
        av::AddressVector,
        cq::Origin,
        qp::{
            QpChange,
            QpReport,
            QpState, //
        },
    },
};
use rxe_proto::{
    engine::{
        transition::{
            self,
            TransitionError, //
        },
        State,
        MAX_RD_ATOMIC, //
    },
    ids::{
        Gid,
        Mtu,
        Psn,
        QKey,
        Qpn, //
    },
    table::region::Access,
    wire::{
        sport::source_port,
        Feth, //
    },
};

/// Bits of `enum ib_access_flags` (`include/rdma/ib_verbs.h`).
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
const FLUSH_GLOBAL: u32 = 1 << 8;
const FLUSH_PERSISTENT: u32 = 1 << 9;

/// Returns a token for the marks of the requests of a QP, 1 to 63.
fn random_token() -> u8 {
    u8::try_from(random_u32() % 63)
        .unwrap_or(0)
        .saturating_add(1)
}

impl QpCtx {
    /// Refuses values that the device does not support (IBTA 11.2.5.2).
    fn validate(&self, dev: &DeviceCtx, change: &QpChange<'_>) -> Result {
        let within = |value: Option<u8>, max: u8| value.is_none_or(|v| v <= max);
        let known = |flags: Option<u32>| flags.is_none_or(|f| Access::from_bits(f).is_some());
        let limit = dev.link_mtu().bytes();
        let rules = [
            (
                within(change.max_rd_atomic(), MAX_RD_ATOMIC),
                c"max_rd_atomic above the device's limit",
            ),
            (
                within(change.max_dest_rd_atomic(), MAX_RD_ATOMIC),
                c"max_dest_rd_atomic above the device's limit",
            ),
            (within(change.timeout(), 31), c"timeout above 31"),
            (within(change.retry_cnt(), 7), c"retry_cnt above 7"),
            (within(change.rnr_retry(), 7), c"rnr_retry above 7"),
            (
                within(change.min_rnr_timer(), 31),
                c"min_rnr_timer above 31",
            ),
            (change.port().is_none_or(|p| p == 1), c"no such port"),
            (
                known(change.access_flags()),
                c"unknown bits in qp_access_flags",
            ),
            (
                change.pkey_index().is_none_or(|i| dev.pkey_is_valid(i)),
                c"pkey_index names no P_Key",
            ),
            (
                change.dest_qpn().is_none_or(|q| q <= 0xff_ffff),
                c"dest_qp_num has more than 24 bits",
            ),
            (change.cap().is_none(), c"queue sizes cannot be changed"),
            (
                !change.touches_migration(),
                c"path migration is not supported",
            ),
            (
                change.path_mtu()?.is_none_or(|bytes| bytes <= limit),
                c"path_mtu above what the network device carries",
            ),
        ];
        match rules.into_iter().find(|(good, _)| !good) {
            Some((_, reason)) => Err(dev.handle.refuse(reason)),
            None => Ok(()),
        }
    }

    /// Returns the path that packets to `av` take.
    fn flow_to(&self, dev: &DeviceCtx, av: &AddressVector, dest_qpn: u32) -> Result<Arc<Flow>> {
        let sport = source_port(av.flow_label, Qpn::new(self.qpn), Qpn::new(dest_qpn));
        dev.flow_for(av, sport, true)
    }

    /// Returns false if packets of path MTU `mtu` do not fit the path with what IPsec adds to them
    /// now.
    fn ipsec_leaves_room(flow: &Flow, mtu: Mtu) -> bool {
        let headers = u32::try_from(flow.headers_len()).unwrap_or(u32::MAX);
        flow.ipsec_mtu()
            .is_none_or(|longest| mtu.fits(longest, headers))
    }

    /// Changes attributes, all or none.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a transition or a value that is not allowed, for addresses of different
    /// families, or if the queue pair failed meanwhile; `ENOMEM`. No attribute has changed then.
    pub(super) fn modify_qp(&self, dev: &Arc<DeviceCtx>, change: &QpChange<'_>) -> Result {
        if matches!(change.state()?, Some(QpState::Err | QpState::Reset)) {
            self.quiesce();
        }
        let mut config = self.config.lock();
        let current = state_of(self.inner.lock().engine.state());
        if change
            .cur_state()?
            .is_some_and(|claimed| claimed != current)
        {
            let reason = c"cur_qp_state is not the queue pair's state";
            return Err(dev.handle.refuse(reason));
        }
        let next = change.state()?.unwrap_or(current);
        let (from, to) = (engine_state(current), engine_state(next));
        if let Err(error) = transition::check(self.service, from, to, change.mask()) {
            return Err(dev.handle.refuse(match error {
                TransitionError::NoTransition => c"no such state change",
                TransitionError::Missing(_) => c"state change without the attributes it needs",
                TransitionError::NotAllowed(_) => c"attributes that this state change cannot have",
            }));
        }
        self.validate(dev, change)?;
        let path = change.av()?;
        let flow = match (&path, self.service.is_connected()) {
            (Some(av), true) => {
                let dest = change.dest_qpn();
                let dest = dest.unwrap_or_else(|| self.inner.lock().engine.attrs.dest_qpn.get());
                Some(self.flow_to(dev, av, dest)?)
            }
            _ => None,
        };
        let mtu = match change.path_mtu()? {
            Some(bytes) => Some(Mtu::from_bytes(bytes).ok_or(EINVAL)?),
            // The MTU of datagrams is that of the port.
            None if next == QpState::Init && !self.service.is_connected() => Some(dev.active_mtu()),
            None => None,
        };
        if let Some(flow) = &flow {
            let mtu = mtu.unwrap_or_else(|| self.inner.lock().engine.attrs.mtu);
            if !Self::ipsec_leaves_room(flow, mtu) {
                let reason = c"path_mtu above what IPsec leaves room for on this path";
                return Err(dev.handle.refuse(reason));
            }
        }
        let mut responses = match change.max_dest_rd_atomic() {
            Some(resources) => {
                let current = self.inner.lock().responses.resources();
                Responses::larger(resources, current)?
            }
            None => None,
        };
        let mut sends = match next {
            QpState::Rts => self.kernel_send_slots()?,
            _ => None,
        };
        let old_flow;
        let mut tied_mrs = None;
        {
            let rcu = rcu::read_lock();
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            if state_of(inner.engine.state()) != current
                && !matches!(next, QpState::Reset | QpState::Err)
            {
                drop(guard);
                return Err(dev.handle.refuse(c"the queue pair failed meanwhile"));
            }
            if let Some(responses) = &mut responses {
                inner.responses.replace(responses, &mut inner.engine);
            }
            if let Some(sends) = &mut sends {
                inner.sq.store.replace(sends);
            }
            self.store(inner, change);
            if next == QpState::Sqd && current != next {
                inner.engine.attrs.sqd_async_notify = change.sqd_notify().unwrap_or(false);
            }
            if let Some(mtu) = mtu {
                inner.engine.attrs.mtu = mtu;
            }
            if let Some(av) = &path {
                inner.peer = Gid(av.dgid);
                inner.own = Gid(av.sgid);
            }
            old_flow = match flow {
                Some(flow) => {
                    inner.engine.path_changed();
                    inner.flow.replace(flow)
                }
                None => None,
            };
            if next == QpState::Err || (next == QpState::Reset && current != QpState::Reset) {
                tied_mrs = inner.tied_mrs.take();
                // Before requests are flushed: a process sees their completions at once.
                // Accesses in progress through other QPs end before `release_memory` returns.
                if let Some(tied_mrs) = &tied_mrs {
                    tied_mrs.revoke();
                }
            }
            self.enter(&rcu, inner, current, next);
            self.unlock_and_notify(&rcu, guard, Origin::Verb);
        }
        drop(old_flow);
        if let Some(av) = path {
            config.av = Some(av);
        }
        if let Some(flags) = change.access_flags() {
            config.access_flags = flags;
        }
        if let Some(port) = change.port() {
            config.port = port;
        }
        if next == QpState::Reset {
            config.av = None;
            config.access_flags = 0;
            self.abandon_page_fault();
        }
        drop(config);
        if let Some(tied_mrs) = tied_mrs {
            tied_mrs.release_memory();
        }
        self.kick(Origin::Verb);
        Ok(())
    }

    /// Allocates slots for the requests that a kernel consumer may post, if there are fewer.
    fn kernel_send_slots(&self) -> Result<Option<SendStore>> {
        let Some(kernel) = &self.kernel else {
            return Ok(None);
        };
        let (slots, wqe_data_len) = {
            let posted = kernel.sq.lock();
            (posted.slots(), posted.wqe_data_len())
        };
        let shortage = self.inner.lock().sq.shortage_for(slots);
        match shortage {
            Some(slots) => SendStore::new(slots, wqe_data_len).map(Some),
            None => Ok(None),
        }
    }

    /// Stores the attributes of a change that has been checked.
    fn store(&self, inner: &mut QpInner, change: &QpChange<'_>) {
        let attrs = &mut inner.engine.attrs;
        if let Some(flags) = change.access_flags() {
            attrs.remote_write = flags & REMOTE_WRITE != 0;
            attrs.remote_read = flags & REMOTE_READ != 0;
            attrs.remote_atomic = flags & REMOTE_ATOMIC != 0;
            attrs.remote_flush = [
                (FLUSH_GLOBAL, Feth::GLOBAL),
                (FLUSH_PERSISTENT, Feth::PERSISTENT),
            ]
            .into_iter()
            .filter(|(flag, _)| flags & flag != 0)
            .fold(0, |all, (_, placement)| all | placement);
            if !attrs.remote_read {
                // Of responses sent by reference the peer may not have copied the payload yet.
                self.offers.withdraw_regions(&mut inner.offered);
            }
        }
        if let Some(qkey) = change.qkey() {
            attrs.qkey = QKey(qkey);
        }
        if let Some(qpn) = change.dest_qpn() {
            attrs.dest_qpn = Qpn::new(qpn);
        }
        let small = [
            (change.timeout(), &mut attrs.timeout),
            (change.retry_cnt(), &mut attrs.retry_cnt),
            (change.rnr_retry(), &mut attrs.rnr_retry),
            (change.min_rnr_timer(), &mut attrs.min_rnr_timer),
            (change.max_rd_atomic(), &mut attrs.max_rd_atomic),
            (change.max_dest_rd_atomic(), &mut attrs.max_dest_rd_atomic),
        ];
        for (value, place) in small {
            if let Some(value) = value {
                *place = value;
            }
        }
        if let Some(psn) = change.rq_psn() {
            inner.engine.attrs.token = match self.dev.selective_repeat {
                true => random_token(),
                false => 0,
            };
            inner.engine.set_rq_psn(Psn::new(psn));
        }
        if let Some(psn) = change.sq_psn() {
            inner.engine.set_sq_psn(Psn::new(psn));
        }
        if let Some(index) = change.pkey_index() {
            inner.pkey_index = index;
        }
    }

    /// Moves the QP to its next state: stops or flushes what that does not accept.
    fn enter(&self, rcu: &rcu::Guard, inner: &mut QpInner, current: QpState, next: QpState) {
        if next == current && next != QpState::Err && next != QpState::Reset {
            return;
        }
        if let Some(kernel) = &self.kernel {
            let accepts_sends = Self::accepts_sends(engine_state(next));
            kernel.sq_open.store(accepts_sends, Relaxed);
            kernel.rq_open.store(next != QpState::Reset, Relaxed);
        }
        if next == QpState::Err {
            self.offers.withdraw_regions(&mut inner.offered);
        }
        if next == QpState::Reset {
            self.offers.withdraw_all(&mut inner.offered);
            inner.sq.discard(self.kernel.as_deref());
            inner.rq.discard(self.kernel.as_deref());
            inner.flow = None;
            inner.paging.reset();
            inner.kept.clear();
            inner.pkey_index = 0;
        }
        if matches!(next, QpState::Err | QpState::Sqe) {
            inner.sq.fetch(self.kernel.as_deref(), u32::MAX);
        }
        let mrs = self.mr_access(rcu, inner);
        if current == QpState::Sqe && next == QpState::Rts {
            // What was posted before it leaves SQE is flushed, not executed: the store has room for
            // a part of the ring only.
            // What a process posts meanwhile must not keep this loop running.
            let mut most = self.cap.max_send_wr;
            while most > 0 {
                let before = inner.sq.store.produced();
                let left = inner.sq.fetch(self.kernel.as_deref(), u32::MAX);
                let fetched = inner.sq.store.produced().wrapping_sub(before);
                most = most.saturating_sub(fetched.max(1));
                let (engine, mut backend, _) = inner.split(self, &mrs);
                engine.flush_posted(&mut backend);
                if !left {
                    break;
                }
            }
        }
        let (engine, mut backend, _) = inner.split(self, &mrs);
        engine.set_state(engine_state(next), &mut backend);
    }

    /// Attributes of the QP, as they are now (IBTA 11.2.5.3).
    pub(super) fn query_qp(&self) -> QpReport {
        let config = self.config.lock();
        let inner = self.inner.lock();
        let attrs = &inner.engine.attrs;
        let state = inner.engine.state();
        QpReport {
            state: state_of(state),
            sq_draining: state == State::Sqd && !inner.engine.is_drained(),
            path_mtu: attrs.mtu.bytes(),
            qkey: attrs.qkey.0,
            rq_psn: inner.engine.rq_psn().get(),
            sq_psn: inner.engine.sq_psn().get(),
            dest_qpn: attrs.dest_qpn.get(),
            access_flags: config.access_flags,
            cap: self.cap,
            av: config.av,
            pkey_index: inner.pkey_index,
            port: config.port,
            max_rd_atomic: attrs.max_rd_atomic,
            max_dest_rd_atomic: attrs.max_dest_rd_atomic,
            min_rnr_timer: attrs.min_rnr_timer,
            timeout: attrs.timeout,
            retry_cnt: attrs.retry_cnt,
            rnr_retry: attrs.rnr_retry,
            signal_all: self.signal_all,
        }
    }
}
