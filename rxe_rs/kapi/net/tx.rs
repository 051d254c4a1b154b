// SPDX-License-Identifier: GPL-2.0
//! Transmission: batches of packets.

use super::{
    flow::Flow,
    netdev::NetDev,
    HEADERS_V4,
    HEADERS_V6, //
};
use crate::{
    bindings,
    sync::context::BhDisabled, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A sender whose bytes in the queues of the network stack are accounted.
pub trait TxSender: Send + Sync + 'static {
    /// The queues have been emptied as far as [`TxOwner::wait`] said.
    ///
    /// # Context
    ///
    /// Any context that may take softirq locks, possibly that of the call of `wait`, with the locks
    /// of its caller. Must not take locks, and must not drop the last reference.
    fn drained(this: Arc<Self>);
}

/// A socket that accounts a sender's bytes in the queues of the network stack: queueing disciplines
/// and the device's ring. Packets delivered to another device or namespace of this host are no
/// longer counted.
///
/// # Invariants
///
/// The pointer is to a live `struct rxe_rs_tx_owner` whose waiters are references to a `T`.
pub struct TxOwner<T: TxSender>(NonNull<bindings::rxe_rs_tx_owner>, PhantomData<fn(Arc<T>)>);

// SAFETY: A reference counted socket; the calls below are allowed on any CPU.
unsafe impl<T: TxSender> Send for TxOwner<T> {}
// SAFETY: As above, and all of them at once.
unsafe impl<T: TxSender> Sync for TxOwner<T> {}

impl<T: TxSender> TxOwner<T> {
    /// Creates one that has sent nothing.
    ///
    /// # Context
    ///
    /// Process context; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        // SAFETY: By the type invariant the callback gets references to a `T`.
        let owner = unsafe { bindings::rxe_rs_tx_owner_new(Some(Self::wake_callback)) };
        // INVARIANT: Just created.
        NonNull::new(owner)
            .map(|owner| Self(owner, PhantomData))
            .ok_or(ENOMEM)
    }

    /// Returns the bytes of queued buffers (truesize).
    ///
    /// # Context
    ///
    /// Any context.
    #[inline]
    pub fn bytes(&self) -> usize {
        // SAFETY: Live by the type invariant.
        unsafe { bindings::rxe_rs_tx_owner_bytes(self.0.as_ptr()) as usize }
    }

    /// Calls [`TxSender::drained`] once, as soon as at most `mark` bytes are queued: at once, if
    /// that is so already. Replaces an earlier waiter. A waiter keeps the sender alive:
    /// [`cancel`](Self::cancel) it before the sender goes.
    ///
    /// # Context
    ///
    /// Any context that may take softirq locks.
    pub fn wait(&self, waiter: Arc<T>, mark: u32) {
        self.set_waiter(Arc::into_raw(waiter), mark);
    }

    /// Cancels [`wait`](Self::wait), if it has not called back yet.
    ///
    /// # Context
    ///
    /// Any context that may take softirq locks.
    pub fn cancel(&self) {
        self.set_waiter(core::ptr::null(), 0);
    }

    fn set_waiter(&self, waiter: *const T, mark: u32) {
        let waiter = waiter.cast_mut().cast::<c_void>();
        // SAFETY: Live by the type invariant; the waiter is a reference to a `T`, or null.
        let old = unsafe { bindings::rxe_rs_tx_owner_wait(self.0.as_ptr(), waiter, mark) };
        if !old.is_null() {
            // SAFETY: The reference of an earlier call, which has been given back.
            drop(unsafe { Arc::from_raw(old.cast::<T>()) });
        }
    }

    /// # Safety
    ///
    /// `waiter` is a reference to a `T`, which is given up.
    unsafe extern "C" fn wake_callback(waiter: *mut c_void) {
        // SAFETY: By the caller's guarantee.
        T::drained(unsafe { Arc::from_raw(waiter.cast::<T>()) });
    }
}

impl<T: TxSender> Drop for TxOwner<T> {
    fn drop(&mut self) {
        self.cancel();
        // SAFETY: Ours, without a waiter. Buffers in flight keep the socket's memory.
        unsafe { bindings::rxe_rs_tx_owner_free(self.0.as_ptr()) };
    }
}

