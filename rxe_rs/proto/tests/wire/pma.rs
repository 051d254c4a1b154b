// SPDX-License-Identifier: GPL-2.0
//! PMA responses, byte by byte according to IBTA 16.1.
use crate::wire::pma::{answer, PortCounters, MAD_LEN};
use proptest::prelude::*;

const COUNTERS: PortCounters = PortCounters {
    xmit_bytes: 0x0123_4567_89ab_cde0,
    rcv_bytes: 4004,
    xmit_packets: 0x1_0000_0001,
    rcv_packets: 7,
    link_downed: 300,
    rcv_errors: 5,
    xmit_discards: 0x1_0000,
    rcv_constraint_errors: 9,
};

fn request(method: u8, attribute: u16, port: u8) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 4, 1, method]);
    mad[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[65] = port;
    mad
}

fn query(mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let mut reply = [0xaa; MAD_LEN];
    answer(mad, 1, &COUNTERS, &mut reply).map(|()| reply)
}

fn status(reply: &[u8; MAD_LEN]) -> u16 {
    u16::from_be_bytes([reply[4], reply[5]])
}

#[test]
fn response_has_the_header_of_the_request() {
    let reply = query(&request(1, 0x12, 1)).unwrap();
    assert_eq!(reply[..4], [1, 4, 1, 0x81]);
    assert_eq!(reply[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(reply[16..18], [0, 0x12]);
    assert_eq!(status(&reply), 0);
}

#[test]
fn class_port_info() {
    let reply = query(&request(1, 1, 0)).unwrap();
    assert_eq!(reply[64..72], [1, 1, 2, 0, 0, 0, 0, 18]);
    assert!(reply[72..].iter().all(|b| *b == 0));
}

#[test]
fn counters_saturate() {
    let reply = query(&request(1, 0x12, 1)).unwrap();
    let data = &reply[64..];
    assert_eq!(data[1], 1);
    assert_eq!(data[7], 0xff, "link downed");
    assert_eq!(data[8..10], [0, 5], "receive errors");
    assert_eq!(data[14..16], [0xff, 0xff], "discards");
    assert_eq!(data[17], 9, "constraint errors");
    assert_eq!(data[24..28], [0xff; 4], "words sent");
    assert_eq!(data[28..32], 1001u32.to_be_bytes(), "words received");
    assert_eq!(data[32..36], [0xff; 4], "packets sent");
    assert_eq!(data[36..40], 7u32.to_be_bytes(), "packets received");
}

#[test]
fn wide_counters() {
    let reply = query(&request(1, 0x1d, 1)).unwrap();
    let at = |n: usize| u64::from_be_bytes(reply[64 + n..72 + n].try_into().unwrap());
    assert_eq!(at(8), COUNTERS.xmit_bytes / 4);
    assert_eq!(at(16), 1001);
    assert_eq!((at(24), at(32)), (0x1_0000_0001, 7));
    assert_eq!((at(40), at(48)), (0x1_0000_0001, 7));
    assert_eq!((at(56), at(64)), (0, 0));
}

#[test]
fn refused_requests() {
    assert_eq!(status(&query(&request(2, 0x12, 1)).unwrap()), 0x0c, "Set");
    assert_eq!(status(&query(&request(1, 0x10, 1)).unwrap()), 0x0c);
    assert_eq!(status(&query(&request(1, 0x12, 2)).unwrap()), 0x1c, "port");
    let mut old = request(1, 0x12, 1);
    old[2] = 2;
    assert_eq!(status(&query(&old).unwrap()), 4, "class version");
}

#[test]
fn mads_of_other_agents() {
    assert!(query(&request(0x81, 0x12, 1)).is_none(), "a response");
    let mut other = request(1, 0x12, 1);
    other[1] = 7;
    assert!(query(&other).is_none(), "connection management");
}

proptest! {
    #[test]
    fn any_request(bytes in proptest::collection::vec(any::<u8>(), MAD_LEN), ours: bool) {
        let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
        if ours {
            mad[1] = 4;
            mad[2] = 1;
            mad[3] = 1;
        }
        if let Some(reply) = query(&mad) {
            prop_assert_eq!(reply[3], 0x81);
            prop_assert_eq!(&reply[8..16], &mad[8..16]);
        }
    }
}
