// SPDX-License-Identifier: GPL-2.0
//! Work requests that change keys (REG_MR, BIND_MW, LOCAL_INV) and remote invalidation, in softirq
//! or process context with the queue pair locked.

use super::{
    Frwr,
    Kind,
    MrAccess,
    MrCtx, //
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

/// Which side invalidates a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// This side: invalidating what is already invalid succeeds.
    Owner,
    /// The peer: only what grants it access can be invalidated.
    Peer,
}

impl MrCtx {
    /// Returns the upper 24 bits of the key.
    pub(crate) fn row(&self) -> u32 {
        self.row
    }

    /// Returns true if `key` has this object's index, so that it is or may become its key.
    pub(crate) fn has_key(&self, key: RKey) -> bool {
        key.index() == self.row
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
            LocalOp::Invalidate(key) => {
                self.invalidate(*key, Side::Owner).map_err(|_| LocalOpFault)
            }
            LocalOp::Bind(bind) => {
                let window = self.find(bind.window.0).map_err(|_| LocalOpFault)?;
                // Unbinding needs no region.
                let region = match bind.length {
                    0 => None,
                    _ => self.mrs.table.borrow(RKey(bind.region).index(), self.guard),
                };
                match &window.mr.kind {
                    Kind::Window(own) => {
                        let who = (self.pd, self.qpn);
                        own.bind(window.mr.pd, region, who, bind, self.guard)
                    }
                    _ => Err(LocalOpFault),
                }
            }
            LocalOp::Register(reg) => {
                let mr = self.find(reg.key.0).map_err(|_| LocalOpFault)?.mr;
                match &mr.kind {
                    Kind::Frwr(frwr) if mr.pd == self.pd => frwr.register(self.pd, reg),
                    _ => Err(LocalOpFault),
                }
            }
        }
    }

    /// Invalidates `key`, which is that of a type 2 window or an FRWR region (IBTA 10.6.5). Nobody
    /// uses it any more when this returns.
    ///
    /// # Errors
    ///
    /// If there is no such key in this protection domain or queue pair, or if it cannot be
    /// invalidated.
    pub(crate) fn invalidate(&self, key: RKey, side: Side) -> Result<(), AccessError> {
        let mr = self.find(key.0)?.mr;
        if mr.pd != self.pd {
            return Err(AccessError::WrongPd);
        }
        match &mr.kind {
            Kind::VerbsMr(_) => Err(AccessError::NoRight),
            Kind::Frwr(frwr) => frwr.invalidate(key, side),
            Kind::Window(window) => window.invalidate(key, side, self.qpn),
        }
    }
}

impl Frwr {
    /// Returns the access rights of the current registration.
    pub(crate) fn access(&self) -> u32 {
        let _bh = disable_bh();
        self.valid
            .try_access()
            .map_or(Access::NONE, |desc| desc.access)
            .bits()
    }

    /// Registers the page list.
    fn register(&self, pd: u32, reg: &Register) -> Result<(), LocalOpFault> {
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
        self.valid.update(|valid| {
            // It must have been invalidated before.
            if valid.is_some() || self.deregistered.load(Relaxed) {
                return Err(LocalOpFault);
            }
            *valid = Some(MrDesc {
                pd,
                key: reg.key.0,
                iova: reg.iova,
                length: reg.length,
                access,
                state: State::Valid,
            });
            self.key.store(reg.key.0, Relaxed);
            Ok(())
        })
    }

    /// Ends the registration for good. Nobody uses it any more when this returns.
    pub(super) fn retire(&self) {
        self.valid.update(|valid| {
            *valid = None;
            self.deregistered.store(true, Relaxed);
        });
    }

    fn invalidate(&self, key: RKey, side: Side) -> Result<(), AccessError> {
        // A wrong key must not make other accesses fail meanwhile.
        if self.key.load(Relaxed) != key.0 {
            return Err(AccessError::BadKey);
        }
        self.valid.update(|valid| {
            let refused = match (&valid, side) {
                _ if self.key.load(Relaxed) != key.0 => Some(AccessError::BadKey),
                (_, Side::Owner) => None,
                (None, Side::Peer) => Some(AccessError::BadKey),
                (Some(desc), Side::Peer) if !desc.access.intersects(Access::REMOTE) => {
                    Some(AccessError::NoRight)
                }
                (Some(_), Side::Peer) => None,
            };
            if let Some(e) = refused {
                return Err(e);
            }
            *valid = None;
            Ok(())
        })
    }
}
