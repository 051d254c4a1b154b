// SPDX-License-Identifier: GPL-2.0
//! The traits that the owner of a QP implements: queues, memory, completions, packet transmission.
//!
//! The kernel driver implements them over rings, pinned pages and socket buffers, the simulator
//! over plain vectors. The engine calls all methods with the QP locked; they must not block.

use super::responder::ReplayEntry;
use super::response::PendingResponse;
use super::wc::Wc;
use super::wr::{AhName, FlushKind, LocalOp, LocalOpFault, RecvWr, SendWqe};
use crate::ids::{PKey, RKey};
use crate::wire::packet::Payload;
use crate::wire::reference::Reference;
use crate::wire::repr::Headers;

/// Why a local scatter/gather entry could not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalFault {
    /// Unknown key, foreign PD, bounds or rights.
    Refused,
    /// The access is permitted but causes a page fault. The implementor of the backend handles
    /// the fault, then calls [`Qp::poll_transmit`](super::Qp::poll_transmit) and passes the packets
    /// for which [`Qp::handle_packet`](super::Qp::handle_packet) returned [`Handled::Deferred`] to
    /// it again.
    NotPresent,
    /// The payload is in the memory of the sender, which no longer grants access to it
    /// ([`SendQueue::offer`], [`RemoteMemory::offer_region`]): the packet counts as lost.
    Gone,
}

/// Why a remote access was not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteFault {
    /// Unknown key, foreign PD, bounds or rights (IBTA 9.7.5.2.4).
    Refused,
    /// As [`LocalFault::NotPresent`].
    NotPresent,
    /// As [`LocalFault::Gone`].
    Gone,
}

/// Result of handling a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Handled {
    /// The packet has been consumed: executed, answered or dropped.
    Done,
    /// The packet causes a page fault, needs more work than one call may do, or waits for room in
    /// the CQ ([`RecvQueue::cq_has_room`]). The state of the QP is unchanged: pass the packet again
    /// after the page fault or after a short delay, and later packets only after it.
    Deferred,
    /// The packet is ahead of the expected one. Keep a copy, and tell the engine with
    /// [`Qp::on_kept`](super::Qp::on_kept); or drop it.
    Ahead,
}

/// Progress of a FLUSH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushed {
    /// The FLUSH is complete.
    All,
    /// The range is flushed up to this address of the region; the rest needs another call.
    UpTo(u64),
}

/// Right that a remote operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteRight {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// ATOMIC.
    Atomic,
}

/// A 64-bit atomic operation on host-endian memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Store `swap` if the word equals `compare`.
    CmpSwp {
        /// Value compared with.
        compare: u64,
        /// Value stored.
        swap: u64,
    },
    /// Add to the word, wrapping.
    FetchAdd {
        /// Addend.
        add: u64,
    },
    /// Store the word; needs [`RemoteRight::Write`].
    Write {
        /// Value stored.
        value: u64,
    },
}

/// Result of [`RecvQueue::take_recv`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenRecv {
    /// The next receive work request; its scatter list is now the current one.
    Wr(RecvWr),
    /// None is posted.
    Empty,
    /// The next receive work request is invalid; it has been consumed.
    Invalid {
        /// Its identifier, as far as it could be read.
        wr_id: u64,
    },
}

