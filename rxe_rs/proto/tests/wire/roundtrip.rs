// SPDX-License-Identifier: GPL-2.0
//! Emit and parse are inverse for every opcode and header.
use super::*;

proptest! {
    #[test]
    fn bth(bth in any_bth()) {
        prop_assert_eq!(Bth::parse(&bth.emit()), Ok(bth));
    }

    #[test]
    fn packets_of_every_opcode(mut bth in any_bth(), v in any_values(), len in 0usize..70) {
        bth.pad = Bth::pad_for(len);
        let headers = build(bth, &v);
        prop_assert_eq!(headers.len(), bth.opcode.header_len());
        prop_assert_eq!(headers.pad_len(), usize::from(bth.pad));
        let bytes = packet_bytes(&headers, len);
        let packet = Packet::parse(&bytes, bytes.len()).unwrap();
        prop_assert_eq!(packet.bth(), &bth);
        prop_assert_eq!(packet.payload_len(), len);
        prop_assert_eq!(packet.pad_len(), usize::from(bth.pad));
        prop_assert_eq!(packet.icrc_offset() + 4, bytes.len());
        prop_assert_eq!(packet.header_bytes(), headers.as_slice());

        let set = bth.opcode.headers();
        prop_assert_eq!(packet.deth().is_some(), set.contains(HeaderSet::DETH));
        prop_assert_eq!(packet.feth().is_some(), set.contains(HeaderSet::FETH));
        prop_assert_eq!(packet.reth().is_some(), set.contains(HeaderSet::RETH));
        prop_assert_eq!(packet.atomic_eth().is_some(), set.contains(HeaderSet::ATOMIC_ETH));
        prop_assert_eq!(packet.aeth().is_some(), set.contains(HeaderSet::AETH));
        prop_assert_eq!(packet.atomic_ack().is_some(), set.contains(HeaderSet::ATOMIC_ACK_ETH));
        prop_assert_eq!(packet.imm().is_some(), set.contains(HeaderSet::IMM));
        prop_assert_eq!(packet.ieth().is_some(), set.contains(HeaderSet::IETH));
        if let Some(deth) = packet.deth() {
            prop_assert_eq!((deth.qkey(), deth.src_qpn()), (QKey(v.d), Qpn::new(v.e)));
        }
        if let Some(feth) = packet.feth() {
            prop_assert_eq!(feth.selectivity(), Some(feth::Selectivity::Region));
            prop_assert_eq!(feth.placement(), Feth::GLOBAL);
        }
        if let Some(reth) = packet.reth() {
            prop_assert_eq!((reth.va(), reth.rkey(), reth.dma_len()), (v.a, RKey(v.d), v.e));
        }
        if let Some(eth) = packet.atomic_eth() {
            prop_assert_eq!((eth.va(), eth.rkey()), (v.a, RKey(v.d)));
            prop_assert_eq!((eth.swap_add(), eth.compare()), (v.b, v.c));
        }
        if let Some(aeth) = packet.aeth() {
            prop_assert_eq!((aeth.syndrome(), aeth.msn()), (v.syndrome, Msn::new(v.d)));
        }
        if let Some(eth) = packet.atomic_ack() {
            prop_assert_eq!(eth.original(), v.b);
        }
        if let Some(imm) = packet.imm() {
            prop_assert_eq!(imm, v.imm);
        }
        if let Some(ieth) = packet.ieth() {
            prop_assert_eq!(ieth.rkey(), RKey(v.d));
        }
        // The dump never fails and names the operation.
        prop_assert!(packet.to_string().contains(bth.opcode.operation().as_str()));
    }
}

#[test]
fn syndromes() {
    for byte in 0..=255u8 {
        let syndrome = Syndrome::decode(byte);
        match syndrome {
            Syndrome::Reserved => {
                let kind = byte & 0xe0;
                assert!(kind == 0x40 || kind >= 0x80 || (kind == 0x60 && byte & 0x1f > 4));
                assert_eq!(Syndrome::decode(syndrome.encode()), Syndrome::Reserved);
            }
            _ => assert_eq!(syndrome.encode(), byte),
        }
    }
    assert_eq!(Syndrome::ACK.encode(), 0x1f);
    assert_eq!(Syndrome::Nak(NakCode::PsnSequence).encode(), 0x60);
    assert_eq!(Syndrome::RnrNak { timer: 12 }.encode(), 0x2c);
}

#[test]
fn flush_bits() {
    let feth = Feth::new(feth::Selectivity::Range, 3);
    assert_eq!(zerocopy::IntoBytes::as_bytes(&feth), [0, 0, 0, 3]);
    let feth = Feth::new(feth::Selectivity::Region, 1);
    assert_eq!(zerocopy::IntoBytes::as_bytes(&feth), [0, 0, 0, 0x11]);
    let reserved: Feth = zerocopy::FromBytes::read_from_bytes(&[0, 0, 0, 0x21]).unwrap();
    assert_eq!(reserved.selectivity(), None);
}
