// SPDX-License-Identifier: GPL-2.0
//! Tests that run the program on a simulated host.

mod machine;

use machine::Machine;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

#[test]
fn status_of_a_device() {
    let machine = Machine::healthy("status");
    let all = machine.json(&["status"]);
    let device = &all[0];
    assert_eq!(device["device"], "rxe0");
    assert_eq!(device["driver"], "rxe_rs");
    assert_eq!(device["state"], "ACTIVE");
    assert_eq!(device["netdev"]["name"], "eth0");
    assert_eq!(device["netdev"]["namespace"], "here");
    assert_eq!(device["netdev"]["mtu"], 4200);
    assert_eq!(device["active_mtu"], 4096);
    assert_eq!(device["bad_pkey"], 2);
    assert_eq!(device["bad_qkey"], 0);
    assert_eq!(device["gids"].as_array().unwrap().len(), 3);
    assert_eq!(device["gids"][1]["type"], "RoCE v2");
    let pkeys: Vec<&str> = device["pkeys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["pkey"].as_str().unwrap())
        .collect();
    assert_eq!(pkeys, ["0xffff", "0x8001"]);
    let text = machine.good(&["status", "rxe0"]);
    for part in [
        "rxe0: rxe_rs port ACTIVE",
        "4096 active, 4200",
        "10.77.0.1",
        "fd77::1",
        "0x8001 full",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

#[test]
fn status_in_a_namespace_without_ibverbs_utils() {
    let machine = Machine::healthy("namespace");
    machine.remove("/sys/class/net/eth0");
    machine.remove("/usr/bin/ibv_devinfo");
    machine.put("/run/netns/other", "");
    machine.put("/run/netns/red", "");
    machine.program(
        "ip",
        "case $3 in red) echo '[{\"address\":\"00:50:c2:00:00:01\",\"mtu\":1500,\"operstate\":\"UP\"}]';; *) exit 1;; esac",
    );
    let all = machine.json(&["status"]);
    assert_eq!(all[0]["netdev"]["namespace"], "red");
    assert_eq!(all[0]["netdev"]["mtu"], 1500);
    assert_eq!(all[0]["active_mtu"], Value::Null);
    // The driver's counters are shown instead.
    assert_eq!(all[0]["bad_pkey"], 2);
    assert!(machine
        .good(&["status"])
        .contains("apt install ibverbs-utils"));
    // Remedies are for the namespace where the network device is.
    assert!(machine
        .good(&["doctor"])
        .contains("ip -n red link set eth0 mtu 4180"));
}

/// A container can have a network device of the same name, in a namespace without a name.
#[test]
fn status_of_a_device_of_a_container() {
    let machine = Machine::healthy("container");
    machine.put("/sys/class/net/eth0/address", "00:50:c2:00:00:99\n");
    machine.put("/sys/class/net/eth0/mtu", "1500\n");
    let netdev = machine.json(&["status"])[0]["netdev"].clone();
    assert_eq!(netdev["name"], "eth0");
    assert_eq!(netdev["namespace"], Value::Null);
    assert_eq!(netdev["mtu"], Value::Null);
    // It is not compared with the MTU of the device of the host.
    assert_eq!(machine.wrong(&[]), []);
    // In the own namespace of the device netlink names it, whatever its address is now.
    machine.program("rdma", r#"echo '[{"ifname":"rxe0","netdev":"eth0"}]'"#);
    let netdev = machine.json(&["status"])[0]["netdev"].clone();
    assert_eq!(netdev["namespace"], "here");
    assert_eq!(netdev["mtu"], 1500);
}

/// Those of IPVLAN have the address of the network device of the host, and a container calls its
/// own `eth0`, too.
#[test]
fn status_of_devices_with_one_address() {
    let machine = Machine::healthy("ipvlan");
    let own = r#"{"ifname":"rxe0","netdev":"eth0"}"#;
    let foreign = r#"{"ifname":"rxe0"}"#;
    let netdev = || machine.json(&["status"])[0]["netdev"].clone();
    machine.program("rdma", &format!("echo '[{foreign}]'"));
    assert_eq!(netdev()["namespace"], Value::Null);
    assert_eq!(netdev()["mtu"], Value::Null);
    for namespace in ["blue", "green"] {
        machine.put(&format!("/run/netns/{namespace}"), "");
    }
    machine.program(
        "ip",
        &format!(
            r#"case "$*" in
'netns exec green rdma -j link show') echo '[{own}]';;
'netns exec '*' rdma -j link show') echo '[{foreign}]';;
*) echo '[{{"address":"00:50:c2:00:00:01","mtu":1500,"operstate":"UP"}}]';; esac"#
        ),
    );
    assert_eq!(netdev()["namespace"], "green");
    assert_eq!(netdev()["mtu"], 1500);
    machine.program("rdma", &format!("echo '[{own}]'"));
    assert_eq!(netdev()["namespace"], "here");
    assert_eq!(netdev()["mtu"], 4200);
}

#[test]
fn drivers_are_told_apart() {
    let machine = Machine::healthy("drivers");
    machine.put("/sys/class/infiniband/rxe1/node_desc", "rxe\n");
    machine.put(
        "/sys/class/infiniband/rxe1/ports/1/hw_counters/completer_retry_err",
        "0\n",
    );
    machine.put("/sys/class/infiniband/mlx5_0/node_desc", "MT4119\n");
    let all = machine.json(&["status"]);
    let drivers: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["driver"].as_str().unwrap())
        .collect();
    assert_eq!(drivers, ["rxe_rs", "rdma_rxe"]);
    assert_eq!(machine.json(&["status", "mlx5_0"])[0]["driver"], "other");
    assert!(machine
        .bad(&["status", "nosuch"])
        .contains("mlx5_0, rxe0, rxe1"));
    machine.bad(&["status", "../net"]);
    machine.bad(&["status", ""]);
    assert!(machine
        .bad(&["pkey", "add", "rxe1", "0x8001"])
        .contains("rxe_rs"));
}

