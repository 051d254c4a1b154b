// SPDX-License-Identifier: GPL-2.0
//! FLUSH to persistence: the CPU caches of a range, or of a whole region, are written back to
//! persistent memory before the response is sent.
//!
//! The peer determines the amount of work, and the queue pair is locked with bottom halves
//! disabled. At most [`MAX_WRITE_BACK`] bytes are therefore written back at once, of one request or
//! of several. Earlier writes are covered whichever CPU made them: write-back includes the caches
//! of other CPUs.

use super::{
    MrAccess, //
};
use rxe_kapi::mem::persist;
use rxe_proto::{
    check::rkey::AccessError,
    engine::backend::Flushed,
    table::region::Access, //
};

/// Most bytes written back at once: 32 us with memory of 2 GB/s.
pub(super) const MAX_WRITE_BACK: u64 = 1 << 16;

fn size(len: u64) -> Result<usize, AccessError> {
    usize::try_from(len).map_err(|_| AccessError::OutOfBounds)
}

impl MrAccess<'_> {
    /// Writes back the next step of the `len` bytes at `addr`, from the start or from address
    /// `from` on; nothing if the budget is used up.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub(crate) fn persist_range(
        &self,
        key: u32,
        addr: u64,
        len: u32,
        rights: Access,
        from: Option<u64>,
    ) -> Result<Flushed, AccessError> {
        // The whole range is checked every time: it may have changed since the last step.
        self.check(key, addr, len, rights)?;
        let end = addr
            .checked_add(u64::from(len))
            .ok_or(AccessError::OutOfBounds)?;
        let at = from.unwrap_or(addr);
        let left = self.write_back_left.get();
        let step = end.saturating_sub(at).min(left);
        if step != 0 {
            let bytes = size(step)?;
            self.with_access(self.pd, key, at, bytes, rights, |cursor| {
                cursor.write_back(bytes)
            })?;
            persist();
            self.write_back_left.set(left.saturating_sub(step));
        }
        let next = at.saturating_add(step);
        Ok(if next < end {
            Flushed::UpTo(next)
        } else {
            Flushed::All
        })
    }

    /// Writes back the next step of the region of `key`, from the start or from address `from` on;
    /// nothing if the budget is used up. Windows do not grant it.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub(crate) fn persist_all(
        &self,
        key: u32,
        rights: Access,
        from: Option<u64>,
    ) -> Result<Flushed, AccessError> {
        // Of one look-up with the access: a verb may replace the layout at any time.
        let found = self.find_all(key, rights)?;
        let Some(layout) = &found.layout else {
            return Err(AccessError::NoRight);
        };
        let (mut at, mut left) = (from.unwrap_or(0), self.write_back_left.get());
        let flushed = loop {
            let Some((start, len)) = layout.memory_from(at) else {
                break Flushed::All;
            };
            if left == 0 {
                break Flushed::UpTo(at);
            }
            let step = len.min(left);
            layout
                .cursor_at(start, step, &self.hint)
                .map_err(|_| AccessError::OutOfBounds)?
                .write_back(size(step)?)
                .map_err(|_| AccessError::OutOfBounds)?;
            left = left.saturating_sub(step);
            at = start.saturating_add(step);
        };
        persist();
        self.write_back_left.set(left);
        Ok(flushed)
    }
}
