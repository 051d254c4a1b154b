// SPDX-License-Identifier: GPL-2.0
//! User Mode Linux: the arguments that describe a machine to its kernel, and the folder with what
//! several machines of a run share.

use crate::error::{Error, Result};
use crate::ethernet::Hub;
use rustix::fs::{statvfs, StatVfsMountFlags};
use std::ffi::OsString;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The largest MTU of `eth0` and `eth1`, in bytes.
const LARGEST_MTU: u32 = 9000;
/// The length of a device's queues, in packets.
const QUEUE: u32 = 512;
/// The frequency that perftest gets to see if the host does not tell one, in MHz.
const UNKNOWN_MHZ: &str = "1000.000";

/// What the machines of a run share: a folder, and their Ethernets. The folder is removed when this
/// value is dropped.
///
/// The kernel splits its command line at blanks, and options of mounts end at commas, so paths that
/// the user has chosen get there by symbolic links of the folder.
#[derive(Debug)]
pub struct Shared {
    folder: TempDir,
    /// They forward packets until they are dropped.
    _hubs: Vec<Hub>,
}

/// Whether a path can be part of a kernel's command line and of the options of a mount.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path.to_str().is_some_and(|text| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            text.chars().all(plain)
        })
}

/// Whether the memory of machines, `bytes` in all, can be files in a folder. The machines execute
/// code in them.
fn has_room(folder: &Path, bytes: u64) -> bool {
    let flags = StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY;
    statvfs(folder).is_ok_and(|fs| {
        !fs.f_flag.intersects(flags) && fs.f_bavail.saturating_mul(fs.f_frsize) >= bytes
    })
}

