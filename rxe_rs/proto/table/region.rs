// SPDX-License-Identifier: GPL-2.0
//! Description of a memory region or window; its check is in [`crate::check::rkey`].

/// Set of access rights and modes; the bits are those of `enum ib_access_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(u32);

impl Access {
    /// Local read, which every region grants.
    pub const NONE: Self = Self(0);
    /// The device may write on behalf of the owner.
    pub const LOCAL_WRITE: Self = Self(1 << 0);
    /// The peer may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// The peer may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// The peer may use atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses count from 0 instead of the virtual address.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Pages are faulted in on access.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// Huge pages were promised.
    pub const HUGETLB: Self = Self(1 << 7);
    /// The peer may flush to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// The peer may flush to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);

    /// Everything this driver knows.
    pub const KNOWN: Self = Self(0x3ff);
    /// Every right of the peer.
    pub const REMOTE: Self = Self(0x30e);

    /// Bits that may be ignored by a driver that does not know them (`IB_ACCESS_OPTIONAL`).
    const OPTIONAL: u32 = 0x3ff0_0000;

    /// The set of `bits`; optional bits are dropped, `None` if any other bit is unknown.
    #[inline]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        let required = bits & !Self::OPTIONAL;
        if required & !Self::KNOWN.0 != 0 {
            None
        } else {
            Some(Self(required))
        }
    }

    /// The bits of the set.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` is in the set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in the set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets together.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a region may be registered with these rights: what the peer may change, the owner
    /// must be allowed to change as well (IBTA vol. 1, 10.6.3.4).
    #[inline]
    pub const fn is_consistent(self) -> bool {
        self.contains(Self::LOCAL_WRITE)
            || !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

/// Life of a region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The key is in use and grants access.
    Valid,
    /// Allocated, nothing registered or bound.
    Free,
    /// Deregistered or damaged: nothing will ever be granted.
    Invalid,
}

/// One memory region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrDesc {
    /// Protection domain.
    pub pd: u32,
    /// The whole key, variant included.
    pub key: u32,
    /// Address of the first byte as work requests and packets name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Rights and modes.
    pub access: Access,
    /// Whether it is in use.
    pub state: State,
}

impl MrDesc {
    /// A row that grants nothing.
    pub const EMPTY: Self = Self {
        pd: 0,
        key: 0,
        iova: 0,
        length: 0,
        access: Access::NONE,
        state: State::Free,
    };
}
