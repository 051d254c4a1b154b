// SPDX-License-Identifier: GPL-2.0
//! Drop reasons of received packets, each with its own counter.

counters! {
    /// Why a received packet was dropped silently.
    pub enum DropReason {
        /// Fewer bytes than the headers and the ICRC need.
        TooShort = "rx_too_short",
        /// Transport header version other than 0.
        BadVersion = "rx_bad_version",
        /// Payload and pad are not a multiple of four, or more pad than payload.
        BadLength = "rx_bad_length",
        /// Opcode of an unsupported transport, or one that is reserved and not of RC.
        UnknownOpcode = "rx_unknown_opcode",
        /// Opcode of another transport than that of the QP.
        WrongTransport = "rx_wrong_transport",
        /// No QP with that number.
        NoQp = "rx_no_qp",
        /// The QP is in RESET or INIT: the peer sends before this side is ready to receive.
        NotReady = "rx_not_ready",
        /// The QP is in the error state.
        BadState = "rx_bad_state",
        /// P_Key does not match.
        BadPKey = "rx_bad_pkey",
        /// Q_Key does not match.
        BadQKey = "rx_bad_qkey",
        /// Source or destination address is not that of the connection.
        BadPeer = "rx_bad_peer",
        /// The ICRC is wrong.
        BadIcrc = "rx_bad_icrc",
        /// No QP is attached to the multicast group.
        NoGroup = "rx_no_mcast_group",
        /// The destination address is not a GID of the device.
        NoGid = "rx_no_gid",
        /// It arrived without the protection that an IPsec policy requires (RFC 4301, 5.2).
        Policy = "rx_policy_refused",
    }
}

/// A violation counter as verbs report it (`bad_pkey_cntr` and `qkey_viol_cntr` of
/// `struct ib_port_attr`): it saturates instead of wrapping.
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
