# SPDX-License-Identifier: GPL-2.0
"""Tests rxe-ci with the machines that ci-machine.py made. Needs QEMU, so it runs inside the toolchain root. KERNEL: the series of the kernel.

Ci        commands in one machine and in two, those of the workflow, statuses, a kernel panic, the time to the first command, a host without
          a network and a user other than root: a step of `make test`
Uml       the same in User Mode Linux, where they take less time, and some more: a step of `make test-suites`
Crates    the tests of Rust crates that build-crates.py has built, and of two of their examples: a step of `make test-suites`
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
sys.path.insert(0, str(HERE))
import image  # noqa: E402
import machine  # noqa: E402
import workflow  # noqa: E402

PROGRAM = CLONE / "out/tools/rxe-ci"
# Emulated machines beside another job need more time.
BOOT_SECONDS = 300
COMMAND_SECONDS = 150
# The first command of a run has ended after this time on a host that has nothing else to do.
FIRST_COMMAND_SECONDS = 30
# How often that may be tried: another job of the host can be in the way of one run.
TRIES = 3
# The processor time of a calibration.
SPIN_SECONDS = 0.5
# A user that is not root, owns nothing, and has no capabilities nor a way to get some.
NOBODY = 65534
UNPRIVILEGED = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
MNT_DETACH = 2
# Lines in each direction.
MUCH = 100000
# How long a reader pauses, which is longer than processes that hold the output open may do so (tools/rxe-ci/guest/output.sh), in seconds.
READER_PAUSES = 5

# A line of rxe-ci about machines that did not boot.
AGAIN = re.compile(r"^rxe-ci: .*; booting again \(.*\n", re.MULTILINE)

# A server in the second machine, a client in the first one. The programs exchange their parameters over IPv4 in any case.
PINGPONGS = """
set -e
pair() { # GID-INDEX
	on 2 ibv_rc_pingpong -d "$RXE_CI_DEVICE" -g "$1" -n 200 >/dev/null &
	server=$!
	on 2 sh -c 'until ss -Hltn "sport = 18515" | grep -q .; do sleep 0.1; done'
	ibv_rc_pingpong -d "$RXE_CI_DEVICE" -g "$1" -n 200 node2 | grep -o '200 iters'
	wait $server
}
pair "$RXE_CI_GID_IPV4"
pair "$RXE_CI_GID_IPV6"
on 2 rping -s -a "$RXE_CI_IPV4_2" -C 10 &
server=$!
on 2 sh -c 'until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done'
rping -c -a "$RXE_CI_IPV4_2" -C 10 && echo rping
wait $server
"""
# Addresses of IPv6 are lost while a device is down.
NETWORK = """
set -e
for node in 1 2; do
	on $node sh -c 'ip link set eth0 mtu 4200; ip link set eth0 down; ip link set eth0 up'
done
until ping -c 1 -W 1 node2 >/dev/null; do sleep 0.1; done
ibv_devinfo -d "$RXE_CI_DEVICE" | sed -n 's/.*\\(active_mtu:\\)\\t*/\\1 /p'
pingpong() {
	gid=$(cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l "ffff:0a4d:000$RXE_CI_NODE" * | head -n 1)
	ibv_rc_pingpong -d "$RXE_CI_DEVICE" -g "$gid" -n 200 $1
}
on 2 bash -c "$(declare -f pingpong); pingpong" >/dev/null &
server=$!
on 2 sh -c 'until ss -Hltn "sport = 18515" | grep -q .; do sleep 0.1; done'
pingpong "$RXE_CI_IPV4_2" | grep -o '200 iters'
wait $server
"""
# What `on` passes on.
ON = """
status() { "$@"; echo "status $?"; }
status on 2 sh -c 'hostname; pwd; echo "$RXE_CI_NODE $RXE_CI_IPV6 $WORD"; echo error >&2; exit 3'
status on 2 sh -c 'kill -KILL $$'
status on 2 no-such-command
status on 1 hostname
status on 3 true
echo line | { on 1 cat; on 2 cat; cat; }
on 2 sleep 1234 &
on 2 sh -c 'until pgrep -fx "sleep 1234"; do sleep 0.1; done' >/dev/null
kill $!
on 2 sh -c 'while pgrep -fx "sleep 1234"; do sleep 0.1; done' >/dev/null && echo killed
"""


# The tests of all crates; CRATE/PROGRAM and the status of each.
CRATES = """
for program in */unit */test_*; do
	RUST_TEST_THREADS=8 RUST_BACKTRACE=1 timeout 100 $program >&2
	echo "$program $?"
