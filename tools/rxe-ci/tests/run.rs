// SPDX-License-Identifier: GPL-2.0
//! Runs the program with `fake-machine` in place of QEMU and of a User Mode Linux kernel: statuses,
//! streams, errors, time limits, and what is left behind.

mod prepared;
#[path = "run/streams.rs"]
mod streams;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with a prepared machine, a project and what the fake writes.
struct Host {
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for folder in ["project", "fake"] {
            fs::create_dir(host.path(folder)).unwrap();
        }
        host.machine("7.3.4+deb13-amd64", "7.3");
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn machine(&self, release: &str, series: &str) {
        prepared::machine(&self.path("machines"), release, series);
    }

    /// Makes a machine for User Mode Linux, whose kernel is the fake.
    fn uml_machine(&self, release: &str) {
        let text = fs::read_to_string(fake()).unwrap();
        let folder = prepared::uml_machine(&self.path("machines"), release, "7.3", &text);
        // Another process writes the program: see `fake` of src/accel.rs.
        let mut install = Command::new("install");
        install.arg("-m755").arg(fake()).arg(folder.join("linux"));
        assert!(install.status().unwrap().success());
    }

    /// The program with these arguments, in the folder of the project. No signal is ignored when it
    /// starts, as it would be if the tests run in the background of a shell.
    fn command(&self, arguments: &[&str]) -> Command {
        self.command_by("--default-signal", arguments)
    }

    /// The same, with an option of env(1) for signals.
    fn command_by(&self, signals: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/env");
        command
            .args([signals, env!("CARGO_BIN_EXE_rxe-ci")])
            .args(arguments)
            .current_dir(self.path("project"))
            .env("RXE_CI_QEMU", fake())
            .env("RXE_CI_MACHINE", self.path("machines"))
            .env("FAKE_DIR", self.path("fake"))
            .env("HOME", self.dir.path())
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command in machines; `fake`: what these do.
    fn run(&self, fake: &str, options: &[&str], words: &[&str]) -> Done {
        self.run_by("tcg", fake, options, words)
    }

    /// Runs a command in machines that `accel` chooses.
    fn run_by(&self, accel: &str, fake: &str, options: &[&str], words: &[&str]) -> Done {
        let all = [&["run", "--accel", accel], options, &["--"], words].concat();
        let done = self.command(&all).env("FAKE", fake).output().unwrap();
        self.nothing_runs();
        Done::of(done)
    }

    /// The process IDs of the machines.
    fn machines(&self) -> Vec<u32> {
        let files = fs::read_dir(self.path("fake"))
            .unwrap()
            .map(|file| file.unwrap().path());
        let pids = files.filter(|file| {
            file.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("pid-")
        });
        let texts: Vec<String> = pids.map(|file| fs::read_to_string(file).unwrap()).collect();
        let lines = texts.iter().flat_map(|text| text.lines());
        lines.map(|pid| pid.parse().unwrap()).collect()
    }

    /// How often a machine has been started.
    fn boots(&self, node: u8) -> usize {
        let pids = fs::read_to_string(self.path(&format!("fake/pid-{node}")));
        pids.unwrap_or_default().lines().count()
    }

    /// Runs a command that says how often it was started, in machines of which a boot fails.
    /// Returns how often the first one was booted, and the lines about that.
    fn run_again(&self, accel: &str, fake: &str, options: &[&str]) -> (usize, Vec<String>) {
        let done = self.run_by(accel, fake, options, &["sh", "-c", ONCE]);
        assert_eq!(
            (done.status, done.out.as_str()),
            (Some(7), "1\n"),
            "{done:?}"
        );
        (self.boots(1), done.err.lines().map(String::from).collect())
    }

    /// The folder that machines of User Mode Linux share.
    fn shared_folder(&self) -> PathBuf {
        let arguments = fs::read_to_string(self.path("fake/arguments-1")).unwrap();
        let mut lines = arguments.lines();
        let folder = lines.find_map(|line| line.strip_prefix("uml_dir="));
        folder.unwrap().into()
    }

    /// Checks that all machines have ended.
    fn nothing_runs(&self) {
        for pid in self.machines() {
            assert!(
                !Path::new(&format!("/proc/{pid}")).exists(),
                "machine {pid} runs"
            );
        }
    }

    /// Starts the program and waits until its command has made the file `started`.
    fn started(&self, options: &[&str]) -> Child {
        self.started_by("tcg", options)
    }

    /// The same, with machines that `accel` chooses.
    fn started_by(&self, accel: &str, options: &[&str]) -> Child {
        let words = [
            "--",
            "sh",
            "-c",
            "echo begun; touch started; exec sleep 600",
        ];
        let all = [&["run", "--accel", accel], options, &words].concat();
        let child = self.command(&all).spawn().unwrap();
        wait_for(|| self.path("project/started").exists());
        child
    }
}

/// What takes the place of QEMU.
fn fake() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-machine")
}

