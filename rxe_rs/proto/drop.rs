// SPDX-License-Identifier: GPL-2.0
//! Why a packet was not delivered. Every reason is counted by itself.

macro_rules! drop_reasons {
    ($( $(#[$meta:meta])* $name:ident = $text:literal, )*) => {
        /// Why a received packet was dropped without an answer.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $( $(#[$meta])* $name, )*
        }

        impl DropReason {
            /// Every reason, in index order.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];

            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Name of the counter.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$name => $text, )*
                }
            }

            /// Position in an array of [`DropReason::COUNT`] counters.
            #[inline]
            #[allow(clippy::as_conversions, reason = "the discriminants of a fieldless enum")]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

drop_reasons! {
    /// Fewer bytes than the headers and the ICRC need.
    TooShort = "rx_too_short",
    /// Transport header version other than 0.
    BadVersion = "rx_bad_version",
    /// Payload and pad are not a multiple of four, or more pad than payload.
    BadLength = "rx_bad_length",
    /// Reserved opcode, or one of a transport that does not exist here.
    UnknownOpcode = "rx_unknown_opcode",
    /// Opcode of another transport than the queue pair's.
    WrongTransport = "rx_wrong_transport",
    /// No queue pair of that number.
    NoQp = "rx_no_qp",
    /// The queue pair's state does not accept packets.
    BadState = "rx_bad_state",
    /// P_Key does not match.
    BadPKey = "rx_bad_pkey",
    /// Q_Key does not match.
    BadQKey = "rx_bad_qkey",
    /// Not from the address that the queue pair is connected to.
    BadPeer = "rx_bad_peer",
    /// The checksum is wrong.
    BadIcrc = "rx_bad_icrc",
    /// Nobody is attached to the multicast group.
    NoGroup = "rx_no_mcast_group",
    /// The destination address belongs to no GID of the device.
    NoGid = "rx_no_gid",
    /// It came without the protection that an IPsec policy requires (RFC 4301, 5.2).
    Policy = "rx_policy_refused",
}

/// A count of violations as verbs report it (`bad_pkey_cntr` and `qkey_viol_cntr` of
/// `struct ib_port_attr`): it stays at its highest value, it does not start again.
pub fn violations(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::violations;

    #[test]
    fn violations_saturate() {
        assert_eq!(violations(0), 0);
        assert_eq!(violations(0xffff_fffe), 0xffff_fffe);
        assert_eq!(violations(0xffff_ffff), 0xffff_ffff);
        assert_eq!(violations(0x1_0000_0000), 0xffff_ffff);
        assert_eq!(violations(u64::MAX), 0xffff_ffff);
    }
}
