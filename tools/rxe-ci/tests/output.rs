// SPDX-License-Identifier: GPL-2.0
//! Runs `guest/output.sh`, by which machines pass the output of a command on, with a slow host.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What `guest/init` does with the two files: a command writes its output into the pipes. Its
/// processes see the folder in which they are.
const SCRIPT: &str = r#"
. "$1"
exec 7>&1 8>&2
copy_output . 7 8
(exec 7>&- 8>&-; exec bash -c "$2") >out 2>err
touch ended
finish_output
printf TOKEN >&7
printf TOKEN >&8
touch finished
"#;
/// More than the host's pipe and the one in the machine have room for.
const MUCH: usize = 300_000;
/// Longer than processes that hold the pipes open may do so.
const PAUSE: Duration = Duration::from_secs(4);

/// The shell that runs a command, in a folder of its own.
struct Machine {
    dir: TempDir,
    child: Child,
}

impl Machine {
    fn start(command: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/output.sh");
        let child = Command::new("bash")
            .args(["-c", SCRIPT, "bash"])
            .arg(script)
            .arg(command)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { dir, child }
    }

    fn has(&self, file: &str) -> bool {
        self.dir.path().join(file).exists()
    }

    /// Reads slowly, so that the pipes are full, until the command has ended; then not at all for
    /// some seconds; then the rest.
    fn read_slowly(&mut self) -> String {
        let mut host = self.child.stdout.take().unwrap();
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while !self.has("ended") {
            let count = host.read(&mut buffer).unwrap();
            all.extend_from_slice(&buffer[..count]);
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(PAUSE);
        assert!(!self.has("finished"), "nothing waits for the host");
        host.read_to_end(&mut all).unwrap();
        self.child.wait().unwrap();
        String::from_utf8(all).unwrap()
    }

    /// Reads all; returns the folder as well.
    fn read(self) -> (String, String, TempDir) {
        let done = self.child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(done.stdout), text(done.stderr), self.dir)
    }
}

#[test]
fn nothing_is_lost_on_the_way_to_a_slow_host() {
    let write = format!("head -c {MUCH} /dev/zero | tr '\\0' x; echo end");
    let wanted = format!("{}end\nTOKEN", "x".repeat(MUCH));
    // Processes that are left behind: none; one that does nothing; one through which all goes.
    for command in [
        write.clone(),
        format!("sleep 600 & {write}"),
        format!("exec > >(cat); {write}"),
    ] {
        let text = Machine::start(&command).read_slowly();
        assert_eq!(text.len(), wanted.len(), "{command}");
        assert!(text == wanted, "{command}");
    }
}

#[test]
fn processes_that_are_left_behind_have_a_time_limit() {
    for command in [
        "sleep 600 & echo $! >left; echo end; echo end >&2",
        "setsid sh -c 'echo $$ >left; exec sleep 600' & until [ -s left ]; do sleep 0.01; done; \
         echo end; echo end >&2",
        "(sleep 0.5; echo end; echo end >&2; echo $BASHPID >left; exec sleep 600) &",
    ] {
        let (out, err, dir) = Machine::start(command).read();
        assert_eq!((&*out, &*err), ("end\nTOKEN", "end\nTOKEN"), "{command}");
        let pid = fs::read_to_string(dir.path().join("left")).unwrap();
        let start = Instant::now();
        while Path::new("/proc").join(pid.trim()).exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "{command}");
            thread::sleep(Duration::from_millis(10));
        }
    }
    let (out, _, _dir) = Machine::start("yes &").read();
    assert!(out.starts_with("y\ny\n") && out.ends_with("TOKEN"));
}