#[test]
fn pkey_edits() {
    let machine = Machine::healthy("pkey");
    let table = "/sys/class/infiniband/rxe0/pkey_table";
    let written = || fs::read_to_string(machine.path(table)).unwrap();
    let reset = || machine.put(table, "0 0xffff\n2 0x8001\n");
    let list = machine.json(&["pkey", "list", "rxe0"]);
    assert_eq!(list["entries"], 128);
    assert_eq!(list["pkeys"][1]["membership"], "full");
    assert!(machine
        .good(&["pkey", "list", "rxe0"])
        .contains("2      0x8001  full"));

    // A regular file replaces the attribute: it has what was written last.
    machine.good(&["pkey", "add", "rxe0", "0x0005"]);
    assert_eq!(written(), "add 0x0005\n");
    reset();
    let change = machine.json(&["pkey", "add", "rxe0", "5", "--full"]);
    assert_eq!(written(), "add 0x8005\n");
    // That is no table, so the entry is not found again.
    assert_eq!(
        (change["index"].as_u64(), change["pkey"].as_str()),
        (None, Some("0x8005"))
    );
    reset();
    machine.good(&["pkey", "set", "rxe0", "2", "0x8001", "--limited"]);
    assert_eq!(written(), "2 0x0001\n");
    reset();
    let change = machine.json(&["pkey", "del", "rxe0", "2"]);
    assert_eq!(written(), "2 0x0000\n");
    assert_eq!(
        (&change["pkey"], change["was"].as_str()),
        (&Value::Null, Some("0x8001"))
    );
    reset();
    machine.good(&["pkey", "del", "rxe0", "--key", "0x8001"]);
    assert_eq!(written(), "2 0x0000\n");
    reset();

    // A full and a limited member of one partition.
    machine.good(&["pkey", "add", "rxe0", "0x0001"]);
    assert_eq!(written(), "add 0x0001\n");
    reset();
    machine.good(&["pkey", "set", "rxe0", "5", "0x7fff"]);
    assert_eq!(written(), "5 0x7fff\n");
    machine.put(table, "0 0xffff\n2 0x8001\n7 0x0001\n");
    for (key, index) in [("0x8001", 2), ("0x0001", 7)] {
        machine.good(&["pkey", "del", "rxe0", "--key", key]);
        assert_eq!(written(), format!("{index} 0x0000\n"));
        machine.put(table, "0 0xffff\n2 0x8001\n7 0x0001\n");
    }
    // What an entry holds already can be stored in it.
    machine.good(&["pkey", "set", "rxe0", "7", "0x0001"]);
    assert_eq!(written(), "7 0x0001\n");
    reset();

    for (arguments, says) in [
        (
            &["add", "rxe0", "0x8001"][..],
            "entry 2 of rxe0 holds 0x8001 already",
        ),
        (&["add", "rxe0", "1", "--full"], "entry 2"),
        (&["set", "rxe0", "5", "0xffff"], "entry 0"),
        (&["set", "rxe0", "128", "0x8007"], "0 to 127"),
        (&["add", "rxe0", "0x8000"], "lower 15 bits"),
        (&["add", "rxe0", "0"], "lower 15 bits"),
        (&["del", "rxe0", "9"], "pkey list"),
        (&["del", "rxe0", "--key", "0x8009"], "pkey list"),
        (&["del", "rxe0", "--key", "0x0001"], "pkey list"),
    ] {
        let said = machine.bad(&[&["pkey"], arguments].concat());
        assert!(said.contains(says), "{arguments:?}: {said}");
        assert_eq!(written(), "0 0xffff\n2 0x8001\n", "{arguments:?}");
    }
    machine.remove(table);
    assert!(machine
        .bad(&["pkey", "set", "rxe0", "1", "0x8001"])
        .contains("as root"));
    // Without the attribute the core's own table is shown.
    assert_eq!(
        machine.json(&["pkey", "list", "rxe0"])["pkeys"][1]["pkey"],
        "0x8001"
    );
}

