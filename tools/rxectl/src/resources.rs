// SPDX-License-Identifier: GPL-2.0
//! `rxectl qp`, `mr`, `cq` and `pd`: the kernel's RDMA objects.
//!
//! The kernel reports them over netlink, to iproute2's `rdma`, with driver-specific attributes.
//! Keys grant access to memory, so they are shown to root only.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::host::{Host, ToolError};
use crate::output::Out;
use serde_json::{Map, Value};

/// Replacement for a hidden key.
const MASKED: &str = "masked";

/// Format of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Unchanged.
    Plain,
    /// 24 bits in hexadecimal, as in captures and in the output of other programs.
    Hex,
    /// Nanoseconds, shown in microseconds.
    Micros,
}

/// A column: name of the attribute, heading, format.
type Column = (&'static str, &'static str, Form);

/// Columns of a listing; other attributes follow as `name=value`.
fn columns(kind: &str) -> &'static [Column] {
    use Form::{Hex, Micros, Plain};
    match kind {
        "qp" => &[
            ("ifname", "DEVICE", Plain),
            ("lqpn", "LQPN", Hex),
            ("type", "TYPE", Plain),
            ("state", "STATE", Plain),
            ("rqpn", "RQPN", Hex),
            ("sq-psn", "SQ-PSN", Hex),
            ("rq-psn", "RQ-PSN", Hex),
            ("drv_sends_unfinished", "SENDS", Plain),
            ("drv_in_flight", "IN-FLIGHT", Plain),
            ("drv_window", "WINDOW", Plain),
            ("drv_retries_left", "RETRIES", Plain),
            ("drv_rnr_retries_left", "RNR", Plain),
            ("drv_rtt_ns", "RTT-US", Micros),
            ("pid", "PID", Plain),
            ("comm", "COMM", Plain),
        ],
        "mr" => &[
            ("ifname", "DEVICE", Plain),
            ("mrn", "MRN", Plain),
            ("mrlen", "LENGTH", Plain),
            ("drv_segments", "SEGMENTS", Plain),
            ("rkey", "RKEY", Plain),
            ("lkey", "LKEY", Plain),
            ("pdn", "PDN", Plain),
            ("pid", "PID", Plain),
            ("comm", "COMM", Plain),
        ],
        "cq" => &[
            ("ifname", "DEVICE", Plain),
            ("cqn", "CQN", Plain),
            ("cqe", "CQE", Plain),
            ("drv_waiting", "WAITING", Plain),
            ("drv_armed", "ARMED", Plain),
            ("drv_overflowed", "OVERFLOWED", Plain),
            ("users", "USERS", Plain),
            ("pid", "PID", Plain),
            ("comm", "COMM", Plain),
        ],
        _ => &[
            ("ifname", "DEVICE", Plain),
            ("pdn", "PDN", Plain),
            ("users", "USERS", Plain),
            ("pid", "PID", Plain),
            ("comm", "COMM", Plain),
        ],
    }
}

fn is_key(name: &str) -> bool {
    matches!(
        name,
        "rkey" | "lkey" | "local_dma_lkey" | "unsafe_global_rkey"
    )
}

/// Hides the keys in a value at any depth.
fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if is_key(name) {
                    *value = Value::from(MASKED);
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(mask),
        _ => {}
    }
}

/// Returns the keys of an object type that the kernel reports to root only.
fn keys_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "mr" => &["rkey", "lkey"],
        "pd" => &["local_dma_lkey"],
        _ => &[],
    }
}

