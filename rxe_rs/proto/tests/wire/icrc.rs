// SPDX-License-Identifier: GPL-2.0
//! The ICRC against known packets, and the fields that it must not depend on.
use super::hex;
use crate::wire::icrc::*;
use crate::wire::Bth;
use proptest::prelude::*;

const IP4: &str = "4500003412344000401100000a0900010a090002";
const IP6: &str =
    "6000000000201140 fd000000000000000000000000000001 fd000000000000000000000000000002";
const UDP: &str = "c12312b700200000";
const BTH: &str = "0400ffff0000001180123456";
const PAYLOAD: &str = "526f434576322121";

fn sum(net: &[u8], bth: &[u8], frags: &[&[u8]]) -> [u8; 4] {
    let bth: &[u8; Bth::LEN] = bth.try_into().unwrap();
    icrc(&SoftCrc, net, bth, frags.iter().copied())
}

fn v4() -> Vec<u8> {
    [hex(IP4), hex(UDP)].concat()
}

fn v6() -> Vec<u8> {
    [hex(IP6), hex(UDP)].concat()
}

#[test]
fn check_value_of_the_polynomial() {
    assert_eq!(!SoftCrc.crc32_le(!0, b"123456789"), 0xcbf4_3926);
    assert_eq!(SoftCrc.crc32_le(!0, &[0xff; 8]), 0xdebb_20e3);
}

#[test]
fn known_packets() {
    let payload = hex(PAYLOAD);
    assert_eq!(sum(&v4(), &hex(BTH), &[&payload]), [0xe6, 0x9e, 0xab, 0x9e]);
    assert_eq!(sum(&v6(), &hex(BTH), &[&payload]), [0x9f, 0xa7, 0x72, 0x20]);
    // However it is cut.
    assert_eq!(
        sum(&v4(), &hex(BTH), &[&payload[..3], &[], &payload[3..]]),
        hex("e69eab9e")[..]
    );
    let whole = [hex(BTH), payload].concat();
    assert_eq!(finish(prefix(&SoftCrc, &v4(), &whole)), hex("e69eab9e")[..]);
}

#[test]
fn prefix_of_any_length() {
    let body: Vec<u8> = hex(BTH)
        .into_iter()
        .chain((0..500).map(|at| at as u8))
        .collect();
    let expected = sum(&v6(), &body[..12], &[&body[12..]]);
    for cut in [12, 13, 63, 64, 65, 100, body.len()] {
        let state = prefix(&SoftCrc, &v6(), &body[..cut]);
        assert_eq!(finish(SoftCrc.crc32_le(state, &body[cut..])), expected);
    }
}

/// For each bit of the headers: routers may change exactly the masked ones.
#[test]
fn only_the_variant_fields_are_masked() {
    let masked4 = |at: usize, _bit: u8| matches!(at, 1 | 8 | 10 | 11 | 26 | 27 | 32);
    let masked6 =
        |at: usize, bit: u8| matches!(at, 1..=3 | 7 | 46 | 47 | 52) || (at == 0 && bit < 4);
    check_mask(&v4(), masked4);
    check_mask(&v6(), masked6);
}

fn check_mask(net: &[u8], masked: impl Fn(usize, u8) -> bool) {
    let bytes = [net.to_vec(), hex(BTH)].concat();
    let crc_of = |bytes: &[u8]| sum(&bytes[..net.len()], &bytes[net.len()..], &[b"payload!"]);
    let expected = crc_of(&bytes);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            if at == 0 && (bit >= 4 || net[0] == 0x45) {
                continue; // Another IP version or a header with options is not a RoCE packet.
            }
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            assert_eq!(
                crc_of(&other) == expected,
                masked(at, bit),
                "byte {at} bit {bit}"
            );
        }
    }
}

proptest! {
    #[test]
    fn total_for_any_network_header(
        net in proptest::collection::vec(any::<u8>(), 0..70),
        body in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let _ = prefix(&SoftCrc, &net, &body);
    }
}
