// SPDX-License-Identifier: GPL-2.0
//! BTH opcodes: transport × operation, and the packet properties that an opcode determines.
//!
//! The single table is the `operations!` call below (IBTA 9.2.1; IBTA A17.9.3
//! for the CNP). Look-ups are `match`es over it, which compile to small constant tables.

/// Transport service of a packet: the upper three bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connection, `0x00`.
    Rc,
    /// Unreliable connection, `0x20`.
    Uc,
    /// Unreliable datagram, `0x60`.
    Ud,
    /// Congestion notification, `0x80`; not the transport of any QP type.
    Cnp,
}

impl Transport {
    /// The upper three bits of the opcode, in place.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
        }
    }

    const fn parse(opcode: u8) -> Option<Self> {
        Some(match opcode & 0xe0 {
            0x00 => Self::Rc,
            0x20 => Self::Uc,
            0x60 => Self::Ud,
            0x80 => Self::Cnp,
            _ => return None,
        })
    }
}

/// Set of extension headers that follow the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeaderSet(u8);

impl HeaderSet {
    /// No extension header.
    pub const NONE: Self = Self(0);
    /// Datagram header, 8 bytes.
    pub const DETH: Self = Self(1 << 0);
    /// Flush header, 4 bytes; precedes the RETH.
    pub const FETH: Self = Self(1 << 1);
    /// RDMA header, 16 bytes.
    pub const RETH: Self = Self(1 << 2);
    /// Atomic request header, 28 bytes.
    pub const ATOMIC_ETH: Self = Self(1 << 3);
    /// Acknowledge header, 4 bytes.
    pub const AETH: Self = Self(1 << 4);
    /// Atomic response header, 8 bytes.
    pub const ATOMIC_ACK_ETH: Self = Self(1 << 5);
    /// Immediate data, 4 bytes.
    pub const IMM: Self = Self(1 << 6);
    /// Key to invalidate, 4 bytes.
    pub const IETH: Self = Self(1 << 7);

    /// Whether every header of `other` is in the set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The headers of both sets.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The headers of the set that precede `header` on the wire; the bits are in that order.
    #[inline]
    pub const fn before(self, header: Self) -> Self {
        Self(self.0 & header.0.wrapping_sub(1))
    }

    /// Total bytes of the headers in the set.
    #[inline]
    pub const fn byte_len(self) -> usize {
        let mut len = 0usize;
        if self.contains(Self::DETH) {
            len = len.saturating_add(8);
        }
        if self.contains(Self::FETH) {
            len = len.saturating_add(4);
        }
        if self.contains(Self::RETH) {
            len = len.saturating_add(16);
        }
        if self.contains(Self::ATOMIC_ETH) {
            len = len.saturating_add(28);
        }
        if self.contains(Self::AETH) {
            len = len.saturating_add(4);
        }
        if self.contains(Self::ATOMIC_ACK_ETH) {
            len = len.saturating_add(8);
        }
        if self.contains(Self::IMM) {
            len = len.saturating_add(4);
        }
        if self.contains(Self::IETH) {
            len = len.saturating_add(4);
        }
        len
    }
}

/// Valid payload lengths of an operation, without pad bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadRule {
    /// Exactly this many bytes with any MTU; 0 for packets without payload.
    Exactly(u8),
    /// Exactly the path MTU: all packets of a message but the last.
    PathMtu,
    /// 1 byte to the path MTU: the last packet of a message of several.
    OneToMtu,
    /// 0 bytes to the path MTU: messages of one packet.
    ZeroToMtu,
}

impl PayloadRule {
    /// Whether a payload of `len` bytes is legal on a path of MTU `mtu` bytes.
    #[inline]
    pub fn allows(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::Exactly(n) => len == usize::from(n),
            Self::PathMtu => len == mtu,
            Self::OneToMtu => len != 0 && len <= mtu,
            Self::ZeroToMtu => len <= mtu,
        }
    }
}

/// Position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several packets.
    Last,
    /// The whole message.
    Only,
}

/// Direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the responder.
    Request,
    /// To the requester.
    Response,
    /// Neither: congestion notification.
    Notification,
}

const RC: u8 = 1;
const RC_UC: u8 = 3;
const RC_UC_UD: u8 = 7;
const CNP: u8 = 8;

