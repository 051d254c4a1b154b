// SPDX-License-Identifier: GPL-2.0
//! The program from outside, over a made-up machine: a folder with what it would read.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A machine in a folder of its own.
struct Machine(PathBuf);

impl Machine {
    /// A healthy machine: rxe_rs with the device rxe0 over eth0.
    fn healthy(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&root);
        let machine = Self(root);
        machine.put(
            "/proc/self/status",
            "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
        );
        machine.put(
            "/proc/self/limits",
            "Limit Soft Hard Units\nMax locked memory         8388608   8388608   bytes\n",
        );
        machine.put(
            "/proc/self/net/udp",
            "  sl\n  1: 00000000:12B7 00000000:0000 07 00:0 00:0 0 0 0 77 2 x 0\n",
        );
        machine.put("/proc/sys/kernel/osrelease", "7.3.4-test\n");
        machine.put("/sys/module/rxe_rs/version", "0.1.0\n");
        machine.put("/sys/module/ib_uverbs/x", "");
        machine.put("/sys/module/rdma_ucm/x", "");
        machine.put("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
        machine.put("/dev/infiniband/uverbs0", "");
        machine.put("/dev/infiniband/rdma_cm", "");
        machine.put("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "");
        machine.put("/etc/libibverbs.d/rxe.driver", "driver rxe\n");
        machine.device("rxe0", "eth0");
        machine.program("rdma", "echo '[ ]'");
        machine.program(
            "ibv_devinfo",
            "printf '\\t\\t\\tactive_mtu:\\t\\t4096 (5)\\n\\t\\t\\tbad_pkey_cntr:\\t\\t0x2\\n\\t\\t\\tqkey_viol_cntr:\\t\\t0x0\\n'",
        );
        machine
    }

    fn device(&self, name: &str, netdev: &str) {
        let put = |attribute: &str, text: &str| {
            self.put(&format!("/sys/class/infiniband/{name}/{attribute}"), text)
        };
        put("node_desc", "rxe_rs\n");
        put("node_guid", "0250:c2ff:fe00:0001\n");
        put("pkey_table", "0 0xffff\n2 0x8001\n");
        put("ports/1/state", "4: ACTIVE\n");
        put("ports/1/phys_state", "5: LinkUp\n");
        for index in 0..128 {
            let key = match index {
                0 => 0xffff,
                2 => 0x8001,
                _ => 0,
            };
            put(&format!("ports/1/pkeys/{index}"), &format!("{key:#06x}\n"));
        }
        let gids = [
            "fe80:0000:0000:0000:0250:c2ff:fe00:0001",
            "0000:0000:0000:0000:0000:ffff:0a4d:0001",
            "fd77:0000:0000:0000:0000:0000:0000:0001",
            "0000:0000:0000:0000:0000:0000:0000:0000",
        ];
        for (index, gid) in gids.iter().enumerate() {
            put(&format!("ports/1/gids/{index}"), &format!("{gid}\n"));
            if index < 3 {
                put(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2\n");
                put(
                    &format!("ports/1/gid_attrs/ndevs/{index}"),
                    &format!("{netdev}\n"),
                );
            }
        }
        for (counter, value) in [
            ("sent_pkts", 10),
            ("rcvd_pkts", 0),
            ("duplicate_request", 3),
            ("rx_bad_icrc", 4),
            ("rx_bad_pkey", 2),
            ("rx_bad_qkey", 0),
            ("lifespan", 10),
        ] {
            put(
                &format!("ports/1/hw_counters/{counter}"),
                &format!("{value}\n"),
            );
        }
        let net = |attribute: &str, text: &str| {
            self.put(&format!("/sys/class/net/{netdev}/{attribute}"), text)
        };
        net("address", "00:50:c2:00:00:01\n");
        net("mtu", "4200\n");
        net("operstate", "up\n");
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    fn program(&self, name: &str, script: &str) {
        let path = format!("/usr/bin/{name}");
        self.put(&path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.path(&path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs `rxectl` there: its status, output and complaints.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_rxectl"))
            .arg("--root")
            .arg(&self.0)
            .args(arguments)
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    fn good(&self, arguments: &[&str]) -> String {
        let (status, stdout, stderr) = self.run(arguments);
        assert_eq!(status, 0, "{arguments:?}: {stdout}{stderr}");
        stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[&["--json"], arguments].concat())).unwrap()
    }

    /// The complaint of a command that must fail; it says what to do.
    fn bad(&self, arguments: &[&str]) -> String {
        let (status, stdout, stderr) = self.run(arguments);
        assert_eq!(status, 2, "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains("fix: "), "{stderr}");
        stderr
    }

    /// What doctor finds wrong: the fields `about` and `fix`.
    fn wrong(&self, arguments: &[&str]) -> Vec<(String, String)> {
        let (status, stdout, stderr) = self.run(&[&["--json", "doctor"], arguments].concat());
        let report: Value = serde_json::from_str(&stdout).expect(&stderr);
        let findings = report["findings"].as_array().unwrap().iter();
        let wrong: Vec<_> = findings
            .filter(|finding| finding["level"] == "wrong")
            .map(|finding| {
                let text = |key: &str| finding[key].as_str().unwrap().to_string();
                (text("about"), text("fix"))
            })
            .collect();
        assert_eq!(status, i32::from(!wrong.is_empty()), "{stdout}");
        assert_eq!(report["wrong"], wrong.len());
        wrong
    }
}

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
    // The counters of the driver stand in.
    assert_eq!(all[0]["bad_pkey"], 2);
    assert!(machine
        .good(&["status"])
        .contains("apt install ibverbs-utils"));
    // Remedies are for the namespace where the network device is.
    assert!(machine
        .good(&["doctor"])
        .contains("ip -n red link set eth0 mtu 4176"));
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

    // A plain file stands for the attribute: it holds what was written last.
    machine.good(&["pkey", "add", "rxe0", "0x0005"]);
    assert_eq!(written(), "1 0x0005\n");
    reset();
    let change = machine.json(&["pkey", "add", "rxe0", "5", "--full"]);
    assert_eq!(written(), "1 0x8005\n");
    assert_eq!(
        (change["index"].as_u64(), change["pkey"].as_str()),
        (Some(1), Some("0x8005"))
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
    machine.good(&["pkey", "del", "rxe0", "--key", "0x0001"]);
    assert_eq!(written(), "2 0x0000\n");
    reset();

    for (arguments, says) in [
        (&["add", "rxe0", "0x0001"][..], "entry 2"),
        (&["set", "rxe0", "5", "0x7fff"], "entry 0"),
        (&["set", "rxe0", "128", "0x8007"], "0 to 127"),
        (&["add", "rxe0", "0x8000"], "lower 15 bits"),
        (&["add", "rxe0", "0"], "lower 15 bits"),
        (&["del", "rxe0", "9"], "pkey list"),
        (&["del", "rxe0", "--key", "0x8009"], "pkey list"),
    ] {
        let said = machine.bad(&[&["pkey"], arguments].concat());
        assert!(said.contains(says), "{arguments:?}: {said}");
        assert_eq!(written(), "0 0xffff\n2 0x8001\n", "{arguments:?}");
    }
    let full: Vec<String> = (0..128)
        .map(|index| format!("{index} {:#06x}\n", 0x8100 + index))
        .collect();
    machine.put(table, &full.concat());
    assert!(machine
        .bad(&["pkey", "add", "rxe0", "0x8001"])
        .contains("128 entries"));
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
    assert_eq!(twice.matches("UTC, the last 0.05 s").count(), 2, "{twice}");
    assert_eq!(watched["seconds"], 0.05);
    assert!(watched["time"].as_f64().unwrap() > 1e9);
    assert!(machine.good(&["counters"]).contains("dropped packets"));
    machine.remove("/sys/class/infiniband/rxe0/ports/1/hw_counters");
    assert!(machine.bad(&["counters"]).contains("nsenter"));
}

#[test]
fn resources_and_their_keys() {
    let machine = Machine::healthy("resources");
    machine.program(
        "rdma",
        r#"case "$*" in
'-j -dd resource show mr') echo '[{"ifindex":0,"ifname":"rxe0","mrn":1,"rkey":"0xabcd","lkey":"0xabcd","mrlen":4096,"pid":7,"comm":"x"},{"ifname":"rxe9","mrn":2}]';;
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

#[test]
fn doctor_on_a_healthy_machine() {
    let machine = Machine::healthy("healthy");
    assert_eq!(machine.wrong(&[]), []);
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
}

/// What is done to a machine, what doctor calls it, and a part of the remedy.
type Case = (fn(&Machine), &'static str, &'static str);

#[test]
fn doctor_finds_each_fault() {
    let cases: &[Case] = &[
        (
            |m| m.put("/sys/module/rdma_rxe/x", ""),
            "rdma_rxe",
            "rmmod rdma_rxe",
        ),
        (|m| m.remove("/sys/module/rxe_rs"), "rxe_rs", "make"),
        (
            |m| {
                m.remove("/sys/module/rxe_rs");
                m.put("/lib/modules/7.3.4-test/updates/dkms/rxe_rs.ko.xz", "");
            },
            "rxe_rs",
            "modprobe rxe_rs",
        ),
        (
            |m| {
                m.remove("/sys/module/rxe_rs");
                m.put("/lib/modules/7.2.0-old/extra/rxe_rs.ko", "");
            },
            "rxe_rs",
            "boot that kernel",
        ),
        (
            |m| {
                m.put("/proc/4711/comm", "squatter\n");
                fs::create_dir_all(m.path("/proc/4711/fd")).unwrap();
                symlink("socket:[77]", m.path("/proc/4711/fd/3")).unwrap();
            },
            "UDP port 4791",
            "kill 4711",
        ),
        (
            |m| m.remove("/sys/module/ib_uverbs/"),
            "ib_uverbs",
            "modprobe ib_uverbs",
        ),
        (
            |m| m.remove("/sys/module/rdma_ucm"),
            "rdma_ucm",
            "modprobe rdma_ucm",
        ),
        (
            |m| m.remove("/dev/infiniband/uverbs0"),
            "/dev/infiniband/uverbs0",
            "rdma-core",
        ),
        (
            |m| m.remove("/dev/infiniband/rdma_cm"),
            "/dev/infiniband/rdma_cm",
            "rdma-core",
        ),
        (
            |m| m.remove("/etc/libibverbs.d/rxe.driver"),
            "librxe",
            "ibverbs-providers",
        ),
        (
            |m| m.remove("/usr/lib/x86_64-linux-gnu/libibverbs"),
            "librxe",
            "ibverbs-providers",
        ),
        (
            |m| m.remove("/usr/bin/rdma"),
            "iproute2",
            "apt install iproute2",
        ),
        (
            |m| {
                m.put("/proc/self/status", "Uid:\t1\t1\t1\t1\nCapEff:\t0\n");
                m.put(
                    "/proc/self/limits",
                    "Max locked memory   65536  65536  bytes\n",
                );
            },
            "memory lock limit",
            "memlock unlimited",
        ),
        (
            |m| m.put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n"),
            "rxe0",
            "link set eth0 up",
        ),
        (
            |m| m.put("/sys/class/net/eth0/mtu", "300\n"),
            "rxe0",
            "mtu 4176",
        ),
        (
            |m| m.put("/sys/class/net/eth0/mtu", "1500\n"),
            "rxe0",
            "link set eth0 down",
        ),
        (
            |m| m.remove("/sys/class/infiniband/rxe0/ports/1/gids"),
            "rxe0",
            "address add",
        ),
        (
            |m| m.remove("/sys/class/infiniband/rxe0"),
            "devices",
            "rdma link add",
        ),
    ];
    for (number, (damage, about, fix)) in cases.iter().enumerate() {
        let machine = Machine::healthy(&format!("fault-{number}"));
        if *about == "ib_uverbs" {
            machine.remove("/sys/class/infiniband_verbs");
        }
        damage(&machine);
        let wrong = machine.wrong(&[]);
        let found = wrong.iter().any(|(a, f)| a == about && f.contains(fix));
        assert!(found, "case {number}, {about}: {wrong:?}");
    }
}

#[test]
fn doctor_reads_a_module_file() {
    let machine = Machine::healthy("module");
    machine.put("/good.ko", "\0vermagic=7.3.4-test SMP \0");
    machine.put("/old.ko", "\0vermagic=7.2.0-old SMP \0");
    machine.put("/none.ko", "nothing");
    let file = |name: &str| machine.path(name).to_str().unwrap().to_string();
    assert_eq!(machine.wrong(&["--module", &file("good.ko")]), []);
    for name in ["old.ko", "none.ko"] {
        let wrong = machine.wrong(&["--module", &file(name)]);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert_eq!(wrong[0].0, "module file");
    }
    machine.bad(&["doctor", "--module", &file("absent.ko")]);
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
        // What troff takes without being told an encoding.
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
    let (status, stdout, _) = machine.run(&["--json", "--version"]);
    assert!(status == 0 && stdout.starts_with("rxectl "), "{stdout}");
    assert!(machine
        .bad(&["decode", "/nonexistent.pcap"])
        .contains("/nonexistent.pcap"));
}
