# SPDX-License-Identifier: GPL-2.0
"""Tests of the set-up where the machine does not play along: no root, no disk space, no package, no network, an end in the middle. The
scripts and steps are the real ones, in a cache of their own; faked are what would download (apt, mmdebstrap) and what is missing."""
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import image  # noqa: E402
import kernel  # noqa: E402
import machine  # noqa: E402

SCRIPTS = ("bootstrap.sh", "in-root.sh", "lib.sh", "check-kdir.sh", "build-tools.sh", "root-recipe", "root-packages.txt")
NOBODY = 65534
# Leaves what mmdebstrap leaves: a folder with apt's sources. Its name is the last argument, but for "-".
MMDEBSTRAP = """
for last; do [ "$last" = - ] || target=$last; done
[ "$last" != - ] || cat >$state/sources
[ ! -e "$target/etc" ] || { echo "E: $target is not empty" >&2; exit 1; }
mkdir -p "$target/etc/apt"
echo "deb http://mirror.invalid/debian trixie main" >"$target/etc/apt/sources.list"
"""


# What tests fake or take away.
CHANGEABLE = ("apt-get", "apt-cache", "mmdebstrap", "mkfs.ext4", "cargo", machine.QEMU)
others = None


def setUpModule():
    """The other programs of this root, in one folder."""
    global others
    others = Path(tempfile.mkdtemp())
    unittest.addModuleCleanup(shutil.rmtree, others)
    others.chmod(0o755)
    for place in ("/usr/sbin", "/usr/bin"):
        for program in os.scandir(place):
            if program.name not in CHANGEABLE and not (others / program.name).is_symlink():
                (others / program.name).symlink_to(program.path)


class Faked(unittest.TestCase):
    """A folder with a PATH of its own: this root's programs, some of them missing or faked. `calls` has what the fakes were called with."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.disk(self.folder, "32g")
        self.folder.chmod(0o755)
        self.bin, self.cache = self.folder / "bin", self.folder / "cache"
        self.bin.mkdir()
        for name in CHANGEABLE:
            (self.bin / name).symlink_to(shutil.which(name))
        often = mock.patch.object(kernel, "PROGRESS_SECONDS", 0.1)
        often.start()
        self.addCleanup(often.stop)
        path = mock.patch.dict(os.environ, PATH=f"{self.bin}:{others}")
        path.start()
        self.addCleanup(path.stop)
        self.kernels = self.cache / "kernels"
        for target, value in ((kernel, {"CACHE": self.cache, "KERNELS": self.kernels}), (image, {"IMAGES": self.cache / "images"})):
            patch = mock.patch.multiple(target, **value)
            patch.start()
            self.addCleanup(patch.stop)

    def missing(self, name):
        (self.bin / name).unlink()

    def fake(self, name, text):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/sh\nstate={self.folder}\necho {name} \"$@\" >>$state/calls\n{text}\n")
        (self.bin / name).chmod(0o755)

    def calls(self, name):
        try:
            return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith(name)]
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def heard(self):
        """What is said meanwhile: lines, at the end."""
        lines = []
        with open(self.folder / "said", "w+") as said:
            with contextlib.redirect_stderr(said):
                yield lines
            said.seek(0)
            lines += said.read().splitlines()

    def ensure(self, what=None, call=kernel.ensure):
        with self.heard():
            return call(what)

    def dies(self, *words, what=None, call=kernel.ensure):
        """Ends with one line that says why and what to do."""
        with self.heard() as said, self.assertRaises(SystemExit):
            call(what)
        self.assertTrue(said[-1].startswith("error: "), said)
        for word in words:
            self.assertIn(word, said[-1])

    def disk(self, folder, size):
        """Makes a folder a disk of its own."""
        # The toolchain root has no mount(8).
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={size}".encode()), 0, os.strerror(ctypes.get_errno()))
        self.addCleanup(lambda: self.assertEqual(libc.umount(bytes(folder)), 0))

    def small_disk(self):
        self.cache.mkdir()
        self.disk(self.cache, "8m")


class Shell(Faked):
    """The shell scripts, in a clone of their own."""

    def setUp(self):
        super().setUp()
        (self.folder / "clone/qemu").mkdir(parents=True)
        for name in SCRIPTS:
            shutil.copy(HERE / name, self.folder / "clone/qemu" / name)
        self.fake("apt-get", "")
        self.fake("mmdebstrap", MMDEBSTRAP)

    def start(self, script="bootstrap.sh", *arguments, **options):
        environment = {"PATH": os.environ["PATH"], "RXE_RS_CACHE": str(self.cache), **options.pop("environment", {})}
        # Jobs in the background of a shell, as these tests may be, ignore SIGINT, and their children do.
        return subprocess.Popen(["env", "--default-signal=INT", "/bin/sh", self.folder / "clone/qemu" / script, *(arguments or ["demo"])], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True, **options)

    def end(self, process):
        said, _ = process.communicate(timeout=60)
        return process.returncode, said.splitlines()


class Bootstrap(Shell):
    def refused(self, *words, lines=1, **options):
        """Fails, and its last line says why and what to do; no root is left that a later run would take for complete."""
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
        self.refused("needs root", "sudo make demo", user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertFalse(self.cache.exists())
        # Nor is a ready one entered.
        self.succeeds()
        status, said = self.end(self.start("in-root.sh", "true", user=NOBODY, group=NOBODY, extra_groups=[]))
        self.assertEqual((status, len(said)), (1, 1), said)
        self.assertRegex(said[0], r"^error: .* needs root\. .* sudo")

    def test_without_apt(self):
        self.missing("apt-get")
        self.refused("Debian 12 or 13", "apt")

    def test_without_disk_space(self):
        self.small_disk()
        self.refused(f"{self.cache} has 0 GB free", "14 GB", "RXE_RS_CACHE")
        self.assertEqual(self.calls("mmdebstrap"), [])

    def test_cache_that_cannot_be(self):
        self.cache.write_text("a file")
        self.refused("cannot write the cache folder", "RXE_RS_CACHE", lines=2)

    def test_names_that_kernel_makefiles_cannot_cope_with(self):
        self.cache = self.folder / "a cache"
        self.refused("must not hold spaces", "RXE_RS_CACHE")

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

    def test_packages_come_from_where_this_machine_has_them(self):
        self.fake("apt-get", "echo 'Packages|Debian|Debian|http://mirror.invalid/debian/'")
        self.succeeds()
        lines = (self.folder / "sources").read_text().splitlines()
        self.assertEqual([line.split()[1] for line in lines], ["http://mirror.invalid/debian/"] * 3)
        self.assertEqual([line.split()[2] for line in lines], ["trixie", "trixie-updates", "trixie-backports"])

    def test_ends_in_the_middle(self):
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
    """cargo's own words are shown, of downloads and builds; what was fetched is not asked for again."""
    CARGO = """
case "$*" in
*--offline*) [ $1 != fetch ] || [ -e $state/fetched ] || exit 1 ;;
*) [ ! -e $state/cut ] || { echo "error: no network" >&2; exit 1; }; echo " Downloading clap" >&2; touch $state/fetched ;;
esac
[ $1 != build ] || { echo "   Compiling rxectl" >&2; exit 1; }
"""

    def build(self):
        status, said = self.end(self.start("build-tools.sh", environment={"RXE_IN_ROOT": "1"}))
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