/// Returns the objects of `devices`. `rdma` prints a flat list, of the devices of all drivers.
fn objects(
    kind: &str,
    answer: Value,
    devices: &[Device],
    show_keys: bool,
) -> Vec<Map<String, Value>> {
    let Value::Array(list) = answer else {
        return Vec::new();
    };
    let list = list.into_iter().filter_map(|mut value| {
        if !show_keys {
            mask(&mut value);
        }
        match value {
            Value::Object(mut map) => {
                for name in keys_of(kind).iter().filter(|_| !show_keys) {
                    map.insert((*name).into(), Value::from(MASKED));
                }
                Some(map)
            }
            _ => None,
        }
    });
    list.filter(|map| {
        let of = map.get("ifname").and_then(Value::as_str);
        devices
            .iter()
            .any(|device| of == Some(device.name.as_str()))
    })
    .collect()
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn cell(value: Option<&Value>, form: Form) -> String {
    match (form, value.and_then(Value::as_u64)) {
        (Form::Hex, Some(number)) => format!("{number:#08x}"),
        (Form::Micros, Some(ns)) => format!("{}.{}", ns / 1000, ns % 1000 / 100),
        _ => text(value),
    }
}

fn print(kind: &str, list: &[Map<String, Value>], out: &mut Out<'_>) -> Result<()> {
    let columns = columns(kind);
    let heading = columns.iter().map(|(_, heading, _)| (*heading).to_string());
    let mut rows = vec![heading.collect::<Vec<_>>()];
    for object in list {
        let cells = columns
            .iter()
            .map(|(name, _, form)| cell(object.get(*name), *form));
        let mut row: Vec<String> = cells.collect();
        let rest: Vec<String> = object
            .iter()
            .filter(|(name, _)| {
                !columns.iter().any(|(column, _, _)| column == name)
                    && !matches!(name.as_str(), "ifindex" | "port")
            })
            .map(|(name, value)| format!("{name}={}", text(Some(value))))
            .collect();
        row.push(rest.join(" "));
        rows.push(row);
    }
    out.table(&rows)?;
    if list.is_empty() {
        writeln!(out.to, "(none)")?;
    }
    Ok(())
}

/// Lists the objects of a type: those of a device of any driver, or of all devices of the two
/// software RoCE drivers.
pub fn run(host: &Host, kind: &str, device: Option<&str>, out: &mut Out<'_>) -> Result<()> {
    let devices = match device {
        Some(name) => vec![Device::find(host, name)?],
        None => Device::all(host),
    };
    let arguments = ["-j", "-dd", "resource", "show", kind];
    let answer = host
        .json_tool("rdma", &arguments)
        .map_err(|error| match error {
            ToolError::Missing => Error::new(
                "the program rdma is not installed; it asks the kernel for its RDMA objects",
                "apt install iproute2",
            ),
            ToolError::Failed(said) => Error::new(
                format!("rdma could not list them: {said}"),
                "load the RDMA core (modprobe ib_core) and try again; rxectl doctor says more",
            ),
        })?;
    let list = objects(kind, answer, &devices, host.is_root());
    if out.json {
        return out.document(&list);
    }
    print(kind, &list, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Driver;
    use serde_json::json;

    fn device(name: &str) -> Device {
        Device {
            name: name.into(),
            driver: Driver::RxeRs,
        }
    }

    #[test]
    fn keys_are_masked() {
        let answer = json!([
            { "ifname": "rxe0", "mrn": 3, "rkey": "0x1234", "lkey": "0x1234", "x": [{ "rkey": 7 }] },
            { "ifname": "rxe1", "mrn": 4 },
        ]);
        let hidden = objects(
            "mr",
            answer.clone(),
            &[device("rxe0"), device("rxe1")],
            false,
        );
        assert_eq!(hidden.len(), 2);
        let shown = serde_json::to_string(&hidden).unwrap();
        assert!(!shown.contains("1234") && !shown.contains('7'), "{shown}");
        // The kernel has left these out itself.
        assert_eq!(hidden[1]["rkey"], MASKED);
        let all = objects("mr", answer, &[device("rxe0")], true);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0]["rkey"], "0x1234");
    }

    #[test]
    fn forms() {
        let number = json!(0x1a2b3);
        assert_eq!(cell(Some(&number), Form::Hex), "0x01a2b3");
        assert_eq!(cell(Some(&json!(68_619)), Form::Micros), "68.6");
        assert_eq!(cell(Some(&json!("RTS")), Form::Hex), "RTS");
        assert_eq!(cell(None, Form::Micros), "-");
    }

    #[test]
    fn odd_answers() {
        for odd in [json!({}), json!(null), json!([1, "x", []])] {
            assert!(objects("mr", odd, &[device("rxe0")], false).is_empty());
        }
    }
}
