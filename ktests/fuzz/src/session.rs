// SPDX-License-Identifier: GPL-2.0
//! The main loop: it creates worlds one after another, runs programs in each, and keeps those that
//! increase the coverage.

use crate::calls::{Op, Program, OPS};
use crate::cover::Cover;
use crate::exec::{Context, Device, Net, Worker, PRIVATE_FDS, SHARED_CONTEXTS};
use crate::pressure::Pressure;
use crate::world::{self, map_area, Files, World, AREAS};
use crate::{admin, setup, sys, Options};
use fastrand::Rng;
use std::io::Write;
use std::time::{Duration, Instant};

/// Maximum number of programs in a world.
const PROGRAMS: u32 = 250;
/// Maximum duration of a world.
const WORLD_SECONDS: u64 = 20;
/// Time after which a worker that has not finished its program is killed.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(3);
/// Time within which a killed worker must have ended; otherwise a call hangs in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// Kernel messages that end the run. `qemu/gate.py` searches the kernel log for all complaints
/// after a test; these are searched for after each program, so that the log of the world ends with
/// the program that caused them.
const REPORTS: [&str; 12] = [
    "KASAN:",
    "BUG:",
    "WARNING:",
    "UBSAN:",
    "ODEBUG:",
    "refcount_t:",
    "rust_kernel: panicked",
    "general protection",
    "possible circular",
    "inconsistent lock",
    "blocked for more than",
    "INFO: rcu",
];

/// Kernel messages about allocations that fail on purpose.
const EXPECTED: [&str; 2] = ["page allocation failure", "vmalloc error"];

struct WorkerProcess {
    pid: i32,
    /// Pipe that starts the next program.
    wake: i32,
}

struct Pipe {
    read: i32,
    write: i32,
}

fn pipe() -> Result<Pipe, i32> {
    let mut fds = [0; 2];
    sys::pipe(&mut fds)?;
    let [read, write] = fds.map(|fd| {
        let high = sys::call(
            libc::SYS_fcntl,
            fd as u64,
            libc::F_DUPFD_CLOEXEC as u64,
            PRIVATE_FDS as u64,
        )
        .unwrap_or(-1) as i32;
        sys::close(fd);
        high
    });
    Ok(Pipe { read, write })
}

/// The kernel log.
struct Kmsg(i32);

impl Kmsg {
    fn open() -> Self {
        // Skip messages from before the run.
        let fd = sys::open("/dev/kmsg", libc::O_RDONLY | libc::O_NONBLOCK).unwrap_or(-1);
        let _ = sys::call(libc::SYS_lseek, fd as u64, 0, libc::SEEK_END as u64);
        Self(fd)
    }

    /// Returns the first complaint since the last call.
    fn report(&self) -> Option<String> {
        let mut line = [0; 8192];
        loop {
            match sys::read(self.0, &mut line) {
                Ok(0) => return None,
                Ok(len) => {
                    let text = String::from_utf8_lossy(&line[..len]).into_owned();
                    if REPORTS.iter().any(|word| text.contains(word))
                        && !EXPECTED.iter().any(|word| text.contains(word))
                    {
                        return Some(text);
                    }
                }
                Err(libc::EPIPE) => {}
                Err(_) => return None,
            }
        }
    }
}

/// State that outlives a world.
struct Session<'a> {
    options: &'a Options,
    cover: Cover,
    corpus: Vec<Program>,
    files: Files,
    world: World,
    devices: Vec<Device>,
    nets: Vec<Net>,
    attributes: Vec<String>,
    kmsg: Kmsg,
    done: Pipe,
    /// Logs of the programs of the last two worlds; files of the programs kept, of the results of
    /// calls, and of the functions reached. They are opened before the process gives up its
    /// privileges.
    logs: [i32; 2],
    kept: i32,
    calls: i32,
    functions: i32,
    worlds: usize,
    programs: u64,
    killed: u64,
}

