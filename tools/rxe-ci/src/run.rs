// SPDX-License-Identifier: GPL-2.0
//! `rxe-ci run`: boots the machines, runs the command in them, and returns its status.

use crate::accel::Kvm;
use crate::cli::{self, Accel, Run};
use crate::error::{complain, Error, Result, TIMED_OUT};
use crate::events::{Event, Events};
use crate::inherited::{write_all, Input};
use crate::node::{Config, Job, Node, Program};
use crate::prepared::{self, Kind, Prepared};
use crate::qemu::{self, Qemu};
use crate::streams;
use crate::uml::Shared;
use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The variables that `--env` asks for, as NAME=VALUE.
fn variables(options: &[OsString]) -> Result<Vec<OsString>> {
    let usage = "write --env NAME=VALUE; a name has letters, digits and _";
    let with_value = |option: &OsString| {
        let bytes = option.as_bytes();
        let length = bytes.iter().position(|&byte| byte == b'=');
        let name = bytes
            .get(..length.unwrap_or(bytes.len()))
            .unwrap_or_default();
        let shown = String::from_utf8_lossy(name);
        let valid = |(index, &byte): (usize, &u8)| {
            byte == b'_' || byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit())
        };
        if name.is_empty() || !name.iter().enumerate().all(valid) {
            let what = format!("--env: \"{shown}\" is no name of a variable");
            return Err(Error::new(what, usage));
        }
        if length.is_some() {
            return Ok(option.clone());
        }
        let value = env::var_os(OsStr::from_bytes(name)).ok_or_else(|| {
            Error::new(
                format!("--env {shown}: this host has no such variable"),
                usage,
            )
        })?;
        Ok(OsString::from_vec([name, b"=", value.as_bytes()].concat()))
    };
    options.iter().map(with_value).collect()
}

/// Connects each other machine with the first one; the sockets of each machine in their order.
fn connect(nodes: u8) -> Result<Vec<Vec<[OwnedFd; 2]>>> {
    let socket = || {
        let pair = UnixStream::pair();
        pair.map_err(|error| Error::new(format!("cannot make a socket: {error}"), "see ulimit -n"))
    };
    let mut first = Vec::new();
    let mut others = Vec::new();
    for _ in 1..nodes {
        let ((rdma, rdma_end), (on, on_end)) = (socket()?, socket()?);
        first.push([rdma.into(), on.into()]);
        others.push(vec![[rdma_end.into(), on_end.into()]]);
    }
    others.insert(0, first);
    Ok(others)
}

/// The machines, and what is known of them.
struct Machines<'a> {
    args: &'a Run,
    events: &'a Events,
    nodes: Vec<Node>,
}

