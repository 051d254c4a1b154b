// SPDX-License-Identifier: GPL-2.0
//! Tests of `rxectl doctor` on simulated hosts, each with one fault.

mod machine;

use machine::Machine;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn doctor_on_a_healthy_machine() {
    let machine = Machine::healthy("healthy");
    assert_eq!(machine.wrong(&[]), []);
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
}

/// The fault, the subject of doctor's finding, and a part of the remedy.
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
                m.put("/lib/modules/7.3.4-test/updates/dkms/rxe_rs.ko.xz", "");
                m.put("/proc/sys/kernel/modules_disabled", "1\n");
            },
            "rxe_rs",
            "before something sets kernel.modules_disabled",
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
                m.put("/proc/4711/comm", "other\n");
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
            "mtu 4180",
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

/// There is no package to build for the kernel of a Debian 13 without backports.
#[test]
fn doctor_knows_the_series_of_kernels() {
    let machine = Machine::healthy("series");
    machine.remove("/sys/module/rxe_rs");
    let fix_on = |release: &str| {
        machine.put("/proc/sys/kernel/osrelease", release);
        let wrong = machine.wrong(&[]);
        let found = wrong.into_iter().find(|(about, _)| about == "rxe_rs");
        found.unwrap().1
    };
    for release in ["6.12.48+deb13-amd64\n", "7.20.1-x\n", "7.4.1-x\n"] {
        let fix = fix_on(release);
        assert!(fix.contains("install.md, The kernel) and boot it"), "{fix}");
        assert!(!fix.contains("make"), "{fix}");
    }
    for release in ["7.2.1+deb13-amd64\n", "7.3-rc1-amd64\n"] {
        assert!(fix_on(release).contains("(make deb)"));
    }
    machine.put("/lib/modules/7.3.4-other/updates/rxe_rs.ko", "");
    assert_eq!(fix_on("6.12.48+deb13-amd64\n"), "boot that kernel");
    assert!(fix_on("7.3.5-test\n").contains("(make)"));
}

/// A host with the package has the document in /usr/share/doc, a clone has it in docs.
#[test]
fn remedies_name_the_document_that_exists() {
    const PACKAGED: &str = "/usr/share/doc/rxe-rs-tools/install.md";
    let kernel = Machine::healthy("document-kernel");
    kernel.remove("/sys/module/rxe_rs");
    kernel.put("/proc/sys/kernel/osrelease", "6.12.48+deb13-amd64\n");
    let signature = installed("document-signature", "");
    signature.put("/sys/module/module/parameters/sig_enforce", "Y\n");
    for machine in [kernel, signature] {
        let fix = || {
            let wrong = machine.wrong(&[]);
            let found = wrong.into_iter().find(|(about, _)| about == "rxe_rs");
            found.unwrap().1
        };
        assert!(fix().contains("(docs/install.md"), "{}", fix());
        machine.put(PACKAGED, "");
        assert!(fix().contains(&format!("({PACKAGED}")), "{}", fix());
    }
}

/// No remedy overwrites the file in which `docs/install.md` keeps the parameters of the module.
#[test]
fn remedies_leave_the_parameters_of_the_module_alone() {
    let machine = Machine::healthy("parameters");
    machine.put("/sys/module/rdma_rxe/x", "");
    let wrong = machine.wrong(&[]);
    let found = wrong.iter().find(|(about, _)| about == "rdma_rxe");
    let fix = &found.unwrap().1;
    assert!(fix.contains("> /etc/modprobe.d/no-rdma_rxe.conf"), "{fix}");
    assert!(!fix.contains("/rxe_rs.conf"), "{fix}");
}