/// Runs the fuzzer, or replays the log of a world.
pub fn run(options: &Options) -> Result<(), String> {
    std::fs::create_dir_all(&options.out)
        .map_err(|error| format!("{}: {error}", options.out.display()))?;
    let devices: Vec<Device> = options
        .devices
        .iter()
        .map(|name| setup::device(name))
        .collect();
    for device in devices.iter().take(2) {
        if device.gids.is_empty() {
            return Err(format!("{} has no GID", device.name));
        }
    }
    let mut attributes = Vec::new();
    for device in &devices {
        admin::attributes(
            &format!("/sys/class/infiniband/{}/", device.name),
            4,
            &mut attributes,
        );
    }
    admin::attributes("/sys/module/rxe_rs/parameters", 0, &mut attributes);
    attributes.sort();
    let world =
        World::new(options.workers).map_err(|errno| format!("no shared memory: {errno}"))?;
    let file = |name: &str| {
        let path = options.out.join(name).to_string_lossy().into_owned();
        sys::open_new(&path)
            .map_err(|errno| format!("{path}: {}", std::io::Error::from_raw_os_error(errno)))
    };
    let done = pipe().map_err(|errno| format!("pipe: {errno}"))?;
    sys::set_nonblocking(done.read);
    let mut session = Session {
        options,
        cover: Cover::open(),
        corpus: read_corpus(options)?,
        files: Files::new(),
        world,
        devices,
        nets: setup::nets(options),
        attributes,
        kmsg: Kmsg::open(),
        done,
        logs: [file("world-0.calls")?, file("world-1.calls")?],
        kept: file("kept.calls")?,
        calls: file("calls")?,
        functions: file("functions")?,
        worlds: 0,
        programs: 0,
        killed: 0,
    };
    // Change the user before devices are opened: the core refuses commands by `write` after a
    // change of credentials.
    if let Some(user) = options.user {
        sys::become_user(user).map_err(|errno| format!("cannot become user {user}: {errno}"))?;
    }
    println!(
        "seed {}, {} workers, {} initial programs, {}",
        options.seed,
        options.workers,
        session.corpus.len(),
        if session.cover.available() {
            "with coverage feedback"
        } else {
            "without feedback"
        }
    );
    if let Some(path) = &options.replay {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let programs = Program::parse_all(&text, options.workers);
        println!("{} programs", programs.len());
        let mut programs = programs.into_iter();
        return session
            .world_of(&mut |_, _| programs.next(), "replayed", true)
            .and_then(|()| session.has_worked());
    }
    let mut pressure = options.pressure.then(Pressure::start).transpose()?;
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut number = 0;
    let mut reported = Instant::now();
    while Instant::now() < end {
        let mut rng = Rng::with_seed(options.seed.wrapping_mul(1_000_003).wrapping_add(number));
        let world_end = end.min(Instant::now() + Duration::from_secs(WORLD_SECONDS));
        let mut left = PROGRAMS;
        let (workers, admin) = (options.workers, options.admin);
        // Chooses the next program of the world: a random one or a mutation.
        let mut next = |corpus: &[Program], _: &Cover| {
            if left == 0 || Instant::now() >= world_end {
                return None;
            }
            left -= 1;
            let fresh = Program::random(&mut rng, workers, admin);
            if corpus.is_empty() || rng.u8(..4) == 0 {
                return Some(fresh);
            }
            // Recently kept programs have been mutated least.
            let recent = corpus.len().saturating_sub(16);
            let chosen = if rng.bool() {
                rng.usize(recent..corpus.len())
            } else {
                rng.usize(..corpus.len())
            };
            let other = rng.usize(..corpus.len());
            Some(corpus[chosen].mutated(&mut rng, &corpus[other], admin))
        };
        session.world_of(&mut next, &format!("world-{number}"), false)?;
        number += 1;
        if let Some(pressure) = &mut pressure {
            pressure.keep_up()?;
        }
        if reported.elapsed() > Duration::from_secs(10) || Instant::now() >= end {
            reported = Instant::now();
            println!(
                "{number} worlds, {} programs, {} blocks, {} kept, {} workers killed",
                session.programs,
                session.cover.blocks(),
                session.corpus.len(),
                session.killed
            );
            let _ = std::io::stdout().flush();
        }
    }
    session.write_results();
    if let Some(pressure) = pressure {
        println!("memory ran out {} times", pressure.killed);
    }
    session.has_worked()
}