done
"""
# An example of each crate: within a machine, and between two.
EXAMPLES = """
ibverbs/loopback >&2 && echo loopback
on 2 sideway/cmtime -b "$RXE_CI_IPV4_2" >&2 &
server=$!
on 2 sh -c 'until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done'
sideway/cmtime -s "$RXE_CI_IPV4_2" -c 100 >&2 && echo connections
wait $server
"""


def slowness():
    """How many seconds this process takes for a second of processor time: 1 on a host with a processor to spare."""
    start, used = time.monotonic(), time.process_time()
    while time.process_time() - used < SPIN_SECONDS:
        pass
    return max(1, (time.monotonic() - start) / (time.process_time() - used))


def without_boots(err):
    """The standard error of rxe-ci without the lines about machines that it started again, which are no failure. They go to the log of the
    tests, in the form in which test.sh finds them."""
    for line in AGAIN.findall(err):
        print(f"\n# the machine is started again by rxe-ci:\n#   {line}", end="", file=sys.stderr, flush=True)
    return AGAIN.sub("", err)


class Machines(unittest.TestCase):
    """Runs commands in a folder, with the prepared machine."""
    @classmethod
    def setUpClass(cls):
        boot = image.ensure(os.environ.get("KERNEL") or None)
        works, _ = machine.probe_kvm(boot)
        cls.prepare(boot["RELEASE"], boot["RELEASE"], "kvm" if works else "tcg")

    @classmethod
    def prepare(cls, release, name, accel):
        """The machine of that name, what `uname -r` prints in it, and what runs it."""
        cls.release = release
        cls.machine = CLONE / "out/ci" / name
        cls.options = ["--accel", accel, "--machine", cls.machine, "--boot-timeout", str(BOOT_SECONDS)]

    def run_ci(self, options, *command, seconds=COMMAND_SECONDS, by=(), **more):
        """Runs a command within a time limit; returns its status and output. `by`: a program that starts rxe-ci, with its arguments."""
        done = subprocess.run([*by, PROGRAM, "run", *self.options, "--timeout", str(seconds), *options, "--", *command], cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=BOOT_SECONDS + seconds + 60,
                              **{"stdin": subprocess.DEVNULL, **more})
        return done.returncode, done.stdout, without_boots(done.stderr)


class Ci(Machines):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (CLONE / "out").mkdir(exist_ok=True)
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(dir=CLONE / "out", prefix="ci, test ")))

    def test_one_machine(self):
        """The kernel, the device, the folder, the streams and the status."""
        (self.folder / "input").write_text("from the host")
        with open(self.folder / "input") as stdin:
            status, out, err = self.run_ci(
                ["--stdin", "--env", "WORD=a b"], "sh", "-c",
                'uname -r; pwd; echo "$WORD"; cat input; cat; ibv_devinfo -d $RXE_CI_DEVICE | grep -c PORT_ACTIVE; '
                "ulimit -l; echo from the machine >output; echo error >&2; exit 7", stdin=stdin)
        self.assertEqual((out, err, status), (f"{self.release}\n{self.folder}\na b\nfrom the hostfrom the host1\nunlimited\n", "error\n", 7))
        self.assertEqual((self.folder / "output").read_text(), "from the machine\n")

    def test_words_that_are_no_utf8(self):
        """A word that ends with the first byte of a character of several, as one of Latin-1 may."""
        status, out, err = self.run_ci(["--env", b"WORD=caf\xe9", "--env", "NEXT=next"], "sh", "-c", 'printf "%s|" "$WORD" "$NEXT" "$@" | od -An -c',
                                       "sh", b"\xc3", "last")
        self.assertEqual((out.split(), status), ([*"caf", "351", *"|next|", "303", *"|last|"], 0), err)

    def test_two_machines(self):
        status, out, err = self.run_ci(["--nodes", "2"], "bash", "-c", PINGPONGS)
        self.assertEqual((out, status), ("200 iters\n200 iters\nrping\n", 0), err)

    def test_commands_on_another_machine(self):
        status, out, err = self.run_ci(["--nodes", "2", "--env", "WORD=a b"], "bash", "-c", ON)
        self.assertEqual(out.splitlines(), ["node2", str(self.folder), "2 fd77::2 a b", "status 3", "status 137", "status 127", "node1", "status 0",
                                            "status 125", "line", "killed"], err)
        self.assertEqual(status, 0)
        self.assertEqual(err.splitlines()[0], "error")

    def test_folder_behind_a_link(self):
        """The files of a folder that the shell has reached through a symbolic link have the path that it shows, in all machines."""
        folder = self.folder / "project"
        folder.mkdir()
        (folder / "script").write_text("#!/bin/sh\necho $RXE_CI_NODE; pwd; pwd -P\n")
        (folder / "script").chmod(0o755)
        link = self.folder / "other/link"
        link.parent.mkdir()
        link.symlink_to(folder)
        done = subprocess.run(["sh", "-c", 'cd "$1" && shift && exec "$@" "$PWD/script"', "sh", link, PROGRAM, "run", *self.options, "--nodes", "2",
                               "--timeout", str(COMMAND_SECONDS), "--", "sh", "-c", '"$1"; on 2 "$1"', "sh"],
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=BOOT_SECONDS + COMMAND_SECONDS)
        self.assertEqual((done.stdout, done.returncode), ("".join(f"{node}\n{link}\n{folder}\n" for node in (1, 2)), 0), done.stderr)

    def test_workflow(self):
        """The last steps of docs/rxe-ci-workflow.yml as they are, by the shell that the service calls, with tests of a project."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir=self.folder)))
        (folder / "tests").mkdir()
        (folder / "tests/run").write_text("#!/bin/sh\nibv_devices | grep -o rxe0\nexit 7\n")
        (folder / "tests/run").chmod(0o755)
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        steps = workflow.commands()
        for name, wanted, printed in (("Show the device", 0, "PORT_ACTIVE"), ("Test in one machine", 7, "rxe0\n"), ("Test between two machines", 0, "")):
            with self.subTest(name):
                done = subprocess.run(["bash", "-e", "-c", steps.pop(name)], cwd=folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, timeout=BOOT_SECONDS + COMMAND_SECONDS,
                                      env={**os.environ, "PATH": path, "HOME": str(folder), "RXE_CI_MACHINE": str(self.machine)})
                self.assertEqual(done.returncode, wanted, done.stderr)
                self.assertIn(printed, done.stdout)
        # selftest_workflow.py runs the others.
        self.assertEqual([text for text in steps.values() if "rxe-ci run" in text], [])

    def test_each_machine(self):
        status, out, err = self.run_ci(["--nodes", "2", "--each"], "sh", "-c", "echo $RXE_CI_IPV4; [ $RXE_CI_NODE = 1 ] || kill -SEGV $$")
        self.assertEqual((sorted(out.splitlines()), err, status), (["[1] 10.77.0.1", "[2] 10.77.0.2"], "", 139))

    def test_slow_reader(self):
        """Nothing is lost if the host does not read for some seconds when the command has ended, also if the command has left a process behind
        that holds the output open. Until then the host reads slowly, so that all on the way to it is full."""
        numbers = "".join(f"{number}\n" for number in range(1, MUCH + 1))
        for left in ("", "sleep 600 & "):
            with self.subTest(left=left):
                ended = self.folder / "ended"
                ended.unlink(missing_ok=True)
                command = f"{left}seq {MUCH}; touch ended; exit 7"
                with subprocess.Popen([PROGRAM, "run", *self.options, "--timeout", str(COMMAND_SECONDS), "--", "sh", "-c", command], cwd=self.folder,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
                    out = b""
                    while not ended.exists() and (data := os.read(child.stdout.fileno(), 4096)):
                        out += data
                        time.sleep(0.02)
                    time.sleep(READER_PAUSES)
                    rest, err = child.communicate(timeout=BOOT_SECONDS + COMMAND_SECONDS)
                self.assertEqual((len(out + rest), child.returncode), (len(numbers), 7), err)
                self.assertEqual((out + rest).decode(), numbers)

    def test_kernel_panic(self):
        """What the command has printed before arrives. The host may not have read it yet when the kernel panics, so that waits for the file."""
        command = "echo before; until [ -e seen ]; do sleep 0.1; done; echo c >/proc/sysrq-trigger; cat /dev/zero"
        with subprocess.Popen([PROGRAM, "run", *self.options, "--timeout", str(COMMAND_SECONDS), "--", "sh", "-c", command], cwd=self.folder,
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            out = child.stdout.readline()
            (self.folder / "seen").touch()
            rest, err = child.communicate(timeout=BOOT_SECONDS + COMMAND_SECONDS)
        self.assertEqual((out + rest, child.returncode), ("before\n", 125))
        self.assertIn("\nrxe-ci: kernel panic in machine 1: sysrq triggered crash;", err)

    def test_first_command(self):
        """With warm files the first command ends in time. A busy host gives this test a part of a processor, and more or less of it from one
        moment to the next: the limit grows by the factor by which a loop takes longer than its processor time, before or after the run, and
        the best of some runs counts. Something that takes longer by itself (a timeout, a device that does not come) is in all of them."""
        self.run_ci([], "true")
        tries = []
        for _ in range(TRIES):
            before, start = slowness(), time.monotonic()
            status, out, err = self.run_ci([], "echo", "first")
            took = time.monotonic() - start
            self.assertEqual((out, status), ("first\n", 0), err)
            limit = FIRST_COMMAND_SECONDS * max(before, slowness())
            tries.append(f"{took:.1f} s of {limit:.1f}")
            if took <= limit:
                break
        else:
            self.fail(", ".join(tries))
        print(f"the first command ended after {tries[-1]}", file=sys.stderr)

    def test_no_network(self):
        """In a network namespace whose only device, lo, is down, so that no packet can leave, not even to this host."""
        by = ("unshare", "--net")
        routes = subprocess.run([*by, "cat", "/proc/net/route", "/proc/net/if_inet6"], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(routes, "")
        status, out, err = self.run_ci(["--nodes", "2"], "sh", "-c", 'ping -c 1 -W 10 "$RXE_CI_IPV4_2" >&2 && rdma link show', by=by)
        self.assertEqual((out.split()[:4], status), (["link", "rxe0/1", "state", "ACTIVE"], 0), err)

    def test_not_root(self):
        """As a user without capabilities, who can read the machine and the program and write to a folder of its own."""
        top = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="rxe-ci-test-")))
        top.chmod(0o755)
        folder, machine_folder, program = top / "work", top / "machine", top / "rxe-ci"
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        shutil.copy(PROGRAM, program)
        # The clone may be in a folder that others cannot enter. The toolchain root has no mount(8).
        machine_folder.mkdir()
        libc = ctypes.CDLL(None, use_errno=True)
        self.addCleanup(libc.umount2, bytes(machine_folder), MNT_DETACH)
        for source, flags in ((bytes(self.machine), MS_BIND), (None, MS_BIND | MS_REMOUNT | MS_RDONLY)):
            self.assertEqual(libc.mount(source, bytes(machine_folder), None, flags, None), 0, os.strerror(ctypes.get_errno()))
        # Not every user has access to /dev/kvm.
        accel = "uml" if "uml" in self.options else "tcg"
        done = subprocess.run([*UNPRIVILEGED, program, "run", "--machine", machine_folder, "--accel", accel, "--boot-timeout", str(BOOT_SECONDS),
                               "--timeout", str(COMMAND_SECONDS), "--", "sh", "-c",
                               "id -u; ibv_devinfo -d $RXE_CI_DEVICE | grep -c PORT_ACTIVE; echo from the machine >output"],
                              cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(folder)}, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=BOOT_SECONDS + COMMAND_SECONDS + 60)
        self.assertEqual((done.stdout, done.returncode), ("0\n1\n", 0), done.stderr)
        output = folder / "output"
        self.assertEqual((output.read_text(), output.stat().st_uid), ("from the machine\n", NOBODY))

    def test_list(self):
        done = subprocess.run([PROGRAM, "list", "--machine", CLONE / "out/ci"], check=True, text=True, stdout=subprocess.PIPE)
        self.assertIn(self.release, done.stdout)

    def test_checksums(self):
        done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.machine, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((done.stdout, done.returncode), ("", 0))


