// SPDX-License-Identifier: GPL-2.0
//! Tests of the opcode table, against the numbers of the architecture written out once more.
use super::*;

/// Opcodes of RC that no operation has.
const RESERVED: [u8; 7] = [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f];

/// Opcode byte, header bytes after the BTH.
const RC_CODES: &[(u8, usize)] = &[
    (0x00, 0),
    (0x01, 0),
    (0x02, 0),
    (0x03, 4),
    (0x04, 0),
    (0x05, 4),
    (0x06, 16),
    (0x07, 0),
    (0x08, 0),
    (0x09, 4),
    (0x0a, 16),
    (0x0b, 20),
    (0x0c, 16),
    (0x0d, 4),
    (0x0e, 0),
    (0x0f, 4),
    (0x10, 4),
    (0x11, 4),
    (0x12, 12),
    (0x13, 28),
    (0x14, 28),
    (0x16, 4),
    (0x17, 4),
    (0x1c, 20),
    (0x1d, 16),
];

#[test]
fn every_byte_is_defined_or_refused() {
    for byte in 0..=255u8 {
        let expected = match byte {
            _ if RESERVED.contains(&byte) => Some(0),
            0x00..=0x1f => RC_CODES.iter().find(|row| row.0 == byte).map(|row| row.1),
            0x20..=0x2b => RC_CODES
                .iter()
                .find(|row| row.0 == byte - 0x20)
                .map(|row| row.1),
            0x64 => Some(8),
            0x65 => Some(12),
            0x81 => Some(0),
            _ => None,
        };
        match (Opcode::parse(byte), expected) {
            (Some(opcode), Some(extension)) => {
                let reserved = opcode.operation() == Operation::Reserved;
                assert_eq!(reserved, RESERVED.contains(&byte));
                assert!(opcode.to_u8() == byte || reserved);
                assert_eq!(opcode.header_len(), 12 + extension, "{opcode:?}");
                assert_eq!(opcode.headers().byte_len(), extension);
                assert_eq!(
                    Opcode::new(opcode.transport(), opcode.operation()),
                    Some(opcode)
                );
            }
            (None, None) => {}
            (got, want) => panic!("{byte:#x}: {got:?}, expected {want:?}"),
        }
    }
}

#[test]
fn named_constants() {
    assert_eq!(Opcode::RC_ACKNOWLEDGE.to_u8(), 0x11);
    assert_eq!(Opcode::UD_SEND_ONLY.to_u8(), 0x64);
    assert_eq!(Opcode::UD_SEND_ONLY_IMM.to_u8(), 0x65);
    assert_eq!(Opcode::CNP.to_u8(), 0x81);
    assert_eq!(Opcode::parse(0x81), Some(Opcode::CNP));
    for &operation in Operation::ALL {
        let opcode = Opcode::rc(operation);
        assert_eq!(Opcode::parse(opcode.to_u8()), Some(opcode));
    }
}

#[test]
fn positions_and_directions() {
    for byte in 0..=255u8 {
        let Some(opcode) = Opcode::parse(byte) else {
            continue;
        };
        let places = [
            opcode.is_first(),
            opcode.is_middle(),
            opcode.is_last(),
            opcode.is_only(),
        ];
        assert_eq!(places.iter().filter(|place| **place).count(), 1);
        assert_eq!(
            opcode.starts_message(),
            opcode.is_first() || opcode.is_only()
        );
        assert_eq!(opcode.ends_message(), opcode.is_last() || opcode.is_only());
        assert!(!(opcode.is_request() && opcode.is_response()));
        let name = opcode.operation().as_str();
        assert_eq!(opcode.is_send(), name.starts_with("Send"));
        assert_eq!(opcode.is_write(), name.starts_with("Write"));
        assert_eq!(opcode.is_read_response(), name.starts_with("ReadResp"));
        if opcode.is_first() || opcode.is_middle() {
            assert_eq!(opcode.payload_rule(), PayloadRule::PathMtu);
        }
        if opcode.is_last() {
            assert_eq!(opcode.payload_rule(), PayloadRule::OneToMtu);
        }
    }
    assert!(Opcode::parse(0x11).unwrap().is_response());
    assert!(Opcode::parse(0x0c).unwrap().is_request());
    assert!(!Opcode::CNP.is_request());
}

#[test]
fn payload_rules() {
    assert!(PayloadRule::Exactly(8).allows(8, 256));
    assert!(!PayloadRule::Exactly(8).allows(7, 256));
    assert!(PayloadRule::PathMtu.allows(256, 256) && !PayloadRule::PathMtu.allows(255, 256));
    assert!(PayloadRule::OneToMtu.allows(1, 256) && !PayloadRule::OneToMtu.allows(0, 256));
    assert!(PayloadRule::ZeroToMtu.allows(0, 256) && !PayloadRule::ZeroToMtu.allows(257, 256));
}

#[test]
fn receive_work_requests() {
    let consuming: Vec<u8> = (0..=255u8)
        .filter(|byte| Opcode::parse(*byte).is_some_and(Opcode::consumes_receive))
        .collect();
    assert_eq!(
        consuming,
        [0x00, 0x04, 0x05, 0x09, 0x0b, 0x17, 0x20, 0x24, 0x25, 0x29, 0x2b, 0x64, 0x65]
    );
}