/// A command that prints how often it was started.
const ONCE: &str = "echo x >>runs; wc -l <runs; exit 7";

/// The result of a run.
#[derive(Debug)]
struct Done {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Done {
    fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Checks that the last line on standard error is an error with that text.
    fn says(&self, status: i32, text: &str) {
        assert_eq!(self.status, Some(status), "{self:?}");
        let last = self.err.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("rxe-ci: ") && last.contains(text),
            "{self:?}"
        );
        assert_eq!(self.err.matches("rxe-ci: ").count(), 1, "{self:?}");
    }

    /// Checks that machines were started three times, in vain for a reason with that text.
    fn says_thrice(&self, text: &str) {
        assert_eq!(self.status, Some(125), "{self:?}");
        let said = self.err.lines().filter(|line| line.starts_with("rxe-ci: "));
        let said: Vec<&str> = said.collect();
        assert_eq!(said.len(), 3, "{self:?}");
        assert!(said.iter().all(|line| line.contains(text)), "{self:?}");
        assert!(said[0].ends_with("; booting again (2 of 3)"), "{self:?}");
        assert!(said[1].ends_with("; booting again (3 of 3)"), "{self:?}");
        assert_eq!(self.err.lines().last(), Some(said[2]), "{self:?}");
    }
}

/// Waits for a condition.
fn wait_for(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "in vain");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn output_and_status_are_those_of_the_command() {
    let host = Host::new();
    let done = host.run(
        "",
        &[],
        &["sh", "-c", "echo out; echo err >&2; pwd; exit 7"],
    );
    let project = host.path("project").canonicalize().unwrap();
    assert_eq!(done.out, format!("out\n{}\n", project.display()));
    assert_eq!(done.err, "err\n");
    assert_eq!(done.status, Some(7));
    for (script, status) in [
        ("true", 0),
        ("kill -KILL $$", 137),
        ("exit 255", 255),
        ("kill -SEGV $$", 139),
    ] {
        assert_eq!(
            host.run("", &[], &["sh", "-c", script]).status,
            Some(status),
            "{script}"
        );
    }
    assert_eq!(host.run("", &[], &["no-such-command"]).status, Some(127));
}

#[test]
fn words_and_variables_arrive_unchanged() {
    let host = Host::new();
    let odd = "a b\n'\"$x*\\";
    let options = ["--env", "ONE=1 2\n3=", "--env", "FAKE_DIR"];
    let words = [
        "sh",
        "-c",
        "printf '%s|' \"$@\" \"$ONE\" \"$FAKE_DIR\"",
        "sh",
        odd,
        "",
        "--each",
    ];
    let done = host.run("", &options, &words);
    assert_eq!(
        done.out,
        format!("{odd}||--each|1 2\n3=|{}|", host.path("fake").display())
    );
}

