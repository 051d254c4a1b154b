// SPDX-License-Identifier: GPL-2.0
//! What the engine needs from outside: queues, memory, completions and a place for packets.
//!
//! The kernel driver implements these over rings, pinned pages and socket buffers, the simulator
//! over plain vectors. All methods are called with the QP locked and must not block.

use super::responder::ReplayEntry;
use super::response::PendingResponse;
use super::wc::Wc;
use super::wr::{FlushKind, LocalOp, LocalOpFault, RecvWr, SendWqe};
use crate::ids::{PKey, RKey};
use crate::wire::packet::Payload;
use crate::wire::repr::Headers;

/// Why a local scatter/gather entry could not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalFault {
    /// Unknown key, foreign PD, bounds or rights.
    Refused,
    /// The memory is permitted but not there now. Whoever implements the ports is getting it, and
    /// then calls [`Qp::poll_transmit`](super::Qp::poll_transmit) and feeds packets again for
    /// which [`Qp::handle_packet`](super::Qp::handle_packet) said [`Handled::Deferred`].
    NotPresent,
}

/// Why a remote access was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteFault {
    /// Unknown key, foreign PD, bounds or rights (IBTA vol1 9.7.5.2.4).
    Refused,
    /// As [`LocalFault::NotPresent`].
    NotPresent,
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Handled {
    /// It is dealt with, whatever came of it.
    Done,
    /// Memory it needs is not there, or it asks for more work than is done at once. The QP is as
    /// if it had not come: feed it again when the memory may be there, or after a moment, and what
    /// came after it only then.
    Deferred,
}

/// How far a FLUSH has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushed {
    /// It is done.
    All,
    /// Up to this address of the region. The rest, or all of it, was too much to do now.
    UpTo(u64),
}

/// Rights that a remote operation asks of a region.
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
    /// Store the word; needs the right to write.
    Write {
        /// Value stored.
        value: u64,
    },
}

/// Result of asking for a receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// Here it is; its scatter list is now the current one.
    Wr(RecvWr),
    /// None is posted.
    Empty,
    /// One was posted, but its content is invalid; it has been consumed.
    Invalid {
        /// Identifier as far as it could be read.
        wr_id: u64,
    },
}

/// Things the engine counts through [`Backend::count`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Count {
    /// A request arrived out of order and was answered with a sequence NAK or dropped.
    OutOfSequence,
    /// A duplicate request arrived.
    DuplicateRequest,
    /// A receiver-not-ready NAK was sent.
    RnrNakSent,
    /// A receiver-not-ready NAK arrived.
    RnrNakReceived,
    /// A sequence NAK was sent.
    SequenceNakSent,
    /// A sequence NAK arrived.
    SequenceNakReceived,
    /// A hole in the responses was taken as a NAK.
    ImpliedNak,
    /// The acknowledgement timer expired and packets were sent again.
    Timeout,
    /// The transport retries were exhausted.
    RetryExceeded,
    /// The receiver-not-ready retries were exhausted.
    RnrRetryExceeded,
    /// An acknowledgement outside the window was ignored.
    StrayAck,
    /// A message or frame was dropped because no receive was posted, or one too short (UD, UC, raw).
    NoReceive,
    /// A packet was dropped because the QP's state or transport does not accept it.
    Unexpected,
    /// A remote access was refused.
    RemoteAccessError,
    /// A request was refused as invalid.
    RemoteInvalidRequest,
    /// A packet arrived that a router had marked for congestion.
    Marked,
    /// A congestion notification was sent.
    NoticeSent,
    /// A congestion notification arrived and was heeded.
    NoticeHandled,
    /// A congestion notification arrived that cannot be true: it does not say what it is, nothing was
    /// sent that could have been marked, or more of them came than packets were sent.
    NoticeIgnored,
    /// A packet was dropped because its memory was still being got and no more could wait for that,
    /// or a frame because its memory was not there: frames never wait.
    MemoryNotThere,
    /// A SEND request was done with, well or not.
    SendCompleted,
    /// A receive request completed with a message.
    ReceiveCompleted,
    /// Requests are sent again, which used up a retry.
    Retry,
    /// An acknowledgement within the window was ignored because its MSN does not go with its PSN.
    SuspectAck,
    /// A NAK within the window was ignored for the same reason.
    SuspectNak,
    /// The peer's MSN was learnt anew from an answer to the very packet that was sent last.
    MsnLearnt,
    /// A request was dropped whose PSN is further ahead than a peer can have sent.
    ImplausiblePsn,
    /// A sequence NAK turned out needless: the packet had not been lost.
    NeedlessNak,
    /// A duplicate of a READ or ATOMIC was dropped because it names something else than the original.
    ForeignDuplicate,
    /// Nothing but the first packets of trains arrived: packets are sent one by one for a while.
    TrainsEnded,
    /// An access found memory of a region that cannot be read or written: it is damaged, or has been
    /// taken out of the kernel's linear map. Counted by who owns the memory, not by the engine.
    UnreadableMemory,
}

