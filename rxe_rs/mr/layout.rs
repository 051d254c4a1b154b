// SPDX-License-Identifier: GPL-2.0
//! What a region is at one time: what its key grants, and the memory behind its addresses.
//!
//! A map never changes; another one takes its place while accesses go on.

use super::Ties;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rxe_kapi::{
    mem::{
        AccessFailure,
        ExtentHint,
        Memory,
        OutOfBounds, //
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
    pub(super) handle: u64,
}

impl MrSegment {
    /// Whether it is memory of which a region may have any number of segments.
    fn is_segment(&self) -> bool {
        matches!(
            &*self.memory,
            Memory::User(_) | Memory::Buffer(_) | Memory::Listed(_)
        )
    }
}

/// The segments of a region by address.
pub(super) type Table = KVVec<Segment<MrSegment>>;

enum MrSegments {
    /// One segment, which begins and ends where the region does.
    One(MrSegment),
    /// Any number of them anywhere.
    Many(Table),
}

/// See above.
pub(crate) struct MrLayout {
    /// Key, domain and rights; bounds that hold all segments.
    pub(crate) desc: MrDesc,
    pieces: MrSegments,
    /// Handle for the next segment.
    next: u64,
    /// What ends the region, if it is tied to a queue pair.
    pub(super) ties: Option<Arc<Ties>>,
}

/// First address of a region: what those of work requests and packets are counted from.
fn base(desc: &MrDesc) -> u64 {
    if desc.access.contains(Access::ZERO_BASED) {
        0
    } else {
        desc.iova
    }
}

impl MrLayout {
    /// A region of one segment, which is `memory`.
    pub(super) fn new(desc: MrDesc, memory: Arc<Memory>) -> Self {
        let handle = FIRST_SEGMENT;
        Self {
            desc,
            pieces: MrSegments::One(MrSegment { memory, handle }),
            next: FIRST_SEGMENT.wrapping_add(1),
            ties: None,
        }
    }

    /// A region without memory.
    pub(super) fn empty(desc: MrDesc) -> Self {
        Self {
            desc,
            pieces: MrSegments::Many(KVVec::new()),
            next: FIRST_SEGMENT,
            ties: None,
        }
    }

    /// This one with other rights, and all of its memory in another place.
    pub(super) fn moved(&self, desc: MrDesc, memory: Arc<Memory>) -> Self {
        let handle = self.next;
        Self {
            desc,
            pieces: MrSegments::One(MrSegment { memory, handle }),
            next: self.next.wrapping_add(1),
            ties: self.ties.clone(),
        }
    }

    /// This one with other rights, and memory that `renew` may replace.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the addresses of several segments would count from elsewhere, `ENOMEM`, and
    /// what `renew` returns.
    pub(super) fn granting(
        &self,
        desc: MrDesc,
        renew: impl Fn(&MrSegment) -> Result<MrSegment>,
    ) -> Result<Self> {
        let pieces = match &self.pieces {
            MrSegments::One(piece) => MrSegments::One(renew(piece)?),
            MrSegments::Many(_) if base(&desc) != base(&self.desc) => return Err(EINVAL),
            MrSegments::Many(table) => {
                let mut new = KVVec::with_capacity(table.len(), GFP_KERNEL_ACCOUNT)?;
                for segment in table {
                    let mut segment = segment.clone();
                    segment.piece = renew(&segment.piece)?;
                    new.push_within_capacity(segment).map_err(|_| ENOMEM)?;
                }
                segments::link(&mut new);
                MrSegments::Many(new)
            }
        };
        Ok(Self {
            desc,
            pieces,
            next: self.next,
            ties: self.ties.clone(),
        })
    }

    /// This one, tied to a queue pair.
    pub(super) fn tied(&self, ties: Arc<Ties>) -> Result<Self> {
        let mut layout = self.granting(self.desc, |piece| Ok(piece.clone()))?;
        layout.ties = Some(ties);
        Ok(layout)
    }

    /// Whether it has ended with the queue pair it is tied to: it grants nothing.
    #[inline]
    pub(super) fn is_cut(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.are_cut())
    }

    /// Whether it is memory of a process that is got on demand.
    pub(super) fn is_on_demand(&self) -> bool {
        matches!(&self.pieces, MrSegments::One(piece) if matches!(&*piece.memory, Memory::Demand(_)))
    }

    /// Whether segments may be added to it and removed: it is pinned memory of a process and DMA
    /// buffers, or memory that a kernel consumer listed.
    pub(super) fn has_segments(&self) -> bool {
        match &self.pieces {
            MrSegments::One(piece) => piece.is_segment(),
            MrSegments::Many(table) => table.iter().all(|s| s.piece.is_segment()),
        }
    }

    /// Whether all of it is persistent memory. Process context.
    pub(super) fn is_persistent(&self) -> bool {
        match &self.pieces {
            MrSegments::One(piece) => piece.memory.is_persistent(),
            MrSegments::Many(table) => table.iter().all(|s| s.piece.memory.is_persistent()),
        }
    }

    /// Number of segments.
    pub(super) fn count(&self) -> usize {
        match &self.pieces {
            MrSegments::One(_) => 1,
            MrSegments::Many(table) => table.len(),
        }
    }

    /// Handle for the next segment.
    pub(super) fn next_handle(&self) -> u64 {
        self.next
    }

    /// Calls `f` with all segments.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the region is no part of an address space.
    pub(super) fn with_table<R>(&self, f: impl FnOnce(&[Segment<MrSegment>]) -> R) -> Result<R> {
        match &self.pieces {
            MrSegments::One(piece) => {
                let length = self.desc.length;
                let only = Segment::new(base(&self.desc), length, piece.clone());
                Ok(f(&[only.ok_or(EINVAL)?]))
            }
            MrSegments::Many(table) => Ok(f(table)),
        }
    }

    /// This one with other segments, of which there is at least one; `next` is the handle for one
    /// more.
    pub(super) fn with_segments(&self, mut table: Table, next: u64) -> Result<Self> {
        segments::link(&mut table);
        let (start, span) = segments::bounds(&table).ok_or(EINVAL)?;
        let mut desc = self.desc;
        if desc.access.contains(Access::ZERO_BASED) {
            desc.length = start.checked_add(span).ok_or(EINVAL)?;
        } else {
            desc.iova = start;
            desc.length = span;
        }
        let pieces = match table.first() {
            Some(only) if table.len() == 1 && start == base(&desc) => {
                MrSegments::One(only.piece.clone())
            }
            _ => MrSegments::Many(table),
        };
        Ok(Self {
            desc,
            pieces,
            next,
            ties: self.ties.clone(),
        })
    }

    /// The memory at `offset` of the region's bounds, where an access of `len` bytes begins that
    /// they hold.
    #[inline]
    pub(super) fn place<'a>(
        &'a self,
        offset: u64,
        len: u64,
        hint: &'a ExtentHint,
    ) -> Result<MemCursor<'a>, OutOfBounds> {
        if self.is_cut() {
            return Err(OutOfBounds);
        }
        match &self.pieces {
            MrSegments::One(piece) => Ok(MemCursor::Whole(&piece.memory, offset, hint)),
            MrSegments::Many(table) => {
                let addr = base(&self.desc).checked_add(offset).ok_or(OutOfBounds)?;
                parts(table, addr, len, hint)
            }
        }
    }

    /// The memory where an access of `len` bytes at address `addr` begins.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] if they are not all there.
    #[inline]
    pub(super) fn place_at<'a>(
        &'a self,
        addr: u64,
        len: u64,
        hint: &'a ExtentHint,
    ) -> Result<MemCursor<'a>, OutOfBounds> {
        if self.is_cut() {
            return Err(OutOfBounds);
        }
        match &self.pieces {
            MrSegments::One(piece) => {
                let offset = addr.checked_sub(base(&self.desc)).ok_or(OutOfBounds)?;
                let end = offset.checked_add(len).ok_or(OutOfBounds)?;
                if end > self.desc.length {
                    return Err(OutOfBounds);
                }
                Ok(MemCursor::Whole(&piece.memory, offset, hint))
            }
            MrSegments::Many(table) => parts(table, addr, len, hint),
        }
    }

    /// Address and length of the first memory from address `at` on, up to where its segment ends.
    pub(super) fn memory_from(&self, at: u64) -> Option<(u64, u64)> {
        match &self.pieces {
            MrSegments::One(_) => {
                let start = base(&self.desc);
                let end = start.checked_add(self.desc.length)?;
                let from = at.max(start);
                let len = end.checked_sub(from)?;
                (len != 0).then_some((from, len))
            }
            MrSegments::Many(table) => segments::from(table, at),
        }
    }

    /// The memory at address `addr`, and the offset in it, if it is got on demand and holds `len`
    /// bytes there. Such memory is never one of several segments.
    pub(super) fn on_demand(&self, addr: u64, len: u64) -> Option<(Arc<Memory>, u64)> {
        if self.is_cut() {
            return None;
        }
        let MrSegments::One(piece) = &self.pieces else {
            return None;
        };
        let Memory::Demand(demand) = &*piece.memory else {
            return None;
        };
        let offset = addr.checked_sub(base(&self.desc))?;
        let end = offset.checked_add(len)?;
        (end <= demand.len()).then(|| (piece.memory.clone(), offset))
    }

    /// Whether there is memory behind all of `len` bytes at `addr`.
    pub(crate) fn covers(&self, addr: u64, len: u64) -> bool {
        self.place_at(addr, len, &ExtentHint::default()).is_ok()
    }
}

