// SPDX-License-Identifier: GPL-2.0
//! Tests of decoding: packets of real traffic, GSO batches, damaged packets.

use super::*;
use proptest::prelude::*;
use rxe_proto::wire::payload::Source;
use std::rc::Rc;

/// (name, IP and UDP header, UDP payload) of the protocol crate's golden packets.
fn golden() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let text = include_str!("../../../../rxe_rs/proto/tests/golden/captured.txt");
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap())
            .collect()
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[0], bytes(words[1]), bytes(words[2]))
        })
        .collect()
}

/// A pcap file of raw IP packets.
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let words = |values: &[u32]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 101]);
    for (second, packet) in (1_700_000_000u32..).zip(packets) {
        let len = u32::try_from(packet.len()).unwrap();
        file.extend(words(&[second, 250_000, len, len]));
        file.extend(packet);
    }
    file
}

/// Arguments for a file of that name, with --check.
fn args(file: &str) -> Decode {
    Decode {
        file: file.into(),
        check: true,
        wire: false,
        summary: false,
    }
}

fn decoded(file: &[u8], json: bool) -> (String, bool) {
    decoded_with(file, json, &args("test.pcap"))
}

fn decoded_with(file: &[u8], json: bool, args: &Decode) -> (String, bool) {
    let mut to = Vec::new();
    let mut out = Out { json, to: &mut to };
    let fine = decode(file, &args.file, args, &mut out).unwrap();
    (String::from_utf8(to).unwrap(), fine)
}

fn summary(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn golden_packets() {
    let packets: Vec<Vec<u8>> = golden()
        .into_iter()
        .map(|(_, net, udp)| [net, udp].concat())
        .collect();
    let count = packets.len();
    assert!(count >= 8);
    let (text, fine) = decoded(&pcap(&packets), false);
    assert!(fine, "{text}");
    assert_eq!(text.matches(" icrc good\n").count(), count, "{text}");
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "22:13:20.250000000 10.77.0.2 > 10.77.0.1 Rc Acknowledge qp 0x8b5331 psn 0x8ffc3d \
         pkey 0xffff ack credits 31 msn 1 len 0 pad 0 icrc good"
    );
    let (text, _) = decoded(&pcap(&packets), true);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), count + 1);
    for ((name, _, _), line) in golden().iter().zip(&lines) {
        assert_eq!(line["icrc"], "good", "{name}");
        assert_eq!(line["deth"].is_object(), name.starts_with("UD_"), "{name}");
        assert_eq!(
            line["aeth"].is_object(),
            name.contains("ACK") || name.contains("RESPONSE"),
            "{name}"
        );
        assert_eq!(
            line["src"].as_str().unwrap().contains(':'),
            name.ends_with("V6"),
            "{name}"
        );
    }
    assert_eq!(lines[count]["packets"], count);
    assert_eq!(lines[count]["icrc"]["good"], count);
}

/// A stream of output of which a pipe has the first bytes.
#[derive(Clone, Default)]
struct Flushed {
    written: Rc<Cell<usize>>,
    flushed: Rc<Cell<usize>>,
}

impl Write for Flushed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.set(self.written.get() + bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed.set(self.written.get());
        Ok(())
    }
}

/// A program that captures: it returns one piece for each call, and records how much of the output
/// has been seen by then.
struct Capturing {
    pieces: Vec<Vec<u8>>,
    out: Flushed,
    seen: Rc<RefCell<Vec<usize>>>,
}

