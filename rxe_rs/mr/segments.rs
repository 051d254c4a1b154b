// SPDX-License-Identifier: GPL-2.0
//! Segments: memory that is added to a region and removed from it while its key is in use.
//!
//! The core serializes calls for one region, so one call at a time changes its layout.

use super::{
    layout::{
        MrLayout,
        MrSegment,
        SegmentTable, //
    },
    verbs::check_pmem_access,
    MrCtx,
    MrKind,
    VerbsMr, //
};
use crate::{
    device::DeviceCtx,
    limits::MAX_MR_SIZE, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::{
    mem::{
        Memory,
        SgMem, //
    },
    rdma::{
        mr::Pinner,
        segment::{
            Addition,
            RegionState,
            Removal,
            Which,
            FIRST_SEGMENT,
            MAX_SEGMENTS, //
        },
    },
    series::unsupported,
};
use rxe_proto::table::{
    region::{
        Access,
        MrDesc, //
    },
    segments::{
        self,
        Segment, //
    },
};

/// Appends `segment` to a table that has the capacity.
fn push(table: &mut SegmentTable, segment: Segment<MrSegment>) -> Result {
    table.push_within_capacity(segment).map_err(|_| ENOMEM)
}

impl VerbsMr {
    /// Returns the layout of a region that has segments and whose key is `rkey`.
    fn layout_for_change(&self, rkey: u32) -> Result<Arc<MrLayout>> {
        if self.is_released() {
            return Err(ENOENT);
        }
        let layout = self.layout.get().ok_or(ENOENT)?;
        if !layout.has_segments() {
            return Err(unsupported());
        }
        if layout.desc.key != rkey {
            return Err(EINVAL);
        }
        Ok(layout)
    }
}

impl MrLayout {
    /// Returns the state that callers get.
    fn state(&self) -> Result<RegionState> {
        self.with_table(|table| RegionState {
            key: self.desc.key,
            bounds: segments::bounds(table).unwrap_or_default(),
            bytes: segments::bytes(table),
            segments: u32::try_from(table.len()).unwrap_or(u32::MAX),
            ..RegionState::default()
        })
    }

    /// Returns a copy with `segment` at `index` of the table.
    fn with(&self, index: usize, segment: Segment<MrSegment>) -> Result<Self> {
        let next = self.next_handle().wrapping_add(1);
        let table = self.with_table(|old| -> Result<SegmentTable> {
            let mut new = KVVec::with_capacity(old.len().saturating_add(1), GFP_KERNEL_ACCOUNT)?;
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

    /// Returns a copy without the segments or the range of `selection`; `None` if nothing would be
    /// left. Each part that is left of a segment keeps its handle.
    fn without(&self, dev: &DeviceCtx, selection: &Which) -> Result<Option<Self>> {
        let table = self.with_table(|old| match *selection {
            Which::Handle(handle) => without_handle(dev, old, handle),
            Which::Range(start, length) => without_range(dev, old, start, length),
        })??;
        if table.is_empty() {
            return Ok(None);
        }
        if table.len() > MAX_SEGMENTS {
            return Err(ENOSPC);
        }
        self.with_segments(table, self.next_handle()).map(Some)
    }
}

/// Returns a copy of `old` in which the rest of segment `handle` begins at `iova`.
fn moved(old: &[Segment<MrSegment>], handle: u64, iova: u64) -> Result<SegmentTable> {
    let is_it = |s: &&Segment<MrSegment>| s.backing.handle == handle;
    let first = old.iter().find(is_it).ok_or(ENOENT)?.start();
    let mut new = KVVec::with_capacity(old.len(), GFP_KERNEL_ACCOUNT)?;
    for s in old.iter().filter(|s| !is_it(s)) {
        push(&mut new, s.clone())?;
    }
    for s in old.iter().filter(is_it) {
        let distance = s.start().checked_sub(first).ok_or(EINVAL)?;
        let start = iova.checked_add(distance).ok_or(EINVAL)?;
        let s = Segment::new(start, s.len(), s.backing.clone()).ok_or(EINVAL)?;
        let index = segments::insertion_index(&new, start, s.end()).ok_or(EEXIST)?;
        let entered = new.insert_within_capacity(index, s);
        entered.map_err(|_| ENOMEM)?;
    }
    Ok(new)
}

/// Returns a copy of `old` without segment `handle`.
fn without_handle(
    dev: &DeviceCtx,
    old: &[Segment<MrSegment>],
    handle: u64,
) -> Result<SegmentTable> {
    let mut new = KVVec::with_capacity(old.len(), GFP_KERNEL_ACCOUNT)?;
    for s in old {
        if s.backing.handle != handle {
            push(&mut new, s.clone())?;
        }
    }
    if new.len() == old.len() {
        let reason = c"no segment of the region has the handle";
        return Err(dev.handle.refuse_with(ENOENT, reason));
    }
    Ok(new)
}

/// Returns a copy of `old` without the `length` bytes at address `start`, which may cut segments.
fn without_range(
    dev: &DeviceCtx,
    old: &[Segment<MrSegment>],
    start: u64,
    length: u64,
) -> Result<SegmentTable> {
    let in_page = u64::try_from(PAGE_SIZE)?.wrapping_sub(1);
    let end = start.checked_add(length).filter(|end| *end != start);
    let end = end.ok_or_else(|| dev.handle.refuse(c"a range that is empty, or wraps"))?;
    let gone = segments::overlapping(old, start, end);
    if gone.is_empty() {
        return Err(dev.handle.refuse(c"a range without memory"));
    }
    // At most two parts more than before: the range splits the first segment and the last one.
    let mut new = KVVec::with_capacity(old.len().saturating_add(2), GFP_KERNEL_ACCOUNT)?;
    for (index, s) in old.iter().enumerate() {
        if !gone.contains(&index) {
            push(&mut new, s.clone())?;
            continue;
        }
        let odd = |at: u64| at & in_page != 0 && s.is_split_at(at);
        if odd(start) || odd(end) {
            return Err(dev.handle.refuse(c"a range that cuts a page of a segment"));
        }
        for (offset, len) in s.without(start, end).into_iter().flatten() {
            let backing = MrSegment {
                memory: Arc::new(s.backing.memory.part(offset, len)?, GFP_KERNEL_ACCOUNT)?,
                handle: s.backing.handle,
            };
            let at = s.start().checked_add(offset).ok_or(EINVAL)?;
            push(&mut new, Segment::new(at, len, backing).ok_or(EINVAL)?)?;
        }
    }
    Ok(new)
}

impl MrCtx {
    fn as_verbs_mr(&self) -> Result<&VerbsMr> {
        match &self.kind {
            MrKind::VerbsMr(verbs_mr) => Ok(verbs_mr),
            _ => Err(unsupported()),
        }
    }

    /// Adds a segment.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_add` of `uapi/rxe_rs.h` documents; nothing has changed then.
    pub(super) fn add_segment(
        &self,
        dev: &DeviceCtx,
        request: &Addition,
        pinner: &Pinner<'_>,
    ) -> Result<RegionState> {
        let verbs_mr = self.as_verbs_mr()?;
        let old = verbs_mr.layout_for_change(request.rkey)?;
        let (start, length, iova) = (request.source.start(), request.length, request.iova);
        let in_page = u64::try_from(PAGE_SIZE)?.wrapping_sub(1);
        if (start | length | iova) & in_page != 0 {
            return Err(dev.handle.refuse(c"a segment that is not of whole pages"));
        }
        let end = iova.checked_add(length);
        let Some(end) = end.filter(|_| length != 0 && length <= MAX_MR_SIZE) else {
            return Err(dev.handle.refuse(c"a segment too large, or empty"));
        };
        let index = old.with_table(|table| segments::insertion_index(table, iova, end))?;
        let index = index.ok_or(EEXIST)?;
        if old.count() >= MAX_SEGMENTS {
            return Err(ENOSPC);
        }
        let rights = old.desc.access.bits();
        let memory = request.source.get(pinner, length, rights, |reason| {
            dev.handle.refuse(reason);
        })?;
        check_pmem_access(dev, old.desc.access, || memory.is_persistent())?;
        let handle = old.next_handle();
        let memory = Arc::new(memory, GFP_KERNEL_ACCOUNT)?;
        let segment = Segment::new(iova, length, MrSegment { memory, handle });
        let new = Arc::new(old.with(index, segment.ok_or(EINVAL)?)?, GFP_KERNEL_ACCOUNT)?;
        let run = new.with_table(|table| segments::run(table, index))?;
        let state = RegionState {
            handle,
            run: run.unwrap_or_default(),
            ..new.state()?
        };
        verbs_mr.replace_layout(new)?;
        Ok(state)
    }

    /// Adds the first segment to a region without memory, and sets its rights.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a length or an address that is not of whole pages, a segment too large, or
    /// addresses that wrap; `EEXIST` if the region has memory; `ENOENT` if its key has been
    /// released; `EOPNOTSUPP` if it cannot have segments; `ENOMEM`. Nothing has changed then.
    pub(super) fn fill_empty(
        &self,
        dev: &DeviceCtx,
        memory: SgMem,
        iova: u64,
        access: Access,
    ) -> Result<RegionState> {
        let verbs_mr = self.as_verbs_mr()?;
        let old = verbs_mr.layout.get().ok_or(ENOENT)?;
        if old.count() != 0 {
            return Err(EEXIST);
        }
        let length = memory.len();
        let in_page = u64::try_from(PAGE_SIZE)?.wrapping_sub(1);
        if (length | iova) & in_page != 0 {
            return Err(dev.handle.refuse(c"a segment that is not of whole pages"));
        }
        if length > MAX_MR_SIZE || iova.checked_add(length).is_none() {
            return Err(dev.handle.refuse(c"a segment too large, or addresses wrap"));
        }
        let desc = MrDesc {
            iova,
            length,
            access,
            ..old.desc
        };
        drop(old);
        let memory = Arc::new(Memory::Sg(memory), GFP_KERNEL_ACCOUNT)?;
        let new = Arc::new(MrLayout::new(desc, memory), GFP_KERNEL_ACCOUNT)?;
        let state = RegionState {
            handle: FIRST_SEGMENT,
            run: (iova, length),
            ..new.state()?
        };
        verbs_mr.replace_layout(new)?;
        Ok(state)
    }

    /// Moves the rest of a segment to another address.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `iova` is not the address of a page, the addresses wrap, or `rkey` is not the
    /// key of the region; `EEXIST` if the segment would overlap another one; `ENOENT` if no segment
    /// has the handle, or the key has been released; `EOPNOTSUPP` if the region cannot have
    /// segments; `ENOMEM`. Nothing has changed then.
    pub(super) fn move_segment(
        &self,
        dev: &DeviceCtx,
        rkey: u32,
        handle: u64,
        iova: u64,
    ) -> Result<RegionState> {
        let verbs_mr = self.as_verbs_mr()?;
        let old = verbs_mr.layout_for_change(rkey)?;
        let in_page = u64::try_from(PAGE_SIZE)?.wrapping_sub(1);
        if iova & in_page != 0 {
            return Err(dev.handle.refuse(c"a segment that is not of whole pages"));
        }
        let table = old.with_table(|table| moved(table, handle, iova))??;
        let index = segments::find(&table, iova, 0).ok_or(EINVAL)?;
        let new = old.with_segments(table, old.next_handle())?;
        drop(old);
        let new = Arc::new(new, GFP_KERNEL_ACCOUNT)?;
        let run = new.with_table(|table| segments::run(table, index))?;
        let state = RegionState {
            handle,
            run: run.unwrap_or_default(),
            ..new.state()?
        };
        verbs_mr.replace_layout(new)?;
        Ok(state)
    }

    /// Removes memory; removing the last of it also releases the key.
    ///
    /// # Errors
    ///
    /// As `struct rxe_rs_mr_remove` of `uapi/rxe_rs.h` documents; nothing has changed then.
    pub(super) fn remove_segments(
        &self,
        dev: &DeviceCtx,
        request: &Removal,
    ) -> Result<RegionState> {
        let verbs_mr = self.as_verbs_mr()?;
        let old = verbs_mr.layout_for_change(request.rkey)?;
        if let Some(new) = old.without(dev, &request.what)? {
            let new = Arc::new(new, GFP_KERNEL_ACCOUNT)?;
            let state = new.state()?;
            drop(old);
            // The old layout is no longer used, and memory that only it referred to is released.
            verbs_mr.replace_layout(new)?;
            return Ok(state);
        }
        drop(old);
        Self::block_windows(dev, verbs_mr)?;
        dev.mrs.table.remove(self.index);
        self.remove_layout(verbs_mr);
        Ok(RegionState::default())
    }
}
