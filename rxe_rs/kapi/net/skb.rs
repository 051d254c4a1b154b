// SPDX-License-Identifier: GPL-2.0
//! Received buffers: one datagram, or a train of datagrams of one flow.

use super::netdev::{DevId, NetDev, NetId};
use super::{ipv4_id, set_ipv4_id, set_lengths, v4_mapped, HEADERS_V4, HEADERS_V6};
use crate::bindings;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::sync::rcu;

/// Most contiguous fragments of a datagram.
pub const MAX_FRAGS: usize = bindings::RXE_RS_RX_PIECES as usize;

/// Most bytes that [`RxSegment::head`] returns.
pub const MAX_HEAD: usize = 64;

const EMPTY_FRAG: bindings::rxe_rs_piece = bindings::rxe_rs_piece {
    start: core::ptr::null(),
    len: 0,
};

/// A received buffer, freed when dropped.
///
/// # Invariants
///
/// The buffer is alive and ours alone, its bytes too (clones of it only read them), and `rx` is what the C side found in it: its pointers are
/// good as long as the buffer is, and every datagram is in at most [`MAX_FRAGS`] fragments.
pub struct RxSkb {
    skb: NonNull<bindings::sk_buff>,
    rx: bindings::rxe_rs_rx,
}

// SAFETY: The buffer is ours alone; its contents are only read.
unsafe impl Send for RxSkb {}

impl RxSkb {
    /// Takes over a buffer; frees it and returns `None` if it is malformed: UDP length at odds
    /// with the buffer, IP options, unreadable memory.
    ///
    /// # Safety
    ///
    /// `skb` is a live buffer that the caller gives up, with `data` at the UDP header and a valid
    /// offset of the network header.
    pub(crate) unsafe fn new(skb: *mut bindings::sk_buff) -> Option<Self> {
        let skb = NonNull::new(skb)?;
        let mut rx = bindings::rxe_rs_rx::default();
        // SAFETY: By contract; `rx` is ours.
        if unsafe { bindings::rxe_rs_rx_parse(skb.as_ptr(), &mut rx) } != 0 {
            // SAFETY: By contract.
            unsafe { bindings::rxe_rs_skb_drop(skb.as_ptr()) };
            return None;
        }
        // INVARIANT: Just parsed.
        Some(Self { skb, rx })
    }

    /// Bytes after the UDP header, of all datagrams.
    #[inline]
    pub fn len(&self) -> usize {
        self.rx.len as usize
    }

    /// True if there is nothing after the UDP header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rx.len == 0
    }

    /// Number of datagrams.
    #[inline]
    pub fn segment_count(&self) -> usize {
        match self.rx.gso_size {
            0 => 1,
            size => self.rx.len.div_ceil(size) as usize,
        }
    }

    /// Index of the network device it came in by.
    #[inline]
    pub fn ifindex(&self) -> u32 {
        self.rx.ifindex
    }

    /// Identity of the network device it came in by.
    #[inline]
    pub fn netdev(&self) -> DevId {
        DevId(self.rx.dev as usize)
    }

    /// True if it came over a loopback device, so was sent by this host.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        self.rx.loopback
    }

    /// True for IPv4, false for IPv6.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.rx.v4
    }

    /// Calls `f` with the datagrams in the order they were sent.
    #[inline]
    pub fn for_each_segment(&self, mut f: impl FnMut(&RxSegment<'_>)) {
        let mut segment = RxSegment::first(self);
        loop {
            f(&segment);
            if !segment.advance() {
                break;
            }
        }
    }

    /// IP header and UDP header as received.
    fn headers(&self) -> &[u8] {
        let len = if self.rx.v4 { HEADERS_V4 } else { HEADERS_V6 };
        // SAFETY: By the type invariant; IP header and UDP header are contiguous and of this
        // length.
        unsafe { core::slice::from_raw_parts(self.rx.iph, len) }
    }
}

impl Drop for RxSkb {
    fn drop(&mut self) {
        // SAFETY: The buffer is ours.
        unsafe { bindings::rxe_rs_skb_consume(self.skb.as_ptr()) };
    }
}

/// One datagram of a received buffer.
pub struct RxSegment<'a> {
    skb: &'a RxSkb,
    /// Offset behind the UDP header.
    offset: u32,
    len: u32,
    headers: [u8; HEADERS_V6],
    /// The datagrams have the same identification; else it counts up.
    same_id: Cell<bool>,
    frags: [&'a [u8]; MAX_FRAGS],
    frag_count: usize,
    /// Copy of the first bytes, used if they are not contiguous.
    head: [u8; MAX_HEAD],
    _not_send: PhantomData<*const ()>,
}

