// SPDX-License-Identifier: GPL-2.0
//! The engine's backend traits over rings, memory regions and completion queues.

use super::{
    offers::{
        Offer,
        Offered, //
    },
    responses::Responses,
    rq::{
        scatter,
        Rq, //
    },
    sq::Sq,
    PendingNotify,
    QpCtx,
    QpInner,
    WorkQueue, //
};
use crate::{
    device::{
        counters::{
            CounterSet,
            Counters, //
        },
        DeviceCtx, //
    },
    mr::{
        local_fault,
        remote_fault,
        CopyFault,
        Invalidation,
        MrAccess,
        TiedMrs, //
    },
    queue::{
        for_each_span,
        sges_of,
        Sge,
        ShortList,
        Span, //
    },
};
use kernel::sync::{
    atomic::Relaxed,
    Arc, //
};
use rxe_kapi::{
    net::flow::Flow,
    sync::context, //
};
use rxe_proto::{
    check::rkey::AccessError,
    engine::{
        backend::{
            AtomicOp,
            Backend,
            Completions,
            Count,
            Flushed,
            LocalFault,
            RecvQueue,
            RemoteFault,
            RemoteMemory,
            RemoteRight,
            SendQueue,
            Storage,
            TakenRecv, //
        },
        room::Room,
        wc::Wc,
        wr::{
            FlushKind,
            LocalOp,
            LocalOpFault,
            SendWqe, //
        },
        Qp as Engine, //
    },
    ids::{
        PKey,
        Qpn,
        RKey, //
    },
    table::region::Access,
    time::Instant,
    wire::{
        bytes::put,
        feth::Selectivity,
        packet::Payload,
        payload::Source,
        Feth, //
    },
};

/// The engine's backend, borrowed from a locked QP.
pub(crate) struct QpBackend<'a, 'g> {
    ctx: &'a QpCtx,
    mrs: &'a MrAccess<'g>,
    sq: &'a mut Sq,
    rq: &'a mut Rq,
    responses: &'a mut Responses,
    notify: &'a mut PendingNotify,
    offered: &'a mut Offered,
    tied_mrs: Option<&'a Arc<TiedMrs>>,
    room_at: &'a mut Option<Instant>,
    /// Number of the peer of a connected QP.
    peer: Qpn,
    pkey_index: u16,
    bound: Option<&'a Counters>,
    /// The packet that the engine handles has been stored meanwhile.
    pub(super) stored: bool,
}

impl QpInner {
    /// Splits into the engine, its backend and the path to the peer.
    #[inline]
    pub(crate) fn split<'a, 'g>(
        &'a mut self,
        ctx: &'a QpCtx,
        mrs: &'a MrAccess<'g>,
    ) -> (&'a mut Engine, QpBackend<'a, 'g>, Option<&'a Arc<Flow>>) {
        let backend = QpBackend {
            ctx,
            mrs,
            sq: &mut self.sq,
            rq: &mut self.rq,
            responses: &mut self.responses,
            notify: &mut self.notify,
            offered: &mut self.offered,
            tied_mrs: self.tied_mrs.as_ref(),
            room_at: &mut self.paging.room_at,
            peer: self.engine.attrs.dest_qpn,
            pkey_index: self.pkey_index,
            bound: self.counter.as_deref(),
            stored: false,
        };
        (&mut self.engine, backend, self.flow.as_ref())
    }
}

impl QpBackend<'_, '_> {
    fn dev(&self) -> &DeviceCtx {
        &self.ctx.dev
    }

    /// Calls `f` with the `len` bytes of payload of a packet by reference; `None` if the peer does
    /// not offer them.
    fn with_source<R>(
        &self,
        source: Source,
        len: usize,
        f: impl FnOnce(&PeerPayload<'_, '_>) -> R,
    ) -> Option<R> {
        let rcu = self.mrs.guard();
        let peer = self.dev().demux.find(rcu, self.peer)?;
        match source {
            Source::Request { index, offset } => {
                peer.with_offer(rcu, self.ctx.qpn, index, |offer, mrs| {
                    f(&PeerPayload {
                        list: offer.sges(),
                        offset,
                        rights: Access::NONE,
                        mrs,
                    })
                })
            }
            Source::Region { key, addr } => {
                let list = [Sge {
                    addr,
                    length: u32::try_from(len).ok()?,
                    lkey: key.0,
                }];
                peer.with_regions(rcu, self.ctx.qpn, self.stored, |mrs| {
                    f(&PeerPayload {
                        list: &list,
                        offset: 0,
                        rights: Access::REMOTE_READ,
                        mrs,
                    })
                })
            }
        }
    }