#[derive(Clone, Copy)]
struct Row {
    headers: HeaderSet,
    header_len: usize,
    payload: PayloadRule,
    position: Position,
    direction: Direction,
    transports: u8,
}

macro_rules! operations {
    ($( $(#[$meta:meta])* $name:ident = $code:literal:
        $position:ident $direction:ident [$($header:ident)*] $payload:expr, $transports:ident; )*) => {
        /// Operation: the lower five bits of the opcode.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Operation {
            $( $(#[$meta])* $name, )*
        }

        impl Operation {
            /// Every operation, in the order of the codes.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];

            /// The lower five bits of the opcode.
            #[inline]
            pub const fn bits(self) -> u8 {
                match self {
                    $( Self::$name => $code & 0x1f, )*
                }
            }

            /// `code` is the lower five bits, with bit 7 set for the operations of the CNP
            /// transport, whose codes have another meaning.
            #[inline]
            const fn parse(code: u8) -> Option<Self> {
                Some(match code {
                    $( $code => Self::$name, )*
                    0x15 | 0x18..=0x1b | 0x1e => Self::Reserved,
                    _ => return None,
                })
            }

            #[inline]
            const fn row(self) -> Row {
                match self {
                    $( Self::$name => const {
                        let headers = HeaderSet::NONE$(.union(HeaderSet::$header))*;
                        Row {
                            headers,
                            header_len: headers.byte_len().saturating_add(Opcode::BTH_LEN),
                            payload: $payload,
                            position: Position::$position,
                            direction: Direction::$direction,
                            transports: $transports,
                        }
                    }, )*
                }
            }

            /// Human-readable name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$name => stringify!($name), )*
                }
            }
        }
    };
}

operations! {
    /// First packet of a SEND.
    SendFirst = 0x00: First Request [] PayloadRule::PathMtu, RC_UC;
    /// Middle packet of a SEND.
    SendMiddle = 0x01: Middle Request [] PayloadRule::PathMtu, RC_UC;
    /// Last packet of a SEND.
    SendLast = 0x02: Last Request [] PayloadRule::OneToMtu, RC_UC;
    /// Last packet of a SEND, with immediate data.
    SendLastImm = 0x03: Last Request [IMM] PayloadRule::OneToMtu, RC_UC;
    /// SEND of one packet.
    SendOnly = 0x04: Only Request [] PayloadRule::ZeroToMtu, RC_UC_UD;
    /// SEND of one packet, with immediate data.
    SendOnlyImm = 0x05: Only Request [IMM] PayloadRule::ZeroToMtu, RC_UC_UD;
    /// First packet of an RDMA WRITE.
    WriteFirst = 0x06: First Request [RETH] PayloadRule::PathMtu, RC_UC;
    /// Middle packet of an RDMA WRITE.
    WriteMiddle = 0x07: Middle Request [] PayloadRule::PathMtu, RC_UC;
    /// Last packet of an RDMA WRITE.
    WriteLast = 0x08: Last Request [] PayloadRule::OneToMtu, RC_UC;
    /// Last packet of an RDMA WRITE, with immediate data.
    WriteLastImm = 0x09: Last Request [IMM] PayloadRule::OneToMtu, RC_UC;
    /// RDMA WRITE of one packet.
    WriteOnly = 0x0a: Only Request [RETH] PayloadRule::ZeroToMtu, RC_UC;
    /// RDMA WRITE of one packet, with immediate data.
    WriteOnlyImm = 0x0b: Only Request [RETH IMM] PayloadRule::ZeroToMtu, RC_UC;
    /// RDMA READ request.
    ReadRequest = 0x0c: Only Request [RETH] PayloadRule::Exactly(0), RC;
    /// First packet of a READ response.
    ReadRespFirst = 0x0d: First Response [AETH] PayloadRule::PathMtu, RC;
    /// Middle packet of a READ response.
    ReadRespMiddle = 0x0e: Middle Response [] PayloadRule::PathMtu, RC;
    /// Last packet of a READ response.
    ReadRespLast = 0x0f: Last Response [AETH] PayloadRule::OneToMtu, RC;
    /// READ response of one packet; also answers FLUSH and ATOMIC WRITE.
    ReadRespOnly = 0x10: Only Response [AETH] PayloadRule::ZeroToMtu, RC;
    /// Acknowledgement, positive or negative.
    Acknowledge = 0x11: Only Response [AETH] PayloadRule::Exactly(0), RC;
    /// Response to an atomic operation.
    AtomicAck = 0x12: Only Response [AETH ATOMIC_ACK_ETH] PayloadRule::Exactly(0), RC;
    /// Atomic compare and swap.
    CmpSwap = 0x13: Only Request [ATOMIC_ETH] PayloadRule::Exactly(0), RC;
    /// Atomic fetch and add.
    FetchAdd = 0x14: Only Request [ATOMIC_ETH] PayloadRule::Exactly(0), RC;
    /// Last packet of a SEND that also invalidates a key.
    SendLastInv = 0x16: Last Request [IETH] PayloadRule::OneToMtu, RC;
    /// SEND of one packet that also invalidates a key.
    SendOnlyInv = 0x17: Only Request [IETH] PayloadRule::ZeroToMtu, RC;
    /// Flush of written memory.
    Flush = 0x1c: Only Request [FETH RETH] PayloadRule::Exactly(0), RC;
    /// Atomic write of 8 bytes.
    AtomicWrite = 0x1d: Only Request [RETH] PayloadRule::Exactly(8), RC;
    /// Every request that the architecture reserves: the responder refuses it, where UC and UD
    /// drop it silently. The code is one of them.
    Reserved = 0x1f: Only Request [] PayloadRule::ZeroToMtu, RC;
    /// Congestion notification.
    Cnp = 0x81: Only Notification [] PayloadRule::Exactly(16), CNP;
}