impl Read for Capturing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.seen.borrow_mut().push(self.out.flushed.get());
        if self.pieces.is_empty() {
            return Ok(0);
        }
        let piece = self.pieces.remove(0);
        buffer[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

#[test]
fn packets_are_shown_as_they_come() {
    let (_, net, udp) = golden().swap_remove(0);
    let mut rest = pcap(&[[net, udp].concat()]);
    let head: Vec<u8> = rest.drain(..24).collect();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut out = Flushed::default();
    // The second record is cut where its writer has filled a buffer.
    let begun = [&rest, &rest[..10]].concat();
    let live = Capturing {
        pieces: vec![head, begun, rest[10..].to_vec()],
        out: out.clone(),
        seen: seen.clone(),
    };
    let args = args("-");
    let mut to = Out {
        json: false,
        to: &mut out,
    };
    decode(live, &args.file, &args, &mut to).unwrap();
    let seen = seen.borrow();
    let [0, 0, one, two] = seen[..] else {
        panic!("{seen:?}");
    };
    assert!(0 < one && two == 2 * one, "{seen:?}");
}

#[test]
fn damage_is_seen() {
    let (_, net, mut udp) = golden().swap_remove(0);
    udp[11] ^= 1;
    let (text, fine) = decoded(&pcap(&[[net.clone(), udp].concat()]), true);
    assert!(!fine);
    assert_eq!(summary(&text)["icrc"]["bad"], 1);

    let (_, _, mut udp) = golden().swap_remove(0);
    udp[0] = 0xc0;
    let (text, fine) = decoded(&pcap(&[[net, udp].concat()]), true);
    assert!(!fine);
    assert_eq!(summary(&text)["malformed"]["rx_unknown_opcode"], 1);
}

#[test]
fn cut_packets_are_not_blamed() {
    let (_, net, udp) = golden()
        .into_iter()
        .find(|(name, ..)| name.starts_with("UD_"))
        .unwrap();
    let whole = [net, udp].concat();
    for len in [whole.len() - 1, 28 + 20, 28 + 3] {
        let (text, fine) = decoded(&pcap(&[whole[..len].to_vec()]), true);
        assert!(fine, "{text}");
        assert_eq!(summary(&text)["icrc"]["unknown"], 1);
    }
    let file = pcap(&[whole]);
    let (text, fine) = decoded(&file[..file.len() - 1], true);
    assert!(!fine);
    assert!(summary(&text)["ended"].is_string());
}

/// What the captured part and the length show is certain; only missing headers are not.
#[test]
fn cut_packets_may_be_malformed() {
    let (_, net, _) = golden().swap_remove(0);
    let frame = |udp: &[u8], keep: usize| {
        let net = segment_net(&net, 0, udp.len()).unwrap();
        pcap(&[[&net, &udp[..keep]].concat()])
    };
    let mut version = packet_of(4, 1, &[0; 64]);
    version[1] |= 1;
    for (udp, keep, reason) in [
        (version, 20, "rx_bad_version"),
        (packet_of(0xc0, 1, &[0; 64]), 20, "rx_unknown_opcode"),
        (packet_of(0xc0, 1, &[0; 64]), 1, "rx_unknown_opcode"),
        (packet_of(4, 1, &[0; 65]), 20, "rx_bad_length"),
        (packet_of(4, 1, &[0; 65]), 0, "rx_bad_length"),
        // An RDMA header has 16 bytes.
        (packet_of(0x0a, 1, &[0; 16]), 20, "rx_too_short"),
    ] {
        let (text, fine) = decoded(&frame(&udp, keep), true);
        assert!(!fine, "{text}");
        assert_eq!(summary(&text)["malformed"], json!({ reason: 1 }), "{text}");
    }
    let udp = packet_of(0x0a, 1, &[0; 20]);
    for keep in [0, 1, 11, 27] {
        let (text, fine) = decoded(&frame(&udp, keep), true);
        assert!(fine, "{text}");
        let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["cut"], true, "{text}");
        assert_eq!(line.get("malformed"), None, "{text}");
        assert_eq!(summary(&text)["other"]["cut by the capture"], 1, "{text}");
        let (text, _) = decoded(&frame(&udp, keep), false);
        assert!(text.contains(" headers cut by the capture ("), "{text}");
        assert!(!text.contains("malformed"), "{text}");
    }
}

