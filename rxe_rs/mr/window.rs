// SPDX-License-Identifier: GPL-2.0
//! Memory windows, types 1 and 2B: parts of regions that queue pairs open to peers and close
//! again.
//!
//! A bound window keeps its region from being deregistered. Windows share the table and the keys
//! of regions.

use crate::{
    device::DeviceCtx,
    mr::{
        Binding,
        Kind,
        MrCtx,
        Side, //
        VerbsMr,
    },
    verbs::pd::PdCtx,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc, //
    },
};
use rxe_kapi::{
    new_rearmable,
    rdma::mw::{
        MemoryWindow,
        MwType, //
    },
    sync::Rearmable,
};
use rxe_proto::{
    check::{
        rkey::AccessError,
        window::{
            check_bind,
            WindowFacts,
            WindowType, //
        },
    },
    engine::wr::{
        Bind,
        LocalOpFault, //
    },
    ids::RKey,
};

/// A memory window.
pub(crate) struct WindowCtx {
    kind: WindowType,
    /// The key it has, bound or not.
    key: Atomic<u32>,
    /// What it is bound to, if it is.
    pub(crate) bound: Rearmable<Binding>,
    /// Destroyed: it cannot be bound any more. Changed when nobody is inside the gate.
    gone: Atomic<bool>,
}

/// A region that a window is bound to; it is not deregistered while this lives.
///
/// May be the last reference to the region, dropped in softirq: the memory behind it, whose release
/// sleeps, was taken out when it was deregistered.
pub(crate) struct Bound(Arc<MrCtx>);

impl Bound {
    /// `None` if nothing can be bound to the region.
    fn new(region: &Arc<MrCtx>) -> Option<Self> {
        region.fixed()?.hold().then(|| Self(region.clone()))
    }

    /// The region.
    #[inline]
    pub(crate) fn fixed(&self) -> Option<&VerbsMr> {
        self.0.fixed()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(fixed) = self.0.fixed() {
            fixed.release();
        }
    }
}

impl WindowCtx {
    /// Binds the window of domain `pd` for the queue pair `who` (domain and number) to a part of
    /// `region`, or unbinds it. What it granted before is over when this returns.
    ///
    /// Context: the RCU read side section of `guard`, in which the window was found.
    pub(crate) fn bind(
        &self,
        pd: u32,
        region: Option<&Arc<MrCtx>>,
        who: (u32, u32),
        bind: &Bind,
        guard: &rcu::Guard,
    ) -> Result<(), LocalOpFault> {
        self.bound.update(|bound| {
            if self.is_gone() {
                return Err(LocalOpFault);
            }
            let facts = WindowFacts {
                kind: self.kind,
                pd,
                key: RKey(self.key.load(Relaxed)),
                bound: bound.is_some(),
            };
            let layout = region.and_then(|r| r.fixed());
            let layout = layout.and_then(|fixed| fixed.layout.enter(guard));
            // Where the region has no memory now there is nothing to open.
            let layout = layout.filter(|layout| layout.covers(bind.addr, bind.length));
            let desc = layout.as_ref().map(|layout| &layout.desc);
            let window = check_bind(&facts, desc, who.0, who.1, bind).map_err(|_| LocalOpFault)?;
            *bound = match (window, region) {
                (None, _) => None,
                (Some(window), Some(region)) => Some(Binding {
                    window,
                    region: Bound::new(region).ok_or(LocalOpFault)?,
                }),
                (Some(_), None) => return Err(LocalOpFault),
            };
            self.key.store(bind.key.0, Relaxed);
            Ok(())
        })
    }

    /// Whether the window has been destroyed.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Unbinds a window of type 2.
    ///
    /// Context: RCU read side section.
    pub(crate) fn invalidate(&self, key: RKey, side: Side, qpn: u32) -> Result<(), AccessError> {
        if self.kind == WindowType::One {
            return Err(AccessError::NoRight);
        }
        // Who has the wrong key does not turn others away meanwhile.
        if self.key.load(Relaxed) != key.0 {
            return Err(AccessError::BadKey);
        }
        self.bound.update(|bound| {
            if self.key.load(Relaxed) != key.0 {
                return Err(AccessError::BadKey);
            }
            match bound {
                Some(binding) if !binding.window.is_of(qpn) => return Err(AccessError::WrongPd),
                None if side == Side::Peer => return Err(AccessError::BadKey),
                _ => *bound = None,
            }
            Ok(())
        })
    }
}

impl MemoryWindow for MrCtx {
    type Device = DeviceCtx;

    fn create(dev: &Arc<DeviceCtx>, pd: &Arc<PdCtx>, kind: MwType) -> Result<(Arc<Self>, u32)> {
        dev.mrs.publish(pd.number(), |key| {
            Ok(Kind::Window(WindowCtx {
                kind: match kind {
                    MwType::One => WindowType::One,
                    MwType::Two => WindowType::Two,
                },
                key: Atomic::new(key),
                bound: new_rearmable!(None, "WindowCtx::bound")?,
                gone: Atomic::new(false),
            }))
        })
    }

    fn destroy(self: &Arc<Self>, dev: &Arc<DeviceCtx>) {
        dev.mrs.table.remove(self.row());
        if let Kind::Window(window) = &self.kind {
            // Whoever has found it is turned away from now on.
            window.bound.update(|bound| {
                *bound = None;
                window.gone.store(true, Relaxed);
            });
        }
    }
}
