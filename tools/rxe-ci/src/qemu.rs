// SPDX-License-Identifier: GPL-2.0
//! QEMU: where it is, its version, and the arguments that describe a machine.

use crate::cli;
use crate::error::{Error, Result};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name of the program.
const NAME: &str = "qemu-system-x86_64";
/// The oldest version with all options that are used.
const OLDEST: u32 = 6;
/// The first version that knows the processor flags FZRM, FSRS and FSRC.
const SHORT_STRING_FLAGS: u32 = 8;

/// A QEMU.
#[derive(Debug)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Its major version.
    pub version: u32,
}

/// Whether a file can be executed.
fn executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The major version in the output of `--version`.
fn major(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("QEMU emulator version ")?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

impl Qemu {
    /// Finds the program and its version.
    pub fn find() -> Result<Self> {
        let install = "install it (Debian, Ubuntu: apt install qemu-system-x86), or name another \
                       one by RXE_CI_QEMU";
        let program = match cli::variable("RXE_CI_QEMU") {
            Some(name) => PathBuf::from(name),
            None => {
                let path = env::var_os("PATH").unwrap_or_default();
                let mut programs = env::split_paths(&path).map(|folder| folder.join(NAME));
                let found = programs.find(|program| executable(program));
                found.ok_or_else(|| Error::new(format!("there is no {NAME} in PATH"), install))?
            }
        };
        let bad =
            |reason: &dyn Display| Error::new(format!("{} {reason}", program.display()), install);
        let done = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| bad(&format!("cannot be executed: {error}")))?;
        match major(&String::from_utf8_lossy(&done.stdout)) {
            None => Err(bad(&"is not QEMU")),
            Some(version) if version < OLDEST => Err(bad(&format!(
                "is version {version}, {OLDEST} or newer is needed"
            ))),
            Some(version) => Ok(Self { program, version }),
        }
    }
}

/// The host's ends of what connects a machine are sockets, and these are the machine's.
#[derive(Debug)]
pub struct Sockets {
    /// The serial console.
    pub console: RawFd,
    /// The ports that `guest/init` describes, in their order.
    pub ports: [RawFd; 4],
    /// Sockets to other machines, a pair for each: of the Ethernet of the link, and of that of
    /// `on`. The first machine has those to all others and joins them, others that to the first.
    pub links: Vec<[RawFd; 2]>,
}

/// A machine as QEMU's arguments describe it.
#[derive(Debug)]
pub struct Description<'a> {
    /// Its number, from 1.
    pub node: u8,
    /// The number of machines.
    pub nodes: u8,
    /// Whether KVM runs it.
    pub kvm: bool,
    /// The number of processors.
    pub cpus: u8,
    /// The size of its memory in MiB.
    pub memory: u32,
    /// The folder of the prepared machine.
    pub machine: &'a Path,
    /// The folder of the host that it shares.
    pub folder: &'a Path,
    /// What connects it.
    pub sockets: Sockets,
}

/// A value of an option, in which QEMU takes two commas for one.
fn value(prefix: &str, path: &Path) -> OsString {
    let mut bytes = prefix.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b',' {
            bytes.push(byte);
        }
    }
    OsString::from_vec(bytes)
}

/// The arguments that choose the accelerator and the processor.
pub fn accelerator(kvm: bool, version: u32) -> Vec<OsString> {
    let arguments: &[&str] = if kvm {
        &["-accel", "kvm", "-cpu", "host"]
    } else if version >= SHORT_STRING_FLAGS {
        // As qemu/machine.py: emulated code is faster without these instructions and page tables.
        &[
            "-accel",
            "tcg,thread=multi,tb-size=256",
            "-cpu",
            "max,-erms,-fsrm,-fzrm,-fsrs,-fsrc,-la57",
        ]
    } else {
        &[
            "-accel",
            "tcg,thread=multi,tb-size=256",
            "-cpu",
            "max,-erms,-fsrm,-la57",
        ]
    };
    arguments.iter().map(OsString::from).collect()
}

/// The arguments that all machines have, the trial of KVM too.
pub fn common(machine: &Path, cpus: u8, memory: u32, append: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        "-machine",
        "q35",
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
        "-smp",
    ]
    .iter()
    .map(OsString::from)
    .collect();
    arguments.extend([
        cpus.to_string().into(),
        "-m".into(),
        memory.to_string().into(),
    ]);
    for (option, name) in [("-kernel", "vmlinuz"), ("-initrd", "initramfs")] {
        arguments.extend([option.into(), machine.join(name).into_os_string()]);
    }
    // A panic ends QEMU, because of -no-reboot. The kernel panics without no_timer_check if the
    // host does not run the emulator for some milliseconds while it tests the timer.
    let kernel = "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic mitigations=off no_timer_check net.ifnames=0";
    arguments.extend(["-append".into(), format!("{kernel} {append}").into()]);
    arguments
}