counters! {
    /// Events that the engine counts through [`Backend::count`].
    pub enum Count {
        /// A request arrived out of sequence; it was dropped or caused a sequence error NAK.
        OutOfSequence = "out_of_seq_request",
        /// A packet by reference was dropped, because the sender no longer grants access to its
        /// payload.
        ReferenceGone = "reference_gone",
        /// A packet ahead of the expected one was kept until that arrived.
        Kept = "kept_out_of_seq",
        /// A duplicate request arrived.
        DuplicateRequest = "duplicate_request",
        /// An RNR NAK was sent.
        RnrNakSent = "send_rnr_err",
        /// An RNR NAK arrived.
        RnrNakReceived = "rcvd_rnr_err",
        /// A PSN sequence error NAK was sent.
        SequenceNakSent = "send_seq_err",
        /// A PSN sequence error NAK arrived.
        SequenceNakReceived = "rcvd_seq_err",
        /// Only the packets that a PSN sequence error NAK named were retransmitted.
        SelectiveRepeat = "selective_repeat",
        /// A packet with the expected PSN had another token than those before.
        SuspectMark = "suspect_mark",
        /// A missing response implied a NAK (IBTA 9.7.6).
        ImpliedNak = "implied_nak_seq_err",
        /// The acknowledgement timer expired and packets were retransmitted.
        Timeout = "local_ack_timeout_err",
        /// The transport retry counter was exceeded.
        RetryExceeded = "retry_exceeded_err",
        /// The RNR retry counter was exceeded.
        RnrRetryExceeded = "retry_rnr_exceeded_err",
        /// A response whose PSN is not in flight was ignored.
        UnmatchedResponse = "unmatched_response",
        /// A message or frame was dropped because no receive, or one too short, was posted (UD, UC,
        /// raw).
        NoReceive = "no_receive_buffer",
        /// A packet was dropped because the state or transport of the QP does not accept it.
        Unexpected = "unexpected_packet",
        /// A remote access was refused.
        RemoteAccessError = "resp_remote_access_err",
        /// A request was refused as invalid.
        RemoteInvalidRequest = "resp_invalid_request_err",
        /// A packet with the ECN codepoint CE (congestion experienced) arrived.
        EcnMarked = "np_ecn_marked_roce_packets",
        /// A CNP was sent.
        CnpSent = "np_cnp_sent",
        /// A CNP arrived and limited the sending rate.
        CnpHandled = "rp_cnp_handled",
        /// A CNP was ignored as forged: BECN is not set, no recent packet could have been marked,
        /// or more CNPs arrived than packets were sent.
        CnpIgnored = "rp_cnp_ignored",
        /// A packet was dropped because too many already waited for page faults or for room in a
        /// CQ, or a raw frame because its receive buffer caused a page fault or the CQ had no room:
        /// frames are never deferred.
        PageFaultDropped = "page_fault_dropped",
        /// A SEND request completed, successfully or in error.
        SendCompleted = "rdma_sends",
        /// A receive request completed successfully.
        ReceiveCompleted = "rdma_recvs",
        /// A retransmission decremented the transport retry counter.
        Retry = "completer_retry_err",
        /// An ACK for a PSN in flight was ignored because its MSN does not match its PSN.
        SuspectAck = "suspect_ack",
        /// A NAK for a PSN in flight was ignored for the same reason.
        SuspectNak = "suspect_nak",
        /// The peer's MSN was resynchronized from an ACK of exactly the newest packet, or a NAK of
        /// exactly the oldest one, in flight.
        MsnResync = "msn_resync",
        /// A request was dropped because its PSN is further ahead than the peer can have sent.
        ImplausiblePsn = "implausible_psn",
        /// A sequence NAK was spurious: a duplicate showed that the packet had not been lost.
        SpuriousNak = "spurious_nak",
        /// A duplicate READ or ATOMIC was dropped because its key, address or length does not match
        /// the original.
        DuplicateMismatch = "duplicate_mismatch",
        /// Only the first packets of GSO batches arrived, or none: the QP sends single packets for
        /// some time.
        GsoFallback = "tx_gso_fallback",
        /// An access hit memory that cannot be read or written: it is poisoned, or removed from the
        /// kernel's linear map. Counted by the owner of the memory, not by the engine.
        UnreadableMemory = "unreadable_memory",
        /// A READ of the peer was accepted.
        ReadRequest = "rx_read_requests",
        /// A WRITE of the peer was executed.
        WriteRequest = "rx_write_requests",
        /// An ATOMIC or ATOMIC WRITE of the peer was executed.
        AtomicRequest = "rx_atomic_requests",
    }
}

/// The send queue of one QP. Its indices are free-running `u32` that wrap; the implementor masks
/// them.
pub trait SendQueue {
    /// Index one past the newest WQE, at most the size of the ring ahead of the oldest WQE not
    /// retired.
    fn sends_posted(&self) -> u32;

    /// Up to how many outstanding requests the newest one may do without requesting an
    /// acknowledgement, if nobody waits for its completion: their slots must not be those that the
    /// consumer waits for. 0 if each is to be acknowledged at once.
    fn unacknowledged_limit(&self) -> u32;

    /// The WQE at `index`; `None` only if `index` is not between the oldest WQE not retired and
    /// [`sends_posted`](Self::sends_posted).
    fn send_wqe(&mut self, index: u32) -> Option<&mut SendWqe>;

    /// Retires all WQEs before `index`: they are finished, and their slots may be reused.
    fn retire_sends(&mut self, index: u32);

    /// Permits the peer to copy the payload of the WQE at `index`, until that is retired: no copy
    /// is in progress when [`retire_sends`](Self::retire_sends) returns. Returns false if that is
    /// not possible, or if [`gather`](Self::gather) might fail.
    fn offer(&mut self, index: u32) -> bool;

