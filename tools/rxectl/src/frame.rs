// SPDX-License-Identifier: GPL-2.0
//! Dissection of captured frames down to the UDP datagram: Ethernet and Linux cooked (with VLAN
//! tags), raw IP and loopback; IPv4, and IPv6 with extension headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// Length of a UDP header in bytes.
const UDP_LEN: usize = 8;

/// A RoCE v2 datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the receiver.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IP and UDP headers as captured.
    pub net: &'a [u8],
    /// The captured part of the UDP payload: the RoCE packet.
    pub payload: &'a [u8],
    /// Length of the UDP payload according to the headers in bytes; more than was captured if the
    /// frame was truncated.
    pub len: usize,
}

/// Type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a> {
    /// A RoCE v2 datagram.
    Roce(Datagram<'a>),
    /// Another frame, with a description.
    Other(&'static str),
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

/// Link types of capture files (LINKTYPE_ numbers).
const ETHERNET: u32 = 1;
const LOOPBACK: u32 = 0;
const RAW: u32 = 101;
const RAW_BSD: [u32; 2] = [12, 14];
const COOKED: u32 = 113;
const IPV4: u32 = 228;
const IPV6: u32 = 229;
const COOKED2: u32 = 276;

/// Dissects a frame of link type `link` (a LINKTYPE_ number).
pub fn dissect(link: u32, frame: &[u8]) -> Found<'_> {
    let found = match link {
        ETHERNET => be16(frame, 12).and_then(|kind| by_type(kind, frame.get(14..)?)),
        COOKED => be16(frame, 14).and_then(|kind| by_type(kind, frame.get(16..)?)),
        COOKED2 => be16(frame, 0).and_then(|kind| by_type(kind, frame.get(20..)?)),
        LOOPBACK => frame.get(4..).and_then(ip),
        RAW | IPV4 | IPV6 => ip(frame),
        link if RAW_BSD.contains(&link) => ip(frame),
        _ => Some(Found::Other("unknown link type")),
    };
    found.unwrap_or(Found::Other("cut short"))
}

/// Dissects what follows an EtherType, with VLAN tags or without: after the type of a tag come its
/// value and the next type.
fn by_type(mut kind: u16, mut packet: &[u8]) -> Option<Found<'_>> {
    // A limit on stacked VLAN tags.
    for _ in 0..4 {
        match kind {
            // 802.1Q, 802.1ad, and what switches used for stacked tags before.
            0x8100 | 0x88a8 | 0x9100 => {
                kind = be16(packet, 2)?;
                packet = packet.get(4..)?;
            }
            0x0800 | 0x86dd => return ip(packet),
            0x8915 => return Some(Found::Other("RoCE v1")),
            _ => return Some(Found::Other("not IP")),
        }
    }
    Some(Found::Other("too many VLAN tags"))
}

fn ip(packet: &[u8]) -> Option<Found<'_>> {
    match packet.first()? >> 4 {
        4 => ipv4(packet),
        6 => ipv6(packet),
        _ => Some(Found::Other("not IP")),
    }
}

fn ipv4(packet: &[u8]) -> Option<Found<'_>> {
    let header = packet.first_chunk::<20>()?;
    let header_len = usize::from(header[0] & 0x0f).checked_mul(4)?;
    if header_len < header.len() {
        return Some(Found::Other("damaged IP header"));
    }
    if header[9] != 17 {
        return Some(Found::Other("not UDP"));
    }
    // A fragment: the flag "more fragments" or an offset is set.
    if be16(packet, 6)? & 0x3fff != 0 {
        return Some(Found::Other("IP fragment"));
    }
    let address = |at| {
        Some(IpAddr::V4(Ipv4Addr::from(
            *packet.get(at..)?.first_chunk::<4>()?,
        )))
    };
    udp(packet, header_len, address(12)?, address(16)?)
}

/// Maximum number of IPv6 extension headers before the UDP header.
const MAX_EXTENSIONS: usize = 8;

