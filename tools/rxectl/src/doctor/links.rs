// SPDX-License-Identifier: GPL-2.0
//! Checks of links: driver, port, MTU, addresses.

use super::{attack, Report};
use crate::counters::{GUARD, TOO_LONG};
use crate::device::{Device, Driver};
use crate::host::Host;
use crate::shell;
use crate::status::{self, Namespace, Status};
use rxe_proto::engine::backend::Count;
use rxe_proto::ids::Mtu;

/// How commands are run in the network namespace of a link.
struct Scope {
    /// What precedes a command.
    run: String,
    /// The command `ip`.
    ip: String,
    /// What is said of the above.
    note: &'static str,
}

impl Scope {
    fn of(status: &Status) -> Self {
        let netdev = status.netdev.as_ref();
        match netdev.map(|netdev| netdev.namespace.as_ref()) {
            None | Some(Some(Namespace::Here)) => Self {
                run: String::new(),
                ip: "ip".into(),
                note: "",
            },
            Some(Some(Namespace::Named(name))) => {
                let name = shell::word(name);
                Self {
                    run: format!("ip netns exec {name} "),
                    ip: format!("ip -n {name}"),
                    note: "",
                }
            }
            // Without it the command would change a network device of this namespace that happens
            // to have the same name.
            Some(None) => Self {
                run: "nsenter -t PID -n ".into(),
                ip: "nsenter -t PID -n ip".into(),
                note: " (as root of the host, with the PID of a process in the namespace of the network device)",
            },
        }
    }
}

/// Checks whether the active MTU is what the network device can carry. `about` names the link, and
/// `ip` is the command for its namespace.
fn link_mtu(status: &Status, about: &str, ip: &str, report: &mut Report) {
    let netdev = status.netdev.as_ref();
    let name = netdev.map_or("NETDEV", |netdev| netdev.name.as_str());
    let Some(mtu) = netdev.and_then(|netdev| netdev.mtu) else {
        report.note(
            about,
            "the MTU of its network device cannot be seen from here",
            "run rxectl doctor as root, in the namespace of the network device",
        );
        return;
    };
    let fitting = Mtu::largest_fitting(mtu);
    let best = Mtu::Mtu4096.bytes().saturating_add(Mtu::HEADER_RESERVE);
    let word = shell::word(name);
    let raise = format!(
        "{ip} link set {word} mtu {best} or more, on both hosts and on all devices between them"
    );
    // What remains beside the overhead of ESP, and of ESP in tunnel mode.
    let left = [0, Mtu::TUNNEL_RESERVE].map(|tunnel| {
        let room = Mtu::IPSEC_RESERVE.saturating_add(tunnel);
        let left = Mtu::largest_fitting(mtu.saturating_sub(room));
        (room, left.map(Mtu::bytes))
    });
    match (fitting, status.active_mtu) {
        (None, _) => report.wrong(
            about,
            format!("the MTU of {name}, {mtu}, carries not even the smallest packets"),
            raise,
        ),
        (Some(fits), Some(active)) if active < fits.bytes() && left.iter().any(|(_, l)| *l == Some(active)) => {
            let room = left.iter().find(|(_, l)| *l == Some(active)).map_or(0, |(room, _)| *room);
            report.note(
                about,
                format!(
                    "active MTU {active}, where {name} with MTU {mtu} carries {} without IPsec: policies protect \
                     RoCE packets ({ip} xfrm policy), and RDMA CM, which does not know, cannot connect",
                    fits.bytes()
                ),
                format!(
                    "{ip} link set {word} mtu {} or more, on both hosts and on all devices between them",
                    fits.bytes().saturating_add(Mtu::HEADER_RESERVE).saturating_add(room)
                ),
            );
        }
        (Some(fits), Some(active)) if active != fits.bytes() => report.wrong(
            about,
            format!("active MTU {active}, but {name} with MTU {mtu} carries {}", fits.bytes()),
            format!("{ip} link set {word} down; {ip} link set {word} up; if that does not help, recreate the RDMA link"),
        ),
        (Some(fits), active) => {
            let found = match active {
                Some(active) => format!("active MTU {active} over {name} with MTU {mtu}"),
                None => format!("{name} with MTU {mtu} carries an active MTU of {}", fits.bytes()),
            };
            if fits == Mtu::Mtu4096 {
                report.ok(about, found);
            } else {
                report.note(about, format!("{found}: larger ones are faster"), raise);
            }
        }
    }
}

/// Checks the state of a link, its addresses and its MTU.
fn link(status: &Status, report: &mut Report) {
    let about = status.device.as_str();
    let name = match &status.netdev {
        Some(netdev) => shell::word(&netdev.name),
        None => "NETDEV".into(),
    };
    let Scope { ip, note, .. } = Scope::of(status);
    match status.state.as_deref() {
        Some("ACTIVE") => report.ok(about, "port ACTIVE"),
        state => report.wrong(
            about,
            format!("port {}", state.unwrap_or("state unknown")),
            format!("{ip} link set {name} up; then see that the cable or the peer interface is up: {ip} link show {name}{note}"),
        ),
    }
    link_mtu(status, about, &ip, report);
    let v4 = status
        .gids
        .iter()
        .any(|gid| gid.gid.to_ipv4_mapped().is_some());
    let v6 = status
        .gids
        .iter()
        .any(|gid| gid.gid.to_ipv4_mapped().is_none() && gid.is_routable());
    let add = format!("{ip} address add ADDRESS/PREFIX dev {name}{note}");
    match (v4, v6, status.gids.is_empty()) {
        (true, true, _) => report.ok(about, "GIDs for IPv4 and IPv6"),
        (true, false, _) => report.note(
            about,
            "GIDs for IPv4, none for a routable IPv6 address",
            add,
        ),
        (false, true, _) => report.note(about, "GIDs for IPv6, none for IPv4", add),
        (false, false, false) => {
            report.note(
                about,
                "only link-local GIDs: it reaches its neighbours, and not by RDMA CM",
                add,
            );
        }
        (false, false, true) => report.wrong(about, "no GID: nothing can be addressed", add),
    }
}

