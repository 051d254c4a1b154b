// SPDX-License-Identifier: GPL-2.0
//! A running machine: its process, its console, and the messages that `guest/init` describes.

use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::qemu::{self, Qemu, Sockets};
use crate::uml::{self, Shared};
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::process::{
    kill_process_group, waitid, Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How much of the end of a console is kept, in bytes.
const KEPT: usize = 32768;
/// How many lines of it an error shows.
const SHOWN: usize = 20;
/// What the loader prints if a program needs a newer C library.
const OLD_LIBRARY: &str = "version `GLIBC_";
/// How long a process takes at most to end, after it has closed its control port or was killed. One
/// that hangs in KVM may never end.
const ENDING: Duration = Duration::from_secs(5);
/// How often that is looked at.
const STEP: Duration = Duration::from_millis(5);

/// What runs machines.
#[derive(Debug)]
pub enum Program {
    /// QEMU, and whether by KVM.
    Qemu(Qemu, bool),
    /// Their kernel, a User Mode Linux.
    Uml(Shared),
}

/// What machines are started with.
#[derive(Debug)]
pub struct Config<'a> {
    /// The program.
    pub program: &'a Program,
    /// The folder of the prepared machine.
    pub machine: &'a Path,
    /// The folder that the machine shares.
    pub folder: &'a Path,
    /// The folder for logs of consoles.
    pub log: Option<&'a Path>,
    /// Whether the machines are started again, so that the logs of the earlier boots are kept.
    pub again: bool,
    /// The number of machines.
    pub nodes: u8,
    /// The number of processors.
    pub cpus: u8,
    /// The size of the memory in MiB.
    pub memory: u32,
}

/// What a machine is told to do.
#[derive(Debug)]
pub struct Job<'a> {
    /// The working folder.
    pub folder: &'a Path,
    /// What ends the output.
    pub token: &'a str,
    /// Whether the command has a standard input.
    pub stdin: bool,
    /// The variables of the environment, as NAME=VALUE. PWD is the path of the folder by which
    /// the command starts in it.
    pub variables: &'a [OsString],
    /// The command; empty for none.
    pub command: &'a [OsString],
}

impl Job<'_> {
    /// The message to the machine.
    pub fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        let mut field = |bytes: &[u8]| {
            message.extend_from_slice(bytes);
            message.push(0);
        };
        field(self.folder.as_os_str().as_bytes());
        field(self.token.as_bytes());
        field(if self.stdin { b"1" } else { b"0" });
        for list in [self.variables, self.command] {
            field(list.len().to_string().as_bytes());
            for word in list {
                field(word.as_bytes());
            }
        }
        message
    }
}

/// A running machine. It ends when this value is dropped. Its streams are open until then: QEMU
/// discards what it has not read of a closed socket, and the kernel of User Mode Linux can crash if
/// a serial line is closed at the other end, because it frees the interrupt of the line within an
/// interrupt.
#[derive(Debug)]
pub struct Node {
    /// Its number, from 1.
    pub number: u8,
    /// The standard output of its command.
    pub out: Arc<UnixStream>,
    /// The standard error of its command.
    pub err: Arc<UnixStream>,
    /// The standard input of its command, in pieces.
    pub input: Arc<UnixStream>,
    /// The process, until it has been killed.
    child: Option<Child>,
    control: UnixStream,
    console: Option<JoinHandle<Vec<u8>>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An error of the host at the start of machines.
fn cannot(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(
        format!("cannot {what}: {error}"),
        "see the limits of this user (ulimit -a)",
    )
}

/// Makes a connection to a machine, the end of this program first.
fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(|error| cannot("make a socket", &error))
}

