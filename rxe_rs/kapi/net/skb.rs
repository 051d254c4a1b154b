// SPDX-License-Identifier: GPL-2.0
//! Received buffers: one datagram, or a GRO buffer of datagrams of one flow.

use super::{
    ipv4_id,
    netdev::{
        DevId,
        NetDev,
        NetId, //
    },
    set_ipv4_id,
    set_lengths,
    v4_mapped,
    HEADERS_V4,
    HEADERS_V6, //
};
use crate::bindings;
use core::{
    cell::Cell,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::sync::rcu;

/// Most contiguous fragments of a datagram.
pub const MAX_FRAGS: usize = bindings::RXE_RS_RX_MAX_FRAGS as usize;

/// Most bytes that [`RxSegment::head`] returns.
pub const MAX_HEAD: usize = 64;

const EMPTY_FRAG: bindings::rxe_rs_rx_frag = bindings::rxe_rs_rx_frag {
    start: core::ptr::null(),
    len: 0,
};

/// A received buffer, freed when dropped. It stays in the RCU read-side critical section in which
/// it arrived: it cannot be sent to another thread.
///
/// # Context
///
/// Process context or softirq; does not sleep.
///
/// # Invariants
///
/// The buffer is alive and owned, its bytes too (clones of it only read them), and `rx` is what the
/// C side found in it: its pointers to bytes are valid as long as the buffer is, that to the device
/// is as long as the read-side critical section lasts, and every datagram has at most [`MAX_FRAGS`]
/// fragments.
pub struct RxSkb {
    skb: NonNull<bindings::sk_buff>,
    rx: bindings::rxe_rs_rx,
}

impl RxSkb {
    /// Takes over a buffer; frees and counts it (`UdpInErrors`, `UdpMemErrors`) and returns `None`
    /// if it is malformed: UDP length inconsistent with the buffer, IP options, unreadable memory.
    ///
    /// # Safety
    ///
    /// `skb` is a live buffer that the caller gives up, with `data` at the UDP header and a valid
    /// offset of the network header. The caller is in the RCU read-side critical section in which a
    /// device received it, and the result is dropped there.
    pub(crate) unsafe fn new(skb: *mut bindings::sk_buff) -> Option<Self> {
        let skb = NonNull::new(skb)?;
        let mut rx = bindings::rxe_rs_rx::default();
        // SAFETY: By contract; `rx` is ours.
        let err = unsafe { bindings::rxe_rs_rx_parse(skb.as_ptr(), &mut rx) };
        if err != 0 {
            // SAFETY: By contract.
            unsafe { bindings::rxe_rs_rx_discard(skb.as_ptr(), err) };
            return None;
        }
        // INVARIANT: Just parsed.
        Some(Self { skb, rx })
    }

    /// Returns the bytes after the UDP header, of all datagrams.
    #[inline]
    pub fn len(&self) -> usize {
        self.rx.len as usize
    }

    /// Returns true if there is nothing after the UDP header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rx.len == 0
    }

    /// Returns the number of datagrams.
    #[inline]
    pub fn segment_count(&self) -> usize {
        match self.rx.gso_size {
            0 => 1,
            size => self.rx.len.div_ceil(size) as usize,
        }
    }

    /// Returns the index of the receiving network device.
    #[inline]
    pub fn ifindex(&self) -> u32 {
        self.rx.ifindex
    }

    /// Returns the identity of the receiving network device.
    #[inline]
    pub fn netdev(&self) -> DevId {
        DevId(self.rx.dev as usize)
    }

    /// Returns true if it was received on a loopback device, so was sent by this host.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        self.rx.loopback
    }

    /// Returns true for IPv4, false for IPv6.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.rx.v4
    }

    /// Returns the tag that [`TxBatch::set_tag`](super::tx::TxBatch::set_tag) of this kernel
    /// gave to the datagrams; 0 if none, or if they have left the memory of this kernel or been
    /// changed since.
    #[inline]
    pub fn tag(&self) -> u8 {
        self.rx.tag
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

/// Stores the `len` bytes at `offset` after the UDP header in `frags`, and returns the number of
/// fragments.
///
/// # Safety
///
/// The buffer is alive for `'a`, and `rxe_rs_rx_parse` has accepted it.
#[inline]
unsafe fn frags_of<'a>(
    skb: NonNull<bindings::sk_buff>,
    offset: u32,
    len: u32,
    frags: &mut [&'a [u8]; MAX_FRAGS],
) -> usize {
    let mut raw = [const { EMPTY_FRAG }; MAX_FRAGS];
    // SAFETY: The buffer is alive, and `raw` holds `RXE_RS_RX_MAX_FRAGS` fragments.
    let count = unsafe { bindings::rxe_rs_rx_frags(skb.as_ptr(), offset, len, raw.as_mut_ptr()) };
    let count = (count as usize).min(MAX_FRAGS);
    for (frag, raw) in frags.iter_mut().zip(&raw).take(count) {
        // SAFETY: Memory of the buffer, which outlives `'a` and is only read. Nobody else writes to
        // it: `rxe_rs_rx_parse` has copied pages that a sender on this host can still access, and a
        // device has passed the buffer on.
        *frag = unsafe { core::slice::from_raw_parts(raw.start, raw.len as usize) };
    }
    count
}

/// The bytes of a received datagram that is kept after its buffer has been processed.
///
/// # Context
///
/// Any context that may take softirq locks.
///
/// # Invariants
///
/// A reference to a live buffer with one datagram of `len` bytes, which `rxe_rs_rx_parse` has
/// accepted and nobody changes.
pub struct HeldDatagram {
    skb: NonNull<bindings::sk_buff>,
    len: u32,
}

// SAFETY: A reference of its own; the contents are only read.
unsafe impl Send for HeldDatagram {}

impl HeldDatagram {
    /// Calls `f` with all bytes after the UDP header, in at most [`MAX_FRAGS`] fragments.
    pub fn with_frags<R>(&self, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        let mut frags = [&[][..]; MAX_FRAGS];
        // SAFETY: By the type invariant; `self` outlives the call.
        let count = unsafe { frags_of(self.skb, 0, self.len, &mut frags) };
        f(frags.get(..count).unwrap_or(&[]))
    }
}

impl Drop for HeldDatagram {
    fn drop(&mut self) {
        // SAFETY: The reference is ours.
        unsafe { bindings::rxe_rs_skb_consume(self.skb.as_ptr()) };
    }
}

/// One datagram of a received buffer.
///
/// # Context
///
/// Process context or softirq; does not sleep.
pub struct RxSegment<'a> {
    skb: &'a RxSkb,
    /// Where the datagram begins: bytes after the UDP header of the buffer.
    offset: u32,
    /// Bytes after the UDP header, from the BTH to the ICRC.
    len: u32,
    headers: [u8; HEADERS_V6],
    /// All datagrams have the same IPv4 identification; otherwise it increments.
    same_id: Cell<bool>,
    frags: [&'a [u8]; MAX_FRAGS],
    frag_count: usize,
    /// Copy of the first bytes, used if they are not contiguous.
    head: [u8; MAX_HEAD],
    _not_send: PhantomData<*const ()>,
}

impl<'a> RxSegment<'a> {
    /// Returns the first datagram of a buffer.
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

    /// Advances to the next datagram, if there is one.
    #[inline]
    fn advance(&mut self) -> bool {
        let next = self.offset.saturating_add(self.skb.rx.gso_size);
        if self.skb.rx.gso_size == 0 || next >= self.skb.rx.len {
            return false;
        }
        self.offset = next;
        if self.skb.rx.v4 {
            // As segmentation sets the identification.
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

    /// Sets everything that depends on the offset.
    fn load(&mut self) {
        let rx = &self.skb.rx;
        let rest = rx.len.saturating_sub(self.offset);
        self.len = match rx.gso_size {
            0 => rest,
            size => rest.min(size),
        };
        if rx.gso_size != 0 {
            // A datagram of a GSO buffer is shorter than 64 KiB.
            set_lengths(&mut self.headers, rx.v4, self.len as u16);
        }
        // SAFETY: By the type invariant of `RxSkb`, which outlives `'a`.
        self.frag_count = unsafe { frags_of(self.skb.skb, self.offset, self.len, &mut self.frags) };
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

    /// Returns the IP header and UDP header as on the wire: 28 bytes (IPv4) or 48 (IPv6).
    ///
    /// Checksums may be those of the whole GSO buffer.
    #[inline]
    pub fn net_hdr(&self) -> &[u8] {
        if self.skb.rx.v4 {
            self.headers.first_chunk::<HEADERS_V4>().map_or(&[], |h| h)
        } else {
            &self.headers
        }
    }

    /// Returns the identification of the first datagram of the buffer.
    fn first_id(&self) -> u16 {
        let mut headers = [0; HEADERS_V6];
        for (to, from) in headers.iter_mut().zip(self.skb.headers()) {
            *to = *from;
        }
        ipv4_id(&headers)
    }

    /// Returns the headers with the identification of the first datagram, unless
    /// [`net_hdr`](Self::net_hdr) has it already: GRO also merges datagrams with equal
    /// identifications, and does not mark those of UDP.
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

    /// Records that [`with_same_id`](Self::with_same_id) matched, so that the following datagrams
    /// of the buffer use such headers at once.
    #[cold]
    pub fn set_same_id(&self) {
        self.same_id.set(true);
    }

    /// Returns the headers as on the wire, if [`set_same_id`](Self::set_same_id) was called.
    #[inline]
    pub fn same_id_hdr(&self) -> Option<[u8; HEADERS_V4]> {
        if self.same_id.get() {
            self.first_hdr()
        } else {
            None
        }
    }

    /// Returns the bytes after the UDP header.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there is nothing after the UDP header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first [`MAX_HEAD`] bytes after the UDP header, or all if there are fewer.
    #[inline]
    pub fn head(&self) -> &[u8] {
        let want = MAX_HEAD.min(self.len());
        let first = self.frags.first().copied().unwrap_or(&[]);
        first.get(..want).or(self.head.get(..want)).unwrap_or(&[])
    }

    /// Returns all bytes after the UDP header, in at most [`MAX_FRAGS`] fragments.
    #[inline]
    pub fn frags(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.frags.iter().copied().take(self.frag_count)
    }

    /// Returns `len` bytes from `offset` after the UDP header, in at most [`MAX_FRAGS`] fragments.
    /// Shorter if the datagram is.
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

    /// Returns the datagram for use after its buffer has been processed, and the memory that it
    /// keeps allocated, in bytes. `None` if there are others in the buffer, whose memory it would
    /// keep as well.
    pub fn hold(&self) -> Option<(HeldDatagram, usize)> {
        if self.skb.rx.gso_size != 0 {
            return None;
        }
        // SAFETY: The buffer is alive and ours. `rx` has its own copies of what is reset.
        let bytes = unsafe { bindings::rxe_rs_skb_hold(self.skb.skb.as_ptr()) };
        let held = HeldDatagram {
            // INVARIANT: The reference of just now; `RxSkb` only reads the bytes.
            skb: self.skb.skb,
            len: self.len,
        };
        Some((held, bytes as usize))
    }

    /// Returns the index of the receiving network device.
    #[inline]
    pub fn ifindex(&self) -> u32 {
        self.skb.ifindex()
    }

    /// Returns the identity of the receiving network device.
    #[inline]
    pub fn netdev(&self) -> DevId {
        self.skb.netdev()
    }

    /// Returns true if it was received on a loopback device, so was sent by this host.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        self.skb.is_loopback()
    }

    /// Returns the `size` that [`TxBatch::whole`](super::tx::TxBatch::whole) was called with, if
    /// the datagram comes from there; else 0. Only to be trusted with a [tag](Self::tag).
    #[inline]
    pub fn whole_size(&self) -> u32 {
        self.skb.rx.whole_size
    }

    /// Returns the tag of the [buffer](RxSkb::tag).
    #[inline]
    pub fn tag(&self) -> u8 {
        self.skb.tag()
    }

    /// Returns the network namespace that received it.
    #[inline]
    pub fn net(&self) -> NetId {
        // SAFETY: The device is alive by the type invariant of `RxSkb`.
        NetId(unsafe { bindings::rxe_rs_dev_net_id(self.skb.rx.dev) })
    }

    /// Returns true if the receiving network device is above `base`, in the same namespace: a VLAN
    /// device, a bridge, a bond. One in another namespace is not: its packets belong to that
    /// namespace, which has other addresses and another firewall.
    pub fn is_above(&self, base: &NetDev, _rcu: &rcu::Guard) -> bool {
        // SAFETY: The device is alive by the type invariant of `RxSkb`, `base` by its reference;
        // the guard shows that this is a read-side critical section.
        unsafe { bindings::rxe_rs_dev_is_above(self.skb.rx.dev, base.as_ptr()) }
    }

    /// Returns true if `base`, which the receiving network device is above, has received the same
    /// frame: a multicast one on a MACVLAN or IPVLAN device, from outside of the host.
    pub fn is_copy_for(&self, base: &NetDev, _rcu: &rcu::Guard) -> bool {
        let (skb, dev) = (self.skb.skb.as_ptr(), self.skb.rx.dev);
        // SAFETY: As in `is_above`; the buffer is ours.
        unsafe { bindings::rxe_rs_skb_is_copy(skb, dev, base.as_ptr()) }
    }

    /// Returns the identity and the index of the network device of the VRF that it was received in,
    /// if it was in one: the receiving device is a port of that.
    #[inline]
    pub fn vrf(&self) -> Option<(DevId, u32)> {
        let rx = &self.skb.rx;
        (!rx.vrf.is_null()).then_some((DevId(rx.vrf as usize), rx.vrf_ifindex))
    }

    /// Returns true if it was received in a VRF whose network device is above `base`.
    pub fn is_of_vrf_above(&self, base: &NetDev, _rcu: &rcu::Guard) -> bool {
        let vrf = self.skb.rx.vrf;
        // SAFETY: The device is not NULL, and alive as that which received the buffer, by the type
        // invariant of `RxSkb`; `base` is alive by its reference; the guard shows that this is a
        // read-side critical section.
        !vrf.is_null() && unsafe { bindings::rxe_rs_dev_is_above(vrf, base.as_ptr()) }
    }

    /// Returns true if it was received on the loopback device of `dev`'s namespace.
    #[inline]
    pub fn is_loopback_of(&self, dev: &NetDev) -> bool {
        if !self.is_loopback() {
            return false;
        }
        // SAFETY: The device is alive by the type invariant of `RxSkb`, `dev` by its reference.
        unsafe { bindings::rxe_rs_dev_same_net(self.skb.rx.dev, dev.as_ptr()) }
    }

    /// Returns the VLAN ID that the RDMA core takes addresses of the network device with this index
    /// to be in, if any: of a VLAN device, or of one that is below the device.
    pub fn vlan_of(&self, ifindex: u32) -> Option<u16> {
        // SAFETY: The device is alive by the type invariant of `RxSkb`, which is used in a
        // read-side critical section only.
        let vlan = unsafe { bindings::rxe_rs_rx_vlan(self.skb.rx.dev, ifindex) };
        (u32::from(vlan) != bindings::RXE_RS_NO_VLAN).then_some(vlan)
    }

    /// Returns true for IPv4, false for IPv6.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.skb.is_v4()
    }

    /// Returns the source address as a GID.
    #[inline]
    pub fn source(&self) -> [u8; 16] {
        self.address(12, 8)
    }

    /// Returns the destination address as a GID.
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