/// Checks whether processes of the namespace have tried to forge packets.
fn guard(host: &Host, device: &Device, report: &mut Report) {
    if let Some(refused) = device.counter(host, GUARD).filter(|refused| *refused > 0) {
        report.note(
            &device.name,
            format!(
                "{refused} datagrams to UDP port 4791 refused, of local processes without CAP_NET_RAW: \
                 forged packets, or a program that implements RoCE itself"
            ),
            "dmesg | grep 'UDP port 4791 refused' shows whose they are; \
             such a program needs CAP_NET_RAW, or the module its parameter egress_guard=0",
        );
    }
}

/// Checks whether the network device segments GSO buffers correctly.
fn segmentation(host: &Host, status: &Status, device: &Device, report: &mut Report) {
    let name = Count::GsoFallback.name();
    let Some(times) = device.counter(host, name).filter(|times| *times > 0) else {
        return;
    };
    let Scope { run, note, .. } = Scope::of(status);
    let netdev = status.netdev.as_ref();
    let netdev = netdev.map_or("NETDEV", |netdev| netdev.name.as_str());
    report.note(
        &device.name,
        format!(
            "{name} is {times}: of the GSO buffers that {netdev} segmented only the first packet of each arrived, \
             or none, repeatedly. It seems not to increment the IPv4 identification, which the ICRC covers, \
             or to fragment the buffers; or the network never delivers two packets in a row. \
             Connections send single packets for a while"
        ),
        format!("{run}ethtool -K {} tx-udp-segmentation off{note}", shell::word(netdev)),
    );
}

/// The `rx-flow-hash` types of ethtool for UDP: IPv4 and IPv6.
const UDP_FLOWS: [&str; 2] = ["udp4", "udp6"];

/// Checks whether the network device distributes packets to its receive queues by their UDP ports,
/// which are all that distinguishes the queue pairs of two hosts. Only for a network device of this
/// namespace, whose queues sysfs shows and for which ethtool can ask.
fn receive_queues(host: &Host, status: &Status, report: &mut Report) {
    let Some(netdev) = status.netdev.as_ref().filter(|netdev| netdev.is_here()) else {
        return;
    };
    let name = netdev.name.as_str();
    let queues = host.names(&format!("/sys/class/net/{name}/queues"));
    let queues = queues.iter().filter(|name| name.starts_with("rx-")).count();
    if queues < 2 {
        return;
    }
    // A driver that does not tell how it distributes packets makes ethtool fail.
    let by_address = |flow: &&str| {
        let said = host.tool("ethtool", &["-n", name, "rx-flow-hash", flow]);
        said.is_ok_and(|said| said.contains("IP SA") && !said.contains("L4 bytes 0 & 1"))
    };
    let flows: Vec<&str> = UDP_FLOWS.into_iter().filter(by_address).collect();
    if flows.is_empty() {
        return;
    }
    let word = shell::word(name);
    let fixes: Vec<String> = flows
        .iter()
        .map(|flow| format!("ethtool -N {word} rx-flow-hash {flow} sdfn"))
        .collect();
    report.note(
        &status.device,
        format!(
            "{name} distributes UDP packets to its {queues} receive queues by their addresses only ({}): \
             all that comes from one host is processed on one processor",
            flows.join(", ")
        ),
        fixes.join("; "),
    );
}

/// Checks whether packets exceeded the path MTU.
fn too_long(host: &Host, device: &Device, report: &mut Report) {
    if let Some(count) = device.counter(host, TOO_LONG).filter(|count| *count > 0) {
        report.note(
            &device.name,
            format!(
                "{count} packets were not sent because they exceed the MTU of their path: connections with \
                 this path MTU were established before IPsec policies or keys that leave less room"
            ),
            "let programs connect again with the active MTU, or raise the MTU of the network device: \
             84 bytes more are room for ESP, 124 in a tunnel",
        );
    }
}

/// Checks all software RoCE devices.
pub(super) fn examine(host: &Host, report: &mut Report) {
    let devices = Device::all(host);
    if devices.is_empty() {
        const MAKE: &str =
            "rdma link add rxe0 type rxe_rs netdev eth0 (with the name of your network device)";
        report.wrong(
            "devices",
            "there is no software RoCE device",
            match host.in_initial_user_namespace() {
                true => MAKE.into(),
                // The RDMA core demands CAP_NET_ADMIN of the initial user namespace.
                false => format!(
                    "root of the host can make one in this network namespace: nsenter -t PID -n {MAKE}"
                ),
            },
        );
    }
    for device in &devices {
        let status = status::collect(host, device);
        if device.driver == Driver::RdmaRxe {
            report.wrong(
                &device.name,
                "belongs to rdma_rxe",
                format!(
                    "rdma link del {}; then recreate it with type rxe_rs",
                    shell::word(&device.name)
                ),
            );
        }
        link(&status, report);
        guard(host, device, report);
        segmentation(host, &status, device, report);
        receive_queues(host, &status, report);
        too_long(host, device, report);
    }
    attack::examine(host, &devices, report);
}
