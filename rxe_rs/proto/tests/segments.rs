// SPDX-License-Identifier: GPL-2.0
//! Tests of the segment table: cases by hand, and a model that knows the owner of every byte.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// A table of segments, each named by its number.
fn table(ranges: &[(u64, u64)]) -> Vec<Segment<usize>> {
    let mut table: Vec<_> = ranges
        .iter()
        .enumerate()
        .map(|(n, (start, len))| Segment::new(*start, *len, n).unwrap())
        .collect();
    update_run_ends(&mut table);
    table
}

fn parts_of(table: &[Segment<usize>], addr: u64, len: u64) -> Option<Vec<(usize, u64, u64)>> {
    let index = find_range(table, addr, len, 0)?;
    Some(
        parts(table, index, addr, len)
            .map(|(p, o, l)| (*p, o, l))
            .collect(),
    )
}

#[test]
fn segments_have_bytes_and_do_not_wrap() {
    assert_eq!(Segment::new(0, 0, ()), None);
    assert_eq!(Segment::new(u64::MAX, 2, ()), None);
    let last = Segment::new(u64::MAX - 1, 1, ()).unwrap();
    assert_eq!(
        (last.start(), last.end(), last.len()),
        (u64::MAX - 1, u64::MAX, 1)
    );
}

#[test]
fn accesses_span_a_run_but_no_hole() {
    // Two that touch, a hole of 0x1000, one more.
    let t = table(&[(0x1000, 0x1000), (0x2000, 0x2000), (0x5000, 0x1000)]);
    assert_eq!(parts_of(&t, 0x1000, 1), Some(vec![(0, 0, 1)]));
    assert_eq!(
        parts_of(&t, 0x1ffe, 4),
        Some(vec![(0, 0xffe, 2), (1, 0, 2)])
    );
    assert_eq!(
        parts_of(&t, 0x1000, 0x3000),
        Some(vec![(0, 0, 0x1000), (1, 0, 0x2000)])
    );
    assert_eq!(parts_of(&t, 0x5fff, 1), Some(vec![(2, 0xfff, 1)]));
    for (addr, len) in [
        (0xfff, 1),
        (0xfff, 2),
        (0x3fff, 2),
        (0x1000, 0x3001),
        (0x4000, 1),
        (0x4fff, 2),
        (0x1000, 0x5000),
        (0x5000, 0x1001),
        (0x6000, 1),
        (0x1000, u64::MAX),
        (u64::MAX, 1),
    ] {
        assert_eq!(parts_of(&t, addr, len), None, "{addr:#x} {len:#x}");
    }
    assert_eq!(find_range::<()>(&[], 0, 1, 0), None);
}

#[test]
fn next_memory_skips_holes() {
    let t = table(&[(0x1000, 0x1000), (0x2000, 0x2000), (0x5000, 0x1000)]);
    for (addr, expected) in [
        (0, Some((0x1000, 0x1000))),
        (0x1fff, Some((0x1fff, 1))),
        (0x2000, Some((0x2000, 0x2000))),
        (0x4000, Some((0x5000, 0x1000))),
        (0x5001, Some((0x5001, 0xfff))),
        (0x6000, None),
        (u64::MAX, None),
    ] {
        assert_eq!(next_memory(&t, addr), expected, "{addr:#x}");
    }
    assert_eq!(next_memory::<usize>(&[], 0), None);
}

#[test]
fn a_wrong_hint_changes_nothing() {
    let t = table(&[(0, 10), (20, 10), (40, 10), (60, 10)]);
    for hint in [0, 1, 2, 3, 4, 99, usize::MAX - 1, usize::MAX] {
        for addr in 0..80 {
            let expected = (addr % 20 < 10).then_some((addr / 20) as usize);
            assert_eq!(find(&t, addr, hint), expected, "{addr} {hint}");
        }
    }
}

#[test]
fn insertion_between_adjacent_segments() {
    let t = table(&[(0x1000, 0x1000), (0x3000, 0x1000)]);
    assert_eq!(insertion_index(&t, 0, 0x1000), Some(0));
    assert_eq!(insertion_index(&t, 0, 0x1001), None);
    assert_eq!(insertion_index(&t, 0x2000, 0x3000), Some(1));
    assert_eq!(insertion_index(&t, 0x1fff, 0x2000), None);
    assert_eq!(insertion_index(&t, 0x2fff, 0x3001), None);
    assert_eq!(insertion_index(&t, 0x1800, 0x1801), None);
    assert_eq!(insertion_index(&t, 0, u64::MAX), None);
    assert_eq!(insertion_index(&t, 0x4000, u64::MAX), Some(2));
    assert_eq!(insertion_index::<()>(&[], 5, 6), Some(0));
}

#[test]
fn overlapping_segments() {
    let t = table(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x4000, 0x1000)]);
    for (start, end, expected) in [
        (0x1000, 0x2000, 0..1),
        (0x1fff, 0x2001, 0..2),
        (0x1000, 0x4001, 0..3),
        (0, u64::MAX, 0..3),
        (0x3000, 0x4000, 2..2),
        (0x3000, 0x4001, 2..3),
        (0, 0x1000, 0..0),
        (0x5000, u64::MAX, 3..3),
        (0x1800, 0x1800, 0..1),
        (0x2000, 0x1000, 1..1),
    ] {
        assert_eq!(overlapping(&t, start, end), expected, "{start:#x} {end:#x}");
    }
    assert_eq!(overlapping::<()>(&[], 0, u64::MAX), 0..0);
}

