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

/// How often machines are started that do not boot. QEMU and the kernel can hang or crash early in
/// a boot, for example because a busy host does not run the machine while it tests its timer.
const BOOTS: u8 = 3;

/// The shortest `--boot-timeout`, in seconds, with which a boot that takes too long tells of KVM.
const LIMIT_FOR_KVM: u64 = 60;
/// The time limit for a boot by the one in which each machine has to start its init, so that one
/// that hangs is noticed early. There is no earlier sign of life: the console of a kernel that
/// boots is silent. On a busy host two emulated machines took 66 s to boot. The last boot has no
/// such limit, for hosts that are slower still.
const INIT_PART: u64 = 2;

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

/// How a boot has failed. No command has been started in it.
struct FailedBoot {
    error: Error,
    /// Whether the program that was to run a machine has refused to.
    refused: bool,
}

/// The machines, and what is known of them.
struct Machines<'a> {
    args: &'a Run,
    nodes: Vec<Node>,
    /// What runs them, whose files are removed after they have ended.
    program: Program,
}

impl<'a> Machines<'a> {
    /// Starts the machines.
    fn start(
        args: &'a Run,
        folder: &Path,
        chosen: Chosen,
        boot: u8,
        events: &Events,
    ) -> Result<Self> {
        let links = match chosen.program {
            Program::Qemu(..) => connect(args.nodes)?,
            Program::Uml(_) => (0..args.nodes).map(|_| Vec::new()).collect(),
        };
        let mut machines = Self {
            args,
            nodes: Vec::new(),
            program: chosen.program,
        };
        let config = Config {
            program: &machines.program,
            machine: &chosen.machine.folder,
            folder,
            log: args.log.as_deref(),
            again: boot > 1,
            nodes: args.nodes,
            cpus: args.cpus.unwrap_or(match machines.program {
                Program::Qemu(_, false) if args.nodes > 1 => 1,
                _ => 2,
            }),
            memory: args.memory,
        };
        for (number, links) in (1..).zip(links) {
            let node = Node::start(&config, number, links, events)?;
            machines.nodes.push(node);
        }
        Ok(machines)
    }

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