/// A shell keeps the path by which it has reached its folder in PWD.
#[test]
fn the_folder_may_be_reached_through_a_symbolic_link() {
    let host = Host::new();
    let (link, project) = (host.path("link"), host.path("project"));
    let project = project.canonicalize().unwrap();
    symlink(&project, &link).unwrap();
    let (odd, other) = (host.path("link/../link"), host.path("fake"));
    for (pwd, wanted) in [
        (Some(&link), &link),
        (Some(&project), &project),
        // Paths of other folders, and those that POSIX forbids.
        (Some(&other), &project),
        (Some(&odd), &project),
        (None, &project),
    ] {
        let script = "pwd; pwd -P; printenv PWD";
        let words = ["run", "--accel", "tcg", "--", "sh", "-c", script];
        let mut command = host.command(&words);
        command.current_dir(&link).env_remove("PWD");
        if let Some(pwd) = pwd {
            command.env("PWD", pwd);
        }
        let done = Done::of(command.output().unwrap());
        let wanted = [wanted, &project, wanted].map(|path| format!("{}\n", path.display()));
        assert_eq!(done.out, wanted.concat(), "{pwd:?}: {done:?}");
    }
}

#[test]
fn the_command_runs_in_the_first_machine_when_all_are_up() {
    let host = Host::new();
    let words = ["sh", "-c", "echo $RXE_CI_NODE; ls $FAKE_DIR"];
    let done = host.run(
        "",
        &["--nodes", "3", "--memory", "700", "--cpus", "3"],
        &words,
    );
    assert_eq!(done.status, Some(0), "{done:?}");
    assert!(
        done.out.starts_with("1\n") && done.out.contains("up-2\nup-3\n"),
        "{done:?}"
    );
    for node in 1..=3 {
        let arguments =
            fs::read_to_string(host.path("fake").join(format!("arguments-{node}"))).unwrap();
        assert!(
            arguments.contains("-m\n700\n") && arguments.contains("-smp\n3\n"),
            "{arguments}"
        );
        assert_eq!(
            arguments.matches("socket,id=rdma").count(),
            if node == 1 { 2 } else { 1 }
        );
    }
}

#[test]
fn the_command_runs_in_each_machine() {
    let host = Host::new();
    let words = [
        "sh",
        "-c",
        "echo a; echo b$RXE_CI_NODE >&2; exit $((RXE_CI_NODE * 10 % 30))",
    ];
    let done = host.run("", &["--nodes", "3", "--each"], &words);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&done.out), ["[1] a", "[2] a", "[3] a"]);
    assert_eq!(sorted(&done.err), ["[1] b1", "[2] b2", "[3] b3"]);
    assert_eq!(done.status, Some(10));
    let words = ["sh", "-c", "exit $(((RXE_CI_NODE - 1) * 4))"];
    assert_eq!(
        host.run("", &["--nodes", "2", "--each"], &words).status,
        Some(4)
    );
}

#[test]
fn machines_that_do_not_boot() {
    let host = Host::new();
    let done = host.run("panic", &[], &["true"]);
    done.says_thrice("kernel panic in machine 1: VFS: Unable to mount root fs;");
    let traces = done.err.matches("[    1.0] end trace\n").count();
    assert_eq!((traces, host.boots(1)), (1, 3), "{done:?}");
    let done = host.run("refused", &["--nodes", "2"], &["true"]);
    done.says(125, "ended before it had booted");
    assert!(done.err.contains("Cannot allocate memory"), "{done:?}");
    host.run("fail", &[], &["true"])
        .says(125, "rxe_rs.ko cannot be loaded: Invalid module format;");
    let done = host.run("hang", &["--boot-timeout", "1"], &["true"]);
    done.says_thrice("machine 1 did not start its init in 1 s;");
    assert!(
        done.err.contains("Booting paravirtualized kernel\n"),
        "{done:?}"
    );
    let done = host.run("stuck", &["--boot-timeout", "8"], &["true"]);
    done.says_thrice("machine 1 did not boot in 8 s;");
}