/// A driver without a device has no socket: another part of the kernel has the port.
#[test]
fn doctor_tells_who_does_not_hold_the_port() {
    let about = "UDP port 4791";
    let machine = Machine::healthy("port");
    let text = machine.good(&["doctor"]);
    assert!(
        text.contains(&format!("ok    {about}: held by the driver\n")),
        "{text}"
    );
    machine.remove("/sys/class/infiniband/rxe0");
    let wrong = machine.wrong(&[]);
    let found = wrong.iter().find(|(a, _)| a == about);
    assert!(found.unwrap().1.contains("vxlan"), "{wrong:?}");
    machine.put("/proc/self/status", "Uid:\t1\t1\t1\t1\nCapEff:\t0\n");
    let text = machine.run(&["doctor"]).1;
    assert!(
        text.contains(&format!("note  {about}: in use; only root can see")),
        "{text}"
    );
}

/// In the shared mode the devices of all namespaces are seen here, but the sockets of the driver
/// are in those of their network devices.
#[test]
fn a_link_elsewhere_does_not_hold_the_port_here() {
    let about = "UDP port 4791";
    let machine = Machine::healthy("port-elsewhere");
    let elsewhere = r#"{"ifname":"rxe0","port":1}"#;
    machine.program("rdma", &format!("echo '[{elsewhere}]'"));
    let wrong = machine.wrong(&[]);
    let found = wrong.iter().find(|(a, _)| a == about);
    assert!(found.unwrap().1.contains("vxlan"), "{wrong:?}");
    // With a link of this namespace beside it the driver has the port here.
    machine.device("rxe1", "eth0");
    machine.program(
        "rdma",
        &format!(r#"echo '[{elsewhere},{{"ifname":"rxe1","port":1,"netdev":"eth0"}}]'"#),
    );
    let text = machine.run(&["doctor"]).1;
    assert!(
        text.contains(&format!("ok    {about}: held by the driver\n")),
        "{text}"
    );
}

/// A container sees the nodes of all devices in sysfs, and has those of its own devices in /dev.
#[test]
fn doctor_wants_the_nodes_of_the_devices_here() {
    let machine = Machine::healthy("nodes");
    machine.put("/sys/class/infiniband_verbs/uverbs1/ibdev", "rxe1\n");
    machine.put("/sys/class/infiniband_verbs/abi_version", "6\n");
    assert_eq!(machine.wrong(&[]), []);
    machine.device("rxe1", "eth0");
    let wrong = machine.wrong(&[]);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!(wrong[0].0, "/dev/infiniband/uverbs1");
}

/// A link whose network device is in a container, while this namespace has one of the same name.
#[test]
fn remedies_are_for_the_namespace_of_the_link() {
    let machine = Machine::healthy("container");
    machine.program("rdma", r#"echo '[{"ifname":"rxe0","port":1}]'"#);
    let port = "/sys/class/infiniband/rxe0/ports/1";
    machine.put(&format!("{port}/state"), "1: DOWN\n");
    machine.put(&format!("{port}/hw_counters/tx_gso_fallback"), "1\n");
    for gid in ["1", "2"] {
        machine.remove(&format!("{port}/gids/{gid}"));
    }
    let says = |commands: [&str; 3]| {
        let text = machine.run(&["doctor"]).1;
        for command in commands {
            assert!(text.contains(command), "{command} is missing: {text}");
        }
        text
    };
    says([
        "nsenter -t PID -n ip link set eth0 up",
        "nsenter -t PID -n ip address add ADDRESS/PREFIX dev eth0",
        "nsenter -t PID -n ethtool -K eth0",
    ]);
    machine.put("/run/netns/blue", "");
    machine.program(
        "ip",
        r#"case $* in
            *netns*) echo '[{"ifname":"rxe0","port":1,"netdev":"eth0"}]' ;;
            *) echo '[{"ifname":"eth0","address":"00:50:c2:00:00:01","mtu":4200,"operstate":"UP"}]' ;;
        esac"#,
    );
    let text = says([
        "ip -n blue link set eth0 up",
        "ip -n blue address add ADDRESS/PREFIX dev eth0",
        "ip netns exec blue ethtool -K eth0",
    ]);
    assert!(!text.contains("nsenter"), "{text}");
}

