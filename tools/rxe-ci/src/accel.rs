// SPDX-License-Identifier: GPL-2.0
//! The choice between KVM and emulation.
//!
//! A host can have a /dev/kvm with which machines hang or abort, nested virtualisation for example.
//! So KVM is tried: a machine boots up to the first program of its initramfs.

use crate::cli::{self, Accel};
use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::qemu::{self, Qemu};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What the initramfs prints in a trial (`qemu/guest-init`).
const TRIAL_WORKS: &[u8] = b"RXE-PROBE-OK";
/// How to do without KVM.
const EMULATE: &str = "take --accel tcg, or make KVM usable (the user needs access to /dev/kvm)";

/// Where KVM is, and how it is tried.
#[derive(Debug)]
pub struct Kvm {
    /// The device.
    device: PathBuf,
    /// The time limit of the trial.
    limit: Duration,
    /// The file with the result of the last trial.
    memo: Option<PathBuf>,
}

/// The result of a trial, which holds until the host boots again or gets another QEMU.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    boot_id: String,
    qemu: PathBuf,
    version: u32,
    works: bool,
}

impl Default for Kvm {
    fn default() -> Self {
        let cache = cli::variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| cli::variable("HOME").map(|home| Path::new(&home).join(".cache")));
        Self {
            device: "/dev/kvm".into(),
            limit: Duration::from_secs(20),
            memo: cache.map(|cache| cache.join("rxe-ci/kvm.json")),
        }
    }
}

impl Kvm {
    /// Whether machines run under KVM.
    pub fn choose(
        &self,
        accel: Accel,
        qemu: &Qemu,
        machine: &Path,
        events: &Events,
    ) -> Result<bool> {
        if accel == Accel::Tcg {
            return Ok(false);
        }
        let opened = File::options().read(true).write(true).open(&self.device);
        match (accel, opened) {
            (Accel::Kvm, Err(error)) => {
                let device = self.device.display();
                Err(Error::new(
                    format!("KVM cannot be used: {device}: {error}"),
                    EMULATE,
                ))
            }
            (_, Err(_)) => Ok(false),
            (_, Ok(_)) => {
                let works = self.works(qemu, machine, events)?;
                if accel == Accel::Kvm && !works {
                    let what = format!(
                        "KVM cannot be used: a trial boot failed or took more than {:?}",
                        self.limit
                    );
                    return Err(Error::new(what, EMULATE));
                }
                Ok(works)
            }
        }
    }

    /// Whether a trial works, or did since the host was booted.
    fn works(&self, qemu: &Qemu, machine: &Path, events: &Events) -> Result<bool> {
        let trial = |works| Trial {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            qemu: qemu.program.clone(),
            version: qemu.version,
            works,
        };
        let known = self.memo.as_ref().and_then(|memo| fs::read(memo).ok());
        let known: Option<Trial> = known.and_then(|text| serde_json::from_slice(&text).ok());
        for works in [true, false] {
            if known.as_ref() == Some(&trial(works)) {
                return Ok(works);
            }
        }
        let works = self.try_boot(qemu, machine, events)?;
        // Without a place for it the trial is repeated next time.
        if let (Some(memo), Ok(text)) = (&self.memo, serde_json::to_vec(&trial(works))) {
            let new = memo.with_extension(format!("{}.tmp", std::process::id()));
            let written = memo.parent().map_or(Ok(()), fs::create_dir_all);
            let _ = written
                .and_then(|()| fs::write(&new, text))
                .and_then(|()| fs::rename(&new, memo));
        }
        Ok(works)
    }

    /// Boots up to the initramfs.
    fn try_boot(&self, qemu: &Qemu, machine: &Path, events: &Events) -> Result<bool> {
        let mut child = Command::new(&qemu.program)
            .args(qemu::accelerator(true, qemu.version))
            .args(qemu::common(machine, 2, 512, "rxe.probe=1"))
            .args(["-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| Error::new(format!("QEMU cannot be started: {error}"), EMULATE))?;
        let output = child.stdout.take();
        let to = events.sender.clone();
        thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut output) = output {
                // What could be read decides.
                let _ = output.read_to_end(&mut text);
            }
            let _ = to.send(Event::Trial(text));
        });
        let deadline = Instant::now().checked_add(self.limit);
        let event = events.next(deadline);
        // It may have ended already.
        let _ = child.kill();
        // A process that hangs in KVM may not even end when it is killed.
        thread::spawn(move || child.wait());
        Ok(match event? {
            Some(Event::Trial(text)) => text
                .windows(TRIAL_WORKS.len())
                .any(|window| window == TRIAL_WORKS),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in place of QEMU, and a KVM that can be opened.
    fn fake(dir: &Path, script: &str) -> (Qemu, Kvm) {
        let source = dir.join("script");
        fs::write(&source, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Another process writes the program: a process that another test forks meanwhile would
        // inherit a descriptor of this process, and nobody can execute a file that is open for
        // writing (ETXTBSY, execve(2)).
        let program = dir.join("qemu");
        let mut install = Command::new("install");
        install.arg("-m755").args([&source, &program]);
        assert!(install.status().unwrap().success());
        let device = dir.join("kvm");
        fs::write(&device, "").unwrap();
        let kvm = Kvm {
            device,
            limit: Duration::from_secs(1),
            memo: Some(dir.join("cache/kvm.json")),
        };
        (
            Qemu {
                program,
                version: 10,
            },
            kvm,
        )
    }

    #[test]
    fn a_trial_decides() {
        for (script, works) in [
            ("echo boot; echo RXE-PROBE-OK", true),
            (
                "echo 'Could not access KVM kernel module' >&2; exit 1",
                false,
            ),
            ("exec sleep 600", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (qemu, kvm) = fake(dir.path(), script);
            let events = Events::new().unwrap();
            let chosen = |accel| kvm.choose(accel, &qemu, dir.path(), &events);
            assert_eq!(chosen(Accel::Auto).unwrap(), works, "{script}");
            match chosen(Accel::Kvm) {
                Ok(true) => assert!(works, "{script}"),
                Ok(false) => panic!("--accel kvm emulates"),
                Err(error) => assert!(!works && error.to_string().contains("--accel tcg")),
            }
            assert!(!chosen(Accel::Tcg).unwrap());
        }
    }

    #[test]
    fn the_result_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count");
        let script = format!("echo x >>{}; echo RXE-PROBE-OK", count.display());
        let (mut qemu, kvm) = fake(dir.path(), &script);
        let events = Events::new().unwrap();
        for _ in 0..3 {
            assert!(kvm.choose(Accel::Auto, &qemu, dir.path(), &events).unwrap());
        }
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\n");
        qemu.version = 11;
        assert!(kvm.choose(Accel::Auto, &qemu, dir.path(), &events).unwrap());
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\nx\n");
    }

    #[test]
    fn without_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let (qemu, mut kvm) = fake(dir.path(), "exit 1");
        kvm.device = dir.path().join("none");
        let events = Events::new().unwrap();
        assert!(!kvm.choose(Accel::Auto, &qemu, dir.path(), &events).unwrap());
        let text = kvm
            .choose(Accel::Kvm, &qemu, dir.path(), &events)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("No such file") && text.contains("--accel tcg"),
            "{text}"
        );
    }
}