    /// Copies `src` to `offset` of the scatter list `list`, whose regions are those of protection
    /// domain `pd`.
    fn place(
        &self,
        pd: u64,
        list: impl Iterator<Item = Sge>,
        offset: u32,
        src: &Payload<'_>,
    ) -> Result<(), LocalFault> {
        let Some(source) = src.source() else {
            return scatter(self.mrs, pd, list, offset, src);
        };
        let copied = self.with_source(source, src.len(), |from| {
            for_each_span(list, offset, src.len(), |span| {
                let to = (pd, span.lkey, span.addr, Access::LOCAL_WRITE);
                from.copy_to(self.mrs, to, span.from, span.len)?;
                Ok(())
            })
        });
        copied.unwrap_or(Err(LocalFault::Gone))
    }
}

/// The payload of a packet by reference, in the memory of the peer.
struct PeerPayload<'a, 'g> {
    list: &'a [Sge],
    /// Where it begins in the list, in bytes.
    offset: u32,
    /// The rights that reading it takes.
    rights: Access,
    mrs: &'a MrAccess<'g>,
}

impl PeerPayload<'_, '_> {
    /// Copies the bytes `from .. from + len` of the payload to `addr` of the region `key`, whose
    /// protection domain is `pd`, by `mrs`.
    ///
    /// # Errors
    ///
    /// [`CopyFault`], the source of which is the payload.
    fn copy_to(
        &self,
        mrs: &MrAccess<'_>,
        (pd, key, addr, rights): (u64, u32, u64, Access),
        from: usize,
        len: usize,
    ) -> Result<(), CopyFault<AccessError>> {
        let from = u32::try_from(from).map_err(|_| ShortList)?;
        let offset = self.offset.checked_add(from).ok_or(ShortList)?;
        for_each_span(self.list.iter().copied(), offset, len, |span| {
            // Within the access that the caller asks for.
            let at = u64::try_from(span.from).map_err(|_| ShortList)?;
            let to = (pd, key, addr.wrapping_add(at), rights);
            let from = (span.lkey, span.addr, self.rights);
            mrs.copy_from(to, self.mrs, from, span.len)
        })
    }
}

impl SendQueue for QpBackend<'_, '_> {
    fn sends_posted(&self) -> u32 {
        self.sq.store.produced()
    }

    fn unacknowledged_limit(&self) -> u32 {
        match self.ctx.kernel {
            // Its local operations wait for the requests before them.
            Some(_) => 0,
            None => self.ctx.cap.max_send_wr / 4,
        }
    }

    fn send_wqe(&mut self, index: u32) -> Option<&mut SendWqe> {
        self.sq.wqe(index)
    }

    fn retire_sends(&mut self, index: u32) {
        self.ctx.offers.withdraw(self.offered, index);
        self.sq.retire(index);
    }

    fn offer(&mut self, index: u32) -> bool {
        if self.offered.is_newest(index) {
            return true;
        }
        let Some((wqe, data)) = self.sq.store.wqe_with_data(index) else {
            return false;
        };
        let wr = &wqe.wr;
        // This is asked for each packet that refers to nothing: first what takes no time.
        if let Some(known) = self.ctx.offers.is_offered(self.offered, index, wr.num_sge) {
            return known;
        }
        let sges = || sges_of(data).take(usize::from(wr.num_sge));
        let length = usize::try_from(wr.length).unwrap_or(usize::MAX);
        let is_pinned = |span: Span| {
            let (key, addr, len) = (span.lkey, span.addr, span.len);
            let pinned = self.mrs.is_pinned(key, addr, len, Access::NONE);
            pinned.then_some(()).ok_or(LocalFault::Refused)
        };
        if wr.flags.inline || for_each_span(sges(), 0, length, is_pinned).is_err() {
            return false;
        }
        let hint = self.mrs.hint.get();
        Offer::new(index, self.peer.get(), hint, sges())
            .is_some_and(|offer| self.ctx.offers.offer(self.offered, offer))
    }

