// SPDX-License-Identifier: GPL-2.0
//! Regions made of segments: ranges of memory anywhere in the address space of one key, sorted and
//! never overlapping. Removing a range from a segment leaves one or two smaller segments. Adjacent
//! segments form a run, within which an access may span several segments.
//!
//! The functions work on slices that the caller keeps sorted by address, with the ends of their
//! runs up to date ([`update_run_ends`]).

use core::ops::Range;

/// One segment.
///
/// # Examples
///
/// ```
/// use rxe_proto::table::segments::{find_range, parts, update_run_ends, Segment};
///
/// let segment = |start, length, backing| Segment::new(start, length, backing).unwrap();
/// let mut table = [
///     segment(0x1000, 0x100, 'a'),
///     segment(0x1100, 0x100, 'b'),
///     segment(0x2000, 8, 'c'),
/// ];
/// update_run_ends(&mut table);
///
/// // An access may span segments that touch, but not a hole.
/// let index = find_range(&table, 0x10f0, 0x20, 0).unwrap();
/// let split: Vec<_> = parts(&table, index, 0x10f0, 0x20).collect();
/// assert_eq!(split, [(&'a', 0xf0, 0x10), (&'b', 0, 0x10)]);
/// assert_eq!(find_range(&table, 0x11f0, 0x20, 0), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<B> {
    /// Its first address, and the one after its last.
    start: u64,
    end: u64,
    /// End of the run of adjacent segments that it belongs to.
    run_end: u64,
    /// The memory behind it.
    pub backing: B,
}

impl<B> Segment<B> {
    /// `length` bytes at address `start`; `None` if the length is zero or the range wraps.
    #[inline]
    pub fn new(start: u64, length: u64, backing: B) -> Option<Self> {
        let end = start.checked_add(length)?;
        (length != 0).then_some(Self {
            start,
            end,
            run_end: end,
            backing,
        })
    }

    /// Address of the first byte.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Address after the last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes, at least one.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> u64 {
        self.end.wrapping_sub(self.start)
    }

    /// The remainders of the segment without `start..end`: offset in the segment and length of the
    /// part before the range and of the part after it.
    pub fn without(&self, start: u64, end: u64) -> [Option<(u64, u64)>; 2] {
        let before = start.min(self.end).checked_sub(self.start);
        let from = end.max(self.start);
        let behind = self.end.checked_sub(from);
        [
            before.filter(|len| *len != 0).map(|len| (0, len)),
            behind
                .filter(|len| *len != 0)
                .map(|len| (from.wrapping_sub(self.start), len)),
        ]
    }

    /// True if `addr` splits the segment into two parts that are not empty.
    pub fn is_split_at(&self, addr: u64) -> bool {
        self.start < addr && addr < self.end
    }

    #[inline]
    fn contains(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }
}

/// Computes where the run of each segment of a sorted table ends. Call it after every change.
pub fn update_run_ends<B>(table: &mut [Segment<B>]) {
    let mut behind: Option<(u64, u64)> = None;
    for segment in table.iter_mut().rev() {
        segment.run_end = match behind {
            Some((start, run_end)) if start == segment.end => run_end,
            _ => segment.end,
        };
        behind = Some((segment.start, segment.run_end));
    }
}

/// Index of the segment that contains `addr`; tries `hint` and the one after it first.
#[inline]
pub fn find<B>(table: &[Segment<B>], addr: u64, hint: usize) -> Option<usize> {
    for index in [hint, hint.wrapping_add(1)] {
        if table.get(index).is_some_and(|s| s.contains(addr)) {
            return Some(index);
        }
    }
    let index = table.partition_point(|s| s.start <= addr).checked_sub(1)?;
    table.get(index)?.contains(addr).then_some(index)
}

/// As [`find`], but `None` unless all `len` bytes at `addr` belong to one run.
#[inline]
pub fn find_range<B>(table: &[Segment<B>], addr: u64, len: u64, hint: usize) -> Option<usize> {
    let index = find(table, addr, hint)?;
    let run_end = table.get(index)?.run_end;
    (addr.checked_add(len)? <= run_end).then_some(index)
}

/// Index at which to insert a segment `start..end`; `None` if it overlaps another.
pub fn insertion_index<B>(table: &[Segment<B>], start: u64, end: u64) -> Option<usize> {
    let index = table.partition_point(|s| s.end <= start);
    match table.get(index) {
        Some(next) if next.start < end => None,
        _ => Some(index),
    }
}

/// Index range of the segments that overlap `start..end`; empty if there are none.
pub fn overlapping<B>(table: &[Segment<B>], start: u64, end: u64) -> Range<usize> {
    let first = table.partition_point(|s| s.end <= start);
    let stop = table.partition_point(|s| s.start < end);
    first..stop.max(first)
}

/// Address and length of the first memory at or after `addr`, up to the end of its segment.
pub fn next_memory<B>(table: &[Segment<B>], addr: u64) -> Option<(u64, u64)> {
    let segment = table.get(table.partition_point(|s| s.end <= addr))?;
    let start = segment.start.max(addr);
    Some((start, segment.end.checked_sub(start)?))
}

/// Start and length of the smallest range that contains all segments, including holes.
pub fn bounds<B>(table: &[Segment<B>]) -> Option<(u64, u64)> {
    let (first, last) = (table.first()?, table.last()?);
    Some((first.start, last.end.checked_sub(first.start)?))
}

/// Total bytes of all segments.
pub fn bytes<B>(table: &[Segment<B>]) -> u64 {
    table
        .iter()
        .fold(0, |sum: u64, s| sum.saturating_add(s.len()))
}

/// Start and length of the run of the segment at `index`.
pub fn run<B>(table: &[Segment<B>], index: usize) -> Option<(u64, u64)> {
    let (before, _) = table.split_at_checked(index)?;
    let segment = table.get(index)?;
    let mut start = segment.start;
    for s in before.iter().rev() {
        if s.end != start {
            break;
        }
        start = s.start;
    }
    Some((start, segment.run_end.checked_sub(start)?))
}

/// The parts of the `len` bytes at `addr`, which start in the segment at `index` as returned by
/// [`find_range`]: the memory, the offset in it and the number of bytes of each.
#[inline]
pub fn parts<B>(
    table: &[Segment<B>],
    index: usize,
    addr: u64,
    len: u64,
) -> impl Iterator<Item = (&B, u64, u64)> {
    let mut at = addr;
    let mut left = len;
    table.iter().skip(index).map_while(move |segment| {
        if left == 0 {
            return None;
        }
        let offset = at.checked_sub(segment.start)?;
        let part = segment.len().checked_sub(offset)?.min(left);
        at = at.checked_add(part)?;
        left = left.checked_sub(part)?;
        Some((&segment.backing, offset, part))
    })
}

#[cfg(test)]
#[path = "../tests/segments.rs"]
mod tests;
