// SPDX-License-Identifier: GPL-2.0
//! Memory windows of types 1 and 2B: parts of regions that queue pairs make accessible to peers.
//!
//! A region with a bound window cannot be deregistered. Windows share the table and the keys of
//! regions.

use crate::{
    device::DeviceCtx,
    mr::{
        Binding,
        Invalidation,
        MrCtx,
        MrKind,
        VerbsMr, //
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
    sync::Rearmable, //
};
use rxe_proto::{
    check::{
        rkey::AccessError,
        window::{
            check_bind,
            Bind,
            Window,
            WindowState,
            WindowType, //
        },
    },
    engine::wr::LocalOpFault,
    ids::RKey,
};

/// A memory window.
pub(crate) struct WindowCtx {
    kind: WindowType,
    /// The current key, bound or not.
    key: Atomic<u32>,
    /// The binding, if it is bound.
    pub(crate) binding: Rearmable<Binding>,
    /// Deallocated: it can no longer be bound. Changed only within [`Rearmable::update`].
    deallocated: Atomic<bool>,
}

/// A region that a window is bound to; it cannot be deregistered while this exists.
///
/// This may be the last reference to the region, and is dropped in softirq: the memory, whose
/// release sleeps, was removed when the region was deregistered.
pub(crate) struct BoundRegion(Arc<MrCtx>);

impl BoundRegion {
    /// Returns `None` if no window can be bound to the region.
    fn new(region: &Arc<MrCtx>) -> Option<Self> {
        region
            .verbs_mr()?
            .get_window()
            .then(|| Self(region.clone()))
    }

    /// Returns the region.
    #[inline]
    pub(crate) fn verbs_mr(&self) -> Option<&VerbsMr> {
        self.0.verbs_mr()
    }
}

impl Drop for BoundRegion {
    fn drop(&mut self) {
        if let Some(verbs_mr) = self.0.verbs_mr() {
            verbs_mr.put_window();
        }
    }
}

impl WindowCtx {
    /// Binds the window of protection domain `pd` for the queue pair `qp` (protection domain and
    /// number) to a part of `region`, or unbinds it. What it granted before has ended when this
    /// returns.
    ///
    /// # Context
    ///
    /// The RCU read-side critical section of `guard`, in which the window was looked up.
    ///
    /// # Errors
    ///
    /// [`LocalOpFault`] if the window has been deallocated or `check_bind` refuses the request;
    /// nothing has changed then.
    pub(crate) fn bind(
        &self,
        pd: u64,
        region: Option<&Arc<MrCtx>>,
        qp: (u64, u32),
        bind: &Bind,
        guard: &rcu::Guard,
    ) -> Result<(), LocalOpFault> {
        let check =
            |bound: Option<&Binding>| self.check(pd, bound.is_some(), region, qp, bind, guard);
        // A request that is refused must not make accesses through the window fail meanwhile.
        self.binding.read(check)?;
        self.binding.update(|binding| {
            // First, so that the region has the rights for which it is checked as long as the
            // window is bound: re-registration refuses a region with windows. The window would
            // otherwise keep rights that the region, and how its pages are pinned, lost in between.
            let bound = region
                .map(|region| BoundRegion::new(region).ok_or(LocalOpFault))
                .transpose()?;
            let window = check(binding.as_ref())?;
            *binding = match (window, bound) {
                (None, _) => None,
                (Some(window), Some(region)) => Some(Binding { window, region }),
                (Some(_), None) => return Err(LocalOpFault),
            };
            self.key.store(bind.key.0, Relaxed);
            Ok(())
        })
    }

    /// Checks a request to bind the window, as [`bind`](Self::bind).
    fn check(
        &self,
        pd: u64,
        bound: bool,
        region: Option<&Arc<MrCtx>>,
        qp: (u64, u32),
        bind: &Bind,
        guard: &rcu::Guard,
    ) -> Result<Option<Window>, LocalOpFault> {
        if self.is_deallocated() {
            return Err(LocalOpFault);
        }
        let state = WindowState {
            kind: self.kind,
            pd,
            key: RKey(self.key.load(Relaxed)),
            bound,
        };
        let layout = region.and_then(|r| r.verbs_mr());
        let layout = layout.and_then(|verbs_mr| verbs_mr.layout.try_access(guard));
        // A window cannot be bound where the region has no memory.
        let layout = layout.filter(|layout| layout.covers(bind.addr, bind.length));
        let desc = layout.as_ref().map(|layout| &layout.desc);
        check_bind(&state, desc, qp.0, qp.1, bind).map_err(|_| LocalOpFault)
    }

    /// Returns true if the window has been deallocated.
    #[inline]
    pub(crate) fn is_deallocated(&self) -> bool {
        self.deallocated.load(Relaxed)
    }

    /// Unbinds a type 2 window (IBTA 10.6.7.2).
    ///
    /// # Context
    ///
    /// RCU read-side critical section.
    ///
    /// # Errors
    ///
    /// [`AccessError::NoRight`] for a type 1 window, [`AccessError::BadKey`] if `key` is not its
    /// key or a peer invalidates a window that is not bound, [`AccessError::WrongPd`] if it is
    /// bound for another queue pair than `qpn`.
    pub(crate) fn invalidate(
        &self,
        key: RKey,
        by: Invalidation,
        qpn: u32,
    ) -> Result<(), AccessError> {
        if self.kind == WindowType::One {
            return Err(AccessError::NoRight);
        }
        let check = |bound: Option<&Binding>| {
            if self.key.load(Relaxed) != key.0 {
                return Err(AccessError::BadKey);
            }
            match bound {
                Some(bound) if !bound.window.is_of(qpn) => Err(AccessError::WrongPd),
                None if by == Invalidation::Remote => Err(AccessError::BadKey),
                _ => Ok(()),
            }
        };
        self.binding.update_if(check, |binding| *binding = None)
    }
}

impl MemoryWindow for MrCtx {
    type Device = DeviceCtx;

    fn create(dev: &Arc<DeviceCtx>, pd: &PdCtx, kind: MwType) -> Result<(Arc<Self>, u32)> {
        dev.mrs.publish(pd.number(), |key| {
            Ok(MrKind::Window(WindowCtx {
                kind: match kind {
                    MwType::One => WindowType::One,
                    MwType::Two => WindowType::Two,
                },
                key: Atomic::new(key),
                binding: new_rearmable!(None, "WindowCtx::binding")?,
                deallocated: Atomic::new(false),
            }))
        })
    }

    fn destroy(self: &Arc<Self>, dev: &Arc<DeviceCtx>) {
        dev.mrs.table.remove(self.index());
        if let MrKind::Window(window) = &self.kind {
            // Accesses that still find it fail from now on.
            window.binding.update(|binding| {
                *binding = None;
                window.deallocated.store(true, Relaxed);
            });
        }
    }
}
