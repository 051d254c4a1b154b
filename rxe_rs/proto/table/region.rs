// SPDX-License-Identifier: GPL-2.0
//! Descriptor of a memory region or window; [`crate::check::rkey`] checks accesses.

/// Access flags; the bits are those of `enum ib_access_flags`.
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
    /// Addresses start at 0 instead of the virtual address.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Pages are faulted in on access.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// The memory consists of huge pages.
    pub const HUGETLB: Self = Self(1 << 7);
    /// The peer may flush to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// The peer may flush to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);

    /// All supported flags.
    pub const KNOWN: Self = Self(0x3ff);
    /// All remote rights.
    pub const REMOTE: Self = Self(0x30e);

    /// Optional flags, which a driver may ignore (`IB_ACCESS_OPTIONAL`).
    const OPTIONAL: u32 = 0x3ff0_0000;

    /// The flags of `bits` without optional ones; `None` if any other bit is unknown.
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

    /// True if all of `other` is in the set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any of `other` is in the set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Union of both sets.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if a region may be registered with these rights: remote write and atomic need local
    /// write (IBTA 10.6.3).
    #[inline]
    pub const fn is_consistent(self) -> bool {
        self.contains(Self::LOCAL_WRITE)
            || !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

/// State of a region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The key is valid and grants access.
    Valid,
    /// Allocated, nothing registered or bound.
    Free,
    /// Deregistered or unusable: grants no access any more.
    Invalid,
}

/// One memory region or window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrDesc {
    /// Protection domain.
    pub pd: u64,
    /// The key, including its variant byte.
    pub key: u32,
    /// Address of the first byte in work requests and packets.
    pub iova: u64,
    /// Length in bytes; 0 for a region without memory.
    pub length: u64,
    /// Access flags.
    pub access: Access,
    /// State.
    pub state: State,
}

impl MrDesc {
    /// A descriptor that grants no access.
    pub const EMPTY: Self = Self {
        pd: 0,
        key: 0,
        iova: 0,
        length: 0,
        access: Access::NONE,
        state: State::Free,
    };
}
