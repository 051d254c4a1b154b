// SPDX-License-Identifier: GPL-2.0
//! `rxectl decode`: the RoCE v2 packets of a capture, parsed by the driver's own parser.
//!
//! A capture on the sending device may have GSO batches: datagrams of several packets, which the
//! network device or the stack segments later. The ICRC shows where the packets in them end.
//!
//! Packets between queue pairs of one kernel may have four zero bytes in place of the ICRC
//! (`rxe_rs/proto/engine/same_host.rs`), or a mark there and a reference in place of their payload.

use crate::capture::{Capture, CaptureError, Frame};
use crate::cli::Decode;
use crate::error::{Error, Result};
use crate::frame::{dissect, Datagram, Found};
use crate::output::Out;
use rxe_proto::drop::DropReason;
use rxe_proto::wire::icrc::{icrc, Crc, SoftCrc};
use rxe_proto::wire::opcode::{Position, Transport};
use rxe_proto::wire::reference::Reference;
use rxe_proto::wire::{Packet, Syndrome};
use serde_json::{json, Map, Value};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

/// Result of the ICRC check of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Icrc {
    Good,
    Bad,
    /// The packet was not captured completely.
    Unknown,
    /// It is 0, or the mark of a packet by reference: valid only if the packet did not leave the
    /// kernel, which a capture does not show.
    Omitted,
}

impl Icrc {
    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Unknown => "unknown",
            Self::Omitted => "omitted",
        }
    }
}

/// Returns the packet that the packet by reference in `bytes` stands for, if there is one.
fn by_reference(bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = Packet::parse(bytes, bytes.len()).ok()?;
    let len = Reference::parse(&packet, bytes)?.len;
    packet.with_payload_len(usize::try_from(len).ok()?)
}

/// Checks the ICRC of the packet of `len` bytes at the start of `payload`, which follows the
/// headers `net`.
fn judge(crc: &impl Crc, net: &[u8], payload: &[u8], len: usize) -> Icrc {
    let Some(packet) = payload.get(..len) else {
        return Icrc::Unknown;
    };
    let Some((body, sum)) = packet.split_last_chunk::<{ Packet::ICRC_LEN }>() else {
        return Icrc::Unknown;
    };
    if icrc(crc, net, body, []) == *sum {
        Icrc::Good
    } else if *sum == [0; 4] || by_reference(packet).is_some() {
        Icrc::Omitted
    } else {
        Icrc::Bad
    }
}

/// Why there are no headers of a packet to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unparsed {
    Malformed(DropReason),
    /// The headers were not captured completely; what was captured has no fault.
    Cut,
}

/// Parses a packet of `len` bytes, of which `captured` may be the beginning only.
fn parse(captured: &[u8], len: usize) -> std::result::Result<Packet<'_>, Unparsed> {
    let error = match Packet::parse(captured, len) {
        Ok(packet) => return Ok(packet),
        Err(error) => error,
    };
    // Zeros are the opcode with the fewest headers, and no pad: what is wrong with zeros in place
    // of the missing bytes is wrong with any.
    let mut zeros = [0; Packet::MAX_HEADER_LEN];
    let missing = captured.len() < len.min(zeros.len());
    match zeros.get_mut(..captured.len()) {
        Some(head) if missing && error == DropReason::TooShort => head.copy_from_slice(captured),
        _ => return Err(Unparsed::Malformed(error)),
    }
    let head = zeros.get(..len).unwrap_or(&zeros);
    Err(Packet::parse(head, len).map_or_else(Unparsed::Malformed, |_| Unparsed::Cut))
}

/// A packet of a GSO batch, with the headers that it will have on the wire.
struct Segment<'a> {
    net: Vec<u8>,
    bytes: &'a [u8],
}

/// Returns the headers of packet `number`, of `len` bytes, of a GSO batch with the headers `net`.
fn segment_net(net: &[u8], number: u16, len: usize) -> Option<Vec<u8>> {
    let mut net = net.to_vec();
    let udp_at = net.len().checked_sub(8)?;
    let udp_len = u16::try_from(len.checked_add(8)?).ok()?;
    let ip_len = u16::try_from(net.len().checked_add(len)?).ok()?;
    let id = |net: &[u8]| Some(u16::from_be_bytes(*net.get(4..)?.first_chunk()?));
    let put = |net: &mut [u8], at: usize, value: u16| {
        if let Some(to) = net.get_mut(at..).and_then(|net| net.first_chunk_mut()) {
            *to = value.to_be_bytes();
        }
    };
    if net.first()? >> 4 == 4 {
        let next = id(&net)?.wrapping_add(number);
        put(&mut net, 2, ip_len);
        put(&mut net, 4, next);
    } else {
        put(&mut net, 4, ip_len.checked_sub(40)?);
    }
    put(&mut net, udp_at.checked_add(4)?, udp_len);
    Some(net)
}