#[test]
fn rest_of_a_segment() {
    let s = Segment::new(0x1000, 0x3000, ()).unwrap();
    for (start, end, expected) in [
        (0x1000, 0x4000, [None, None]),
        (0, u64::MAX, [None, None]),
        (0x1000, 0x2000, [None, Some((0x1000, 0x2000))]),
        (0x3000, 0x4000, [Some((0, 0x2000)), None]),
        (0x2000, 0x3000, [Some((0, 0x1000)), Some((0x2000, 0x1000))]),
        (0x1001, 0x1002, [Some((0, 1)), Some((2, 0x2ffe))]),
    ] {
        assert_eq!(s.without(start, end), expected, "{start:#x} {end:#x}");
    }
    assert!(s.is_split_at(0x1001) && s.is_split_at(0x3fff));
    assert!(!s.is_split_at(0x1000) && !s.is_split_at(0x4000) && !s.is_split_at(0));
}

#[test]
fn sizes() {
    let t = table(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x4000, 0x1000)]);
    assert_eq!(bounds(&t), Some((0x1000, 0x4000)));
    assert_eq!(bytes(&t), 0x3000);
    assert_eq!(run(&t, 0), Some((0x1000, 0x2000)));
    assert_eq!(run(&t, 1), Some((0x1000, 0x2000)));
    assert_eq!(run(&t, 2), Some((0x4000, 0x1000)));
    assert_eq!(run(&t, 3), None);
    assert_eq!(bounds::<()>(&[]), None);
    assert_eq!(bytes::<()>(&[]), 0);
}

/// Bytes of the model's address space.
const SPACE: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Add(u64, u64),
    Remove(u64, u64),
    Access(u64, u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SPACE, 0..SPACE / 4);
    prop_oneof![
        range.clone().prop_map(|(s, l)| Step::Add(s, l)),
        range.clone().prop_map(|(s, l)| Step::Remove(s, l)),
        (range, 0..9usize).prop_map(|((s, l), g)| Step::Access(s, l, g)),
    ]
}

proptest! {
    /// The table against an array that names the owner of each byte.
    #[test]
    fn agrees_with_a_byte_model(steps in proptest::collection::vec(step(), 0..200)) {
        let mut owner = [None::<usize>; 2 * SPACE as usize];
        // Of each segment the number of the one it was cut from, and its offset in that.
        let mut table: Vec<Segment<(usize, u64)>> = Vec::new();
        let mut place = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            place.push(0);
            match step {
                Step::Add(start, len) => {
                    let Some(new) = Segment::new(start, len, (n, 0)) else {
                        prop_assert_eq!(len, 0);
                        continue;
                    };
                    let area = start as usize..(start + len) as usize;
                    let free = owner[area.clone()].iter().all(Option::is_none);
                    let at = insertion_index(&table, new.start(), new.end());
                    prop_assert_eq!(at.is_some(), free);
                    if let Some(at) = at {
                        table.insert(at, new);
                        owner[area].fill(Some(n));
                        place[n] = start;
                    }
                }
                Step::Remove(start, len) => {
                    let area = start as usize..(start + len) as usize;
                    let found = overlapping(&table, start, start + len);
                    if len == 0 {
                        continue;
                    }
                    prop_assert_eq!(found.is_empty(), owner[area.clone()].iter().all(Option::is_none));
                    let rest: Vec<_> = table[found.clone()]
                        .iter()
                        .flat_map(|s| {
                            let left = s.without(start, start + len);
                            let base = s.start();
                            let (owner, at) = s.backing;
                            left.into_iter().flatten().map(move |(offset, len)| {
                                Segment::new(base + offset, len, (owner, at + offset)).unwrap()
                            })
                        })
                        .collect();
                    table.splice(found, rest);
                    owner[area].fill(None);
                }
                Step::Access(addr, len, hint) => {
                    let area = addr as usize..(addr + len) as usize;
                    let there = owner[addr as usize].is_some()
                        && owner[area.clone()].iter().all(Option::is_some);
                    let index = find_range(&table, addr, len, hint);
                    prop_assert_eq!(index.is_some(), there);
                    if let Some(index) = index {
                        let mut at = addr;
                        for (backing, offset, part) in parts(&table, index, addr, len) {
                            for byte in 0..part {
                                prop_assert_eq!(owner[(at + byte) as usize], Some(backing.0));
                            }
                            prop_assert_eq!(place[backing.0] + backing.1 + offset, at);
                            at += part;
                        }
                        prop_assert_eq!(at, addr + len);
                    }
                }
            }
            update_run_ends(&mut table);
            prop_assert!(table.windows(2).all(|w| w[0].end() <= w[1].start()));
            let count = owner.iter().filter(|o| o.is_some()).count();
            prop_assert_eq!(bytes(&table), count as u64);
            for (index, segment) in table.iter().enumerate() {
                let (start, length) = run(&table, index).unwrap();
                let run = start as usize..(start + length) as usize;
                prop_assert!(owner[run.clone()].iter().all(Option::is_some));
                prop_assert!(run.contains(&(segment.start() as usize)));
                prop_assert!(run.start == 0 || owner[run.start - 1].is_none());
                prop_assert!(owner[run.end].is_none());
            }
        }
    }
}