    /// Tells the machines their jobs and waits until all are ready; returns what was in the way, if
    /// they may do better when they are started again. `last`: whether they are not.
    fn boot(&mut self, job: &Job<'_>, events: &Events, last: bool) -> Result<Option<FailedBoot>> {
        let start = Instant::now();
        let limit = self.args.boot_timeout;
        let init_limit = if last {
            limit
        } else {
            limit.div_ceil(INIT_PART)
        };
        let mut waiting: Vec<u8> = self.nodes.iter().map(|node| node.number).collect();
        // Those whose init has not started.
        let mut silent = waiting.clone();
        while let Some(&slow) = waiting.first() {
            let (slow, seconds) = match silent.first() {
                Some(&node) => (node, init_limit),
                None => (slow, limit),
            };
            match events.next(start.checked_add(Duration::from_secs(seconds)))? {
                Some(Event::Hello(node)) => {
                    silent.retain(|&other| other != node);
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
                Some(Event::Gone(node)) => {
                    let node = self.node(node)?;
                    return Ok(Some(FailedBoot {
                        refused: node.refused(),
                        error: node.gone(false),
                    }));
                }
                Some(_) => {}
                None => {
                    let error = self.node(slow)?.hung(!silent.is_empty(), seconds);
                    return Ok(Some(FailedBoot {
                        error,
                        refused: false,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Passes the streams of the commands on.
    fn pass_streams(&self, token: &str, events: &Events) {
        let label = self.args.each && self.args.nodes > 1;
        for node in self.nodes.iter().filter(|n| self.args.runs_in(n.number)) {
            let number = node.number;
            for (from, is_error) in [(&node.out, false), (&node.err, true)] {
                let (from, to) = (from.clone(), events.sender.clone());
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
                let (input, to) = (node.input.clone(), events.sender.clone());
                // The command need not read all of its input.
                thread::spawn(move || streams::feed(Input(io::stdin()), &*input, &to));
            }
        }
    }

    /// Lets the commands start and waits for their end; returns the status.
    fn finish(&mut self, events: &Events) -> Result<u8> {
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
            let node = match events.next(deadline)? {
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
fn choose(args: &Run, folder: &Path, kvm: &Kvm, events: &Events) -> Result<Chosen> {
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
            let choice = kvm.choose(args.accel, &qemu, &machine.folder, events)?;
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

/// What to say before machines are started again after a boot that failed, or the error if they are
/// not. If the user has not demanded KVM, it is not used any more. Later runs do not use it either
/// if the machines boot without it, unless QEMU has refused to run them or the time limit is short:
/// then the arguments may be the reason.
fn after_failed_boot(
    args: &Run,
    program: &Program,
    kvm: &mut Kvm,
    failed: FailedBoot,
    boot: u8,
) -> Result<String> {
    let by_kvm = match program {
        Program::Qemu(qemu, true) if args.accel == Accel::Auto => Some(qemu),
        _ => None,
    };
    if boot >= BOOTS || (failed.refused && by_kvm.is_none()) {
        return Err(failed.error);
    }
    let next = boot.saturating_add(1);
    let mut text = format!("{}; booting again ({next} of {BOOTS})", failed.error.what);
    if let Some(qemu) = by_kvm {
        text.push_str(" without KVM");
        let suspected = !failed.refused && args.boot_timeout >= LIMIT_FOR_KVM;
        kvm.distrust(suspected.then_some(qemu));
    }
    if args.verbose && !failed.error.console.is_empty() {
        text = format!("{}\nrxe-ci: {text}", failed.error.console.trim_end());
        return Ok(text);
    }
    Ok(format!("rxe-ci: {text}"))
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
    let mut events = Events::new()?;
    let start = Instant::now();
    let say = |text: String| {
        if args.verbose {
            let seconds = start.elapsed().as_secs_f64();
            complain(&format_args!("rxe-ci: {seconds:.1} s: {text}"));
        }
    };
    let job = Job {
        folder: &folder,
        token: &token,
        stdin: args.stdin,
        variables: &variables,
        command: &args.command,
    };
    let mut kvm = Kvm::default();
    let mut boot: u8 = 1;
    let mut machines = loop {
        let chosen = choose(args, &folder, &kvm, &events)?;
        if let Some(reason) = &chosen.why_not_kvm {
            say(format!("without KVM: {reason}"));
        }
        let (nodes, release) = (args.nodes, &chosen.machine.release);
        let by = match chosen.program {
            Program::Qemu(_, true) => "KVM",
            Program::Qemu(_, false) => "emulation",
            Program::Uml(_) => "User Mode Linux",
        };
        say(format!("booting {nodes} x Linux {release} by {by}"));
        let mut machines = Machines::start(args, &folder, chosen, boot, &events)?;
        let Some(failed) = machines.boot(&job, &events, boot == BOOTS)? else {
            break machines;
        };
        let text = after_failed_boot(args, &machines.program, &mut kvm, failed, boot)?;
        drop(machines);
        events.forget_machines()?;
        complain(&text);
        boot = boot.saturating_add(1);
    };
    say("the machines are ready".into());
    if let Some(memo) = kvm.remember_failure() {
        let file = memo.display();
        complain(&format_args!(
            "rxe-ci: KVM does not work, which {file} remembers until the host boots"
        ));
    }
    machines.pass_streams(&token, &events);
    let status = machines.finish(&events)?;
    say(format!("the command ended with status {status}"));
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accel::tests::fake;
    use clap::Parser;

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

    fn arguments(words: &[&str]) -> Run {
        let all = [&["rxe-ci", "run"], words, &["--", "true"]].concat();
        match cli::Cli::try_parse_from(all).unwrap().command {
            cli::Command::Run(run) => run,
            _ => panic!("another command"),
        }
    }

    fn failed(refused: bool) -> FailedBoot {
        FailedBoot {
            error: Error {
                console: "the end".into(),
                ..Error::new("machine 1 hung", "help")
            },
            refused,
        }
    }

    #[test]
    fn a_boot_that_failed_is_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let (qemu, mut kvm) = fake(dir.path(), "echo RXE-PROBE-OK");
        let program = Program::Qemu(qemu, false);
        let (short, long) = (arguments(&[]), arguments(&["--verbose"]));
        let mut after = |args, refused, boot| {
            after_failed_boot(args, &program, &mut kvm, failed(refused), boot)
        };
        assert_eq!(
            after(&short, false, 1).unwrap(),
            "rxe-ci: machine 1 hung; booting again (2 of 3)"
        );
        assert_eq!(
            after(&long, false, 2).unwrap(),
            "the end\nrxe-ci: machine 1 hung; booting again (3 of 3)"
        );
        let text = after(&short, false, 3).unwrap_err().to_string();
        assert_eq!(text, "the end\nrxe-ci: machine 1 hung; help");
        // What a program refuses it would refuse again.
        assert!(after(&short, true, 1).is_err());
    }

    #[test]
    fn kvm_is_given_up_unless_it_was_demanded() {
        let events = Events::new().unwrap();
        for (accel, limit, refused, this_run, later_runs) in [
            ("auto", "60", false, false, false),
            ("auto", "59", false, false, true),
            ("auto", "60", true, false, true),
            ("kvm", "60", false, true, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (qemu, mut kvm) = fake(dir.path(), "echo RXE-PROBE-OK");
            let chosen = |kvm: &Kvm| {
                let (qemu, _) = fake(dir.path(), "echo RXE-PROBE-OK");
                let choice = kvm.choose(Accel::Auto, &qemu, dir.path(), &events);
                choice.unwrap().kvm
            };
            assert!(chosen(&kvm));
            let args = arguments(&["--accel", accel, "--boot-timeout", limit]);
            let program = Program::Qemu(qemu, true);
            let text = after_failed_boot(&args, &program, &mut kvm, failed(refused), 1).unwrap();
            assert_eq!(text.contains("without KVM"), !this_run, "{text}");
            assert_eq!(chosen(&kvm), this_run, "{accel}");
            // The machines have not booted without it yet.
            let (_, later) = fake(dir.path(), "");
            assert!(chosen(&later));
            assert_eq!(kvm.remember_failure().is_none(), later_runs);
            assert_eq!(chosen(&later), later_runs, "{accel}");
        }
        // It is in vain to repeat what was demanded and refused.
        let dir = tempfile::tempdir().unwrap();
        let (qemu, mut kvm) = fake(dir.path(), "");
        let program = Program::Qemu(qemu, true);
        let args = arguments(&["--accel", "kvm"]);
        assert!(after_failed_boot(&args, &program, &mut kvm, failed(true), 1).is_err());
    }
}
