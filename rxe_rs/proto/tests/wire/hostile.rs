// SPDX-License-Identifier: GPL-2.0
//! Truncated and damaged packets, and packets with wrong lengths.
use super::*;
use crate::drop::DropReason;

fn touch(packet: &Packet<'_>, total: usize) {
    assert!(packet.icrc_offset() + Packet::ICRC_LEN == total);
    assert!(packet.payload_offset() + packet.payload_len() <= total);
    let _ = (
        packet.deth(),
        packet.feth(),
        packet.reth(),
        packet.atomic_eth(),
    );
    let _ = (
        packet.aeth(),
        packet.atomic_ack(),
        packet.imm(),
        packet.ieth(),
    );
    let _ = packet.to_string();
}

fn values() -> Values {
    Values {
        a: 1,
        b: 2,
        c: 3,
        d: 4,
        e: 5,
        imm: [6; 4],
        syndrome: Syndrome::ACK,
    }
}

/// Every opcode, truncated at every byte: too short up to the last one, then valid.
#[test]
fn truncated_anywhere() {
    for opcode in opcodes() {
        let headers = build(Bth::new(opcode, Qpn::new(1), Psn::new(2)), &values());
        let bytes = packet_bytes(&headers, 0);
        for cut in 0..bytes.len() {
            let result = Packet::parse(&bytes[..cut], cut);
            assert_eq!(
                result.err(),
                Some(DropReason::TooShort),
                "{opcode:?} at {cut}"
            );
            // The same if only the UDP length, or only the head, is short.
            assert!(Packet::parse(&bytes, cut).is_err());
            if cut < headers.len() {
                assert!(Packet::parse(&bytes[..cut], bytes.len()).is_err());
            }
        }
        touch(&Packet::parse(&bytes, bytes.len()).unwrap(), bytes.len());
        // The head alone is enough.
        assert!(Packet::parse(headers.as_slice(), bytes.len()).is_ok());
    }
}

#[test]
fn lengths_must_be_multiples_of_four() {
    let headers = Headers::new(Bth::new(
        Opcode::rc(Operation::SendOnly),
        Qpn::new(1),
        Psn::new(2),
    ));
    let bytes = packet_bytes(&headers, 64);
    for len in 16..bytes.len() {
        let expected = if len % 4 == 0 {
            None
        } else {
            Some(DropReason::BadLength)
        };
        assert_eq!(Packet::parse(&bytes, len).err(), expected);
    }
}

#[test]
fn pad_may_not_exceed_the_payload() {
    for pad in 0..4u8 {
        let mut bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(1), Psn::new(2));
        bth.pad = pad;
        let bytes = packet_bytes(&Headers::new(bth), 4);
        let none = Packet::parse(&bytes, 16);
        assert_eq!(none.err(), (pad != 0).then_some(DropReason::BadLength));
        assert_eq!(
            Packet::parse(&bytes, 20).unwrap().payload_len(),
            4 - usize::from(pad)
        );
    }
}

#[test]
fn versions_and_opcodes() {
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(1), Psn::new(2));
    let mut bytes = packet_bytes(&Headers::new(bth), 0);
    for version in 1..16 {
        bytes[1] = version;
        assert_eq!(
            Packet::parse(&bytes, bytes.len()).err(),
            Some(DropReason::BadVersion)
        );
    }
    bytes[1] = 0;
    for code in [
        0x2c, 0x35, 0x36, 0x38, 0x3f, 0x40, 0x60, 0x63, 0x66, 0x80, 0xa0, 0xff,
    ] {
        bytes[0] = code;
        assert_eq!(
            Packet::parse(&bytes, bytes.len()).err(),
            Some(DropReason::UnknownOpcode)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 50 } else { 20_000 }))]

    /// Random bytes, with the first two often valid so that later checks are reached.
    #[test]
    fn any_bytes(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        opcode in proptest::sample::select(opcodes()),
        plausible in any::<bool>(),
        extra in 0usize..5000,
    ) {
        if plausible && bytes.len() > 1 {
            bytes[0] = opcode.to_u8();
            bytes[1] &= 0xf0;
        }
        if let Ok(packet) = Packet::parse(&bytes, bytes.len()) {
            touch(&packet, bytes.len());
        }
        let long = bytes.len() + extra;
        if let Ok(packet) = Packet::parse(&bytes, long) {
            touch(&packet, long);
        }
    }
}