impl Shared {
    /// Makes the folder, in memory if there is room for machines with `memory` MiB in all, and the
    /// Ethernets: that of `eth0`, and for several machines that of `eth1`.
    pub fn new(machine: &Path, folder: &Path, nodes: u8, memory: u64) -> Result<Self> {
        let bytes = memory.saturating_mul(1 << 20);
        // $TMPDIR may be one of the others.
        let mut places = vec![PathBuf::from("/dev/shm"), std::env::temp_dir()];
        for place in ["/tmp", "/var/tmp"].map(PathBuf::from) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let made = places
            .iter()
            .filter(|place| is_plain(place) && has_room(place, bytes))
            .find_map(|place| TempDir::with_prefix_in("rxe-ci-", place).ok());
        let made = made.ok_or_else(|| {
            let shown: Vec<_> = places.iter().map(|place| place.to_string_lossy()).collect();
            Error::new(
                format!(
                    "none of the folders {} has room for {memory} MiB, the memory of the machines, \
                     in a file system that is mounted without noexec",
                    shown.join(", ")
                ),
                "free some space, make /dev/shm larger (docker run --shm-size), set TMPDIR to a folder \
                 that has the space, or see --memory",
            )
        })?;
        let link = |name: &str, target: &Path| {
            let path = made.path().join(name);
            symlink(target, &path).map_err(|error| {
                let what = format!("cannot make {}: {error}", path.display());
                Error::new(what, "see the limits of this user")
            })
        };
        link("share", machine)?;
        link("work", folder)?;
        let names = ["eth0", "eth1"].into_iter();
        let hubs = names
            .take(if nodes > 1 { 2 } else { 1 })
            .map(|name| Hub::new(&made.path().join(name)))
            .collect::<Result<_>>()?;
        Ok(Self {
            folder: made,
            _hubs: hubs,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A machine as the arguments describe it.
#[derive(Debug)]
pub struct Description<'a> {
    /// Its number, from 1.
    pub node: u8,
    /// The number of machines.
    pub nodes: u8,
    /// The number of processors.
    pub cpus: u8,
    /// The size of its memory in MiB.
    pub memory: u32,
    /// The folder that the machines share.
    pub shared: &'a Path,
    /// The machine's ends of the ports that `guest/init` describes, in their order.
    pub ports: [RawFd; 4],
}

/// The frequency of the host's processor in MHz, as in its /proc/cpuinfo.
fn mhz(cpuinfo: &str) -> &str {
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"));
    let value = line.and_then(|line| line.split_once(':'));
    value.map_or(UNKNOWN_MHZ, |(_, value)| value.trim())
}

/// The arguments of the kernel for a machine.
pub fn arguments(this: &Description<'_>) -> Vec<OsString> {
    let shared = this.shared.display();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let node = this.node;
    let mut arguments = vec![
        format!("mem={}M", this.memory),
        format!("ncpus={}", this.cpus),
        // No machine writes to the image, so several can use it at once.
        format!("ubd0r={shared}/share/root.ext4"),
        "root=/dev/ubda".into(),
        "ro".into(),
        "rootfstype=ext4".into(),
        format!("uml_dir={shared}"),
        format!("umid=node{node}"),
        "con=null".into(),
        "con0=null,fd:1".into(),
        "con1=null,fd:1".into(),
        "console=tty0".into(),
        "ssl=null".into(),
    ];
    for (number, fd) in (1..).zip(this.ports) {
        arguments.push(format!("ssl{number}=fd:{fd}"));
    }
    let networks = if this.nodes > 1 { 2 } else { 1 };
    for network in 0..networks {
        let mac = format!("52:54:00:77:{network:02x}:{node:02x}");
        arguments.push(format!(
            "vec{network}:transport=bess,dst={shared}/eth{network},mac={mac},mtu={LARGEST_MTU},depth={QUEUE}"
        ));
    }
    arguments.extend([
        // Processes run by seccomp where the host allows it, else by ptrace.
        "seccomp=auto".into(),
        "noreboot".into(),
        "quiet".into(),
        "loglevel=4".into(),
        "panic=-1".into(),
        "oops=panic".into(),
        format!("rxe.node={node}"),
        format!("rxe.nodes={}", this.nodes),
        "rxe.ports=/dev/ttyS".into(),
        format!("rxe.work={shared}/work"),
        format!("rxe.modules={shared}/share/modules"),
        format!("rxe.mhz={}", mhz(&cpuinfo)),
        "init=/bin/sh".into(),
        "--".into(),
        "-c".into(),
        format!(
            "\"mount -t hostfs -o ro,hostfs={shared}/share share /share; \
             exec busybox sh /share/guest/uml-init\""
        ),
    ]);
    arguments.into_iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: u8, nodes: u8) -> Vec<String> {
        let description = Description {
            node,
            nodes,
            cpus: 3,
            memory: 700,
            shared: Path::new("/dev/shm/rxe-ci-x"),
            ports: [11, 12, 13, 14],
        };
        let all = arguments(&description).into_iter();
        all.map(|argument| argument.into_string().unwrap())
            .collect()
    }

    #[test]
    fn one_machine() {
        let all = shown(1, 1);
        for wanted in [
            "mem=700M",
            "ncpus=3",
            "ubd0r=/dev/shm/rxe-ci-x/share/root.ext4",
            "ssl1=fd:11",
            "ssl4=fd:14",
            "vec0:transport=bess,dst=/dev/shm/rxe-ci-x/eth0,mac=52:54:00:77:00:01,mtu=9000,depth=512",
            "rxe.work=/dev/shm/rxe-ci-x/work",
        ] {
            assert!(all.iter().any(|argument| argument == wanted), "{wanted}");
        }
        assert!(all.iter().all(|argument| !argument.starts_with("vec1")));
    }

    #[test]
    fn several_machines_have_two_ethernets() {
        let all = shown(3, 4);
        let wanted =
            "vec1:transport=bess,dst=/dev/shm/rxe-ci-x/eth1,mac=52:54:00:77:01:03,mtu=9000,depth=512";
        assert!(all.iter().any(|argument| argument == wanted), "{all:?}");
        assert!(all.iter().any(|argument| argument == "rxe.node=3"));
    }

    #[test]
    fn odd_paths_are_behind_links() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a b,c");
        fs::create_dir(&odd).unwrap();
        let shared = Shared::new(&odd, &odd, 2, 1).unwrap();
        let folder = shared.path().to_path_buf();
        assert!(is_plain(&folder));
        for name in ["share", "work"] {
            assert_eq!(fs::read_link(folder.join(name)).unwrap(), odd);
        }
        assert!(folder.join("eth0").exists() && folder.join("eth1").exists());
        drop(shared);
        assert!(!folder.exists());
        assert!(!is_plain(&odd) && !is_plain(Path::new("tmp")));
    }

    #[test]
    fn memory_that_no_file_system_has_room_for() {
        let here = Path::new("/");
        let text = Shared::new(here, here, 1, u64::MAX >> 20).unwrap_err();
        for part in ["/dev/shm, ", "/var/tmp", "noexec", "TMPDIR", "--memory"] {
            assert!(text.to_string().contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn frequency_of_the_processor() {
        assert_eq!(
            mhz("model name\t: x\ncpu MHz\t\t: 2100.5\ncpu MHz\t: 1\n"),
            "2100.5"
        );
        assert_eq!(mhz(""), UNKNOWN_MHZ);
    }
}