/// Why a packet was not added to a batch.
#[derive(Debug)]
pub enum TxError<E> {
    /// There is no route to the peer on the flow's device at the moment.
    NoRoute,
    /// The batch is full: send it first.
    Full,
    /// Out of memory: try again later.
    NoMemory,
    /// Longer than an IP packet can be.
    TooLong,
    /// `fill` failed.
    Fill(E),
}

/// Result of sending a batch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TxOutcome {
    /// Packets that the stack accepted.
    pub packets: usize,
    /// Bytes after the UDP headers of all packets, accepted or not.
    pub bytes: usize,
    /// Packets that the stack dropped: full queue, firewall, no neighbour.
    pub dropped: usize,
    /// Of these, packets longer than the path MTU.
    pub too_long: usize,
    /// A queue is full or almost full: the sender should slow down.
    pub congested: bool,
}

/// Most packets in a batch.
pub const MAX_PACKETS: usize = 256;
/// A batch of this many bytes is full.
pub const MAX_BYTES: usize = 512 * 1024;

/// Most bytes after the UDP header of a packet that need not be accounted. Without the owner's
/// socket the stack checks the length of an IPv4 packet against the MTU of the path, which ICMP
/// errors, also forged ones, can lower to 552 bytes (the default of `net.ipv4.route.min_pmtu`).
pub const MAX_UNACCOUNTED: usize = 480;

/// Bytes that [`TxBatch::whole`] fills together: two of them share the pages that the kernel
/// allocates together.
const PART: usize = 16 * 1024;

/// Linear space for small packets after the headers, without pages: most acknowledgements and small
/// messages. With the headers it fits a size that the kernel has a slab cache for.
const SMALL: u32 = 128;

/// Packets to be sent, in order.
///
/// Built with bottom halves disabled, under the lock of a QP: takes no lock but that of a flow's
/// route, does not sleep and transmits nothing. [`send`](Self::send) it after unlocking. Dropping
/// it discards the packets.
///
/// Consecutive packets of a flow that have the same length form one GSO buffer, if the device can
/// segment it; a shorter one may be the last. That is not visible on the wire.
///
/// # Context
///
/// Process context or softirq, bottom halves disabled as long as it exists; does not sleep.
/// Functions that say otherwise excepted.
pub struct TxBatch<'a> {
    /// First and last finished buffer, linked by `next`.
    list: Option<(NonNull<bindings::sk_buff>, NonNull<bindings::sk_buff>)>,
    buffer: Option<GsoBuffer>,
    packets: usize,
    bytes: usize,
    /// GSO is disabled: each packet gets a buffer of its own.
    alone: bool,
    tag: u8,
    _bh: PhantomData<&'a BhDisabled>,
}

/// The buffer being filled.
struct GsoBuffer {
    skb: NonNull<bindings::sk_buff>,
    flow: u64,
    class: Option<u8>,
    headers: [u8; HEADERS_V6],
    headers_len: usize,
    /// Bytes after the UDP header of each packet but perhaps the last.
    size: u32,
    /// Number of packets, and the most that the device takes in a buffer.
    count: u32,
    max_count: u32,
    /// Bytes after the UDP headers of all packets, and the most that the device takes.
    len: u32,
    max_len: u32,
    /// IPv4 identification of the first packet; each further one has the next.
    first_id: u16,
    /// A shorter packet was added: the last one.
    closed: bool,
    /// It is one datagram, and stays whole.
    whole: bool,
}

impl<'a> TxBatch<'a> {
    /// Creates an empty batch. Allocates nothing.
    #[inline]
    pub const fn new(_bh: &'a BhDisabled) -> Self {
        Self {
            list: None,
            buffer: None,
            packets: 0,
            bytes: 0,
            alone: false,
            tag: 0,
            _bh: PhantomData,
        }
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Returns true if it has no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the bytes after the UDP headers of all packets.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if no packet can be added any more and it is time to send.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.packets >= MAX_PACKETS || self.bytes >= MAX_BYTES
    }

    /// Returns the number of packets before the last one in its GSO buffer, if the device
    /// increments IPv4 identifications; else 0.
    #[inline]
    pub fn gso_index(&self) -> u32 {
        self.buffer
            .as_ref()
            .filter(|buffer| buffer.headers_len == HEADERS_V4)
            .map_or(0, |buffer| buffer.count.saturating_sub(1))
    }

    /// Disables GSO: from now on each packet gets a buffer of its own.
    #[inline]
    pub fn disable_gso(&mut self) {
        self.alone = true;
    }

