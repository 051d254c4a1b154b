# SPDX-License-Identifier: GPL-2.0
"""Tests of build-deb.sh: what the Debian packages contain, with stand-ins for the module and the tools; that bad input is refused by one
line; signatures. `ktests/vm/install.test` installs the real packages."""
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import kernel  # noqa: E402

TOP = HERE.parent
DEB = TOP / "tools/deb"
VERSION = re.search(r'^version = "(.*)"$', (TOP / "Cargo.toml").read_text(), re.M)[1]
RELEASE = "7.9.1+deb13-amd64"
# That of the packages, which package-version.sh has tests for.
PACKAGES = subprocess.run(HERE / "package-version.sh", stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
SOURCE = f"usr/src/rxe_rs-{VERSION}"

PAGES = ("containers", "install", "mpi", "storage", "troubleshooting", "tuning", "two-hosts")
# The packages beside that of the module, with the files of the libraries below @LIBRARIES@.
CONTENTS = {
    "rxe-rs-dkms": {
        "etc/dkms/framework.conf.d/rxe_rs.conf", "usr/libexec/rxe_rs/rxe-dkms", "usr/libexec/rxe_rs/kernel-tree",
        *(f"{SOURCE}/{name}" for name in ("rxe-dkms", "dkms.conf", "Kbuild", "Cargo.toml", "uapi/rxe_rs.h")),
        *(f"{SOURCE}/{path.relative_to(TOP)}" for path in (TOP / "rxe_rs").rglob("*")
          if (path.suffix in (".rs", ".c", ".h") or path.name == "bindgen_parameters")
          and not re.search("/proto/(tests|examples|fuzz)/", str(path)))},
    "rxe-rs-tools": {
        "etc/rxe_rs/", "usr/bin/rxectl", "usr/share/man/man1/rxectl.1.gz", "usr/share/man/man1/rxectl-qp.1.gz", "usr/share/man/man7/rxe_rs.7.gz",
        "usr/share/bash-completion/completions/rxectl", "usr/share/zsh/vendor-completions/_rxectl",
        "usr/share/fish/vendor_completions.d/rxectl.fish", "usr/libexec/rxe_rs/rxe-link", "usr/lib/systemd/system/rxe@.service",
        "usr/share/rxe_rs/replace-rdma_rxe.conf", *(f"usr/share/doc/rxe-rs-tools/{page}.md" for page in PAGES), "usr/share/doc/rxe-rs-tools/examples/eth0.conf"},
    "librxe-rs1": {"@LIBRARIES@/librxe_rs.so.1"},
    "librxe-rs-dev": {
        "@LIBRARIES@/librxe_rs.so", "@LIBRARIES@/librxe_rs.a", "usr/include/rxe_rs.h", "usr/include/rxe_rs_verbs.h",
        *(f"usr/share/doc/librxe-rs-dev/examples/{name}" for name in ("exercise.rs", "sliding_window.py", "send_fallback.py"))},
}
SCRIPTS = {"rxe-rs-dkms": {"postinst", "prerm"}, "rxe-rs-tools": {"postinst", "prerm", "postrm"}, "librxe-rs1": set(), "librxe-rs-dev": set()}


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options).stdout


class StandIns(unittest.TestCase):
    """A folder with stand-ins for the tools, and a function that makes one for the module."""
    GCC, OBJCOPY, RELEASE = "gcc", "objcopy", RELEASE

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.tools = cls.folder / "tools"
        for name in ("man", "completions", "lib", "include"):
            (cls.tools / name).mkdir(parents=True)
        run(cls.GCC, "-x", "c", "-", "-o", cls.tools / "rxectl", input="int main(void) { return 0; }\n")
        for name in ("man/rxectl.1", "man/rxectl-qp.1", "man/rxe_rs.7", "completions/rxectl.bash", "completions/_rxectl", "completions/rxectl.fish", "lib/librxe_rs.a",
                     "include/rxe_rs.h", "include/rxe_rs_verbs.h"):
            (cls.tools / name).write_text(f"{name}\n")
        run(cls.GCC, "-shared", "-Wl,-soname,librxe_rs.so.1", "-x", "c", "-", "-o", cls.tools / "lib/librxe_rs.so.1", input='int f(void);\n#include <stdlib.h>\nint f(void) { return rand(); }\n')

    @classmethod
    def module(cls, name="rxe_rs.ko", release=None, version=VERSION):
        """Makes an object with the information that modinfo reads from a module."""
        path = cls.folder / name
        words = {"name": "rxe_rs", "version": version, "vermagic": f"{release or cls.RELEASE} SMP preempt mod_unload modversions "}
        (cls.folder / "modinfo").write_text("".join(f"{key}={value}\0" for key, value in words.items()))
        run(cls.GCC, "-c", "-x", "c", "-", "-o", path, input="int x;\n")
        run(cls.OBJCOPY, "--add-section", f".modinfo={cls.folder}/modinfo", path)
        return path

    def build(self, module, out, **environment):
        """The exit status and the output of build-deb.sh."""
        done = subprocess.run([HERE / "build-deb.sh", "-m", module, "-t", self.tools, "-o", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**os.environ, **{name: str(value) for name, value in environment.items()}})
        return done.returncode, done.stdout


