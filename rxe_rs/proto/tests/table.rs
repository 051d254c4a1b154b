// SPDX-License-Identifier: GPL-2.0
//! Tests of the tables.
use super::keygen;
use super::pkeys::PKeyTable;
use super::region::Access;
use crate::ids::{PKey, Qpn, RKey};

#[test]
fn pkey_table() {
    let mut table = PKeyTable::new();
    assert_eq!(table.get(0), Some(PKey::DEFAULT));
    assert_eq!(table.get(1), Some(PKey::INVALID));
    assert_eq!(table.get(127), Some(PKey::INVALID));
    assert_eq!(table.get(128), None);
    assert_eq!(table.set(128, PKey(1)), None);
    assert_eq!(table.set(5, PKey(0x0042)), Some(PKey::INVALID));
    assert_eq!(table.set(6, PKey(0x8042)), Some(PKey::INVALID));
    assert_eq!(table.find(PKey(0x8042)), Some(6));
    assert_eq!(table.find(PKey(0x0042)), Some(5));
    assert_eq!(table.find(PKey(0x0043)), None);
    // A limited member finds the full one only.
    assert_eq!(table.find_matching(PKey(0x0042)), Some(6));
    assert_eq!(table.find_matching(PKey(0x8042)), Some(5));
    assert_eq!(table.find_matching(PKey(0x0000)), None);
    assert_eq!(table.find_matching(PKey(0x8000)), None);
    assert_eq!(table.set(0, PKey::INVALID), Some(PKey::DEFAULT));
    assert_eq!(table.find(PKey::DEFAULT), None);
}

#[test]
fn keys() {
    assert_eq!(keygen::memory_key(0x0000_00ff), None);
    assert_eq!(keygen::memory_key(0x0000_01ff), Some(RKey(0x1ff)));
    assert_eq!(
        keygen::renew(RKey(0x1234_5678), RKey(0x1234_56ff)),
        Some(RKey(0x1234_56ff))
    );
    assert_eq!(keygen::renew(RKey(0x1234_5678), RKey(0x1234_5778)), None);
    assert_eq!(keygen::qpn(0xff00_0000), None);
    assert_eq!(keygen::qpn(1), None);
    assert_eq!(keygen::qpn(u32::MAX), None);
    assert_eq!(keygen::qpn(0x0100_0002), Some(Qpn::new(2)));
}

#[test]
fn access_bits() {
    assert_eq!(Access::from_bits(0x3ff).map(Access::bits), Some(0x3ff));
    assert_eq!(Access::from_bits(0x400), None);
    // Relaxed ordering and its like may be ignored.
    assert_eq!(Access::from_bits((1 << 20) | 1).map(Access::bits), Some(1));
    assert_eq!(Access::from_bits(1 << 30), None);
    for bits in 0..0x10u32 {
        let access = Access::from_bits(bits).unwrap();
        assert_eq!(access.is_consistent(), bits & 1 != 0 || bits & 0b1010 == 0);
    }
}
