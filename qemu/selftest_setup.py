# SPDX-License-Identifier: GPL-2.0
"""Tests of the set-up on hosts where it cannot work: without root, disk space, a package or the network, interrupted, with a KVM that does
not work. They run the real scripts with a cache of their own; programs that download are replaced by fakes."""
import contextlib
import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
import zipfile
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from faked import MMDEBSTRAP, Faked, setUpModule  # noqa: E402, F401
import machine  # noqa: E402
from vm import wheels  # noqa: E402

SCRIPTS = ("bootstrap.sh", "suite-module.sh", "build-deb.sh", "build-module.sh", "in-root.sh", "lib.sh", "roots.sh", "check-kdir.sh", "build-tools.sh", "clean-cache.sh", "fetch-crates.sh", "root-recipe", "root-packages.txt")
NOBODY = 65534


class Shell(Faked):
    """A test with a copy of the shell scripts."""

    def setUp(self):
        super().setUp()
        (self.folder / "clone/qemu").mkdir(parents=True)
        for name in SCRIPTS:
            shutil.copy(HERE / name, self.folder / "clone/qemu" / name)
        self.fake("apt-get", "")
        self.fake("mmdebstrap", MMDEBSTRAP)

    def start(self, script="bootstrap.sh", *arguments, **options):
        environment = {"PATH": os.environ["PATH"], "RXE_RS_CACHE": str(self.cache), **options.pop("environment", {})}
        # If the tests run in the background of a shell they ignore SIGINT, which child processes would inherit.
        return subprocess.Popen(["env", "--default-signal=INT", "/bin/sh", self.folder / "clone/qemu" / script, *arguments], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True, **options)

    def end(self, process):
        said, _ = process.communicate(timeout=60)
        return process.returncode, said.splitlines()


class TargetFolders(Shell):
    """Clones that use cargo's target folders one after the other, and at the same time."""

    def setUp(self):
        super().setUp()
        self.clone = self.folder / "clone"
        (self.clone / "tools/one").mkdir(parents=True)
        (self.clone / "Cargo.toml").write_text("[workspace]\nmembers = [\"tools/one\"]\n")
        (self.clone / "tools/one/Cargo.toml").write_text('[package]\nname = "one"\n\n[[test]]\nname = "crate"\n')
        (self.clone / "use.sh").write_text('here=$(dirname "$0")/qemu\n. "$here/lib.sh"\nown_targets\necho "${targets#$cache/}"\n'
                                           'while [ -e "$here/../keep" ]; do sleep 0.05; done\n')

    def use(self):
        """The target folders that a script of the clone takes."""
        status, said = self.end(self.start("../use.sh"))
        self.assertEqual(status, 0, said)
        (folder,) = said
        self.assertEqual((self.cache / folder / "clone").read_text(), f"{self.clone}\n")
        return folder

    def other(self, targets="target", lock=fcntl.LOCK_SH):
        """Lets another clone use target folders until the file that is returned is closed."""
        (self.cache / targets).mkdir(parents=True, exist_ok=True)
        (self.cache / targets / "clone").write_text("/elsewhere\n")
        file = open(self.cache / targets / "users.lock", "w")
        fcntl.flock(file, lock)
        return file

    def test_results_of_other_clones_are_not_used(self):
        """The results of this workspace's packages are dropped if another clone used the folders last, those of crates are kept."""
        prints = [self.cache / "target" / kind / profile / ".fingerprint" / name
                  for kind in ("1.85", "1.85/aarch64-unknown-linux-gnu", "host") for profile in ("debug", "release") for name in ("one-0123", "crate-0123")]

        def left():
            for folder in prints:
                folder.mkdir(parents=True, exist_ok=True)
            self.assertEqual(self.use(), "target")
            return {folder.name for folder in prints if folder.exists()}
        self.other().close()
        self.assertEqual(left(), {"crate-0123"})
        self.assertEqual(left(), {"one-0123", "crate-0123"})

    def test_clones_that_build_at_the_same_time(self):
        """A clone leaves the folders alone that another one uses, and takes the next."""
        results = self.cache / "target/1.85/debug/.fingerprint/one-0123"
        results.mkdir(parents=True)
        with self.other():
            self.assertEqual(self.use(), "target.2")
            self.assertTrue(results.exists())
            self.assertEqual((self.cache / "target/clone").read_text(), "/elsewhere\n")
            with self.other("target.2"), self.other("target.3"), self.other("target.4"):
                status, said = self.end(self.start("../use.sh"))
                self.assertEqual((status, len(said)), (1, 1), said)
                self.assertIn("other clones build at the same time", said[0])
        self.assertEqual(self.use(), "target")
        self.assertFalse(results.exists())

    def test_scripts_of_one_clone_share_folders(self):
        keep = self.clone / "keep"
        keep.touch()
        first = self.start("../use.sh")
        self.addCleanup(keep.unlink, missing_ok=True)
        self.assertEqual(first.stdout.readline(), "target\n")
        second = self.start("../use.sh")
        self.assertEqual(second.stdout.readline(), "target\n")
        keep.unlink()
        self.assertEqual([self.end(process) for process in (first, second)], [(0, [])] * 2)