#[test]
fn machines_that_do_not_boot_are_started_again() {
    for (fake, line) in [
        (
            "panic ok",
            "kernel panic in machine 1: VFS: Unable to mount root fs",
        ),
        // Sooner than the time limit of the boot.
        ("hang ok", "machine 1 did not start its init in 5 s"),
        ("stuck ok", "machine 1 did not boot in 10 s"),
    ] {
        let host = Host::new();
        let again = format!("rxe-ci: {line}; booting again (2 of 3)");
        let found = host.run_again("tcg", fake, &["--boot-timeout", "10"]);
        assert_eq!(found, (2, vec![again]), "{fake}");
    }
    let host = Host::new();
    let (boots, lines) = host.run_again("tcg", "panic panic ok", &["--verbose"]);
    let text = lines.join("\n");
    assert_eq!((boots, text.matches("end trace").count()), (3, 2), "{text}");
    assert_eq!(text.matches(": booting 1 x ").count(), 3, "{text}");
    assert_eq!(
        text.matches(": the machines are ready").count(),
        1,
        "{text}"
    );
}

/// Also those that were ready.
#[test]
fn all_machines_are_started_again() {
    for accel in ["tcg", "uml"] {
        let host = Host::new();
        host.uml_machine("7.3.5");
        let options = ["--nodes", "2", "--boot-timeout", "6"];
        let (boots, lines) = host.run_again(accel, "hang-2 ok", &options);
        assert_eq!((boots, host.boots(2)), (2, 2), "{lines:?}");
        assert!(
            lines[0].contains("machine 2 did not start its init"),
            "{lines:?}"
        );
        if accel == "uml" {
            let folder = host.shared_folder();
            assert!(!folder.exists(), "{folder:?} is left");
        }
    }
}

/// What the command has done so far may not happen twice.
#[test]
fn a_command_that_has_started_is_not_repeated() {
    for fake in ["lost", "off"] {
        let host = Host::new();
        let done = host.run(fake, &[], &["sh", "-c", ONCE]);
        done.says(125, "ended before the command did");
        assert_eq!(host.boots(1), 1, "{done:?}");
        let runs = fs::read_to_string(host.path("project/runs"));
        assert_eq!(runs.is_ok(), fake == "lost", "{runs:?}");
    }
    for fake in ["fail", "refused"] {
        let host = Host::new();
        assert_eq!(host.run(fake, &[], &["true"]).status, Some(125));
        assert_eq!(host.boots(1), 1, "{fake} would happen again");
    }
}

#[test]
fn a_signal_ends_machines_that_were_started_again() {
    let host = Host::new();
    let mut command = host.command(&["run", "--accel", "tcg", "--", "true"]);
    let child = command.env("FAKE", "panic hang").spawn().unwrap();
    wait_for(|| host.boots(1) == 2);
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &pid]).status();
    assert!(sent.unwrap().success());
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.status, Some(130), "{done:?}");
    assert!(done.err.ends_with("rxe-ci: ended by SIGINT\n"), "{done:?}");
    assert_eq!(host.boots(1), 2);
    host.nothing_runs();
}

#[test]
fn machines_that_end_early() {
    let host = Host::new();
    host.run("off", &[], &["true"])
        .says(125, "ended before the command did");
}

#[test]
fn the_time_limit_ends_the_command() {
    let host = Host::new();
    let start = Instant::now();
    let done = host.run(
        "",
        &["--timeout", "1", "--nodes", "2"],
        &["sh", "-c", "echo one; exec sleep 600"],
    );
    done.says(124, "ended after 1 s");
    assert_eq!(done.out, "one\n");
    assert!(start.elapsed() < Duration::from_secs(60));
    // Processes of the fake, unlike those of a machine, outlive it.
    assert_eq!(
        host.run("", &["--timeout", "600"], &["true"]).status,
        Some(0)
    );
}

#[test]
fn signals_end_the_machines() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let host = Host::new();
        let child = host.started(&["--nodes", "2"]);
        assert_eq!(host.machines().len(), 2);
        let pid = child.id().to_string();
        assert!(Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .unwrap()
            .success());
        let done = Done::of(child.wait_with_output().unwrap());
        done.says(status, signal);
        host.nothing_runs();
        let left = fs::read_dir(host.path("project")).unwrap().count();
        assert_eq!(left, 1, "more than the file of the command");
    }
}

