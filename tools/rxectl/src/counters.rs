// SPDX-License-Identifier: GPL-2.0
//! `rxectl counters`: the hardware counters of a port, grouped by subject.

use crate::cli::Counters;
use crate::device::{Device, Driver};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::output::Out;
use rxe_proto::drop::DropReason;
use rxe_proto::engine::backend::Count;
use serde_json::{json, Map, Value};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Group of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Traffic,
    Events,
    Drops,
    Other,
}

impl Group {
    const ALL: [Self; 4] = [Self::Traffic, Self::Events, Self::Drops, Self::Other];

    fn title(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Events => "protocol events",
            Self::Drops => "dropped packets",
            Self::Other => "other",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Traffic => "traffic",
            Self::Events => "events",
            Self::Drops => "drops",
            Self::Other => "other",
        }
    }

    /// The groups: traffic, protocol events, events of the link, reasons of dropped packets.
    fn of(name: &str) -> Self {
        const TRAFFIC: [&str; 14] = [
            "sent_pkts",
            "sent_bytes",
            "rcvd_pkts",
            "rcvd_bytes",
            "rcvd_without_icrc",
            "rcvd_merged",
            "rcvd_by_reference",
            "send_err",
            TOO_LONG,
            "rdma_sends",
            "rdma_recvs",
            "rx_read_requests",
            "rx_write_requests",
            "rx_atomic_requests",
        ];
        if TRAFFIC.contains(&name) {
            Self::Traffic
        } else if name == GUARD || DropReason::ALL.iter().any(|drop| drop.name() == name) {
            Self::Drops
        } else if name == "link_downed" || Count::ALL.iter().any(|count| count.name() == name) {
            Self::Events
        } else {
            Self::Other
        }
    }
}

/// Datagrams to the RoCE port that processes of the device's namespace were not allowed to send.
pub const GUARD: &str = "egress_guard_drops";

/// Packets that were not sent because they exceeded the path MTU.
pub const TOO_LONG: &str = "tx_too_long";

/// Returns what usually increments a counter, if it hints at a problem.
fn advice(name: &str) -> &'static str {
    match name {
        "rx_bad_icrc" => "damaged in transit, or the peer computes the ICRC differently",
        "rx_bad_pkey" => "the peer is in another partition: rxectl pkey list",
        "rx_bad_qkey" => "the sender uses another Q_Key",
        "rx_no_qp" => "late packets of a closed queue pair, or a wrong number",
        "rx_not_ready" => "a peer sends before the queue pair here is ready to receive (RTR)",
        "rx_bad_state" => "a peer still sends to a queue pair in error",
        "rx_bad_peer" => "not from the address the queue pair is connected to",
        "rx_policy_refused" => {
            "came unprotected where an IPsec policy requires ESP: rxectl doctor says what to do"
        }
        "rx_no_gid" => "sent to an address that is no GID of the device",
        "rx_no_mcast_group" => "no queue pair is attached to the multicast group",
        "no_receive_buffer" => "no receive request was posted for a message, or one that is too short",
        "out_of_seq_request" => "packets were lost or came out of order before",
        "suspect_ack" | "suspect_nak" => {
            "does not match its connection: forged, or the peer counts messages differently"
        }
        "msn_resync" => "the peer counts messages differently",
        "suspect_mark" => "other reserved bits than before: forged, or the peer uses them",
        "implausible_psn" => "further ahead than the peer can be: forged",
        "duplicate_mismatch" => "duplicate of a request that was not received recently: forged, or very late",
        "spurious_nak" => "taken for lost: forged packets, or reordering in the network",
        "tx_gso_fallback" => {
            "at most the first packets of GSO buffers arrived: ethtool -K NETDEV tx-udp-segmentation off"
        }
        "unreadable_memory" => {
            "damaged memory: dmesg says which page; or memory that no kernel code may read"
        }
        "page_fault_dropped" => {
            "page faults took too long: touch on-demand paging memory before, or prefetch it with rdma-core 59 or newer"
        }
        GUARD => "a local process without CAP_NET_RAW sends to UDP port 4791: dmesg says which",
        "send_err" => {
            "the network device or a route refused packets, or an IPsec policy waits for its keys"
        }
        TOO_LONG => {
            "longer than the path MTU allows with the overhead of IPsec: rxectl doctor says what to do"
        }
        _ => "",
    }
}

