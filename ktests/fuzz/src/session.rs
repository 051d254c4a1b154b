// SPDX-License-Identifier: GPL-2.0
//! The loop: worlds one after the other, in each of them programs, of which those that reach
//! something new are kept.

use crate::calls::{Program, OPS};
use crate::cover::Cover;
use crate::exec::{Context, Device, Net, Worker, PRIVATE_FDS, SHARED_CONTEXTS};
use crate::world::{self, map_area, Files, World, AREAS};
use crate::{admin, setup, sys, Options};
use fastrand::Rng;
use std::io::Write;
use std::time::{Duration, Instant};

/// Programs of a world.
const PROGRAMS: u32 = 250;
/// Longest time of a world.
const WORLD_SECONDS: u64 = 20;
/// How long a worker may take for a program before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);
/// After a kill a worker must be gone within this time, or something hangs in the kernel.
const LIMIT: Duration = Duration::from_secs(60);

/// Words of the kernel that end everything. The log's gate knows all of them; these are looked for
/// at once, so that the log of the world ends with what caused them.
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

/// Lines of the kernel about failing allocations that are wanted.
const WANTED: [&str; 2] = ["page allocation failure", "vmalloc error"];

struct Slave {
    pid: i32,
    /// Wakes it.
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

/// What the kernel says.
struct Kmsg(i32);

impl Kmsg {
    fn open() -> Self {
        // Behind what is there already.
        let fd = sys::open("/dev/kmsg", libc::O_RDONLY | libc::O_NONBLOCK).unwrap_or(-1);
        let _ = sys::call(libc::SYS_lseek, fd as u64, 0, libc::SEEK_END as u64);
        Self(fd)
    }

