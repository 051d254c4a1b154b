// SPDX-License-Identifier: GPL-2.0
//! The layout of a region: the access that its key grants, and the memory behind its addresses.
//!
//! A layout is immutable; a verb replaces it while accesses continue.

use super::{
    CopyFault,
    TiedMrs, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::{
    mem::{
        AccessFailure,
        ExtentHint,
        Memory,
        OutOfBounds,
        Run, //
    },
    rdma::segment::FIRST_SEGMENT,
};
use rxe_proto::{
    table::{
        region::{
            Access,
            MrDesc, //
        },
        segments::{
            self,
            Segment, //
        },
    },
    wire::payload::Payload, //
};

/// The memory of a segment, and its handle.
#[derive(Clone)]
pub(crate) struct MrSegment {
    pub(super) memory: Arc<Memory>,
    /// Handle of the segment in calls, unique in its region.
    pub(super) handle: u64,
}

impl MrSegment {
    /// Returns true if a region may have several segments of this kind of memory.
    fn is_segment(&self) -> bool {
        matches!(
            &*self.memory,
            Memory::User(_) | Memory::Buffer(_) | Memory::Sg(_)
        )
    }
}

/// The segments of a region by address.
pub(super) type SegmentTable = KVVec<Segment<MrSegment>>;

enum MrSegments {
    /// One segment, with the bounds of the region.
    One(MrSegment),
    /// Any number of segments with holes between them.
    Many(SegmentTable),
}

/// The layout of a region.
pub(crate) struct MrLayout {
    /// Key, protection domain and rights; the bounds enclose all segments.
    pub(crate) desc: MrDesc,
    segments: MrSegments,
    /// Handle for the next segment.
    next: u64,
    /// The queue pair's list, if the region is tied to one.
    pub(super) tied_mrs: Option<Arc<TiedMrs>>,
}

/// Returns the first address of a region, in the numbering of work requests and packets.
fn base(desc: &MrDesc) -> u64 {
    if desc.access.contains(Access::ZERO_BASED) {
        0
    } else {
        desc.iova
    }
}

impl MrLayout {
    /// Creates a layout of one segment, which is `memory`.
    pub(super) fn new(desc: MrDesc, memory: Arc<Memory>) -> Self {
        let handle = FIRST_SEGMENT;
        Self {
            desc,
            segments: MrSegments::One(MrSegment { memory, handle }),
            next: FIRST_SEGMENT.wrapping_add(1),
            tied_mrs: None,
        }
    }

    /// Creates a layout without memory.
    pub(super) fn empty(desc: MrDesc) -> Self {
        Self {
            desc,
            segments: MrSegments::Many(KVVec::new()),
            next: FIRST_SEGMENT,
            tied_mrs: None,
        }
    }

    /// Returns a copy with other rights, and with `memory` in place of all segments.
    pub(super) fn with_memory(&self, desc: MrDesc, memory: Arc<Memory>) -> Self {
        let handle = self.next;
        Self {
            desc,
            segments: MrSegments::One(MrSegment { memory, handle }),
            next: self.next.wrapping_add(1),
            tied_mrs: self.tied_mrs.clone(),
        }
    }

    /// Returns a copy with other rights, and with memory that `renew` may replace.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the base address of several segments would change, `ENOMEM`, and what `renew`
    /// returns.
    pub(super) fn with_desc(
        &self,
        desc: MrDesc,
        renew: impl Fn(&MrSegment) -> Result<MrSegment>,
    ) -> Result<Self> {
        let segments = match &self.segments {
            MrSegments::One(segment) => MrSegments::One(renew(segment)?),
            MrSegments::Many(_) if base(&desc) != base(&self.desc) => return Err(EINVAL),
            MrSegments::Many(table) => {
                let mut new = KVVec::with_capacity(table.len(), GFP_KERNEL_ACCOUNT)?;
                for segment in table {
                    let mut segment = segment.clone();
                    segment.backing = renew(&segment.backing)?;
                    new.push_within_capacity(segment).map_err(|_| ENOMEM)?;
                }
                segments::update_run_ends(&mut new);
                MrSegments::Many(new)
            }
        };
        Ok(Self {
            desc,
            segments,
            next: self.next,
            tied_mrs: self.tied_mrs.clone(),
        })
    }

    /// Returns a copy that is tied to a queue pair.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn with_tied_mrs(&self, tied_mrs: Arc<TiedMrs>) -> Result<Self> {
        let mut layout = self.with_desc(self.desc, |backing| Ok(backing.clone()))?;
        layout.tied_mrs = Some(tied_mrs);
        Ok(layout)
    }

    /// Returns true if it has been revoked with the queue pair that it is tied to: it grants no
    /// access.
    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        self.tied_mrs
            .as_ref()
            .is_some_and(|tied_mrs| tied_mrs.is_revoked())
    }

    /// Returns true if it uses on-demand paging.
    pub(super) fn is_odp(&self) -> bool {
        matches!(&self.segments, MrSegments::One(segment) if matches!(&*segment.memory, Memory::Odp(_)))
    }

    /// Returns true if segments may be added and removed: its memory is pinned memory of a process
    /// and DMA buffers, or listed by a kernel consumer.
    pub(super) fn has_segments(&self) -> bool {
        match &self.segments {
            MrSegments::One(segment) => segment.is_segment(),
            MrSegments::Many(table) => table.iter().all(|s| s.backing.is_segment()),
        }
    }

    /// Returns true if all of its memory is persistent.
    ///
    /// # Context
    ///
    /// Process context.
    pub(super) fn is_persistent(&self) -> bool {
        match &self.segments {
            MrSegments::One(segment) => segment.memory.is_persistent(),
            MrSegments::Many(table) => table.iter().all(|s| s.backing.memory.is_persistent()),
        }
    }

    /// Returns the number of segments.
    pub(super) fn count(&self) -> usize {
        match &self.segments {
            MrSegments::One(_) => 1,
            MrSegments::Many(table) => table.len(),
        }
    }

    /// Returns the handle for the next segment.
    pub(super) fn next_handle(&self) -> u64 {
        self.next
    }

    /// Calls `f` with all segments.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the bounds are not a valid range of addresses.
    pub(super) fn with_table<R>(&self, f: impl FnOnce(&[Segment<MrSegment>]) -> R) -> Result<R> {
        match &self.segments {
            MrSegments::One(segment) => {
                let length = self.desc.length;
                let only = Segment::new(base(&self.desc), length, segment.clone());
                Ok(f(&[only.ok_or(EINVAL)?]))
            }
            MrSegments::Many(table) => Ok(f(table)),
        }
    }

    /// Returns a copy with other segments, of which there is at least one; `next` is the handle for
    /// the next one.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `table` is empty, or its addresses wrap.
    pub(super) fn with_segments(&self, mut table: SegmentTable, next: u64) -> Result<Self> {
        segments::update_run_ends(&mut table);
        let (start, span) = segments::bounds(&table).ok_or(EINVAL)?;
        let mut desc = self.desc;
        if desc.access.contains(Access::ZERO_BASED) {
            desc.length = start.checked_add(span).ok_or(EINVAL)?;
        } else {
            desc.iova = start;
            desc.length = span;
        }
        let segments = match table.first() {
            Some(only) if table.len() == 1 && start == base(&desc) => {
                MrSegments::One(only.backing.clone())
            }
            _ => MrSegments::Many(table),
        };
        Ok(Self {
            desc,
            segments,
            next,
            tied_mrs: self.tied_mrs.clone(),
        })
    }

    /// Returns a cursor at `offset` of the region, for an access of `len` bytes that the caller has
    /// checked against the bounds.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] if segments do not cover the whole access, or the region has been revoked.
    #[inline]
    pub(super) fn cursor<'a>(
        &'a self,
        offset: u64,
        len: u64,
        hint: &'a ExtentHint,
    ) -> Result<MemCursor<'a>, OutOfBounds> {
        if self.is_revoked() {
            return Err(OutOfBounds);
        }
        match &self.segments {
            MrSegments::One(segment) => Ok(MemCursor::Whole(&segment.memory, offset, hint)),
            MrSegments::Many(table) => {
                let addr = base(&self.desc).checked_add(offset).ok_or(OutOfBounds)?;
                segment_cursor(table, addr, len, hint)
            }
        }
    }

    /// Returns a cursor at address `addr`, for an access of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] if segments do not cover the whole access.
    #[inline]
    pub(super) fn cursor_at<'a>(
        &'a self,
        addr: u64,
        len: u64,
        hint: &'a ExtentHint,
    ) -> Result<MemCursor<'a>, OutOfBounds> {
        if self.is_revoked() {
            return Err(OutOfBounds);
        }
        match &self.segments {
            MrSegments::One(segment) => {
                let offset = addr.checked_sub(base(&self.desc)).ok_or(OutOfBounds)?;
                let end = offset.checked_add(len).ok_or(OutOfBounds)?;
                if end > self.desc.length {
                    return Err(OutOfBounds);
                }
                Ok(MemCursor::Whole(&segment.memory, offset, hint))
            }
            MrSegments::Many(table) => segment_cursor(table, addr, len, hint),
        }
    }

    /// Returns address and length of the first memory at or after address `at`, up to the end of
    /// its segment.
    pub(super) fn memory_from(&self, at: u64) -> Option<(u64, u64)> {
        match &self.segments {
            MrSegments::One(_) => {
                let start = base(&self.desc);
                let end = start.checked_add(self.desc.length)?;
                let from = at.max(start);
                let len = end.checked_sub(from)?;
                (len != 0).then_some((from, len))
            }
            MrSegments::Many(table) => segments::next_memory(table, at),
        }
    }

    /// Returns the ODP memory at address `addr` and the offset in it, if the region uses on-demand
    /// paging and holds `len` bytes there. Such memory is never one of several segments.
    pub(super) fn odp_range(&self, addr: u64, len: u64) -> Option<(Arc<Memory>, u64)> {
        if self.is_revoked() {
            return None;
        }
        let MrSegments::One(segment) = &self.segments else {
            return None;
        };
        let Memory::Odp(odp) = &*segment.memory else {
            return None;
        };
        let offset = addr.checked_sub(base(&self.desc))?;
        let end = offset.checked_add(len)?;
        (end <= odp.len()).then(|| (segment.memory.clone(), offset))
    }

    /// Returns true if segments cover all of the `len` bytes at `addr`.
    pub(crate) fn covers(&self, addr: u64, len: u64) -> bool {
        self.cursor_at(addr, len, &ExtentHint::default()).is_ok()
    }
}

