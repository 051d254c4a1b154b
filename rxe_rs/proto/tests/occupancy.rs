// SPDX-License-Identifier: GPL-2.0
//! Occupancy of a completion ring against a model with indices that do not wrap, also with faulty
//! processes.

#[path = "../../kapi/mem/occupancy.rs"]
mod occupancy;

use occupancy::Occupancy;
use proptest::prelude::*;

#[test]
fn sizes() {
    for bad in [0, 1, 2, 4, 5, 6, 0xffff_fffe] {
        assert!(Occupancy::new(bad).is_none(), "{bad}");
    }
    for count in (0..300).chain([(1 << 18) - 2, 1 << 18, (1 << 31) - 2]) {
        let slots = Occupancy::slots_for(count).unwrap();
        let ring = Occupancy::new(slots - 1).unwrap();
        assert!(ring.capacity() >= count);
        assert!(slots == 4 || ring.capacity() / 2 <= count, "{count}");
    }
    assert_eq!(Occupancy::slots_for((1 << 31) - 1), None);
    assert_eq!(Occupancy::slots_for(u32::MAX), None);
}

/// Polls as librxe 34 to 54 does in `start_poll`, `next_poll` until there is no more, `end_poll`;
/// `index` is what is in the ring. Returns the slots read.
fn poll_as_old_library(index: &mut u32, produced: u32, mask: u32) -> Vec<u32> {
    let mut slots = Vec::new();
    if *index == produced {
        return slots;
    }
    let mut current = *index;
    loop {
        slots.push(current);
        current = (current + 1) & mask;
        if current == produced {
            break;
        }
    }
    *index = (current + 1) & mask;
    slots
}

proptest! {
    /// Such a library finds every completion exactly once, with any number of them at a time.
    #[test]
    fn old_library(log2 in 2u32..9, bursts in prop::collection::vec(any::<u32>(), 1..200)) {
        let mask = (1 << log2) - 1;
        let mut ring = Occupancy::new(mask).unwrap();
        let mut index = 0;
        for burst in bursts {
            let mut made = Vec::new();
            for _ in 0..=burst % ring.capacity() {
                if !ring.consume(index) {
                    index = ring.produced();
                }
                made.push(ring.produce().expect("room"));
            }
            prop_assert_eq!(poll_as_old_library(&mut index, ring.produced(), mask), made);
            prop_assert_eq!(ring.unread(index), None);
        }
    }

    /// With any index that a process writes, no completion is counted that was never produced, and
    /// with a valid index all completions that it has not consumed are kept.
    #[test]
    fn any_index(log2 in 2u32..9, steps in prop::collection::vec((0u8..8, any::<u32>()), 1..400)) {
        let mask = (1u32 << log2) - 1;
        let mut ring = Occupancy::new(mask).unwrap();
        let (mut produced, mut consumed) = (0u64, 0u64);
        for (kind, value) in steps {
            let held = produced - consumed;
            match kind {
                0..=3 => {
                    let slot = ring.produce();
                    prop_assert_eq!(slot.is_some(), held < u64::from(ring.capacity()));
                    if let Some(slot) = slot {
                        prop_assert_eq!(u64::from(slot), produced & u64::from(mask));
                        produced += 1;
                    }
                }
                4..=5 => {
                    let to = consumed + u64::from(value) % (held + 1);
                    prop_assert_eq!(ring.unread(to as u32), Some((produced - to) as u32));
                    prop_assert!(ring.consume(to as u32));
                    consumed = to;
                }
                _ => {
                    let distance = u64::from(value.wrapping_sub(consumed as u32) & mask);
                    let sane = distance <= held;
                    prop_assert_eq!(ring.unread(value).is_some(), sane);
                    prop_assert_eq!(ring.consume(value), sane);
                    consumed = if sane { consumed + distance } else { produced };
                }
            }
            prop_assert_eq!(u64::from(ring.produced()), produced & u64::from(mask));
            prop_assert_eq!(u64::from(ring.consumed()), consumed & u64::from(mask));
            prop_assert_eq!(ring.unread(consumed as u32), Some((produced - consumed) as u32));
        }
    }

    /// A ring that replaces another one starts with the completions of the old one.
    #[test]
    fn successor(log2 in 2u32..9, count in any::<u32>()) {
        let mut ring = Occupancy::new((1 << log2) - 1).unwrap();
        let count = count % (1 << log2);
        prop_assert_eq!(ring.start_with(count), count <= ring.capacity());
        if count <= ring.capacity() {
            prop_assert_eq!((ring.produced(), ring.unread(0)), (count, Some(count)));
            prop_assert_eq!(ring.produce().is_some(), count < ring.capacity());
        }
    }
}