/// A legal pair of transport and operation.
///
/// # Examples
///
/// ```
/// use rxe_proto::wire::opcode::PayloadRule;
/// use rxe_proto::wire::{HeaderSet, Opcode, Operation, Transport};
///
/// let opcode = Opcode::parse(0x0a).unwrap();
/// assert_eq!(opcode, Opcode::rc(Operation::WriteOnly));
/// assert_eq!(opcode.transport(), Transport::Rc);
/// assert!(opcode.is_request() && opcode.is_only());
/// // It determines the headers: BTH (12 bytes) and RETH (16 bytes).
/// assert_eq!(opcode.headers(), HeaderSet::RETH);
/// assert_eq!(opcode.header_len(), 28);
/// assert_eq!(opcode.payload_rule(), PayloadRule::ZeroToMtu);
/// // Not every operation exists on every transport.
/// assert_eq!(Opcode::new(Transport::Uc, Operation::ReadRequest), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode {
    transport: Transport,
    operation: Operation,
}

impl Opcode {
    const BTH_LEN: usize = 12;

    /// RC acknowledgement.
    pub const RC_ACKNOWLEDGE: Self = Self::rc(Operation::Acknowledge);
    /// Datagram.
    pub const UD_SEND_ONLY: Self = Self::assume(Transport::Ud, Operation::SendOnly);
    /// Datagram with immediate data.
    pub const UD_SEND_ONLY_IMM: Self = Self::assume(Transport::Ud, Operation::SendOnlyImm);
    /// Congestion notification packet.
    pub const CNP: Self = Self::assume(Transport::Cnp, Operation::Cnp);

    const fn assume(transport: Transport, operation: Operation) -> Self {
        Self {
            transport,
            operation,
        }
    }

    /// The opcode of `operation` over `transport`, if the architecture defines it.
    #[inline]
    pub const fn new(transport: Transport, operation: Operation) -> Option<Self> {
        let bit = match transport {
            Transport::Rc => 1,
            Transport::Uc => 2,
            Transport::Ud => 4,
            Transport::Cnp => 8,
        };
        if operation.row().transports & bit != 0 {
            Some(Self {
                transport,
                operation,
            })
        } else {
            None
        }
    }

    /// The opcode of `operation` over a reliable connection, which has all of them
    /// ([`Operation::Cnp`] gives the CNP).
    #[inline]
    pub const fn rc(operation: Operation) -> Self {
        match operation {
            Operation::Cnp => Self::CNP,
            _ => Self {
                transport: Transport::Rc,
                operation,
            },
        }
    }