    /// Gives all packets a tag, 1 to 3, which a receiver in this kernel sees
    /// ([`RxSkb::tag`](super::skb::RxSkb::tag)) if they do not leave its memory and nothing
    /// changes them; 0 for none. It is not on the wire. Packets that leave by hardware have none.
    #[inline]
    pub fn set_tag(&mut self, tag: u8) {
        self.tag = tag;
    }

    /// Adds a packet with `len` bytes after the UDP header, and with the flow's traffic class or
    /// `class`.
    ///
    /// `fill` gets the IP and the UDP header of this packet as they will be on the wire (28 or 48
    /// bytes; the checksums are not filled in, the ICRC does not cover them) and `len` contiguous
    /// bytes, all of which it must write: they contain old data.
    ///
    /// # Errors
    ///
    /// The packet is not added then. See [`TxError`].
    #[inline]
    pub fn packet<E>(
        &mut self,
        flow: &Flow,
        class: Option<u8>,
        len: usize,
        fill: impl FnOnce(&[u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxError<E>> {
        if self.is_full() {
            return Err(TxError::Full);
        }
        let long = u16::try_from(len).ok().filter(|len| *len <= u16::MAX - 28);
        let Some(short) = long else {
            return Err(TxError::TooLong);
        };
        let len32 = u32::from(short);
        let mut data = None;
        if let Some(buffer) = &self.buffer {
            if !self.alone && buffer.takes(flow, class, len32) {
                // SAFETY: The buffer is ours, and bottom halves are disabled.
                data = NonNull::new(unsafe { bindings::rxe_rs_tx_put(buffer.skb.as_ptr(), len32) });
            }
        }
        let data = match data {
            Some(data) => data,
            None => self.start_buffer(flow, class, len32)?,
        };
        let Some(buffer) = &mut self.buffer else {
            return Err(TxError::NoMemory);
        };
        let id = buffer.first_id.wrapping_add(buffer.count as u16);
        let headers = flow.headers_of(short, id, class);
        // SAFETY: `rxe_rs_tx_put` returned that many contiguous bytes of a buffer that is ours.
        let payload = unsafe { core::slice::from_raw_parts_mut(data.cast::<u8>().as_ptr(), len) };
        if let Err(e) = fill(headers.get(..buffer.headers_len).unwrap_or(&[]), payload) {
            // SAFETY: Takes back the bytes of just now; bottom halves are disabled.
            unsafe { bindings::rxe_rs_tx_undo(buffer.skb.as_ptr(), len32) };
            if buffer.count == 0 {
                self.discard_buffer();
            }
            return Err(TxError::Fill(e));
        }
        if buffer.count == 0 {
            buffer.headers = headers;
        }
        buffer.count = buffer.count.wrapping_add(1);
        buffer.len = buffer.len.wrapping_add(len32);
        buffer.closed = len32 < buffer.size;
        flow.set_next_id(id.wrapping_add(1));
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(len);
        Ok(())
    }

    /// Returns the most bytes after the UDP header that [`whole`](Self::whole) takes for the flow;
    /// 0 if its packets may leave the memory of this kernel, or have no tag.
    pub fn max_whole(&self, flow: &Flow) -> usize {
        if self.tag == 0 {
            return 0;
        }
        // SAFETY: The flow is alive.
        unsafe { bindings::rxe_rs_tx_max_whole(flow.raw.as_ptr()) as usize }
    }

    /// Adds a packet with `len` bytes after the UDP header, at most
    /// [`max_whole`](Self::max_whole), which may exceed the MTU: it arrives whole in this kernel,
    /// or is dropped. It counts as `count` packets, each of `size` bytes at most.
    ///
    /// `fill` gets consecutive parts of these bytes, each with its offset, and must write all of
    /// them: they contain old data.
    ///
    /// # Errors
    ///
    /// The packet is not added then. See [`TxError`].
    pub fn whole<E>(
        &mut self,
        flow: &Flow,
        len: usize,
        (count, size): (u32, u32),
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxError<E>> {
        if self.is_full() {
            return Err(TxError::Full);
        }
        let long = u16::try_from(len).ok().filter(|len| *len <= u16::MAX - 28);
        let short = long.ok_or(TxError::TooLong)?;
        let mut at = 0;
        while at < len {
            let part = PART.min(len.wrapping_sub(at));
            let data = match &self.buffer {
                Some(buffer) if at > 0 => {
                    // SAFETY: The buffer is ours, and bottom halves are disabled.
                    let data = unsafe { bindings::rxe_rs_tx_put(buffer.skb.as_ptr(), part as u32) };
                    NonNull::new(data).ok_or(TxError::NoMemory)
                }
                _ => self.start_buffer(flow, None, part as u32),
            };
            let filled = data.and_then(|data| {
                // SAFETY: `rxe_rs_tx_put` returned that many contiguous bytes of a buffer that is
                // ours.
                let part =
                    unsafe { core::slice::from_raw_parts_mut(data.cast::<u8>().as_ptr(), part) };
                fill(at, part).map_err(TxError::Fill)
            });
            if let Err(e) = filled {
                self.discard_buffer();
                return Err(e);
            }
            at = at.wrapping_add(part);
        }
        let Some(buffer) = &mut self.buffer else {
            return Err(TxError::NoMemory);
        };
        let id = buffer.first_id;
        buffer.headers = flow.headers_of(short, id, None);
        buffer.count = count;
        buffer.size = size;
        buffer.whole = true;
        flow.set_next_id(id.wrapping_add(1));
        self.finish_buffer();
        self.packets = self.packets.wrapping_add(count as usize);
        self.bytes = self.bytes.wrapping_add(len);
        Ok(())
    }

    /// Adds a packet with `len` bytes after the UDP header, as [`packet`](Self::packet) does, in a
    /// buffer of its own. It counts as `count` packets, and as `more` further bytes: those that the
    /// receiver, in this kernel, gets elsewhere.
    ///
    /// # Errors
    ///
    /// The packet is not added then. See [`TxError`].
    pub fn single<E>(
        &mut self,
        flow: &Flow,
        len: usize,
        (count, more): (u32, u32),
        fill: impl FnOnce(&[u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxError<E>> {
        self.finish_buffer();
        self.packet(flow, None, len, fill)?;
        self.finish_buffer();
        if let Some((_, last)) = self.list {
            // SAFETY: The buffer just finished, which is ours.
            unsafe { bindings::rxe_rs_tx_account(last.as_ptr(), more, count) };
        }
        let others = count.saturating_sub(1) as usize;
        self.packets = self.packets.wrapping_add(others);
        self.bytes = self.bytes.wrapping_add(more as usize);
        Ok(())
    }

    /// Adds an Ethernet frame of `len` bytes that is sent by `dev` unchanged.
    ///
    /// `fill` gets the bytes, all of which it must write.
    ///
    /// # Errors
    ///
    /// The frame is not added then. `TooLong` also if it is shorter than an Ethernet header.
    pub fn frame<E>(
        &mut self,
        dev: &NetDev,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxError<E>> {
        if self.is_full() {
            return Err(TxError::Full);
        }
        let len32 = u32::try_from(len).map_err(|_| TxError::TooLong)?;
        self.finish_buffer();
        let mut data = core::ptr::null_mut();
        // SAFETY: The device is alive; `data` is ours.
        let skb = unsafe { bindings::rxe_rs_frame_new(dev.as_ptr(), len32, &mut data) };
        let skb = kernel::error::from_err_ptr(skb).map_err(|_| TxError::TooLong)?;
        let skb = NonNull::new(skb).ok_or(TxError::NoMemory)?;
        // SAFETY: `rxe_rs_frame_new` points at that many contiguous bytes of a buffer that is ours.
        let bytes = unsafe { core::slice::from_raw_parts_mut(data.cast::<u8>(), len) };
        if let Err(e) = fill(bytes) {
            // SAFETY: The buffer is ours and in no list.
            unsafe { bindings::rxe_rs_tx_discard(skb.as_ptr()) };
            return Err(TxError::Fill(e));
        }
        // SAFETY: The buffer is ours.
        unsafe { bindings::rxe_rs_frame_finish(skb.as_ptr()) };
        self.link(skb);
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(len);
        Ok(())
    }

    /// Appends a finished buffer.
    fn link(&mut self, skb: NonNull<bindings::sk_buff>) {
        self.list = match self.list {
            None => Some((skb, skb)),
            Some((first, last)) => {
                // SAFETY: The last buffer of our own list.
                unsafe { bindings::rxe_rs_tx_link(last.as_ptr(), skb.as_ptr()) };
                Some((first, skb))
            }
        };
    }

    /// Finishes the current buffer and starts one for a packet of `len` bytes; returns the packet's
    /// memory.
    fn start_buffer<E>(
        &mut self,
        flow: &Flow,
        class: Option<u8>,
        len: u32,
    ) -> Result<NonNull<c_void>, TxError<E>> {
        self.finish_buffer();
        let linear = if len <= SMALL { SMALL } else { 0 };
        let (mut max_len, mut max_count) = (0, 0);
        // SAFETY: The flow is alive; the numbers are ours.
        let skb = unsafe {
            bindings::rxe_rs_tx_new(
                flow.raw.as_ptr(),
                flow.class(class),
                linear,
                &mut max_len,
                &mut max_count,
            )
        };
        let skb = kernel::error::from_err_ptr(skb).map_err(|_| TxError::NoRoute)?;
        let skb = NonNull::new(skb).ok_or(TxError::NoMemory)?;
        // SAFETY: The buffer is ours, and bottom halves are disabled.
        let data = NonNull::new(unsafe { bindings::rxe_rs_tx_put(skb.as_ptr(), len) });
        let Some(data) = data else {
            // SAFETY: The buffer is ours and in no list.
            unsafe { bindings::rxe_rs_tx_discard(skb.as_ptr()) };
            return Err(TxError::NoMemory);
        };
        self.buffer = Some(GsoBuffer {
            skb,
            flow: flow.id,
            class,
            headers: [0; HEADERS_V6],
            headers_len: flow.headers_len(),
            size: len,
            count: 0,
            len: 0,
            max_count,
            max_len,
            first_id: flow.next_id(),
            closed: false,
            whole: false,
        });
        Ok(data)
    }

    /// Finishes the current buffer and links it.
    fn finish_buffer(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        let skb = buffer.skb.as_ptr();
        // SAFETY: The buffer is ours, has headroom for the headers, and `headers_len` bytes of them
        // are valid.
        unsafe {
            bindings::rxe_rs_tx_finish(
                skb,
                buffer.headers.as_ptr(),
                buffer.headers_len as u32,
                buffer.size,
                buffer.count,
                self.tag,
                buffer.whole,
            )
        };
        self.link(buffer.skb);
    }

    fn discard_buffer(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // SAFETY: The buffer is ours and in no list.
            unsafe { bindings::rxe_rs_tx_discard(buffer.skb.as_ptr()) };
        }
    }

    /// Returns true if it has a single packet, of [`MAX_UNACCOUNTED`] bytes at most.
    #[inline]
    pub fn is_small(&self) -> bool {
        self.list.is_none() && self.packets == 1 && self.bytes <= MAX_UNACCOUNTED
    }

    /// Sends all packets, and accounts them to `owner`, if any. Without one the caller limits how
    /// many it sends, and the batch [is small](Self::is_small).
    ///
    /// # Context
    ///
    /// Process context or softirq, without any lock that the receive path takes: loopback packets
    /// may be received before this returns.
    pub fn send<T: TxSender>(mut self, owner: Option<&TxOwner<T>>) -> TxOutcome {
        self.finish_buffer();
        let mut outcome = TxOutcome {
            bytes: self.bytes,
            ..TxOutcome::default()
        };
        if let Some((first, _)) = self.list.take() {
            let mut raw = bindings::rxe_rs_tx_result::default();
            let owner = owner.map_or(core::ptr::null_mut(), |owner| owner.0.as_ptr());
            // SAFETY: The list is ours and given up; all its buffers are finished.
            unsafe { bindings::rxe_rs_tx_send(first.as_ptr(), owner, &mut raw) };
            outcome.packets = raw.sent as usize;
            outcome.dropped = raw.dropped as usize;
            outcome.too_long = raw.too_long as usize;
            outcome.congested = raw.congested;
        }
        outcome
    }
}

impl Drop for TxBatch<'_> {
    fn drop(&mut self) {
        self.discard_buffer();
        if let Some((first, _)) = self.list.take() {
            // SAFETY: The list is ours.
            unsafe { bindings::rxe_rs_tx_discard(first.as_ptr()) };
        }
    }
}

impl GsoBuffer {
    /// True if a packet of `len` bytes of `flow` may follow in the same buffer.
    #[inline]
    fn takes(&self, flow: &Flow, class: Option<u8>, len: u32) -> bool {
        self.flow == flow.id
            && self.class == class
            && !self.closed
            && len <= self.size
            && len != 0
            && self.count < self.max_count
            && self.len.saturating_add(len) <= self.max_len
    }
}