fn read_corpus(options: &Options) -> Result<Vec<Program>, String> {
    let Some(path) = &options.corpus else {
        return Ok(Vec::new());
    };
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut programs = Program::parse_all(&text, options.workers);
    for list in programs.iter_mut().flat_map(|program| &mut program.lists) {
        list.retain(|call| options.admin || !call.admin());
    }
    Ok(programs)
}

type Next<'n> = dyn FnMut(&[Program], &Cover) -> Option<Program> + 'n;

impl Session<'_> {
    /// Creates a world (contexts, initial objects, workers), runs programs in it, and kills all
    /// workers at the end, whatever they are doing.
    fn world_of(&mut self, next: &mut Next<'_>, name: &str, replay: bool) -> Result<(), String> {
        self.world.clear();
        // Complaints of the kernel may still be about the previous world, so its log is kept.
        let log = self.logs[self.worlds % 2];
        self.worlds += 1;
        sys::truncate(log, 0);
        let log_text = |text: &str| {
            let _ = sys::write(log, text.as_bytes());
        };
        log_text(&format!("# {name} of seed {}\n", self.options.seed));
        for number in 0..AREAS {
            map_area(number, &self.files);
        }
        let mut worker = Worker::new(
            self.world,
            self.files,
            self.devices.clone(),
            self.nets.clone(),
            self.attributes.clone(),
        );
        worker.verbose = self.options.verbose;
        for context in 0..SHARED_CONTEXTS {
            let device = setup::device_of(context, self.devices.len());
            // The third device is optional and may be absent.
            let opened = worker.new_context(context, device);
            if opened.is_err() && device < 2 {
                return Err(format!(
                    "no context of {}: {opened:?}",
                    self.devices[device].name
                ));
            }
        }
        let opened: Vec<Option<Context>> = worker.contexts.clone();
        worker.run(&setup::first_objects());
        let mut processes: Vec<WorkerProcess> = Vec::new();
        for index in 0..self.options.workers {
            let process = self.start(index, &opened)?;
            processes.push(process);
        }
        let mut result = Ok(());
        while let Some(program) = next(&self.corpus, &self.cover) {
            log_text("program\n");
            log_text(&program.text());
            self.run_program(&program, &mut processes, &opened)?;
            self.programs += 1;
            if self.cover.collect() > 0 && !replay {
                self.keep(program);
            }
            if let Some(report) = self.kmsg.report() {
                result = Err(format!("the kernel reports: {report}"));
                break;
            }
        }
        if result.is_ok() {
            // Start another program, so that some workers are killed during a call.
            if let Some(program) = self.corpus.last() {
                for (index, process) in processes.iter().enumerate() {
                    self.world
                        .set_program(index, program.lists.get(index).map_or(&[], |list| list));
                    let _ = sys::write(process.wake, b"x");
                }
                sys::pause(self.programs % 7 * 400);
            }
        }
        for process in &processes {
            sys::kill(process.pid, libc::SIGKILL);
        }
        for process in processes {
            self.reap(&process)?;
            sys::close(process.wake);
        }
        for context in worker.contexts.iter().flatten() {
            sys::close(context.events);
            sys::close(context.fd);
        }
        sys::close(worker.netlink);
        // Mapped queues keep the contexts alive.
        world::unmap_rings();
        let mut byte = [0; 64];
        while sys::read(self.done.read, &mut byte).is_ok_and(|n| n > 0) {}

        result.and_then(|()| {
            self.kmsg.report().map_or(Ok(()), |report| {
                Err(format!("the kernel reports: {report}"))
            })
        })
    }

    fn start(&self, index: usize, contexts: &[Option<Context>]) -> Result<WorkerProcess, String> {
        let wake = pipe().map_err(|errno| format!("pipe: {errno}"))?;
        let pid = sys::fork(|| {
            sys::die_with_parent();
            sys::close(wake.write);
            if let Some(bytes) = self.options.memlock {
                sys::limit_memlock(bytes);
            }
            let mut worker = Worker::new(
                self.world,
                self.files,
                self.devices.clone(),
                self.nets.clone(),
                self.attributes.clone(),
            );
            worker.verbose = self.options.verbose;
            worker.contexts.copy_from_slice(contexts);
            worker.after_fork();
            let mut byte = [0];
            while sys::read(wake.read, &mut byte) == Ok(1) {
                worker.run(&self.world.program(index));
                let _ = sys::write(self.done.write, &[index as u8]);
            }
            0
        })
        .map_err(|errno| format!("fork: {errno}"))?;
        sys::close(wake.read);
        Ok(WorkerProcess {
            pid,
            wake: wake.write,
        })
    }

    /// Lets all workers run their lists. Workers that have died or take too long are replaced.
    fn run_program(
        &mut self,
        program: &Program,
        processes: &mut [WorkerProcess],
        contexts: &[Option<Context>],
    ) -> Result<(), String> {
        for (index, process) in processes.iter().enumerate() {
            self.world
                .set_program(index, program.lists.get(index).map_or(&[], |list| list));
            let _ = sys::write(process.wake, b"x");
        }
        let mut waiting: Vec<bool> = vec![true; processes.len()];
        let started = Instant::now();
        let mut wait = 50;
        while waiting.contains(&true) {
            let mut bytes = [0; 16];
            let count = sys::read(self.done.read, &mut bytes).unwrap_or(0);
            for byte in &bytes[..count] {
                if let Some(waits) = waiting.get_mut(usize::from(*byte)) {
                    *waits = false;
                }
            }
            if count > 0 {
                continue;
            }
            for index in 0..processes.len() {
                if !waiting[index] {
                    continue;
                }
                let dead = sys::ended(processes[index].pid, false).is_some();
                if !dead && started.elapsed() > PROGRAM_TIMEOUT {
                    self.killed += 1;
                    sys::kill(processes[index].pid, libc::SIGKILL);
                    self.reap(&processes[index])?;
                } else if !dead {
                    continue;
                }
                sys::close(processes[index].wake);
                processes[index] = self.start(index, contexts)?;
                waiting[index] = false;
            }
            sys::pause(wait);
            wait = (wait * 2).min(2000);
        }
        Ok(())
    }

    /// Waits until a killed worker has ended.
    fn reap(&self, process: &WorkerProcess) -> Result<(), String> {
        let started = Instant::now();
        while sys::ended(process.pid, false).is_none() {
            if started.elapsed() > KILL_TIMEOUT {
                let stack = std::fs::read_to_string(format!("/proc/{}/stack", process.pid))
                    .unwrap_or_default();
                return Err(format!("worker {} does not end:\n{stack}", process.pid));
            }
            sys::pause(500);
        }
        Ok(())
    }

    fn keep(&mut self, program: Program) {
        let _ = sys::write(self.kept, format!("program\n{}", program.text()).as_bytes());
        self.corpus.push(program);
    }

    /// Checks that queue pairs were created and used. The first world begins with that, before
    /// other calls disturb it; a run in which it has failed has tested nearly nothing.
    fn has_worked(&self) -> Result<(), String> {
        for op in [Op::CreateQp, Op::PostSend] {
            if self.world.results_of(op as usize).1 == 0 {
                return Err(format!("no call of {op:?} has succeeded"));
            }
        }
        Ok(())
    }

    /// Writes the results of the calls and the functions reached to their files.
    fn write_results(&self) {
        let mut text = String::new();
        for (index, op) in OPS.iter().enumerate() {
            let (failed, worked) = self.world.results_of(index);
            text += &format!("{} {worked} of {}\n", op.0, worked + failed);
        }
        let _ = sys::write(self.calls, text.as_bytes());
        let functions = self.cover.functions();
        if !functions.is_empty() {
            let mut text = String::new();
            for (name, blocks) in &functions {
                text += &format!("{blocks} {name}\n");
            }
            let _ = sys::write(self.functions, text.as_bytes());
            let reached = functions.values().filter(|blocks| **blocks > 0).count();
            println!("{reached} of {} functions reached", functions.len());
        }
    }
}
