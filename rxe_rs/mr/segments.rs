// SPDX-License-Identifier: GPL-2.0
//! Memory that is added to a region and removed from it while its key is in use.
//!
//! The core keeps calls for one region apart, so its map is changed by one at a time.

use super::{
    map::{
        Map,
        Piece,
        Table, //
    },
    verbs::lasting,
    Fixed,
    Kind,
    MrCtx,
    MAX_MR_SIZE, //
};
use crate::device::DeviceCtx;
use core::ops::Range;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::{
    mem::Memory,
    rdma::{
        mr::Pinner,
        segment::{
            Addition,
            RegionState,
            Removal,
            Which,
            MAX_SEGMENTS, //
        },
        unsupported, //
    },
};
use rxe_proto::table::segments::{
    self,
    Segment, //
};

fn count_of(range: &Range<usize>) -> usize {
    range.end.saturating_sub(range.start)
}

/// Puts `segment` at the end of a table that has room.
fn push(table: &mut Table, segment: Segment<Piece>) -> Result {
    table.push_within_capacity(segment).map_err(|_| ENOMEM)
}

impl Fixed {
    /// The map of a region of user memory whose key is `rkey`.
    fn changeable(&self, rkey: u32) -> Result<Arc<Map>> {
        if self.is_gone() {
            return Err(ENOENT);
        }
        let map = self.map.get().ok_or(ENOENT)?;
        if !map.is_user() {
            return Err(unsupported());
        }
        if map.desc.key != rkey {
            return Err(EINVAL);
        }
        Ok(map)
    }
}

impl Map {
    /// What it is, as callers are told.
    fn state(&self) -> Result<RegionState> {
        self.with_table(|table| RegionState {
            key: self.desc.key,
            bounds: segments::bounds(table).unwrap_or_default(),
            bytes: segments::bytes(table),
            segments: u32::try_from(table.len()).unwrap_or(u32::MAX),
            ..RegionState::default()
        })
    }

    /// This one with `segment` at `index` of the table.
    fn with(&self, index: usize, segment: Segment<Piece>) -> Result<Self> {
        let next = self.next_handle().wrapping_add(1);
        let table = self.with_table(|old| -> Result<Table> {
            let mut new = KVVec::with_capacity(old.len().saturating_add(1), GFP_KERNEL)?;
            let (before, behind) = old.split_at_checked(index).ok_or(EINVAL)?;
            for s in before {
                push(&mut new, s.clone())?;
            }
            push(&mut new, segment)?;
            for s in behind {
                push(&mut new, s.clone())?;
            }
            Ok(new)
        })??;
        self.with_segments(table, next)
    }

    /// This one without the segments at `gone` of the table, which are not all of them.
    fn without(&self, gone: &Range<usize>) -> Result<Self> {
        let table = self.with_table(|old| -> Result<Table> {
            let left = old.len().saturating_sub(count_of(gone));
            let mut new = KVVec::with_capacity(left, GFP_KERNEL)?;
            for (index, s) in old.iter().enumerate() {
                if !gone.contains(&index) {
                    push(&mut new, s.clone())?;
                }
            }
            Ok(new)
        })??;
        self.with_segments(table, self.next_handle())
    }

    /// The segments that `what` names.
    fn chosen(&self, what: &Which) -> Result<Range<usize>> {
        self.with_table(|table| match *what {
            Which::Handle(handle) => table
                .iter()
                .position(|s| s.piece.handle == handle)
                .map(|index| index..index.saturating_add(1))
                .ok_or(ENOENT),
            Which::Range(start, length) => segments::exactly(table, start, length).ok_or(EINVAL),
        })?
    }
}

impl MrCtx {
    fn changing(&self) -> Result<&Fixed> {
        match &self.kind {
            Kind::Fixed(fixed) => Ok(fixed),
            _ => Err(unsupported()),
        }
    }

    /// Adds a segment.
    pub(super) fn add_segment(
        &self,
        dev: &DeviceCtx,
        request: &Addition,
        pinner: &Pinner<'_>,
    ) -> Result<RegionState> {
        let fixed = self.changing()?;
        let old = fixed.changeable(request.rkey)?;
        let (addr, length, iova) = (request.addr, request.length, request.iova);
        let in_page = u64::try_from(PAGE_SIZE)?.wrapping_sub(1);
        if (addr | length | iova) & in_page != 0 {
            return Err(dev.handle.refuse(c"a segment that is not of whole pages"));
        }
        let end = iova.checked_add(length);
        let Some(end) = end.filter(|_| length != 0 && length <= MAX_MR_SIZE) else {
            return Err(dev.handle.refuse(c"a segment too large, or empty"));
        };
        let index = old.with_table(|table| segments::room(table, iova, end))?;
        let index = index.ok_or(EEXIST)?;
        if old.count() >= MAX_SEGMENTS {
            return Err(ENOSPC);
        }
        let umem = pinner.pin(addr, length, old.desc.access.bits())?;
        lasting(dev, old.desc.access, || umem.is_persistent())?;
        let handle = old.next_handle();
        let memory = Arc::new(Memory::User(umem), GFP_KERNEL)?;
        let segment = Segment::new(iova, length, Piece { memory, handle });
        let new = Arc::new(old.with(index, segment.ok_or(EINVAL)?)?, GFP_KERNEL)?;
        let run = new.with_table(|table| segments::run(table, index))?;
        let state = RegionState {
            handle,
            run: run.unwrap_or_default(),
            ..new.state()?
        };
        drop(fixed.map.replace_sync(new)?);
        Ok(state)
    }

    /// Removes segments; the last one takes the key along.
    pub(super) fn remove_segments(
        &self,
        dev: &DeviceCtx,
        request: &Removal,
    ) -> Result<RegionState> {
        let fixed = self.changing()?;
        let old = fixed.changeable(request.rkey)?;
        let gone = old.chosen(&request.what)?;
        if count_of(&gone) < old.count() {
            let new = Arc::new(old.without(&gone)?, GFP_KERNEL)?;
            let state = new.state()?;
            drop(old);
            // Nobody uses the old map any more, and with it goes the memory.
            drop(fixed.map.replace_sync(new)?);
            return Ok(state);
        }
        drop(old);
        fixed.close()?;
        dev.mrs.table.remove(self.row);
        drop(fixed.map.take_sync());
        Ok(RegionState::default())
    }
}
