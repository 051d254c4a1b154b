// SPDX-License-Identifier: GPL-2.0
//! The choice between KVM and emulation.
//!
//! A host can have a /dev/kvm with which machines hang or abort, nested virtualisation for example.
//! So KVM is tried: a machine boots up to the first program of its initramfs. That can be luck
//! where virtual machines are nested, so a machine that does not boot later counts more than the
//! trial.

use crate::cli::{self, Accel};
use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::qemu::{self, Qemu};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What the initramfs prints in a trial (`qemu/guest-init`).
const TRIAL_WORKS: &[u8] = b"RXE-PROBE-OK";

/// Where KVM is, and how it is tried.
#[derive(Debug)]
pub struct Kvm {
    /// The device.
    device: PathBuf,
    /// The time limit of the trial.
    limit: Duration,
    /// The file with the result of the last trial.
    memo: Option<PathBuf>,
    /// Whether a machine of this run has not booted with it.
    distrusted: bool,
    /// That failure, if KVM may be its cause.
    suspected: Option<Trial>,
}

/// The result of a trial, or of a boot that failed after one. It holds until the host boots again
/// or gets another QEMU.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    boot_id: String,
    qemu: PathBuf,
    version: u32,
    works: bool,
}

impl Trial {
    /// A result on this host, since it was booted.
    fn of(qemu: &Qemu, works: bool) -> Self {
        Self {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            qemu: qemu.program.clone(),
            version: qemu.version,
            works,
        }
    }
}

impl Default for Kvm {
    fn default() -> Self {
        Self {
            device: "/dev/kvm".into(),
            limit: Duration::from_secs(20),
            memo: cli::cache().map(|cache| cache.join("kvm.json")),
            distrusted: false,
            suspected: None,
        }
    }
}

/// How the machines of QEMU run.
#[derive(Debug)]
pub struct Choice {
    /// Whether KVM runs them.
    pub kvm: bool,
    /// Why not, if KVM was to be taken where it works.
    pub why_not: Option<String>,
}

/// The error if /dev/kvm cannot be opened.
fn no_access(device: &Path, error: &io::Error) -> Error {
    let fix = match error.kind() {
        io::ErrorKind::NotFound => {
            "take --accel tcg, or a host with KVM; a container has it if it gets /dev/kvm \
             (docker run --device /dev/kvm)"
        }
        io::ErrorKind::PermissionDenied => {
            "take --accel tcg, or give the user access to it, usually by the group kvm"
        }
        _ => "take --accel tcg, or load the kernel module kvm_intel or kvm_amd",
    };
    let what = format!("KVM cannot be used: {}: {error}", device.display());
    Error::new(what, fix)
}

impl Kvm {
    /// Chooses between KVM and emulation.
    pub fn choose(
        &self,
        accel: Accel,
        qemu: &Qemu,
        machine: &Path,
        events: &Events,
    ) -> Result<Choice> {
        if accel == Accel::Tcg {
            return Ok(Choice {
                kvm: false,
                why_not: None,
            });
        }
        let opened = File::options().read(true).write(true).open(&self.device);
        let failure = match opened {
            Ok(_) => self.failure(accel, qemu, machine, events)?,
            Err(error) => Some(no_access(&self.device, &error)),
        };
        match failure {
            Some(error) if accel == Accel::Kvm => Err(error),
            failure => Ok(Choice {
                kvm: failure.is_none(),
                why_not: failure.map(|error| error.what),
            }),
        }
    }

    /// What is wrong with KVM, by a trial or by the memory of one since the host was booted. A
    /// failure that is remembered is not an answer to the demand for KVM: its cause can have gone,
    /// such as a host that was too busy.
    fn failure(
        &self,
        accel: Accel,
        qemu: &Qemu,
        machine: &Path,
        events: &Events,
    ) -> Result<Option<Error>> {
        if self.distrusted && accel == Accel::Auto {
            let what = "a machine of this run has not booted with KVM";
            return Ok(Some(Error::new(what, "")));
        }
        if let Some(memo) = &self.memo {
            let known = fs::read(memo).ok();
            let known: Option<Trial> = known.and_then(|text| serde_json::from_slice(&text).ok());
            if known.as_ref() == Some(&Trial::of(qemu, true)) {
                return Ok(None);
            }
            if accel == Accel::Auto && known.as_ref() == Some(&Trial::of(qemu, false)) {
                let what = format!(
                    "KVM has failed since the host was booted, which {} remembers; --accel kvm \
                     tries again and says more",
                    memo.display()
                );
                return Ok(Some(Error::new(what, "")));
            }
        }
        let failure = self.try_boot(qemu, machine, events)?;
        // Without a place for it the trial is repeated next time.
        let _ = self.remember(&Trial::of(qemu, failure.is_none()));
        Ok(failure)
    }

