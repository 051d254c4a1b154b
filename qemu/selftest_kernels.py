# SPDX-License-Identifier: GPL-2.0
"""Tests of the preparation of kernels and images, with failures and interruptions. The steps are the real ones, with a cache of their own;
packages and programs that download are replaced by fakes."""
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from faked import MMDEBSTRAP, Faked, setUpModule  # noqa: E402, F401
import image  # noqa: E402
import kernel  # noqa: E402

# The Makefile of a source tree with the targets that kernel.py uses; the file `broken` makes its preparation fail.
MAKEFILE = """
mrproper:
	rm -rf rust include .config Module.symvers
olddefconfig modules_prepare:
	test ! -e {state}/broken
	test ! -e {state}/slow || {{ echo "  CC      one.o"; echo "  CC [M]  two.o"; sleep 0.5; }}
	echo '$(MAKEOVERRIDES)' >{state}/make
	mkdir -p rust/bindings include/generated
	touch rust/libkernel.rmeta include/generated/rustc_cfg rust/bindings/bindings_generated.rs
"""
SERIES, VERSION, ABI = "7.2", "7.2.12-1", "7.2.12+deb13"


def packages_of(release):
    """The packages of a kernel with their files."""
    return {
        f"linux-binary-{release}": (f"boot/vmlinuz-{release}", f"boot/System.map-{release}"), f"linux-headers-{ABI}-common": (),
        f"linux-modules-{release}": [f"usr/lib/modules/{release}/kernel/{name}.ko" for name in (*image.BOOT_MODULES, *image.SHARES["9p"])],
        f"linux-headers-{release}": (f"usr/src/linux-headers-{release}/.config", f"usr/src/linux-headers-{release}/Module.symvers"),
        f"linux-kbuild-{ABI}": (), f"linux-base-{release}": (), f"linux-source-{SERIES}": ()}


PACKAGES, CLOUD = packages_of(f"{ABI}-amd64"), packages_of(f"{ABI}-cloud-amd64")
ARM64 = packages_of(f"{ABI}-arm64") | {"busybox-static": ("usr/bin/busybox",)}
# What is in a file, if it is not the name of the file: the cloud kernel has no 9P.
TEXTS = {f"usr/src/linux-headers-{ABI}-amd64/.config": "CONFIG_9P_FS=m\n",
         f"usr/src/linux-headers-{ABI}-cloud-amd64/.config": "# CONFIG_9P_FS is not set\n",
         f"usr/src/linux-headers-{ABI}-arm64/.config": "CONFIG_9P_FS=m\n"}