impl Machines<'_> {
    /// The machine of that number.
    fn node(&mut self, number: u8) -> Result<&mut Node> {
        let mut nodes = self.nodes.iter_mut();
        let found = nodes.find(|node| node.number == number);
        found.ok_or_else(|| {
            Error::new(
                "an event of an unknown machine",
                "report this fault of rxe-ci",
            )
        })
    }

    /// Tells the machines their jobs and waits until all are ready.
    fn boot(&mut self, job: &Job<'_>) -> Result<()> {
        let deadline = Instant::now().checked_add(Duration::from_secs(self.args.boot_timeout));
        let mut waiting: Vec<u8> = self.nodes.iter().map(|node| node.number).collect();
        while let Some(&slow) = waiting.first() {
            match self.events.next(deadline)? {
                Some(Event::Hello(node)) => {
                    let command = if self.args.runs_in(node) {
                        job.command
                    } else {
                        &[]
                    };
                    let message = Job { command, ..*job }.message();
                    self.node(node)?.send(message)?;
                }
                Some(Event::Up(node)) => waiting.retain(|&other| other != node),
                Some(Event::Fail(node, reason)) => return Err(self.node(node)?.failed(&reason)),
                Some(Event::Gone(node)) => return Err(self.node(node)?.gone(false)),
                Some(_) => {}
                None => {
                    let seconds = self.args.boot_timeout;
                    return Err(self.node(slow)?.hung(seconds));
                }
            }
        }
        Ok(())
    }

    /// Passes the streams of the commands on.
    fn pass_streams(&self, token: &str) {
        let label = self.args.each && self.args.nodes > 1;
        for node in self.nodes.iter().filter(|n| self.args.runs_in(n.number)) {
            let number = node.number;
            for (from, is_error) in [(&node.out, false), (&node.err, true)] {
                let (from, to) = (from.clone(), self.events.sender.clone());
                let token = token.to_string();
                thread::spawn(move || match is_error {
                    true => {
                        let write = |data: &[u8]| write_all(io::stderr().lock(), data);
                        streams::pass_on(&*from, write, &token, number, label, &to);
                    }
                    false => {
                        let write = |data: &[u8]| write_all(io::stdout().lock(), data);
                        streams::pass_on(&*from, write, &token, number, label, &to);
                    }
                });
            }
            if self.args.stdin {
                let (input, to) = (node.input.clone(), self.events.sender.clone());
                // The command need not read all of its input.
                thread::spawn(move || streams::feed(Input(io::stdin()), &*input, &to));
            }
        }
    }

    /// Lets the commands start and waits for their end; returns the status.
    fn finish(&mut self) -> Result<u8> {
        for node in &self.nodes {
            node.send(b"go\0".to_vec())?;
        }
        let limit = self.args.timeout.map(Duration::from_secs);
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        // What is to come from each machine: its status and the ends of two streams.
        let numbers = self.nodes.iter().map(|node| node.number);
        let mut awaited: BTreeMap<u8, u8> = numbers
            .filter(|&node| self.args.runs_in(node))
            .map(|node| (node, 3))
            .collect();
        let mut statuses = BTreeMap::new();
        while awaited.values().any(|&count| count > 0) {
            let node = match self.events.next(deadline)? {
                Some(Event::Exit(node, status)) => {
                    statuses.insert(node, status);
                    node
                }
                Some(Event::Drained(node)) => node,
                Some(Event::Gone(node)) => return Err(self.node(node)?.gone(true)),
                Some(Event::Fail(node, reason)) => return Err(self.node(node)?.failed(&reason)),
                Some(_) => continue,
                None => {
                    let seconds = self.args.timeout.unwrap_or_default();
                    let what = format!("the command was ended after {seconds} s");
                    return Err(Error::with_status(
                        TIMED_OUT,
                        what,
                        "give it more time: --timeout",
                    ));
                }
            };
            if let Some(count) = awaited.get_mut(&node) {
                *count = count.saturating_sub(1);
            }
        }
        Ok(statuses
            .into_values()
            .find(|&status| status != 0)
            .unwrap_or(0))
    }
}

/// The folder that the machines share.
fn current_folder() -> Result<PathBuf> {
    let fix = "change to the folder of your project first";
    let folder = env::current_dir()
        .map_err(|error| Error::new(format!("there is no current folder: {error}"), fix))?;
    match qemu::can_share(&folder) {
        true => Ok(folder),
        false => Err(Error::new(
            format!(
                "{} cannot be mounted in a machine, which has its own",
                folder.display()
            ),
            fix,
        )),
    }
}

/// The path by which the shell that called this program has reached the current folder, which
/// `folder` names without symbolic links. Scripts and arguments name files by it. POSIX has the
/// shell keep it in PWD; a program that is not a shell can have left an old value there.
fn path_of_shell(folder: &Path) -> PathBuf {
    let path = PathBuf::from(cli::variable("PWD").unwrap_or_default());
    let normal: PathBuf = path
        .components()
        .filter(|part| *part != Component::ParentDir)
        .collect();
    let same = match (path.metadata(), folder.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    };
    let usable = path.is_absolute() && normal.as_os_str() == path.as_os_str();
    if same && usable && qemu::can_share(&path) {
        path
    } else {
        folder.into()
    }
}

/// Text that occurs in no output by chance.
fn token() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid");
    let text = text.map_err(|error| {
        Error::new(
            format!("cannot read random numbers: {error}"),
            "mount /proc",
        )
    })?;
    Ok(text.trim().into())
}

/// Makes the folder for logs.
fn log_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| {
        let what = format!("cannot make the folder {}: {error}", folder.display());
        Error::new(what, "name a folder with room that you may write to")
    })
}

/// What was chosen for a run.
struct Chosen {
    machine: Prepared,
    program: Program,
    /// Why the program is not QEMU with KVM, if that was to be taken where it works.
    why_not_kvm: Option<String>,
}