#[test]
fn counters_in_groups() {
    let machine = Machine::healthy("counters");
    let all = machine.json(&["counters", "rxe0"]);
    assert_eq!(all[0]["traffic"]["sent_pkts"], 10);
    assert_eq!(all[0]["events"]["duplicate_request"], 3);
    assert_eq!(all[0]["drops"]["rx_bad_icrc"], 4);
    assert!(all[0]["traffic"].get("rcvd_pkts").is_none());
    let all = machine.json(&["counters", "--all"]);
    assert_eq!(all[0]["traffic"]["rcvd_pkts"], 0);
    assert!(!all.to_string().contains("lifespan"));
    let watched = machine.json(&["counters", "--watch", "0.05", "--count", "1"]);
    assert_eq!(watched["traffic"]["sent_pkts"]["value"], 10);
    assert_eq!(watched["traffic"]["sent_pkts"]["per_second"], 0.0);
    let twice = machine.good(&["counters", "--watch", "0.05", "--count", "2"]);
    assert_eq!(twice.matches("rxe0: rxe_rs").count(), 2, "{twice}");
    assert_eq!(twice.matches(" UTC\n").count(), 2, "{twice}");
    let readings = twice.lines().filter(|line| line.contains("rxe0"));
    for line in readings {
        let passed = line.strip_prefix("rxe0: rxe_rs, the last ").unwrap();
        let seconds: f64 = passed.strip_suffix(" s").unwrap().parse().unwrap();
        assert!(seconds >= 0.05, "{line}");
    }
    assert!(watched["seconds"].as_f64().unwrap() > 0.05);
    assert!(watched["time"].as_f64().unwrap() > 1e9);
    assert!(machine.good(&["counters"]).contains("dropped packets"));
    machine.remove("/sys/class/infiniband/rxe0/ports/1/hw_counters");
    assert!(machine.bad(&["counters"]).contains("nsenter"));
}