class Packages(Faked):
    """A test with the packages of a kernel, and a fake apt that offers them."""

    @classmethod
    def setUpClass(cls):
        """Builds packages with the names of Debian's and almost no files."""
        cls.debs = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name, files in (PACKAGES | CLOUD | ARM64).items():
            tree = cls.debs / "tree" / name
            (tree / "DEBIAN").mkdir(parents=True)
            (tree / "DEBIAN/control").write_text(f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: none\nDescription: none\n")
            for file in files:
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                (tree / file).write_text(TEXTS.get(file, file))
            if name.startswith("linux-source"):
                (tree / "usr/src").mkdir(parents=True)
                (cls.debs / "source/linux").mkdir(parents=True)
                (cls.debs / "source/linux/Makefile").write_text(MAKEFILE.format(state="$(STATE)"))
                subprocess.run(["tar", "-C", cls.debs / "source", "-cJf", tree / f"usr/src/{name}.tar.xz", "linux"], check=True)
            subprocess.run(["dpkg-deb", "-Znone", "-b", tree, cls.debs / f"{name}_{VERSION}_amd64.deb"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        own, other = (" ".join(sorted(names)) for names in (PACKAGES | CLOUD, ARM64))
        self.fake("apt-cache", f"""
case "$*" in *APT::Architecture=arm64*) names="{other}" ;; *) names="{own}" ;; esac
case "$*" in *pkgnames*) printf "%s\\n" $names ;; *) for n in $names; do echo "$n | {VERSION} | here"; done ;; esac""")
        # With the file `cut` the download of the second package fails and leaves an incomplete file.
        self.fake("apt-get", f"""
case " $* " in *" download "*) ;; *) exit 0 ;; esac
for p; do case $p in Dir::* | APT::*) ;; *=*)
	cp {self.debs}/${{p%%=*}}_* . || exit 1
	echo "Get:1 $p"
	[ ! -e $state/cut ] || [ $(grep -c " download " $state/calls) -lt 2 ] || {{ truncate -s 1000 ${{p%%=*}}_*; exit 1; }}
esac; done""")
        self.enterContext(mock.patch.dict(os.environ, STATE=str(self.folder)))


class KernelSetUp(Packages):
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

    def test_flavour(self):
        common = self.ensure()
        tree = kernel.paths(common)["TREE"]
        cloud = self.ensure(f"{SERIES}-cloud")
        self.assertEqual(cloud["release"], f"{ABI}-cloud-amd64")
        # Its source is that of the other flavour, which does not change.
        self.assertEqual(len(self.calls("apt-get download")), len(PACKAGES) + len(CLOUD) - 1)
        self.assertEqual([kernel.has(kernel.paths(info)["TREE"], "9P_FS") for info in (common, cloud)], [True, False])
        self.assertTrue((tree / "rust/libkernel.rmeta").exists())
        # It is used only if it is named, with the series or alone.
        for name in ("apt-get", "apt-cache"):
            self.fake(name, "exit 1")
        self.assertEqual([self.ensure(name) for name in (None, SERIES, "cloud", f"{SERIES}-cloud")], [common, common, cloud, cloud])

    def test_flavour_alone(self):
        self.assertEqual(self.ensure("cloud")["series"], f"{SERIES}-cloud")
        self.assertFalse((self.kernels / "default").exists())
        self.assertEqual(self.ensure()["series"], SERIES)
        self.dies("no complete rt kernel", what="rt")

    def test_another_architecture(self):
        """The packages of arm64 come from package lists of their own, and the tree is prepared by cross compilers."""
        info = self.ensure(f"{SERIES}-arm64")
        self.assertEqual(info["release"], f"{ABI}-arm64")
        for call in self.calls("apt-get"):
            self.assertIn("APT::Architecture=arm64", call)
        self.assertEqual(len(self.calls("apt-get -o")), len(ARM64) + 1)
        self.assertLessEqual({"ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "CC=aarch64-linux-gnu-gcc-14"},
                             set((self.folder / "make").read_text().split()))
        self.assertTrue((self.kernels / info["release"] / "image/usr/bin/busybox").exists())
        # The source of the other architecture is the same.
        self.ensure()
        self.assertEqual(len(self.calls("apt-get download")), len(PACKAGES) - 1)

    def test_without_disk_space(self):
        self.small_disk()
        self.dies("has 0 GB free", "6 GB", "RXE_RS_CACHE")
        self.assertEqual(self.calls("apt-get download"), [])

    def test_download_fails(self):
        (self.folder / "cut").touch()
        self.dies("apt-get download")
        (self.folder / "cut").unlink()
        self.ensure()
        # Only the incomplete package and those after it are downloaded again.
        self.assertEqual(len(self.calls("apt-get download")), len(PACKAGES) + 1)

    def test_shows_progress(self):
        (self.folder / "slow").touch()
        with self.heard() as said:
            kernel.ensure(None)
        for name in PACKAGES:
            self.assertIn(f"Get:1 {name}={VERSION}", said)
        self.assertTrue(any(re.fullmatch(r"==>   \d+ s, now CC \[M\] two\.o", line) for line in said), said)

    def test_preparation_fails(self):
        (self.folder / "broken").touch()
        self.dies("kernel-tree prepare", "prepare.log")
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
        """A tree with its final name is prepared again if the kernel is not ready."""
        base = self.kernels / f"{ABI}-amd64"
        self.ensure()
        (base / "ready").unlink()
        (base / "src/rust/libkernel.rmeta").unlink()
        self.ensure()
        self.assertTrue((base / "src/rust/libkernel.rmeta").exists())


class WholeSetUp(Packages):
    """The preparation of all files that a machine boots from, with an empty cache."""

    # Files that packages have, and maintainer scripts copy.
    UNPACKED = ("base-passwd/passwd.master", "base-passwd/group.master", "libc-bin/nsswitch.conf")

    def setUp(self):
        super().setUp()
        files = " ".join(f'"$target/usr/share/{name}"' for name in self.UNPACKED)
        self.fake("mmdebstrap", MMDEBSTRAP + f'mkdir -p "$target/usr/bin"\nfor file in {files}; do mkdir -p "${{file%/*}}"; touch "$file"; done')
        self.fake("depmod", "for last; do :; done; touch $2/lib/modules/$last/modules.dep")
        # Like the real one it needs the result of depmod.
        self.fake("modprobe", """
for last; do :; done
modules=$2/lib/modules/$4
[ -e $modules/modules.dep ] || exit 1
[ -e $modules/kernel/$last.ko ] && echo insmod $modules/kernel/$last.ko || echo builtin $last""")

    def booted(self, series):
        """What a kernel boots from, and the modules in its initramfs."""
        boot = self.ensure(series, image.ensure)
        for name in ("VMLINUZ", "TREE", "MODULES", "ROOTFS", "MODULES_IMAGE", "INITRD"):
            self.assertTrue(boot[name].exists(), name)
        listed = subprocess.run(f"zcat {boot['INITRD']} | cpio -t --quiet", shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout
        return boot, set(re.findall(r"^modules/(\w+)\.ko$", listed, re.M))

    def test_all_files_exist(self):
        boot, modules = self.booted(SERIES)
        self.assertEqual((boot["SHARE"], modules), ("9p", {*image.BOOT_MODULES, *image.SHARES["9p"]}))
        for name in ("apt-get", "apt-cache", "mmdebstrap", "mkfs.ext4"):
            self.fake(name, "exit 1")
        self.assertEqual(self.ensure(SERIES, image.ensure), boot)

    def test_another_architecture(self):
        boot, modules = self.booted("arm64")
        self.assertEqual(modules, {*image.BOOT_MODULES, *image.SHARES["9p"]})
        self.assertIn("--variant=extract --architectures=arm64", self.calls("mmdebstrap")[0])
        own = self.booted(SERIES)[0]
        self.assertNotEqual(own["ROOTFS"], boot["ROOTFS"])
        self.assertNotEqual(own["INITRD"].read_bytes(), boot["INITRD"].read_bytes())

    def test_kernel_without_9p(self):
        boot, modules = self.booted("cloud")
        self.assertEqual((boot["SHARE"], modules), ("virtiofs", set(image.BOOT_MODULES)))


class Images(Faked):
    def setUp(self):
        super().setUp()
        image.IMAGES.mkdir(parents=True)
        # The last arguments are "SUITE FOLDER -".
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

    def test_a_program_fails(self):
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


class PartOfTheSource(Faked):
    """What DKMS unpacks of the source: all of rust/, whose folders have the same names as those of which parts are left out; of the
    architectures that of the machine, and x86, whose table of system calls all of them read."""

    KEPT = ("Makefile", "drivers/net/Kconfig", "drivers/gpu/drm/drm.h", "net/Kconfig", "fs/Kconfig", "arch/arm64/Kconfig", "arch/riscv/Kconfig",
            "arch/x86/entry/syscalls/syscall_32.tbl", "rust/helpers/net/genetlink.c", "rust/helpers/drivers/one.c", "rust/kernel/fs/file.rs",
            "rust/helpers/arch/arm/one.h")
    LEFT_OUT = ("drivers/net/one.c", "drivers/gpu/drm/amd/one.h", "net/core/one.c", "fs/one.c", "sound/one.h", "arch/riscv/lib/one.S",
                "Documentation/one.rst", "tools/perf/one", "tools/testing/one")

    def unpacked(self, *more):
        for name in (*self.KEPT, *self.LEFT_OUT, *more):
            (self.folder / "linux-source-7.3" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "linux-source-7.3" / name).touch()
        subprocess.run(["tar", "-cJf", self.folder / "source.tar.xz", "-C", self.folder, "linux-source-7.3"], check=True)
        subprocess.run([kernel.TREE_SCRIPT, "unpack", self.folder / "source.tar.xz", self.folder / "tree"], check=True)
        tree = self.folder / "tree"
        return sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())

    def test_files(self):
        self.fake("uname", "echo x86_64")
        self.assertEqual(self.unpacked("arch/arm64/lib/copy.S"), sorted(self.KEPT))

    def test_files_on_arm64(self):
        self.fake("uname", "echo aarch64")
        self.assertEqual(self.unpacked("arch/arm64/lib/copy.S"), sorted([*self.KEPT, "arch/arm64/lib/copy.S"]))


class Compilers(Faked):
    """The compilers of a kernel tree are those that built the kernel, which its configuration names."""

    def selected(self, built_by, release="7.2.12+deb13-amd64"):
        tree = self.folder / "tree"
        tree.mkdir(exist_ok=True)
        (tree / ".config").write_text(f'CONFIG_CC_VERSION_TEXT="{built_by}"\n' if built_by else "CONFIG_RUST=y\n")
        (tree / "Makefile").write_text(f"modules:\n\t@echo '$(MAKEOVERRIDES)' >{self.folder}/make\n")
        subprocess.run([kernel.TREE_SCRIPT, "make", tree, release, "modules"], check=True, stdout=subprocess.DEVNULL)
        words = (self.folder / "make").read_text().split()
        return sorted(word for word in words if not word.startswith("KERNELRELEASE="))

    def test_native(self):
        for built_by, gcc in (("gcc-14 (Debian 14.2.0-19) 14.2.0", "gcc-14"), ("x86_64-linux-gnu-gcc-16 (Debian 16.2.0-4) 16.2.0", "gcc-16"),
                              ("", "gcc-14")):
            self.assertEqual(self.selected(built_by), [f"CC={gcc}", f"HOSTCC={gcc}"])

    def test_native_on_arm64(self):
        self.fake("uname", "echo aarch64")
        self.assertEqual(self.selected("aarch64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0", "7.2.12+deb13-arm64"), ["CC=gcc-14", "HOSTCC=gcc-14"])

    def test_cross(self):
        self.assertEqual(self.selected("aarch64-linux-gnu-gcc-15 (Debian 15.1.0-1) 15.1.0", "7.2.12+deb13-arm64"),
                         ["ARCH=arm64", "CC=aarch64-linux-gnu-gcc-15", "CROSS_COMPILE=aarch64-linux-gnu-", "HOSTCC=gcc-15"])


class Names(unittest.TestCase):
    def test_flavours_of_the_makefile(self):
        environment = {name: value for name, value in os.environ.items() if name not in ("KERNEL", "FLAVOUR", "MAKEFLAGS")}
        for said, name in (([], ""), (["KERNEL=7.2"], "7.2"), (["FLAVOUR=cloud-amd64"], "cloud"), (["FLAVOUR=amd64", "KERNEL=7.3"], "7.3"),
                           (["KERNEL=7.3", "FLAVOUR=rt-amd64"], "7.3-rt"), (["KERNEL=7.3-cloud"], "7.3-cloud"),
                           (["FLAVOUR=cloud-arm64", "KERNEL=7.3"], "7.3-cloud-arm64"), (["FLAVOUR=arm64"], "arm64")):
            with self.subTest(said):
                done = subprocess.run(["make", "-s", "--no-print-directory", "--eval=show: ; @echo $$KERNEL", "show", *said], cwd=HERE.parent,
                                      env=environment, check=True, stdout=subprocess.PIPE, text=True)
                self.assertEqual(done.stdout.strip(), name)
                self.assertIn(name, (*kernel.NAMES, *kernel.FLAVOURS))

    def make(self, *arguments):
        done = subprocess.run(["make", "-s", "--no-print-directory", *arguments], cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        self.assertNotEqual(done.returncode, 0)
        return done.stdout

    def test_unknown_flavour(self):
        self.assertIn("FLAVOUR=bogus is not supported; choose one of amd64 cloud-amd64", self.make("module", "FLAVOUR=bogus", "KERNEL=7.3"))

    def test_suites_are_for_the_module_alone(self):
        """The others would fail, but only when the module has been built."""
        uses = re.findall(r"^([a-z-]+):.*\bmodule\b", (HERE.parent / "Makefile").read_text(), re.M)
        self.assertLessEqual({"deb", "ci-machine", "demo", "doc", "audit"}, set(uses))
        for target in uses:
            if target != "all":
                with self.subTest(target):
                    self.assertIn("KERNEL=sid is for `make module` alone", self.make("-n", target, "KERNEL=sid"))

    def test_machines_of_rxe_ci(self):
        for flavour in ("cloud-amd64", "arm64", "cloud-arm64", "arm64-16k"):
            with self.subTest(flavour):
                self.assertEqual(self.make("ci-machine", f"FLAVOUR={flavour}").splitlines()[0],
                                 "==> rxe-ci boots machines with the flavours amd64 and rt-amd64 only (docs/ci.md)")

    def test_kernels_of_make_test_kernels(self):
        """It builds the module for all kernels but the main one, and tests it there."""
        text = (HERE / "test.sh").read_text()
        functions = "".join(re.search(rf"^{name}\(\) [({{].*?^[)}}]$", text, re.M | re.S)[0] + "\n" for name in ("machines", "on_kernel", "each_kernel"))
        script = f'step() {{ echo "$1"; }}; driver=rxe_rs; main=7.3; here=; clone=; {functions} each_kernel'
        steps = subprocess.run(["sh", "-euc", script], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        self.assertEqual(sorted(steps), sorted(f"{step}-{name}" for step in ("module", "vm-netns") for name in kernel.NAMES if name != "7.3"))


class Running(Faked):
    def test_steps_of_builds_are_counted(self):
        log = self.folder / "log"
        with self.heard() as said:
            kernel.run("sh", "-c", "echo make: entered; echo '  CC      one.o'; echo; echo '  LD [M]  two.ko'; echo warning: none; sleep 0.5",
                       quiet=log, steps=7)
        self.assertTrue(any(line.endswith(" s, 2 of about 7 steps, now LD [M] two.ko") for line in said), said)

    def test_no_progress_of_quick_commands(self):
        with self.heard() as said:
            kernel.run("echo", "done", quiet=self.folder / "log")
        self.assertEqual(said, [])


def load(path):
    """A script as a module."""
    loader = SourceFileLoader(path.stem.replace("-", "_"), str(path))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Crates(unittest.TestCase):
    def test_clones_build_one_after_the_other(self):
        """They share the sources, which each of them removes first."""
        crates = load(HERE / "build-crates.py")
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))

        def sources(_):
            with open(top / ".lock-crates") as other, self.assertRaises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

        with mock.patch.multiple(crates, CACHE=top, OUT=top / "out", sources=sources, build=lambda *_: []), \
                mock.patch.dict(os.environ, RXE_IN_ROOT="1"):
            crates.main()
        self.assertEqual({path.name for path in (top / "out").iterdir()}, set(crates.CRATES))


class CiMachine(unittest.TestCase):
    """ci-machine.py."""

    def test_it_would_be_lost(self):
        done = subprocess.run([HERE / "ci-machine.py", "--out", "/home/me/machines"], capture_output=True, text=True,
                              env={**os.environ, "RXE_IN_ROOT": "1"})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("/home/me/machines is a folder of the toolchain root;", done.stderr)

    def test_checksums_after_an_interruption(self):
        """It ends when the files have been copied: the next run finds nothing to copy, and writes the checksums nevertheless."""
        ci_machine = load(HERE / "ci-machine.py")
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        folder, source = top / "machine", top / "source"
        folder.mkdir()

        def check():
            return subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=folder).returncode

        source.write_text("first")
        ci_machine.install_all({"linux": source}, folder)
        self.assertEqual(check(), 0)
        source.write_text("the second")
        with mock.patch.object(ci_machine, "sha256", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            ci_machine.install_all({"linux": source}, folder)
        self.assertEqual((folder / "linux").read_text(), "the second")
        ci_machine.install_all({"linux": source}, folder)
        self.assertEqual(check(), 0)


if __name__ == "__main__":
    unittest.main()