/// Maximum number of packets in a GSO batch (`UDP_MAX_SEGMENTS` of the kernel).
const MAX_SEGMENTS: usize = 128;

/// Limit on the bytes over which [`split_gso_batch`] computes ICRCs, as a multiple of the length of
/// the datagram: a payload may look like a packet at every offset.
const MAX_ICRC_PASSES: usize = 8;

/// Returns true if packets of both kinds may be in one GSO batch. The packets of a batch are for
/// one queue pair, except datagrams.
fn may_share_batch(first: &Packet<'_>, other: &Packet<'_>) -> bool {
    let datagrams = [first, other].map(|packet| packet.opcode().transport() == Transport::Ud);
    datagrams == [true; 2] || first.bth().dest_qpn == other.bth().dest_qpn
}

/// Splits a GSO batch of packets of equal length, of which the last may be shorter; `None` if the
/// datagram is a single packet.
fn split_gso_batch<'a>(crc: &impl Crc, datagram: &Datagram<'a>) -> Option<Vec<Segment<'a>>> {
    let all = datagram.payload;
    if all.len() != datagram.len {
        return None;
    }
    let first = Packet::parse(all, all.len()).ok()?;
    let mtus = [256usize, 512, 1024, 2048, 4096].into_iter();
    let headers = first.payload_offset();
    let full = mtus.filter_map(|mtu| headers.checked_add(mtu)?.checked_add(Packet::ICRC_LEN));
    let full = full.filter(|_| {
        matches!(
            first.opcode().position(),
            Position::First | Position::Middle
        )
    });
    // The shortest first: without an ICRC several packets look like one.
    let equal = (2..=MAX_SEGMENTS).rev().filter_map(|count| {
        (all.len().checked_rem(count)? == 0).then_some(all.len().checked_div(count)?)
    });
    // The driver batches whatever follows each other, such as messages of one packet each, or a
    // message and an acknowledgement. Where a packet ends another one begins.
    let shortest = headers.saturating_add(Packet::ICRC_LEN);
    let shortest = all.len().div_ceil(MAX_SEGMENTS).max(shortest);
    let longest = shortest.saturating_add(4096);
    let other = (shortest.checked_next_multiple_of(4)?..=longest).step_by(4);
    // This test is cheap and comes first. Zeros in place of the ICRC may be payload as well.
    let followed = |len: &usize| {
        let rest = all.get(*len..).filter(|rest| !rest.is_empty());
        let next = rest.and_then(|rest| Packet::parse(rest, rest.len()).ok());
        next.is_some_and(|next| may_share_batch(&first, &next))
    };
    let mut budget = all.len().saturating_mul(MAX_ICRC_PASSES);
    let affordable = |len: &usize| {
        let left = budget.checked_sub(*len);
        budget = left.unwrap_or_default();
        left.is_some()
    };
    let ends = |len: &usize| {
        let net = segment_net(datagram.net, 0, *len);
        let verdict = net.map(|net| judge(crc, &net, all, *len));
        matches!(verdict, Some(Icrc::Good | Icrc::Omitted))
    };
    let candidates = full.chain(equal).chain(other).filter(followed);
    let len = candidates.take_while(affordable).find(ends)?;
    let segments = all.chunks(len).zip(0u16..);
    segments
        .map(|(bytes, number)| {
            Some(Segment {
                net: segment_net(datagram.net, number, bytes.len())?,
                bytes,
            })
        })
        .collect()
}

/// Counts of a capture.
#[derive(Debug, Default)]
struct Summary {
    frames: u64,
    packets: u64,
    gso_batches: u64,
    good: u64,
    bad: u64,
    unknown: u64,
    omitted: u64,
    opcodes: BTreeMap<String, u64>,
    malformed: BTreeMap<&'static str, u64>,
    other: BTreeMap<&'static str, u64>,
    /// Packets without an ICRC are faults.
    wire: bool,
    /// Why the rest of the file was not read.
    ended: Option<String>,
}

fn bump<K: Ord>(map: &mut BTreeMap<K, u64>, key: K) {
    let count = map.entry(key).or_default();
    *count = count.saturating_add(1);
}

