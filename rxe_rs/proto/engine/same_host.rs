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
    /// The path MTU of the peer, if the packet received last is merged; else 0.
    merged: u32,
}

impl SameHost {
    /// A packet of the peer was received.
    #[inline]
    pub(super) fn on_packet(&mut self, tag: HostTag, merged: u32) {
        self.received = tag;
        self.merged = if tag.has_icrc() { 0 } else { merged };
    }

    /// The peer has been silent for long enough that something is sent again, or the path has
    /// changed.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.received = HostTag::None;
    }

    /// Returns the path MTU of the peer, in bytes, if the packet received last is merged
    /// (`merge.rs`).
    #[inline]
    pub(super) fn merged(&self) -> Option<u32> {
        Some(self.merged).filter(|mtu| *mtu != 0)
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
        path.on_packet(HostTag::Sent, 0);
        assert!(path.tag().has_icrc(), "the peer may not receive tags");
        path.on_packet(HostTag::Confirmed, 0);
        assert!(!path.tag().has_icrc());
        path.on_packet(HostTag::None, 0);
        assert_eq!(path.tag(), HostTag::Sent);
        path.on_packet(HostTag::NoIcrc, 0);
        assert!(!path.tag().has_icrc());
        path.forget();
        assert_eq!(path.tag(), HostTag::Sent);
    }

    #[test]
    fn merged_packets_have_no_icrc() {
        let mut path = SameHost::default();
        for tag in [HostTag::None, HostTag::Sent, HostTag::Confirmed] {
            path.on_packet(tag, 1024);
            assert_eq!(path.merged(), None, "{tag:?}");
        }
        path.on_packet(HostTag::NoIcrc, 1024);
        assert_eq!(path.merged(), Some(1024));
        path.on_packet(HostTag::NoIcrc, 0);
        assert_eq!(path.merged(), None);
    }
}
