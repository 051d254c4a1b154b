// SPDX-License-Identifier: GPL-2.0
//! Payload of a received packet: contiguous bytes in several pieces of memory.

const MAX_PIECES: usize = 6;

/// Up to [`Payload::MAX_PIECES`] pieces that together are the payload, in order.
///
/// # Examples
///
/// ```
/// use rxe_proto::wire::Payload;
///
/// let mut payload = Payload::from_slice(b"pay");
/// assert!(payload.push(b"load"));
/// assert_eq!(payload.len(), 7);
/// let part = payload.slice(2, 3);
/// assert!(part.pieces().eq([&b"y"[..], &b"lo"[..]]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    pieces: [&'a [u8]; MAX_PIECES],
    count: usize,
    len: usize,
}

impl<'a> Payload<'a> {
    /// Maximum number of pieces; a linear packet has one, each fragment adds one.
    pub const MAX_PIECES: usize = MAX_PIECES;

    /// An empty payload.
    pub const EMPTY: Self = Self {
        pieces: [&[]; Self::MAX_PIECES],
        count: 0,
        len: 0,
    };

    /// An empty payload to append to.
    #[inline]
    pub const fn new() -> Self {
        Self::EMPTY
    }

    /// A payload in one piece.
    #[inline]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            pieces: [bytes, &[], &[], &[], &[], &[]],
            count: if bytes.is_empty() { 0 } else { 1 },
            len: bytes.len(),
        }
    }

    /// Appends a piece; `false` without a change if there are too many. Empty pieces are not
    /// stored.
    #[must_use]
    #[inline]
    pub fn push(&mut self, piece: &'a [u8]) -> bool {
        if piece.is_empty() {
            return true;
        }
        let Some(len) = self.len.checked_add(piece.len()) else {
            return false;
        };
        let Some(slot) = self.pieces.get_mut(self.count) else {
            return false;
        };
        *slot = piece;
        self.count = self.count.saturating_add(1);
        self.len = len;
        true
    }

    /// Total bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order, none of them empty.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.pieces.iter().take(self.count).copied()
    }

    /// The bytes `from .. from + len`, truncated at the end of the payload.
    #[inline]
    pub fn slice(&self, from: usize, len: usize) -> Self {
        let mut result = Self::EMPTY;
        let mut skip = from;
        let mut left = len;
        for piece in self.pieces() {
            let Some(tail) = piece.get(skip..) else {
                skip = skip.saturating_sub(piece.len());
                continue;
            };
            skip = 0;
            let part = tail.get(..left).unwrap_or(tail);
            left = left.saturating_sub(part.len());
            if !result.push(part) || left == 0 {
                break;
            }
        }
        result
    }

    /// Copies as many bytes as both slices have and returns their number.
    #[inline]
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let mut rest = dst;
        let mut copied = 0usize;
        for piece in self.pieces() {
            let len = piece.len().min(rest.len());
            let (Some(source), Some((target, tail))) =
                (piece.get(..len), rest.split_at_mut_checked(len))
            else {
                break;
            };
            target.copy_from_slice(source);
            copied = copied.saturating_add(len);
            rest = tail;
        }
        copied
    }
}

impl Default for Payload<'_> {
    fn default() -> Self {
        Self::EMPTY
    }
}
