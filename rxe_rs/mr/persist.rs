// SPDX-License-Identifier: GPL-2.0
//! Flushing to persistence: the caches of a range, or of all of a region, are written back to the
//! memory before the peer hears that it is done.
//!
//! That is as much work as the peer says, with the queue pair locked and bottom halves off, so no
//! more than a piece is done at once, be it of one request or of several. What was written before
//! is covered whoever wrote it: stores of other processors are in caches that are written back, too.

use super::{
    MrAccess, //
};
use rxe_kapi::mem::persist;
use rxe_proto::{
    check::rkey::AccessError,
    engine::backend::Flushed,
    table::region::Access, //
};

/// Most bytes at once: 32 us where memory takes 2 GB/s.
pub(super) const AT_ONCE: u64 = 1 << 16;

fn size(len: u64) -> Result<usize, AccessError> {
    usize::try_from(len).map_err(|_| AccessError::OutOfBounds)
}

impl MrAccess<'_> {
    /// Makes a piece of `len` bytes at `addr` persistent, the first one or the one from `from` on;
    /// nothing if enough has been done already.
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
        // All of it, every time: it may have changed since the last piece.
        self.check(key, addr, len, rights)?;
        let end = addr
            .checked_add(u64::from(len))
            .ok_or(AccessError::OutOfBounds)?;
        let at = from.unwrap_or(addr);
        let left = self.persist_left.get();
        let piece = end.saturating_sub(at).min(left);
        if piece != 0 {
            let bytes = size(piece)?;
            self.with_access(self.pd, key, at, bytes, rights, |place| {
                place.write_back(bytes)
            })?;
            persist();
            self.persist_left.set(left.saturating_sub(piece));
        }
        let next = at.saturating_add(piece);
        Ok(if next < end {
            Flushed::UpTo(next)
        } else {
            Flushed::All
        })
    }

    /// Makes a piece of the region `key` persistent, the first one or the one from address `from`
    /// on; nothing if enough has been done already. Windows grant no such thing.
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
        self.check_all(key, rights)?;
        let found = self.find(key)?;
        let Some(layout) = &found.layout else {
            return Err(AccessError::NoRight);
        };
        let (mut at, mut left) = (from.unwrap_or(0), self.persist_left.get());
        let flushed = loop {
            let Some((start, len)) = layout.memory_from(at) else {
                break Flushed::All;
            };
            if left == 0 {
                break Flushed::UpTo(at);
            }
            let piece = len.min(left);
            layout
                .place_at(start, piece, &self.hint)
                .map_err(|_| AccessError::OutOfBounds)?
                .write_back(size(piece)?)
                .map_err(|_| AccessError::OutOfBounds)?;
            left = left.saturating_sub(piece);
            at = start.saturating_add(piece);
        };
        persist();
        self.persist_left.set(left);
        Ok(flushed)
    }
}
