// SPDX-License-Identifier: GPL-2.0
//! Packets written out by hand from the tables of the architecture.
use super::*;

#[test]
fn send_only() {
    let bytes = hex("0400ffff0000001180123456 526f434576322121 e69eab9e");
    let packet = Packet::parse(&bytes, bytes.len()).unwrap();
    let mut bth = Bth::new(
        Opcode::rc(Operation::SendOnly),
        Qpn::new(0x11),
        Psn::new(0x123456),
    );
    bth.ack_req = true;
    bth.migreq = false;
    assert_eq!(packet.bth(), &bth);
    assert_eq!((packet.payload_offset(), packet.payload_len()), (12, 8));
    assert_eq!(bth.emit()[..], bytes[..12]);
}

#[test]
fn write_only_with_immediate_of_five_bytes() {
    let mut bth = Bth::new(
        Opcode::rc(Operation::WriteOnlyImm),
        Qpn::new(0xabcdef),
        Psn::new(0xfffffe),
    );
    bth.se = true;
    bth.pad = Bth::pad_for(5);
    bth.ack_req = true;
    let headers = Headers::new(bth)
        .reth(0x1122334455667788, RKey(0xa1b2c3d4), 5)
        .imm([1, 2, 3, 4]);
    let expected = "0b f0 ffff 00 abcdef 80 fffffe 1122334455667788 a1b2c3d4 00000005 01020304";
    assert_eq!(headers.as_slice(), hex(expected));
}

#[test]
fn datagram() {
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(7));
    let headers = Headers::new(bth).deth(QKey::GSI, Qpn::GSI);
    assert_eq!(
        headers.as_slice(),
        hex("64 40 ffff 00 000001 00 000007 80010000 00000001")
    );
}

#[test]
fn compare_and_swap_and_response() {
    let bth = Bth::new(Opcode::rc(Operation::CmpSwap), Qpn::new(2), Psn::new(3));
    let headers = Headers::new(bth).atomic_eth(0x1000, RKey(0x55), 0xaaaa, 0xbbbb);
    let expected = "13 40 ffff 00 000002 00 000003 0000000000001000 00000055
        000000000000aaaa 000000000000bbbb";
    assert_eq!(headers.as_slice(), hex(expected));
    let bth = Bth::new(Opcode::rc(Operation::AtomicAck), Qpn::new(2), Psn::new(3));
    let headers = Headers::new(bth)
        .aeth(Aeth::new(Syndrome::ACK, Msn::new(9)))
        .atomic_ack(0xcccc);
    let expected = "12 40 ffff 00 000002 00 000003 1f000009 000000000000cccc";
    assert_eq!(headers.as_slice(), hex(expected));
}

#[test]
fn negative_acknowledgement() {
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x12), Psn::new(0x100));
    let nak = Aeth::new(Syndrome::Nak(NakCode::RemoteAccess), Msn::new(0x010203));
    let headers = Headers::new(bth).aeth(nak);
    assert_eq!(
        headers.as_slice(),
        hex("11 40 ffff 00 000012 00 000100 62010203")
    );
    let mut bytes = headers.as_slice().to_vec();
    bytes.extend([0; 4]);
    let packet = Packet::parse(&bytes, bytes.len()).unwrap();
    assert_eq!(
        packet.to_string(),
        "Rc Acknowledge qp 0x12 psn 0x100 pkey 0xffff nak RemoteAccess msn 66051 len 0 pad 0"
    );
}

#[test]
fn cnp() {
    let mut bth = Bth::new(Opcode::CNP, Qpn::new(0x12), Psn::new(0));
    bth.becn = true;
    bth.migreq = false;
    let mut bytes = Headers::new(bth).as_slice().to_vec();
    assert_eq!(bytes, hex("81 00 ffff 40 000012 00 000000"));
    bytes.extend([0; 20]);
    let packet = Packet::parse(&bytes, bytes.len()).unwrap();
    assert_eq!(packet.bth(), &bth);
    assert!(packet
        .opcode()
        .payload_rule()
        .allows(packet.payload_len(), 1024));
}
