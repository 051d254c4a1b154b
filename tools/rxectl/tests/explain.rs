// SPDX-License-Identifier: GPL-2.0
//! `rxectl explain` against the sources of the driver: whatever it can report has an explanation,
//! and what it cannot report is marked so.

mod machine;

use machine::Machine;
use rxe_proto::drop::DropReason;
use rxe_proto::engine::backend::Count;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The sources of the driver.
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../rxe_rs");

/// Errors that stay inside of the driver, with the reason.
const INTERNAL: [(&str, &str); 4] = [
    ("EAFNOSUPPORT", "udp_rx.c: a host without IPv6"),
    (
        "EHOSTUNREACH",
        "gso_tx.c: the packet is counted as send_err",
    ),
    (
        "EMSGSIZE",
        "gso_tx.c, raw.c: counted as tx_too_long, or LOC_LEN_ERR; detail.rs: continued by the core",
    ),
    ("EPFNOSUPPORT", "udp_rx.c: a host without IPv6"),
];

/// The names of `errno-base.h`, and those of `errno.h` that drivers use.
const ERRORS: &str = "EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM \
    EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY \
    ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOSYS ELOOP \
    ENODATA ETIME EPROTO EBADMSG EOVERFLOW EUSERS EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP \
    EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED \
    ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY \
    EINPROGRESS ESTALE EREMOTEIO EDQUOT ECANCELED EKEYREJECTED EHWPOISON";

/// Errors that other parts of the kernel return: before the driver is called, or to the driver.
const OF_OTHERS: [(&str, &str); 13] = [
    (
        "EACCES",
        "the file system, and the core for changed credentials",
    ),
    ("EADDRINUSE", "the UDP stack, and the RDMA CM"),
    ("EADDRNOTAVAIL", "the RDMA CM"),
    ("EBADF", "dma_buf_get"),
    ("ECONNREFUSED", "librdmacm, for a rejected connection; TCP"),
    ("EHOSTUNREACH", "the routing of addresses; TCP"),
    ("EIO", "the core, for devices that have been removed"),
    ("EKEYREJECTED", "the loader of modules"),
    ("EMFILE", "the file system"),
    ("ENETUNREACH", "the routing of addresses; TCP"),
    ("ENFILE", "the core, for a name that is taken"),
    ("ENOEXEC", "the loader of modules"),
    (
        "ETIMEDOUT",
        "the core, which resolves addresses, and the RDMA CM",
    ),
];

/// The names of a group that `rxectl explain` lists; true if the driver reports them.
fn explained(machine: &Machine, group: &str) -> BTreeMap<String, bool> {
    let all = machine.json(&["explain"]);
    let entries = all[group].as_array().unwrap();
    let entry = |entry: &Value| {
        let name = entry["name"].as_str().unwrap().to_string();
        (name, entry["reported"].as_bool().unwrap())
    };
    entries.iter().map(entry).collect()
}

/// The names of a group that are marked as reported.
fn reported(machine: &Machine, group: &str) -> BTreeSet<String> {
    let entries = explained(machine, group).into_iter();
    entries
        .filter(|(_, is)| *is)
        .map(|(name, _)| name)
        .collect()
}

/// The source files of the driver below a folder, without those that only tests use.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !["tests", "sim", "examples", "fuzz", "target"].contains(&name) {
                found.extend(sources(&path));
            }
        } else if [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end))
            && !["sim.rs", "kunit.rs"].contains(&name)
        {
            found.push(path);
        }
    }
    found
}

