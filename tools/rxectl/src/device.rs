// SPDX-License-Identifier: GPL-2.0
//! RDMA devices and their attributes in sysfs.

use crate::error::{Error, Result};
use crate::host::{Host, ToolError};
use rxe_proto::table::pkeys;
use serde::Serialize;
use serde_json::Value;
use std::net::Ipv6Addr;

/// The sysfs folder of RDMA devices.
const CLASS: &str = "/sys/class/infiniband";

/// Arguments of `rdma` with which it lists the links, and names those network devices that are in
/// its network namespace.
const LINKS: [&str; 3] = ["-j", "link", "show"];

/// Driver of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Driver {
    /// `rxe_rs`.
    #[serde(rename = "rxe_rs")]
    RxeRs,
    /// `rdma_rxe`.
    #[serde(rename = "rdma_rxe")]
    RdmaRxe,
    /// Any other driver.
    #[serde(rename = "other")]
    Other,
}

impl Driver {
    /// Returns the name of the module.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RxeRs => "rxe_rs",
            Self::RdmaRxe => "rdma_rxe",
            Self::Other => "other",
        }
    }
}

/// A valid entry of the GID table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u16,
    /// The GID as an IPv6 address; IPv4 addresses are mapped.
    pub gid: Ipv6Addr,
    /// `RoCE v2` or `IB/RoCE v1`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The network device that has the address.
    pub netdev: Option<String>,
}

impl GidEntry {
    /// Returns true for a link-local address, which every device has and only neighbours can reach.
    pub fn is_routable(&self) -> bool {
        self.gid.segments()[0] & 0xffc0 != 0xfe80
    }
}

/// A valid entry of the P_Key table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PkeyEntry {
    /// Index in the table.
    pub index: u16,
    /// The key with its membership bit.
    pub pkey: u16,
}

/// An RDMA device; port 1, for these devices have no other.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name, such as `rxe0`.
    pub name: String,
    /// Its driver.
    pub driver: Driver,
}

