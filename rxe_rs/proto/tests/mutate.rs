// SPDX-License-Identifier: GPL-2.0
//! The packet mutator: its packets vary, mostly pass the outer checks, are reproducible by seed and
//! never reach an excluded QP.
#![cfg(feature = "sim")]

use rxe_proto::ids::{Psn, Qpn, RKey};
use rxe_proto::sim::mutate::{serve, Mutator};
use rxe_proto::wire::icrc::{icrc, SoftCrc};
use rxe_proto::wire::{Bth, Headers, Opcode, Packet};
use std::collections::BTreeSet;

/// A WRITE of 64 bytes to a QP, over IPv4 or IPv6.
fn frame(qpn: u32, six: bool) -> Vec<u8> {
    let opcode = Opcode::parse(0x0a).expect("WRITE only");
    let headers = Headers::new(Bth::new(opcode, Qpn::new(qpn), Psn::new(77)));
    let headers = headers.reth(0x1000, RKey(5), 64);
    let mut payload = headers.as_slice().to_vec();
    payload.extend([9; 64]);
    let mut net = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
    if six {
        net.extend([0x11; 32]);
    } else {
        net = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0];
        net.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let udp_len = (payload.len() + 12) as u16;
    let total = (net.len() as u16 + udp_len).to_be_bytes();
    if six {
        net[4..6].copy_from_slice(&udp_len.to_be_bytes());
    } else {
        net[2..4].copy_from_slice(&total);
    }
    net.extend([0xc0, 0, 0x12, 0xb7]);
    net.extend(udp_len.to_be_bytes());
    net.extend([0, 0]);
    let sum = icrc(&SoftCrc, &net, &payload, []);
    let mut frame = vec![2; 12];
    frame.extend(if six { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(net);
    frame.extend(payload);
    frame.extend(sum);
    frame
}

fn with_frames(seed: u64) -> Mutator {
    let mut mutator = Mutator::new(seed, [0x99, 1]);
    for six in [false, true] {
        for qpn in [0x11, 0x12, 0x99] {
            mutator.learn(&frame(qpn, six));
        }
    }
    mutator
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets")]
fn excludes_qps_and_reaches_the_engine() {
    let mut mutator = with_frames(1);
    let (mut opcodes, mut reached, mut wrong_sum, total) = (BTreeSet::new(), 0, 0, 20_000);
    for _ in 0..total {
        let made = mutator.packet().expect("something was learnt");
        assert!(made.len() <= 1514);
        let net = if made[12] == 8 { 14..42 } else { 14..62 };
        let roce = &made[net.end..];
        assert!(
            roce.len() < 8 || ![[0, 0, 0x99], [0, 0, 1]].contains(&[roce[5], roce[6], roce[7]])
        );
        let Ok(packet) = Packet::parse(roce, roce.len()) else {
            continue;
        };
        let body = roce.len() - 4;
        if roce[body..] == icrc(&SoftCrc, &made[net], &roce[..body], []) {
            reached += 1;
            opcodes.insert(roce[0]);
        } else {
            wrong_sum += 1;
        }
        let _ = packet.opcode();
    }
    assert!(reached > total / 4, "{reached} get as far as the engine");
    assert!(
        wrong_sum > total / 100,
        "{wrong_sum} have a wrong sum and nothing else"
    );
    assert!(opcodes.len() > 25, "{opcodes:x?}");
}

#[test]
fn same_seed_same_packets() {
    let run = |seed| {
        let mut mutator = with_frames(seed);
        (0..200).map(|_| mutator.packet()).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn learns_only_roce_frames() {
    let mut mutator = Mutator::new(1, [0x99]);
    let good = frame(0x11, false);
    for len in 0..good.len() {
        mutator.learn(&good[..len.min(57)]);
    }
    mutator.learn(&frame(0x99, true));
    mutator.learn(&[7; 200]);
    let mut other_port = good.clone();
    other_port[37] ^= 1;
    mutator.learn(&other_port);
    assert_eq!(mutator.packet(), None);
    for _ in 0..1000 {
        mutator.learn(&good);
    }
    assert!(mutator.packet().is_some());
}

#[test]
fn serves_commands() {
    let mut input = b"G\0\0\0\x01L\0".to_vec();
    let good = frame(0x11, true);
    input.push(good.len() as u8);
    input.extend(&good);
    input.extend(b"G\0\0\0\x02");
    let mut output = Vec::new();
    serve(&mut Mutator::new(3, []), &mut &input[..], &mut output).expect("no error");
    assert_eq!(output[..2], [0, 0]);
    let first = usize::from(u16::from_be_bytes([output[2], output[3]]));
    let second = usize::from(u16::from_be_bytes([output[4 + first], output[5 + first]]));
    assert_eq!(output.len(), 6 + first + second);
    assert!(first >= 58 && second >= 58);
}