impl Summary {
    fn fine(&self) -> bool {
        let omitted = self.wire && self.omitted != 0;
        self.bad == 0 && !omitted && self.malformed.is_empty() && self.ended.is_none()
    }

    fn json(&self) -> Value {
        json!({
            "type": "summary",
            "frames": self.frames,
            "packets": self.packets,
            "gso_batches": self.gso_batches,
            "icrc": {
                "good": self.good,
                "bad": self.bad,
                "unknown": self.unknown,
                "omitted": self.omitted,
            },
            "opcodes": self.opcodes,
            "malformed": self.malformed,
            "other": self.other,
            "ended": self.ended,
        })
    }

    fn print(&self, out: &mut Out<'_>) -> Result<()> {
        writeln!(
            out.to,
            "{} frames, {} RoCE v2 packets; icrc: {} good, {} bad, {} unknown",
            self.frames, self.packets, self.good, self.bad, self.unknown
        )?;
        if self.omitted != 0 {
            let judgement = match self.wire {
                true => "wrong on a wire",
                false => "valid only if they did not leave this kernel (same_host_icrc)",
            };
            writeln!(
                out.to,
                "  {} packets without an ICRC: {judgement}",
                self.omitted
            )?;
        }
        if self.gso_batches != 0 {
            writeln!(
                out.to,
                "  {} datagrams were GSO batches of several packets (segmentation offload)",
                self.gso_batches
            )?;
        }
        for (opcode, count) in &self.opcodes {
            writeln!(out.to, "  {opcode:<24} {count}")?;
        }
        for (reason, count) in &self.malformed {
            writeln!(out.to, "  malformed: {reason:<13} {count}")?;
        }
        for (what, count) in &self.other {
            writeln!(out.to, "  skipped: {what:<15} {count}")?;
        }
        if let Some(ended) = &self.ended {
            writeln!(out.to, "  the rest of the file was not read: {ended}")?;
        }
        Ok(())
    }
}

/// Formats a time as `HH:MM:SS.nnnnnnnnn`, UTC.
fn clock(time_ns: Option<u64>) -> String {
    let Some(ns) = time_ns else {
        return "--:--:--".into();
    };
    let (seconds, fraction) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{fraction:09}", seconds % 60)
}

/// Returns the headers of a packet as JSON.
fn packet_json(packet: &Packet<'_>) -> Map<String, Value> {
    let bth = packet.bth();
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    put("transport", json!(format!("{:?}", bth.opcode.transport())));
    put("operation", json!(bth.opcode.operation().as_str()));
    put("opcode", json!(bth.opcode.to_u8()));
    put("qp", json!(bth.dest_qpn.get()));
    put("psn", json!(bth.psn.get()));
    put("pkey", json!(format!("{:#06x}", bth.pkey.0)));
    for (flag, name) in [
        (bth.se, "solicited"),
        (bth.migreq, "migreq"),
        (bth.ack_req, "ackreq"),
        (bth.fecn, "fecn"),
        (bth.becn, "becn"),
    ] {
        put(name, json!(flag));
    }
    if let Some(deth) = packet.deth() {
        put(
            "deth",
            json!({ "src_qp": deth.src_qpn().get(), "qkey": format!("{:#010x}", deth.qkey().0) }),
        );
    }
    if let Some(feth) = packet.feth() {
        let covers = feth.selectivity().map(|what| format!("{what:?}"));
        put(
            "feth",
            json!({ "selectivity": covers, "placement": feth.placement() }),
        );
    }
    if let Some(reth) = packet.reth() {
        put(
            "reth",
            json!({
                "va": format!("{:#x}", reth.va()),
                "rkey": format!("{:#010x}", reth.rkey().0),
                "dma_len": reth.dma_len(),
            }),
        );
    }
    if let Some(eth) = packet.atomic_eth() {
        put(
            "atomic_eth",
            json!({
                "va": format!("{:#x}", eth.va()),
                "rkey": format!("{:#010x}", eth.rkey().0),
                "swap_add": format!("{:#x}", eth.swap_add()),
                "compare": format!("{:#x}", eth.compare()),
            }),
        );
    }
    if let Some(aeth) = packet.aeth() {
        let mut value = match aeth.syndrome() {
            Syndrome::Ack { credits } => json!({ "syndrome": "ack", "credits": credits }),
            Syndrome::RnrNak { timer } => json!({ "syndrome": "rnr_nak", "timer": timer }),
            Syndrome::Nak(code) => json!({ "syndrome": "nak", "code": format!("{code:?}") }),
            Syndrome::Reserved => json!({ "syndrome": "reserved" }),
        };
        if let Some(map) = value.as_object_mut() {
            map.insert("msn".into(), json!(aeth.msn().get()));
        }
        put("aeth", value);
    }
    if let Some(eth) = packet.atomic_ack() {
        put("atomic_ack", json!(format!("{:#x}", eth.original())));
    }
    if let Some(imm) = packet.imm() {
        put("imm", json!(format!("{:#010x}", u32::from_be_bytes(imm))));
    }
    if let Some(ieth) = packet.ieth() {
        put("invalidate", json!(format!("{:#010x}", ieth.rkey().0)));
    }
    put("payload_len", json!(packet.payload_len()));
    put("pad", json!(packet.pad_len()));
    map
}