    /// Copies `dst.len()` bytes from `offset` of the payload of the WQE at `index`.
    ///
    /// # Errors
    ///
    /// [`LocalFault`], of the scatter/gather entry that the bytes belong to.
    fn gather(&self, index: u32, offset: u32, dst: &mut [u8]) -> Result<(), LocalFault>;

    /// Copies response data to `offset` of the scatter list of the WQE at `index`. May have copied
    /// a part of it on failure.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    fn scatter(&self, index: u32, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault>;
}

/// The receive queue of one QP, or the shared receive queue that it is attached to.
pub trait RecvQueue {
    /// Takes the next receive work request from the queue.
    fn take_recv(&mut self) -> TakenRecv;

    /// Returns true if the next message may take a receive work request, or there is none. If not,
    /// its completion would find no room, which the process may be about to make
    /// ([`RoomWait`](super::room::RoomWait)): the packet is passed again later
    /// ([`Handled::Deferred`]).
    fn cq_has_room(&mut self) -> bool;

    /// Copies received data to `offset` of the current scatter list.
    ///
    /// # Errors
    ///
    /// [`LocalFault`], of the scatter/gather entry that the bytes belong to.
    fn scatter_recv(&self, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault>;
}

/// Memory regions and windows: accesses of the peer, and local operations on keys.
///
/// Each access is checked against the key as it is then, although
/// [`remote_check`](Self::remote_check) has permitted the whole message before: between two packets
/// of a message the key may be invalidated or released and memory may be removed. A permission that
/// outlived a packet would let a peer delay that by not sending the rest of its message.
pub trait RemoteMemory {
    /// Checks a whole remote access before its first byte is copied, so that a message that is
    /// refused has written nothing.
    ///
    /// # Errors
    ///
    /// [`RemoteFault::Refused`].
    fn remote_check(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<(), RemoteFault>;

    /// Copies from local memory on behalf of the peer.
    ///
    /// # Errors
    ///
    /// [`RemoteFault`].
    fn remote_read(&self, rkey: RKey, addr: u64, dst: &mut [u8]) -> Result<(), RemoteFault>;

    /// Permits the peer to copy from local memory to which it has the right to READ, until the
    /// consumer stops the QP. Returns false if that is not possible, or if
    /// [`remote_read`](Self::remote_read) of these bytes might fail.
    ///
    /// The peer reads what is there when the response arrives, which is as good as what was there
    /// when it was sent: the READ has not completed, and a request behind it that is not to
    /// influence it has a fence, so waits for that (IBTA 10.8.3.3).
    fn offer_region(&mut self, rkey: RKey, addr: u64, len: u32) -> bool;

    /// Copies into local memory on behalf of the peer. May have copied a part if a page fault
    /// occurs.
    ///
    /// # Errors
    ///
    /// [`RemoteFault`].
    fn remote_write(&self, rkey: RKey, addr: u64, src: &Payload<'_>) -> Result<(), RemoteFault>;

    /// Executes an atomic operation on behalf of the peer and returns the value before it; `addr`
    /// is a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`RemoteFault`].
    fn remote_atomic(&self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, RemoteFault>;

    /// Makes previous writes to `len` bytes at `addr`, or to the whole region, visible or
    /// persistent according to `kind`. One call may do a part of a long range only; `from` is then
    /// the address that the previous call returned.
    ///
    /// # Errors
    ///
    /// [`RemoteFault`].
    fn remote_flush(
        &self,
        rkey: RKey,
        addr: u64,
        len: u32,
        kind: FlushKind,
        from: Option<u64>,
    ) -> Result<Flushed, RemoteFault>;

    /// Invalidates `rkey` on behalf of the peer: a type 2 window, or a fast registration region
    /// with remote rights (IBTA 9.4.1).
    ///
    /// # Errors
    ///
    /// [`RemoteFault::Refused`].
    fn remote_invalidate(&self, rkey: RKey) -> Result<(), RemoteFault>;

    /// Executes a local operation on keys. On return no access under an invalidated key is in
    /// progress, and a registered or bound key may be used.
    ///
    /// # Errors
    ///
    /// [`LocalOpFault`].
    fn local_op(&self, op: &LocalOp) -> Result<(), LocalOpFault>;
}

/// The completion queues of one QP.
pub trait Completions {
    /// Reports a completion of the send queue. Its WQE has been retired, so that the consumer can
    /// post another one at once.
    fn complete_send(&mut self, wc: &Wc);

    /// Reports a completion of the receive queue.
    fn complete_recv(&mut self, wc: &Wc);

    /// True if a completion since the packets of this batch arrived notifies a process, which
    /// sleeps until then.
    fn wakes_process(&self) -> bool;
}

/// Memory in which the engine keeps the responses of one QP. It is outside of [`Qp`](super::Qp)
/// because of its size: kernel stacks are small. Only the engine writes to it.
///
/// A pair of borrowed slices, whose lengths differ from QP to QP; it is passed by value because a
/// backend could return a reference to such a pair only if it contained slices of its own memory.
pub struct Storage<'a> {
    /// Responses owed to the peer: at least
    /// [`pending_responses`](super::attrs::pending_responses) of them.
    pub pending: &'a mut [PendingResponse],
    /// Responder resources: executed requests whose duplicates must be answered, at least
    /// [`replay_entries`](super::attrs::replay_entries) of them.
    pub replay: &'a mut [ReplayEntry],
}

/// Everything that the engine uses of its owner for one QP.
pub trait Backend: SendQueue + RecvQueue + RemoteMemory + Completions {
    /// The engine's memory for this QP, the same on every call unless
    /// [`Qp::move_storage`](super::Qp::move_storage) has exchanged it.
    fn storage(&mut self) -> Storage<'_>;

    /// The P_Key that outgoing packets carry now.
    fn pkey(&self) -> PKey;

    /// The P_Key at `index` of the port's P_Key table; beyond its end a P_Key that matches none.
    fn pkey_at(&self, index: u16) -> PKey;

    /// Increments a counter.
    fn count(&mut self, what: Count);

    /// The QP enters ERR. Called before the first completion that shows this to the consumer, once
    /// or more often.
    fn entering_error(&mut self);
}

/// Destination of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dest {
    /// The connected peer.
    Peer,
    /// This address handle.
    Ah(AhName),
}

/// Why a packet was not queued for transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxFault<E> {
    /// No memory or no room in the queue at the moment; try again later.
    Busy,
    /// The destination cannot be used (address handle destroyed or of another PD).
    Unreachable,
    /// The closure that fills the payload failed; the packet was not queued.
    Fill(E),
}

/// Sink for outgoing packets. They are sent in order after the QP is unlocked.
pub trait Tx {
    /// True if there is room for at least one more packet in this round.
    fn has_room(&self) -> bool;