/// The driver asks for CAP_IPC_LOCK of the initial user namespace, and who makes links needs
/// CAP_NET_ADMIN there.
#[test]
fn doctor_knows_whose_capabilities_count() {
    let machine = Machine::healthy("capabilities");
    let says = |text: &str| {
        let said = machine.good(&["doctor"]);
        assert!(said.contains(text), "{said}");
    };
    says("ok    memory lock limit: does not bind this user");
    machine.put("/proc/self/uid_map", "0 100000 65536\n");
    says("note  memory lock limit: 8192 KiB");
    machine.remove("/proc/self/uid_map");
    says("ok    memory lock limit: does not bind this user");
    machine.remove("/sys/class/infiniband/rxe0");
    let fix = || {
        let wrong = machine.wrong(&[]).into_iter();
        wrong
            .last()
            .filter(|(about, _)| about == "devices")
            .unwrap()
            .1
    };
    assert!(fix().starts_with("rdma link add"));
    machine.put("/proc/self/uid_map", "0 100000 65536\n");
    assert!(fix().contains("nsenter -t PID -n rdma link add"));
}

/// A host with the module installed and not loaded; `modinfo` names the signer.
fn installed(name: &str, signer: &str) -> Machine {
    let machine = Machine::healthy(name);
    machine.remove("/sys/module/rxe_rs");
    machine.put("/lib/modules/7.3.4-test/updates/dkms/rxe_rs.ko.xz", "");
    machine.program("modinfo", &format!("echo '{signer}'"));
    machine
}