impl Node {
    /// Starts a machine. `links`: its sockets to others, which only it keeps.
    pub fn start(
        config: &Config<'_>,
        number: u8,
        links: Vec<[OwnedFd; 2]>,
        events: &Events,
    ) -> Result<Self> {
        let log = config.log.map(|folder| {
            let path = folder.join(format!("console-{number}.log"));
            let opened = match config.again {
                true => File::options().append(true).create(true).open(&path),
                false => File::create(&path),
            };
            opened.map_err(|error| {
                let what = format!("cannot write {}: {error}", path.display());
                Error::new(what, "name a folder with room that you may write to")
            })
        });
        let log = log.transpose()?;
        let ((console, console_end), (control, control_end)) = (pair()?, pair()?);
        let ((out, out_end), (err, err_end), (input, input_end)) = (pair()?, pair()?, pair()?);
        let ports = [&control_end, &out_end, &err_end, &input_end].map(AsRawFd::as_raw_fd);
        let mut command = match config.program {
            Program::Qemu(qemu, kvm) => {
                let description = qemu::Description {
                    node: number,
                    nodes: config.nodes,
                    kvm: *kvm,
                    cpus: config.cpus,
                    memory: config.memory,
                    machine: config.machine,
                    folder: config.folder,
                    sockets: Sockets {
                        console: console_end.as_raw_fd(),
                        ports,
                        links: links
                            .iter()
                            .map(|link| link.each_ref().map(AsRawFd::as_raw_fd))
                            .collect(),
                    },
                };
                let mut command = Command::new(&qemu.program);
                command.args(qemu::arguments(qemu.version, &description));
                command
            }
            Program::Uml(shared) => {
                let description = uml::Description {
                    node: number,
                    nodes: config.nodes,
                    cpus: config.cpus,
                    memory: config.memory,
                    shared: shared.path(),
                    ports,
                };
                let mut command = Command::new(config.machine.join("linux"));
                // The memory is a file there.
                command
                    .args(uml::arguments(&description))
                    .env("TMPDIR", shared.path());
                command
            }
        };
        let messages = console_end
            .try_clone()
            .and_then(|stream| Ok((stream.try_clone()?, stream)))
            .map_err(|error| cannot("make a socket", &error))?;
        let mut inherited: Vec<OwnedFd> = [console_end, control_end, out_end, err_end, input_end]
            .into_iter()
            .map(OwnedFd::from)
            .collect();
        inherited.extend(links.into_iter().flatten());
        for descriptor in &inherited {
            fcntl_setfd(descriptor, FdFlags::empty())
                .map_err(|error| cannot("pass a socket on", &error))?;
        }
        // In a process group of its own, so that Ctrl-C reaches this program only, which ends it.
        let child = command
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(messages.0))
            .stderr(OwnedFd::from(messages.1))
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let program = command.get_program().to_string_lossy();
                cannot(&format!("start {program}"), &error)
            })?;
        drop(inherited);

        let reader = control.try_clone();
        let node = Self {
            number,
            out: out.into(),
            err: err.into(),
            input: input.into(),
            child: Some(child),
            control,
            console: Some(thread::spawn(move || read_console(console, log))),
        };
        let reader = reader.map_err(|error| cannot("make a socket", &error))?;
        let to = events.sender.clone();
        thread::spawn(move || read_control(reader, number, &to));
        Ok(node)
    }

    /// Sends a message to the machine. A thread does so, because a machine that hangs does not
    /// read.
    pub fn send(&self, message: Vec<u8>) -> Result<()> {
        let mut control = self
            .control
            .try_clone()
            .map_err(|error| cannot("make a socket", &error))?;
        // A machine that has ended is noticed by the reader.
        thread::spawn(move || control.write_all(&message));
        Ok(())
    }

    /// Ends the machine; returns whether it has ended. Processes of User Mode Linux are processes
    /// of the host, in the process group of the kernel.
    fn kill(&mut self) -> bool {
        let Some(mut child) = self.child.take() else {
            return true;
        };
        let pid = Pid::from_child(&child);
        // It may have ended already. Nothing can be done if it cannot be killed.
        let _ = kill_process_group(pid, Signal::KILL);
        let ended = end_of(pid).is_some();
        if ended {
            let _ = child.wait();
        }
        ended
    }

    /// Whether the program that runs the machine, which has closed its control port, has ended by
    /// itself with a status of failure. It does so if its arguments or the host do not suit it, as
    /// it would again. If the machine switches itself off, the status is 0, as it is if the kernel
    /// panics in QEMU; in User Mode Linux a panic raises SIGABRT.
    pub fn refused(&self) -> bool {
        let end = self.child.as_ref().map(Pid::from_child).and_then(end_of);
        let status = end.and_then(|end| end.exit_status());
        status.is_some_and(|status| status != 0)
    }

    /// Ends the machine; returns the lines that it printed last.
    fn last_lines(&mut self) -> Vec<String> {
        let reader = if self.kill() {
            self.console.take()
        } else {
            None
        };
        let text = reader.and_then(|thread| thread.join().ok());
        let text = String::from_utf8_lossy(&text.unwrap_or_default()).replace('\r', "");
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines.map(String::from).collect()
    }

    /// The error if the machine has ended unexpectedly; `up`: whether it had booted.
    pub fn gone(&mut self, up: bool) -> Error {
        let lines = self.last_lines();
        let panic = panic_reason(&lines);
        let number = self.number;
        let (what, fix) = match (panic, up) {
            (Some(reason), _) => (
                format!("kernel panic in machine {number}: {reason}"),
                "see the end of its console above; --log DIR writes all of it",
            ),
            (None, true) => (
                format!("machine {number} ended before the command did"),
                "does the command switch it off? See the end of its console above",
            ),
            (None, false) if lines.iter().any(|line| line.contains(OLD_LIBRARY)) => (
                format!(
                    "the kernel of machine {number} needs a newer C library than this host has"
                ),
                "take a host with that of Debian 13 or newer, or a machine for QEMU (--accel tcg)",
            ),
            (None, false) => (
                format!("machine {number} ended before it had booted"),
                "see its messages above; is there enough memory (--memory)?",
            ),
        };
        Error {
            console: last(&lines),
            ..Error::new(what, fix)
        }
    }

    /// The error if the machine has not booted in time; `silent`: whether not even its init has
    /// started.
    pub fn hung(&mut self, silent: bool, seconds: u64) -> Error {
        let what = if silent { "start its init" } else { "boot" };
        Error {
            console: last(&self.last_lines()),
            ..Error::new(
                format!("machine {} did not {what} in {seconds} s", self.number),
                "see the end of its console above; give it more time (--boot-timeout), or try --accel tcg",
            )
        }
    }

    /// The error if the machine could not be set up.
    pub fn failed(&mut self, reason: &str) -> Error {
        Error {
            console: last(&self.last_lines()),
            ..Error::new(
                format!("machine {} could not be set up: {reason}", self.number),
                "see the end of its console above",
            )
        }
    }
}