class Trees(Shell):
    """make KDIR=: a tree that Rust modules cannot be built in is named with what it lacks."""

    def check(self):
        return self.end(self.start("check-kdir.sh", str(self.folder / "tree")))

    def test_each_part_that_is_missing(self):
        tree = self.folder / "tree"
        for part, text, words in (("Makefile", "", "is not a kernel tree"), ("include/config/auto.conf", "CONFIG_RUST=y\n", "modules_prepare"),
                                  ("rust/libkernel.rmeta", "", "a prepared source tree does"), ("Module.symvers", "0\tx\ty\tz\n", "Module.symvers")):
            status, said = self.check()
            self.assertEqual((status, len(said)), (1, 1), said)
            self.assertTrue(said[0].startswith(f"error: KDIR={tree}"), said)
            self.assertIn(words, said[0])
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            (tree / part).write_text(text)
        self.assertEqual(self.check(), (0, []))


# A source tree as far as kernel.py knows it; the file `broken` makes its preparation fail.
MAKEFILE = """
olddefconfig modules_prepare:
	test ! -e {state}/broken
	test ! -e {state}/slow || {{ echo "  CC      one.o"; echo "  CC [M]  two.o"; sleep 0.5; }}
	mkdir -p rust/bindings include/generated
	touch rust/libkernel.rmeta include/generated/rustc_cfg rust/bindings/bindings_generated.rs
"""
SERIES, VERSION, ABI = "7.2", "7.2.12-1", "7.2.12+deb13"
PACKAGES = {name.format(abi=ABI): files for name, files in {
    "linux-binary-{abi}-amd64": ("boot/vmlinuz-{abi}-amd64",), "linux-modules-{abi}-amd64": (), "linux-headers-{abi}-common": (),
    "linux-headers-{abi}-amd64": ("usr/src/linux-headers-{abi}-amd64/.config", "usr/src/linux-headers-{abi}-amd64/Module.symvers"),
    "linux-kbuild-{abi}": (), "linux-base-{abi}-amd64": (), f"linux-source-{SERIES}": ()}.items()}