#[test]
fn doctor_knows_of_signatures() {
    let demands: &[(&str, &str)] = &[
        ("/sys/module/module/parameters/sig_enforce", "Y\n"),
        (
            "/sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        ),
    ];
    let fix = |machine: &Machine| {
        let wrong = machine.wrong(&[]);
        let found = wrong.into_iter().find(|(about, _)| about == "rxe_rs");
        found.unwrap().1
    };
    for (number, (file, demanded)) in demands.iter().enumerate() {
        let machine = installed(&format!("unsigned-{number}"), "");
        machine.put(file, demanded);
        assert!(fix(&machine).contains("mokutil --import"));
        assert!(!fix(&machine).contains("modprobe"));
        let machine = installed(&format!("signed-{number}"), "Some Key");
        machine.put(file, demanded);
        assert!(fix(&machine).contains("modprobe rxe_rs; if that is refused, enrol"));
    }
    let machine = installed("undemanded", "");
    machine.put("/sys/module/module/parameters/sig_enforce", "N\n");
    machine.put(
        "/sys/kernel/security/lockdown",
        "[none] integrity confidentiality\n",
    );
    assert_eq!(fix(&machine), "modprobe rxe_rs");
}

#[test]
fn doctor_knows_of_a_failed_depmod() {
    let machine = installed("depmod", "");
    machine.program(
        "modinfo",
        "echo 'modinfo: ERROR: Module rxe_rs not found.' >&2; exit 1",
    );
    // Before what it says of signatures.
    for lockdown in ["[none] integrity", "none [integrity]"] {
        machine.put("/sys/kernel/security/lockdown", lockdown);
        let wrong = machine.wrong(&[]);
        let fix = "free some space, then: depmod 7.3.4-test; modprobe rxe_rs";
        assert!(wrong.contains(&("rxe_rs".into(), fix.into())), "{wrong:?}");
    }
    let text = machine.run(&["doctor"]).1;
    assert!(text.contains("modprobe does not know it"), "{text}");
}

#[test]
fn doctor_says_why_dkms_has_not_built_the_module() {
    let machine = Machine::healthy("dkms");
    machine.remove("/sys/module/rxe_rs");
    machine.put("/lib/modules/7.2.0-old/updates/dkms/rxe_rs.ko.xz", "");
    machine.executable(
        "/usr/libexec/rxe_rs/rxe-dkms",
        "[ \"$*\" = 'why 7.3.4-test' ] && printf 'it lacks a source\\napt install it\\n'",
    );
    let wrong = machine.wrong(&[]);
    assert!(
        wrong.contains(&("rxe_rs".to_string(), "apt install it".to_string())),
        "{wrong:?}"
    );
    let text = machine.run(&["doctor"]).1;
    assert!(
        text.contains("rxe_rs is not installed for kernel 7.3.4-test: it lacks a source\n"),
        "{text}"
    );
    // It has nothing to say about a kernel that has the module.
    machine.put("/lib/modules/7.3.4-test/updates/dkms/rxe_rs.ko.xz", "");
    let wrong = machine.wrong(&[]);
    assert!(
        wrong.iter().any(|(_, fix)| fix == "modprobe rxe_rs"),
        "{wrong:?}"
    );
}

#[test]
fn doctor_tells_of_refused_datagrams() {
    let machine = Machine::healthy("guard");
    let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/egress_guard_drops";
    machine.put(counter, "0\n");
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
    machine.put(counter, "17\n");
    let text = machine.good(&["doctor"]);
    assert!(
        text.contains("note  rxe0: 17 datagrams to UDP port 4791 refused"),
        "{text}"
    );
    assert!(text.contains("egress_guard=0"), "{text}");
    let counters = machine.good(&["counters"]);
    assert!(counters.contains("egress_guard_drops"), "{counters}");
    assert!(counters.contains("dmesg says which"), "{counters}");
}

/// Doctor names a device that segments wrongly, and the command that disables its segmentation.
#[test]
fn doctor_names_a_device_that_segments_badly() {
    let machine = Machine::healthy("segmentation");
    let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/tx_gso_fallback";
    machine.put(counter, "0\n");
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
    machine.put(counter, "2\n");
    let text = machine.good(&["doctor"]);
    assert!(text.ends_with("0 wrong, 1 to note\n"), "{text}");
    assert!(text.contains("tx_gso_fallback is 2"), "{text}");
    assert!(
        text.contains("fix: ethtool -K eth0 tx-udp-segmentation off"),
        "{text}"
    );
    let counters = machine.good(&["counters"]);
    assert!(counters.contains("tx-udp-segmentation off"), "{counters}");
}

/// Doctor names a device whose receive queues are chosen by addresses only, for the families for
/// which that is so; a device with one queue, or that does not tell, is left alone.
#[test]
fn doctor_names_a_device_that_ignores_udp_ports() {
    let machine = Machine::healthy("queues");
    let ethtool = |ports: &str| {
        let script = format!(
            r#"[ "$1 $2 $3" = "-n eth0 rx-flow-hash" ] || exit 1
            printf 'UDP flows use these fields for computing Hash flow key:\nIP SA\nIP DA\n'
            case $4 in {ports}) printf 'L4 bytes 0 & 1 [TCP/UDP src port]\nL4 bytes 2 & 3 [TCP/UDP dst port]\n' ;; esac"#
        );
        machine.program("ethtool", &script);
    };
    let nothing = || assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
    machine.put("/sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n");
    machine.put("/sys/class/net/eth0/queues/tx-0/xps_cpus", "0\n");
    ethtool("none");
    nothing();
    machine.put("/sys/class/net/eth0/queues/rx-1/rps_cpus", "0\n");
    for (ports, found, fix) in [
        (
            "none",
            "(udp4, udp6)",
            "ethtool -N eth0 rx-flow-hash udp4 sdfn; ethtool -N eth0 rx-flow-hash udp6 sdfn",
        ),
        (
            "udp4",
            "(udp6)",
            "fix: ethtool -N eth0 rx-flow-hash udp6 sdfn",
        ),
    ] {
        ethtool(ports);
        let text = machine.good(&["doctor"]);
        assert!(text.ends_with("0 wrong, 1 to note\n"), "{text}");
        assert!(
            text.contains("eth0 distributes UDP packets to its 2 receive queues"),
            "{text}"
        );
        assert!(text.contains(found) && text.contains(fix), "{text}");
    }
    ethtool("udp*");
    nothing();
    machine.program("ethtool", "echo 'Operation not supported' >&2; exit 1");
    nothing();
}

