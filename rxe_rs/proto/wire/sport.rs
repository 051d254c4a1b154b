// SPDX-License-Identifier: GPL-2.0
//! UDP source port of a flow, by which switches (ECMP) and receive-side scaling spread flows.
//!
//! The value is left to the sender; this is the mapping that ib_core documents for all RoCE devices
//! (`include/rdma/ib_verbs.h`), so that captures of different devices look alike.

use crate::ids::Qpn;

/// The source port, 0xC000..=0xFFFF, for a flow label (20 bits), or for a pair of QPs if the flow
/// label is 0. It spreads flows over paths (IBTA A17.9.4), and is the same for packets that must
/// stay in order (IBTA A17.3.2.1). Both directions of a connection without a flow label get the
/// same port.
pub fn source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => {
            let product = u64::from(local.get()).wrapping_mul(u64::from(remote.get()));
            let folded = product ^ product.wrapping_shr(20) ^ product.wrapping_shr(40);
            u32::try_from(folded & 0xf_ffff).unwrap_or(0)
        }
        label => label,
    };
    let port = ((label & 0x3fff) ^ (label.wrapping_shr(14) & 0x3f)) | 0xc000;
    u16::try_from(port & 0xffff).unwrap_or(0xc000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_in_the_dynamic_range_and_is_symmetric() {
        for i in 0..1000u32 {
            let (a, b) = (
                Qpn::new(i.wrapping_mul(7919)),
                Qpn::new(i.wrapping_mul(104_729)),
            );
            assert!(source_port(0, a, b) >= 0xc000);
            assert_eq!(source_port(0, a, b), source_port(0, b, a));
            assert!(source_port(i, a, b) >= 0xc000);
        }
        assert_eq!(source_port(0x4001, Qpn::new(1), Qpn::new(2)), 0xc000);
        assert_eq!(source_port(0x12, Qpn::new(1), Qpn::new(2)), 0xc012);
    }
}