    /// The first report since the last look.
    fn report(&self) -> Option<String> {
        let mut line = [0; 8192];
        loop {
            match sys::read(self.0, &mut line) {
                Ok(0) => return None,
                Ok(len) => {
                    let text = String::from_utf8_lossy(&line[..len]).into_owned();
                    if REPORTS.iter().any(|word| text.contains(word))
                        && !WANTED.iter().any(|word| text.contains(word))
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

/// What stays from world to world.
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
    /// The programs of this world, those kept, how often calls worked, functions reached: opened
    /// while the process still may.
    logs: [i32; 2],
    kept: i32,
    calls: i32,
    functions: i32,
    worlds: usize,
    programs: u64,
    killed: u64,
}

/// Fuzzes, or runs a log once more.
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
        corpus: read_corpus(options),
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
    // Before a device is opened: the core takes commands only from whoever opened it.
    if let Some(user) = options.user {
        sys::become_user(user).map_err(|errno| format!("cannot become user {user}: {errno}"))?;
    }
    println!(
        "seed {}, {} workers, {} programs to begin with, {}",
        options.seed,
        options.workers,
        session.corpus.len(),
        if session.cover.available() {
            "guided by coverage"
        } else {
            "at random"
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
            .map(|_| ());
    }
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut number = 0;
    let mut said = Instant::now();
    while Instant::now() < end {
        let mut rng = Rng::with_seed(options.seed.wrapping_mul(1_000_003).wrapping_add(number));
        let world_end = end.min(Instant::now() + Duration::from_secs(WORLD_SECONDS));
        let mut left = PROGRAMS;
        let (workers, admin) = (options.workers, options.admin);
        // What the corpus does not have is taken from where the kernel was last.
        let mut next = |corpus: &[Program], _: &Cover| {
            if left == 0 || Instant::now() >= world_end {
                return None;
            }
            left -= 1;
            let fresh = Program::random(&mut rng, workers, admin);
            if corpus.is_empty() || rng.u8(..4) == 0 {
                return Some(fresh);
            }
            // What was found lately has been changed least.
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
        if said.elapsed() > Duration::from_secs(10) || Instant::now() >= end {
            said = Instant::now();
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
    session.tell();
    Ok(())
}

fn read_corpus(options: &Options) -> Vec<Program> {
    let text = options
        .corpus
        .as_ref()
        .and_then(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_default();
    let mut programs = Program::parse_all(&text, options.workers);
    for list in programs.iter_mut().flat_map(|program| &mut program.lists) {
        list.retain(|call| options.admin || !call.admin());
    }
    programs
}

type Next<'n> = dyn FnMut(&[Program], &Cover) -> Option<Program> + 'n;

impl Session<'_> {
    /// One world: contexts, first objects, workers; programs until there are no more; then all of
    /// it is killed as it is.
    fn world_of(&mut self, next: &mut Next<'_>, name: &str, replay: bool) -> Result<(), String> {
        self.world.clear();
        // The one before may still have something to say.
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
            // The last device need not be there.
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
        let mut slaves: Vec<Slave> = Vec::new();
        for index in 0..self.options.workers {
            let slave = self.start(index, &opened)?;
            slaves.push(slave);
        }
        let mut result = Ok(());
        while let Some(program) = next(&self.corpus, &self.cover) {
            log_text("program\n");
            log_text(&program.text());
            self.play(&program, &mut slaves, &opened)?;
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
            // Some of them are in the middle of something.
            if let Some(program) = self.corpus.last() {
                for (index, slave) in slaves.iter().enumerate() {
                    self.world
                        .set_program(index, program.lists.get(index).map_or(&[], |list| list));
                    let _ = sys::write(slave.wake, b"x");
                }
                sys::pause(self.programs % 7 * 400);
            }
        }
        for slave in &slaves {
            sys::kill(slave.pid, libc::SIGKILL);
        }
        for slave in slaves {
            self.gone(&slave)?;
            sys::close(slave.wake);
        }
        for context in worker.contexts.iter().flatten() {
            sys::close(context.events);
            sys::close(context.fd);
        }
        sys::close(worker.netlink);
        // Mappings of queues keep the context alive.
        world::unmap_rings();
        let mut byte = [0; 64];
        while sys::read(self.done.read, &mut byte).is_ok_and(|n| n > 0) {}

        result.and_then(|()| {
            self.kmsg.report().map_or(Ok(()), |report| {
                Err(format!("the kernel reports: {report}"))
            })
        })
    }

    fn start(&self, index: usize, contexts: &[Option<Context>]) -> Result<Slave, String> {
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
            worker.started();
            let mut byte = [0];
            while sys::read(wake.read, &mut byte) == Ok(1) {
                worker.run(&self.world.program(index));
                let _ = sys::write(self.done.write, &[index as u8]);
            }
            0
        })
        .map_err(|errno| format!("fork: {errno}"))?;
        sys::close(wake.read);
        Ok(Slave {
            pid,
            wake: wake.write,
        })
    }

    /// Lets all workers run their lists; those that died or take too long are made anew.
    fn play(
        &mut self,
        program: &Program,
        slaves: &mut [Slave],
        contexts: &[Option<Context>],
    ) -> Result<(), String> {
        for (index, slave) in slaves.iter().enumerate() {
            self.world
                .set_program(index, program.lists.get(index).map_or(&[], |list| list));
            let _ = sys::write(slave.wake, b"x");
        }
        let mut waiting: Vec<bool> = vec![true; slaves.len()];
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
            for index in 0..slaves.len() {
                if !waiting[index] {
                    continue;
                }
                let dead = sys::ended(slaves[index].pid, false).is_some();
                if !dead && started.elapsed() > PATIENCE {
                    self.killed += 1;
                    sys::kill(slaves[index].pid, libc::SIGKILL);
                    self.gone(&slaves[index])?;
                } else if !dead {
                    continue;
                }
                sys::close(slaves[index].wake);
                slaves[index] = self.start(index, contexts)?;
                waiting[index] = false;
            }
            sys::pause(wait);
            wait = (wait * 2).min(2000);
        }
        Ok(())
    }

    /// Waits for a process that was killed.
    fn gone(&self, slave: &Slave) -> Result<(), String> {
        let started = Instant::now();
        while sys::ended(slave.pid, false).is_none() {
            if started.elapsed() > LIMIT {
                let stack = std::fs::read_to_string(format!("/proc/{}/stack", slave.pid))
                    .unwrap_or_default();
                return Err(format!("worker {} does not end:\n{stack}", slave.pid));
            }
            sys::pause(500);
        }
        Ok(())
    }

    fn keep(&mut self, program: Program) {
        let _ = sys::write(self.kept, format!("program\n{}", program.text()).as_bytes());
        self.corpus.push(program);
    }

    /// How often each call was made, and what of the driver was reached.
    fn tell(&self) {
        let mut text = String::new();
        for (index, op) in OPS.iter().enumerate() {
            let (failed, worked) = self.world.counted(index);
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
