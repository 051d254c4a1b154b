// SPDX-License-Identifier: GPL-2.0
//! Number types of the InfiniBand architecture, each with its arithmetic.
//!
//! Numbers of different meaning must not be mixed: each is a newtype, construction masks it to its
//! width on the wire, and the only arithmetic is modular and cannot overflow.

const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits, modulo 2^24 (IBTA 9.7.1).
///
/// There is deliberately no `Ord`: serial numbers have no total order, see [`Psn::delta`].
///
/// # Examples
///
/// ```
/// use rxe_proto::ids::Psn;
///
/// let last = Psn::new(0xff_ffff);
/// assert_eq!(last.next(), Psn::new(0));
/// assert!(last.is_before(Psn::new(2)));
/// assert_eq!(Psn::new(2).delta(last), 3);
/// assert_eq!(last.delta(Psn::new(2)), -3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number `value` modulo 2^24.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The value, `0..2^24`.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that follows this one.
    #[inline]
    pub const fn next(self) -> Self {
        self.wrapping_add(1)
    }

    /// The number before this one.
    #[inline]
    pub const fn prev(self) -> Self {
        self.wrapping_add(MASK_24)
    }

    /// The number plus `count`, modulo 2^24.
    #[inline]
    pub const fn wrapping_add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// How far `self` is ahead of `other`, in `-2^23 .. 2^23`: positive if `self` comes later.
    #[inline]
    pub const fn delta(self, other: Self) -> i32 {
        let distance = self.0.wrapping_sub(other.0) << 8;
        i32::from_ne_bytes(distance.to_ne_bytes()) >> 8
    }

    /// True if `self` is before `other`, that is [`Psn::delta`] is negative.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.delta(other) < 0
    }

    /// The three bytes of the number as they stand on the wire.
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// The number from its three bytes on the wire.
    #[inline]
    pub const fn from_be_bytes([a, b, c]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, a, b, c]))
    }
}

/// Message sequence number: 24 bits, counts completed request messages at the responder
/// (IBTA 9.7.7.1).
///
/// # Examples
///
/// ```
/// use rxe_proto::ids::Msn;
///
/// // As far ahead of 7 as 1 is of 2^24 - 2.
/// assert_eq!(Msn::new(7).ahead_by(Msn::new(1), Msn::new(0xff_fffe)), Msn::new(10));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Msn(u32);

impl Msn {
    /// The number `value` modulo 2^24.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The value, `0..2^24`.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that follows this one.
    #[inline]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// How far `self` is ahead of `other`, in `-2^23 .. 2^23`.
    #[inline]
    pub const fn delta(self, other: Self) -> i32 {
        Psn(self.0).delta(Psn(other.0))
    }

    /// The number as far ahead of `self` as `to` is of `from`.
    #[inline]
    pub const fn ahead_by(self, to: Self, from: Self) -> Self {
        Self::new(self.0.wrapping_add(to.0).wrapping_sub(from.0))
    }
}

/// Queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management interface; never used on RoCE.
    pub const SMI: Self = Self(0);
    /// General services interface: the connection manager's QP.
    pub const GSI: Self = Self(1);
    /// Destination of every multicast packet.
    pub const MULTICAST: Self = Self(MASK_24);

    /// The number `value` modulo 2^24.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The value, `0..2^24`.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The three bytes of the number as they stand on the wire.
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 3] {
        Psn(self.0).to_be_bytes()
    }

    /// The number from its three bytes on the wire.
    #[inline]
    pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
        Self(Psn::from_be_bytes(bytes).0)
    }
}

/// Partition key: 15 bits of partition and, on top, the full-member bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PKey(pub u16);

impl PKey {
    /// Full member of the default partition.
    pub const DEFAULT: Self = Self(0xffff);
    /// An empty table entry; matches nothing.
    pub const INVALID: Self = Self(0);

    /// The partition: the low 15 bits.
    #[inline]
    pub const fn key(self) -> u16 {
        self.0 & 0x7fff
    }

    /// True for a full member; two limited members may not communicate.
    #[inline]
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

/// Queue key of the datagram services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of the general services interface.
    pub const GSI: Self = Self(0x8001_0000);

    /// True if the most significant bit is set (controlled Q_Key): only privileged users may set
    /// it, and in a work request it selects the Q_Key of the QP.
    #[inline]
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

macro_rules! memory_key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// The key with this `index` (24 bits are used) and key byte `variant`.
            #[inline]
            pub const fn from_parts(index: u32, variant: u8) -> Self {
                let [_, a, b, c] = index.to_be_bytes();
                Self(u32::from_be_bytes([a, b, c, variant]))
            }

            /// The index: the upper 24 bits.
            #[inline]
            pub const fn index(self) -> u32 {
                self.0 >> 8
            }

