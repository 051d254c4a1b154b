// SPDX-License-Identifier: GPL-2.0
//! `rxectl qp`, `mr`, `cq` and `pd`: the kernel's RDMA objects.
//!
//! They come from the kernel over netlink, by way of iproute2's `rdma`: what a driver adds of its
//! own appears too. Keys open memory, so they are shown to root only.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::host::{Host, ToolError};
use crate::output::Out;
use serde_json::{Map, Value};

/// Shown in the place of a key.
const MASKED: &str = "masked";

/// Columns of a listing; whatever else there is follows as `name=value`.
fn columns(kind: &str) -> &'static [&'static str] {
    match kind {
        "qp" => &[
            "ifname", "lqpn", "type", "state", "rqpn", "sq-psn", "rq-psn", "pid", "comm",
        ],
        "mr" => &[
            "ifname", "mrn", "mrlen", "rkey", "lkey", "pdn", "pid", "comm",
        ],
        "cq" => &["ifname", "cqn", "cqe", "users", "poll-ctx", "pid", "comm"],
        _ => &["ifname", "pdn", "users", "pid", "comm"],
    }
}

fn is_key(name: &str) -> bool {
    matches!(
        name,
        "rkey" | "lkey" | "local_dma_lkey" | "unsafe_global_rkey"
    )
}

/// Hides every key in a value, however deep.
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

/// The objects of all devices that match. `rdma` prints a flat list.
fn objects(answer: Value, device: Option<&str>, show_keys: bool) -> Vec<Map<String, Value>> {
    let Value::Array(list) = answer else {
        return Vec::new();
    };
    let list = list.into_iter().filter_map(|mut value| {
        if !show_keys {
            mask(&mut value);
        }
        match value {
            Value::Object(map) => Some(map),
            _ => None,
        }
    });
    list.filter(|map| {
        device.is_none_or(|name| map.get("ifname").and_then(Value::as_str) == Some(name))
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

fn print(kind: &str, list: &[Map<String, Value>], out: &mut Out<'_>) -> Result<()> {
    let names = columns(kind);
    let heading = names.iter().map(|name| match *name {
        "ifname" => "DEVICE".to_string(),
        name => name.to_uppercase(),
    });
    let mut rows = vec![heading.collect::<Vec<_>>()];
    for object in list {
        let mut row: Vec<String> = names.iter().map(|name| text(object.get(*name))).collect();
        let rest: Vec<String> = object
            .iter()
            .filter(|(name, _)| {
                !names.contains(&name.as_str()) && !matches!(name.as_str(), "ifindex" | "port")
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

/// Lists the objects of one kind.
pub fn run(host: &Host, kind: &str, device: Option<&str>, out: &mut Out<'_>) -> Result<()> {
    if let Some(name) = device {
        Device::find(host, name)?;
    }
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
    let list = objects(answer, device, host.is_root());
    if out.json {
        return out.document(&list);
    }
    print(kind, &list, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_masked() {
        let answer = json!([
            { "ifname": "rxe0", "mrn": 3, "rkey": "0x1234", "lkey": "0x1234", "x": [{ "rkey": 7 }] },
            { "ifname": "rxe1", "mrn": 4 },
        ]);
        let hidden = objects(answer.clone(), None, false);
        assert_eq!(hidden.len(), 2);
        let shown = serde_json::to_string(&hidden).unwrap();
        assert!(!shown.contains("1234") && !shown.contains('7'), "{shown}");
        let all = objects(answer, Some("rxe0"), true);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0]["rkey"], "0x1234");
    }

    #[test]
    fn odd_answers() {
        for odd in [json!({}), json!(null), json!([1, "x", []])] {
            assert!(objects(odd, None, false).is_empty());
        }
    }
}
