// SPDX-License-Identifier: GPL-2.0
//! Coverage-guided fuzzer of the user interface of `rxe_rs`. See `ktests/fuzz/README.md`.
//!
//! ```text
//! rxe_fuzz --devices A,B[,C] [--seconds N] [--seed N] [--workers N] [--out DIR] [--corpus FILE]
//!          [--user UID] [--admin] [--memlock BYTES] [--pressure] [--netns NAME:NETDEV]…
//! rxe_fuzz --devices A,B --replay FILE [--verbose]
//! ```

mod admin;
mod calls;
mod cover;
mod exec;
mod generic;
mod objects;
mod pairs;
mod pressure;
mod regions;
mod rings;
mod session;
mod setup;
mod sys;
mod uverbs;
mod world;

use std::path::PathBuf;

/// Options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// RDMA devices: two that reach each other, and optionally one that may be removed and
    /// created again.
    pub devices: Vec<String>,
    /// Duration of the run in seconds.
    pub seconds: u64,
    /// Seed of the random generator.
    pub seed: u64,
    /// Number of processes that run calls concurrently.
    pub workers: usize,
    /// Folder of the logs and of the programs that were kept.
    pub out: PathBuf,
    /// File with the initial programs.
    pub corpus: Option<PathBuf>,
    /// User and group that the fuzzer changes to; unchanged without it.
    pub user: Option<u32>,
    /// Whether programs contain calls that need CAP_NET_ADMIN.
    pub admin: bool,
    /// Limit on locked memory (RLIMIT_MEMLOCK) of a worker in bytes.
    pub memlock: Option<u64>,
    /// Whether a process takes nearly all memory of the machine from time to time.
    pub pressure: bool,
    /// Network namespaces, each with a network device in it that privileged calls change.
    pub nets: Vec<(String, String)>,
    /// Log of a world to replay.
    pub replay: Option<PathBuf>,
    /// Print each call and its result.
    pub verbose: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        devices: Vec::new(),
        seconds: 30,
        seed: 1,
        workers: 3,
        out: "/tmp/rxe_fuzz".into(),
        corpus: None,
        user: None,
        admin: false,
        memlock: None,
        pressure: false,
        nets: Vec::new(),
        replay: None,
        verbose: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|error| format!("{text}: {error}"))
        };
        match word.as_str() {
            "--devices" => options.devices = value()?.split(',').map(String::from).collect(),
            "--seconds" => options.seconds = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--workers" => options.workers = number(value()?)?.clamp(1, 8) as usize,
            "--out" => options.out = value()?.into(),
            "--corpus" => options.corpus = Some(value()?.into()),
            "--user" => options.user = Some(number(value()?)? as u32),
            "--admin" => options.admin = true,
            "--memlock" => options.memlock = Some(number(value()?)?),
            "--pressure" => options.pressure = true,
            "--netns" => {
                let text = value()?;
                let (name, netdev) = text.split_once(':').ok_or("--netns NAME:NETDEV")?;
                options.nets.push((name.into(), netdev.into()));
            }
            "--replay" => options.replay = Some(value()?.into()),
            "--verbose" => options.verbose = true,
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if options.devices.len() < 2 {
        return Err("--devices needs two devices that reach each other".into());
    }
    Ok(options)
}

fn main() {
    let result = options().and_then(|options| session::run(&options));
    match result {
        Ok(()) => println!("no fault was found"),
        Err(text) => {
            eprintln!("rxe_fuzz: {text}");
            std::process::exit(1);
        }
    }
}