/// All signals that others send, or a limit or a timer that the program has inherited, and that end
/// a program by default.
#[test]
fn signals_leave_no_folder_behind() {
    for (signal, status) in [
        ("HUP", 129),
        ("INT", 130),
        ("QUIT", 131),
        ("USR1", 138),
        ("USR2", 140),
        ("ALRM", 142),
        ("TERM", 143),
        ("XCPU", 152),
        ("XFSZ", 153),
        ("VTALRM", 154),
        ("PROF", 155),
    ] {
        let host = Host::new();
        host.uml_machine("7.3.5");
        let child = host.started_by("uml", &[]);
        assert!(host.shared_folder().exists());
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
        let done = Done::of(child.wait_with_output().unwrap());
        let left = host.shared_folder().exists();
        // So that a failure leaves nothing behind either.
        let _ = fs::remove_dir_all(host.shared_folder());
        assert!(!left, "{signal}");
        done.says(status, signal);
        host.nothing_runs();
    }
}

/// Standard error is a pipe that is full: the reason for the end cannot be written.
#[test]
fn a_second_signal_ends_what_cannot_say_why() {
    let host = Host::new();
    let script = "touch started; exec yes >&2";
    let words = ["run", "--accel", "tcg", "--", "sh", "-c", script];
    let mut child = host.command(&words).spawn().unwrap();
    wait_for(|| host.path("project/started").exists());
    let pid = child.id().to_string();
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        let sent = Command::new("kill").args(["-s", "TERM", &pid]).status();
        assert!(sent.unwrap().success());
        thread::sleep(Duration::from_millis(200));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it does not end");
        }
    };
    assert_eq!(status.code(), Some(143));
    host.nothing_runs();
}

/// nohup ignores SIGHUP for the program that it starts.
#[test]
fn ignored_signals_have_no_effect() {
    let host = Host::new();
    let script = "touch started; while [ ! -e go ]; do sleep 0.02; done; exit 7";
    let words = ["run", "--accel", "tcg", "--", "sh", "-c", script];
    let mut command = host.command_by("--ignore-signal=HUP", &words);
    let child = command.spawn().unwrap();
    wait_for(|| host.path("project/started").exists());
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-s", "HUP", &pid]).status();
    assert!(sent.unwrap().success());
    // A signal that has an effect has it within this time.
    thread::sleep(Duration::from_millis(200));
    fs::write(host.path("project/go"), "").unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.status, Some(7), "{done:?}");
    host.nothing_runs();
}

#[test]
fn machines_end_with_a_killed_program() {
    let host = Host::new();
    let mut child = host.started(&["--nodes", "2"]);
    child.kill().unwrap();
    child.wait().unwrap();
    // The fake of the second machine waits as a machine does; the first one waits for its command.
    let second = fs::read_to_string(host.path("fake/pid-2")).unwrap();
    wait_for(|| !Path::new("/proc").join(second.trim()).exists());
    let first = fs::read_to_string(host.path("fake/pid-1")).unwrap();
    Command::new("kill")
        .args(["-s", "KILL", first.trim()])
        .status()
        .unwrap();
}

#[test]
fn consoles_are_logged() {
    let host = Host::new();
    let log = host.path("logs/deep");
    host.run("panic", &["--log", log.to_str().unwrap()], &["true"])
        .says_thrice("kernel panic");
    let text = fs::read_to_string(log.join("console-1.log")).unwrap();
    // Those of all boots.
    let logged = text.matches("Unable to mount root fs").count();
    assert_eq!(logged, 3, "{text}");
    let options = ["--log", log.to_str().unwrap()];
    assert_eq!(host.run("", &options, &["true"]).status, Some(0));
    let text = fs::read_to_string(log.join("console-1.log")).unwrap();
    assert!(!text.contains("Unable"), "of an earlier run: {text}");
    host.run("", &["--log", "/dev/null/x"], &["true"])
        .says(125, "/dev/null/x");
}