            /// The variant (key byte), which the consumer may change: the low 8 bits.
            #[inline]
            pub const fn variant(self) -> u8 {
                let [.., variant] = self.0.to_be_bytes();
                variant
            }
        }
    };
}

memory_key!(
    /// Remote key: names a memory region or window in a packet.
    RKey
);
memory_key!(
    /// Local key: names a memory region in a scatter/gather entry.
    LKey
);

/// Global identifier: on RoCEv2 an IPv6 address, or an IPv4 address mapped into one
/// (IBTA A17.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero identifier: an empty table entry.
    pub const ZERO: Self = Self([0; 16]);

    /// The identifier `::ffff:a.b.c.d`.
    #[inline]
    pub const fn from_v4([a, b, c, d]: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address inside a mapped identifier.
    #[inline]
    pub const fn to_v4(self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Whether the identifier selects IPv4 on the wire.
    #[inline]
    pub const fn is_v4_mapped(self) -> bool {
        self.to_v4().is_some()
    }

    /// Whether the identifier is a multicast group of either family.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        match self.to_v4() {
            Some([a, ..]) => a & 0xf0 == 0xe0,
            None => {
                let [first, ..] = self.0;
                first == 0xff
            }
        }
    }

    /// Whether the identifier is an IPv6 link-local address, `fe80::/10`.
    #[inline]
    pub const fn is_link_local(self) -> bool {
        let [a, b, ..] = self.0;
        a == 0xfe && b & 0xc0 == 0x80
    }

    /// Whether this is the empty entry.
    #[inline]
    pub const fn is_zero(self) -> bool {
        u128::from_ne_bytes(self.0) == 0
    }
}

/// Path MTU: payload bytes of a full packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// Bytes of the MTU of a netdev that are reserved for the headers of IPv6 and UDP, the longest
    /// RoCE headers and the ICRC. `rdma_rxe` reserves 80, which leaves out the immediate data of a
    /// WRITE; the path MTU is the same but for the four MTUs below 340, 596, 1108, 2132 and
    /// 4180 bytes.
    pub const HEADER_RESERVE: u32 = 40 + 8 + Self::LONGEST_HEADERS;

    /// Additional bytes reserved for each transformation of an IPsec policy: the maximum that
    /// ESP in transport mode takes (RFC 4303): header 8, initialization vector 16, padding and
    /// trailer 17, integrity check value 32; in UDP 8 more (RFC 3948).
    pub const IPSEC_RESERVE: u32 = 84;

    /// Additional bytes reserved for the outer header of a tunnel.
    pub const TUNNEL_RESERVE: u32 = 40;

    /// Maximum bytes of a packet besides IP header, UDP header and payload: BTH, RETH, ImmDt and
    /// ICRC.
    const LONGEST_HEADERS: u32 = 12 + 16 + 4 + 4;

    const ALL_DESCENDING: [Self; 5] = [
        Self::Mtu4096,
        Self::Mtu2048,
        Self::Mtu1024,
        Self::Mtu512,
        Self::Mtu256,
    ];

    /// Payload bytes of a full packet, 256 to 4096.
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }

    /// Binary logarithm of [`Mtu::bytes`], 8 to 12.
    #[inline]
    pub const fn shift(self) -> u32 {
        self.bytes().trailing_zeros()
    }

    /// From a number of bytes; `None` if it is none of the five sizes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        Some(match bytes {
            256 => Self::Mtu256,
            512 => Self::Mtu512,
            1024 => Self::Mtu1024,
            2048 => Self::Mtu2048,
            4096 => Self::Mtu4096,
            _ => return None,
        })
    }

    /// From `enum ib_mtu`: 1 is 256 bytes, 5 is 4096.
    pub const fn from_ib_enum(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }

    /// As `enum ib_mtu`.
    pub const fn to_ib_enum(self) -> u8 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// The largest path MTU whose packets, headers included, fit a netdev of MTU `netdev_mtu`
    /// bytes; `None` if not even the smallest does.
    pub fn largest_fitting(netdev_mtu: u32) -> Option<Self> {
        let room = netdev_mtu.checked_sub(Self::HEADER_RESERVE)?;
        Self::ALL_DESCENDING
            .into_iter()
            .find(|mtu| mtu.bytes() <= room)
    }

    /// True if every packet of this path MTU is an IP packet of at most `longest` bytes, with IP
    /// and UDP headers of `headers` bytes.
    pub const fn fits(self, longest: u32, headers: u32) -> bool {
        let around = headers.saturating_add(Self::LONGEST_HEADERS);
        self.bytes().saturating_add(around) <= longest
    }
}

#[cfg(test)]
#[path = "tests/ids.rs"]
mod tests;
