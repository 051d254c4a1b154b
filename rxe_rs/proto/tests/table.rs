// SPDX-License-Identifier: GPL-2.0
//! Tests of the tables.
use super::pkeys;
use super::region::Access;
use crate::check::pkey;
use crate::ids::PKey;
use proptest::prelude::*;

#[test]
fn pkey_table() {
    let start: Vec<PKey> = (0..pkeys::LEN).map(pkeys::initial).collect();
    assert_eq!((start.len(), start[0]), (128, PKey::DEFAULT));
    assert!(start[1..].iter().all(|key| *key == PKey::INVALID));
    let mut table = start;
    table[5] = PKey(0x0042);
    table[6] = PKey(0x8042);
    let entries = || (0..).zip(table.iter().copied());
    let set = |index, key| pkeys::check_set(entries(), index, PKey(key));
    assert_eq!(set(128, 1), Err(pkeys::PKeyTableError::NoEntry));
    assert_eq!(set(1, 0x8000), Err(pkeys::PKeyTableError::NoPartition));
    assert_eq!(set(7, 0x8042), Err(pkeys::PKeyTableError::Duplicate));
    // The same again, the other membership, emptying an empty one.
    assert_eq!(set(6, 0x8042), Ok(()));
    assert_eq!(set(5, 0x0043), Ok(()));
    assert_eq!(set(9, PKey::INVALID.0), Ok(()));
    assert_eq!(set(127, 0x7fff), Ok(()));
    let find = |key| pkey::find_matching(entries(), PKey(key));
    // A limited member finds the full one only.
    assert_eq!(find(0x0042), Some(6));
    assert_eq!(find(0x8042), Some(5));
    assert_eq!(find(0x7fff), Some(0));
    assert_eq!(find(0x0043), None);
    assert_eq!(find(0x0000), None);
    assert_eq!(find(0x8000), None);
}

#[test]
fn pkey_takes_the_first_free_entry() {
    let mut table: Vec<PKey> = (0..pkeys::LEN).map(pkeys::initial).collect();
    let entry = |table: &[PKey], key| pkeys::entry_for((0..).zip(table.iter().copied()), PKey(key));
    assert_eq!(entry(&table, 0x8001), Ok(1));
    table[1] = PKey(0x8001);
    assert_eq!(entry(&table, 0x8001), Err(pkeys::PKeyTableError::Duplicate));
    // The port may be a limited member as well.
    assert_eq!(entry(&table, 0x0001), Ok(2));
    table[0] = PKey::INVALID;
    assert_eq!(entry(&table, 0x8002), Ok(0));
    for key in [0, 0x8000] {
        assert_eq!(entry(&table, key), Err(pkeys::PKeyTableError::NoPartition));
    }
    for (held, key) in table.iter_mut().zip(0x8100..) {
        *held = PKey(key);
    }
    assert_eq!(entry(&table, 0x8002), Err(pkeys::PKeyTableError::Full));
    assert_eq!(entry(&table, 0x817f), Err(pkeys::PKeyTableError::Duplicate));
}

fn check(table: &[PKey], index: u16, key: u16) -> Result<(), pkeys::PKeyTableError> {
    pkeys::check_set((0..).zip(table.iter().copied()), index, PKey(key))
}

#[test]
fn last_valid_pkey_stays() {
    let mut table: Vec<PKey> = (0..pkeys::LEN).map(pkeys::initial).collect();
    assert_eq!(check(&table, 0, 0), Err(pkeys::PKeyTableError::Last));
    // Emptying empty entries, and moving to another partition, leaves one.
    assert_eq!(check(&table, 1, 0), Ok(()));
    assert_eq!(check(&table, 0, 0x0001), Ok(()));
    table[127] = PKey(0x0001);
    assert_eq!(check(&table, 0, 0), Ok(()));
    table[0] = PKey::INVALID;
    assert_eq!(check(&table, 127, 0), Err(pkeys::PKeyTableError::Last));
    assert_eq!(check(&table, 128, 0), Err(pkeys::PKeyTableError::NoEntry));
    // What has no partition in its lower 15 bits is no valid entry.
    table[3] = PKey(0x8000);
    assert_eq!(check(&table, 127, 0), Err(pkeys::PKeyTableError::Last));
    assert_eq!(check(&table, 3, 0), Ok(()));
}

proptest! {
    /// With any changes a table keeps a valid entry, and only the changes named by the rules are
    /// refused.
    #[test]
    fn a_valid_pkey_always_remains(
        edits in prop::collection::vec((0u16..6, prop_oneof![Just(0u16), 1u16..4, 0x8000u16..0x8004]), 1..80),
    ) {
        let mut table: Vec<PKey> = (0..pkeys::LEN).map(pkeys::initial).collect();
        for (index, key) in edits {
            let at = usize::from(index);
            let rest = || table.iter().enumerate().filter(move |(n, _)| *n != at).map(|(_, key)| *key);
            let wanted = if key == 0x8000 {
                Err(pkeys::PKeyTableError::NoPartition)
            } else if key == 0 && table[at] != PKey::INVALID && rest().all(|key| key == PKey::INVALID) {
                Err(pkeys::PKeyTableError::Last)
            } else if key != 0 && rest().any(|held| held == PKey(key)) {
                Err(pkeys::PKeyTableError::Duplicate)
            } else {
                Ok(())
            };
            prop_assert_eq!(check(&table, index, key), wanted);
            if wanted.is_ok() {
                table[at] = PKey(key);
            }
            prop_assert!(table.iter().any(|key| key.key() != 0));
        }
    }
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