class KernelSetUp(Faked):
    @classmethod
    def setUpClass(cls):
        """Packages such as Debian's, with next to nothing inside."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.debs = Path(folder.name)
        for name, files in PACKAGES.items():
            tree = cls.debs / "tree" / name
            (tree / "DEBIAN").mkdir(parents=True)
            (tree / "DEBIAN/control").write_text(f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: none\nDescription: none\n")
            for file in (file.format(abi=ABI) for file in files):
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                (tree / file).write_text(file)
            if name.startswith("linux-source"):
                (tree / "usr/src").mkdir(parents=True)
                (cls.debs / "source/linux").mkdir(parents=True)
                (cls.debs / "source/linux/Makefile").write_text(MAKEFILE.format(state="$(STATE)"))
                subprocess.run(["tar", "-C", cls.debs / "source", "-cJf", tree / f"usr/src/{name}.tar.xz", "linux"], check=True)
            subprocess.run(["dpkg-deb", "-Znone", "-b", tree, cls.debs / f"{name}_{VERSION}_amd64.deb"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        names = " ".join(PACKAGES)
        self.fake("apt-cache", f'[ $1 = pkgnames ] && printf "%s\\n" {names} || for n in {names}; do echo "$n | {VERSION} | here"; done')
        # With the file `cut` it breaks off within the second package.
        self.fake("apt-get", f"""
[ $1 = download ] || exit 0
for p; do case $p in linux-*=*)
	cp {self.debs}/${{p%%=*}}_* . || exit 1
	echo "Get:1 $p"
	[ ! -e $state/cut ] || [ $(grep -c " download " $state/calls) -lt 2 ] || {{ truncate -s 1000 ${{p%%=*}}_*; exit 1; }}