#[test]
fn user_mode_linux_runs_the_command() {
    let host = Host::new();
    host.uml_machine("7.3.5");
    let options = ["--nodes", "2", "--each", "--memory", "512"];
    let words = ["sh", "-c", "echo out; exit $((RXE_CI_NODE * 2))"];
    let done = host.run_by("uml", "", &options, &words);
    assert_eq!(done.status, Some(2), "{done:?}");
    assert_eq!(done.out.lines().count(), 2, "{done:?}");
    let arguments = fs::read_to_string(host.path("fake/arguments-2")).unwrap();
    for wanted in ["mem=512M\n", "ncpus=2\n", ",mac=52:54:00:77:01:02,"] {
        assert!(arguments.contains(wanted), "{wanted} is not in {arguments}");
    }
    let folder = host.shared_folder();
    assert!(!folder.exists(), "{folder:?} is left");
}

#[test]
fn a_host_with_an_old_c_library() {
    let host = Host::new();
    host.uml_machine("7.3.5");
    host.run_by("uml", "library", &[], &["true"])
        .says(125, "needs a newer C library than this host has");
}

#[test]
fn user_mode_linux_takes_the_place_of_emulation() {
    let host = Host::new();
    let by = |program: &str| {
        let words = ["run", "--verbose", "--", "true"];
        let mut command = host.command(&words);
        let done = Done::of(command.env("RXE_CI_QEMU", program).output().unwrap());
        assert!(done.err.contains(": without KVM: "), "{done:?}");
        let by = [" by KVM", " by emulation", " by User Mode Linux"];
        let found: Vec<&str> = by.into_iter().filter(|by| done.err.contains(by)).collect();
        assert_eq!((found.len(), done.status), (1, Some(0)), "{done:?}");
        found[0]
    };
    let qemu = fake();
    let qemu = qemu.to_str().unwrap();
    // The fake prints nothing in a trial of KVM.
    assert_eq!(by(qemu), " by emulation");
    host.uml_machine("7.3.3");
    assert_eq!(by(qemu), " by User Mode Linux");
    assert_eq!(by("/no/qemu"), " by User Mode Linux");
    assert_eq!(host.run("", &[], &["true"]).status, Some(0));
    let arguments = fs::read_to_string(host.path("fake/arguments-1")).unwrap();
    assert!(arguments.contains("tcg"), "{arguments}");
}

#[test]
fn without_qemu() {
    let host = Host::new();
    let failed = |change: &dyn Fn(&mut Command), text: &str| {
        let mut command = host.command(&["run", "--accel", "tcg", "--", "true"]);
        change(&mut command);
        Done::of(command.output().unwrap()).says(125, text);
    };
    let empty = host.path("fake");
    failed(
        &|c| {
            c.env_remove("RXE_CI_QEMU").env("PATH", &empty);
        },
        "there is no qemu-system-x86_64 in PATH; install it",
    );
    failed(
        &|c| {
            c.env("RXE_CI_QEMU", "/no/qemu");
        },
        "/no/qemu cannot be executed",
    );
    failed(
        &|c| {
            c.env("RXE_CI_QEMU", "/bin/true");
        },
        "is not QEMU",
    );
    failed(
        &|c| {
            c.env("FAKE_VERSION", "QEMU emulator version 4.2.1");
        },
        "is version 4",
    );
}

#[test]
fn without_a_machine() {
    let host = Host::new();
    host.run("", &["--kernel", "7.2"], &["true"])
        .says(125, "no prepared machine of Linux 7.2");
    host.run("", &["--machine", "."], &["true"])
        .says(125, "no prepared machine in .;");
    let mut command = host.command(&["run", "--", "true"]);
    let done = Done::of(command.env_remove("RXE_CI_MACHINE").output().unwrap());
    if !Path::new("/usr/share/rxe-ci").exists() {
        done.says(125, "no prepared machine in out/ci, ");
        assert!(
            done.err
                .contains("/.cache/rxe-ci, /usr/share/rxe-ci; make one by `make ci-machine`"),
            "{done:?}"
        );
        // A relative path is ignored (XDG Base Directory Specification).
        for (caches, shown) in [
            ("/caches", "out/ci, /caches/rxe-ci, /usr"),
            ("caches", "/.cache/rxe-ci, /usr"),
        ] {
            let mut command = host.command(&["run", "--", "true"]);
            command
                .env_remove("RXE_CI_MACHINE")
                .env("XDG_CACHE_HOME", caches);
            Done::of(command.output().unwrap()).says(125, shown);
        }
        assert!(!host.path("project/caches").exists());
    }
    fs::write(host.path("machines/7.3.4+deb13-amd64/vmlinuz"), "cut").unwrap();
    host.run("", &[], &["true"])
        .says(125, "is incomplete: vmlinuz;");
}

