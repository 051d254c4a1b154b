// SPDX-License-Identifier: GPL-2.0
//! Captures of both formats, whole and damaged.

use super::*;
use proptest::prelude::*;

fn pcap(order: Order, nanoseconds: bool, records: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let word = |value: u32| match order {
        Order::Little => value.to_le_bytes(),
        Order::Big => value.to_be_bytes(),
    };
    let magic = if nanoseconds {
        0xa1b2_3c4d
    } else {
        0xa1b2_c3d4
    };
    let mut file = Vec::new();
    for value in [magic, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word(value));
    }
    for (seconds, fraction, bytes) in records {
        let len = u32::try_from(bytes.len()).unwrap();
        for value in [*seconds, *fraction, len, len] {
            file.extend(word(value));
        }
        file.extend(*bytes);
    }
    file
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut padded = body.to_vec();
    padded.resize(body.len().next_multiple_of(4), 0);
    let len = u32::try_from(padded.len() + 12).unwrap();
    [
        &kind.to_le_bytes()[..],
        &len.to_le_bytes(),
        &padded,
        &len.to_le_bytes(),
    ]
    .concat()
}

fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn pcapng() -> Vec<u8> {
    let mut options = words(&[1, 65535]);
    // Nanoseconds; an offset of 5 s; the end.
    options.extend([9, 0, 1, 0, 9, 0, 0, 0]);
    options.extend([14, 0, 8, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    options.extend([0, 0, 0, 0]);
    let mut packet = words(&[0, 0, 1_000_000_007, 3, 3]);
    packet.extend(b"abc");
    let mut simple = words(&[2]);
    simple.extend(b"xy");
    [
        block(
            0x0a0d_0d0a,
            &words(&[0x1a2b_3c4d, 1, 0xffff_ffff, 0xffff_ffff]),
        ),
        block(1, &options),
        block(0x0bad, b"something else"),
        block(6, &packet),
        block(3, &simple),
    ]
    .concat()
}

fn all(file: &[u8]) -> (Vec<Frame>, Option<CaptureError>) {
    let mut frames = Vec::new();
    let mut capture = match Capture::open(file) {
        Ok(capture) => capture,
        Err(error) => return (frames, Some(error)),
    };
    loop {
        match capture.next_frame() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

#[test]
fn pcap_in_every_dialect() {
    for order in [Order::Little, Order::Big] {
        for (nanoseconds, unit) in [(false, 1000), (true, 1)] {
            let file = pcap(order, nanoseconds, &[(10, 7, b"hello"), (11, 0, b"")]);
            let (frames, error) = all(&file);
            assert!(error.is_none(), "{error:?}");
            assert_eq!(frames.len(), 2);
            assert_eq!(frames[0].time_ns, Some(10_000_000_000 + 7 * unit));
            assert_eq!(frames[0].link, 1);
            assert_eq!(frames[0].bytes, b"hello");
            assert_eq!(frames[1].bytes, b"");
        }
    }
}

#[test]
fn pcapng_blocks() {
    let (frames, error) = all(&pcapng());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[0].time_ns, Some(6_000_000_007));
    assert_eq!(frames[0].bytes, b"abc");
    assert_eq!(frames[1].time_ns, None);
    assert_eq!(frames[1].bytes, b"xy");
}

/// Blocks that are not used may be of any length.
#[test]
fn long_blocks_are_skipped() {
    let long = block(0x0bad, &vec![7; 17 << 20]);
    let whole = pcapng();
    let (head, rest) = whole.split_at(28);
    let file = [head, &long, rest].concat();
    let (frames, error) = all(&file);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(frames, all(&whole).0);
    let cut = all(&file[..16 << 20]);
    assert!(matches!(cut.1, Some(CaptureError::CutOff)), "{cut:?}");
}

#[test]
fn cut_off_anywhere() {
    for file in [pcap(Order::Big, false, &[(1, 1, b"hello")]), pcapng()] {
        let (whole, _) = all(&file);
        let mut clean = 0;
        for len in 0..file.len() {
            let (frames, error) = all(&file[..len]);
            assert!(frames.len() <= whole.len());
            assert!(whole.starts_with(&frames), "cut at {len}");
            clean += usize::from(error.is_none());
        }
        // Only at the ends of records.
        assert!(clean < 6, "{clean}");
    }
}

#[test]
fn lengths_that_lie() {
    let mut file = pcap(Order::Little, false, &[(1, 1, b"hello")]);
    file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(all(&file).1, Some(CaptureError::Damaged(_))));
    for len in [0u32, 4, 8, 11, u32::MAX] {
        let mut file = pcapng();
        file[28 + 4..28 + 8].copy_from_slice(&len.to_le_bytes());
        assert!(all(&file).1.is_some(), "{len}");
    }
    assert!(matches!(all(b"").1, Some(CaptureError::NotACapture)));
    assert!(matches!(
        all(b"#!/bin/sh\n").1,
        Some(CaptureError::NotACapture)
    ));
}

proptest! {
    #[test]
    fn damage_never_panics(at in 0usize..200, with: Vec<u8>) {
        for mut file in [pcapng(), pcap(Order::Little, true, &[(1, 1, b"hello"), (2, 2, b"x")])] {
            let at = at.min(file.len());
            let end = (at + with.len()).min(file.len());
            file.splice(at..end, with.iter().copied());
            all(&file);
        }
    }

    #[test]
    fn garbage_never_panics(head in 0usize..6, body: Vec<u8>) {
        let file = pcapng();
        let heads: [&[u8]; 6] = [b"", &SECTION, &file[..28], &[0xd4, 0xc3, 0xb2, 0xa1], &[0xa1, 0xb2, 0x3c, 0x4d], &file[..68]];
        all(&[heads[head], &body].concat());
    }
}