esac; done""")
        state = mock.patch.dict(os.environ, STATE=str(self.folder))
        state.start()
        self.addCleanup(state.stop)

    def ready(self):
        return [path.parent.name for path in self.kernels.glob("*/ready")]

    def test_second_run_needs_no_network(self):
        first = self.ensure()
        self.assertEqual(first["release"], f"{ABI}-amd64")
        self.assertEqual(self.ready(), [f"{ABI}-amd64"])
        for name in ("apt-get", "apt-cache"):
            self.fake(name, "exit 1")
        self.assertEqual(self.ensure(), first)
        self.assertEqual(self.ensure(SERIES), first)
        self.dies("check the network", "run the same command again", f"KERNEL={SERIES}", what="7.3")

    def test_no_network_at_first(self):
        self.fake("apt-get", "echo 'W: Failed to fetch' >&2")
        self.dies("check the network", "run the same command again")

    def test_missing_package(self):
        self.fake("apt-cache", 'for n in linux-modules-7.3.4+deb13-amd64; do [ $1 = pkgnames ] && echo $n || echo "$n | 7.3.4-1 | here"; done')
        self.dies("no complete 7.2 or 7.3 kernel", "qemu/kernel.py list")
        self.dies("no complete 7.3 kernel", what="7.3")

    def test_unknown_series(self):
        self.dies("KERNEL=6.12", "7.2, 7.3", what="6.12")

    def test_without_disk_space(self):
        self.small_disk()
        self.dies("has 0 GB free", "6 GB", "RXE_RS_CACHE")
        self.assertEqual(self.calls("apt-get download"), [])

    def test_download_that_breaks_off(self):
        (self.folder / "cut").touch()
        self.dies("apt-get download")
        (self.folder / "cut").unlink()
        self.ensure()
        # What had come whole is not asked for again, what had come in part is.
        self.assertEqual(len(self.calls("apt-get download")), len(PACKAGES) + 1)

    def test_shows_progress(self):
        (self.folder / "slow").touch()
        with self.heard() as said:
            kernel.ensure(None)
        for name in PACKAGES:
            self.assertIn(f"Get:1 {name}={VERSION}", said)
        self.assertTrue(any(re.fullmatch(r"==>   \d+ s, now CC \[M\] two\.o", line) for line in said), said)

    def test_preparation_that_breaks_off(self):
        (self.folder / "broken").touch()
        self.dies("make -C", "prepare.log")
        self.assertEqual(self.ready(), [])
        (self.folder / "broken").unlink()
        self.ensure()
        self.assertEqual(len(self.calls("apt-get download")), len(PACKAGES))

    def test_killed_in_the_middle(self):
        for step in ("unpack_source", "unpack_image", "prepare", "find_file"):
            with self.subTest(before=step):
                shutil.rmtree(self.kernels, ignore_errors=True)
                with mock.patch.object(kernel, step, side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                    self.ensure()
                self.assertEqual(self.ready(), [])
                self.ensure()
                self.assertEqual(self.ready(), [f"{ABI}-amd64"])
                self.assertTrue((kernel.paths(self.ensure())["TREE"] / "rust/libkernel.rmeta").exists())

    def test_killed_while_preparing(self):
        """A tree under its final name that is not ready is prepared again."""
        base = self.kernels / f"{ABI}-amd64"
        self.ensure()
        (base / "ready").unlink()
        (base / "src/rust/libkernel.rmeta").unlink()
        self.ensure()
        self.assertTrue((base / "src/rust/libkernel.rmeta").exists())


class Images(Faked):
    def setUp(self):
        super().setUp()
        image.IMAGES.mkdir(parents=True)
        patch = mock.patch.object(image, "sources", return_value="deb http://mirror.invalid/debian trixie main\n")
        patch.start()
        self.addCleanup(patch.stop)
        # Called with "SUITE FOLDER -".
        self.fake("mmdebstrap", MMDEBSTRAP)

    def made(self):
        return sorted(path.name for path in image.IMAGES.glob("*.ext4"))

    def test_second_run_uses_the_first(self):
        first = self.ensure(image.DEBIAN, image.rootfs)
        self.fake("mmdebstrap", "exit 1")
        self.assertEqual(self.ensure(image.DEBIAN, image.rootfs), first)
        self.assertEqual(self.made(), [first.name])

    def test_shows_progress(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "echo I: downloading packages with apt...; sleep 0.5")
        with self.heard() as said:
            image.rootfs(image.DEBIAN)
        self.assertTrue(any(line.endswith(" s, now I: downloading packages") for line in said), said)

    def test_breaks_off(self):
        for name, text in (("mmdebstrap", MMDEBSTRAP + "echo rubbish >$target/rubbish; exit 1"), ("mkfs.ext4", "exit 1")):
            with self.subTest(program=name):
                kept = (self.bin / name).rename(self.bin / "kept")
                self.fake(name, text)
                self.dies(name, "all of its output", what=image.DEBIAN, call=image.rootfs)
                self.assertEqual(self.made(), [])
                kept.rename(self.bin / name)
        self.ensure(image.DEBIAN, image.rootfs)
        self.assertEqual(len(self.made()), 1)
        self.assertFalse((image.IMAGES / "rootfs.tmp.d").exists())

    def test_without_disk_space(self):
        shutil.rmtree(self.cache)
        self.small_disk()
        image.IMAGES.mkdir()
        self.dies("has 0 GB free", "3 GB", "RXE_RS_CACHE", what=image.DEBIAN, call=image.rootfs)


class Running(Faked):
    def test_steps_of_builds_are_counted(self):
        log = self.folder / "log"
        with self.heard() as said:
            kernel.run("sh", "-c", "echo make: entered; echo '  CC      one.o'; echo; echo '  LD [M]  two.ko'; echo warning: none; sleep 0.5",
                       quiet=log, steps=7)
        self.assertTrue(any(line.endswith(" s, 2 of about 7 steps, now LD [M] two.ko") for line in said), said)

    def test_nothing_is_said_of_what_is_quick(self):
        with self.heard() as said:
            kernel.run("echo", "done", quiet=self.folder / "log")
        self.assertEqual(said, [])


class KvmTrial(Faked):
    """A /dev/kvm that exists may still hang, abort or fail to boot; what was found holds until this machine boots again."""

    def setUp(self):
        super().setUp()
        self.cache.mkdir()
        access = mock.patch.object(machine.os, "access", return_value=True)
        self.usable = access.start()
        self.addCleanup(access.stop)
        chosen = mock.patch.dict(os.environ, RXE_ACCEL="")
        chosen.start()
        self.addCleanup(chosen.stop)
        seconds = mock.patch.object(machine, "PROBE_SECONDS", 1)
        seconds.start()
        self.addCleanup(seconds.stop)

    def trial(self):
        with self.heard():
            return machine.probe_kvm({"VMLINUZ": "vmlinuz", "INITRD": "initrd"})

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

    def test_tried_once_a_boot(self):
        self.fake(machine.QEMU, "exit 1")
        self.assertEqual(self.trial(), self.trial())
        self.assertEqual(len(self.calls(machine.QEMU)), 1)
        memo = self.cache / "kvm-probe.json"
        for text in (memo.read_text().replace('"boot_id": "', '"boot_id": "0'), "", "{", "{}"):
            memo.write_text(text)
            self.fake(machine.QEMU, "echo RXE-PROBE-OK")
            self.assertTrue(self.trial()[0])
        self.assertEqual(len(self.calls(machine.QEMU)), 5)

    def test_none(self):
        self.usable.return_value = False
        self.assertEqual(self.trial(), (False, "there is no usable /dev/kvm"))

    def test_the_user_chooses(self):
        for choice, works in (("kvm", True), ("tcg", False)):
            with mock.patch.dict(os.environ, RXE_ACCEL=choice):
                self.assertEqual(self.trial(), (works, "RXE_ACCEL is set"))


if __name__ == "__main__":
    unittest.main()