class Packages(StandIns):
    """Of a module for amd64."""
    ARCHITECTURE, TRIPLET, MACHINE = "amd64", "x86_64-linux-gnu", "X86-64"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.out = cls.folder / "out"
        status, said = cls.build(cls, cls.module(), cls.out)
        if status:
            raise AssertionError(said)
        cls.said = said.splitlines()
        cls.files = {path.name.split("_")[0]: path for path in cls.out.glob("*.deb")}
        cls.modules, cls.libraries = f"rxe-rs-modules-{cls.RELEASE}", f"usr/lib/{cls.TRIPLET}"

    def field(self, package, name):
        return run("dpkg-deb", "--field", self.files[package], name).strip()

    def listed(self, package):
        """(mode, owner, path) of the files of a package, and of its empty folders."""
        lines = [line.split() for line in run("dpkg-deb", "--contents", self.files[package]).splitlines()]
        found = [(words[0], words[1], words[5].removeprefix("./")) for words in lines]
        return [entry for entry in found if entry[2] and not any(other[2] != entry[2] and other[2].startswith(entry[2]) for other in found if entry[2].endswith("/"))]

    def test_prints_the_paths(self):
        self.assertEqual(sorted(self.said), sorted(str(path) for path in self.files.values()))

    def test_contents(self):
        contents = CONTENTS | {self.modules: {f"usr/lib/modules/{self.RELEASE}/updates/rxe_rs.ko", f"usr/lib/depmod.d/{self.modules}.conf"}}
        self.assertEqual(set(self.files), set(contents))
        for package, wanted in contents.items():
            with self.subTest(package):
                doc = {f"usr/share/doc/{package}/{name}" for name in ("copyright", "changelog.gz")}
                self.assertEqual({path for *_, path in self.listed(package)}, {path.replace("@LIBRARIES@", self.libraries) for path in wanted} | doc)

    def test_names(self):
        """Of the files: version and architecture."""
        for package, path in self.files.items():
            self.assertEqual(path.name, f"{package}_{PACKAGES}_{'all' if package == 'rxe-rs-dkms' else self.ARCHITECTURE}.deb")

    def test_processor(self):
        """What is compiled is for the processors of the architecture."""
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            for path in self.files.values():
                run("dpkg-deb", "--extract", path, folder)
            for path in Path(folder).rglob("*"):
                if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
                    found[path.name] = re.search(r"Machine: +(?:Advanced Micro Devices )?(\S+)", run("readelf", "-h", path))[1]
        self.assertEqual(found, {name: self.MACHINE for name in ("rxe_rs.ko", "rxectl", "librxe_rs.so.1")})

    def test_modes_and_owners(self):
        programs = {"usr/bin/rxectl", *(f"usr/libexec/rxe_rs/{name}" for name in ("rxe-link", "rxe-dkms", "kernel-tree"))}
        for package in self.files:
            for mode, owner, path in self.listed(package):
                with self.subTest(path):
                    self.assertEqual(owner, "root/root")
                    if mode[0] == "-":
                        self.assertEqual(mode, "-rwxr-xr-x" if path in programs else "-rw-r--r--")

    def test_fields(self):
        for package in self.files:
            with self.subTest(package):
                self.assertEqual((self.field(package, "Version"), self.field(package, "Architecture"), self.field(package, "Source")), (PACKAGES, "all" if package == "rxe-rs-dkms" else self.ARCHITECTURE, "rxe-rs"))
        self.assertEqual(self.field(self.modules, "Depends"), f"linux-image-{self.RELEASE}, kmod")
        self.assertEqual(self.field(self.modules, "Provides"), "rxe-rs-modules")
        for name in ("dkms", "rustc", "rust-src", "bindgen", "gcc-14", "libelf-dev", "libssl-dev"):
            self.assertRegex(self.field("rxe-rs-dkms", "Depends"), rf"(^|, ){name}\b")
        # apt cannot know which kernel is installed, and would download the source of another one.
        self.assertEqual(self.field("rxe-rs-dkms", "Recommends"), "rxe-rs-tools")
        self.assertEqual(self.field("librxe-rs-dev", "Depends"), f"librxe-rs1 (= {PACKAGES}), libibverbs-dev")
        # By the symbols of that architecture's library, not by its version.
        newest = run("dpkg-query", "-W", "-f", "${Version}", f"libc6:{self.ARCHITECTURE}").split("-")[0]
        for package in ("rxe-rs-tools", "librxe-rs1"):
            self.assertRegex(self.field(package, "Depends"), r"^libc6 \(>= [\d.]+\)(,|$)")
            self.assertNotIn(f"(>= {newest})", self.field(package, "Depends"))
        self.assertEqual(self.field("librxe-rs1", "Multi-Arch"), "same")

    def test_scripts(self):
        for package, names in (SCRIPTS | {self.modules: {"postinst", "postrm"}}).items():
            with self.subTest(package), tempfile.TemporaryDirectory() as folder:
                run("dpkg-deb", "--control", self.files[package], folder)
                found = {path.name: path for path in Path(folder).iterdir() if path.name.endswith(("inst", "rm"))}
                self.assertEqual(set(found), names)
                for path in found.values():
                    run("sh", "-n", path)
                    self.assertNotIn("@", path.read_text().replace("rxe@", ""))

    def test_sums(self):
        for package, path in self.files.items():
            with self.subTest(package), tempfile.TemporaryDirectory() as folder:
                run("dpkg-deb", "--raw-extract", path, folder)
                run("md5sum", "--check", "--strict", "DEBIAN/md5sums", cwd=folder)

    def test_source_for_dkms(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--raw-extract", self.files["rxe-rs-dkms"], folder)
            self.assertEqual(os.readlink(f"{folder}/{SOURCE}/rxe-dkms"), "/usr/libexec/rxe_rs/rxe-dkms")
            self.assertEqual((Path(folder) / "DEBIAN/conffiles").read_text(), "/etc/dkms/framework.conf.d/rxe_rs.conf\n")
            self.assertEqual((Path(folder) / "DEBIAN/triggers").read_text(), (DEB / "rxe-rs-dkms.triggers").read_text())
            conf = run("bash", "-c", 'kernelver=$0; . "$1"; echo "$PACKAGE_NAME $PACKAGE_VERSION $PRE_BUILD $BUILD_EXCLUSIVE_KERNEL"', RELEASE,
                       f"{folder}/{SOURCE}/dkms.conf")
            self.assertEqual(conf, f"rxe_rs {VERSION} rxe-dkms build {RELEASE} ^7\\.[23]\\.\n")
            # What the sources include, and what Kbuild names.
            for path in [path for path in (Path(folder) / SOURCE).rglob("*") if path.suffix in (".c", ".h")]:
                for name in re.findall(r'^#include "(.*)"$', path.read_text(), re.M):
                    self.assertTrue((path.parent / name).exists(), f"{path}: {name}")
            for path in re.findall(r"rxe_rs/\S+?\.o\b", (Path(folder) / SOURCE / "Kbuild").read_text()):
                base = Path(folder) / SOURCE / path
                if path != "rxe_rs/rxe_rs.o" and "ktests" not in path:
                    self.assertTrue(base.with_suffix(".c").exists() or base.with_suffix(".rs").exists(), path)

    def test_module_of_the_package_precedes_that_of_dkms(self):
        """Whichever of them depmod finds first in the folder."""
        for first, second in (("updates", "updates/dkms"), ("updates/dkms", "updates")):
            with self.subTest(first), tempfile.TemporaryDirectory() as folder:
                modules = Path(folder) / f"lib/modules/{self.RELEASE}"
                run("dpkg-deb", "--extract", self.files[self.modules], f"{folder}/package")
                for place in (first, second):
                    (modules / place).mkdir(parents=True, exist_ok=True)
                    shutil.copy(f"{folder}/package/usr/lib/modules/{self.RELEASE}/updates/rxe_rs.ko", modules / place)
                for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
                    (modules / name).write_text("")
                run("depmod", "--basedir", folder, "--config", f"{folder}/package/usr/lib/depmod.d", self.RELEASE)
                self.assertEqual((modules / "modules.dep").read_text(), "updates/rxe_rs.ko:\n")

    def test_lists_of_depmod(self):
        """The scripts of the package write them, or leave the old ones if the disk is full, which depmod would truncate."""
        def script(name, argument, full):
            """Runs one with a folder for /. A limit of the size of files is as good as a full disk."""
            limit = "trap '' XFSZ\nulimit -f 0\n" if full else ""
            (root / "depmod").write_text(f'#!/bin/sh\n{limit}exec {depmod} --basedir {root} "$@"\n')
            (root / "depmod").chmod(0o755)
            text = (scripts / name).read_text().replace("/lib/modules", f"{root}/lib/modules")
            return run("sh", "-c", text, name, argument, env={**os.environ, "PATH": f"{root}:{os.environ['PATH']}"})

        def lists():
            return {path.name: path.read_bytes() for path in modules.iterdir() if path.is_file()}
        with tempfile.TemporaryDirectory() as folder:
            root, scripts = Path(folder) / "root", Path(folder) / "scripts"
            modules = root / f"lib/modules/{self.RELEASE}"
            run("dpkg-deb", "--control", self.files[self.modules], scripts)
            (modules / "kernel").mkdir(parents=True)
            shutil.copy(self.module(), modules / "kernel/other.ko")
            for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
                (modules / name).write_text("")
            depmod = shutil.which("depmod", path="/usr/sbin:/sbin")
            run(depmod, "--basedir", root, self.RELEASE)
            old = lists()
            (modules / "updates").mkdir()
            shutil.copy(self.module(), modules / "updates")
            for full in (True, False):
                said = script("postinst", "configure", full)
                self.assertEqual(f"remove the cause above, then run: depmod {self.RELEASE}\n" in said, full, said)
                self.assertEqual(lists() == old, full)
                self.assertFalse((modules / ".rxe_rs").exists())
            self.assertIn("updates/rxe_rs.ko:", (modules / "modules.dep").read_text())
            new = lists()
            (modules / "updates/rxe_rs.ko").unlink()
            for full in (True, False):
                script("postrm", "remove", full)
                self.assertEqual(lists(), new if full else old)
                self.assertFalse((modules / ".rxe_rs").exists())
            # The kernel has been removed, and the scripts were killed before.
            shutil.rmtree(modules)
            (modules / ".rxe_rs").mkdir(parents=True)
            script("postrm", "remove", False)
            self.assertEqual(list(modules.iterdir()), [])

    def test_removal_lets_dkms_build(self):
        """DKMS has skipped the kernel while the package was installed."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            run("dpkg-deb", "--control", self.files[self.modules], root / "scripts")
            modules = root / f"lib/modules/{self.RELEASE}"
            modules.mkdir(parents=True)
            (modules / "modules.order").touch()
            text = (root / "scripts/postrm").read_text().replace("/lib/modules", f"{root}/lib/modules").replace("/usr/libexec", folder)
            for name, script in (("depmod", 'mkdir "$2"'), ("dpkg-trigger", f'echo "$*" >>{root}/called; exit 1')):
                (root / name).write_text(f"#!/bin/sh\n{script}\n")
                (root / name).chmod(0o755)

            def triggered(argument):
                (root / "called").write_text("")
                run("sh", "-c", text, "postrm", argument, env={**os.environ, "PATH": f"{root}:{os.environ['PATH']}"})
                return (root / "called").read_text()
            self.assertEqual(triggered("remove"), "")
            (root / "rxe_rs").mkdir()
            shutil.copy(root / "depmod", root / "rxe_rs/rxe-dkms")
            self.assertEqual(triggered("remove"), "--no-await /usr/src\n")
            self.assertIn("interest-noawait /usr/src\n", (DEB / "rxe-rs-dkms.triggers").read_text())
            # The next version of the package has a module again.
            self.assertEqual(triggered("upgrade"), "")

    def test_says_that_another_kernel_runs(self):
        """One line, and only on a system that runs: in the tree of an image the running kernel is not that of the system."""
        with tempfile.TemporaryDirectory() as folder:
            root, other = Path(folder), "7.3.9-other-amd64"
            run("dpkg-deb", "--control", self.files[self.modules], root / "scripts")
            text = (root / "scripts/postinst").read_text().replace("/lib/modules", f"{root}/lib/modules")
            (root / f"lib/modules/{self.RELEASE}").mkdir(parents=True)
            for running, systemd, chroot, lines in ((self.RELEASE, True, False, 0), (other, True, False, 1), (other, True, True, 0), (other, False, False, 0)):
                with self.subTest(running=running, systemd=systemd, chroot=chroot):
                    for name, script in (("uname", f"echo {running}"), ("ischroot", f"exit {int(not chroot)}"), ("depmod", 'mkdir "$2"')):
                        (root / name).write_text(f"#!/bin/sh\n{script}\n")
                        (root / name).chmod(0o755)
                    here = text.replace("/run/systemd/system", f"{root}/{'scripts' if systemd else 'none'}")
                    said = run("sh", "-c", here, "postinst", "configure", env={**os.environ, "PATH": f"{root}:{os.environ['PATH']}"})
                    self.assertEqual(len(said.splitlines()), lines, said)
                    self.assertEqual(f"Linux {other} runs; boot the former, or install rxe-rs-modules-{other}\n" in said, bool(lines), said)

    def test_pages_refer_to_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--extract", self.files["rxe-rs-tools"], folder)
            pages = {path.name: path.read_text() for path in (Path(folder) / "usr/share/doc/rxe-rs-tools").glob("*.md")}
            self.assertEqual(set(pages), {f"{page}.md" for page in PAGES})
            found = [link for text in pages.values() for link in re.findall(r"\]\((?!https?:)([^)#]+)", text)]
            self.assertGreater(len(found), 8)
            self.assertEqual(set(found) - set(pages), set())

    def test_library(self):
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--extract", self.files["librxe-rs-dev"], folder)
            self.assertEqual(os.readlink(f"{folder}/{self.libraries}/librxe_rs.so"), "librxe_rs.so.1")
            run("dpkg-deb", "--control", self.files["librxe-rs1"], folder)
            self.assertEqual((Path(folder) / "shlibs").read_text(), f"librxe_rs 1 librxe-rs1 (>= {VERSION}~)\n")
        self.assertIn("librxe_rs.so.1", (TOP / "tools/librxe_rs/build.rs").read_text())

    def test_same_again(self):
        """Packages of another version are removed: docs/install.md names them by patterns."""
        again = self.folder / "again"
        again.mkdir()
        old = [again / f"rxe-rs-tools_0.0.1_{self.ARCHITECTURE}.deb", again / f"{self.modules}_0.0.1+signed1_{self.ARCHITECTURE}.deb"]
        others = [again / "rxe-rs-tools_0.0.1_s390x.deb", again / f"{self.modules}-other_0.0.1_{self.ARCHITECTURE}.deb"]
        for path in (*old, *others):
            path.touch()
        self.assertEqual(self.build(self.module(), again)[0], 0)
        for path in self.files.values():
            with self.subTest(path.name):
                self.assertEqual(path.read_bytes(), (again / path.name).read_bytes())
        self.assertEqual([path.exists() for path in (*old, *others)], [False, False, True, True])


class PackagesForArm64(Packages):
    """Of a module for arm64: what is in them is built by cross compilers."""
    GCC, OBJCOPY, RELEASE = "aarch64-linux-gnu-gcc-14", "aarch64-linux-gnu-objcopy", "7.9.1+deb13-cloud-arm64"
    ARCHITECTURE, TRIPLET, MACHINE = "arm64", "aarch64-linux-gnu", "AArch64"


class Link(unittest.TestCase):
    """rxe-link on a simulated host, whose udev renames a new device from rxe0 to rocep1s0 after a number of calls of programs."""
    KEYS = {"0 0x8001", "1 0x0002"}

    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.devices = self.root / "sys/class/infiniband"
        for name in ("usr/bin", "etc/rxe_rs", "sys/class/net/eth0", "sys/class/infiniband", "sys/module/rxe_rs"):
            (self.root / name).mkdir(parents=True)
        (self.root / "etc/rxe_rs/eth0.conf").write_text("name rxe0\npkey 0 0x8001\npkey 1 0x0002\n")
        self.program("modprobe", "")
        self.program("rdma", """
case "$1 $2" in
"link show") for d in *; do [ ! -e "$d" ] || echo "link $d/1 state ACTIVE physical_state LINK_UP netdev eth0 netdev_index 2 "; done ;;
"link add") mkdir "$3" || { echo "error: Too many open files in system"; exit 1; }; echo 0 0xffff >"$3/pkey_table" ;;
"link del") [ -e "$3" ] || { echo Wrong device name >&2; exit 1; }; rm -r "$3" ;;
esac""")
        self.program("rxectl", """