/// The rates of the other devices go on.
#[test]
fn counters_of_a_device_that_is_removed() {
    let machine = Machine::healthy("removed");
    machine.device("rxe1", "eth0");
    let mut command = machine.command(&["counters", "--watch", "0.2", "--count", "5"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("rxe1: rxe_rs") {
        assert_ne!(output.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let device = machine.path("/sys/class/infiniband/rxe1");
    fs::rename(device, machine.path("/rxe1")).unwrap();
    text.clear();
    output.read_to_string(&mut text).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{text}");
    assert!(text.matches("rxe0: rxe_rs").count() >= 3, "{text}");
    assert!(!text.contains("rxe1: rxe_rs"), "{text}");
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(
        said.matches("rxe1 has been removed").count(),
        1,
        "{said}{text}"
    );
}

#[test]
fn counters_of_the_last_device_end() {
    let machine = Machine::healthy("last");
    let arguments = ["--json", "counters", "--watch", "0.2"];
    let mut command = machine.command(&arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let device = machine.path("/sys/class/infiniband/rxe0");
    fs::rename(device, machine.path("/rxe0")).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    let error: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(error["error"], "rxe0 has been removed");
}

#[test]
fn counters_of_another_driver() {
    let machine = Machine::healthy("foreign");
    machine.put("/sys/class/infiniband/mlx5_0/node_desc", "MT4119\n");
    let said = machine.bad(&["counters", "mlx5_0"]);
    assert!(said.contains("belongs to another driver"), "{said}");
    assert!(!said.contains("nsenter"), "{said}");
}

#[test]
fn resources_and_their_keys() {
    let machine = Machine::healthy("resources");
    machine.program(
        "rdma",
        r#"case "$*" in
'-j -dd resource show mr') echo '[{"ifindex":0,"ifname":"rxe0","mrn":1,"rkey":"0xabcd","lkey":"0xabcd","mrlen":4096,"pid":7,"comm":"x"},{"ifname":"rxe0","mrn":2}]';;
'-j -dd resource show qp') echo '[{"ifindex":0,"ifname":"rxe0","port":1,"lqpn":17,"type":"RC","state":"RTS","rqpn":18,"rq-psn":1,"sq-psn":2,"pid":7,"comm":"x","drv_sends_unfinished":5,"drv_in_flight":3,"drv_window":64,"drv_retries_left":6,"drv_rnr_retries_left":4,"drv_rtt_ns":68619,"drv_other":9},{"ifname":"rxe0","lqpn":1,"type":"GSI","state":"RTS","sq-psn":0,"comm":"ib_core"}]';;
*) exit 0;; esac"#,
    );
    assert_eq!(machine.json(&["mr", "rxe0"])[0]["rkey"], "0xabcd");
    assert_eq!(machine.json(&["mr"]).as_array().unwrap().len(), 2);
    let text = machine.good(&["qp"]);
    let row = |n: usize| -> Vec<&str> { text.lines().nth(n).unwrap().split_whitespace().collect() };
    let (heading, reliable, services) = (row(0), row(1), row(2));
    let under = |name: &str| heading.iter().position(|title| *title == name).unwrap();
    for (name, value) in [
        ("LQPN", "0x000011"),
        ("RQPN", "0x000012"),
        ("STATE", "RTS"),
        ("SQ-PSN", "0x000002"),
        ("SENDS", "5"),
        ("IN-FLIGHT", "3"),
        ("WINDOW", "64"),
        ("RETRIES", "6"),
        ("RNR", "4"),
        ("RTT-US", "68.6"),
        ("PID", "7"),
    ] {
        assert_eq!(reliable[under(name)], value, "{text}");
    }
    assert_eq!(reliable.last(), Some(&"drv_other=9"));
    assert_eq!(services[under("WINDOW")], "-");
    assert!(machine.good(&["cq"]).contains("(none)"));
    machine.put(
        "/proc/self/status",
        "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n",
    );
    let hidden = machine.good(&["mr"]) + &machine.good(&["--json", "mr"]);
    assert!(
        hidden.contains("masked") && !hidden.contains("abcd"),
        "{hidden}"
    );
    machine.program(
        "rdma",
        "echo 'Failed to open NETLINK_RDMA socket' >&2; exit 1",
    );
    assert!(machine.bad(&["pd"]).contains("NETLINK_RDMA"));
    machine.remove("/usr/bin/rdma");
    assert!(machine.bad(&["qp"]).contains("apt install iproute2"));
}

/// A process can have any name, and iproute2 prints it as it is.
#[test]
fn names_with_control_characters() {
    let machine = Machine::healthy("names");
    machine.program(
        "rdma",
        r#"printf '[{"ifname":"rxe0","lqpn":17,"type":"RC","comm":"a\033[2J\007b"}]\n'"#,
    );
    assert_eq!(machine.json(&["qp"])[0]["comm"], "a\u{1b}[2J\u{7}b");
    let text = machine.good(&["qp"]);
    assert!(
        text.contains("a?[2J?b") && !text.contains('\x1b'),
        "{text:?}"
    );
    // The socket of the RoCE port belongs to a process whose name has a line break.
    machine.put("/proc/42/comm", "x\nWRONG y\n");
    machine.put("/proc/42/fd/0", "");
    symlink("socket:[77]", machine.path("/proc/42/fd/3")).unwrap();
    let (status, text, _) = machine.run(&["doctor"]);
    assert_eq!(status, 1);
    assert!(text.contains("taken by process 42 (x?WRONG y)"), "{text}");
}

#[test]
fn pages_and_completions() {
    let machine = Machine::healthy("generate");
    let folder = machine.path("/generated");
    machine.good(&["generate", folder.to_str().unwrap()]);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert!(read("man/rxectl.1").contains("rxectl\\-doctor"));
    assert!(read("man/rxectl-pkey-add.1").contains("Full member"));
    assert!(read("man/rxectl.1").contains("could not be carried out"));
    for page in fs::read_dir(folder.join("man")).unwrap() {
        // What troff accepts without an option for the encoding.
        let page = page.unwrap().path();
        assert!(fs::read(&page).unwrap().is_ascii(), "{}", page.display());
    }
    for name in ["rxectl.bash", "_rxectl", "rxectl.fish"] {
        assert!(read(&format!("completions/{name}")).contains("doctor"));
    }
}

#[test]
fn errors_as_json() {
    let machine = Machine::healthy("errors");
    let (status, _, stderr) = machine.run(&["--json", "status", "nosuch"]);
    assert_eq!(status, 2);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains("nosuch"));
    assert_eq!(error["fix"], "use one of: rxe0");
    let (status, _, stderr) = machine.run(&["--json", "pkey", "add", "rxe0", "70000"]);
    assert_eq!(status, 2);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains("70000"));
    for (arguments, what) in [
        (&["--json", "pkey"][..], "the command is incomplete"),
        (
            &["--json", "pkey", "set", "rxe0"],
            "the following required arguments were not provided: <INDEX> <KEY>",
        ),
    ] {
        let (status, _, stderr) = machine.run(arguments);
        let error: Value = serde_json::from_str(&stderr).unwrap();
        assert_eq!((status, error["error"].as_str().unwrap()), (2, what));
    }
    let (status, stdout, _) = machine.run(&["--json", "--version"]);
    let version = concat!("rxectl ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((status, stdout.as_str()), (0, version));
    assert!(machine
        .bad(&["decode", "/nonexistent.pcap"])
        .contains("/nonexistent.pcap"));
}

#[test]
fn the_status_is_right_if_errors_cannot_be_written() {
    let machine = Machine::healthy("full");
    for arguments in [
        &["status", "nosuch"][..],
        &["--json", "status", "nosuch"],
        &["--json", "pkey", "add", "rxe0", "70000"],
        &["pkey", "add", "rxe0", "70000"],
    ] {
        let mut command = machine.command(arguments);
        command.stderr(fs::File::create("/dev/full").unwrap());
        let status = command.output().unwrap().status;
        assert_eq!(status.code(), Some(2), "{arguments:?}");
    }
}

/// A pipe that is closed early must not turn a bad verdict into success.
#[test]
fn the_status_if_nobody_reads() {
    let machine = Machine::healthy("unread");
    machine.remove("/sys/module/rxe_rs");
    for arguments in [&["doctor"][..], &["status"], &["--json", "counters"]] {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let mut command = machine.command(arguments);
        let done = command.stdout(OwnedFd::from(writer)).output().unwrap();
        assert_eq!(done.status.code(), Some(141), "{arguments:?}");
        assert!(done.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn resources_of_other_drivers() {
    let machine = Machine::healthy("others");
    machine.put("/sys/class/infiniband/mlx5_0/node_desc", "MT4119\n");
    machine.program(
        "rdma",
        r#"echo '[{"ifname":"mlx5_0","pdn":1},{"ifname":"rxe0","pdn":2}]'"#,
    );
    for kind in ["qp", "mr", "cq", "pd"] {
        let devices = |arguments: &[&str]| -> Vec<String> {
            let list = machine.json(arguments);
            let names = list.as_array().unwrap().iter().map(|o| o["ifname"].clone());
            names.map(|name| name.as_str().unwrap().into()).collect()
        };
        assert_eq!(devices(&[kind]), ["rxe0"], "{kind}");
        assert_eq!(devices(&[kind, "mlx5_0"]), ["mlx5_0"], "{kind}");
        assert!(!machine.good(&[kind]).contains("mlx5_0"), "{kind}");
    }
}

/// The counters of the other devices are shown.
#[test]
fn counters_of_a_device_that_shows_none() {
    let machine = Machine::healthy("without");
    machine.device("rxe1", "eth0");
    let hide = |name: &str| {
        let port = format!("/sys/class/infiniband/{name}/ports/1");
        machine.remove(&format!("{port}/hw_counters"));
    };
    hide("rxe0");
    for watch in [&[][..], &["--watch", "0.05", "--count", "1"]] {
        let arguments = [&["counters"], watch].concat();
        let (status, text, said) = machine.run(&arguments);
        assert_eq!(status, 0, "{text}{said}");
        assert!(text.contains("rxe1: rxe_rs"), "{text}");
        assert!(!text.contains("rxe0"), "{text}");
        assert!(said.contains("rxe0 shows no counters here"), "{said}");
        assert!(!said.contains("rxe1"), "{said}");
        let (status, text, said) = machine.run(&[&["--json"], &arguments[..]].concat());
        assert_eq!(status, 0, "{text}{said}");
        let shown: Value = serde_json::from_str(&text).unwrap();
        let shown = shown.get(0).unwrap_or(&shown);
        assert_eq!(shown["device"], "rxe1");
        let error: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(error["error"], "rxe0 shows no counters here");
    }
    // The device that was asked for.
    machine.bad(&["counters", "rxe0"]);
    hide("rxe1");
    let said = machine.bad(&["counters"]);
    for name in ["rxe0", "rxe1"] {
        let error = format!("{name} shows no counters here");
        assert_eq!(said.matches(&error).count(), 1, "{said}");
    }
}

#[test]
fn counters_of_devices_that_are_removed_together() {
    let machine = Machine::healthy("together");
    machine.device("rxe1", "eth0");
    let mut command = machine.command(&["counters", "--watch", "0.4"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("rxe1: rxe_rs") {
        assert_ne!(output.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let devices = machine.path("/sys/class/infiniband");
    fs::rename(devices, machine.path("/removed")).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    let said = String::from_utf8(done.stderr).unwrap();
    for name in ["rxe0", "rxe1"] {
        let error = format!("{name} has been removed");
        assert_eq!(said.matches(&error).count(), 1, "{said}");
    }
}

/// JSON need not escape what terminals obey beside the first 32 characters, or reorder text by.
#[test]
fn json_with_control_characters() {
    let machine = Machine::healthy("escapes");
    let name = "a\u{7f}b\u{9b}2Jc\u{202e}d\u{2066}e\u{200f}fé";
    let json = r"a\u007fb\u009b2Jc\u202ed\u2066e\u200ffé";
    machine.program(
        "rdma",
        &format!(r#"printf '[{{"ifname":"rxe0","lqpn":17,"comm":"{name}"}}]'"#),
    );
    let text = machine.good(&["--json", "qp"]);
    assert!(text.contains(json), "{text:?}");
    assert_eq!(machine.json(&["qp"])[0]["comm"], name);
    let text = machine.good(&["qp"]);
    assert!(text.contains("a?b?2Jc?d?e?fé"), "{text:?}");
    // Names in errors: those of programs, and those of the command line.
    machine.program("rdma", &format!("echo '{name}' >&2; exit 1"));
    let (_, _, said) = machine.run(&["--json", "qp"]);
    assert!(said.contains(json), "{said:?}");
    let error: Value = serde_json::from_str(&said).unwrap();
    assert!(error["error"].as_str().unwrap().contains(name), "{error}");
    let (_, _, said) = machine.run(&["--json", "pkey", "add", "rxe0", name]);
    assert!(said.contains(json), "{said:?}");
    let said = machine.bad(&["qp"]);
    assert!(said.contains("a?b?2Jc?d?e?fé"), "{said:?}");
}

/// A namespace of that name is not the namespace of the caller.
#[test]
fn status_in_a_namespace_that_is_named_here() {
    let machine = Machine::healthy("named-here");
    assert_eq!(machine.json(&["status"])[0]["netdev"]["namespace"], "here");
    machine.remove("/sys/class/net/eth0");
    machine.remove("/usr/bin/ibv_devinfo");
    machine.put("/run/netns/here", "");
    machine.program(
        "ip",
        "echo '[{\"address\":\"00:50:c2:00:00:01\",\"mtu\":1500,\"operstate\":\"UP\"}]'",
    );
    assert_eq!(
        machine.json(&["status"])[0]["netdev"]["namespace"],
        "/run/netns/here"
    );
    assert!(machine
        .good(&["status"])
        .contains("namespace /run/netns/here\n"));
    let text = machine.good(&["doctor"]);
    assert!(text.contains("ip -n here link set eth0 mtu 4180"), "{text}");
}

/// The rates are those of the time that has really passed.
#[test]
fn counters_report_the_time_that_passed() {
    let machine = Machine::healthy("passed");
    let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";
    let arguments = ["--json", "counters", "--watch", "0.2", "--count", "5"];
    let mut command = machine.command(&arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut before = 10;
    let mut increases = 0;
    for round in 1..=5 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // Replaced in one step, so that no reading misses it.
        machine.put("/counter", &format!("{}\n", 10 + round * 1000));
        fs::rename(machine.path("/counter"), machine.path(counter)).unwrap();
        let shown: Value = serde_json::from_str(&line).unwrap();
        let seconds = shown["seconds"].as_f64().unwrap();
        assert!(seconds > 0.2, "{line}");
        let sent = &shown["traffic"]["sent_pkts"];
        let value = sent["value"].as_u64().unwrap();
        let increase = sent["per_second"].as_f64().unwrap() * seconds;
        assert!((increase - (value - before) as f64).abs() < 1e-6, "{line}");
        increases += u64::from(value > before);
        before = value;
    }
    assert!(increases > 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn completions_leave_out_what_is_hidden() {
    let machine = Machine::healthy("hidden");
    let folder = machine.path("/generated");
    machine.good(&["generate", folder.to_str().unwrap()]);
    for name in ["rxectl.bash", "_rxectl", "rxectl.fish"] {
        let text = fs::read_to_string(folder.join("completions").join(name)).unwrap();
        for hidden in ["--root", "-l root", "generate"] {
            assert!(!text.contains(hidden), "{name} has {hidden}");
        }
        for shown in ["json", "version", "help", "pkey", "limited", "watch"] {
            assert!(text.contains(shown), "{name} lacks {shown}");
        }
    }
}

#[test]
fn errors_of_the_command_line_have_no_control_characters() {
    let machine = Machine::healthy("arguments");
    let (status, _, said) = machine.run(&["pkey", "add", "rxe0", "a\x1b[2J\u{202e}b"]);
    assert_eq!(status, 2);
    assert!(said.contains("a?[2J?b"), "{said:?}");
    assert!(said.contains("--help"), "{said:?}");
    let (status, _, said) = machine.run(&["pkey"]);
    assert_eq!(status, 2);
    assert!(said.contains("Usage:"), "{said:?}");
}