/// Returns the MAC address that a GUID was derived from (EUI-64): `00:50:c2:00:00:01` for
/// `0250:c2ff:fe00:0001`.
pub fn mac_of_guid(guid: &str) -> Option<String> {
    let digits: String = guid.chars().filter(|c| *c != ':').collect();
    let value = u64::from_str_radix(&digits, 16).ok()?;
    let [a, b, c, 0xff, 0xfe, d, e, f] = value.to_be_bytes() else {
        return None;
    };
    let a = a ^ 2;
    Some(format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
}

impl Device {
    fn named(host: &Host, name: &str) -> Self {
        let folder = format!("{CLASS}/{name}");
        let described = host.read(&format!("{folder}/node_desc"));
        let described = described.as_deref().unwrap_or_default();
        let counts =
            |counter: &str| host.exists(&format!("{folder}/ports/1/hw_counters/{counter}"));
        // The node description can be edited, so the driver is recognized by its counters.
        let driver = if host.exists(&format!("{folder}/pkey_table"))
            || counts("rx_bad_icrc")
            || described == "rxe_rs"
        {
            Driver::RxeRs
        } else if counts("completer_retry_err") || described == "rxe" {
            Driver::RdmaRxe
        } else {
            Driver::Other
        };
        Self {
            name: name.to_string(),
            driver,
        }
    }

    /// Returns all devices of the two software RoCE drivers.
    pub fn all(host: &Host) -> Vec<Self> {
        let names = host.names(CLASS);
        let devices = names.iter().map(|name| Self::named(host, name));
        devices
            .filter(|device| device.driver != Driver::Other)
            .collect()
    }

    /// Returns the device of that name, of any driver.
    pub fn find(host: &Host, name: &str) -> Result<Self> {
        // The name becomes part of a path.
        let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
        if plain && host.exists(&format!("{CLASS}/{name}")) {
            return Ok(Self::named(host, name));
        }
        let known = host.names(CLASS).join(", ");
        Err(Error::new(
            format!("there is no RDMA device {name:?} here"),
            if known.is_empty() {
                "make one: rdma link add rxe0 type rxe_rs netdev eth0; if that fails: rxectl doctor"
                    .into()
            } else {
                format!("use one of: {known}")
            },
        ))
    }

    /// Returns the named device, or all devices of the two drivers; an error if there is none.
    pub fn select(host: &Host, name: Option<&str>) -> Result<Vec<Self>> {
        match name {
            Some(name) => Ok(vec![Self::find(host, name)?]),
            None => {
                let devices = Self::all(host);
                if devices.is_empty() {
                    return Err(Error::new(
                        "there is no software RoCE device here",
                        "make one: rdma link add rxe0 type rxe_rs netdev eth0; if that fails: rxectl doctor",
                    ));
                }
                Ok(devices)
            }
        }
    }

    /// Returns true if the device still exists.
    pub fn exists(&self, host: &Host) -> bool {
        host.exists(&format!("{CLASS}/{}", self.name))
    }

    /// Returns the path of an attribute of the device.
    pub fn attribute(&self, name: &str) -> String {
        format!("{CLASS}/{}/{name}", self.name)
    }

    /// Returns the path of an attribute of the port.
    pub fn port_attribute(&self, name: &str) -> String {
        format!("{CLASS}/{}/ports/1/{name}", self.name)
    }

    /// Returns the word of an attribute such as `4: ACTIVE`.
    pub fn port_word(&self, host: &Host, name: &str) -> Option<String> {
        let text = host.read(&self.port_attribute(name))?;
        let word = text
            .split_once(": ")
            .map_or(text.as_str(), |(_, word)| word);
        Some(word.to_string())
    }

    /// Returns the node GUID.
    pub fn guid(&self, host: &Host) -> Option<String> {
        host.read(&self.attribute("node_guid"))
    }

    /// Returns the valid entries of the GID table.
    pub fn gids(&self, host: &Host) -> Vec<GidEntry> {
        let entry = |index: &String| {
            let gid = host.read(&self.port_attribute(&format!("gids/{index}")))?;
            let gid: Ipv6Addr = gid.parse().ok()?;
            if gid.is_unspecified() {
                return None;
            }
            let attribute = |name| {
                host.read(&self.port_attribute(&format!("gid_attrs/{name}/{index}")))
                    .filter(|text| !text.is_empty())
            };
            Some(GidEntry {
                index: index.parse().ok()?,
                gid,
                kind: attribute("types"),
                netdev: attribute("ndevs"),
            })
        };
        let names = host.names(&self.port_attribute("gids"));
        names.iter().filter_map(entry).collect()
    }

    /// Returns the valid entries of the P_Key table, as the RDMA core shows them.
    pub fn pkeys(&self, host: &Host) -> Vec<PkeyEntry> {
        let entry = |index: &String| {
            let text = host.read(&self.port_attribute(&format!("pkeys/{index}")))?;
            let pkey = u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
            (pkey & 0x7fff != 0).then_some(PkeyEntry {
                index: index.parse().ok()?,
                pkey,
            })
        };
        let names = host.names(&self.port_attribute("pkeys"));
        names.iter().filter_map(entry).collect()
    }

    /// Returns the number of entries of the P_Key table.
    pub fn pkey_capacity(&self, host: &Host) -> usize {
        match host.names(&self.port_attribute("pkeys")).len() {
            0 => pkeys::LEN,
            n => n,
        }
    }

    /// Returns the hardware counters, sorted by name.
    pub fn counters(&self, host: &Host) -> Vec<(String, u64)> {
        let folder = self.port_attribute("hw_counters");
        let names = host.names(&folder).into_iter();
        // `lifespan` is no counter, but how long the core caches values, in ms.
        names
            .filter(|name| name != "lifespan")
            .filter_map(|name| {
                let value = host.read(&format!("{folder}/{name}"))?.parse().ok()?;
                Some((name, value))
            })
            .collect()
    }

    /// Returns a hardware counter.
    pub fn counter(&self, host: &Host, name: &str) -> Option<u64> {
        host.read(&self.port_attribute(&format!("hw_counters/{name}")))?
            .parse()
            .ok()
    }

    /// Returns the name of the network device below.
    pub fn netdev(&self, host: &Host) -> Option<String> {
        if let Some(parent) = host.read(&self.attribute("parent")) {
            return Some(parent);
        }
        if let Some(netdev) = self.gids(host).into_iter().find_map(|gid| gid.netdev) {
            return Some(netdev);
        }
        // A device without addresses has no GIDs.
        self.netdev_here(host)
    }

    /// Returns the name of the network device below if that is in this network namespace. Netlink
    /// names it only there.
    pub fn netdev_here(&self, host: &Host) -> Option<String> {
        self.listed(host.json_tool("rdma", &LINKS)).flatten()
    }

    /// Returns true if the network device below is in this network namespace; `None` if that is
    /// unknown.
    pub fn is_here(&self, host: &Host) -> Option<bool> {
        let listed = self.listed(host.json_tool("rdma", &LINKS));
        listed.map(|netdev| netdev.is_some())
    }

    /// The same for a named network namespace.
    pub fn is_in(&self, host: &Host, namespace: &str) -> Option<bool> {
        let arguments = [&["netns", "exec", namespace, "rdma"][..], &LINKS].concat();
        let listed = self.listed(host.json_tool("ip", &arguments));
        listed.map(|netdev| netdev.is_some())
    }

    /// Returns the name of the network device in the answer of `rdma`: `None` if the device is not
    /// listed, `Some(None)` if it is and its network device is in another namespace.
    fn listed(&self, links: std::result::Result<Value, ToolError>) -> Option<Option<String>> {
        let links = links.ok()?;
        let mut links = links.as_array()?.iter();
        let name = |link: &Value| link.get("ifname").and_then(Value::as_str) == Some(&self.name);
        let link = links.find(|link| name(link))?;
        let netdev = link.get("netdev").and_then(Value::as_str);
        Some(netdev.map(str::to_string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids() {
        assert_eq!(
            mac_of_guid("0250:c2ff:fe00:0001").as_deref(),
            Some("00:50:c2:00:00:01")
        );
        assert_eq!(mac_of_guid("0250:c200:0000:0001"), None);
        assert_eq!(mac_of_guid("rubbish"), None);
        assert_eq!(mac_of_guid(""), None);
    }
}