[ -e "$3" ] || { echo "error: there is no RDMA device $3 here" >&2; exit 2; }
[ "$5" != 0x0666 ] || { echo "error: refused" >&2; exit 2; }
[ "$2" = del ] || ! grep -v "^$4 " "$3/pkey_table" | grep -q " $5$" || { echo "error: another entry holds $5" >&2; exit 2; }
sed -i "/^$4 /d" "$3/pkey_table"
[ "$2" != set ] || echo "$4 $5" >>"$3/pkey_table" """)

    def program(self, name, script):
        """A stand-in that runs in the folder of the devices; call number `rename` of one of them finds the device renamed."""
        path = self.root / "usr/bin" / name
        path.write_text(f"""#!/bin/sh
cd {self.devices}
n=$(($(cat ../calls 2>/dev/null) + 1))
echo $n >../calls
[ ! -e rxe0 ] || [ $n -lt "$(cat ../rename)" ] || mv rxe0 rocep1s0
(:
{script}
)
status=$?
[ $n != "$(cat ../interrupt)" ] || kill -TERM 0
exit $status
""")
        path.chmod(0o755)

    def rxe_link(self, verb, rename, interrupt=0, program=DEB / "rxe-link", netdev="eth0", unit=None):
        """Runs it in a process group of its own, of which each process gets SIGTERM at the end of call number `interrupt`; for the unit of that
        name, if there is one."""
        for name, number in (("rename", rename), ("calls", 0), ("interrupt", interrupt)):
            (self.devices.parent / name).write_text(str(number))
        environment = {"RXE_LINK_ROOT": str(self.root)} | ({"RUNTIME_DIRECTORY": str(self.root)} if unit else {})
        done = subprocess.run([program, verb, netdev, *filter(None, [unit])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              start_new_session=True, env={**os.environ, **environment})
        return done.returncode, done.stdout

    def table(self):
        """The names of the devices, and the P_Keys of all."""
        paths = list(self.devices.iterdir())
        return [path.name for path in paths], {line for path in paths for line in (path / "pkey_table").read_text().splitlines()}

    def test_not_renamed(self):
        self.assertEqual(self.rxe_link("up", 1000), (0, ""))
        self.assertEqual(self.table(), (["rxe0"], self.KEYS))
        self.assertEqual(self.rxe_link("down", 1000), (0, ""))
        self.assertEqual(self.table(), ([], set()))

    def test_renamed_while_it_is_made(self):
        for calls in range(1, 16):
            with self.subTest(calls):
                self.assertEqual(self.rxe_link("up", calls), (0, ""))
                self.assertEqual(self.table()[1], self.KEYS)
                self.assertEqual(self.rxe_link("down", 1000), (0, ""))
                self.assertEqual(self.table(), ([], set()))

    def test_refused_key(self):
        """Whenever the device is renamed, no link remains."""
        (self.root / "etc/rxe_rs/eth0.conf").write_text("name rxe0\npkey 0 0x8001\npkey 1 0x0666\n")
        for calls in range(1, 50):
            with self.subTest(calls):
                status, said = self.rxe_link("up", calls)
                self.assertEqual((status, self.table()), (1, ([], set())), said)
                self.assertIn("error: ", said)
                self.assertRegex(said, r"rxe-link: cannot set the P_Keys of (rxe0|rocep1s0), so that eth0 gets no link\n\Z")

    def test_both_memberships_of_a_partition(self):
        keys = ("0 0x7fff", "1 0x8005", "2 0x0005", "3 0xffff")
        (self.root / "etc/rxe_rs/eth0.conf").write_text("name rxe0\n" + "".join(f"pkey {key}\n" for key in keys))
        for calls in range(1, 16):
            with self.subTest(calls):
                self.assertEqual(self.rxe_link("up", calls), (0, ""))
                self.assertEqual(self.table()[1], set(keys))
                self.assertEqual(self.rxe_link("down", 1000), (0, ""))

    def test_the_same_key_in_two_entries(self):
        (self.root / "etc/rxe_rs/eth0.conf").write_text("name rxe0\npkey 1 0x8005\npkey 2 0x8005\n")
        status, said = self.rxe_link("up", 1000)
        self.assertEqual((status, self.table()), (1, ([], set())), said)
        self.assertIn("another entry holds 0x8005", said)

    def test_no_module(self):
        """The kernel of Debian 13 without backports has none, and there is no package for it."""
        (self.root / "sys/module/rxe_rs").rmdir()
        self.program("modprobe", "echo modprobe: FATAL: Module rxe_rs not found in directory x >&2; exit 1")
        for release, remedy in (("7.3.4+deb13-amd64", "install the package rxe-rs-modules-7.3.4+deb13-amd64"),
                                ("6.12.48+deb13-amd64", "it is for Linux 7.2 and 7.3; install such a kernel (/usr/share/doc/rxe-rs-tools/install.md, The kernel) and boot it"),
                                ("7.20.1-amd64", "it is for Linux 7.2 and 7.3; install such a kernel (/usr/share/doc/rxe-rs-tools/install.md, The kernel) and boot it")):
            with self.subTest(release):
                self.program("uname", f"echo {release}")
                # In a folder without rxe-dkms.
                program = shutil.copy(DEB / "rxe-link", self.root)
                self.assertEqual(self.rxe_link("up", 1000, program=program), (1, f"rxe-link: rxe_rs is not installed for Linux {release}; {remedy}\n"))

    def test_module_that_modprobe_does_not_know(self):
        """depmod has failed, as it does when the disk is full."""
        (self.root / "sys/module/rxe_rs").rmdir()
        self.program("modprobe", "echo modprobe: FATAL: Module rxe_rs not found in directory x >&2; exit 1")
        self.program("uname", "echo 7.3.4-test")
        for name in ("dkms/rxe_rs.ko.xz", "rxe_rs.ko"):
            path = self.root / "lib/modules/7.3.4-test/updates" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self.assertEqual(self.rxe_link("up", 1000), (1, f"rxe-link: modprobe does not know {path}; perhaps the disk was full when it was "
                                                            "installed; run: depmod 7.3.4-test\n"))
            path.unlink()

    def test_module_without_a_signature(self):
        """The kernel refuses it with one error if signatures are enforced, and with another one if only a lockdown demands them."""
        (self.root / "sys/module/rxe_rs").rmdir()
        lockdown = self.root / "sys/kernel/security/lockdown"
        lockdown.parent.mkdir(parents=True)
        signing = (1, "rxe-link: this kernel loads signed modules only, and has no key for rxe_rs; /usr/share/doc/rxe-rs-tools/install.md, Signing\n")
        error = "modprobe: ERROR: could not insert 'rxe_rs': "
        other = (1, f"rxe-link: cannot load rxe_rs: {error}Operation not permitted; the kernel log (dmesg) has the reason\n")
        for modes, reason, said in ((None, "Key was rejected by service", signing),
                                    ("[none] integrity confidentiality", "Key was rejected by service", signing),
                                    ("none [integrity] confidentiality", "Operation not permitted", signing),
                                    ("none integrity [confidentiality]", "Operation not permitted", signing),
                                    # The caller lacks CAP_SYS_MODULE.
                                    ("[none] integrity confidentiality", "Operation not permitted", other),
                                    (None, "Operation not permitted", other)):
            with self.subTest(modes=modes, reason=reason):
                lockdown.unlink(missing_ok=True)
                if modes:
                    lockdown.write_text(f"{modes}\n")
                self.program("modprobe", f'echo "{error}{reason}" >&2; exit 1')
                self.assertEqual(self.rxe_link("up", 1000), said)

    def test_disabled_modules(self):
        """The kernel loads no module, which is not said to be a matter of signatures."""
        (self.root / "sys/module/rxe_rs").rmdir()
        for path, text in (("sys/kernel/security/lockdown", "none [integrity] confidentiality"), ("proc/sys/kernel/modules_disabled", "1")):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(f"{text}\n")
        self.program("modprobe", "echo \"modprobe: ERROR: could not insert 'rxe_rs': Operation not permitted\" >&2; exit 1")
        self.assertEqual(self.rxe_link("up", 1000), (1, "rxe-link: kernel.modules_disabled is 1, so the kernel loads no module until the next boot; "
                                                        "let rxe_rs be loaded before that is set (modules-load.d(5))\n"))

    def test_name_that_is_taken(self):
        """By a device of another driver."""
        (self.devices / "rxe0").mkdir()
        status, said = self.rxe_link("up", 1000)
        self.assertEqual((status, said), (1, "rxe-link: cannot add the link rxe0 to eth0: another device has that name; set another one in "
                                             "/etc/rxe_rs/eth0.conf\n"))

    def test_interrupted(self):
        """As by `systemctl stop` while the unit starts: whenever that is, no link remains."""
        for rename in (1000, 5):
            for calls in range(1, 100):
                with self.subTest(rename=rename, calls=calls):
                    status, said = self.rxe_link("up", rename, calls)
                    if status == 0:
                        break
                    self.assertEqual(self.table(), ([], set()), said)
            self.assertGreater(calls, 5)
            self.assertEqual(self.table()[1], self.KEYS)
            self.assertEqual(self.rxe_link("down", 1000), (0, ""))

    def test_replaced_network_device(self):
        """The unit looks for the next device if its own has disappeared, and not if it is stopped; so it does if its start has failed."""
        unit, index, called = "rxe@eth0.service", self.root / "sys/class/net/eth0/ifindex", self.root / "called"
        # What systemd knows of the device and of the start of the unit.
        known = {"ActiveState": "active", "ActiveEnterTimestampMonotonic": 100, "InactiveExitTimestampMonotonic": 200}

        def systemd_knows(**changed):
            (self.devices.parent / "known").write_text("".join(f"{name} {value}\n" for name, value in (known | changed).items()))
        systemd_knows()
        self.program("systemd-run", f'[ ! -e ../disabled ] || exit 1; printf "systemd-run %s\\n" "$*" >>{called}')
        self.program("systemctl", f"""