impl<'a> RxSegment<'a> {
    #[inline]
    fn first(skb: &'a RxSkb) -> Self {
        let mut headers = [0; HEADERS_V6];
        for (to, from) in headers.iter_mut().zip(skb.headers()) {
            *to = *from;
        }
        let mut segment = Self {
            skb,
            offset: 0,
            len: 0,
            headers,
            same_id: Cell::new(false),
            frags: [&[]; MAX_FRAGS],
            frag_count: 0,
            head: [0; MAX_HEAD],
            _not_send: PhantomData,
        };
        segment.load();
        segment
    }

    /// Goes on to the next datagram, if there is one.
    #[inline]
    fn advance(&mut self) -> bool {
        let next = self.offset.saturating_add(self.skb.rx.gso_size);
        if self.skb.rx.gso_size == 0 || next >= self.skb.rx.len {
            return false;
        }
        self.offset = next;
        if self.skb.rx.v4 {
            // What segmentation does to the identification.
            let id = if self.same_id.get() {
                self.first_id()
            } else {
                ipv4_id(&self.headers).wrapping_add(1)
            };
            set_ipv4_id(&mut self.headers, id);
        }
        self.load();
        true
    }

    /// Fills in all that depends on the offset.
    fn load(&mut self) {
        let rx = &self.skb.rx;
        let rest = rx.len.saturating_sub(self.offset);
        self.len = match rx.gso_size {
            0 => rest,
            size => rest.min(size),
        };
        if rx.gso_size != 0 {
            // A datagram of a train is shorter than 64 KiB.
            set_lengths(&mut self.headers, rx.v4, self.len as u16);
        }
        let mut raw = [const { EMPTY_FRAG }; MAX_FRAGS];
        // SAFETY: The buffer is alive, and there is room for `RXE_RS_RX_PIECES` fragments.
        let count = unsafe {
            bindings::rxe_rs_rx_pieces(
                self.skb.skb.as_ptr(),
                self.offset,
                self.len,
                raw.as_mut_ptr(),
            )
        };
        self.frag_count = (count as usize).min(MAX_FRAGS);
        for (frag, raw) in self.frags.iter_mut().zip(&raw).take(self.frag_count) {
            // SAFETY: Memory of the buffer, which outlives `'a` and is only read. Others do not
            // write to it either: `rxe_rs_rx_parse` has copied pages that a sender on this host can
            // still reach, and a device has handed the buffer over.
            *frag = unsafe { core::slice::from_raw_parts(raw.start, raw.len as usize) };
        }
        let want = MAX_HEAD.min(self.len as usize);
        if self.frags().next().map_or(0, <[u8]>::len) < want {
            let mut head = [0; MAX_HEAD];
            let bytes = self.frags().flat_map(|frag| frag.iter());
            for (to, from) in head.iter_mut().zip(bytes) {
                *to = *from;
            }
            self.head = head;
        }
    }

    /// IP header and UDP header as they are on the wire: 28 bytes (IPv4) or 48 (IPv6).
    ///
    /// Checksums may be those of the whole train.
    #[inline]
    pub fn net_hdr(&self) -> &[u8] {
        if self.skb.rx.v4 {
            self.headers.first_chunk::<HEADERS_V4>().map_or(&[], |h| h)
        } else {
            &self.headers
        }
    }

    /// Identification of the first datagram of the buffer.
    fn first_id(&self) -> u16 {
        let mut headers = [0; HEADERS_V6];
        for (to, from) in headers.iter_mut().zip(self.skb.headers()) {
            *to = *from;
        }
        ipv4_id(&headers)
    }

    /// The headers if the datagrams of this buffer all have the identification of the first one,
    /// unless [`net_hdr`](Self::net_hdr) has them so: GRO puts such datagrams together, too, and
    /// those of UDP leave no mark.
    #[cold]
    pub fn with_same_id(&self) -> Option<[u8; HEADERS_V4]> {
        if !self.skb.rx.v4 || self.offset == 0 || self.same_id.get() {
            return None;
        }
        self.first_hdr()
    }

