// SPDX-License-Identifier: GPL-2.0
//! Packets captured on a wire: parsed, ICRC verified and emitted again.

use super::*;
use crate::wire::icrc::{icrc, SoftCrc};

/// (name, IP and UDP header, UDP payload) of every packet of the file.
fn captured() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let text = include_str!("../golden/captured.txt");
    let bytes = |hex: &str| -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap())
            .collect();
        digits.chunks(2).map(|d| (d[0] << 4) | d[1]).collect()
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap();
            (
                name,
                bytes(words.next().unwrap()),
                bytes(words.next().unwrap()),
            )
        })
        .collect()
}

#[test]
fn icrcs_match() {
    let packets = captured();
    assert!(packets.len() >= 8);
    for (name, net, udp) in packets {
        let (body, sum) = udp.split_at(udp.len() - Packet::ICRC_LEN);
        assert_eq!(
            icrc(&SoftCrc, &net, &body[..12], [&body[12..]]),
            sum,
            "{name}"
        );
        let mut bent = body.to_vec();
        bent[11] ^= 1;
        assert_ne!(
            icrc(&SoftCrc, &net, &bent[..12], [&bent[12..]]),
            sum,
            "{name}"
        );
    }
}

#[test]
fn headers_round_trip() {
    for (name, _, udp) in captured() {
        let packet = Packet::parse(&udp, udp.len()).expect(name);
        assert!(name.starts_with(match packet.opcode().operation() {
            Operation::Acknowledge => "ACKNOWLEDGE",
            Operation::ReadRequest => "READ_REQUEST",
            Operation::ReadRespOnly => "READ_RESPONSE_ONLY",
            Operation::WriteOnly => "WRITE_ONLY",
            Operation::SendOnly if packet.opcode().transport() == Transport::Ud => "UD_SEND_ONLY",
            Operation::SendOnly => "SEND_ONLY",
            _ => "?",
        }));
        let mut headers = Headers::new(*packet.bth());
        if let Some(deth) = packet.deth() {
            headers = headers.deth(deth.qkey(), deth.src_qpn());
        }
        if let Some(reth) = packet.reth() {
            headers = headers.reth(reth.va(), reth.rkey(), reth.dma_len());
        }
        if let Some(aeth) = packet.aeth() {
            headers = headers.aeth(aeth);
        }
        assert_eq!(headers.as_slice(), packet.header_bytes(), "{name}");
        let end = packet.payload_offset() + packet.payload_len() + packet.pad_len();
        assert_eq!(end + Packet::ICRC_LEN, udp.len(), "{name}");
    }
}
