// SPDX-License-Identifier: GPL-2.0
//! Memory windows: checks of bind operations and of accesses.

use super::rkey::AccessError;
use crate::ids::RKey;
use crate::table::region::{Access, MrDesc};

/// Type of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowType {
    /// Belongs to the protection domain; may be bound again while it is bound, never invalidated.
    One,
    /// Belongs to the QP that bound it (type 2B); must be invalidated before it is bound again.
    Two,
}

/// State of a window before a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowState {
    /// Type.
    pub kind: WindowType,
    /// Protection domain.
    pub pd: u64,
    /// R_Key; its least significant byte changes with each bind.
    pub key: RKey,
    /// True if it is bound.
    pub bound: bool,
}

/// Parameters of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Current key of the window.
    pub window: RKey,
    /// New key of the window, with the same index.
    pub key: RKey,
    /// Local key of the region.
    pub region: u32,
    /// Address of the first byte in the region.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// Rights, as `enum ib_access_flags`.
    pub access: u32,
}

/// Why a bind is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    /// The current key does not match, or the new one has another index.
    BadKey,
    /// Window, region and QP are not in one protection domain.
    WrongPd,
    /// A type 2 window must be invalidated first, and cannot be bound with zero length.
    BadState,
    /// The region does not allow binds, is not valid, or may not grant the rights.
    NoRight,
    /// The range is not inside the region.
    OutOfBounds,
}

/// A bound window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    desc: MrDesc,
    /// Address of the first byte in the region.
    at: u64,
    /// The only QP that may use it, for type 2.
    qpn: Option<u32>,
}

/// Rights that a bind may request. Programs often add local write, because regions need it; it
/// grants nothing here.
const ACCEPTED: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Checks that a QP (`pd`, `qpn`) may bind a window to `region` according to `bind`, and returns
/// the bound window; `None` to unbind (IBTA 10.6.7.2). Does not check that the region has memory
/// everywhere within its bounds.
///
/// # Errors
///
/// The first [`BindError`] that applies.
pub fn check_bind(
    state: &WindowState,
    region: Option<&MrDesc>,
    pd: u64,
    qpn: u32,
    bind: &Bind,
) -> Result<Option<Window>, BindError> {
    // Programs pass the first key of a type 2 window with every bind: libibverbs does not update
    // it, and the old key of an unbound window is of no use.
    let named = match state.kind {
        WindowType::One => state.key == bind.window,
        WindowType::Two => state.key.index() == bind.window.index(),
    };
    if !named || state.key.index() != bind.key.index() {
        return Err(BindError::BadKey);
    }
    if state.pd != pd {
        return Err(BindError::WrongPd);
    }
    match (state.kind, bind.length) {
        (WindowType::One, 0) => return Ok(None),
        (WindowType::Two, 0) => return Err(BindError::BadState),
        (WindowType::Two, _) if state.bound => return Err(BindError::BadState),
        _ => {}
    }
    let access = Access::from_bits(bind.access).ok_or(BindError::NoRight)?;
    let allowed = match state.kind {
        WindowType::One => ACCEPTED,
        WindowType::Two => ACCEPTED.union(Access::ZERO_BASED),
    };
    let Some(region) = region.filter(|_| allowed.contains(access)) else {
        return Err(BindError::NoRight);
    };
    // Remote write and atomic need local write on the region.
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
        qpn: match state.kind {
            WindowType::One => None,
            WindowType::Two => Some(qpn),
        },
    }))
}

impl Window {
    /// True if QP `qpn` may use the window.
    #[inline]
    pub fn is_of(&self, qpn: u32) -> bool {
        self.qpn.is_none_or(|own| own == qpn)
    }

    /// Checks an access through the window and returns its address in the region.
    ///
    /// A window grants remote access only: for local accesses its key is not valid (IBTA 10.6.7.2).
    ///
    /// # Errors
    ///
    /// As [`MrDesc::check`].
    #[inline]
    pub fn check(
        &self,
        (pd, qpn): (u64, u32),
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
