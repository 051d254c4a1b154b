// SPDX-License-Identifier: GPL-2.0
//! The streams of commands, and those of this program that cannot be written or read.

use crate::{wait_for, Done, Host};
use rustix::fs::OFlags;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

#[test]
fn much_output_arrives_completely() {
    let host = Host::new();
    let done = host.run("", &[], &["sh", "-c", "seq 200000; seq 300000 >&2"]);
    assert_eq!(done.out.lines().count(), 200_000);
    assert_eq!(done.err.lines().count(), 300_000);
    assert!(done.err.ends_with("\n300000\n"));
}

#[test]
fn output_arrives_while_the_command_runs() {
    use std::io::{BufRead, BufReader};
    let host = Host::new();
    let mut child = host.started(&[]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "begun\n");
    assert!(child.try_wait().unwrap().is_none());
    Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn standard_input_is_passed_on_if_asked_for() {
    let host = Host::new();
    for (option, wanted) in [("--stdin", "some\ninput"), ("--verbose", "")] {
        let mut command = host.command(&["run", "--accel", "tcg", option, "--", "cat"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(b"some\ninput")
            .unwrap();
        let done = Done::of(child.wait_with_output().unwrap());
        assert_eq!(
            (done.status, done.out.as_str()),
            (Some(0), wanted),
            "{done:?}"
        );
    }
}

/// The ends for reading and for writing of a pipe, opened with these flags.
fn pipe(path: &Path, reader: OFlags, writer: OFlags) -> (fs::File, fs::File) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let mut both = fs::File::options();
    both.read(true).write(true);
    // Without the other end one cannot be opened.
    let _open = both.open(path).unwrap();
    let options = |flags: OFlags| {
        let mut options = fs::File::options();
        options.custom_flags(flags.bits().try_into().unwrap());
        options
    };
    (
        options(reader).read(true).open(path).unwrap(),
        options(writer).write(true).open(path).unwrap(),
    )
}

/// Who has started the program, or shares a terminal or a pipe with it, may have set O_NONBLOCK.
#[test]
fn input_and_output_may_be_non_blocking() {
    let host = Host::new();
    let (stdin, mut input) = pipe(&host.path("in"), OFlags::NONBLOCK, OFlags::empty());
    let (output, stdout) = pipe(&host.path("out"), OFlags::empty(), OFlags::NONBLOCK);
    let (errors, stderr) = pipe(&host.path("err"), OFlags::empty(), OFlags::NONBLOCK);
    let script = "touch started; cat; seq 100000 >&2; exit 7";
    let words = ["run", "--accel", "tcg", "--stdin", "--", "sh", "-c", script];
    let mut command = host.command(&words);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let mut child = command.spawn().unwrap();
    // It has the other copies of the descriptors.
    drop(command);
    wait_for(|| host.path("project/started").exists());
    // The program finds nothing to read, and then no room to write, if it does so within this time.
    thread::sleep(Duration::from_millis(200));
    let numbers: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
    let wanted = numbers.join("\n");
    let text = wanted.clone();
    let feeder = thread::spawn(move || input.write_all(text.as_bytes()));
    thread::sleep(Duration::from_millis(200));
    let errors = thread::spawn(|| std::io::read_to_string(errors));
    let out = std::io::read_to_string(output).unwrap();
    let err = errors.join().unwrap().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7), "{err:.500}");
    feeder.join().unwrap().unwrap();
    assert!(out == wanted, "{} of {} bytes", out.len(), wanted.len());
    assert!(err.ends_with("\n100000\n") && err.lines().count() == 100_000);
}

#[test]
fn input_that_cannot_be_read() {
    let host = Host::new();
    let mut command = host.command(&["run", "--accel", "tcg", "--stdin", "--", "cat"]);
    command.stdin(fs::File::open(host.path("project")).unwrap());
    Done::of(command.output().unwrap()).says(125, "cannot read standard input: Is a directory");
    host.nothing_runs();
}

#[test]
fn output_that_cannot_be_written() {
    let host = Host::new();
    let mut command = host.command(&["run", "--accel", "tcg", "--", "echo", "x"]);
    command.stdout(fs::File::create("/dev/full").unwrap());
    Done::of(command.output().unwrap()).says(125, "No space left on device");
    let mut command = host.command(&[
        "run",
        "--accel",
        "tcg",
        "--",
        "sh",
        "-c",
        "sleep 0.2; echo x; exec sleep 600",
    ]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
    host.nothing_runs();
}

#[test]
fn messages_that_cannot_be_written() {
    let host = Host::new();
    host.machine("7.2.12+deb13-amd64", "7.2");
    fs::remove_file(host.path("machines/7.2.12+deb13-amd64/rxe_rs.ko")).unwrap();
    let verbose = &["run", "--accel", "tcg", "--verbose", "--", "sh", "-c"];
    for (arguments, status) in [
        (&["run", "--kernel", "7.1", "--", "true"][..], 125),
        (&["list"], 0),
        (&[&verbose[..], &["exit 7"]].concat(), 7),
    ] {
        let mut command = host.command(arguments);
        command.stderr(fs::File::create("/dev/full").unwrap());
        let done = Done::of(command.output().unwrap());
        assert_eq!(done.status, Some(status), "{arguments:?}: {done:?}");
    }
    host.nothing_runs();
}