impl Count {
    /// Number of counters.
    pub const COUNT: usize = 31;

    /// All of them, in index order.
    pub const ALL: [Count; Self::COUNT] = [
        Count::OutOfSequence,
        Count::DuplicateRequest,
        Count::RnrNakSent,
        Count::RnrNakReceived,
        Count::SequenceNakSent,
        Count::SequenceNakReceived,
        Count::ImpliedNak,
        Count::Timeout,
        Count::RetryExceeded,
        Count::RnrRetryExceeded,
        Count::StrayAck,
        Count::NoReceive,
        Count::Unexpected,
        Count::RemoteAccessError,
        Count::RemoteInvalidRequest,
        Count::Marked,
        Count::NoticeSent,
        Count::NoticeHandled,
        Count::MemoryNotThere,
        Count::SendCompleted,
        Count::ReceiveCompleted,
        Count::Retry,
        Count::SuspectAck,
        Count::SuspectNak,
        Count::MsnLearnt,
        Count::ImplausiblePsn,
        Count::NeedlessNak,
        Count::ForeignDuplicate,
        Count::NoticeIgnored,
        Count::TrainsEnded,
        Count::UnreadableMemory,
    ];

    /// Position in an array of counters.
    #[inline]
    pub const fn index(self) -> usize {
        match self {
            Count::OutOfSequence => 0,
            Count::DuplicateRequest => 1,
            Count::RnrNakSent => 2,
            Count::RnrNakReceived => 3,
            Count::SequenceNakSent => 4,
            Count::SequenceNakReceived => 5,
            Count::ImpliedNak => 6,
            Count::Timeout => 7,
            Count::RetryExceeded => 8,
            Count::RnrRetryExceeded => 9,
            Count::StrayAck => 10,
            Count::NoReceive => 11,
            Count::Unexpected => 12,
            Count::RemoteAccessError => 13,
            Count::RemoteInvalidRequest => 14,
            Count::Marked => 15,
            Count::NoticeSent => 16,
            Count::NoticeHandled => 17,
            Count::MemoryNotThere => 18,
            Count::SendCompleted => 19,
            Count::ReceiveCompleted => 20,
            Count::Retry => 21,
            Count::SuspectAck => 22,
            Count::SuspectNak => 23,
            Count::MsnLearnt => 24,
            Count::ImplausiblePsn => 25,
            Count::NeedlessNak => 26,
            Count::ForeignDuplicate => 27,
            Count::NoticeIgnored => 28,
            Count::TrainsEnded => 29,
            Count::UnreadableMemory => 30,
        }
    }

    /// Name in `rdma statistic` and `hw_counters`.
    pub const fn name(self) -> &'static str {
        match self {
            Count::OutOfSequence => "out_of_seq_request",
            Count::DuplicateRequest => "duplicate_request",
            Count::RnrNakSent => "send_rnr_err",
            Count::RnrNakReceived => "rcvd_rnr_err",
            Count::SequenceNakSent => "send_seq_err",
            Count::SequenceNakReceived => "rcvd_seq_err",
            Count::ImpliedNak => "implied_nak_seq_err",
            Count::Timeout => "local_ack_timeout_err",
            Count::RetryExceeded => "retry_exceeded_err",
            Count::RnrRetryExceeded => "retry_rnr_exceeded_err",
            Count::StrayAck => "stray_ack",
            Count::NoReceive => "no_receive_buffer",
            Count::Unexpected => "unexpected_packet",
            Count::RemoteAccessError => "resp_remote_access_err",
            Count::RemoteInvalidRequest => "resp_invalid_request_err",
            Count::Marked => "np_ecn_marked_roce_packets",
            Count::NoticeSent => "np_cnp_sent",
            Count::NoticeHandled => "rp_cnp_handled",
            Count::MemoryNotThere => "page_wait_dropped",
            Count::SendCompleted => "rdma_sends",
            Count::ReceiveCompleted => "rdma_recvs",
            Count::Retry => "completer_retry_err",
            Count::SuspectAck => "suspect_ack",
            Count::SuspectNak => "suspect_nak",
            Count::MsnLearnt => "msn_learnt",
            Count::ImplausiblePsn => "implausible_psn",
            Count::NeedlessNak => "needless_nak",
            Count::ForeignDuplicate => "foreign_duplicate",
            Count::NoticeIgnored => "rp_cnp_ignored",
            Count::TrainsEnded => "tx_segmentation_fallback",
            Count::UnreadableMemory => "unreadable_memory",
        }
    }
}

/// The send queue of one QP. Its indices run freely over `u32` and wrap; the implementor masks
/// them.
pub trait SendQueue {
    /// Index one past the newest send request. At most the ring's size ahead of the oldest one
    /// not retired.
    fn sends_posted(&self) -> u32;

    /// The WQE of `index`; `None` only if `index` is not between the oldest one not retired and
    /// [`sends_posted`](Self::sends_posted).
    fn send_wqe(&mut self, index: u32) -> Option<&mut SendWqe>;