#[inline(never)]
fn segment_cursor<'a>(
    table: &'a [Segment<MrSegment>],
    addr: u64,
    len: u64,
    hint: &'a ExtentHint,
) -> Result<MemCursor<'a>, OutOfBounds> {
    let index = segments::find_range(table, addr, len, hint.segment()).ok_or(OutOfBounds)?;
    hint.set_segment(index);
    Ok(MemCursor::Segments(SegmentCursor {
        table,
        index,
        addr,
        hint,
    }))
}

/// The start of a permitted access.
pub(crate) enum MemCursor<'a> {
    /// At an offset of memory that holds the whole access.
    Whole(&'a Memory, u64, &'a ExtentHint),
    /// In one of several segments.
    Segments(SegmentCursor<'a>),
}

/// A position in a table of segments.
pub(crate) struct SegmentCursor<'a> {
    table: &'a [Segment<MrSegment>],
    /// Index of the segment, and address in the region.
    index: usize,
    addr: u64,
    hint: &'a ExtentHint,
}

impl MemCursor<'_> {
    /// Copies `dst.len()` bytes from there.
    ///
    /// # Errors
    ///
    /// As [`Memory::read`]; `dst` may have been written in part.
    #[inline]
    pub(super) fn read(&self, dst: &mut [u8]) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => memory.read(*at, dst, hint),
            MemCursor::Segments(cursor) => cursor.read(dst),
        }
    }

    /// Copies `src` there.
    ///
    /// # Errors
    ///
    /// As [`Memory::write`]; the region may have been written in part.
    #[inline]
    pub(super) fn write(&self, src: &Payload<'_>) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => {
                let mut at = *at;
                for frag in src.frags() {
                    memory.write(at, frag, hint)?;
                    at = after(at, frag)?;
                }
                Ok(())
            }
            MemCursor::Segments(cursor) => cursor.write(src),
        }
    }

    /// Calls `f` with each run of contiguous addresses of the `len` bytes there.
    ///
    /// # Errors
    ///
    /// As [`Memory::for_each_run`].
    #[inline]
    fn for_each_run(
        &self,
        len: usize,
        mut f: impl FnMut(Run<'_>) -> Result<(), AccessFailure>,
    ) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => memory.for_each_run(*at, len, hint, f),
            MemCursor::Segments(cursor) => cursor.each(cursor.addr, len, |memory, at, part| {
                memory.for_each_run(at, part, cursor.hint, &mut f)
            }),
        }
    }

    /// Copies a run of other memory to `from` bytes behind the position.
    #[inline]
    fn write_run(&self, from: u64, src: &Run<'_>) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => {
                memory.write_run(at.checked_add(from).ok_or(OutOfBounds)?, src, hint)
            }
            MemCursor::Segments(cursor) => {
                let addr = cursor.addr.checked_add(from).ok_or(OutOfBounds)?;
                let mut done = 0usize;
                cursor.each(addr, src.len(), |memory, at, part| {
                    let run = src.part(done, part);
                    done = done.wrapping_add(part);
                    memory.write_run(at, &run, cursor.hint)
                })
            }
        }
    }

    /// Copies `len` bytes of other memory there.
    ///
    /// # Errors
    ///
    /// [`CopyFault`]; for the destination as of [`write`](Self::write).
    #[inline]
    pub(super) fn copy_from(
        &self,
        src: &MemCursor<'_>,
        len: usize,
    ) -> Result<(), CopyFault<AccessFailure>> {
        let mut done = 0u64;
        let mut failed = None;
        let copied = src.for_each_run(len, |run| {
            let to = done;
            done = done.wrapping_add(u64::try_from(run.len()).map_err(|_| OutOfBounds)?);
            self.write_run(to, &run).inspect_err(|e| failed = Some(*e))
        });
        copied.map_err(|_| match failed {
            // A copy fails where memory cannot be read, and only the source is read.
            None | Some(AccessFailure::Unreadable) => CopyFault::Source,
            Some(failure) => CopyFault::Destination(failure),
        })
    }

    /// Returns true if the pages of all its memory are present. They are if it is one of several
    /// segments, none of which uses on-demand paging ([`MrLayout::odp_range`]): a region may have
    /// thousands.
    pub(super) fn is_pinned(&self) -> bool {
        match self {
            MemCursor::Whole(memory, ..) => memory.is_pinned(),
            MemCursor::Segments(_) => true,
        }
    }

    /// Starts writing `len` bytes there back to persistent memory.
    ///
    /// # Errors
    ///
    /// As [`Memory::write_back`].
    pub(super) fn write_back(&self, len: usize) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => memory.write_back(*at, len, hint),
            MemCursor::Segments(cursor) => cursor.each(cursor.addr, len, |memory, at, part| {
                memory.write_back(at, part, cursor.hint)
            }),
        }
    }

    /// Returns the memory of the word there, and its offset.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] if no segment holds the word.
    #[inline]
    pub(super) fn word(&self) -> Result<(&Memory, u64), OutOfBounds> {
        match self {
            MemCursor::Whole(memory, at, _) => Ok((memory, *at)),
            MemCursor::Segments(cursor) => {
                // An aligned word lies in one page, so in one segment.
                let mut found = segments::parts(cursor.table, cursor.index, cursor.addr, 8);
                let (backing, at, _) = found.next().ok_or(OutOfBounds)?;
                Ok((&backing.memory, at))
            }
        }
    }
}