class Uml(Ci):
    @classmethod
    def prepare(cls, release, name, accel):
        folders = [path.name for path in (CLONE / "out/ci").glob("*-uml")]
        (name,) = [name for name in folders if release.startswith(name.removesuffix("-uml") + "+")]
        super().prepare(name.removesuffix("-uml"), name, "uml")

    def test_network_is_set_anew(self):
        """The MTU is raised, and the device goes down and comes up: the connection is there again."""
        status, out, err = self.run_ci(["--nodes", "2"], "bash", "-c", NETWORK)
        self.assertEqual((out, status), ("active_mtu: 4096 (5)\n200 iters\n", 0), err)

    def test_much_output_and_input(self):
        (self.folder / "much").write_text("".join(f"{number}\n" for number in range(MUCH)))
        with open(self.folder / "much") as stdin:
            status, out, err = self.run_ci(["--stdin"], "sh", "-c", f"cat; seq {MUCH} >&2", stdin=stdin)
        self.assertEqual((len(out), len(err), status), ((self.folder / "much").stat().st_size, sum(len(f"{n}\n") for n in range(1, MUCH + 1)), 0))

    def test_killed(self):
        """When rxe-ci is killed, its machine ends."""
        ready = self.folder / "ready"
        child = subprocess.Popen([PROGRAM, "run", *self.options, "--", "sh", "-c", "touch ready; exec sleep 600"], cwd=self.folder)
        self.wait_for(ready.exists, BOOT_SECONDS)
        (pid,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        child.kill()
        child.wait()
        self.wait_for(lambda: not Path("/proc", pid).exists() or Path("/proc", pid, "stat").read_text().split(") ")[1][0] == "Z", 30)

    def wait_for(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, "in vain")
            time.sleep(0.1)


class Crates(Machines):
    folder = CLONE / "out/crates"

    def test_tests(self):
        programs = sorted(str(path.relative_to(self.folder)) for path in self.folder.glob("*/*") if path.name == "unit" or path.match("test_*"))
        self.assertGreater(len(programs), 5)
        status, out, err = self.run_ci([], "sh", "-c", CRATES, seconds=900)
        self.assertEqual((sorted(out.splitlines()), status), ([f"{program} 0" for program in programs], 0), err)

    def test_examples(self):
        status, out, err = self.run_ci(["--nodes", "2"], "sh", "-c", EXAMPLES)
        self.assertEqual((out, status), ("loopback\nconnections\n", 0), err)


if __name__ == "__main__":
    unittest.main()
