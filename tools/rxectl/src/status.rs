// SPDX-License-Identifier: GPL-2.0
//! `rxectl status`: devices, their links and their state.

use crate::device::{mac_of_guid, Device, Driver, GidEntry};
use crate::error::Result;
use crate::host::Host;
use crate::output::Out;
use crate::pkey::PkeyRow;
use serde::{Serialize, Serializer};
use std::fmt;

/// The folder with the named network namespaces.
const NAMED: &str = "/run/netns";

/// A network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Namespace {
    /// That of the caller.
    Here,
    /// The one of that name in [`NAMED`].
    Named(String),
}

impl Namespace {
    /// How that of the caller is shown.
    const HERE: &'static str = "here";
}

/// `here`, or the name. A namespace that is named `here` is shown by its path, which no name has.
impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str(Self::HERE),
            Self::Named(name) if name == Self::HERE => write!(f, "{NAMED}/{name}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

impl Serialize for Namespace {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The network device of a link.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Its network namespace, or `None` if it was found neither in that of the caller nor in one
    /// with a name.
    pub namespace: Option<Namespace>,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Operational state: `up`, `down`, …
    pub state: Option<String>,
}

impl Netdev {
    /// Returns true if it is in the namespace of the caller.
    pub fn is_here(&self) -> bool {
        self.namespace == Some(Namespace::Here)
    }
}

/// The information that `status` shows about a device.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Name of the RDMA device.
    pub device: String,
    /// Its driver.
    pub driver: Driver,
    /// Node GUID.
    pub node_guid: Option<String>,
    /// State of the port: `ACTIVE`, `DOWN`, …
    pub state: Option<String>,
    /// Physical state of the port: `LinkUp`, `Disabled`, …
    pub phys_state: Option<String>,
    /// The network device below.
    pub netdev: Option<Netdev>,
    /// Active MTU in bytes.
    pub active_mtu: Option<u32>,
    /// Valid entries of the GID table.
    pub gids: Vec<GidEntry>,
    /// Valid entries of the P_Key table.
    pub pkeys: Vec<PkeyRow>,
    /// Packets dropped because of their P_Key.
    pub bad_pkey: Option<u64>,
    /// Packets dropped because of their Q_Key.
    pub bad_qkey: Option<u64>,
    /// What is unknown, and how to find it out.
    pub notes: Vec<String>,
}

/// What `ibv_devinfo -v` says about a port.
#[derive(Debug, Default, PartialEq, Eq)]
struct PortInfo {
    active_mtu: Option<u32>,
    bad_pkey: Option<u64>,
    bad_qkey: Option<u64>,
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse_devinfo(text: &str) -> PortInfo {
    let mut info = PortInfo::default();
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once(':') else {
            continue;
        };
        let value = value.split_whitespace().next().and_then(number);
        match key {
            "active_mtu" => info.active_mtu = value.and_then(|mtu| mtu.try_into().ok()),
            "bad_pkey_cntr" => info.bad_pkey = value,
            "qkey_viol_cntr" => info.bad_qkey = value,
            _ => {}
        }
    }
    info
}

/// Searches the network device of that name below `device` in this namespace, then in the named
/// ones. Other namespaces, such as those of containers, may have devices of the same name; those of
/// IPVLAN also have the same address, and so have loopback devices. Netlink tells them apart.
fn find_netdev(host: &Host, device: &Device, name: String, mac: Option<&str>) -> Netdev {
    let folder = format!("/sys/class/net/{name}");
    let here = host.read(&format!("{folder}/address")).map(|address| {
        let attribute = |what: &str| host.read(&format!("{folder}/{what}"));
        let netdev = Netdev {
            name: name.clone(),
            namespace: Some(Namespace::Here),
            mtu: attribute("mtu").and_then(|mtu| mtu.parse().ok()),
            state: attribute("operstate"),
        };
        (netdev, mac == Some(address.as_str()))
    });
    let is_here = here.as_ref().and_then(|_| device.is_here(host));
    if let (Some((netdev, true)), None | Some(true)) = (&here, is_here) {
        return netdev.clone();
    }
    for namespace in host.names(NAMED) {
        let arguments = ["-j", "-n", &namespace, "link", "show", "dev", &name];
        let Ok(answer) = host.json_tool("ip", &arguments) else {
            continue;
        };
        let Some(link) = answer.get(0) else {
            continue;
        };
        let text = |key: &str| link.get(key).and_then(|value| value.as_str());
        if text("address") == mac && device.is_in(host, &namespace) != Some(false) {
            return Netdev {
                name,
                namespace: Some(Namespace::Named(namespace)),
                mtu: link
                    .get("mtu")
                    .and_then(|mtu| mtu.as_u64()?.try_into().ok()),
                state: text("operstate").map(str::to_lowercase),
            };
        }
    }
    // The address may have been changed since the device was created.
    match here {
        Some((netdev, _)) if is_here == Some(true) => netdev,
        _ => Netdev {
            name,
            ..Netdev::default()
        },
    }
}