#[test]
fn bad_arguments_have_the_status_of_errors() {
    let host = Host::new();
    for arguments in [
        &["run"][..],
        &["run", "ls"],
        &["run", "--nodes", "99", "--", "ls"],
        &["walk"],
        &[],
    ] {
        let done = Done::of(host.command(arguments).output().unwrap());
        assert_eq!(done.status, Some(125), "{arguments:?}");
        assert!(done.out.is_empty(), "{arguments:?}");
        // docs/ci.md says so.
        let asks_for_help = arguments.is_empty();
        assert!(
            asks_for_help || done.err.starts_with("error: ") && done.err.contains("'--help'"),
            "{done:?}"
        );
        assert!(!done.err.is_empty(), "{arguments:?}");
    }
    host.run("", &["--env", "1=2"], &["true"])
        .says(125, "--env: \"1\"");
    let mut command = host.command(&["run", "--", "true"]);
    Done::of(command.current_dir("/usr").output().unwrap()).says(125, "/usr cannot be mounted");
    let help = Done::of(host.command(&["run", "--help"]).output().unwrap());
    assert_eq!(help.status, Some(0));
    for wanted in ["RXE_CI_NODE", "~/.cache/rxe-ci", "Exit status"] {
        assert!(help.out.contains(wanted), "{wanted}");
    }
}

#[test]
fn machines_are_listed() {
    let host = Host::new();
    host.machine("7.2.12+deb13-amd64", "7.2");
    let list = |arguments: &[&str]| {
        Done::of(
            host.command(&[&["list"], arguments].concat())
                .output()
                .unwrap(),
        )
    };
    host.uml_machine("7.1.0");
    let lines: Vec<String> = list(&[]).out.lines().map(String::from).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[3].starts_with("7.1.0 ") && lines[3].contains(" uml "));
    assert!(
        lines[1].starts_with("7.3.4+deb13-amd64 ") && lines[2].starts_with("7.2.12+deb13-amd64 ")
    );
    assert!(lines[1].contains("9.8.7") && lines[1].ends_with("machines/7.3.4+deb13-amd64"));
    let json: serde_json::Value = serde_json::from_str(&list(&["--json"]).out).unwrap();
    assert_eq!(json[0]["kernel"], "7.3.4+deb13-amd64");
    assert_eq!(json[1]["module"], "9.8.7");
    assert_eq!(json[2]["kind"], "uml");
    fs::remove_file(host.path("machines/7.2.12+deb13-amd64/rxe_rs.ko")).unwrap();
    let done = list(&[]);
    assert_eq!(done.out.lines().count(), 3);
    done.says(0, "is incomplete: rxe_rs.ko");
    list(&["--machine", "/no"]).says(125, "no prepared machine in /no;");
    assert_eq!(list(&["--machine", "/no", "--json"]).out, "[]\n");
}

#[test]
fn pages_and_completions_are_generated() {
    let host = Host::new();
    let done = host.command(&["generate", "made"]).output().unwrap();
    assert!(done.status.success());
    for (file, wanted) in [
        ("man/rxe-ci.1", "rxe-ci"),
        ("man/rxe-ci-run.1", "boot\\-timeout"),
        ("completions/rxe-ci.bash", "--nodes"),
        ("completions/_rxe-ci", "--nodes"),
        ("completions/rxe-ci.fish", "nodes"),
    ] {
        let text = fs::read_to_string(host.path("project/made").join(file)).unwrap();
        assert!(text.contains(wanted), "{file}");
    }
}