/// Returns the address after `frag`, which is at `at`.
#[inline]
fn after(at: u64, frag: &[u8]) -> Result<u64, OutOfBounds> {
    let len = u64::try_from(frag.len()).map_err(|_| OutOfBounds)?;
    at.checked_add(len).ok_or(OutOfBounds)
}

impl SegmentCursor<'_> {
    /// Calls `f` with the memory, offset and number of bytes of each part of the `len` bytes at
    /// `addr`.
    #[inline]
    fn each(
        &self,
        addr: u64,
        len: usize,
        mut f: impl FnMut(&Memory, u64, usize) -> Result<(), AccessFailure>,
    ) -> Result<(), AccessFailure> {
        let len = u64::try_from(len).map_err(|_| OutOfBounds)?;
        let index = segments::find(self.table, addr, self.index).ok_or(OutOfBounds)?;
        for (backing, at, part) in segments::parts(self.table, index, addr, len) {
            let part = usize::try_from(part).map_err(|_| OutOfBounds)?;
            f(&backing.memory, at, part)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn read(&self, dst: &mut [u8]) -> Result<(), AccessFailure> {
        let len = dst.len();
        let mut rest = dst;
        self.each(self.addr, len, |memory, at, part| {
            let (to, behind) = core::mem::take(&mut rest)
                .split_at_mut_checked(part)
                .ok_or(OutOfBounds)?;
            rest = behind;
            memory.read(at, to, self.hint)
        })
    }

    #[inline(never)]
    fn write(&self, src: &Payload<'_>) -> Result<(), AccessFailure> {
        let mut addr = self.addr;
        for frag in src.frags() {
            let mut rest = frag;
            self.each(addr, frag.len(), |memory, at, part| {
                let (from, behind) = rest.split_at_checked(part).ok_or(OutOfBounds)?;
                rest = behind;
                memory.write(at, from, self.hint)
            })?;
            addr = after(addr, frag)?;
        }
        Ok(())
    }
}