/// A packet but for its ICRC: a BTH with that opcode, and what follows it.
fn packet_of(opcode: u8, psn: u8, rest: &[u8]) -> Vec<u8> {
    let bth = [opcode, 0x40, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, psn];
    [&bth, rest].concat()
}

/// A GSO batch of UC SENDs of several packets.
fn gso_batch_of(count: u8, payload: usize, last: usize, with_icrc: bool) -> Vec<u8> {
    let packets: Vec<Vec<u8>> = (0..count)
        .map(|number| {
            let len = if number + 1 == count { last } else { payload };
            // First, middle, last.
            let opcode = match number {
                0 => 0x20,
                n if n + 1 == count => 0x22,
                _ => 0x21,
            };
            packet_of(opcode, number, &vec![number; len])
        })
        .collect();
    gso_batch(&packets, with_icrc)
}

/// A GSO batch as a tap gets it from the stack: one datagram, in which each packet has its own
/// ICRC, or zeros in its place.
fn gso_batch(packets: &[Vec<u8>], with_icrc: bool) -> Vec<u8> {
    let net = {
        let (_, net, _) = golden()
            .into_iter()
            .find(|(name, ..)| name.ends_with("V4"))
            .unwrap();
        net
    };
    let mut all = Vec::new();
    for (packet, number) in packets.iter().zip(0u16..) {
        let net = segment_net(&net, number, packet.len() + 4).unwrap();
        all.extend(packet);
        all.extend(match with_icrc {
            true => icrc(&SoftCrc, &net, packet, []),
            false => [0; 4],
        });
    }
    let net = segment_net(&net, 0, all.len()).unwrap();
    [net, all].concat()
}

#[test]
fn gso_batches_are_split() {
    for (count, payload, last) in [(3, 1024, 1024), (5, 4096, 8), (2, 256, 256)] {
        let (text, fine) = decoded(&pcap(&[gso_batch_of(count, payload, last, true)]), true);
        assert!(fine, "{text}");
        let summary = summary(&text);
        assert_eq!(summary["gso_batches"], 1);
        assert_eq!(summary["packets"], count);
        assert_eq!(summary["icrc"]["good"], count);
    }
    // One packet is damaged; the others must still be found correct.
    let mut packet = gso_batch_of(3, 1024, 1024, true);
    packet[28 + 1040 + 50] ^= 1;
    let (text, fine) = decoded(&pcap(&[packet]), true);
    assert!(!fine);
    assert_eq!(
        summary(&text)["icrc"],
        json!({ "good": 2, "bad": 1, "unknown": 0, "omitted": 0 })
    );
}

/// The driver makes one buffer of all consecutive packets of equal length, whatever they are.
#[test]
fn gso_batches_of_single_packets_are_split() {
    let send = |psn: u8, len: usize| packet_of(0x04, psn, &vec![psn; len]);
    let ack = packet_of(0x11, 9, &[0x1f, 0, 0, 1]);
    let read = packet_of(0x0c, 3, &[1; 16]);
    for packets in [
        // Lists of messages, the last one shorter.
        (0..128).map(|psn| send(psn, 8)).collect(),
        vec![send(0, 64), send(1, 64), send(2, 32)],
        vec![send(0, 4096), send(1, 4)],
        vec![send(0, 64), ack.clone()],
        vec![read, ack],
    ] {
        for with_icrc in [true, false] {
            let (text, fine) = decoded(&pcap(&[gso_batch(&packets, with_icrc)]), true);
            assert!(fine, "{text}");
            let summary = summary(&text);
            assert_eq!(summary["packets"], packets.len(), "{text}");
            let verdict = if with_icrc { "good" } else { "omitted" };
            assert_eq!(summary["icrc"][verdict], packets.len(), "{text}");
        }
    }
}

