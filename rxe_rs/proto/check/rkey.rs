// SPDX-License-Identifier: GPL-2.0
//! Memory access checks: key, protection domain, rights and bounds (IBTA vol. 1, 10.6.3).

use crate::table::region::{Access, MrDesc, State};

/// Why a memory access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No such key, or the region or window is not valid now.
    BadKey,
    /// The region belongs to another protection domain, or the window to another queue pair.
    WrongPd,
    /// The region does not grant the right.
    NoRight,
    /// The range is not inside the region, or wraps.
    OutOfBounds,
    /// The access is permitted, but memory taken on demand is not there at the moment.
    NotPresent,
    /// The access is permitted, but the memory is damaged or out of the kernel's reach.
    Unreadable,
}

/// Permission to access `len` bytes at `offset` of one region.
///
/// Only [`MrDesc::check`] makes one, so holding it proves the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    offset: u64,
    len: u64,
}

impl Grant {
    /// First byte, counted from the start of the region.
    #[inline]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the access touches no memory at all.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Permission for `len` bytes at `from` of this one; `None` if that is not inside.
    #[inline]
    pub const fn part(&self, from: u64, len: u64) -> Option<Self> {
        let Some(end) = from.checked_add(len) else {
            return None;
        };
        if end > self.len {
            return None;
        }
        let Some(offset) = self.offset.checked_add(from) else {
            return None;
        };
        Some(Self { offset, len })
    }
}

impl MrDesc {
    /// Checks an access to the region as a whole: key, domain and rights.
    ///
    /// # Errors
    ///
    /// The first that applies of [`AccessError`], in that order.
    #[inline]
    pub const fn admit(&self, pd: u32, key: u32, rights: Access) -> Result<(), AccessError> {
        if !matches!(self.state, State::Valid) || self.key != key {
            return Err(AccessError::BadKey);
        }
        if self.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if !self.access.contains(rights) {
            return Err(AccessError::NoRight);
        }
        Ok(())
    }

    /// Checks an access of `len` bytes at `addr` with key `key` from protection domain `pd` that
    /// needs all of `rights`.
    ///
    /// An access of zero bytes touches nothing and is granted whatever the key (C9-88).
    ///
    /// # Errors
    ///
    /// The first that applies of [`AccessError`], in the order key, domain, rights, bounds.
    #[inline]
    pub const fn check(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        len: u64,
        rights: Access,
    ) -> Result<Grant, AccessError> {
        if len == 0 {
            return Ok(Grant { offset: 0, len: 0 });
        }
        if let Err(e) = self.admit(pd, key, rights) {
            return Err(e);
        }
        let base = if self.access.contains(Access::ZERO_BASED) {
            0
        } else {
            self.iova
        };
        let Some(offset) = addr.checked_sub(base) else {
            return Err(AccessError::OutOfBounds);
        };
        // Both sums: the addresses of the access may not wrap either, even if the offsets do not.
        let (Some(end), Some(_)) = (offset.checked_add(len), addr.checked_add(len)) else {
            return Err(AccessError::OutOfBounds);
        };
        if end > self.length {
            return Err(AccessError::OutOfBounds);
        }
        Ok(Grant { offset, len })
    }
}
