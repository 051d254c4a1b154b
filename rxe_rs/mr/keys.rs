// SPDX-License-Identifier: GPL-2.0
//! What queue pairs do to keys: registering, binding and invalidating, in softirq or process
//! context, with the queue pair locked.

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

/// Who wants a key invalidated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The owner: what is invalid already stays so.
    Owner,
    /// The peer: only what grants it something.
    Peer,
}

impl MrCtx {
    /// Upper 24 bits of the key.
    pub(crate) fn row(&self) -> u32 {
        self.row
    }

    /// Whether `key` is or may become this one's: it names the same row.
    pub(crate) fn has_key(&self, key: RKey) -> bool {
        key.index() == self.row
    }
}

impl MrAccess<'_> {
    /// Executes a request about keys.
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
                // No region is needed to unbind.
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
                    Kind::Frwr(fast) if mr.pd == self.pd => fast.register(self.pd, reg),
                    _ => Err(LocalOpFault),
                }
            }
        }
    }

    /// Ends what `key` grants: a window of type 2 or a region for fast registration. When this
    /// returns, nobody uses it any more.
    ///
    /// # Errors
    ///
    /// If there is no such thing, not of this protection domain or queue pair, or if it cannot be
    /// invalidated.
    pub(crate) fn invalidate(&self, key: RKey, side: Side) -> Result<(), AccessError> {
        let mr = self.find(key.0)?.mr;
        if mr.pd != self.pd {
            return Err(AccessError::WrongPd);
        }
        match &mr.kind {
            Kind::VerbsMr(_) => Err(AccessError::NoRight),
            Kind::Frwr(fast) => fast.invalidate(key, side),
            Kind::Window(window) => window.invalidate(key, side, self.qpn),
        }
    }
}

impl Frwr {
    /// Rights of what is registered now.
    pub(crate) fn access(&self) -> u32 {
        let _bh = disable_bh();
        self.valid
            .try_access()
            .map_or(Access::NONE, |desc| desc.access)
            .bits()
    }

    /// Registers the pages listed.
    fn register(&self, pd: u32, reg: &Register) -> Result<(), LocalOpFault> {
        let access = Access::from_bits(reg.access).ok_or(LocalOpFault)?;
        let Memory::Pages(pages) = &self.memory else {
            return Err(LocalOpFault);
        };
        let wraps = reg.iova.checked_add(reg.length).is_none();
        // What the pages are is not looked at here: they are ordinary memory.
        let check_pmem_access = access.contains(Access::FLUSH_PERSISTENT);
        if !access.is_consistent() || check_pmem_access || reg.length > pages.len() || wraps {
            return Err(LocalOpFault);
        }
        self.valid.update(|valid| {
            // It must have been invalidated before.
            if valid.is_some() || self.gone.load(Relaxed) {
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

    /// Ends what is registered, for good. When this returns, nobody uses it any more.
    pub(super) fn retire(&self) {
        self.valid.update(|valid| {
            *valid = None;
            self.gone.store(true, Relaxed);
        });
    }

    fn invalidate(&self, key: RKey, side: Side) -> Result<(), AccessError> {
        // Who has the wrong key does not turn others away meanwhile.
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
