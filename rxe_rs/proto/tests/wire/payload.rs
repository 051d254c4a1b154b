// SPDX-License-Identifier: GPL-2.0
//! A payload in fragments behaves like contiguous bytes.
use crate::wire::Payload;
use proptest::prelude::*;

#[test]
fn at_most_max_frags() {
    let mut payload = Payload::EMPTY;
    for _ in 0..Payload::MAX_FRAGS {
        assert!(payload.push(b"ab"));
        assert!(payload.push(b""));
    }
    assert!(!payload.push(b"c"));
    assert_eq!(payload.len(), 2 * Payload::MAX_FRAGS);
    assert!(Payload::from_slice(b"").is_empty());
    assert_eq!(Payload::from_slice(b"").frags().count(), 0);
}

proptest! {
    #[test]
    fn behaves_like_one_slice(
        frags in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..=6),
        from in 0usize..130,
        len in 0usize..130,
        room in 0usize..130,
    ) {
        let whole = frags.concat();
        let mut payload = Payload::EMPTY;
        for frag in &frags {
            prop_assert!(payload.push(frag));
        }
        prop_assert_eq!(payload.len(), whole.len());
        prop_assert_eq!(payload.frags().collect::<Vec<_>>().concat(), whole.clone());

        let expected = whole.get(from..).unwrap_or(&[]);
        let expected = &expected[..len.min(expected.len())];
        let slice = payload.slice(from, len);
        prop_assert_eq!(slice.len(), expected.len());
        prop_assert_eq!(slice.frags().collect::<Vec<_>>().concat(), expected.to_vec());

        let mut copy = vec![0; room];
        let copied = slice.copy_to(&mut copy);
        prop_assert_eq!(copied, room.min(expected.len()));
        prop_assert_eq!(&copy[..copied], &expected[..copied]);
        prop_assert!(copy[copied..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn extreme_slices(from in any::<usize>(), len in any::<usize>()) {
        let payload = Payload::from_slice(b"0123456789");
        prop_assert!(payload.slice(from, len).len() <= 10);
        prop_assert_eq!(payload.slice(from, usize::MAX).len(), 10usize.saturating_sub(from));
    }
}
