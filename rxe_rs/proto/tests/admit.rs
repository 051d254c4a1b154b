// SPDX-License-Identifier: GPL-2.0
//! Tests of the admission rules, exhaustive where that is possible.
use super::admit::{admit, AdmissionAttrs, Path};
use crate::drop::DropReason;
use crate::ids::{Gid, PKey, Psn, QKey, Qpn};
use crate::wire::{Bth, Headers, Opcode, Operation, Packet, Transport};

const PEER: Gid = Gid::from_v4([10, 0, 0, 1]);
const OWN: Gid = Gid::from_v4([10, 0, 0, 2]);

fn attrs(transport: Transport) -> AdmissionAttrs {
    AdmissionAttrs {
        transport,
        mtu: 1024,
        qpn: Qpn::new(0x11),
        pkey: PKey::DEFAULT,
        qkey: QKey(0x1111),
        peer: PEER,
        own: OWN,
    }
}

/// Result of admission, and whether the ICRC was computed.
fn run(
    bth: Bth,
    qkey: u32,
    qp: &AdmissionAttrs,
    source: Gid,
    icrc: bool,
) -> (Option<DropReason>, bool) {
    run_to(OWN, bth, qkey, qp, source, icrc)
}

fn run_to(
    destination: Gid,
    bth: Bth,
    qkey: u32,
    qp: &AdmissionAttrs,
    source: Gid,
    icrc: bool,
) -> (Option<DropReason>, bool) {
    let mut headers = Headers::new(bth);
    if bth.opcode.transport() == Transport::Ud {
        headers = headers.deth(QKey(qkey), Qpn::new(5));
    }
    let mut bytes = headers.as_slice().to_vec();
    if bth.opcode == Opcode::CNP {
        bytes.extend([0; 16]);
    }
    bytes.extend([0; 4]);
    let packet = Packet::parse(&bytes, bytes.len()).unwrap();
    let path = Path {
        source,
        destination,
    };
    let mut icrc_computed = false;
    let result = admit(
        packet,
        qp,
        &path,
        |key| key == PKey(0x8002),
        |_| {
            icrc_computed = true;
            icrc
        },
    );
    (result.err(), icrc_computed)
}

fn send(transport: Transport) -> Bth {
    let opcode = Opcode::new(transport, Operation::SendOnly).unwrap();
    Bth::new(opcode, Qpn::new(0x11), Psn::new(0))
}

#[test]
fn transports_must_agree() {
    for packet in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for qp in [Transport::Rc, Transport::Uc, Transport::Ud] {
            let (reason, icrc_computed) = run(send(packet), 0x1111, &attrs(qp), PEER, true);
            let expected = (packet != qp).then_some(DropReason::WrongTransport);
            assert_eq!((reason, icrc_computed), (expected, expected.is_none()));
        }
    }
}

/// If several checks fail, the first one determines the reason.
#[test]
fn order_of_the_checks() {
    let mut bth = send(Transport::Ud);
    bth.pkey = PKey(0x1234);
    let other_gid = Gid::from_v4([10, 9, 9, 9]);
    let qp = attrs(Transport::Ud);
    let bad = |reason| (Some(reason), false);
    // A violation is reported only for a packet with a valid ICRC.
    let violation = |reason| (Some(reason), true);
    let damaged = (Some(DropReason::BadIcrc), true);
    assert_eq!(
        run(bth, 0, &attrs(Transport::Rc), PEER, false),
        bad(DropReason::WrongTransport)
    );
    assert_eq!(run(bth, 0, &qp, PEER, false), damaged);
    assert_eq!(run(bth, 0, &qp, PEER, true), violation(DropReason::BadPKey));
    bth.pkey = PKey(0x7fff);
    assert_eq!(run(bth, 0, &qp, PEER, false), damaged);
    assert_eq!(run(bth, 0, &qp, PEER, true), violation(DropReason::BadQKey));
    assert_eq!(
        run(bth, 0x1111, &qp, other_gid, false),
        (Some(DropReason::BadIcrc), true)
    );
    assert_eq!(run(bth, 0x1111, &qp, other_gid, true), (None, true));

    let qp = attrs(Transport::Rc);
    let mut bth = send(Transport::Rc);
    assert_eq!(run(bth, 0, &qp, other_gid, false), bad(DropReason::BadPeer));
    let moved = AdmissionAttrs {
        own: other_gid,
        ..qp
    };
    assert_eq!(run(bth, 0, &moved, PEER, false), bad(DropReason::BadPeer));
    assert_eq!(
        run(bth, 0, &qp, PEER, false),
        (Some(DropReason::BadIcrc), true)
    );
    assert_eq!(run(bth, 0, &qp, PEER, true), (None, true));
    bth.pkey = PKey(0xfffe);
    assert_eq!(run(bth, 0, &qp, PEER, true), violation(DropReason::BadPKey));
}