case "$1 $2" in
"show --value")
	case "$5" in {unit} | sys-subsystem-net-devices-eth0.device) sed -n "s/^$4 //p" ../known ;; esac ;;
"--quiet is-enabled") [ ! -e ../disabled ] ;;
*) [ ! -e ../disabled ] || exit 1; echo "systemctl $*" >>{called} ;;
esac""")

        def calls(verb):
            called.write_text("")
            self.assertEqual(self.rxe_link(verb, 1000, unit=unit), (0, ""))
            return called.read_text()
        run = f"systemd-run --quiet --no-block --collect --description=rxe_rs: look for the next eth0 --property=After={unit} {DEB / 'rxe-link'} again eth0 {unit}\n"
        start = f"systemctl --no-block --job-mode=fail start {unit}\n"
        index.write_text("5\n")
        calls("up")
        self.assertEqual(calls("stopped"), "")
        self.assertEqual(calls("again"), start)
        # The unit has started with a device of which systemd was not told before, or is not yet: it was stopped for the one before that.
        systemd_knows(ActiveEnterTimestampMonotonic=201)
        self.assertEqual(calls("stopped"), run)
        systemd_knows(ActiveState="inactive")
        self.assertEqual(calls("stopped"), run)
        systemd_knows()
        index.write_text("6\n")
        # A reload is no start.
        calls("up")
        self.assertEqual(calls("stopped"), run)
        # systemd-run reads escapes in the value of the property, and not in the arguments of the command.
        self.assertEqual(self.rxe_link("stopped", 1000, netdev="br-lan", unit=r"rxe@br\x2dlan.service"), (0, ""))
        self.assertIn(rf"--property=After=rxe@br\\x2dlan.service {DEB / 'rxe-link'} again br-lan rxe@br\x2dlan.service", called.read_text())
        (self.devices.parent / "disabled").touch()
        self.assertEqual(calls("again"), "")
        # The shutdown refuses the call.
        self.assertEqual(calls("stopped"), "")
        (self.devices.parent / "disabled").unlink()
        index.unlink()
        self.assertEqual(calls("stopped"), run)
        self.assertEqual(calls("again"), "")
        calls("down")
        # There was no device when the unit started.
        (self.root / "ifindex").unlink()
        index.parent.rmdir()
        self.assertEqual(self.rxe_link("up", 1000, unit=unit), (1, "rxe-link: there is no network device eth0\n"))
        index.parent.mkdir()
        index.write_text("7\n")
        self.assertEqual(calls("stopped"), run)
        # The start was interrupted before all else; the older version of the package has started the unit.
        (self.root / "ifindex").unlink()
        self.assertEqual(calls("stopped"), run)
        calls("down")
        self.assertEqual(calls("stopped"), "")

    def test_renamed_while_it_is_deleted(self):
        for calls in range(1, 4):
            with self.subTest(calls):
                self.assertEqual(self.rxe_link("up", 1000), (0, ""))
                self.assertEqual(self.rxe_link("down", calls), (0, ""))
                self.assertEqual(self.table(), ([], set()))


class Refusals(StandIns):
    def refused(self, text, *arguments, **environment):
        status, said = self.build(*arguments, self.folder / "none", **environment)
        self.assertEqual(status, 1, said)
        self.assertRegex(said, rf"\Aerror: [^\n]*{re.escape(text)}[^\n]*\n\Z")
        self.assertEqual(list((self.folder / "none").glob("*")), [])

    def test_no_module(self):
        self.refused("build it: make", self.folder / "missing.ko")
        self.refused("is no kernel module", self.tools / "man/rxectl.1")

    def test_other_version(self):
        self.refused("has version 99.1.0", self.module("old.ko", version="99.1.0"))

    def test_impossible_name(self):
        self.refused('"7.9_own"', self.module("own.ko", release="7.9_own"))

    def test_no_tools(self):
        with unittest.mock.patch.object(self, "tools", self.folder / "missing"):
            self.refused("build it: make tools", self.module())
            self.refused("build it: make tools FLAVOUR=arm64", self.module("arm64.ko", "7.9.1+deb13-arm64"))

    def test_half_a_key(self):
        self.refused("cannot read SIGN_CERT=;", self.module(), SIGN_KEY="/bin/true")
        self.refused("cannot read SIGN_KEY=/missing;", self.module(), SIGN_KEY="/missing", SIGN_CERT="/bin/true")

    def test_no_program_for_signing(self):
        self.refused(f"{RELEASE}, prepared here, has no sign-file", self.module(), SIGN_KEY="/bin/true", SIGN_CERT="/bin/true")


class Signing(StandIns):
    def test_signed(self):
        """With the sign-file of the kernel that is tested."""
        shown = run(HERE / "kernel.py", "show", *filter(None, [os.environ.get("KERNEL")]))
        release = re.search(r"^RELEASE=(.*)$", shown, re.M)[1]
        key, certificate = self.folder / "mok.key", self.folder / "mok.der"
        run("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a test of rxe_rs/", "-outform", "DER",
            "-keyout", key, "-out", certificate)
        module = self.module("signed.ko", release=release)
        out = self.folder / "signed"
        status, said = self.build(module, out, SIGN_KEY=key, SIGN_CERT=certificate)
        self.assertEqual(status, 0, said)
        # A version of its own, as apt does not replace the unsigned package by one of the same version.
        since = run("openssl", "x509", "-in", certificate, "-noout", "-startdate").strip().partition("=")[2]
        version = PACKAGES + time.strftime("+signed%Y%m%d%H%M%S.", time.strptime(since, "%b %d %H:%M:%S %Y %Z"))
        version += hashlib.sha256(certificate.read_bytes()).hexdigest()[:8]
        names = [path.name for path in out.glob("rxe-rs-modules-*")]
        self.assertEqual(names, [f"rxe-rs-modules-{release}_{version}_amd64.deb"])
        self.assertEqual(subprocess.run(["dpkg", "--compare-versions", version, "gt", PACKAGES]).returncode, 0)
        self.assertTrue((out / f"rxe-rs-tools_{PACKAGES}_amd64.deb").exists())
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "--extract", out / names[0], folder)
            installed = Path(folder) / f"usr/lib/modules/{release}/updates/rxe_rs.ko"
            self.assertEqual(run("modinfo", "-F", "signer", installed).strip(), "a test of rxe_rs")
        self.assertEqual(run("modinfo", "-F", "signer", module).strip(), "")
        status, said = self.build(module, out, SIGN_KEY=certificate, SIGN_CERT=key)
        self.assertEqual((status, said.splitlines()[-1].split(":")[0]), (1, "error"), said)


class Sources(unittest.TestCase):
    """tools/deb."""

    def test_scripts(self):
        scripts = [path for path in DEB.iterdir() if path.read_text().startswith("#!")]
        self.assertGreater(len(scripts), 5)
        for path in scripts:
            with self.subTest(path.name):
                run("sh", "-n", path)

    def test_unit_runs_what_the_package_has(self):
        unit = (DEB / "rxe@.service").read_text()
        programs = set(re.findall(r"^Exec\w+=/(\S+) (\w+) %I$", unit, re.M))
        self.assertEqual(programs, {("usr/libexec/rxe_rs/rxe-link", "up"), ("usr/libexec/rxe_rs/rxe-link", "down")})
        self.assertEqual({path for path, _ in programs} - CONTENTS["rxe-rs-tools"], set())
        # What would let the boot wait for a link, or fail with it.
        self.assertEqual(re.findall(r"^(?:WantedBy|RequiredBy)=(.*)$", unit, re.M), ["sys-subsystem-net-devices-%i.device"])

    def test_series(self):
        """What says for which series of kernels the module is says the same everywhere."""
        self.assertTrue(all(series.startswith("7.") for series in kernel.SUPPORTED))
        digits = "".join(series.partition(".")[2] for series in kernel.SUPPORTED)
        named, listed = " and ".join(kernel.SUPPORTED), ", ".join(f'"{series}"' for series in kernel.SUPPORTED)
        for path, parts in (
                (DEB / "rxe-link", (f"7.[{digits}][!0-9]*)", f"it is for Linux {named};")),
                (DEB / "rxe-dkms", (f"\t{' | '.join(kernel.SUPPORTED)}) ;;", f"rxe_rs is for Linux {named}", f"7.[{digits}].*")),
                (DEB / "dkms.conf", (rf'BUILD_EXCLUSIVE_KERNEL="^7\.[{digits}]\."',)),
                (DEB / "control", (f"series {named}", *(f"linux-source-{series}" for series in kernel.SUPPORTED))),
                (TOP / "tools/rxectl/src/doctor.rs", (f"= [{listed}];",)),
                (TOP / "docs/install.md", (f"The module is for Linux {named},",)),
                (TOP / "README.md", (f"of the series {named},",))):
            for part in parts:
                with self.subTest(path=path.name, part=part):
                    self.assertIn(part, path.read_text())

    def test_example_has_all_settings(self):
        program = (DEB / "rxe-link").read_text()
        settings = re.findall(r"^\t\t(\w+)\)$", program, re.M)
        self.assertEqual(settings, ["name", "pkey"])
        for name in settings:
            self.assertRegex((DEB / "eth0.conf").read_text(), rf"(?m)^#?{name} ")

    def test_readme_has_the_lines_of_modprobe(self):
        lines = [line for line in (DEB / "replace-rdma_rxe.conf").read_text().splitlines() if not line.startswith("#")]
        self.assertEqual(len(lines), 4)
        self.assertIn("\n\n" + "".join(f"    {line}\n" for line in lines) + "\n", (TOP / "README.md").read_text())

    def test_removal(self):
        """The command of the document removes what is installed, whichever packages these are."""
        command = shlex.split(re.search("`(apt purge [^`]*)`", (TOP / "docs/install.md").read_text())[1])
        for names in (["rxe-rs-tools"], [f"rxe-rs-modules-{RELEASE}", "rxe-rs-tools"], ["rxe-rs-dkms", "rxe-rs-tools", "librxe-rs1", "librxe-rs-dev"]):
            with self.subTest(names), tempfile.TemporaryDirectory() as folder:
                for name in ("state/lists/partial", "cache/archives/partial", "etc"):
                    (Path(folder) / name).mkdir(parents=True)
                (Path(folder) / "status").write_text("".join(
                    f"Package: {name}\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\nMaintainer: x\nDescription: x\n\n"
                    for name in [*names, "rdma-core", "libc6"]))
                places = {"Dir::State": "state", "Dir::State::status": "status", "Dir::Cache": "cache", "Dir::Etc": "etc"}
                said = run("apt", "--simulate", *(f"-o{key}={folder}/{name}" for key, name in places.items()), *command[1:])
                self.assertEqual(sorted(re.findall(r"^Purg (\S+)", said, re.M)), sorted(names))

    def test_document_names_the_messages(self):
        """Users search for what they have read."""
        program = (DEB / "rxe-link").read_text()
        for message in re.findall(r"^\| `rxe-link: ([^`]+?)(?: ….*)?` \|", (TOP / "docs/install.md").read_text(), re.M):
            with self.subTest(message):
                self.assertIn(re.split(r" …|/etc", message)[0], program)


if __name__ == "__main__":
    unittest.main()
