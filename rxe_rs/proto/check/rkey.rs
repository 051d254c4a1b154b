// SPDX-License-Identifier: GPL-2.0
//! Memory access checks: key, protection domain, rights and bounds.

use crate::table::region::{Access, MrDesc, State};

/// Why a memory access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No such key, or the region or window is not valid.
    BadKey,
    /// The region belongs to another protection domain, or the window to another queue pair.
    WrongPd,
    /// The region does not grant the right.
    NoRight,
    /// The range is not inside the region, or wraps.
    OutOfBounds,
    /// The access is permitted, but causes a page fault (on-demand paging).
    NotPresent,
    /// The access is permitted, but the memory is poisoned or not in the kernel's linear map.
    Unreadable,
}

/// Permission to access `len` bytes at `offset` of one region.
///
/// Only [`MrDesc::check`] creates one, so it proves that the check has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    offset: u64,
    len: u64,
}

impl Grant {
    /// Offset of the first byte from the start of the region, in bytes.
    #[inline]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the access in bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if the access has zero length.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl MrDesc {
    /// Checks an access to the region as a whole: key, protection domain and rights
    /// (IBTA 10.6.3).
    ///
    /// # Errors
    ///
    /// The first [`AccessError`] that applies, in that order.
    #[inline]
    pub const fn check_rights(&self, pd: u64, key: u32, rights: Access) -> Result<(), AccessError> {
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
    /// needs all of `rights` (IBTA 10.6.3).
    ///
    /// An access of zero length is granted with any key (IBTA 9.7.4.1.5).
    ///
    /// # Errors
    ///
    /// The first [`AccessError`] that applies, in the order key, domain, rights, bounds.
    ///
    /// # Examples
    ///
    /// ```
    /// use rxe_proto::check::rkey::AccessError;
    /// use rxe_proto::table::region::{Access, MrDesc, State};
    ///
    /// let region = MrDesc {
    ///     pd: 1,
    ///     key: 0x1234,
    ///     iova: 0x1000,
    ///     length: 0x100,
    ///     access: Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
    ///     state: State::Valid,
    /// };
    /// let grant = region.check(1, 0x1234, 0x1010, 16, Access::REMOTE_WRITE)?;
    /// assert_eq!((grant.offset(), grant.len()), (0x10, 16));
    ///
    /// let refused = |key, addr, rights| region.check(1, key, addr, 16, rights).err();
    /// assert_eq!(refused(0x1235, 0x1010, Access::REMOTE_WRITE), Some(AccessError::BadKey));
    /// assert_eq!(refused(0x1234, 0x1010, Access::REMOTE_READ), Some(AccessError::NoRight));
    /// assert_eq!(refused(0x1234, 0x10f8, Access::REMOTE_WRITE), Some(AccessError::OutOfBounds));
    /// # Ok::<(), AccessError>(())
    /// ```
    #[inline]
    pub const fn check(
        &self,
        pd: u64,
        key: u32,
        addr: u64,
        len: u64,
        rights: Access,
    ) -> Result<Grant, AccessError> {
        if len == 0 {
            return Ok(Grant { offset: 0, len: 0 });
        }
        if let Err(e) = self.check_rights(pd, key, rights) {
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
        // Check both sums: neither the offsets nor the addresses of the access may wrap.
        let (Some(end), Some(_)) = (offset.checked_add(len), addr.checked_add(len)) else {
            return Err(AccessError::OutOfBounds);
        };
        if end > self.length {
            return Err(AccessError::OutOfBounds);
        }
        Ok(Grant { offset, len })
    }
}