    /// All WQEs before `index` are finished and may be used again.
    fn retire_sends(&mut self, index: u32);

    /// Copies `dst.len()` bytes from `offset` of the payload of send request `index`.
    ///
    /// # Errors
    ///
    /// [`LocalFault`], of the scatter/gather entry that the bytes belong to.
    fn gather(&self, index: u32, offset: u32, dst: &mut [u8]) -> Result<(), LocalFault>;

    /// Places response data at `offset` of the scatter list of send request `index`. May have
    /// placed a part of it if it fails.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    fn scatter(&self, index: u32, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault>;
}

/// The receive queue of one QP, or the shared one that it takes its receive requests from.
pub trait RecvQueue {
    /// Takes the next receive work request.
    fn take_recv(&mut self) -> Taken;

    /// Places received data at `offset` of the scatter list taken last.
    ///
    /// # Errors
    ///
    /// [`LocalFault`], of the scatter/gather entry that the bytes belong to.
    fn scatter_recv(&self, offset: u32, src: &Payload<'_>) -> Result<(), LocalFault>;
}

/// Memory that keys lead to: the peer's accesses, and local requests that change what keys grant.
pub trait RemoteMemory {
    /// Checks a whole remote access before its first byte moves.
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

    /// Copies into local memory on behalf of the peer. May have copied a part if the memory is
    /// not all there.
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

    /// Makes what was written to `len` bytes at `addr`, or to the whole region, visible or
    /// persistent as `kind` asks, or a part of that: what takes long is cut into pieces. `from` is
    /// the address that the piece before ended at.
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

    /// Invalidates `rkey` on behalf of the peer: a window of type 2 or a region for fast
    /// registration that grants rights to peers (IBTA vol1 9.4.1.1.3).
    ///
    /// # Errors
    ///
    /// [`RemoteFault::Refused`].
    fn remote_invalidate(&self, rkey: RKey) -> Result<(), RemoteFault>;

    /// Executes a local operation on keys. When it returns, what it ended is not used any more and
    /// what it began can be used.
    ///
    /// # Errors
    ///
    /// [`LocalOpFault`].
    fn local_op(&self, op: &LocalOp) -> Result<(), LocalOpFault>;
}

/// The completion queues of one QP.
pub trait Completions {
    /// Reports a completion of the send queue.
    fn complete_send(&mut self, wc: &Wc);

    /// Reports a completion of the receive queue.
    fn complete_recv(&mut self, wc: &Wc);
}

/// Memory in which the engine keeps the responses of one QP. It is outside of the engine because of
/// its size: kernel stacks are small. Written by the engine alone.
pub struct Storage<'a> {
    /// Responses owed to the peer, [`PENDING_RESPONSES`](super::attrs::PENDING_RESPONSES) of them.
    pub pending: &'a mut [PendingResponse],
    /// Requests that may have to be answered again, [`RESOURCES`](super::attrs::RESOURCES) of
    /// them.
    pub replay: &'a mut [ReplayEntry],
}

/// All that the engine works on for one QP.
pub trait Backend: SendQueue + RecvQueue + RemoteMemory + Completions {
    /// The engine's own memory for this QP, always the same.
    fn storage(&mut self) -> Storage<'_>;

    /// The P_Key that outgoing packets carry now.
    fn pkey(&self) -> PKey;

    /// The P_Key at `index` of the port's table; one that matches nothing beyond it.
    fn pkey_at(&self, index: u16) -> PKey;

    /// Counts an occurrence.
    fn count(&mut self, what: Count);
}

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dest {
    /// To the connected peer.
    Peer,
    /// To the address handle with this number.
    Ah(u32),
}

/// Why a packet was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxFault<E> {
    /// No memory or no room now; try again later.
    Busy,
    /// The destination cannot be used at all (address handle gone, of another PD).
    Unreachable,
    /// The closure that fills the payload failed; the packet was not added.
    Fill(E),
}

/// Takes outgoing packets. They leave after the QP has been unlocked, in the order given.
pub trait Tx {
    /// There is room for at least one more packet in this turn.
    fn has_room(&self) -> bool;

    /// Adds a packet: `headers`, `payload_len` bytes written by `fill`, padding to a multiple of
    /// four (counted in the BTH already) and the ICRC, which the implementor computes.
    fn packet<E>(
        &mut self,
        to: Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>>;

    /// Packets ahead of the one added last in the train that it is a part of: IPv4 packets in one
    /// buffer that the device cuts, to which it gives identifications. 0 for the first one, and for what
    /// no device changes.
    fn place(&self) -> u32;

    /// Each packet added from now on gets a buffer of its own.
    fn end_trains(&mut self);

    /// Adds an Ethernet frame of `len` bytes written by `fill`.
    ///
    /// # Errors
    ///
    /// [`TxFault::Unreachable`] for a length that the network's frames do not have.
    fn frame<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), TxFault<E>>;
}