/// The counters of a device at one time.
struct Reading {
    at: Instant,
    values: Vec<(String, u64)>,
}

impl Reading {
    /// Reads the counters of a device; `None` if it shows none.
    fn take(host: &Host, device: &Device) -> Option<Self> {
        let values = device.counters(host);
        (!values.is_empty()).then(|| Self {
            at: Instant::now(),
            values,
        })
    }

    /// Returns the seconds that have passed since an earlier reading.
    fn seconds_since(&self, before: &Self) -> f64 {
        let passed = self.at.duration_since(before.at);
        passed.as_secs_f64().max(1e-3)
    }

    fn value(&self, name: &str) -> u64 {
        let mut values = self.values.iter();
        values
            .find(|(n, _)| n == name)
            .map_or(0, |(_, value)| *value)
    }
}

/// A counter with its rate, if there was an earlier reading.
struct Row {
    name: String,
    value: u64,
    rate: Option<f64>,
}

fn rows(now: &Reading, before: Option<&Reading>, all: bool) -> Vec<Row> {
    let row = |(name, value): &(String, u64)| {
        let rate = before.map(|before| {
            value.saturating_sub(before.value(name)) as f64 / now.seconds_since(before)
        });
        Row {
            name: name.clone(),
            value: *value,
            rate,
        }
    };
    let rows = now.values.iter().map(row);
    rows.filter(|row| all || row.value != 0).collect()
}

/// The counters as JSON; `interval` is the end of the interval (Unix time in seconds) and its
/// length.
fn as_json(device: &Device, rows: &[Row], interval: Option<(f64, f64)>) -> Value {
    let mut object = Map::new();
    if let Some((time, seconds)) = interval {
        object.insert("time".into(), json!(time));
        object.insert("seconds".into(), json!(seconds));
    }
    object.insert("device".into(), json!(device.name));
    object.insert("driver".into(), json!(device.driver));
    for group in Group::ALL {
        let members = rows.iter().filter(|row| Group::of(&row.name) == group);
        let map: Map<String, Value> = members
            .map(|row| {
                let value = match row.rate {
                    Some(rate) => json!({ "value": row.value, "per_second": rate }),
                    None => json!(row.value),
                };
                (row.name.clone(), value)
            })
            .collect();
        object.insert(group.key().into(), Value::Object(map));
    }
    Value::Object(object)
}

/// Prints the counters; `seconds` is the length of the interval.
fn print(device: &Device, rows: &[Row], seconds: Option<f64>, out: &mut Out<'_>) -> Result<()> {
    write!(out.to, "{}: {}", device.name, device.driver.as_str())?;
    match seconds {
        Some(seconds) => writeln!(out.to, ", the last {seconds:.3} s")?,
        None => writeln!(out.to)?,
    }
    if rows.is_empty() {
        writeln!(out.to, "  all counters are zero")?;
    }
    for group in Group::ALL {
        let members: Vec<&Row> = rows
            .iter()
            .filter(|row| Group::of(&row.name) == group)
            .collect();
        if members.is_empty() {
            continue;
        }
        writeln!(out.to, "  {}", group.title())?;
        for row in members {
            write!(out.to, "    {:<24} {:>16}", row.name, row.value)?;
            if let Some(rate) = row.rate {
                write!(out.to, " {rate:>14.1}/s")?;
            }
            match advice(&row.name) {
                text if !text.is_empty() && row.value != 0 => writeln!(out.to, "  {text}")?,
                _ => writeln!(out.to)?,
            }
        }
    }
    Ok(())
}

/// The error of a device that shows no counters.
fn none_here(host: &Host, device: &Device) -> Error {
    let name = &device.name;
    if !device.exists(host) {
        return removed(device);
    }
    if device.driver == Driver::Other {
        return Error::new(
            format!("{name} has no counters: it belongs to another driver"),
            "use a device of a software RoCE driver: rxectl status lists them",
        );
    }
    Error::new(
        format!("{name} shows no counters here"),
        "run it in the namespace that the device belongs to, and with the /sys of that, such as \
         nsenter -t 1 -m -n rxectl counters",
    )
}