/// The arguments for the network devices.
fn network(node: u8, links: &[[RawFd; 2]], multiple: bool) -> Vec<String> {
    let mut arguments = Vec::new();
    let names = ["rdma", "on"];
    let used = if multiple { 2 } else { 1 };
    for (index, name) in names.iter().enumerate().take(used) {
        if node == 1 {
            arguments.extend(["-netdev".into(), format!("hubport,id={name},hubid={index}")]);
            for (number, sockets) in links.iter().enumerate() {
                let (Some(fd), to) = (sockets.get(index), format!("{name}{number}")) else {
                    continue;
                };
                arguments.extend(["-netdev".into(), format!("socket,id={to}s,fd={fd}")]);
                arguments.extend([
                    "-netdev".into(),
                    format!("hubport,id={to},hubid={index},netdev={to}s"),
                ]);
            }
        } else if let Some(fd) = links.first().and_then(|sockets| sockets.get(index)) {
            arguments.extend(["-netdev".into(), format!("socket,id={name},fd={fd}")]);
        }
        let mac = format!("52:54:00:77:{index:02x}:{node:02x}");
        arguments.extend([
            "-device".into(),
            format!("virtio-net-pci,netdev={name},mac={mac}"),
        ]);
    }
    arguments
}

/// The arguments of QEMU for a machine.
pub fn arguments(version: u32, this: &Description<'_>) -> Vec<OsString> {
    let mut arguments = accelerator(this.kvm, version);
    let append = format!("rxe.node={} rxe.nodes={}", this.node, this.nodes);
    arguments.extend(common(this.machine, this.cpus, this.memory, &append));
    let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);

    let console = this.sockets.console;
    add("-chardev", format!("socket,id=console,fd={console}").into());
    add("-serial", "chardev:console".into());
    add("-device", "virtio-serial-pci".into());
    for (number, fd) in (1..).zip(this.sockets.ports) {
        add("-chardev", format!("socket,id=port{number},fd={fd}").into());
        add(
            "-device",
            format!("virtserialport,nr={number},chardev=port{number},name=rxe-ci.{number}").into(),
        );
    }
    for (id, name) in [("root", "root.ext4"), ("modules", "modules.ext4")] {
        // No machine writes to the images, so several can use them at once.
        let drive = format!("if=none,format=raw,readonly=on,file.locking=off,id={id},file=");
        add("-drive", value(&drive, &this.machine.join(name)));
        add("-device", format!("virtio-blk-pci,drive={id}").into());
    }
    add(
        "-fsdev",
        value(
            "local,id=share,security_model=none,readonly=on,path=",
            this.machine,
        ),
    );
    add(
        "-device",
        "virtio-9p-pci,fsdev=share,mount_tag=share".into(),
    );
    add(
        "-fsdev",
        value(
            "local,id=work,security_model=none,multidevs=remap,path=",
            this.folder,
        ),
    );
    add("-device", "virtio-9p-pci,fsdev=work,mount_tag=work".into());
    add("-device", "virtio-rng-pci".into());
    let network = network(this.node, &this.sockets.links, this.nodes > 1);
    arguments.extend(network.into_iter().map(OsString::from));
    arguments
}

