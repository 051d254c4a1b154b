// SPDX-License-Identifier: GPL-2.0
//! Whether packets between two queue pairs stay in the memory of one kernel, so that they need no
//! ICRC.
//!
//! The network below gives packets a tag that is not on the wire: it arrives only if the packet
//! has not left the memory of the kernel, and nothing has changed it. Each side tags its packets
//! with what it knows, and omits the ICRC only after the peer has confirmed that it receives the
//! tags. A path that changes later loses such packets; the silence that follows ends the omission,
//! and what is sent again has an ICRC.

/// What a tag says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostTag {
    /// The packet has no tag, or may have been outside.
    #[default]
    None,
    /// The packet has been in memory all the way. It has an ICRC.
    Sent,
    /// The same, and its sender has received a tag.
    Confirmed,
    /// The same, and the packet has no ICRC: the four bytes are 0.
    NoIcrc,
}

impl HostTag {
    /// Returns the tag as a number, 0 to 3.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Sent => 1,
            Self::Confirmed => 2,
            Self::NoIcrc => 3,
        }
    }

    /// The inverse of [`bits`](Self::bits); of a larger number, only the lower two bits count.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::Sent,
            2 => Self::Confirmed,
            _ => Self::NoIcrc,
        }
    }

    /// Returns true if the packet has an ICRC.
    #[inline]
    pub const fn has_icrc(self) -> bool {
        !matches!(self, Self::NoIcrc)
    }
}

/// What a queue pair knows about the path to its peer: the last tag it received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SameHost {
    received: HostTag,
}

impl SameHost {
    /// A packet of the peer was received.
    #[inline]
    pub(super) fn on_packet(&mut self, tag: HostTag) {
        self.received = tag;
    }

    /// The peer has been silent for long enough that something is sent again, or the path has
    /// changed.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.received = HostTag::None;
    }

    /// Returns true if the packet received last may be merged (`merge.rs`): only its sender in this
    /// kernel can have given it its tag, and leaves out the ICRC of merged packets.
    #[inline]
    pub(super) fn may_be_merged(&self) -> bool {
        !self.received.has_icrc()
    }

    /// Returns the tag of the next packets.
    #[inline]
    pub(super) fn tag(&self) -> HostTag {
        match self.received {
            HostTag::None => HostTag::Sent,
            HostTag::Sent => HostTag::Confirmed,
            HostTag::Confirmed | HostTag::NoIcrc => HostTag::NoIcrc,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        for bits in 0..4 {
            assert_eq!(HostTag::from_bits(bits).bits(), bits);
        }
        assert_eq!(HostTag::from_bits(4), HostTag::None);
    }

    #[test]
    fn icrc_is_omitted_after_a_confirmation_only() {
        let mut path = SameHost::default();
        assert!(path.tag().has_icrc());
        path.on_packet(HostTag::Sent);
        assert!(path.tag().has_icrc(), "the peer may not receive tags");
        path.on_packet(HostTag::Confirmed);
        assert!(!path.tag().has_icrc());
        path.on_packet(HostTag::None);
        assert_eq!(path.tag(), HostTag::Sent);
        path.on_packet(HostTag::NoIcrc);
        assert!(!path.tag().has_icrc());
        path.forget();
        assert_eq!(path.tag(), HostTag::Sent);
    }
}