    /// Stores a result; returns the file.
    fn remember(&self, trial: &Trial) -> Option<&Path> {
        let memo = self.memo.as_deref()?;
        let text = serde_json::to_vec(trial).ok()?;
        let new = memo.with_extension(format!("{}.tmp", std::process::id()));
        fs::create_dir_all(memo.parent()?).ok()?;
        fs::write(&new, text).ok()?;
        fs::rename(&new, memo).ok()?;
        Some(memo)
    }

    /// Does without KVM for the rest of this run, unless it is demanded: machines have not booted
    /// with it. `suspected` is their QEMU, if KVM may be the cause.
    pub fn distrust(&mut self, suspected: Option<&Qemu>) {
        self.distrusted = true;
        self.suspected = suspected.map(|qemu| Trial::of(qemu, false));
    }

    /// The same machines have booted without KVM: stores that it does not work, although a trial
    /// has succeeded, if it was suspected. Returns the file, if there was something to store and it
    /// could be written.
    pub fn remember_failure(&self) -> Option<&Path> {
        self.remember(self.suspected.as_ref()?)
    }

    /// Boots up to the initramfs; returns why that failed.
    fn try_boot(&self, qemu: &Qemu, machine: &Path, events: &Events) -> Result<Option<Error>> {
        let cannot = |error| {
            let what = format!("QEMU cannot be started for a trial of KVM: {error}");
            Error::new(what, "see the limits of this user (ulimit -a)")
        };
        let (mut output, end) = UnixStream::pair().map_err(cannot)?;
        let messages = end.try_clone().map_err(cannot)?;
        let mut child = Command::new(&qemu.program)
            .args(qemu::accelerator(true, qemu.version))
            .args(qemu::common(machine, 2, 512, "rxe.probe=1"))
            .args(["-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(end))
            .stderr(OwnedFd::from(messages))
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        let to = events.sender.clone();
        thread::spawn(move || {
            let mut text = Vec::new();
            // What could be read decides.
            let _ = output.read_to_end(&mut text);
            let _ = to.send(Event::Trial(text));
        });
        let deadline = Instant::now().checked_add(self.limit);
        let event = events.next(deadline);
        // It may have ended already.
        let _ = child.kill();
        // A process that hangs in KVM may not even end when it is killed.
        thread::spawn(move || child.wait());
        let Some(Event::Trial(text)) = event? else {
            let what = format!(
                "KVM cannot be used: a trial boot took more than {:?}",
                self.limit
            );
            let fix =
                "take --accel tcg; or try again if the host was busy. Machines often hang in \
                       KVM if the host is a virtual machine itself";
            return Ok(Some(Error::new(what, fix)));
        };
        let works = text
            .windows(TRIAL_WORKS.len())
            .any(|window| window == TRIAL_WORKS);
        Ok((!works).then(|| {
            let text = String::from_utf8_lossy(&text);
            let last = text.lines().rfind(|line| !line.trim().is_empty());
            let last = last.unwrap_or("QEMU printed nothing").trim();
            let what = format!("KVM cannot be used: a trial boot failed: {last}");
            Error::new(what, "take --accel tcg, or remove the cause")
        }))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A program in place of QEMU, and a KVM that can be opened.
    pub fn fake(dir: &Path, script: &str) -> (Qemu, Kvm) {
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
            distrusted: false,
            suspected: None,
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
        for (script, works, reason) in [
            ("echo boot; echo RXE-PROBE-OK", true, ""),
            (
                "echo 'Could not access KVM kernel module' >&2; exit 1",
                false,
                "trial boot failed: Could not access KVM kernel module; ",
            ),
            ("exec sleep 600", false, "more than 1s; "),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (qemu, kvm) = fake(dir.path(), script);
            // The event of a trial that took too long comes later. A run makes one trial only.
            let chosen = |accel| kvm.choose(accel, &qemu, dir.path(), &Events::new().unwrap());
            assert_eq!(chosen(Accel::Auto).unwrap().kvm, works, "{script}");
            match chosen(Accel::Kvm) {
                Ok(choice) => assert!(choice.kvm && works, "{script}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!works && text.contains("--accel tcg"), "{text}");
                    assert!(text.contains(reason), "{text}");
                }
            }
            assert!(!chosen(Accel::Tcg).unwrap().kvm);
        }
    }

    #[test]
    fn the_result_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count");
        let works = dir.path().join("works");
        let script = format!(
            "echo x >>{}; if [ -e {} ]; then echo RXE-PROBE-OK; fi",
            count.display(),
            works.display()
        );
        let (mut qemu, kvm) = fake(dir.path(), &script);
        let events = Events::new().unwrap();
        let trials = || fs::read_to_string(&count).unwrap().lines().count();
        fs::write(&works, "").unwrap();
        let chosen = |accel, qemu: &Qemu| kvm.choose(accel, qemu, dir.path(), &events);
        for accel in [Accel::Auto, Accel::Kvm, Accel::Auto] {
            assert!(chosen(accel, &qemu).unwrap().kvm);
            assert_eq!(trials(), 1);
        }
        qemu.version = 11;
        assert!(chosen(Accel::Auto, &qemu).unwrap().kvm);
        assert_eq!(trials(), 2);
        // So is a failure, but who demands KVM gets another trial.
        fs::remove_file(&works).unwrap();
        qemu.version = 12;
        let first = chosen(Accel::Auto, &qemu).unwrap();
        assert!(!first.kvm && first.why_not.unwrap().contains("printed nothing"));
        let second = chosen(Accel::Auto, &qemu).unwrap();
        assert_eq!((second.kvm, trials()), (false, 3));
        let text = second.why_not.unwrap();
        assert!(text.contains("/cache/kvm.json remembers"), "{text}");
        assert!(text.contains("--accel kvm tries again"), "{text}");
        let text = chosen(Accel::Kvm, &qemu).unwrap_err().to_string();
        assert!(text.contains("a trial boot failed"), "{text}");
        assert_eq!(trials(), 4);
        fs::write(&works, "").unwrap();
        assert!(!chosen(Accel::Auto, &qemu).unwrap().kvm);
        assert_eq!(trials(), 4);
        for accel in [Accel::Kvm, Accel::Auto, Accel::Kvm] {
            assert!(chosen(accel, &qemu).unwrap().kvm);
            assert_eq!(trials(), 5);
        }
    }

    /// A machine has not booted with KVM, though a trial has.
    #[test]
    fn a_failure_outweighs_a_trial() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count");
        let script = format!("echo x >>{}; echo RXE-PROBE-OK", count.display());
        let (qemu, mut kvm) = fake(dir.path(), &script);
        let events = Events::new().unwrap();
        let trials = || fs::read_to_string(&count).unwrap().lines().count();
        let chosen = |kvm: &Kvm, accel| kvm.choose(accel, &qemu, dir.path(), &events).unwrap();
        assert!(chosen(&kvm, Accel::Auto).kvm);
        kvm.distrust(None);
        assert_eq!(kvm.remember_failure(), None);
        // This run does without it, later ones do not.
        let choice = chosen(&kvm, Accel::Auto);
        let text = choice.why_not.unwrap();
        assert!(
            !choice.kvm && text.contains("has not booted with KVM"),
            "{text}"
        );
        assert!(chosen(&kvm, Accel::Kvm).kvm);
        let (_, mut later) = fake(dir.path(), &script);
        assert!(chosen(&later, Accel::Auto).kvm);
        assert_eq!(trials(), 1);
        // Now later ones do without it, too.
        kvm.distrust(Some(&qemu));
        assert!(chosen(&later, Accel::Auto).kvm);
        assert_eq!(kvm.remember_failure(), kvm.memo.as_deref());
        assert!(!chosen(&later, Accel::Auto).kvm);
        assert_eq!(trials(), 1);
        // Demanded, it is tried again.
        assert!(chosen(&later, Accel::Kvm).kvm);
        assert_eq!(trials(), 2);
        later.memo = None;
        later.distrust(Some(&qemu));
        assert_eq!(later.remember_failure(), None);
    }

    #[test]
    fn without_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let (qemu, mut kvm) = fake(dir.path(), "exit 1");
        kvm.device = dir.path().join("none");
        let events = Events::new().unwrap();
        let choice = kvm.choose(Accel::Auto, &qemu, dir.path(), &events);
        let choice = choice.unwrap();
        assert!(!choice.kvm && choice.why_not.unwrap().contains("No such file"));
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
