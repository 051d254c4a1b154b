// SPDX-License-Identifier: GPL-2.0
//! Payload of a received packet: contiguous bytes in several fragments, or a place in the memory of
//! the sender.

use super::bytes::put;
use crate::ids::RKey;

const MAX_FRAGS: usize = 6;

/// Where the payload of a packet by reference is (`engine/merge.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In the memory of a request of the sender, whose packet is a SEND or WRITE.
    Request {
        /// Index of the request.
        index: u32,
        /// Offset in the payload of that request, in bytes.
        offset: u32,
    },
    /// In a region of the sender, whose packet is a READ response.
    Region {
        /// Key of the region.
        key: RKey,
        /// Address in the region.
        addr: u64,
    },
}

impl Source {
    /// The place `by` bytes behind this one.
    #[inline]
    #[must_use]
    pub fn advanced(self, by: u32) -> Self {
        match self {
            Self::Request { index, offset } => Self::Request {
                index,
                offset: offset.saturating_add(by),
            },
            Self::Region { key, addr } => Self::Region {
                key,
                addr: addr.wrapping_add(u64::from(by)),
            },
        }
    }
}

/// Up to [`Payload::MAX_FRAGS`] fragments that together are the payload, in order; or a payload
/// that the receiver has to copy from its [`source`](Payload::source), and that has no fragments.
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
/// assert!(part.frags().eq([&b"y"[..], &b"lo"[..]]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    frags: [&'a [u8]; MAX_FRAGS],
    count: usize,
    len: usize,
    source: Option<Source>,
}

impl<'a> Payload<'a> {
    /// Maximum number of fragments; the linear part of a socket buffer counts as one.
    pub const MAX_FRAGS: usize = MAX_FRAGS;

    /// An empty payload.
    pub const EMPTY: Self = Self {
        frags: [&[]; Self::MAX_FRAGS],
        count: 0,
        len: 0,
        source: None,
    };

    /// An empty payload to append to.
    #[inline]
    pub const fn new() -> Self {
        Self::EMPTY
    }

    /// A payload of one fragment.
    #[inline]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            frags: [bytes, &[], &[], &[], &[], &[]],
            count: if bytes.is_empty() { 0 } else { 1 },
            len: bytes.len(),
            source: None,
        }
    }

    /// A payload of `len` bytes in the memory of the sender.
    #[inline]
    pub const fn by_reference(source: Source, len: usize) -> Self {
        Self {
            len,
            source: Some(source),
            ..Self::EMPTY
        }
    }

    /// Where the bytes are in the memory of the sender, if they are not in the packet.
    #[inline]
    pub const fn source(&self) -> Option<Source> {
        self.source
    }

    /// Appends a fragment; `false` without a change if there are too many, or if the payload is in
    /// the memory of the sender. Empty ones are not stored.
    #[must_use]
    #[inline]
    pub fn push(&mut self, frag: &'a [u8]) -> bool {
        if frag.is_empty() {
            return true;
        }
        let len = self.len.checked_add(frag.len());
        let Some(len) = len.filter(|_| self.source.is_none()) else {
            return false;
        };
        let Some(slot) = self.frags.get_mut(self.count) else {
            return false;
        };
        *slot = frag;
        self.count = self.count.saturating_add(1);
        self.len = len;
        true
    }

    /// Total bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Bytes that are in the packet: none if the payload is in the memory of the sender.
    #[inline]
    pub const fn len_in_packet(&self) -> usize {
        match self.source {
            Some(_) => 0,
            None => self.len,
        }
    }

    /// True if there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The fragments in order, none of them empty.
    #[inline]
    pub fn frags(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.frags.iter().take(self.count).copied()
    }

    /// The bytes `from .. from + len`, truncated at the end of the payload.
    #[inline]
    pub fn slice(&self, from: usize, len: usize) -> Self {
        if let Some(source) = self.source {
            let from = from.min(self.len);
            let source = source.advanced(u32::try_from(from).unwrap_or(u32::MAX));
            return Self::by_reference(source, len.min(self.len.saturating_sub(from)));
        }
        let mut result = Self::EMPTY;
        let mut skip = from;
        let mut left = len;
        for frag in self.frags() {
            let Some(tail) = frag.get(skip..) else {
                skip = skip.saturating_sub(frag.len());
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

    /// Copies as many bytes as both slices have and returns their number: 0 if they are in the
    /// memory of the sender.
    #[inline]
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let mut rest = dst;
        let mut copied = 0usize;
        for frag in self.frags() {
            let source = frag.get(..rest.len()).unwrap_or(frag);
            let Some(tail) = put(rest, source) else {
                break;
            };
            copied = copied.saturating_add(source.len());
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