/// A counter that grows under attack: growth is reported as an attack, and a nonzero value as a
/// note unless the counter also grows without attacks.
#[test]
fn doctor_names_an_attack() {
    let machine = Machine::healthy("attack");
    let counter = |name: &str| format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    machine.put(&counter("suspect_ack"), "0\n");
    machine.put(&counter("rx_no_qp"), "90000\n");
    machine.put(&counter("spurious_nak"), "7\n");
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
    machine.put(&counter("suspect_ack"), "3\n");
    let text = machine.good(&["doctor"]);
    assert!(
        text.contains("suspect_ack is 3, and does not grow"),
        "{text}"
    );
    let counters = machine.good(&["counters"]);
    assert!(
        counters.contains("forged, or the peer counts"),
        "{counters}"
    );
    for name in [
        "suspect_ack",
        "suspect_nak",
        "implausible_psn",
        "duplicate_mismatch",
        "spurious_nak",
        "rx_no_qp",
        "rx_bad_peer",
        "rx_bad_qkey",
    ] {
        let machine = Machine::healthy(&format!("attack_{name}"));
        let path = machine.path(counter(name).trim_start_matches('/'));
        machine.put(&counter(name), "1\n");
        // Not beside the counters, among which a reader would find it.
        let next = machine.path("next");
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let attacker = std::thread::spawn(move || {
            for value in 1u64.. {
                // Replace the file at once: a reader must not find half a number.
                fs::write(&next, format!("{}\n", value * 100)).unwrap();
                fs::rename(&next, &path).unwrap();
                let wait = std::time::Duration::from_millis(5);
                if stopped.recv_timeout(wait) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let wrong = machine.wrong(&[]);
        stop.send(()).unwrap();
        attacker.join().unwrap();
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert_eq!(wrong[0].0, "rxe0");
        assert!(wrong[0].1.contains("IPsec"), "{wrong:?}");
    }
}

/// Packets that arrived without the ESP that IPsec policies require are reported with a remedy.
#[test]
fn doctor_tells_of_unprotected_packets() {
    let machine = Machine::healthy("plain");
    let counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rx_policy_refused";
    machine.put(counter, "0\n");
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
    machine.put(counter, "9\n");
    let text = machine.good(&["doctor"]);
    assert!(
        text.contains("note  rxe0: rx_policy_refused is 9, and does not grow now"),
        "{text}"
    );
    assert!(text.contains("requires ESP"), "{text}");
    assert!(text.contains("ip xfrm policy"), "{text}");
    let counters = machine.good(&["counters"]);
    assert!(counters.contains("dropped packets"), "{counters}");
    assert!(counters.contains("rxectl doctor says"), "{counters}");
}

/// With IPsec a smaller active MTU is correct, and packets that are too long are reported with a
/// remedy.
#[test]
fn doctor_knows_what_ipsec_takes() {
    let machine = Machine::healthy("room");
    machine.put("/sys/class/net/eth0/mtu", "4200\n");
    assert!(machine.good(&["doctor"]).ends_with("0 wrong, 0 to note\n"));
    machine.program(
        "ibv_devinfo",
        "printf '\\t\\t\\tactive_mtu:\\t\\t2048 (4)\\n'",
    );
    let text = machine.good(&["doctor"]);
    assert!(
        text.contains("note  rxe0: active MTU 2048, where eth0"),
        "{text}"
    );
    assert!(text.contains("link set eth0 mtu 4264 or more"), "{text}");
    machine.put(
        "/sys/class/infiniband/rxe0/ports/1/hw_counters/tx_too_long",
        "5\n",
    );
    let text = machine.good(&["doctor"]);
    assert!(
        text.contains("note  rxe0: 5 packets were not sent"),
        "{text}"
    );
    machine.program(
        "ibv_devinfo",
        "printf '\\t\\t\\tactive_mtu:\\t\\t1024 (3)\\n'",
    );
    assert_eq!(machine.wrong(&[]).len(), 1);
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
    machine.put("/sys/module/module/parameters/sig_enforce", "Y\n");
    machine.put(
        "/signed.ko",
        "\0vermagic=7.3.4-test SMP \0~Module signature appended~\n",
    );
    assert_eq!(machine.wrong(&["--module", &file("signed.ko")]), []);
    let wrong = machine.wrong(&["--module", &file("good.ko")]);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].1.contains("sign it"), "{wrong:?}");
}

#[test]
fn texts_name_commands_that_exist() {
    let help = Machine::healthy("commands").good(&["--help"]);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut count = 0;
    for file in [
        "counters.rs",
        "doctor.rs",
        "doctor/attack.rs",
        "doctor/links.rs",
    ] {
        let text = fs::read_to_string(sources.join(file)).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in lines {
            for rest in line.split("rxectl ").skip(1) {
                let end = rest.find(|c: char| !c.is_ascii_lowercase());
                let command = &rest[..end.unwrap_or(rest.len())];
                assert!(help.contains(&format!("\n  {command} ")), "{file}: {line}");
                count += 1;
            }
        }
    }
    assert!(count > 5, "{count}");
}

/// A network device and a namespace can have names that a shell would run.
#[test]
fn remedies_quote_names() {
    let machine = Machine::healthy("quotes");
    machine.remove("/sys/class/infiniband/rxe0");
    machine.device("rxe0", "a;reboot");
    machine.put("/sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    machine.put(
        "/sys/class/infiniband/rxe0/ports/1/hw_counters/tx_gso_fallback",
        "3\n",
    );
    for queue in 0..2 {
        machine.put(&format!("/sys/class/net/a;reboot/queues/rx-{queue}/x"), "");
    }
    machine.program("ethtool", "echo 'IP SA'");
    let fixes = || {
        let (_, stdout, _) = machine.run(&["--json", "doctor"]);
        let report: Value = serde_json::from_str(&stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        let fixes = findings.filter_map(|finding| finding["fix"].as_str());
        fixes.map(str::to_string).collect::<Vec<_>>().join("\n")
    };
    for mtu in ["300\n", "1500\n", "4200\n"] {
        machine.put("/sys/class/net/a;reboot/mtu", mtu);
        let fixes = fixes();
        assert!(fixes.contains("ip link set 'a;reboot' up"), "{fixes}");
        assert!(fixes.contains("ethtool -K 'a;reboot' tx-"), "{fixes}");
        assert!(fixes.contains("ethtool -N 'a;reboot' rx-"), "{fixes}");
        assert!(
            !fixes.replace("'a;reboot'", "").contains(";reboot"),
            "{fixes}"
        );
    }
    machine.remove("/sys/class/net/a;reboot");
    machine.put("/run/netns/it's $(red)", "");
    machine.program(
        "ip",
        "echo '[{\"address\":\"00:50:c2:00:00:01\",\"mtu\":1500,\"operstate\":\"UP\"}]'",
    );
    let fixes = fixes();
    let namespace = r"'it'\''s $(red)'";
    for command in [
        format!("ip -n {namespace} link set 'a;reboot' up"),
        format!("ip netns exec {namespace} ethtool -K 'a;reboot'"),
    ] {
        assert!(fixes.contains(&command), "{command}: {fixes}");
    }
    machine.device("x y", "eth0");
    let said = machine.bad(&["pkey", "add", "x y", "0x8001"]);
    assert!(said.contains("rxectl pkey set 'x y' 2 KEY"), "{said}");
    assert!(said.contains("rxectl pkey del 'x y' 2"), "{said}");
    let said = machine.bad(&["pkey", "del", "x y", "9"]);
    assert!(said.contains("rxectl pkey list 'x y'"), "{said}");
}