/// Collects the status of a device.
pub fn collect(host: &Host, device: &Device) -> Status {
    let mut notes = Vec::new();
    let guid = device.guid(host);
    let mac = guid.as_deref().and_then(mac_of_guid);
    let netdev = device
        .netdev(host)
        .map(|name| find_netdev(host, device, name, mac.as_deref()));
    match &netdev {
        None => notes.push(
            "the network device is unknown: it has no address, or belongs to another namespace"
                .into(),
        ),
        Some(netdev) if netdev.namespace.is_none() => notes.push(format!(
            "{} is neither here nor in a namespace of {NAMED} that this user may enter",
            netdev.name
        )),
        Some(_) => {}
    }
    let info = match host.tool("ibv_devinfo", &["-v", "-d", &device.name]) {
        Ok(text) => parse_devinfo(&text),
        Err(crate::host::ToolError::Missing) => {
            notes.push(
                "the active MTU is unknown without ibv_devinfo: apt install ibverbs-utils".into(),
            );
            PortInfo::default()
        }
        Err(crate::host::ToolError::Failed(said)) => {
            let said = said.lines().next().unwrap_or("no reason given").to_string();
            notes.push(format!(
                "ibv_devinfo failed ({said}): rxectl doctor says more"
            ));
            PortInfo::default()
        }
    };
    Status {
        driver: device.driver,
        state: device.port_word(host, "state"),
        phys_state: device.port_word(host, "phys_state"),
        active_mtu: info.active_mtu,
        gids: device.gids(host),
        pkeys: device.pkeys(host).into_iter().map(PkeyRow::from).collect(),
        bad_pkey: info
            .bad_pkey
            .or_else(|| device.counter(host, "rx_bad_pkey")),
        bad_qkey: info
            .bad_qkey
            .or_else(|| device.counter(host, "rx_bad_qkey")),
        device: device.name.clone(),
        node_guid: guid,
        netdev,
        notes,
    }
}

fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or("unknown".into(), |value| value.to_string())
}

fn print(status: &Status, out: &mut Out<'_>) -> Result<()> {
    writeln!(
        out.to,
        "{}: {} port {} ({})",
        status.device,
        status.driver.as_str(),
        shown(status.state.as_deref()),
        shown(status.phys_state.as_deref())
    )?;
    match &status.netdev {
        Some(netdev) => writeln!(
            out.to,
            "  netdev    {} ({}), namespace {}",
            netdev.name,
            shown(netdev.state.as_deref()),
            shown(netdev.namespace.as_ref())
        )?,
        None => writeln!(out.to, "  netdev    unknown")?,
    }
    writeln!(
        out.to,
        "  mtu       {} active, {} of the netdev",
        shown(status.active_mtu),
        shown(status.netdev.as_ref().and_then(|netdev| netdev.mtu))
    )?;
    writeln!(out.to, "  node guid {}", shown(status.node_guid.as_deref()))?;
    for gid in &status.gids {
        let address = match gid.gid.to_ipv4_mapped() {
            Some(v4) => v4.to_string(),
            None => gid.gid.to_string(),
        };
        writeln!(
            out.to,
            "  gid {:<5} {address}  {}  {}",
            gid.index,
            gid.kind.as_deref().unwrap_or("?"),
            gid.netdev.as_deref().unwrap_or("?")
        )?;
    }
    for row in &status.pkeys {
        let (key, member) = (&row.pkey, row.membership);
        writeln!(out.to, "  pkey {:<4} {key} {member}", row.index)?;
    }
    writeln!(
        out.to,
        "  dropped   {} for their P_Key, {} for their Q_Key",
        shown(status.bad_pkey),
        shown(status.bad_qkey)
    )?;
    for note in &status.notes {
        writeln!(out.to, "  note      {note}")?;
    }
    Ok(())
}

/// Runs `rxectl status` for a device or for all.
pub fn run(host: &Host, device: Option<&str>, out: &mut Out<'_>) -> Result<()> {
    let devices = Device::select(host, device)?;
    let all: Vec<Status> = devices.iter().map(|device| collect(host, device)).collect();
    if out.json {
        return out.document(&all);
    }
    for status in &all {
        print(status, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devinfo() {
        let text = "hca_id:\trxe0\n\ttransport:\t\tInfiniBand (0)\n\t\tport:\t1\n\
                    \t\t\tactive_mtu:\t\t1024 (3)\n\t\t\tbad_pkey_cntr:\t\t0x1f\n\
                    \t\t\tqkey_viol_cntr:\t\t0x2\n\t\t\tmax_mtu: 4096 (5)\n";
        assert_eq!(
            parse_devinfo(text),
            PortInfo {
                active_mtu: Some(1024),
                bad_pkey: Some(31),
                bad_qkey: Some(2)
            }
        );
        assert_eq!(parse_devinfo(""), PortInfo::default());
        assert_eq!(parse_devinfo("active_mtu:\nx\n:"), PortInfo::default());
    }
}