/// Datagrams of one batch may be for several queue pairs.
#[test]
fn gso_batches_of_datagrams_are_split() {
    let packets: Vec<Vec<u8>> = (0..3u8)
        .map(|number| {
            let mut packet = packet_of(0x64, number, &[0; 8 + 64]);
            packet[7] = 17 + number;
            packet
        })
        .collect();
    for with_icrc in [true, false] {
        let (text, fine) = decoded(&pcap(&[gso_batch(&packets, with_icrc)]), true);
        assert!(fine, "{text}");
        assert_eq!(summary(&text)["packets"], packets.len(), "{text}");
    }
}

/// Counts the bytes over which ICRCs are computed.
#[derive(Default)]
struct CountingCrc(Cell<usize>);

impl Crc for CountingCrc {
    fn crc32_le(&self, seed: u32, data: &[u8]) -> u32 {
        self.0.set(self.0.get() + data.len());
        SoftCrc.crc32_le(seed, data)
    }
}

/// Returns how often the ICRC passes over a packet while it is searched for others in it.
fn icrc_passes(packet: &[u8]) -> usize {
    let frame = gso_batch(&[packet.to_vec()], false);
    let Found::Roce(datagram) = dissect(101, &frame) else {
        panic!("no RoCE packet");
    };
    let crc = CountingCrc::default();
    split_gso_batch(&crc, &datagram);
    crc.0.get() / datagram.len
}

/// The search for the packets of a batch takes time in proportion to its length, whatever is in it.
#[test]
fn search_for_packets_is_bounded() {
    // Zeros look like a SEND to queue pair 0, and this pattern like one to 0xffff, at each offset.
    for payload in [[0; 4], [4, 0, 0xff, 0xff]] {
        for words in [1024, 16_000] {
            let mut packet = packet_of(4, 1, &payload.repeat(words));
            assert_eq!(icrc_passes(&packet), 0, "{payload:?}");
            // The queue pair of the packet itself.
            packet[4..8].copy_from_slice(&payload);
            let passes = icrc_passes(&packet);
            assert!(passes <= MAX_ICRC_PASSES, "{payload:?}: {passes}");
        }
    }
}

/// Packets that do not leave the kernel have no ICRC: that is no fault, and batches of them are
/// split as well.
#[test]
fn packets_of_one_kernel() {
    for (count, payload, last) in [(3, 1024, 1024), (5, 4096, 8), (1, 64, 64)] {
        let (text, fine) = decoded(&pcap(&[gso_batch_of(count, payload, last, false)]), true);
        assert!(fine, "{text}");
        let summary = summary(&text);
        assert_eq!(summary["gso_batches"], u8::from(count > 1));
        assert_eq!(summary["packets"], count);
        assert_eq!(
            summary["icrc"],
            json!({ "good": 0, "bad": 0, "unknown": 0, "omitted": count })
        );
    }
    // Zeros in the payload are no end of a packet.
    let (text, _) = decoded(&pcap(&[gso_batch_of(1, 2048, 2048, false)]), false);
    assert!(text.contains("len 2048 pad 0 icrc omitted\n"), "{text}");
    assert!(
        text.contains(" without an ICRC: valid only if they did not leave this kernel"),
        "{text}"
    );
    // A reference in place of the payload.
    let mut frame = gso_batch_of(1, Reference::LEN, Reference::LEN, false);
    let icrc = frame.last_chunk_mut().expect("a packet ends with an ICRC");
    *icrc = Reference::MARK;
    let (text, fine) = decoded(&pcap(&[frame]), false);
    assert!(fine && text.contains("icrc omitted\n"), "{text}");
}

/// On a wire each packet has an ICRC.
#[test]
fn packets_without_icrc_on_a_wire() {
    let wire = Decode {
        wire: true,
        ..args("test.pcap")
    };
    for (with_icrc, wanted) in [(true, true), (false, false)] {
        let file = pcap(&[gso_batch_of(3, 1024, 1024, with_icrc)]);
        let (text, fine) = decoded_with(&file, false, &wire);
        assert_eq!(fine, wanted, "{text}");
        assert_eq!(
            text.contains("  3 packets without an ICRC: wrong on a wire\n"),
            !wanted
        );
        let (text, fine) = decoded_with(&file, true, &wire);
        assert_eq!(fine, wanted, "{text}");
    }
}