/// Chooses a prepared machine and what runs it.
fn choose(args: &Run, folder: &Path, events: &Events) -> Result<Chosen> {
    let places = prepared::places(args.machine.as_deref());
    let find = |kind| prepared::find(&places, kind, args.kernel.as_deref());
    let uml = |machine: Prepared, why_not_kvm| {
        let memory = u64::from(args.nodes).saturating_mul(u64::from(args.memory));
        let shared = Shared::new(&machine.folder, folder, args.nodes, memory)?;
        Ok(Chosen {
            machine,
            program: Program::Uml(shared),
            why_not_kvm,
        })
    };
    let other = match args.accel {
        Accel::Uml => return uml(find(Kind::Uml)?, None),
        Accel::Kvm | Accel::Tcg => None,
        Accel::Auto => find(Kind::Uml).ok(),
    };
    let by_qemu = find(Kind::Qemu).and_then(|machine| Ok((machine, Qemu::find()?)));
    match (by_qemu, other) {
        (Err(error), Some(other)) => uml(other, Some(error.what)),
        (found, other) => {
            let (machine, qemu) = found?;
            let choice = Kvm::default().choose(args.accel, &qemu, &machine.folder, events)?;
            match other {
                Some(other) if !choice.kvm => uml(other, choice.why_not),
                _ => Ok(Chosen {
                    machine,
                    program: Program::Qemu(qemu, choice.kvm),
                    why_not_kvm: choice.why_not,
                }),
            }
        }
    }
}

/// Runs the command; returns its exit status.
pub fn run(args: &Run) -> Result<u8> {
    let folder = current_folder()?;
    let mut variables = variables(&args.env)?;
    let mut path = OsString::from("PWD=");
    path.push(path_of_shell(&folder));
    variables.push(path);
    let token = token()?;
    if let Some(log) = &args.log {
        log_folder(log)?;
    }
    let events = Events::new()?;
    let Chosen {
        machine,
        program,
        why_not_kvm,
    } = choose(args, &folder, &events)?;
    let config = Config {
        program: &program,
        machine: &machine.folder,
        folder: &folder,
        log: args.log.as_deref(),
        nodes: args.nodes,
        cpus: args.cpus.unwrap_or(match program {
            Program::Qemu(_, false) if args.nodes > 1 => 1,
            _ => 2,
        }),
        memory: args.memory,
    };
    let start = Instant::now();
    let say = |text: String| {
        if args.verbose {
            let seconds = start.elapsed().as_secs_f64();
            complain(&format_args!("rxe-ci: {seconds:.1} s: {text}"));
        }
    };
    let by = match program {
        Program::Qemu(_, true) => "KVM",
        Program::Qemu(_, false) => "emulation",
        Program::Uml(_) => "User Mode Linux",
    };
    if let Some(reason) = why_not_kvm {
        say(format!("without KVM: {reason}"));
    }
    say(format!(
        "booting {} x Linux {} by {by}",
        args.nodes, machine.release
    ));
    let mut machines = Machines {
        args,
        events: &events,
        nodes: Vec::new(),
    };
    let links = match program {
        Program::Qemu(..) => connect(args.nodes)?,
        Program::Uml(_) => (0..args.nodes).map(|_| Vec::new()).collect(),
    };
    for (number, links) in (1..).zip(links) {
        machines
            .nodes
            .push(Node::start(&config, number, links, &events)?);
    }
    let job = Job {
        folder: &folder,
        token: &token,
        stdin: args.stdin,
        variables: &variables,
        command: &args.command,
    };
    machines.boot(&job)?;
    say("the machines are ready".into());
    machines.pass_streams(&token);
    let status = machines.finish()?;
    say(format!("the command ended with status {status}"));
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_names_and_values() {
        let given =
            |words: &[&str]| variables(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(given(&["A_1=x=y", "B="]).unwrap(), ["A_1=x=y", "B="]);
        let path = given(&["PATH"]).unwrap();
        assert!(path[0].as_bytes().starts_with(b"PATH=/"), "{path:?}");
        for bad in ["", "=x", "1A=x", "a-b=x", "RXE_CI_NO_SUCH_VARIABLE"] {
            let text = given(&[bad]).unwrap_err().to_string();
            assert!(text.contains("--env") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn all_machines_are_connected_with_the_first() {
        let count = |nodes| {
            connect(nodes)
                .unwrap()
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(count(1), [0]);
        assert_eq!(count(2), [1, 1]);
        assert_eq!(count(4), [3, 1, 1, 1]);
    }
}
