// SPDX-License-Identifier: GPL-2.0
//! Memory windows: who may bind what, and what a bound one grants (IBTA vol. 1, 10.6.7.2).

use super::rkey::AccessError;
use crate::engine::wr::Bind;
use crate::ids::RKey;
use crate::table::keygen::renew;
use crate::table::region::{Access, MrDesc};

/// Type of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowType {
    /// Of the protection domain; bound anew while it is bound, never invalidated.
    One,
    /// Of the queue pair that bound it (type 2B); invalidated before it is bound anew.
    Two,
}

/// What a window is before a request binds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowFacts {
    /// Type.
    pub kind: WindowType,
    /// Protection domain.
    pub pd: u32,
    /// Key; its last byte changes with each binding.
    pub key: RKey,
    /// It grants something now.
    pub bound: bool,
}

/// Why a window cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    /// The window has another key, or cannot get the new one.
    BadKey,
    /// Window, region and queue pair are not of one protection domain.
    WrongPd,
    /// A window of type 2 must be invalidated first, and cannot be bound to nothing.
    BadState,
    /// The region does not let windows be bound to it, is not valid, or may not grant the rights.
    NoRight,
    /// Not inside the region.
    OutOfBounds,
}

/// A bound window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    desc: MrDesc,
    /// Address of the first byte as the region counts.
    at: u64,
    /// The only queue pair that may be used, for type 2.
    qpn: Option<u32>,
}

/// Rights that may be asked for. Local write is what programs add out of habit, for regions want
/// it; nobody gains anything by it here.
const ACCEPTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Checks that a queue pair (`pd`, `qpn`) may bind a window to `region` as `bind` says, and returns
/// the bound window; `None` to unbind. That the region has memory everywhere within its bounds is
/// not known here.
///
/// # Errors
///
/// The first [`BindError`] that applies.
pub fn check_bind(
    facts: &WindowFacts,
    region: Option<&MrDesc>,
    pd: u32,
    qpn: u32,
    bind: &Bind,
) -> Result<Option<Window>, BindError> {
    // Programs say the key that a window had first whenever they bind one of type 2: the library
    // does not keep it for them, and nothing can be done with the old key of an unbound window.
    let named = match facts.kind {
        WindowType::One => facts.key == bind.window,
        WindowType::Two => renew(facts.key, bind.window).is_some(),
    };
    if !named || renew(facts.key, bind.key).is_none() {
        return Err(BindError::BadKey);
    }
    if facts.pd != pd {
        return Err(BindError::WrongPd);
    }
    match (facts.kind, bind.length) {
        (WindowType::One, 0) => return Ok(None),
        (WindowType::Two, 0) => return Err(BindError::BadState),
        (WindowType::Two, _) if facts.bound => return Err(BindError::BadState),
        _ => {}
    }
    let access = Access::from_bits(bind.access).ok_or(BindError::NoRight)?;
    let allowed = match facts.kind {
        WindowType::One => ACCEPTED,
        WindowType::Two => ACCEPTED.union(Access::ZERO_BASED),
    };
    let Some(region) = region.filter(|_| allowed.contains(access)) else {
        return Err(BindError::NoRight);
    };
    // What the peer may change, the owner must be allowed to change as well.
    let writes = access.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC));
    if writes && !region.access.contains(Access::LOCAL_WRITE) {
        return Err(BindError::NoRight);
    }
    region
        .check(pd, bind.region, bind.addr, bind.length, Access::MW_BIND)
        .map_err(|e| match e {
            AccessError::WrongPd => BindError::WrongPd,
            AccessError::OutOfBounds => BindError::OutOfBounds,
            _ => BindError::NoRight,
        })?;
    Ok(Some(Window {
        desc: MrDesc {
            pd,
            key: bind.key.0,
            iova: bind.addr,
            length: bind.length,
            access,
            ..*region
        },
        at: bind.addr,
        qpn: match facts.kind {
            WindowType::One => None,
            WindowType::Two => Some(qpn),
        },
    }))
}

impl Window {
    /// Whether queue pair `qpn` may use the window.
    #[inline]
    pub fn is_of(&self, qpn: u32) -> bool {
        self.qpn.is_none_or(|own| own == qpn)
    }

    /// Checks an access through the window and returns its address in the region.
    ///
    /// A window is for peers: an access that needs none of their rights is a local one, for which
    /// the key is not valid.
    ///
    /// # Errors
    ///
    /// As [`MrDesc::check`].
    #[inline]
    pub fn check(
        &self,
        (pd, qpn): (u32, u32),
        key: u32,
        addr: u64,
        len: u64,
        rights: Access,
    ) -> Result<u64, AccessError> {
        if !rights.intersects(Access::REMOTE) {
            return Err(AccessError::BadKey);
        }
        let grant = self.desc.check(pd, key, addr, len, rights)?;
        if !self.is_of(qpn) {
            return Err(AccessError::WrongPd);
        }
        grant
            .offset()
            .checked_add(self.at)
            .ok_or(AccessError::OutOfBounds)
    }
}
