// SPDX-License-Identifier: GPL-2.0
//! The engine's ports over rings, pinned memory and completion queues.

use super::{
    recv::Receives,
    QpCtx, //
};
use crate::{
    cq::CqCtx,
    device::DeviceCtx,
    mr::Mrs,
    queue::{
        for_each_span,
        SendStore,
        Sge,
        SGE_BYTES, //
    },
};
use kernel::sync::rcu;
use rxe_proto::{
    check::rkey::Rights,
    engine::{
        ports::{
            AtomicOp,
            Count,
            LocalFault,
            Ports,
            RemoteFault,
            RemoteRight,
            Taken, //
        },
        wc::Wc,
        wr::SqSlot, //
    },
    ids::{
        PKey,
        RKey, //
    },
    wire::packet::Payload, //
};

/// What the engine works on, borrowed from a locked QP.
pub(super) struct QpPorts<'a> {
    pub(super) ctx: &'a QpCtx,
    pub(super) sends: &'a mut SendStore,
    pub(super) receives: &'a mut Receives,
    pub(super) pkey_index: u16,
}

impl QpPorts<'_> {
    fn dev(&self) -> &DeviceCtx {
        &self.ctx.dev
    }

    fn mrs(&self) -> &Mrs {
        &self.ctx.dev.mrs
    }

    /// The scatter/gather entries in the area of a send request.
    fn sges(area: &[u8], count: u8) -> impl Iterator<Item = Sge> + '_ {
        area.chunks_exact(SGE_BYTES).take(usize::from(count)).map(Sge::from_bytes)
    }
}

impl Ports for QpPorts<'_> {
    fn sq_produced(&self) -> u32 {
        self.sends.produced()
    }

    fn sq_slot(&mut self, index: u32) -> Option<&mut SqSlot> {
        self.sends.slot(index)
    }

    fn sq_retire(&mut self, index: u32) {
        self.sends.retire(index);
        self.ctx.publish_retired(index);
    }

    fn gather(&self, index: u32, offset: u32, dst: &mut [u8]) -> Result<(), LocalFault> {
        if dst.is_empty() {
            return Ok(());
        }
        let (slot, area) = self.sends.with_area(index).ok_or(LocalFault)?;
        if slot.wr.flags.inline {
            let from = usize::try_from(offset).map_err(|_| LocalFault)?;
            let end = from.checked_add(dst.len()).ok_or(LocalFault)?;
            dst.copy_from_slice(area.get(from..end).ok_or(LocalFault)?);
            return Ok(());
        }
        let guard = rcu::read_lock();
        let sges = Self::sges(area, slot.wr.num_sge);
        let len = dst.len();
        for_each_span(sges, offset, len, |span| {
            let to = dst.get_mut(span.from..span.from.checked_add(span.len)?)?;
            let pd = self.ctx.pd;
            self.mrs().read(&guard, pd, span.lkey, span.addr, to, Rights::LOCAL_READ).ok()
        })
        .ok_or(LocalFault)
    }

    fn scatter(&self, index: u32, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        let (slot, area) = self.sends.with_area(index).ok_or(LocalFault)?;
        let guard = rcu::read_lock();
        let sges = Self::sges(area, slot.wr.num_sge);
        self.ctx.scatter(&guard, sges, offset, src)
    }

    fn recv_take(&mut self) -> Taken {
        self.receives.take(self.ctx)
    }

    fn recv_scatter(&self, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault> {
        let guard = rcu::read_lock();
        self.ctx.scatter(&guard, self.receives.current.iter(), offset, src)
    }

    fn remote_check(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<(), RemoteFault> {
        let guard = rcu::read_lock();
        self.mrs()
            .check(&guard, self.ctx.pd, rkey.0, addr, u64::from(len), rights(right))
            .map_err(|_| RemoteFault)
    }

    fn remote_read(&self, rkey: RKey, addr: u64, dst: &mut [u8]) -> Result<(), RemoteFault> {
        let guard = rcu::read_lock();
        self.mrs()
            .read(&guard, self.ctx.pd, rkey.0, addr, dst, Rights::REMOTE_READ)
            .map_err(|_| RemoteFault)
    }

    fn remote_write(&self, rkey: RKey, addr: u64, src: &Payload<'_>) -> Result<(), RemoteFault> {
        let guard = rcu::read_lock();
        self.mrs()
            .write(&guard, self.ctx.pd, rkey.0, addr, src, Rights::REMOTE_WRITE)
            .map_err(|_| RemoteFault)
    }

    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteFault> {
        let guard = rcu::read_lock();
        self.mrs().atomic(&guard, self.ctx.pd, rkey.0, addr, op).map_err(|_| RemoteFault)
    }

    fn complete_send(&mut self, wc: &Wc) {
        complete(&self.ctx.send_cq, wc);
    }

    fn complete_recv(&mut self, wc: &Wc) {
        complete(&self.ctx.recv_cq, wc);
    }

    fn pkey(&self) -> PKey {
        self.dev().pkey(self.pkey_index)
    }

    fn count(&mut self, what: Count) {
        self.dev().counters.count(what);
    }
}

fn complete(cq: &CqCtx, wc: &Wc) {
    cq.push(wc);
}

fn rights(right: RemoteRight) -> Rights {
    match right {
        RemoteRight::Read => Rights::REMOTE_READ,
        RemoteRight::Write => Rights::REMOTE_WRITE,
        RemoteRight::Atomic => Rights::REMOTE_ATOMIC,
    }
}