    fn gather(&self, index: u32, offset: u32, dst: &mut [u8]) -> Result<(), LocalFault> {
        if dst.is_empty() {
            return Ok(());
        }
        let (wqe, data) = self
            .sq
            .store
            .wqe_with_data(index)
            .ok_or(LocalFault::Refused)?;
        if wqe.wr.flags.inline {
            let from = usize::try_from(offset).map_err(|_| LocalFault::Refused)?;
            let end = from.checked_add(dst.len()).ok_or(LocalFault::Refused)?;
            let data = data.get(from..end).ok_or(LocalFault::Refused)?;
            return put(dst, data).map(|_| ()).ok_or(LocalFault::Refused);
        }
        let sges = sges_of(data).take(usize::from(wqe.wr.num_sge));
        let len = dst.len();
        for_each_span(sges, offset, len, |span| {
            let end = span.from.checked_add(span.len);
            let to = end.and_then(|end| dst.get_mut(span.from..end));
            let to = to.ok_or(LocalFault::Refused)?;
            let read = self.mrs.read(span.lkey, span.addr, to, Access::NONE);
            read.map_err(local_fault)
        })
    }

    fn scatter(&self, index: u32, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        let (wqe, data) = self
            .sq
            .store
            .wqe_with_data(index)
            .ok_or(LocalFault::Refused)?;
        let sges = sges_of(data).take(usize::from(wqe.wr.num_sge));
        self.place(self.ctx.pd, sges, offset, src)
    }
}

impl RecvQueue for QpBackend<'_, '_> {
    fn take_recv(&mut self) -> TakenRecv {
        self.rq.take(self.ctx)
    }

    #[inline]
    fn cq_has_room(&mut self) -> bool {
        if !self.ctx.recv_cq.is_crowded() || !self.rq.is_pending(self.ctx) {
            return true;
        }
        // Its own requests may be what fills the queue.
        let expected = match Arc::ptr_eq(&self.ctx.send_cq, &self.ctx.recv_cq) {
            true => self.sq.expected(),
            false => 0,
        };
        *self.room_at = match self.ctx.recv_cq.room(expected) {
            Room::For(_) => None,
            Room::WaitUntil(at) => Some(at),
        };
        self.room_at.is_none()
    }

    fn scatter_recv(&self, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        // WQEs of a shared receive queue use regions of that queue's protection domain
        // (IBTA 10.2.3).
        let pd = self.ctx.srq.as_ref().map_or(self.ctx.pd, |srq| srq.pd);
        self.place(pd, self.rq.current.iter(), offset, src)
    }
}