/// Whether a folder can be mounted in a machine without hiding what the machine needs.
pub fn can_share(folder: &Path) -> bool {
    let below = |path: &str| folder.starts_with(path);
    let exact = [
        "/",
        "/bin",
        "/etc",
        "/lib",
        "/lib64",
        "/root",
        "/run",
        "/sbin",
        "/share",
        "/tmp",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/share",
        "/var",
    ];
    let is = |path: &&str| folder.as_os_str() == OsStr::new(path);
    !(exact.iter().any(is)
        || ["/dev", "/proc", "/sys", "/run/rxe-ci", "/share"]
            .into_iter()
            .any(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(links: Vec<[RawFd; 2]>) -> Sockets {
        Sockets {
            console: 10,
            ports: [11, 12, 13, 14],
            links,
        }
    }

    /// The arguments, each option and its value as one string.
    fn shown(version: u32, node: u8, nodes: u8, kvm: bool, links: Vec<[RawFd; 2]>) -> Vec<String> {
        let description = Description {
            node,
            nodes,
            kvm,
            cpus: 2,
            memory: 768,
            machine: Path::new("/m,1"),
            folder: Path::new("/home/a,b c"),
            sockets: sockets(links),
        };
        let all: Vec<String> = arguments(version, &description)
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect();
        let mut joined: Vec<String> = Vec::new();
        for argument in all {
            match joined.last_mut() {
                Some(option) if !argument.starts_with('-') => {
                    *option = format!("{option} {argument}")
                }
                _ => joined.push(argument),
            }
        }
        joined
    }

    fn assert_has(all: &[String], options: &[&str]) {
        for wanted in options {
            assert!(
                all.iter().any(|option| option == wanted),
                "{wanted} is not in {all:#?}"
            );
        }
    }

    #[test]
    fn one_machine() {
        let all = shown(10, 1, 1, false, Vec::new());
        assert_has(
            &all,
            &[
                "-m 768",
                "-smp 2",
                "-no-reboot",
                "-kernel /m,1/vmlinuz",
                "-chardev socket,id=console,fd=10",
                "-chardev socket,id=port1,fd=11",
                "-device virtserialport,nr=4,chardev=port4,name=rxe-ci.4",
                "-drive if=none,format=raw,readonly=on,file.locking=off,id=root,file=/m,,1/root.ext4",
                "-fsdev local,id=share,security_model=none,readonly=on,path=/m,,1",
                "-fsdev local,id=work,security_model=none,multidevs=remap,path=/home/a,,b c",
                "-netdev hubport,id=rdma,hubid=0",
                "-device virtio-net-pci,netdev=rdma,mac=52:54:00:77:00:01",
            ],
        );
        assert!(all
            .iter()
            .any(|option| option.contains("rxe.node=1 rxe.nodes=1")));
        assert!(all.iter().all(|option| !option.contains("netdev=on")));
    }

    #[test]
    fn every_drive_is_read_only() {
        let all = shown(10, 1, 1, true, Vec::new());
        let mut drives = all.iter().filter(|option| option.starts_with("-drive"));
        assert!(drives.all(|drive| drive.contains("readonly=on")));
        assert_eq!(
            all.iter()
                .filter(|option| option.starts_with("-drive"))
                .count(),
            2
        );
    }

    #[test]
    fn the_first_machine_joins_the_others() {
        let first = shown(10, 1, 3, true, vec![[20, 21], [22, 23]]);
        assert_has(
            &first,
            &[
                "-netdev socket,id=rdma0s,fd=20",
                "-netdev hubport,id=rdma0,hubid=0,netdev=rdma0s",
                "-netdev socket,id=rdma1s,fd=22",
                "-netdev socket,id=on1s,fd=23",
                "-netdev hubport,id=on1,hubid=1,netdev=on1s",
                "-device virtio-net-pci,netdev=on,mac=52:54:00:77:01:01",
            ],
        );
        let third = shown(10, 3, 3, true, vec![[30, 31]]);
        assert_has(
            &third,
            &[
                "-netdev socket,id=rdma,fd=30",
                "-netdev socket,id=on,fd=31",
                "-device virtio-net-pci,netdev=rdma,mac=52:54:00:77:00:03",
            ],
        );
        assert!(third.iter().all(|option| !option.contains("hubport")));
    }

    #[test]
    fn accelerators() {
        assert!(shown(10, 1, 1, true, Vec::new()).contains(&"-cpu host".to_string()));
        let new = shown(8, 1, 1, false, Vec::new());
        assert!(new
            .iter()
            .any(|option| option.starts_with("-cpu max") && option.contains("-fzrm")));
        // Version 7 refuses flags that it does not know.
        let old = shown(7, 1, 1, false, Vec::new());
        assert!(old
            .iter()
            .any(|option| option.starts_with("-cpu max") && !option.contains("fzrm")));
    }

    #[test]
    fn versions() {
        assert_eq!(
            major("QEMU emulator version 10.0.3 (Debian 1:10.0.3)\nCopyright"),
            Some(10)
        );
        assert_eq!(major("QEMU emulator version 7.2.22\n"), Some(7));
        assert_eq!(major("qemu-img version 7.2.22\n"), None);
        assert_eq!(major("QEMU emulator version x"), None);
    }

    #[test]
    fn folders_that_a_machine_needs_are_not_mounted_over() {
        for bad in [
            "/",
            "/usr",
            "/etc",
            "/tmp",
            "/root",
            "/proc/self",
            "/dev/shm/x",
            "/sys",
            "/share/x",
        ] {
            assert!(!can_share(Path::new(bad)), "{bad}");
        }
        for good in [
            "/home/runner/a",
            "/tmp/x",
            "/root/project",
            "/usr/src/x",
            "/builds/a",
            "/devel",
        ] {
            assert!(can_share(Path::new(good)), "{good}");
        }
    }
}
