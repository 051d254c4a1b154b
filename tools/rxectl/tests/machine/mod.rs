// SPDX-License-Identifier: GPL-2.0
//! A simulated host: a folder with the files that the program reads.
// Each test program uses only some of it.
#![allow(dead_code)]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A simulated host in a folder of its own.
pub struct Machine(PathBuf);

impl Machine {
    /// Creates a host without faults: rxe_rs with the device rxe0 on eth0.
    pub fn healthy(name: &str) -> Self {
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
        machine.put("/proc/self/uid_map", "         0          0 4294967295\n");
        machine.put(
            "/proc/self/net/udp",
            "  sl\n  1: 00000000:12B7 00000000:0000 07 00:0 00:0 0 0 0 77 2 x 0\n",
        );
        machine.put("/proc/sys/kernel/osrelease", "7.3.4-test\n");
        machine.put(
            "/sys/module/rxe_rs/version",
            concat!(env!("CARGO_PKG_VERSION"), "\n"),
        );
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

    pub fn device(&self, name: &str, netdev: &str) {
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

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    pub fn program(&self, name: &str, script: &str) {
        self.executable(&format!("/usr/bin/{name}"), script);
    }

    /// Installs a shell script.
    pub fn executable(&self, path: &str, script: &str) {
        let source = format!("{path}.source");
        self.put(&source, &format!("#!/bin/sh\n{script}\n"));
        // Another process writes the program: a process that another test forks meanwhile would
        // inherit a descriptor of this process, and nobody can execute a file that is open for
        // writing (ETXTBSY, execve(2)).
        let mut install = Command::new("install");
        install.arg("-m755");
        install.args([self.path(&source), self.path(path)]);
        assert!(install.status().unwrap().success());
        self.remove(&source);
    }

    /// Returns the command that runs `rxectl` on the host.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rxectl"));
        command.arg("--root").arg(&self.0).args(arguments);
        command
    }

    /// Runs `rxectl` on the host; returns exit status, output and error output.
    pub fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    pub fn good(&self, arguments: &[&str]) -> String {
        let (status, stdout, stderr) = self.run(arguments);
        assert_eq!(status, 0, "{arguments:?}: {stdout}{stderr}");
        stdout
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[&["--json"], arguments].concat())).unwrap()
    }

    /// Returns the error of a command that must fail, and checks that it has a remedy.
    pub fn bad(&self, arguments: &[&str]) -> String {
        let (status, stdout, stderr) = self.run(arguments);
        assert_eq!(status, 2, "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains("fix: "), "{stderr}");
        stderr
    }

    /// Returns the fields `about` and `fix` of the faults that doctor finds.
    pub fn wrong(&self, arguments: &[&str]) -> Vec<(String, String)> {
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