/// Every opcode with every length up to beyond the MTU: responses without payload have none,
/// datagrams no more than the MTU; the engine checks requests of connections.
#[test]
fn payload_lengths_by_opcode() {
    let lengths: Vec<usize> = if cfg!(miri) {
        [0, 4, 16, 1024, 1028].into()
    } else {
        (0..=1100).step_by(4).collect()
    };
    for code in 0..=255u8 {
        let Some(opcode) = Opcode::parse(code) else {
            continue;
        };
        let transport = match opcode.transport() {
            Transport::Cnp => Transport::Rc,
            other => other,
        };
        let qp = attrs(transport);
        for &len in &lengths {
            let bth = Bth::new(opcode, Qpn::new(0x11), Psn::new(0));
            let mut bytes = bth.emit().to_vec();
            bytes.resize(opcode.header_len(), 0);
            if transport == Transport::Ud {
                let headers = Headers::new(bth).deth(QKey(0x1111), Qpn::new(5));
                bytes[..headers.as_slice().len()].copy_from_slice(headers.as_slice());
            }
            bytes.resize(bytes.len() + len + 4, 0);
            let packet = Packet::parse(&bytes, bytes.len()).unwrap();
            let path = Path {
                source: PEER,
                destination: OWN,
            };
            let reason = admit(packet, &qp, &path, |_| false, |_| true).err();
            let fits = match opcode.operation() {
                Operation::Cnp => len == 16,
                Operation::Acknowledge | Operation::AtomicAck => len == 0,
                _ => transport != Transport::Ud || len <= 1024,
            };
            let expected = (!fits).then_some(DropReason::BadLength);
            assert_eq!(reason, expected, "{opcode:?} {len}");
        }
    }
}

#[test]
fn gsi_accepts_any_pkey_of_the_table() {
    let qp = AdmissionAttrs {
        qpn: Qpn::GSI,
        qkey: QKey::GSI,
        ..attrs(Transport::Ud)
    };
    let mut bth = send(Transport::Ud);
    bth.pkey = PKey(0x8002);
    assert_eq!(run(bth, QKey::GSI.0, &qp, PEER, true), (None, true));
    bth.pkey = PKey(0x8003);
    assert_eq!(
        run(bth, QKey::GSI.0, &qp, PEER, true),
        (Some(DropReason::BadPKey), true)
    );
}

/// The multicast QPN needs a multicast GID and vice versa; connections have neither.
#[test]
fn multicast_qpn_needs_a_multicast_gid() {
    let v6 = {
        let mut bytes = [0; 16];
        bytes[0] = 0xff;
        bytes[15] = 1;
        Gid(bytes)
    };
    let all = [
        (OWN, false),
        (Gid::from_v4([224, 0, 0, 1]), true),
        (Gid::from_v4([239, 255, 1, 1]), true),
        (Gid::from_v4([223, 0, 0, 1]), false),
        (Gid::from_v4([240, 0, 0, 1]), false),
        (v6, true),
    ];
    for (to, group) in all {
        for qpn in [Qpn::new(0x11), Qpn::MULTICAST] {
            let mut bth = send(Transport::Ud);
            bth.dest_qpn = qpn;
            let good = (qpn == Qpn::MULTICAST) == group;
            let expected = (!good).then_some(DropReason::NoGid);
            let qp = attrs(Transport::Ud);
            assert_eq!(
                run_to(to, bth, 0x1111, &qp, PEER, true),
                (expected, good),
                "{to:?} {qpn:?}"
            );
        }
    }
}

#[test]
fn cnps_come_from_the_peer() {
    let bth = Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0));
    assert_eq!(run(bth, 0, &attrs(Transport::Rc), PEER, true), (None, true));
    let (reason, _) = run(bth, 0, &attrs(Transport::Uc), OWN, true);
    assert_eq!(reason, Some(DropReason::BadPeer));
}

/// A CNP has the P_Key of the packet that this QP sent: its own, whatever the membership, also that
/// of a limited member; another partition's is a violation.
#[test]
fn cnps_have_the_pkey_of_what_they_refer_to() {
    for own in [PKey::DEFAULT, PKey(0x7fff)] {
        let qp = AdmissionAttrs {
            pkey: own,
            ..attrs(Transport::Rc)
        };
        for (key, good) in [(0xffff, true), (0x7fff, true), (0x8001, false), (0, false)] {
            let mut bth = Bth::new(Opcode::CNP, Qpn::new(0x11), Psn::new(0));
            bth.pkey = PKey(key);
            let expected = (!good).then_some(DropReason::BadPKey);
            assert_eq!(
                run(bth, 0, &qp, PEER, true),
                (expected, true),
                "{own:?} {key:#x}"
            );
        }
    }
}
