// SPDX-License-Identifier: GPL-2.0
//! Work requests that change keys (REG_MR, BIND_MW, LOCAL_INV) and remote invalidation, in softirq
//! or process context with the queue pair locked.

use super::{
    Frwr,
    MrAccess,
    MrCtx,
    MrKind, //
};
use kernel::sync::atomic::Relaxed;
use rxe_kapi::{
    mem::Memory,
    sync::context::disable_bh, //
};
use rxe_proto::{
    check::rkey::AccessError,
    engine::wr::{
        LocalOp,
        LocalOpFault,
        Register, //
    },
    ids::RKey,
    table::region::{
        Access,
        MrDesc,
        State, //
    },
};

/// The side that invalidates a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// A local work request: invalidating what is already invalid succeeds.
    Local,
    /// A SEND with invalidate of the peer: only what grants it access can be invalidated.
    Remote,
}

impl MrCtx {
    /// Returns the upper 24 bits of the key.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns true if `key` has this object's index, so that it is or may become its key.
    pub(crate) fn has_key(&self, key: RKey) -> bool {
        key.index() == self.index
    }
}

impl MrAccess<'_> {
    /// Executes a local operation (REG_MR, BIND_MW, LOCAL_INV).
    ///
    /// # Errors
    ///
    /// [`LocalOpFault`]; nothing has changed then.
    pub(crate) fn local_op(&self, op: &LocalOp) -> Result<(), LocalOpFault> {
        match op {
            LocalOp::Invalidate(key) => self
                .invalidate(*key, Invalidation::Local)
                .map_err(|_| LocalOpFault),
            LocalOp::Bind(bind) => {
                let window = self.find(bind.window.0).map_err(|_| LocalOpFault)?;
                // Unbinding needs no region.
                let region = match bind.length {
                    0 => None,
                    _ => self.mrs.table.borrow(RKey(bind.region).index(), self.guard),
                };
                match &window.mr.kind {
                    MrKind::Window(own) => {
                        let qp = (self.pd, self.qpn);
                        own.bind(window.mr.pd, region, qp, bind, self.guard)
                    }
                    _ => Err(LocalOpFault),
                }
            }
            LocalOp::Register(reg) => {
                let mr = self.find(reg.key.0).map_err(|_| LocalOpFault)?.mr;
                match &mr.kind {
                    MrKind::Frwr(frwr) if mr.pd == self.pd => frwr.register(self.pd, reg),
                    _ => Err(LocalOpFault),
                }
            }
        }
    }

    /// Invalidates `key`, which is that of a type 2 window or an FRWR region (IBTA 10.6.5). No
    /// access uses it any more when this returns.
    ///
    /// # Errors
    ///
    /// If there is no such key in this protection domain or queue pair, or if it cannot be
    /// invalidated.
    pub(crate) fn invalidate(&self, key: RKey, by: Invalidation) -> Result<(), AccessError> {
        let mr = self.find(key.0)?.mr;
        if mr.pd != self.pd {
            return Err(AccessError::WrongPd);
        }
        match &mr.kind {
            MrKind::VerbsMr(_) => Err(AccessError::NoRight),
            MrKind::Frwr(frwr) => frwr.invalidate(key, by),
            MrKind::Window(window) => window.invalidate(key, by, self.qpn),
        }
    }
}

impl Frwr {
    /// Returns the access rights of the current registration.
    pub(crate) fn access(&self) -> u32 {
        let _bh = disable_bh();
        self.registration
            .try_access()
            .map_or(Access::NONE, |desc| desc.access)
            .bits()
    }

    /// Registers the page list.
    fn register(&self, pd: u64, reg: &Register) -> Result<(), LocalOpFault> {
        let access = Access::from_bits(reg.access).ok_or(LocalOpFault)?;
        let Memory::Pages(pages) = &self.memory else {
            return Err(LocalOpFault);
        };
        let wraps = reg.iova.checked_add(reg.length).is_none();
        // The pages are not checked for persistence here: they are ordinary memory.
        let persistent = access.contains(Access::FLUSH_PERSISTENT);
        if !access.is_consistent() || persistent || reg.length > pages.len() || wraps {
            return Err(LocalOpFault);
        }
        let check = |registration: Option<&MrDesc>| {
            // It must have been invalidated before.
            match registration.is_some() || self.deregistered.load(Relaxed) {
                true => Err(LocalOpFault),
                false => Ok(()),
            }
        };
        self.registration.update_if(check, |registration| {
            *registration = Some(MrDesc {
                pd,
                key: reg.key.0,
                iova: reg.iova,
                length: reg.length,
                access,
                state: State::Valid,
            });
            self.key.store(reg.key.0, Relaxed);
        })
    }

    /// Ends the registration for good. No access uses it any more when this returns.
    pub(super) fn end_registration(&self) {
        self.registration.update(|registration| {
            *registration = None;
            self.deregistered.store(true, Relaxed);
        });
    }

    /// Ends the registration, if `key` is its key and `by` may invalidate it.
    fn invalidate(&self, key: RKey, by: Invalidation) -> Result<(), AccessError> {
        let check = |registration: Option<&MrDesc>| {
            if self.key.load(Relaxed) != key.0 {
                return Err(AccessError::BadKey);
            }
            match registration {
                Some(desc) => may_invalidate(desc, by),
                None if by == Invalidation::Remote => Err(AccessError::BadKey),
                None => Ok(()),
            }
        };
        self.registration
            .update_if(check, |registration| *registration = None)
    }
}

/// Checks that `by` may end the registration `desc`.
fn may_invalidate(desc: &MrDesc, by: Invalidation) -> Result<(), AccessError> {
    match by == Invalidation::Remote && !desc.access.intersects(Access::REMOTE) {
        true => Err(AccessError::NoRight),
        false => Ok(()),
    }
}