/// How a child process has ended, if it does so in time. Its process ID and its process group are
/// not used for others before it is waited for.
fn end_of(pid: Pid) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let start = Instant::now();
    loop {
        let ended = waitid(WaitId::Pid(pid), options).ok().flatten();
        if ended.is_some() || start.elapsed() > ENDING {
            return ended;
        }
        thread::sleep(STEP);
    }
}

/// The last lines of a console that an error shows.
fn last(lines: &[String]) -> String {
    let from = lines.len().saturating_sub(SHOWN);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// Why the kernel panicked, if it did. The line of an oops, which precedes the panic, says more.
fn panic_reason(lines: &[String]) -> Option<&str> {
    const PANIC: &str = "Kernel panic - not syncing: ";
    lines.iter().find(|line| line.contains(PANIC))?;
    let mut reasons = lines.iter().filter_map(|line| {
        let found = ["BUG: ", "Oops: ", PANIC]
            .iter()
            .find_map(|head| line.split_once(head));
        found.map(|(_, reason)| reason)
    });
    reasons.next()
}

/// Reads a console until the machine ends; returns the end of what it printed.
fn read_console(mut console: UnixStream, mut log: Option<File>) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = console.read(&mut buffer) {
        let data = buffer.get(..count).unwrap_or_default();
        // A full disk must not end the command: the log becomes incomplete.
        if log.as_mut().is_some_and(|log| log.write_all(data).is_err()) {
            log = None;
        }
        kept.extend_from_slice(data);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    kept
}

/// Reads the messages of a machine until it ends.
fn read_control(control: UnixStream, node: u8, events: &Sender<Event>) {
    let mut lines = BufReader::new(control).split(b'\n');
    while let Some(Ok(line)) = lines.next() {
        let line = String::from_utf8_lossy(&line);
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let event = match (word, rest.parse()) {
            ("hello", _) => Event::Hello(node),
            ("up", _) => Event::Up(node),
            ("exit", Ok(status)) => Event::Exit(node, status),
            ("fail", _) => Event::Fail(node, rest.into()),
            _ => Event::Fail(node, format!("it sent \"{line}\"")),
        };
        if events.send(event).is_err() {
            return;
        }
    }
    // There is nobody to tell if rxe-ci is about to end.
    let _ = events.send(Event::Gone(node));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_all_words() {
        let variables = [OsString::from("A=x y\nz")];
        let command = ["sh", "", "-c"].map(OsString::from);
        let job = Job {
            folder: Path::new("/a b"),
            token: "t",
            stdin: true,
            variables: &variables,
            command: &command,
        };
        assert_eq!(
            job.message(),
            b"/a b\0t\x001\x001\0A=x y\nz\x003\0sh\0\0-c\0"
        );
    }

    #[test]
    fn the_end_of_a_console_is_kept() {
        let (mut machine, console) = UnixStream::pair().unwrap();
        let reader = thread::spawn(|| read_console(console, None));
        for number in 0..50000 {
            writeln!(machine, "line {number}").unwrap();
        }
        drop(machine);
        let kept = reader.join().unwrap();
        assert_eq!(kept.len(), KEPT);
        assert!(kept.ends_with(b"line 49999\n"));
    }

    #[test]
    fn reasons_of_panics() {
        let reason = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
            panic_reason(&lines).map(String::from)
        };
        let panic = "[ 1.0] Kernel panic - not syncing: Fatal exception";
        assert_eq!(reason(&["[ 1.0] BUG: soft lockup"]), None);
        assert_eq!(reason(&[panic]).unwrap(), "Fatal exception");
        assert_eq!(
            reason(&["[ 1.0] BUG: kernel NULL pointer", panic]).unwrap(),
            "kernel NULL pointer"
        );
    }

    #[test]
    fn messages_are_events() {
        let (mut machine, control) = UnixStream::pair().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        machine
            .write_all(b"hello\nup\nexit 139\nexit 256\nfail no link: x\n")
            .unwrap();
        drop(machine);
        read_control(control, 3, &sender);
        drop(sender);
        let all: Vec<Event> = receiver.iter().collect();
        let [Event::Hello(3), Event::Up(3), Event::Exit(3, 139), Event::Fail(3, odd), Event::Fail(3, reason), Event::Gone(3)] =
            &all[..]
        else {
            panic!("{all:?}");
        };
        assert_eq!(
            (odd.as_str(), reason.as_str()),
            ("it sent \"exit 256\"", "no link: x")
        );
    }
}