impl RemoteMemory for QpBackend<'_, '_> {
    fn remote_check(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<(), RemoteFault> {
        self.mrs
            .check(rkey.0, addr, len, rights(right))
            .map_err(remote_fault)
    }

    fn remote_read(&self, rkey: RKey, addr: u64, dst: &mut [u8]) -> Result<(), RemoteFault> {
        self.mrs
            .read(rkey.0, addr, dst, Access::REMOTE_READ)
            .map_err(remote_fault)
    }

    fn offer_region(&mut self, rkey: RKey, addr: u64, len: u32) -> bool {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let pinned = self.mrs.is_pinned(rkey.0, addr, len, Access::REMOTE_READ);
        if pinned {
            let peer = self.peer.get();
            self.ctx.offers.offer_regions(self.offered, peer);
        }
        pinned
    }

    fn remote_write(&self, rkey: RKey, addr: u64, src: &Payload<'_>) -> Result<(), RemoteFault> {
        if let Some(source) = src.source() {
            let to = (self.ctx.pd, rkey.0, addr, Access::REMOTE_WRITE);
            let copied = self.with_source(source, src.len(), |from| {
                from.copy_to(self.mrs, to, 0, src.len())
            });
            return Ok(copied.ok_or(RemoteFault::Gone)??);
        }
        self.mrs
            .write(rkey.0, addr, src, Access::REMOTE_WRITE)
            .map_err(remote_fault)
    }

    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteFault> {
        self.mrs.atomic(rkey.0, addr, op).map_err(remote_fault)
    }

    fn remote_flush(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        kind: FlushKind,
        from: Option<u64>,
    ) -> Result<Flushed, RemoteFault> {
        let rights = flush_rights(kind.placement);
        let persistent = rights.contains(Access::FLUSH_PERSISTENT);
        let flushed = match (kind.selectivity, persistent) {
            (Selectivity::Range, true) => self.mrs.persist_range(rkey.0, addr, len, rights, from),
            (Selectivity::Region, true) => self.mrs.persist_all(rkey.0, rights, from),
            (Selectivity::Range, false) => {
                let checked = self.mrs.check(rkey.0, addr, len, rights);
                checked.map(|()| Flushed::All)
            }
            (Selectivity::Region, false) => {
                let checked = self.mrs.check_all(rkey.0, rights);
                checked.map(|()| Flushed::All)
            }
        };
        // Data of earlier requests must be in the caches, visible to all CPUs and devices, before
        // the response is.
        context::write_barrier();
        flushed.map_err(remote_fault)
    }

    fn remote_invalidate(&self, rkey: RKey) -> Result<(), RemoteFault> {
        self.mrs
            .invalidate(rkey, Invalidation::Remote)
            .map_err(remote_fault)
    }

    fn local_op(&self, op: &LocalOp) -> Result<(), LocalOpFault> {
        self.mrs.local_op(op)
    }
}

impl Completions for QpBackend<'_, '_> {
    fn complete_send(&mut self, wc: &Wc) {
        self.notify.send |= self.ctx.send_cq.push(wc, self.ctx.token);
        self.notify.note(WorkQueue::Send, wc.status);
    }

    fn complete_recv(&mut self, wc: &Wc) {
        self.notify.recv |= self.ctx.recv_cq.push(wc, self.ctx.token);
        self.notify.note(WorkQueue::Receive, wc.status);
    }

    fn wakes_process(&self) -> bool {
        self.ctx.kernel.is_none() && (self.notify.send || self.notify.recv)
    }
}

impl Backend for QpBackend<'_, '_> {
    fn storage(&mut self) -> Storage<'_> {
        self.responses.storage()
    }

    fn pkey(&self) -> PKey {
        self.dev().pkey(self.pkey_index)
    }

    fn pkey_at(&self, index: u16) -> PKey {
        self.dev().pkey(index)
    }

    fn count(&mut self, what: Count) {
        let counter_set = CounterSet {
            dev: self.dev(),
            bound: self.bound,
        };
        counter_set.each(|counters| counters.count(what));
        let suspect = match what {
            Count::SuspectAck => c"suspect_ack",
            Count::SuspectNak => c"suspect_nak",
            Count::ImplausiblePsn => c"implausible_psn",
            _ => return,
        };
        self.dev().handle.suspect(self.ctx.qpn, suspect);
    }

    fn entering_error(&mut self) {
        // They stay in the list: the verb that ends the QP waits until their memory is released.
        if let Some(tied_mrs) = self.tied_mrs {
            TiedMrs::revoke_and_release_later(tied_mrs);
        }
        self.ctx.offers.note_failure();
        // The QP may fail before it was ready to send. What is posted from now on is flushed.
        if let Some(kernel) = &self.ctx.kernel {
            kernel.sq_open.store(true, Relaxed);
        }
    }
}

/// Returns the access rights that a FLUSH with these placement bits needs.
fn flush_rights(placement: u8) -> Access {
    [
        (Feth::GLOBAL, Access::FLUSH_GLOBAL),
        (Feth::PERSISTENT, Access::FLUSH_PERSISTENT),
    ]
    .into_iter()
    .filter(|(bit, _)| placement & bit != 0)
    .fold(Access::NONE, |all, (_, right)| all.union(right))
}

fn rights(right: RemoteRight) -> Access {
    match right {
        RemoteRight::Read => Access::REMOTE_READ,
        RemoteRight::Write => Access::REMOTE_WRITE,
        RemoteRight::Atomic => Access::REMOTE_ATOMIC,
    }
}