    fn first_hdr(&self) -> Option<[u8; HEADERS_V4]> {
        let mut headers = self.headers;
        set_ipv4_id(&mut headers, self.first_id());
        headers.first_chunk::<HEADERS_V4>().copied()
    }

    /// Notes that [`with_same_id`](Self::with_same_id) was right: the datagrams that follow in the
    /// buffer have such headers at once.
    #[cold]
    pub fn set_same_id(&self) {
        self.same_id.set(true);
    }

    /// The headers as they were on the wire, if [`set_same_id`](Self::set_same_id) was called.
    #[inline]
    pub fn same_id_hdr(&self) -> Option<[u8; HEADERS_V4]> {
        if self.same_id.get() {
            self.first_hdr()
        } else {
            None
        }
    }

    /// Bytes after the UDP header.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if there is nothing after the UDP header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first [`MAX_HEAD`] bytes after the UDP header, or all if there are fewer.
    #[inline]
    pub fn head(&self) -> &[u8] {
        let want = MAX_HEAD.min(self.len());
        let first = self.frags.first().copied().unwrap_or(&[]);
        first.get(..want).or(self.head.get(..want)).unwrap_or(&[])
    }

    /// All bytes after the UDP header, in at most [`MAX_FRAGS`] fragments.
    #[inline]
    pub fn frags(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.frags.iter().copied().take(self.frag_count)
    }

    /// `len` bytes from `offset` after the UDP header, in at most [`MAX_FRAGS`] fragments. Shorter
    /// if the datagram is.
    #[inline]
    pub fn frags_in(&self, offset: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + '_ {
        let (mut skip, mut want) = (offset, len);
        self.frags().filter_map(move |frag| {
            let from = skip.min(frag.len());
            skip -= from;
            let rest = frag.get(from..).unwrap_or(&[]);
            let part = rest.get(..want.min(rest.len())).unwrap_or(&[]);
            want -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }

    /// Index of the network device it came in by.
    #[inline]
    pub fn ifindex(&self) -> u32 {
        self.skb.ifindex()
    }

    /// Identity of the network device it came in by.
    #[inline]
    pub fn netdev(&self) -> DevId {
        self.skb.netdev()
    }

    /// True if it came over a loopback device, so was sent by this host.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        self.skb.is_loopback()
    }

    /// The network namespace that received it.
    #[inline]
    pub fn net(&self) -> NetId {
        // SAFETY: The buffer keeps its device alive.
        NetId(unsafe { bindings::rxe_rs_dev_net_id(self.skb.rx.dev) })
    }

    /// True if the network device it came in by is above `base`, in the same namespace: a VLAN
    /// device, a bridge, a bond. One that is in another namespace is not: what comes by it is that
    /// namespace's, whose addresses and firewall are others.
    pub fn is_above(&self, base: &NetDev, _rcu: &rcu::Guard) -> bool {
        // SAFETY: The buffer keeps its device alive, the reference the other one; the guard shows
        // that this is a read side section.
        unsafe { bindings::rxe_rs_dev_is_above(self.skb.rx.dev, base.as_ptr()) }
    }

    /// True if it came over the loopback device of the namespace that `dev` is in.
    #[inline]
    pub fn is_loopback_of(&self, dev: &NetDev) -> bool {
        if !self.is_loopback() {
            return false;
        }
        // SAFETY: The buffer keeps its device alive, the reference the other one.
        unsafe { bindings::rxe_rs_dev_same_net(self.skb.rx.dev, dev.as_ptr()) }
    }

    /// Number of the VLAN whose device it came in by.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        (u32::from(self.skb.rx.vlan) != bindings::RXE_RS_NO_VLAN).then_some(self.skb.rx.vlan)
    }

    /// True for IPv4, false for IPv6.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.skb.is_v4()
    }

    /// Source address in the form of a GID.
    #[inline]
    pub fn source(&self) -> [u8; 16] {
        self.address(12, 8)
    }

    /// Destination address in the form of a GID.
    #[inline]
    pub fn destination(&self) -> [u8; 16] {
        self.address(16, 24)
    }

    #[inline]
    fn address(&self, v4: usize, v6: usize) -> [u8; 16] {
        if self.skb.rx.v4 {
            let addr = self.headers.get(v4..).and_then(|h| h.first_chunk());
            v4_mapped(addr.copied().unwrap_or_default())
        } else {
            let addr = self.headers.get(v6..).and_then(|h| h.first_chunk());
            addr.copied().unwrap_or_default()
        }
    }
}