#[inline(never)]
fn parts<'a>(
    table: &'a [Segment<MrSegment>],
    addr: u64,
    len: u64,
    hint: &'a ExtentHint,
) -> Result<MemCursor<'a>, OutOfBounds> {
    let index = segments::reach(table, addr, len, hint.segment()).ok_or(OutOfBounds)?;
    hint.set_segment(index);
    Ok(MemCursor::Parts(Parts {
        table,
        index,
        addr,
        hint,
    }))
}

/// Where an access begins that has been permitted.
pub(crate) enum MemCursor<'a> {
    /// At an offset of memory that holds all of it.
    Whole(&'a Memory, u64, &'a ExtentHint),
    /// In one of several segments.
    Parts(Parts<'a>),
}

/// Where in a table of segments an access begins.
pub(crate) struct Parts<'a> {
    table: &'a [Segment<MrSegment>],
    index: usize,
    addr: u64,
    hint: &'a ExtentHint,
}

impl MemCursor<'_> {
    /// Copies `dst.len()` bytes from there.
    #[inline]
    pub(super) fn read(&self, dst: &mut [u8]) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => memory.read(*at, dst, hint),
            MemCursor::Parts(parts) => parts.read(dst),
        }
    }

    /// Copies `src` there.
    #[inline]
    pub(super) fn write(&self, src: &Payload<'_>) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => {
                let mut at = *at;
                for piece in src.pieces() {
                    memory.write(at, piece, hint)?;
                    at = behind(at, piece)?;
                }
                Ok(())
            }
            MemCursor::Parts(parts) => parts.write(src),
        }
    }

    /// Begins to write the caches of `len` bytes there back to persistent memory.
    pub(super) fn write_back(&self, len: usize) -> Result<(), AccessFailure> {
        match self {
            MemCursor::Whole(memory, at, hint) => memory.write_back(*at, len, hint),
            MemCursor::Parts(parts) => parts.each(parts.addr, len, |memory, at, part| {
                memory.write_back(at, part, parts.hint)
            }),
        }
    }

    /// The memory of the word there, and its offset.
    #[inline]
    pub(super) fn word(&self) -> Result<(&Memory, u64), OutOfBounds> {
        match self {
            MemCursor::Whole(memory, at, _) => Ok((memory, *at)),
            MemCursor::Parts(parts) => {
                // An aligned word lies in one page, so in one segment.
                let mut found = segments::parts(parts.table, parts.index, parts.addr, 8);
                let (piece, at, _) = found.next().ok_or(OutOfBounds)?;
                Ok((&piece.memory, at))
            }
        }
    }
}

/// The address behind `piece` at `at`.
#[inline]
fn behind(at: u64, piece: &[u8]) -> Result<u64, OutOfBounds> {
    let len = u64::try_from(piece.len()).map_err(|_| OutOfBounds)?;
    at.checked_add(len).ok_or(OutOfBounds)
}

impl Parts<'_> {
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
        for (piece, at, part) in segments::parts(self.table, index, addr, len) {
            let part = usize::try_from(part).map_err(|_| OutOfBounds)?;
            f(&piece.memory, at, part)?;
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
        for piece in src.pieces() {
            let mut rest = piece;
            self.each(addr, piece.len(), |memory, at, part| {
                let (from, behind) = rest.split_at_checked(part).ok_or(OutOfBounds)?;
                rest = behind;
                memory.write(at, from, self.hint)
            })?;
            addr = behind(addr, piece)?;
        }
        Ok(())
    }
}