/// The error of a device that has disappeared.
fn removed(device: &Device) -> Error {
    Error::new(
        format!("{} has been removed", device.name),
        "make it again: rdma link add, then run the command again",
    )
}

/// Reports the errors of devices without counters, unless no device is left: then the last of them
/// is returned, as that of the command.
fn report(mut errors: Vec<Error>, none_left: bool, json: bool) -> Result<()> {
    let last = match none_left {
        true => errors.pop(),
        false => None,
    };
    for error in errors {
        error.report(json);
    }
    last.map_or(Ok(()), Err)
}

/// Shows the counters once or at intervals. Fails when no device shows any.
pub fn run(host: &Host, args: &Counters, out: &mut Out<'_>) -> Result<()> {
    let devices = Device::select(host, args.device.as_deref())?;
    let mut readings = Vec::new();
    let mut without = Vec::new();
    for device in devices {
        match Reading::take(host, &device) {
            Some(reading) => readings.push((device, reading)),
            None => without.push(none_here(host, &device)),
        }
    }
    report(without, readings.is_empty(), out.json)?;
    let Some(seconds) = args.watch else {
        let shown = readings
            .iter()
            .map(|(device, reading)| (device, rows(reading, None, args.all)));
        if out.json {
            let all: Vec<Value> = shown
                .map(|(device, rows)| as_json(device, &rows, None))
                .collect();
            return out.document(&all);
        }
        for (device, rows) in shown {
            print(device, &rows, None, out)?;
        }
        return Ok(());
    };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        left = left.saturating_sub(1);
        thread::sleep(Duration::from_secs_f64(seconds));
        let mut now = Vec::new();
        let mut gone = Vec::new();
        for (device, before) in readings {
            // It had counters before.
            match Reading::take(host, &device) {
                Some(reading) => now.push((device, before, reading)),
                None => gone.push(removed(&device)),
            }
        }
        report(gone, now.is_empty(), out.json)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = time.map_or(0.0, |since| since.as_secs_f64());
        if !out.json {
            // Print the rates of one interval together.
            let clock = time as u64 % 86_400;
            let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
            writeln!(out.to, "--- {hour:02}:{minute:02}:{second:02} UTC")?;
        }
        for (device, before, now) in &now {
            let rows = rows(now, Some(before), args.all);
            // More than was asked for: reading and printing take time, and so does waking up.
            let passed = now.seconds_since(before);
            if out.json {
                out.line(&as_json(device, &rows, Some((time, passed))))?;
            } else {
                print(device, &rows, Some(passed), out)?;
            }
        }
        out.to.flush()?;
        readings = now
            .into_iter()
            .map(|(device, _, now)| (device, now))
            .collect();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_group() {
        for drop in DropReason::ALL {
            assert_eq!(Group::of(drop.name()), Group::Drops);
        }
        let messages = [
            Count::SendCompleted,
            Count::ReceiveCompleted,
            Count::ReadRequest,
            Count::WriteRequest,
            Count::AtomicRequest,
        ];
        for count in Count::ALL {
            let group = match messages.contains(&count) {
                true => Group::Traffic,
                false => Group::Events,
            };
            assert_eq!(Group::of(count.name()), group);
        }
        assert_eq!(Group::of("sent_bytes"), Group::Traffic);
        assert_eq!(Group::of("link_downed"), Group::Events);
        assert_eq!(Group::of(GUARD), Group::Drops);
        assert_eq!(Group::of("ack_deferred"), Group::Other);
    }

    #[test]
    fn rates() {
        let start = Instant::now();
        let reading = |ms, packets| Reading {
            at: start + Duration::from_millis(ms),
            values: vec![("sent_pkts".into(), packets), ("send_err".into(), 0)],
        };
        let (before, now) = (reading(0, 100), reading(500, 150));
        let shown = rows(&now, Some(&before), false);
        assert_eq!(shown.len(), 1);
        assert!((shown[0].rate.unwrap() - 100.0).abs() < 1e-6);
        assert_eq!(rows(&now, None, true).len(), 2);
        // The counters of a recreated device start from zero: the rate is 0, not a wrapped value.
        let fresh = rows(&reading(1000, 7), Some(&now), false);
        assert_eq!(fresh[0].rate, Some(0.0));
    }
}