/// A source file without comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        match ["//", "/*", "*"].iter().any(|mark| line.starts_with(mark)) {
            true => "",
            false => line.split("//").next().unwrap(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The identifiers in a text.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[test]
fn every_counter() {
    let machine = Machine::healthy("explain-counters");
    let text = code(&Path::new(DRIVER).join("device/counters.rs"));
    let list = text.split("const NAMES: [&'static str;").nth(1).unwrap();
    let list = list.split("];").next().unwrap();
    let traffic: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    assert!(
        traffic.len() >= 8 && traffic.contains("send_err"),
        "{traffic:?}"
    );
    // The only traffic that is dropped.
    let guard = "egress_guard_drops";
    assert!(traffic.contains(guard));
    let mut counters: BTreeSet<String> = traffic.iter().map(|name| name.to_string()).collect();
    counters.remove(guard);
    counters.extend(Count::ALL.map(|count| count.name().to_string()));
    let mut drops = BTreeSet::from(DropReason::ALL.map(|reason| reason.name().to_string()));
    drops.insert(guard.to_string());
    assert_eq!(reported(&machine, "counters"), counters);
    assert_eq!(reported(&machine, "drops"), drops);
}

#[test]
fn every_status() {
    let machine = Machine::healthy("explain-statuses");
    let engine = Path::new(DRIVER).join("proto/engine/wc.rs");
    let text = code(&engine);
    let body = text.split("pub enum WcStatus {").nth(1).unwrap();
    let body = body.split('}').next().unwrap();
    // The names of the driver, by number.
    let mut ours: BTreeMap<u64, &str> = BTreeMap::new();
    for line in body.lines().filter(|line| !line.is_empty()) {
        let (name, number) = line.trim_end_matches(',').split_once(" = ").unwrap();
        ours.insert(number.parse().unwrap(), name);
    }
    assert!(ours.len() >= 14, "{ours:?}");
    let mut produced = BTreeSet::new();
    for path in sources(Path::new(DRIVER)) {
        if path.file_name() != engine.file_name() {
            let text = code(&path);
            let used = text.split("WcStatus::").skip(1);
            produced.extend(used.filter_map(|rest| identifiers(rest).next().map(String::from)));
        }
    }
    let all = machine.json(&["explain"]);
    let statuses = all["statuses"].as_array().unwrap();
    assert_eq!(statuses.len(), 24);
    for (number, status) in (0..).zip(statuses) {
        assert_eq!(status["number"], number);
        let is_produced = ours
            .get(&number)
            .is_some_and(|name| produced.contains(*name));
        assert_eq!(status["reported"], is_produced, "{status}");
    }
    assert!(ours.keys().all(|number| *number < 24));
}

#[test]
fn every_event() {
    let machine = Machine::healthy("explain-events");
    let mut raised = BTreeSet::new();
    for path in sources(Path::new(DRIVER)) {
        let text = code(&path);
        let names = text.split("ib_event_type_IB_EVENT_").skip(1);
        raised.extend(names.map(|rest| {
            let name = identifiers(rest).next().unwrap();
            format!("IBV_EVENT_{name}")
        }));
    }
    assert!(raised.len() >= 10, "{raised:?}");
    // The core raises them, when its table of GIDs changes, when a device is removed and when the
    // port goes up or down.
    let by_core = ["GID_CHANGE", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR"];
    raised.extend(by_core.map(|name| format!("IBV_EVENT_{name}")));
    assert_eq!(reported(&machine, "events"), raised);
    assert_eq!(explained(&machine, "events").len(), 21);
}

/// The event types of the RDMA CM that no link of the driver causes.
const NEVER_OF_THE_CM: [(&str, &str); 1] = [(
    "RDMA_CM_EVENT_ROUTE_ERROR",
    "the RDMA CM resolves paths of RoCE by itself",
)];

/// `qemu/selftest_documents.py` compares the names with the header of the kernel, and
/// `ktests/vm/tools.test` with those that librdmacm prints.
#[test]
fn every_event_of_the_cm() {
    let machine = Machine::healthy("explain-cm-events");
    let mut never = explained(&machine, "cm_events");
    assert_eq!(never.len(), 20);
    never.retain(|_, is| !*is);
    let expected = NEVER_OF_THE_CM.map(|(name, _)| name.to_string());
    assert_eq!(never.into_keys().collect::<Vec<_>>(), expected);
    // What programs print: the name, or a part of it, and the status.
    for (name, parts) in [
        (
            "RDMA_CM_EVENT_ADDR_ERROR",
            &["-19", "ENODEV", "no link"][..],
        ),
        ("ADDR_ERROR", &["-110", "ETIMEDOUT", "ARP"]),
        ("cm:7", &["-110", "firewall", "4791"]),
        ("unreachable", &["-110", "backlog"]),
        ("rejected", &["8 ", "no program listens"]),
        ("RDMA_CM_EVENT_REJECTED", &["28 ", "rdma_reject"]),
        ("RDMA_CM_EVENT_DISCONNECTED", &["rdma_disconnect"]),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", &["rdma link del"]),
        ("RDMA_CM_EVENT_CONNECT_ERROR", &["IPsec"]),
        ("RDMA_CM_EVENT_ADDR_CHANGE", &["bond"]),
    ] {
        let value = machine.json(&["explain", name]);
        assert_eq!(value["kind"], "cm");
        let mut causes = value["causes"].as_array().unwrap().iter();
        let found = causes.any(|cause| {
            let cause = cause.as_str().unwrap();
            parts.iter().all(|part| cause.contains(part))
        });
        assert!(found, "{name}: {parts:?}: {value:#}");
    }
}

#[test]
fn every_error() {
    let machine = Machine::healthy("explain-errors");
    let known: BTreeSet<&str> = ERRORS.split_whitespace().collect();
    let mut returned = BTreeSet::new();
    for path in sources(Path::new(DRIVER)) {
        let text = code(&path);
        let names = identifiers(&text).filter(|name| known.contains(name));
        returned.extend(names.map(str::to_string));
    }
    assert!(returned.len() > 10, "{returned:?}");
    for (name, _) in INTERNAL {
        assert!(returned.remove(name), "{name} is no longer used");
    }
    for (name, _) in OF_OTHERS {
        assert!(returned.insert(name.to_string()), "{name} is used");
    }
    assert_eq!(reported(&machine, "errors"), returned);
}

/// What other parts of the kernel return for a user of the driver: each cause has a line that names
/// the call or the event, and says what distinguishes it.
#[test]
fn errors_of_others() {
    let machine = Machine::healthy("explain-others");
    for (name, parts) in [
        (
            "EPERM",
            &[
                "modprobe rxe_rs",
                "locked down",
                "unsigned module loading is restricted",
            ][..],
        ),
        ("EPERM", &["CAP_SYS_MODULE", "kernel.modules_disabled"]),
        ("ENOENT", &["insmod rxe_rs.ko", "Unknown symbol"]),
        ("Unknown symbol in module", &["insmod rxe_rs.ko"]),
        (
            "Invalid module format",
            &["modprobe rxe_rs", "another kernel", "version magic"],
        ),
        ("EACCES", &["rdma_bind_addr", "below 1024"]),
        (
            "ENODEV",
            &[
                "rdma_resolve_addr",
                "RDMA_CM_EVENT_ADDR_ERROR",
                "-19",
                "route",
            ],
        ),
        ("ENODEV", &["rdma_bind_addr", "has no link"]),
        ("EADDRINUSE", &["rdma link add", "UDP port 4791"]),
        ("EADDRINUSE", &["rdma_bind_addr", "same address and port"]),
        ("EADDRINUSE", &["ib_write_bw", "TCP"]),
        (
            "EADDRNOTAVAIL",
            &["rdma_bind_addr", "no network device", "has the address"],
        ),
        (
            "Cannot assign requested address",
            &["rdma_listen", "0.0.0.0"],
        ),
        ("ENETUNREACH", &["rdma_resolve_addr", "no route"]),
        ("Network is unreachable", &["ibv_modify_qp to RTR", "IPv6"]),
        ("ETIMEDOUT", &["ibv_modify_qp to RTR", "ARP"]),
        ("ETIMEDOUT", &["RDMA_CM_EVENT_ADDR_ERROR", "-110"]),
        (
            "ETIMEDOUT",
            &["RDMA_CM_EVENT_UNREACHABLE", "-110", "firewall"],
        ),
        (
            "ECONNREFUSED",
            &["rdma_connect", "RDMA_CM_EVENT_REJECTED", "8"],
        ),
        ("Connection refused", &["ib_write_bw", "TCP"]),
        ("EHOSTUNREACH", &["ib_write_bw", "TCP", "ARP"]),
        ("No route to host", &["rdma_resolve_addr", "unreachable"]),
        (
            "Key was rejected by service",
            &["modprobe rxe_rs", "no signature"],
        ),
        ("EKEYREJECTED", &["modprobe rxe_rs", "mokutil --import"]),
    ] {
        let value = machine.json(&["explain", name]);
        let mut causes = value["causes"].as_array().unwrap().iter();
        let found = causes.any(|cause| {
            let cause = cause.as_str().unwrap();
            parts.iter().all(|part| cause.contains(part))
        });
        assert!(found, "{name}: {parts:?}: {value:#}");
    }
    // The first sentence stands alone in the list of all names: it holds for each of the causes.
    for (name, of_one_cause) in [("EADDRINUSE", "4791"), ("ETIMEDOUT", "GID")] {
        let what = machine.json(&["explain", name])["what"].clone();
        assert!(!what.as_str().unwrap().contains(of_one_cause), "{what}");
    }
}

#[test]
fn all_names_as_text_and_json() {
    let machine = Machine::healthy("explain-all");
    let all = machine.json(&["explain"]);
    let listed = machine.good(&["explain"]);
    let mut count = 0;
    for (_, group) in all.as_object().unwrap() {
        for entry in group.as_array().unwrap() {
            let name = entry["name"].as_str().unwrap();
            assert!(listed.contains(&format!("  {name} ")), "{name}");
            let text = machine.good(&["explain", name]);
            for heading in ["What happened\n", "Likely causes\n", "What to look at\n"] {
                assert!(text.contains(heading), "{name}: {text}");
            }
            assert!(text.starts_with(&format!("{name}: ")), "{text}");
            let value = machine.json(&["explain", name]);
            assert_eq!(value["name"], name);
            assert_eq!(value["number"], entry["number"]);
            assert!(value["what"].as_str().unwrap().len() > 10);
            assert!(!value["causes"].as_array().unwrap().is_empty());
            for look in value["look"].as_array().unwrap() {
                assert!(look["command"].is_string() && look["shows"].is_string());
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn arguments() {
    let machine = Machine::healthy("explain-arguments");
    let name = |arguments: &[&str]| {
        let value = machine.json(&[&["explain"], arguments].concat());
        value["name"].as_str().unwrap().to_string()
    };
    let words = ["transport", "retry", "counter", "exceeded"];
    assert_eq!(name(&words), "IBV_WC_RETRY_EXC_ERR");
    assert_eq!(name(&["status:12"]), "IBV_WC_RETRY_EXC_ERR");
    assert_eq!(name(&["-22"]), "EINVAL");
    assert_eq!(name(&["Invalid argument"]), "EINVAL");
    let said = machine.bad(&["explain", "rx_bad_irc"]);
    assert!(
        said.contains("rx_bad_irc") && said.contains("rx_bad_icrc"),
        "{said}"
    );
    let said = machine.bad(&["explain", "12"]);
    assert!(
        said.contains("status:12") && said.contains("errno:12"),
        "{said}"
    );
    let (status, _, stderr) = machine.run(&["--json", "explain", "nothing like it"]);
    assert_eq!(status, 2);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(error["fix"], "see all names: rxectl explain");
}

#[test]
fn page_and_completion() {
    let machine = Machine::healthy("explain-generate");
    let folder = machine.path("/generated");
    machine.good(&["generate", folder.to_str().unwrap()]);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let page = read("man/rxectl-explain.1");
    assert!(
        page.contains("status:12") && !page.contains("possible values"),
        "{page}"
    );
    // clap_complete generates no positional arguments for fish.
    for name in ["rxectl.bash", "_rxectl"] {
        let completion = read(&format!("completions/{name}"));
        assert!(completion.contains("IBV_WC_RETRY_EXC_ERR"), "{name}");
        assert!(completion.contains("rx_bad_icrc"), "{name}");
    }
}