/// A packet by reference is shown with the length of the payload that it stands for.
#[test]
fn packets_by_reference() {
    let (_, net, _) = golden().swap_remove(0);
    let reference = Reference {
        source: Source::Request {
            index: 5,
            offset: 0,
        },
        len: 59_999,
        mtu: 4096,
    };
    let mut packet = packet_of(4, 1, &reference.emit());
    packet[1] |= 1 << 4;
    packet.extend(Reference::MARK);
    let net = segment_net(&net, 0, packet.len()).unwrap();
    let file = pcap(&[[net, packet].concat()]);
    let (text, _) = decoded(&file, false);
    assert!(
        text.contains(" len 59999 pad 1 by reference icrc omitted\n"),
        "{text}"
    );
    let (text, _) = decoded(&file, true);
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(line["by_reference"], true, "{text}");
    assert_eq!(line["payload_len"], 59_999, "{text}");
    assert_eq!(line["pad"], 1, "{text}");
    assert_eq!(line["len"], 40, "{text}");
}

/// The mark of packets by reference counts with a reference only.
#[test]
fn mark_without_reference() {
    let (_, net, _) = golden().swap_remove(0);
    let frame = |payload: &[u8], pad: u8| {
        let mut packet = packet_of(4, 1, payload);
        packet[1] |= pad << 4;
        packet.extend(Reference::MARK);
        let net = segment_net(&net, 0, packet.len()).unwrap();
        pcap(&[[net, packet].concat()])
    };
    let reference = Reference {
        source: Source::Request {
            index: 5,
            offset: 0,
        },
        len: 60_000,
        mtu: 4096,
    };
    let long = Reference {
        len: Reference::MAX + 4,
        ..reference
    };
    for (payload, pad, verdict) in [
        (&reference.emit()[..], 0, "omitted"),
        // The pad is that of another length.
        (&reference.emit(), 1, "bad"),
        (&long.emit(), 0, "bad"),
        (&[0; Reference::LEN + 4], 0, "bad"),
        (b"data", 0, "bad"),
        (b"", 0, "bad"),
    ] {
        let (text, fine) = decoded(&frame(payload, pad), true);
        assert_eq!(summary(&text)["icrc"][verdict], 1, "{text}");
        assert_eq!(fine, verdict == "omitted");
    }
}

#[test]
fn no_capture_no_decoding() {
    let args = args("x");
    for file in [&b""[..], b"junk", b"not a capture at all"] {
        let mut to = Vec::new();
        let mut out = Out {
            json: false,
            to: &mut to,
        };
        let error = decode(file, &args.file, &args, &mut out).unwrap_err();
        assert!(error.fix.contains("tcpdump"), "{error}");
    }
}

proptest! {
    #[test]
    fn damaged_packets_never_panic(which in 0usize..8, at in 0usize..200, with: Vec<u8>, keep in 0usize..300) {
        let (_, net, udp) = golden().swap_remove(which);
        let mut packet = [net, udp].concat();
        let at = at.min(packet.len());
        let end = (at + with.len()).min(packet.len());
        packet.splice(at..end, with);
        packet.truncate(keep);
        let file = pcap(&[packet]);
        let (text, _) = decoded(&file, true);
        prop_assert_eq!(&summary(&text)["frames"], 1);
        decoded(&file, false);
    }

    #[test]
    fn damaged_files_never_panic(at in 0usize..1000, with: Vec<u8>) {
        let packets: Vec<Vec<u8>> = golden().into_iter().map(|(_, net, udp)| [net, udp].concat()).collect();
        let mut file = pcap(&packets);
        let at = 24 + at.min(file.len() - 24);
        let end = (at + with.len()).min(file.len());
        file.splice(at..end, with);
        decoded(&file, true);
    }
}