/// Decodes the frames of a [`Capture`] and counts them.
struct Decoder<'o, 'w> {
    out: &'o mut Out<'w>,
    summary_only: bool,
    summary: Summary,
}

impl Decoder<'_, '_> {
    fn frame(&mut self, frame: &Frame) -> Result<()> {
        self.summary.frames = self.summary.frames.saturating_add(1);
        let datagram = match dissect(frame.link, &frame.bytes) {
            Found::Roce(datagram) => datagram,
            Found::Other(what) => {
                bump(&mut self.summary.other, what);
                return Ok(());
            }
        };
        let verdict = judge(&SoftCrc, datagram.net, datagram.payload, datagram.len);
        if matches!(verdict, Icrc::Bad | Icrc::Omitted) {
            if let Some(segments) = split_gso_batch(&SoftCrc, &datagram) {
                self.summary.gso_batches = self.summary.gso_batches.saturating_add(1);
                for segment in segments {
                    let (net, bytes) = (segment.net.as_slice(), segment.bytes);
                    let len = bytes.len();
                    self.packet(
                        frame.time_ns,
                        &Datagram {
                            net,
                            payload: bytes,
                            len,
                            ..datagram
                        },
                        true,
                    )?;
                }
                return Ok(());
            }
        }
        self.packet(frame.time_ns, &datagram, false)
    }

    fn packet(
        &mut self,
        time_ns: Option<u64>,
        datagram: &Datagram<'_>,
        of_gso_batch: bool,
    ) -> Result<()> {
        self.summary.packets = self.summary.packets.saturating_add(1);
        let verdict = judge(&SoftCrc, datagram.net, datagram.payload, datagram.len);
        let count = match verdict {
            Icrc::Good => &mut self.summary.good,
            Icrc::Bad => &mut self.summary.bad,
            Icrc::Unknown => &mut self.summary.unknown,
            Icrc::Omitted => &mut self.summary.omitted,
        };
        *count = count.saturating_add(1);
        let reference = match verdict {
            Icrc::Omitted => by_reference(datagram.payload),
            _ => None,
        };
        let is_reference = reference.is_some();
        let parsed = match reference {
            Some(packet) => Ok(packet),
            None => parse(datagram.payload, datagram.len),
        };
        match &parsed {
            Ok(packet) => {
                let opcode = packet.opcode();
                let (transport, operation) = (opcode.transport(), opcode.operation().as_str());
                bump(
                    &mut self.summary.opcodes,
                    format!("{transport:?} {operation}"),
                );
            }
            Err(Unparsed::Cut) => bump(&mut self.summary.other, "cut by the capture"),
            Err(Unparsed::Malformed(reason)) => bump(&mut self.summary.malformed, reason.name()),
        }
        if self.summary_only {
            return Ok(());
        }
        if self.out.json {
            return self.json_line(
                time_ns,
                datagram,
                of_gso_batch,
                verdict,
                parsed,
                is_reference,
            );
        }
        let (src, dst) = (datagram.src, datagram.dst);
        write!(self.out.to, "{} {src} > {dst} ", clock(time_ns))?;
        let captured = format!(
            "{} bytes, {} captured",
            datagram.len,
            datagram.payload.len()
        );
        match parsed {
            Ok(packet) => {
                let note = if is_reference { " by reference" } else { "" };
                write!(self.out.to, "{packet}{note}")?;
            }
            Err(Unparsed::Malformed(reason)) => {
                write!(self.out.to, "malformed: {} ({captured})", reason.name())?;
            }
            Err(Unparsed::Cut) => {
                write!(self.out.to, "headers cut by the capture ({captured})")?;
            }
        }
        let gso = if of_gso_batch { " gso" } else { "" };
        writeln!(self.out.to, " icrc {}{gso}", verdict.as_str())?;
        Ok(())
    }