    /// The opcode of a byte on the wire; `None` if it is of a transport that RoCE devices do not
    /// implement, or reserved and not of RC.
    #[inline]
    pub const fn parse(byte: u8) -> Option<Self> {
        let Some(transport) = Transport::parse(byte) else {
            return None;
        };
        let Some(operation) = Operation::parse(byte & 0x9f) else {
            return None;
        };
        Self::new(transport, operation)
    }

    /// The byte on the wire; one of several for [`Operation::Reserved`].
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self.transport.bits() | self.operation.bits()
    }

    /// Transport service.
    #[inline]
    pub const fn transport(self) -> Transport {
        self.transport
    }

    /// Operation.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Extension headers that follow the BTH.
    #[inline]
    pub const fn headers(self) -> HeaderSet {
        let headers = self.operation.row().headers;
        match self.transport {
            Transport::Ud => headers.union(HeaderSet::DETH),
            _ => headers,
        }
    }

    /// Bytes of BTH and extension headers together.
    #[inline]
    pub const fn header_len(self) -> usize {
        let len = self.operation.row().header_len;
        match self.transport {
            Transport::Ud => len.saturating_add(HeaderSet::DETH.byte_len()),
            _ => len,
        }
    }

    /// Legal payload lengths.
    #[inline]
    pub const fn payload_rule(self) -> PayloadRule {
        self.operation.row().payload
    }

    /// Position in the message.
    #[inline]
    pub const fn position(self) -> Position {
        self.operation.row().position
    }

    /// Direction.
    #[inline]
    pub const fn direction(self) -> Direction {
        self.operation.row().direction
    }

    /// True if the packet is a request.
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.direction(), Direction::Request)
    }

    /// True if the packet is a response.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self.direction(), Direction::Response)
    }

    /// True for acknowledge packets without READ data: ACK, NAK, ATOMIC acknowledge.
    #[inline]
    pub const fn is_acknowledgement(self) -> bool {
        matches!(
            self.operation(),
            Operation::Acknowledge | Operation::AtomicAck
        )
    }

    /// Whether this is the first of several packets.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self.position(), Position::First)
    }

    /// Whether this is a packet with others on both sides.
    #[inline]
    pub const fn is_middle(self) -> bool {
        matches!(self.position(), Position::Middle)
    }

    /// Whether this is the last of several packets.
    #[inline]
    pub const fn is_last(self) -> bool {
        matches!(self.position(), Position::Last)
    }

    /// Whether the packet is the whole message.
    #[inline]
    pub const fn is_only(self) -> bool {
        matches!(self.position(), Position::Only)
    }

    /// Whether a message begins with this packet.
    #[inline]
    pub const fn starts_message(self) -> bool {
        matches!(self.position(), Position::First | Position::Only)
    }

    /// Whether a message ends with this packet.
    #[inline]
    pub const fn ends_message(self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }

    /// Whether the packet belongs to a SEND of any kind.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self.operation,
            Operation::SendFirst
                | Operation::SendMiddle
                | Operation::SendLast
                | Operation::SendLastImm
                | Operation::SendLastInv
                | Operation::SendOnly
                | Operation::SendOnlyImm
                | Operation::SendOnlyInv
        )
    }

    /// Whether the packet belongs to an RDMA WRITE of any kind (not the atomic write).
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self.operation,
            Operation::WriteFirst
                | Operation::WriteMiddle
                | Operation::WriteLast
                | Operation::WriteLastImm
                | Operation::WriteOnly
                | Operation::WriteOnlyImm
        )
    }

    /// Whether the packet belongs to a READ response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self.operation,
            Operation::ReadRespFirst
                | Operation::ReadRespMiddle
                | Operation::ReadRespLast
                | Operation::ReadRespOnly
        )
    }

    /// True if this packet consumes a receive work request: the packet that starts a SEND does, and
    /// the one that ends a WRITE with immediate data (IBTA 10.7.2.2).
    #[inline]
    pub const fn consumes_receive(self) -> bool {
        (self.is_send() && self.starts_message())
            || matches!(
                self.operation,
                Operation::WriteLastImm | Operation::WriteOnlyImm
            )
    }
}

#[cfg(test)]
#[path = "../tests/opcode.rs"]
mod tests;