class Places(Shell):
    """Scripts that run in the toolchain root, with places that it does not have."""

    def setUp(self):
        super().setUp()
        (self.folder / "clone/qemu/in-root.sh").write_text('#!/bin/sh\necho "in the root: $*"\n')

    def said(self, *arguments):
        status, said = self.end(self.start(*arguments))
        self.assertEqual(len(said), 1, said)
        self.assertEqual(status, 1 if said[0].startswith("error: ") else 0)
        return said[0]

    def test_results_would_be_lost(self):
        for script, arguments in (("build-deb.sh", ("-m", f"{self.cache}/rxe_rs.ko")), ("build-module.sh", ())):
            self.assertIn("does not have /home/me/results; name a place in", self.said(script, *arguments, "-o", "/home/me/results"))
            # Relative to the current folder, which the root does not have either.
            self.assertIn("does not have results; name a place in", self.said(script, *arguments, "-o", "results"))
            self.assertIn("does not have clone/../results;", self.said(script, *arguments, "-o", "clone/../results"))
            for place in (f"{self.cache}/results", f"{self.folder}/clone/out/results", "/tmp/results"):
                self.assertIn(f"in the root: {self.folder}/clone/qemu/{script}", self.said(script, *arguments, "-o", place))

    def test_what_is_not_there(self):
        self.assertIn("does not have /home/me/rxe_rs.ko;", self.said("build-deb.sh", "-m", "/home/me/rxe_rs.ko"))
        self.assertIn("does not have /home/me/tools;", self.said("build-deb.sh", "-m", "/tmp/rxe_rs.ko", "-t", "/home/me/tools"))
        self.assertIn("does not have /usr;", self.said("build-module.sh", "/usr"))