/// Dissects an IPv6 packet. The driver drops those with extension headers, as it does those with
/// IPv4 options: the ICRC covers headers of a fixed length.
fn ipv6(packet: &[u8]) -> Option<Found<'_>> {
    let header = packet.first_chunk::<40>()?;
    let (mut next, mut header_len) = (header[6], header.len());
    for walked in 0.. {
        match next {
            17 => break,
            44 => return Some(Found::Other("IP fragment")),
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 if walked < MAX_EXTENSIONS => {
                let extension = packet.get(header_len..)?.first_chunk::<8>()?;
                next = extension[0];
                let more = usize::from(extension[1]).checked_mul(8)?;
                header_len = header_len.checked_add(8)?.checked_add(more)?;
            }
            0 | 43 | 60 => return Some(Found::Other("too many IPv6 extension headers")),
            _ => return Some(Found::Other("not UDP")),
        }
    }
    let address = |at| {
        Some(IpAddr::V6(Ipv6Addr::from(
            *packet.get(at..)?.first_chunk::<16>()?,
        )))
    };
    udp(packet, header_len, address(8)?, address(24)?)
}

/// Dissects the UDP datagram behind an IP header of `header_len` bytes.
fn udp(packet: &[u8], header_len: usize, src: IpAddr, dst: IpAddr) -> Option<Found<'_>> {
    let header = packet.get(header_len..)?.first_chunk::<UDP_LEN>()?;
    if be16(header, 2)? != ROCE_PORT {
        return Some(Found::Other("another UDP port"));
    }
    let net_len = header_len.checked_add(UDP_LEN)?;
    let rest = packet.get(net_len..)?;
    let Some(len) = usize::from(be16(header, 4)?).checked_sub(UDP_LEN) else {
        return Some(Found::Other("damaged UDP header"));
    };
    Some(Found::Roce(Datagram {
        src,
        dst,
        src_port: be16(header, 0)?,
        net: packet.get(..net_len)?,
        // Drop the padding of short Ethernet frames.
        payload: rest.get(..len).unwrap_or(rest),
        len,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns IPv4 and UDP headers followed by `payload`.
    fn v4(payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(payload.len()).unwrap();
        let mut packet = vec![
            0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet[2..4].copy_from_slice(&(len + 28).to_be_bytes());
        packet.extend(50000u16.to_be_bytes());
        packet.extend(ROCE_PORT.to_be_bytes());
        packet.extend((len + 8).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(payload);
        packet
    }

    fn payload_of(found: Found<'_>) -> &[u8] {
        match found {
            Found::Roce(datagram) => datagram.payload,
            Found::Other(what) => panic!("{what}"),
        }
    }

    #[test]
    fn every_link_type() {
        let packet = v4(b"payload!");
        let cases: [(u32, Vec<u8>); 10] = [
            (
                ETHERNET,
                [&[0; 12][..], &[0x91, 0, 0, 1, 8, 0], &packet].concat(),
            ),
            (ETHERNET, [&[0; 12][..], &[8, 0], &packet, &[0; 9]].concat()),
            (
                ETHERNET,
                [
                    &[0; 12][..],
                    &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0],
                    &packet,
                ]
                .concat(),
            ),
            (COOKED, [&[0; 14][..], &[8, 0], &packet].concat()),
            (COOKED2, [&[8, 0][..], &[0; 18], &packet].concat()),
            (
                COOKED,
                [&[0; 14][..], &[0x81, 0, 0, 5, 8, 0], &packet].concat(),
            ),
            (
                COOKED2,
                [&[0x88, 0xa8][..], &[0; 18], &[0, 1, 8, 0], &packet].concat(),
            ),
            (LOOPBACK, [&[2, 0, 0, 0][..], &packet].concat()),
            (RAW, packet.clone()),
            (RAW_BSD[0], packet.clone()),
        ];
        for (link, frame) in &cases {
            assert_eq!(
                payload_of(dissect(*link, frame)),
                b"payload!",
                "link {link}"
            );
        }
    }

    /// Returns an IPv6 header, extension headers (type, bytes) and a UDP header before `payload`.
    fn v6(extensions: &[(u8, Vec<u8>)], payload: &[u8]) -> Vec<u8> {
        let kinds = extensions.iter().map(|(kind, _)| *kind);
        let mut kinds = kinds.chain([17]);
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, kinds.next().unwrap(), 64];
        packet.extend([0; 32]);
        for ((_, bytes), next) in extensions.iter().zip(kinds) {
            let at = packet.len();
            packet.extend(bytes);
            packet[at] = next;
            packet[at + 1] = u8::try_from(bytes.len() / 8 - 1).unwrap();
        }
        let len = u16::try_from(payload.len() + 8).unwrap();
        for value in [50000, ROCE_PORT, len, 0] {
            packet.extend(value.to_be_bytes());
        }
        packet.extend(payload);
        packet
    }

    #[test]
    fn extension_headers() {
        let all = [(0, vec![0; 8]), (43, vec![0; 24]), (60, vec![0; 16])];
        for count in 0..=all.len() {
            let packet = v6(&all[..count], b"payload!");
            let Found::Roce(datagram) = dissect(RAW, &packet) else {
                panic!("{count} headers");
            };
            assert_eq!(datagram.payload, b"payload!");
            assert_eq!(datagram.net.len() + 8, packet.len());
            for len in 40..packet.len() - 8 {
                assert_eq!(dissect(RAW, &packet[..len]), Found::Other("cut short"));
            }
        }
        let fragment = v6(&[(0, vec![0; 8]), (44, vec![0; 8])], b"x");
        assert_eq!(dissect(RAW, &fragment), Found::Other("IP fragment"));
        let many = v6(&vec![(60, vec![0; 8]); 20], b"x");
        assert_eq!(
            dissect(RAW, &many),
            Found::Other("too many IPv6 extension headers")
        );
        let tcp = v6(&[(60, vec![0; 8]), (6, vec![0; 8])], b"x");
        assert_eq!(dissect(RAW, &tcp), Found::Other("not UDP"));
    }

    #[test]
    fn what_is_not_ours() {
        let other = |mut packet: Vec<u8>, at: usize, value: u8| {
            packet[at] = value;
            match dissect(RAW, &packet) {
                Found::Other(what) => what,
                Found::Roce(_) => panic!("taken for RoCE"),
            }
        };
        assert_eq!(other(v4(b"x"), 9, 6), "not UDP");
        assert_eq!(other(v4(b"x"), 6, 0x20), "IP fragment");
        assert_eq!(other(v4(b"x"), 7, 1), "IP fragment");
        assert_eq!(other(v4(b"x"), 0, 0x44), "damaged IP header");
        assert_eq!(other(v4(b"x"), 22, 0), "another UDP port");
        assert_eq!(other(v4(b"x"), 25, 7), "damaged UDP header");
        assert_eq!(other(v4(b"x"), 0, 0x55), "not IP");
        assert_eq!(dissect(ETHERNET, &[0; 13]), Found::Other("cut short"));
        let tags = [&[0; 12][..], &[0x81, 0, 0, 1].repeat(4), &[8, 0, 0x45]].concat();
        assert_eq!(dissect(ETHERNET, &tags), Found::Other("too many VLAN tags"));
        assert_eq!(dissect(9999, &[0; 99]), Found::Other("unknown link type"));
    }

    #[test]
    fn cut_by_the_capture() {
        let packet = v4(&[7; 100]);
        for len in 0..packet.len() {
            match dissect(RAW, &packet[..len]) {
                Found::Roce(datagram) => {
                    assert_eq!(datagram.len, 100);
                    assert_eq!(datagram.payload.len(), len - 28);
                }
                Found::Other(what) => assert_eq!((what, len < 28), ("cut short", true)),
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(link in prop_oneof![Just(ETHERNET), Just(COOKED), Just(COOKED2), Just(LOOPBACK), Just(RAW), any::<u32>()],
                                frame: Vec<u8>) {
            dissect(link, &frame);
        }

        #[test]
        fn lengths_stay_inside(bytes in prop::collection::vec(any::<u8>(), 0..90), first in prop_oneof![Just(0x45u8), Just(0x4fu8), Just(0x60u8)]) {
            let mut packet = bytes;
            if let Some(byte) = packet.first_mut() { *byte = first; }
            if let Some(byte) = packet.get_mut(9) { *byte = 17; }
            if let Found::Roce(datagram) = dissect(RAW, &packet) {
                prop_assert!(datagram.payload.len() <= datagram.len);
            }
        }
    }
}