    /// Queues a packet: `headers`, `payload_len` bytes written by `fill`, padding to a multiple of
    /// four (already in the BTH) and the ICRC, which the implementor computes.
    ///
    /// # Errors
    ///
    /// See [`TxFault`].
    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>>;

    /// Maximum payload of a merged packet (`engine/merge.rs`) to the connected peer, in bytes; 0 if
    /// packets of this round cannot be merged.
    fn max_merged(&self) -> u32;

    /// Queues a packet to the connected peer with `payload_len` bytes of payload, at most
    /// [`max_merged`](Self::max_merged), that stands for `count` packets. It has no ICRC, and
    /// arrives whole in this kernel or not at all. `fill` is called for consecutive parts of the
    /// payload, with the offset of each, and writes all of its bytes.
    ///
    /// # Errors
    ///
    /// See [`TxFault`].
    fn merged<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        count: u32,
        fill: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>>;

    /// Maximum payload of a packet by reference (`engine/merge.rs`), in bytes; 0 if packets of this
    /// round cannot be sent by reference.
    fn max_by_reference(&self) -> u32;

    /// Queues a packet to the connected peer with a reference in place of its payload, of at most
    /// [`max_by_reference`](Self::max_by_reference) bytes, that stands for `count` packets. It has
    /// no ICRC.
    ///
    /// # Errors
    ///
    /// See [`TxFault`].
    fn by_reference<E>(
        &mut self,
        headers: &Headers,
        reference: &Reference,
        count: u32,
    ) -> Result<(), TxFault<E>>;

    /// Index of the packet queued last within its GSO batch: IPv4 packets in one buffer, whose
    /// identifications the device assigns when it segments the buffer. 0 for the first segment and
    /// for packets that no device segments.
    fn gso_index(&self) -> u32;

    /// Disables GSO for this round: each further packet gets a buffer of its own.
    fn disable_gso(&mut self);

    /// Queues an Ethernet frame of `len` bytes written by `fill`.
    ///
    /// # Errors
    ///
    /// [`TxFault::Unreachable`] for a length that is not valid on this network; else see
    /// [`TxFault`].
    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>>;
}