class Bootstrap(Shell):
    def refused(self, *words, lines=1, **options):
        """Asserts that the script fails, that the last line has all `words`, and that no toolchain root is left."""
        status, said = self.end(self.start(**options))
        self.assertEqual(status, 1, said)
        self.assertLessEqual(len(said), lines, said)
        self.assertTrue(said[-1].startswith("error: "), said)
        for word in words:
            self.assertIn(word, said[-1])
        self.assertEqual(self.roots(), [])

    def roots(self):
        return sorted(self.cache.glob("root-*")) if self.cache.is_dir() else []

    def left_overs(self):
        return sorted(self.cache.glob("tmp-*"))

    def succeeds(self):
        status, said = self.end(self.start())
        self.assertEqual(status, 0, said)
        root, = self.roots()
        self.assertTrue((root / ".complete").exists())
        self.assertEqual(self.left_overs(), [])
        return said

    def test_without_root(self):
        self.refused("needs root", "Run the same command with sudo", user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertFalse(self.cache.exists())
        # Entering a root that is ready needs root, too.
        self.succeeds()
        status, said = self.end(self.start("in-root.sh", "true", user=NOBODY, group=NOBODY, extra_groups=[]))
        self.assertEqual((status, len(said)), (1, 1), said)
        self.assertRegex(said[0], r"^error: .* needs root\. .* sudo")

    def test_termination(self):
        """What runs in the root ends with the script that entered it, although unshare ignores SIGTERM."""
        self.succeeds()
        self.fake("unshare", "trap '' TERM; echo $$; exec sleep 1000")
        script = self.start("in-root.sh", "true")
        self.addCleanup(script.stdout.close)
        state = Path(f"/proc/{int(script.stdout.readline())}/stat")
        script.terminate()
        self.assertEqual(script.wait(10), -signal.SIGTERM)
        for _ in range(100):
            # Nobody may wait for it.
            if not state.exists() or state.read_text().split()[2] == "Z":
                return
            time.sleep(0.1)
        self.fail("it still runs")

    def test_without_apt(self):
        self.missing("apt-get")
        self.refused("Debian 12 or 13", "apt")

    def test_without_disk_space(self):
        self.small_disk()
        self.refused(f"{self.cache} has 0 GB free", "14 GB", "RXE_RS_CACHE")
        self.assertEqual(self.calls("mmdebstrap"), [])

    def test_cache_folder_cannot_be_created(self):
        self.cache.write_text("a file")
        self.refused("cannot create the cache folder", "RXE_RS_CACHE", lines=2)

    def test_paths_that_kernel_makefiles_do_not_support(self):
        self.cache = self.folder / "a cache"
        self.refused("must not contain spaces", "RXE_RS_CACHE")

    def test_missing_package(self):
        self.missing("mmdebstrap")
        self.fake("apt-get", "echo E: Unable to locate package mmdebstrap >&2; [ $1 != install ]")
        self.refused("could not install mmdebstrap", "run the same command again", lines=9)
        self.assertIn("mmdebstrap", self.calls("apt-get install")[0])

    def test_no_network(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "exit 1")
        self.refused("mmdebstrap failed", "run the same command again", lines=3)
        self.assertEqual(self.left_overs(), [])
        self.fake("mmdebstrap", MMDEBSTRAP)
        self.succeeds()

    def test_shows_progress(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "echo I: downloading; echo I: unpacking >&2")
        said = self.succeeds()
        self.assertLess(said.index("I: downloading"), said.index("I: unpacking"))

    def test_second_run_does_nothing(self):
        self.succeeds()
        for name in ("mmdebstrap", "apt-get"):
            self.fake(name, "exit 1")
        before = len(self.calls(""))
        self.assertEqual(self.succeeds(), [])
        self.assertEqual(len(self.calls("")), before)

    def test_mirror_of_the_host_is_used(self):
        self.fake("apt-get", "echo 'Packages|Debian|Debian|http://mirror.invalid/debian/'")
        self.succeeds()
        lines = (self.folder / "sources").read_text().splitlines()
        self.assertEqual([line.split()[1] for line in lines], ["http://mirror.invalid/debian/"] * 3)
        self.assertEqual([line.split()[2] for line in lines], ["trixie", "trixie-updates", "trixie-backports"])

    def test_architectures(self):
        """The root has libraries of arm64, and apt in it lists packages for amd64."""
        self.succeeds()
        self.assertIn("--architectures=amd64,arm64", self.calls("mmdebstrap")[0])
        self.assertIn("libc6-dev:arm64,", self.calls("mmdebstrap")[0])
        self.assertEqual((self.roots()[0] / "etc/apt/apt.conf").read_text(), 'APT::Architectures "amd64";\n')

    def test_interrupted(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "trap 'exit 1' INT; touch $state/started; sleep 60 & wait")
        for sent in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(signal=sent):
                process = self.start()
                while not (self.folder / "started").exists():
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                (self.folder / "started").unlink()
                os.killpg(process.pid, sent)
                status, said = self.end(process)
                self.assertEqual(status, 130 if sent == signal.SIGINT else -sent, said)
                self.assertEqual(self.roots(), [])
                self.assertEqual(len(self.left_overs()), 0 if sent == signal.SIGINT else 1)
        self.fake("mmdebstrap", MMDEBSTRAP)
        self.succeeds()

    def test_two_at_once(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "sleep 1")
        said = [line for process in (self.start(), self.start()) for line in self.end(process)[1]]
        self.assertEqual(sum("another set-up is running" in line for line in said), 1, said)
        self.assertEqual(len(self.calls("mmdebstrap")), 1)
        self.succeeds()


class Tools(Shell):
    """cargo's output about downloads and builds is shown, and crates are not fetched again."""
    CARGO = """
case "$*" in
*--offline*) [ $1 != fetch ] || [ -e $state/fetched ] || exit 1 ;;
*) [ ! -e $state/cut ] || { echo "error: no network" >&2; exit 1; }; echo " Downloading clap" >&2; touch $state/fetched ;;
esac
[ $1 != build ] || { echo "   Compiling rxectl" >&2; exit 1; }
"""

    def build(self):
        return self.build_for("amd64")

    def build_for(self, *architecture):
        status, said = self.end(self.start("build-tools.sh", "-a", *architecture, environment={"RXE_IN_ROOT": "1"}))
        self.assertNotEqual(status, 0)
        return said

    def test_shows_progress(self):
        self.fake("cargo", self.CARGO)
        self.assertEqual(self.build(), ["==> fetching the crates of Cargo.lock", " Downloading clap", "   Compiling rxectl"])
        self.assertEqual(self.build(), ["   Compiling rxectl"])

    def test_no_network(self):
        self.fake("cargo", self.CARGO)
        (self.folder / "cut").touch()
        self.assertIn("check the network, then run the same command again", self.build()[-1])
        self.assertEqual(self.calls("cargo build"), [])

    def test_for_another_architecture(self):
        """All is built for arm64, and rxectl, which generates its pages, for this machine as well."""
        self.fake("cargo", "")
        self.build_for("arm64")
        calls = self.calls("cargo build")
        self.assertEqual([call for call in calls if "--target aarch64-unknown-linux-gnu" not in call], [calls[-1]])
        self.assertTrue(calls[-1].endswith(" -p rxectl"), calls)
        self.assertTrue(any("-p rxectl" in call and "-p librxe_rs" in call for call in calls[:-1]), calls)
        self.assertFalse(any("rxe-ci" in call for call in calls), calls)

    def test_unknown_architecture(self):
        for arguments in (["mips"], ["arm64", "more"]):
            self.assertEqual(self.build_for(*arguments), ["error: usage: build-tools.sh [-a amd64 | -a arm64]"])


class Wheels(Faked):
    """The Python packages of suites, by the machine's own pip."""

    def setUp(self):
        super().setUp()
        for patch in (mock.patch.object(wheels, "CACHE", self.folder), mock.patch.dict(os.environ, PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1")):
            patch.start()
            self.addCleanup(patch.stop)

    def test_no_network(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            wheels.ensure("example==1.0")
        self.assertRegex(said.getvalue(), "pip cannot download example==1.0: .*example==1.0; check the network, then run the same command again$")
        self.assertEqual(list((self.folder / "wheels").iterdir()), [])

    def test_downloaded_once(self):
        """Nor is the network needed again."""
        shop = self.folder / "shop"
        shop.mkdir()
        with zipfile.ZipFile(shop / "example-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("example.py", "number = 5\n")
            wheel.writestr("example-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
            wheel.writestr("example-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr("example-1.0.dist-info/RECORD", "")
        with mock.patch.dict(os.environ, PIP_FIND_LINKS=str(shop)):
            folder = wheels.ensure("example==1.0")
        self.assertEqual((folder / "example.py").read_text(), "number = 5\n")
        self.assertEqual(wheels.ensure("example==1.0"), folder)


class Runs(Shell):
    """make test, with fakes in place of all tests: one fails in the first run."""
    FAKE = """#!/bin/sh
        folder=$(dirname "$0")/../..
        case "$0 $*" in
        */in-root.sh*" show "*) echo SERIES=7.3 ;;
        */in-root.sh*unittest*) cat "$folder/says" 2>/dev/null; [ -e "$folder/failed" ] || { touch "$folder/failed"; false; } ;;
        */in-root.sh*"cargo test"*) while [ -e "$folder/wait" ]; do touch "$folder/waits"; sleep 0.05; done ;;
        esac"""

    def setUp(self):
        super().setUp()
        self.missing("cargo")
        shutil.copy(HERE / "test.sh", self.folder / "clone/qemu")
        shutil.copy(HERE / "last_words.awk", self.folder / "clone/qemu")
        for name in ("in-root.sh", "fetch-crates.sh", "lint.sh"):
            (self.folder / "clone/qemu" / name).write_text(self.FAKE)
            (self.folder / "clone/qemu" / name).chmod(0o755)

    def check(self):
        return self.start("test.sh", "check", environment={"DRIVER": "rdma_rxe", "RXE_CONFINED": "1"})

    def test_two_at_once(self):
        """A second run in a clone would remove what the first one has found."""
        wait = self.folder / "wait"
        wait.touch()
        self.addCleanup(wait.unlink, missing_ok=True)
        first = self.check()
        while not (self.folder / "waits").exists():
            self.assertIsNone(first.poll())
            time.sleep(0.05)
        second = self.check()
        if not second.stdout.readline().startswith("error: "):
            wait.unlink()
        statuses = [self.end(second)[0]]
        wait.unlink(missing_ok=True)
        status, said = self.end(first)
        self.assertEqual(said[-1], "3 passed, 1 failed", said)
        self.assertEqual([*statuses, status], [1, 1])
        # The next one is not kept from running.
        self.assertEqual(self.end(self.check())[1][-1], "4 passed, 0 failed")

    def test_ends_with_the_last_words_of_failed_tests(self):
        """They say why a test failed. The counters of the devices and other output of the test can be found further up."""
        lines = "".join(f"# step {n}\n" for n in range(30))
        counters = "".join(f"# rxe0 counter_{n}:1\n" for n in range(50))
        (self.folder / "says").write_text(
            "# the machine is started again, because:\n#   it failed\n"
            f"not ok 1 a.one # 3.0 s\n{lines}# FAIL: unequal\n# counters in the machine of a:\n{counters}# artefacts: out/failed/a.one\nok 2 a.two # 1 s\n"
            "not ok 3 a.three # not run\n# 1 passed, 2 failed, 0 skipped\n")
        said = self.end(self.check())[1]
        end = said[said.index("failed in harness: not ok 1 a.one"):]
        self.assertEqual(end[:-2], [
            "failed in harness: not ok 1 a.one", "failed in harness: not ok 3 a.three",
            "harness: not ok 1 a.one # 3.0 s", *(f"harness: # step {n}" for n in range(26, 30)), "harness: # FAIL: unequal",
            "harness: not ok 3 a.three # not run", "harness: the machine is started again, because"])
        self.assertEqual(end[-1], "4 passed, 2 failed")


class Clippy(Shell):
    """make clippy, with a fake in place of the build: it compiles what has not been compiled yet."""

    def build(self, text):
        script = self.folder / "clone/qemu/build-module.sh"
        script.write_text(f'#!/bin/sh\nmkdir -p "$2"\n[ -e "$2/rxe_rs.o" ] || {{ {text}\n}}\ntouch "$2/rxe_rs.o"\n')
        script.chmod(0o755)

    def setUp(self):
        super().setUp()
        shutil.copy(HERE / "lint.sh", self.folder / "clone/qemu")
        (self.folder / "clone/out").mkdir()
        (self.folder / "clone/qemu/kernel.py").write_text("#!/bin/sh\necho SERIES=7.3\n")
        (self.folder / "clone/qemu/kernel.py").chmod(0o755)
        self.fake("cargo", "")

    def check(self):
        return self.end(self.start("lint.sh", "clippy", environment={"RXE_IN_ROOT": "1", "KERNEL": "7.3"}))[0]

    def test_a_complaint_remains_until_it_is_mended(self):
        self.build('echo "warning: this is wrong"')
        self.assertEqual([self.check() for _ in range(2)], [1, 1])
        self.build("echo compiled >>$0.done")
        self.assertEqual([self.check() for _ in range(2)], [0, 0])
        # What is up to date is not compiled again.
        self.assertEqual((self.folder / "clone/qemu/build-module.sh.done").read_text(), "compiled\n")

    def test_a_build_that_fails(self):
        self.build('echo "make: *** [rxe_rs.o] Error 1"; exit 2')
        self.assertEqual(self.check(), 1)


class Suites(Shell):
    """make module KERNEL=sid: the kernel of another suite. Instead of entering the tree of that suite, commands are recorded."""
    RELEASE = "7.4.1+deb14-amd64"
    MIRROR = "case $1 in indextargets) echo 'Packages|Debian|Debian|http://near.invalid/debian' ;; esac"
    TREE = MMDEBSTRAP + f"""
        mkdir -p $target/usr/src/linux-headers-7.4.1+deb14-common $target/usr/src/linux-headers-{RELEASE}
        echo 'CONFIG_RUSTC_VERSION_TEXT="rustc 1.97.1 (8bab26f4f 2026-07-14)"' >$target/usr/src/linux-headers-{RELEASE}/.config"""

    def setUp(self):
        super().setUp()
        self.fake("apt-get", self.MIRROR)
        self.fake("mmdebstrap", self.TREE)
        self.in_root()

    def in_root(self, commands="", rustc="1.97.1"):
        """What a command in the tree of a suite does, and which rustc it has."""
        script = self.folder / "clone/qemu/in-root.sh"
        script.write_text(f'#!/bin/sh\necho "in ${{RXE_TOOLCHAIN_ROOT##*/}}: $*" | head -n 1 >>{self.folder}/calls\n'
                          f'[ "$1" != rustc ] || echo "rustc {rustc} (8bab26f4f 2026-07-14)"\n{commands}\n')
        script.chmod(0o755)

    def build(self, suite="sid"):
        status, said = self.end(self.start("suite-module.sh", suite))
        return status, said[-1]

    def test_another_suite(self):
        for suite in ("trixie", "", "bookworm"):
            status, said = self.build(suite)
            self.assertEqual(status, 1)
            self.assertRegex(said, "^error: .*testing sid experimental")
        self.assertEqual(self.calls("mmdebstrap"), [])

    def test_tree_source_and_module(self):
        status, said = self.build()
        self.assertEqual((status, said), (0, f"==> built out/sid/rxe_rs.ko for Linux {self.RELEASE}; it has not been run"))
        self.assertEqual((self.folder / "sources").read_text(), "deb http://near.invalid/debian sid main\n")
        call, = self.calls("mmdebstrap")
        for word in ("linux-headers-amd64,linux-source", "Acquire::Check-Valid-Until", "rust-src"):
            self.assertIn(word, call)
        _, prepared, made, examined = self.calls("in suite-sid")
        for words in ("kernel-tree", f"/usr/src/rxe_rs-{self.RELEASE} /usr/src/linux-headers-{self.RELEASE} {self.RELEASE}",
                      "/usr/src/linux-source-7.4.tar.xz"):
            self.assertIn(words, prepared)
        self.assertIn(f"kernel-tree make /usr/src/rxe_rs-{self.RELEASE} {self.RELEASE} M={self.folder}/clone MO={self.folder}/clone/out/sid modules", made)
        self.assertTrue(examined.endswith(f"panics.sh {self.folder}/clone/out/sid"), examined)
        self.assertEqual((self.folder / "clone/out/sid/release").read_text(), f"{self.RELEASE}\n")

    def test_files_of_the_caller(self):
        """mmdebstrap takes the lowest descriptors that are free, and its shell knows none above 9."""
        self.fake("mmdebstrap", self.TREE + '\necho "opens $(ls -l /proc/self/fd | grep -c of-the-caller)" >>$state/calls')
        with open(self.folder / "of-the-caller", "w") as file:
            source = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 20)
            status, said = self.end(self.start("suite-module.sh", "sid", close_fds=False,
                                               preexec_fn=lambda: [os.dup2(source, number) for number in range(3, 10)]))
            os.close(source)
        self.assertEqual(status, 0, said)
        self.assertEqual(self.calls("opens"), ["opens 0"])

    def test_second_run_brings_it_up_to_date(self):
        """A newer kernel is prepared in the same tree; without the network the one that is there is used."""
        self.build()
        tree = self.cache / "suite-sid/usr/src"
        self.in_root(f'case "$*" in *full-upgrade*) cp -r {tree}/linux-headers-{self.RELEASE} {tree}/linux-headers-7.10.2+deb14-amd64 ;; esac')
        self.assertEqual(self.build(), (0, "==> built out/sid/rxe_rs.ko for Linux 7.10.2+deb14-amd64; it has not been run"))
        self.assertEqual([path.name for path in tree.glob("rxe_rs-*")], ["rxe_rs-7.10.2+deb14-amd64.ready"])
        self.in_root('case "$*" in *full-upgrade*) exit 100 ;; esac')
        status, said = self.end(self.start("suite-module.sh", "sid"))
        self.assertEqual(status, 0, said)
        self.assertIn("may no longer be the newest", said[1])
        self.assertEqual(len(self.calls("mmdebstrap")), 1)

    def test_candidate_of_a_release(self):
        """As experimental has them before a series is released; a flavour is not taken for one."""
        self.build()
        tree = self.cache / "suite-sid/usr/src"
        for release in ("7.5-rc3-amd64", "7.6-rt-amd64", "7.6.1+deb14-cloud-amd64"):
            shutil.copytree(tree / f"linux-headers-{self.RELEASE}", tree / f"linux-headers-{release}")
        self.assertEqual(self.build(), (0, "==> built out/sid/rxe_rs.ko for Linux 7.5-rc3-amd64; it has not been run"))
        self.assertTrue(any("/usr/src/linux-source-7.5.tar.xz" in call for call in self.calls("in suite-sid")))

    def test_experimental_lacks_most_packages(self):
        self.assertEqual(self.build("experimental")[0], 0)
        self.assertEqual((self.folder / "sources").read_text(),
                         "deb http://near.invalid/debian sid main\ndeb http://near.invalid/debian experimental main\n")
        self.assertIn("linux-headers-amd64/experimental,linux-source/experimental sid ", self.calls("mmdebstrap")[0])
        self.fake("apt-get", "")
        shutil.rmtree(self.cache)
        status, said = self.build("experimental")
        self.assertEqual(status, 1)
        self.assertRegex(said, "^error: .*mirror.* experimental")
        self.assertEqual(self.build("testing")[0], 0)

    def test_another_rustc(self):
        """The suite may have a newer compiler than the one that built its kernel, whose symbols then have other names."""
        self.in_root(rustc="1.98.1")
        status, said = self.build()
        self.assertEqual(status, 3)
        self.assertRegex(said, r"^==> .* was built by rustc 1\.97\.1, and sid has rustc 1\.98\.1 now")
        self.assertEqual([call for call in self.calls("in suite-sid") if "kernel-tree" in call], [])

    def test_module_that_can_panic(self):
        self.in_root('case "$*" in *panics.sh*) echo "==> rxe_rs.o can reach the panics above"; exit 1 ;; esac')
        self.assertEqual(self.build(), (1, "==> rxe_rs.o can reach the panics above"))

    def test_fails(self):
        """A tree, a source or a module that cannot be made: one line says which, and a module of an earlier run does not stay."""
        self.fake("mmdebstrap", self.TREE + "\nexit 1")
        self.assertIn("mmdebstrap failed", self.build()[1])
        self.assertEqual(list(self.cache.glob("*suite-sid/*")), [])
        self.fake("mmdebstrap", self.TREE)
        self.in_root('case "$*" in *prepare*) echo "no rustc"; exit 1 ;; esac')
        status, said = self.build()
        self.assertEqual(status, 1)
        self.assertRegex(said, f"^error: the source of Linux {self.RELEASE.replace('+', '.')} could not be prepared")
        module = self.folder / "clone/out/sid/rxe_rs.ko"
        module.parent.mkdir(parents=True)
        module.touch()
        self.in_root('case "$*" in *" make "*) echo "error[E0432]"; exit 2 ;; esac')
        status, said = self.build()
        self.assertEqual(status, 1)
        self.assertRegex(said, "^error: rxe_rs does not build for Linux .* of Debian sid")
        self.assertFalse(module.exists())


class Trees(Shell):
    """make KDIR=: the message about a tree in which the module cannot be built says what it lacks."""

    def check(self):
        return self.end(self.start("check-kdir.sh", str(self.folder / "tree")))

    def test_each_part_that_is_missing(self):
        tree = self.folder / "tree"
        for part, text, words in (("Makefile", "", "is not a kernel source tree"), ("include/config/auto.conf", "CONFIG_RUST=y\n", "modules_prepare"),
                                  ("rust/libkernel.rmeta", "", "name a prepared source tree"), ("Module.symvers", "0\tx\ty\tz\n", "Module.symvers")):
            status, said = self.check()
            self.assertEqual((status, len(said)), (1, 1), said)
            self.assertTrue(said[0].startswith(f"error: KDIR={tree}"), said)
            self.assertIn(words, said[0])
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            (tree / part).write_text(text)
        self.assertEqual(self.check(), (0, []))
        # The module could be built, but would refuse to load.
        (tree / "include/config/auto.conf").write_text("CONFIG_RUST=y\nCONFIG_RDMA_RXE=y\n")
        status, said = self.check()
        self.assertEqual((status, len(said)), (1, 1), said)
        self.assertIn("CONFIG_RDMA_RXE=m", said[0])
        (tree / "include/config/auto.conf").write_text("CONFIG_RUST=y\nCONFIG_RDMA_RXE=m\n")
        self.assertEqual(self.check(), (0, []))


class CleanCache(Shell):
    OWN = ("cargo", "images", "kernels", "kvm-probe.json", "root-afa5f8e30d6d", "target", "target.2", "tmp", "tmp-root.17", ".lock-root",
           "uml-debug-7.3.4+deb13-amd64-e0c5f6cbf393", "lost+found")

    def clean(self, *names):
        """What `make distclean` says and leaves of a cache folder with these files."""
        for name in names:
            (self.cache / name).mkdir(parents=True)
            (self.cache / name / "file").write_text("")
        status, said = self.end(self.start("clean-cache.sh"))
        left = sorted(path.name for path in self.cache.iterdir()) if self.cache.exists() else None
        shutil.rmtree(self.cache, ignore_errors=True)
        return status, said, left

    def test_all_is_removed(self):
        self.assertEqual(self.clean(*self.OWN[:-1]), (0, [], None))
        self.assertEqual(self.clean(), (0, [], None))

    def test_mounted_disk(self):
        self.assertEqual(self.clean(*self.OWN), (0, [], ["lost+found"]))

    def test_files_of_others(self):
        status, said, left = self.clean(*self.OWN, "photos", "root")
        self.assertEqual((status, left), (1, sorted([*self.OWN, "photos", "root"])))
        self.assertRegex(said[0], f"^error: {self.cache} also has files of others: (photos root|root photos); nothing is removed")


class KvmTrial(Faked):
    """A machine may hang, abort or fail to boot even if there is a /dev/kvm. The result of the trial is kept until the host reboots."""

    def setUp(self):
        super().setUp()
        self.cache.mkdir()
        self.usable = self.enterContext(mock.patch.object(machine.os, "access", return_value=True))
        self.enterContext(mock.patch.dict(os.environ, RXE_ACCEL=""))
        self.enterContext(mock.patch.object(machine, "PROBE_SECONDS", 1))

    def trial(self):
        with self.heard():
            return machine.probe_kvm({"SERIES": "7.3", "VMLINUZ": "vmlinuz", "INITRD": "initrd"})

    def test_works(self):
        self.fake(machine.QEMU, "echo RXE-PROBE-OK")
        self.assertEqual(self.trial(), (True, "a trial boot worked"))

    def test_hangs(self):
        self.fake(machine.QEMU, "exec sleep 60")
        begin = time.monotonic()
        self.assertEqual(self.trial(), (False, "a trial boot under KVM hung for 1 s"))
        self.assertLess(time.monotonic() - begin, 30)

    def test_aborts_or_does_not_boot(self):
        for text in ("kill -ABRT $$", "echo error: internal error; exit 1", "echo Kernel panic"):
            with self.subTest(text=text):
                (self.cache / "kvm-probe.json").unlink(missing_ok=True)
                self.fake(machine.QEMU, text)
                self.assertEqual(self.trial(), (False, "a trial boot under KVM failed"))

    def test_tried_once_per_boot_of_the_host(self):
        self.fake(machine.QEMU, "exit 1")
        self.assertEqual(self.trial(), self.trial())
        self.assertEqual(len(self.calls(machine.QEMU)), 1)
        memo = self.cache / "kvm-probe.json"
        for text in (memo.read_text().replace('"boot_id": "', '"boot_id": "0'), "", "{", "{}"):
            memo.write_text(text)
            self.fake(machine.QEMU, "echo RXE-PROBE-OK")
            self.assertTrue(self.trial()[0])
        self.assertEqual(len(self.calls(machine.QEMU)), 5)

    def test_a_machine_does_not_boot_after_all(self):
        """That ends the use of KVM until the host boots, unless the user has asked for it."""
        self.fake(machine.QEMU, "echo RXE-PROBE-OK")
        self.assertTrue(self.trial()[0])
        with mock.patch.dict(os.environ, RXE_ACCEL="kvm"):
            self.assertTrue(machine.distrust_kvm())
        self.assertTrue(self.trial()[0])
        self.assertFalse(machine.distrust_kvm())
        self.assertEqual(self.trial(), (False, "a machine did not boot under KVM"))

    def test_none(self):
        self.usable.return_value = False
        self.assertEqual(self.trial(), (False, "there is no usable /dev/kvm"))

    def test_the_user_chooses(self):
        for choice, works in (("kvm", True), ("tcg", False)):
            with mock.patch.dict(os.environ, RXE_ACCEL=choice):
                self.assertEqual(self.trial(), (works, "RXE_ACCEL is set"))


if __name__ == "__main__":
    unittest.main()