    fn json_line(
        &mut self,
        time_ns: Option<u64>,
        datagram: &Datagram<'_>,
        of_gso_batch: bool,
        verdict: Icrc,
        parsed: std::result::Result<Packet<'_>, Unparsed>,
        is_reference: bool,
    ) -> Result<()> {
        let mut map = Map::new();
        map.insert("type".into(), json!("packet"));
        map.insert("time_ns".into(), json!(time_ns));
        map.insert("src".into(), json!(datagram.src));
        map.insert("dst".into(), json!(datagram.dst));
        map.insert("src_port".into(), json!(datagram.src_port));
        map.insert("len".into(), json!(datagram.len));
        map.insert("captured".into(), json!(datagram.payload.len()));
        map.insert("gso".into(), json!(of_gso_batch));
        match parsed {
            Ok(packet) => {
                map.extend(packet_json(&packet));
                map.insert("by_reference".into(), json!(is_reference));
            }
            Err(Unparsed::Malformed(reason)) => {
                map.insert("malformed".into(), json!(reason.name()));
            }
            Err(Unparsed::Cut) => {
                map.insert("cut".into(), json!(true));
            }
        }
        map.insert("icrc".into(), json!(verdict.as_str()));
        self.out.line(&map)
    }
}

fn unreadable(file: &Path, error: &io::Error) -> Error {
    Error::new(
        format!("cannot read {}: {error}", file.display()),
        "name a capture file that you may read, or - for standard input",
    )
}

/// A writer that a [`Live`] source flushes.
struct Shared<'a, 'w>(&'a RefCell<&'w mut dyn Write>);

impl Write for Shared<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// A source that may be a capture in progress: what has been decoded is shown before each read,
/// which may wait.
struct Live<'a, 'w, R> {
    source: R,
    shown: Shared<'a, 'w>,
    /// Why the output could not be flushed.
    unshown: &'a Cell<Option<io::Error>>,
}

impl<R: Read> Read for Live<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Err(error) = self.shown.flush() {
            let kind = error.kind();
            self.unshown.set(Some(error));
            return Err(kind.into());
        }
        self.source.read(buffer)
    }
}

/// Decodes a capture; false if `check` is set and a packet is wrong.
fn decode(source: impl Read, file: &Path, args: &Decode, out: &mut Out<'_>) -> Result<bool> {
    let json = out.json;
    let to: &mut dyn Write = &mut *out.to;
    let shared = RefCell::new(to);
    let out = &mut Out {
        json,
        to: &mut Shared(&shared),
    };
    let unshown = Cell::new(None);
    let source = Live {
        source,
        shown: Shared(&shared),
        unshown: &unshown,
    };
    let mut capture = Capture::open(BufReader::new(source)).map_err(|error| match error {
        CaptureError::Io(error) => unreadable(file, &error),
        CaptureError::NotACapture | CaptureError::CutOff | CaptureError::Damaged(_) => Error::new(
            format!("{} is no pcap or pcapng file", file.display()),
            "make one: tcpdump -i NETDEV -w FILE udp port 4791",
        ),
    })?;
    let mut decoder = Decoder {
        out,
        summary_only: args.summary,
        summary: Summary {
            wire: args.wire,
            ..Summary::default()
        },
    };
    loop {
        match capture.next_frame() {
            Ok(Some(frame)) => decoder.frame(&frame)?,
            Ok(None) => break,
            Err(CaptureError::Io(error)) => {
                return Err(match unshown.take() {
                    Some(error) => error.into(),
                    None => unreadable(file, &error),
                });
            }
            Err(CaptureError::CutOff | CaptureError::NotACapture) => {
                decoder.summary.ended = Some("it ends within a record".into());
                break;
            }
            Err(CaptureError::Damaged(what)) => {
                decoder.summary.ended = Some(what.into());
                break;
            }
        }
    }
    let summary = decoder.summary;
    if out.json {
        out.line(&summary.json())?;
    } else {
        summary.print(out)?;
    }
    Ok(!args.check || summary.fine())
}

/// Runs `rxectl decode` on a file or standard input; returns false if `--check` finds a fault.
pub fn run(args: &Decode, out: &mut Out<'_>) -> Result<bool> {
    if args.file == Path::new("-") {
        return decode(io::stdin(), &args.file, args, out);
    }
    let file = File::open(&args.file).map_err(|error| unreadable(&args.file, &error))?;
    decode(file, &args.file, args, out)
}

#[cfg(test)]
#[path = "decode/tests.rs"]
mod tests;
