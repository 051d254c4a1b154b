# SPDX-License-Identifier: GPL-2.0
"""Tests of rxe-dkms, by which DKMS builds the module of the package rxe-rs-dkms, and of that package's scripts, with programs in place of
`dkms`, `dpkg` and the compilers. `install/dkms` builds with the real ones."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

DEB = Path(__file__).resolve().parent.parent / "tools/deb"


class Host(unittest.TestCase):
    """A simulated host."""

    KERNEL, PACKAGE = "7.2.12+deb13-amd64", "7.2.12-1~bpo13+1"
    AGAIN = f"dkms install rxe_rs/1.0 -k {KERNEL}"

    def setUp(self):
        """A host on which a build is possible."""
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.put("lib/modules/{}/modules.order", "")
        self.put("lib/modules/{}/build/include/config/auto.conf",
                 'CONFIG_RUST=y\nCONFIG_RUSTC_VERSION=108501\nCONFIG_RUSTC_VERSION_TEXT="rustc 1.85.1 (4eb16 2025-03-15) (built)"\n')
        self.put("usr/src/rxe_rs-1.0/dkms.conf", 'PACKAGE_VERSION="1.0"\n')
        self.put("usr/src/linux-source-7.2.tar.xz", "")
        self.put("sysroot/lib/rustlib/src/rust/library/core/src/lib.rs", "")
        (self.root / "var/lib/dkms").mkdir(parents=True)
        self.rustc("1.85.1")
        self.versions({f"linux-headers-{self.KERNEL}": self.PACKAGE, "linux-source-7.2": self.PACKAGE})
        self.free(5000)
        self.program("usr/bin/dkms", f'echo "dkms $*" >>{self.root}/called')
        self.program("usr/libexec/rxe_rs/kernel-tree", 'echo "kernel-tree $1"; [ $1 != make ] || touch out/7.2/rxe_rs.ko')
        self.folder = self.root / "build"
        self.folder.mkdir()

    def put(self, path, text):
        path = self.root / path.format(self.KERNEL)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, path, script):
        self.put(path, f"#!/bin/sh\n{script}\n").chmod(0o755)

    def rustc(self, version):
        self.program("usr/bin/rustc", f'case $1 in --version) echo "rustc {version} (abc 2025-01-01)" ;; *) echo {self.root}/sysroot ;; esac')

    def versions(self, packages, files=()):
        """What dpkg knows: the versions of packages, and files of that of the module."""
        cases = " ".join(f'{name}) echo "installed {version}" ;;' for name, version in packages.items())
        owned = " ".join(f'"*{path}") echo "rxe-rs-modules-{self.KERNEL}: /usr{path}" ;;' for path in files)
        self.program("usr/bin/dpkg-query", f'[ $1 != -S ] || case "$2" in {owned} *) exit 1 ;; esac\n[ $1 = -S ] || case $4 in {cases} *) exit 1 ;; esac')

    def free(self, mebibytes):
        self.program("usr/bin/df", f"echo header; echo x x x {mebibytes} x x")

    def rxe_dkms(self, *arguments, log=None):
        done = subprocess.run([DEB / "rxe-dkms", *arguments], cwd=self.folder, stdout=log or subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env={**os.environ, "RXE_DKMS_ROOT": str(self.root)})
        return done.returncode, done.stdout

    def of_dkms(self, version="1.0"):
        """The mark of DKMS that it has installed a module."""
        link = self.root / f"var/lib/dkms/rxe_rs/kernel-{self.KERNEL}-x86_64"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(version)
        return link


class Dkms(Host):
    """What rxe-dkms says about a kernel, and that builds fail softly."""

    def says(self, reason, remedy):
        """`why` and `status` say so, `build` too, and it is skipped; nothing remains in its folder."""
        self.assertEqual(self.rxe_dkms("why", self.KERNEL), (0, f"{reason}\n{remedy}\n"))
        self.assertEqual(self.rxe_dkms("status"), (0, f"rxe_rs: not built for {self.KERNEL}: {reason}; {remedy}\n"))
        self.assertEqual(self.rxe_dkms("build", self.KERNEL), (77, f"rxe_rs: {reason}; {remedy}\n"))
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(self.rxe_dkms("all")[0], 0)
        self.assertFalse((self.root / "called").exists(), "a build that cannot succeed has been started")

    def test_no_headers(self):
        shutil.rmtree(self.root / f"lib/modules/{self.KERNEL}/build")
        self.says(f"linux-headers-{self.KERNEL} is not installed", f"apt install linux-headers-{self.KERNEL}, or upgrade the kernel")

    def test_part_of_the_headers(self):
        """The installation of the package was interrupted."""
        self.root.joinpath(f"lib/modules/{self.KERNEL}/build/include/config/auto.conf").unlink()
        self.says(f"linux-headers-{self.KERNEL} is not installed", f"apt install linux-headers-{self.KERNEL}, or upgrade the kernel")

    def test_neither_headers_nor_source(self):
        """The remedy has both packages, the source with the version of the kernel."""
        shutil.rmtree(self.root / f"lib/modules/{self.KERNEL}/build")
        image, needed = {f"linux-image-{self.KERNEL}": self.PACKAGE}, f"apt install linux-headers-{self.KERNEL}"
        for packages, remedy in (({}, f"{needed} linux-source-7.2"), (image, f"{needed} linux-source-7.2={self.PACKAGE}"),
                                 (image | {"linux-source-7.2": "7.2.11-1"}, f"{needed} linux-source-7.2={self.PACKAGE}"),
                                 (image | {"linux-source-7.2": self.PACKAGE}, needed)):
            with self.subTest(packages):
                self.versions(packages)
                self.says(f"linux-headers-{self.KERNEL} is not installed", f"{remedy}, or upgrade the kernel")

    def test_no_source(self):
        self.versions({f"linux-headers-{self.KERNEL}": self.PACKAGE})
        self.says("linux-source-7.2 is not installed", f"apt install linux-source-7.2={self.PACKAGE}, or upgrade the kernel")

    def test_other_source(self):
        self.versions({f"linux-headers-{self.KERNEL}": self.PACKAGE, "linux-source-7.2": "7.2.11-1"})
        self.says(f"linux-source-7.2 is of 7.2.11-1, and the kernel of {self.PACKAGE}",
                  f"apt install linux-source-7.2={self.PACKAGE}, or upgrade the kernel to that of linux-source-7.2")

    def test_other_rustc(self):
        self.rustc("1.90.0")
        self.says(f"the kernel was built by rustc 1.85.1, and {self.root}/usr/bin/rustc is rustc 1.90.0",
                  f"install that version (apt-cache policy rustc), or the module package rxe-rs-modules-{self.KERNEL}")

    def test_no_library_source(self):
        shutil.rmtree(self.root / "sysroot")
        self.says("rust-src is not installed", "apt install rust-src")

    def test_no_space(self):
        self.free(200)
        self.says(f"{self.root}/var/lib/dkms has 200 MiB free, and a build needs 1000 MiB", f"free some space, then: {self.AGAIN}")

    def test_kernel_without_rust(self):
        self.put("lib/modules/{}/build/include/config/auto.conf", "CONFIG_NET=y\n")
        self.says("this kernel was built without Rust", "boot a kernel of Debian's backports")

    def test_other_series(self):
        self.assertEqual(self.rxe_dkms("why", "6.12.1-amd64")[1].splitlines()[0], "rxe_rs is for Linux 7.2 and 7.3")
        self.put("lib/modules/6.12.1-amd64/modules.order", "")
        self.assertNotIn("6.12.1", self.rxe_dkms("status")[1])

    def test_build(self):
        status, said = self.rxe_dkms("build", self.KERNEL)
        self.assertEqual((status, said), (0, "kernel-tree unpack\nkernel-tree prepare\nkernel-tree make\n"))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["rxe_rs.ko"])

    def test_failed_build(self):
        """The tree is removed, the step is named, and `why` has it later, with DKMS's log as long as that is of this kernel."""
        self.program("usr/libexec/rxe_rs/kernel-tree", "mkdir -p linux; [ $1 != prepare ]")
        status, said = self.rxe_dkms("build", self.KERNEL)
        self.assertEqual((status, said), (77, "rxe_rs: the build failed (kernel-tree prepare)\n"))
        self.assertEqual(list(self.folder.iterdir()), [])
        log = self.put("var/lib/dkms/rxe_rs/1.0/build/make.log",
                       f"DKMS (dkms-3.2.2) make.log for rxe_rs/1.0 for kernel {self.KERNEL} (x86_64)\n{said}\n# exit code: 77\n")
        self.assertEqual(self.rxe_dkms("why", self.KERNEL)[1], f"the build failed (kernel-tree prepare)\nsee {log}; then: {self.AGAIN}\n")
        log.write_text("DKMS (dkms-3.2.2) make.log for rxe_rs/1.0 for kernel 7.3.4 (x86_64)\n")
        self.assertEqual(self.rxe_dkms("why", self.KERNEL)[1], f"the build failed (kernel-tree prepare)\n{self.AGAIN}; then see {log}\n")
        # A build that succeeds leaves nothing to tell.
        self.program("usr/libexec/rxe_rs/kernel-tree", "[ $1 != make ] || touch out/7.2/rxe_rs.ko")
        self.assertEqual(self.rxe_dkms("build", self.KERNEL)[0], 0)
        self.assertEqual(self.rxe_dkms("why", self.KERNEL)[1], f"it has not been built yet\n{self.AGAIN}\n")
        self.assertEqual(list(self.root.rglob("failed-*")), [])

    def test_interrupted_build(self):
        self.program("usr/libexec/rxe_rs/kernel-tree", "mkdir -p linux; kill -KILL $PPID")
        self.assertEqual(self.rxe_dkms("build", self.KERNEL)[0], -9)
        self.assertEqual(self.rxe_dkms("why", self.KERNEL)[1].splitlines()[0], "the build was interrupted")
        # `dpkg --configure -a` completes the installation.
        self.assertEqual(self.rxe_dkms("all")[0], 0)
        self.assertIn(f"-k {self.KERNEL}", (self.root / "called").read_text())

    def test_two_kernels_that_fail(self):
        """Both have their reasons, and neither is built again as long as nothing has changed; the versions of one concern that one only."""
        other, log = "7.3.4+deb13-amd64", "/var/lib/dkms/rxe_rs/1.0/build/make.log"
        for name in ("modules.order", "build/include/config/auto.conf"):
            self.put(f"lib/modules/{other}/{name}", (self.root / f"lib/modules/{self.KERNEL}/{name}").read_text())
        self.put("usr/src/linux-source-7.3.tar.xz", "")
        versions = {f"linux-headers-{self.KERNEL}": self.PACKAGE, "linux-source-7.2": self.PACKAGE,
                    f"linux-headers-{other}": "7.3.4-1", "linux-source-7.3": "7.3.4-1"}
        self.versions(versions)
        self.program("usr/libexec/rxe_rs/kernel-tree", "case $PWD:$1 in *7.2*:unpack | *7.3*:prepare) exit 1 ;; esac")
        # As DKMS, which has one folder for builds.
        self.program("usr/bin/dkms", f"""echo "$7" >>{self.root}/called
mkdir -p {self.root}{log[:-9]}/$7
cd {self.root}{log[:-9]}/$7
echo "DKMS (dkms-3.2.2) make.log for rxe_rs/1.0 for kernel $7 (x86_64)" >{self.root}{log}
{DEB / "rxe-dkms"} build "$7" >>{self.root}{log} || exit 10""")

        def built():
            self.put("called", "")
            self.assertEqual(self.rxe_dkms("all")[0], 0)
            return (self.root / "called").read_text().split()
        self.assertEqual(built(), [self.KERNEL, other])
        self.assertEqual(built(), [])
        self.assertEqual([self.rxe_dkms("why", release)[1].splitlines()[0] for release in (self.KERNEL, other)],
                         ["the build failed (kernel-tree unpack)", "the build failed (kernel-tree prepare)"])
        versions[f"linux-headers-{other}"] = versions["linux-source-7.3"] = "7.3.4-2"
        self.versions(versions)
        self.assertEqual(built(), [other])
        self.rustc("1.85.1 ")
        self.assertEqual(built(), [self.KERNEL, other])
        self.assertEqual(built(), [])

    def test_marks_are_removed(self):
        """With the package."""
        self.assertIn("/failed-*", (DEB / "rxe-rs-dkms.prerm").read_text())

    def test_disk_full(self):
        self.program("usr/libexec/rxe_rs/kernel-tree", f"mkdir -p linux; cp {self.root}/full {self.root}/usr/bin/df; exit 1")
        self.put("full", "#!/bin/sh\necho header; echo x x x 0 x x\n").chmod(0o755)
        self.assertEqual(self.rxe_dkms("build", self.KERNEL),
                         (77, f"rxe_rs: the build failed: no space left in {self.root}/var/lib/dkms\n"))
        self.assertEqual(list(self.folder.iterdir()), [])
        # Nor has the log any space: that the build cannot say so is no reason to stop the installation of a kernel.
        with open("/dev/full", "w") as log:
            self.assertEqual(self.rxe_dkms("build", self.KERNEL, log=log), (77, None))
            (self.root / "usr/src/linux-source-7.2.tar.xz").unlink()
            self.assertEqual(self.rxe_dkms("build", self.KERNEL, log=log), (77, None))

    def nothing_to_tell(self):
        for arguments in (("why", self.KERNEL), ("status",), ("all",)):
            self.assertEqual(self.rxe_dkms(*arguments), (0, ""))
        self.assertFalse((self.root / "called").exists())

    def test_installed(self):
        """By DKMS, then by the package, too, whose module DKMS would move away."""
        self.program("usr/bin/modinfo", 'cat "$3"')
        self.put("lib/modules/{}/updates/dkms/rxe_rs.ko.xz", "1.0\n")
        self.of_dkms()
        self.nothing_to_tell()
        path = "/lib/modules/{}/updates/rxe_rs.ko".format(self.KERNEL)
        self.put(path[1:], "")
        self.versions({}, [path])
        self.nothing_to_tell()
        self.assertEqual(self.rxe_dkms("build", self.KERNEL), (77, f"rxe_rs: the package rxe-rs-modules-{self.KERNEL} is installed\n"))

    def test_module_of_no_package(self):
        """A user has put it there (README.md)."""
        path = self.put("lib/modules/{}/updates/rxe_rs.ko", "")
        self.says(f"{path} belongs to no package, and DKMS does not replace it", f"to use the module of DKMS: rm {path}; {self.AGAIN}")

    def test_module_of_another_version(self):
        """A removal that has failed has left it, or the disk was full while DKMS wrote it. It is replaced, and DKMS does not keep it."""
        self.program("usr/bin/modinfo", 'cat "$3"')
        for text in ("0.9\n", ""):
            with self.subTest(text):
                path = self.put("lib/modules/{}/updates/dkms/rxe_rs.ko.xz", text)
                self.assertEqual(self.rxe_dkms("why", self.KERNEL), (0, f"it has not been built yet\n{self.AGAIN}\n"))
                self.assertEqual(self.rxe_dkms("all")[0], 0)
                self.assertEqual((self.root / "called").read_text(), f"dkms install -m rxe_rs -v 1.0 -k {self.KERNEL}\n")
                (self.root / "called").unlink()
                self.assertEqual(self.rxe_dkms("build", self.KERNEL)[0], 0)
                self.assertFalse(path.exists())
        # This is one of DKMS.
        path = self.put("lib/modules/{}/updates/dkms/rxe_rs.ko.xz", "0.9\n")
        self.of_dkms("0.9")
        self.assertEqual(self.rxe_dkms("build", self.KERNEL)[0], 0)
        self.assertTrue(path.exists())

    def test_all(self):
        """A failure of DKMS does not fail the installation of the package."""
        self.program("usr/bin/dkms", f'echo "dkms $*" >>{self.root}/called; exit 10')
        status, said = self.rxe_dkms("all")
        self.assertEqual((status, said), (0, f"rxe_rs: not built for {self.KERNEL}: it has not been built yet; {self.AGAIN}\n"))
        self.assertEqual((self.root / "called").read_text(), f"dkms install -m rxe_rs -v 1.0 -k {self.KERNEL}\n")
        (self.root / "called").unlink()
        self.put("etc/dkms/no-autoinstall", "")
        self.assertEqual(self.rxe_dkms("all"), (0, "rxe_rs: not built, because of /etc/dkms/no-autoinstall\n"))
        self.assertFalse((self.root / "called").exists())


class Upgrade(Host):
    """Of the package, whose scripts run with programs in place of those of DKMS."""

    def setUp(self):
        super().setUp()
        self.program("usr/bin/modinfo", 'head -n 1 "$3"')
        self.program("usr/bin/depmod", f'echo "depmod $*" >>{self.root}/called; while [ $1 != -o ]; do shift; done; mkdir "$2"; echo new >"$2/modules.dep"')
        self.module = self.put("lib/modules/{}/updates/dkms/rxe_rs.ko.xz", "1.0\n")
        self.link = self.of_dkms()
        (self.root / "var/lib/dkms/rxe_rs/1.0").mkdir()
        # What DKMS does for an upgrade: it removes the module, and installs the next one.
        self.program("usr/bin/dkms", f"""echo "dkms $*" >>{self.root}/called
case $1 in
remove) rm -rf {self.module} {self.link} {self.root}/var/lib/dkms/rxe_rs/1.0 ;;
install) [ -e {self.root}/broken ] || {{ mkdir -p {self.link.parent}; ln -s 1.0 {self.link}; echo 1.0 >{self.module}; echo new >>{self.module}; }} ;;
esac""")

    def script(self, name, argument):
        """Runs a script of the package."""
        text = (DEB / f"rxe-rs-dkms.{name}").read_text().replace("@VERSION@", "1.0").replace("/usr/libexec/rxe_rs", str(DEB))
        text = text.replace("/var/lib/dkms", f"{self.root}/var/lib/dkms")
        done = subprocess.run(["sh", "-c", text, name, argument], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "RXE_DKMS_ROOT": str(self.root), "PATH": f"{self.root}/usr/bin:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def names(self):
        return sorted(path.name for path in self.module.parent.glob("*"))

    def test_new_module(self):
        self.script("prerm", "upgrade")
        self.assertEqual(self.names(), ["rxe_rs.kept.xz"])
        self.assertEqual(self.script("postinst", "configure"), "")
        self.assertEqual((self.names(), self.module.read_text()), (["rxe_rs.ko.xz"], "1.0\nnew\n"))

    def test_no_new_module(self):
        """The old one is there at the next boot, and is replaced as soon as a new one can be built."""
        broken = self.put("broken", "")
        self.script("prerm", "upgrade")
        said = self.script("postinst", "configure")
        self.assertIn(f"rxe_rs: {self.KERNEL} keeps the module of the package before\n", said)
        self.assertIn(f"rxe_rs: not built for {self.KERNEL}: ", said)
        self.assertEqual((self.names(), self.module.read_text()), (["rxe_rs.ko.xz"], "1.0\n"))
        modules = self.root / f"lib/modules/{self.KERNEL}"
        self.assertEqual((modules / "modules.dep").read_text(), "new\n")
        self.assertFalse((modules / ".rxe_rs").exists())
        self.assertEqual(self.rxe_dkms("why", self.KERNEL)[1], f"it has not been built yet\n{self.AGAIN}\n")
        # A second upgrade that fails.
        self.script("prerm", "upgrade")
        self.script("postinst", "configure")
        self.assertEqual((self.names(), self.module.read_text()), (["rxe_rs.ko.xz"], "1.0\n"))
        broken.unlink()
        self.script("postinst", "triggered")
        self.assertEqual((self.names(), self.module.read_text()), (["rxe_rs.ko.xz"], "1.0\nnew\n"))

    def test_removed_kernel(self):
        """DKMS does not know of what an upgrade has put back."""
        self.put("broken", "")
        self.script("prerm", "upgrade")
        self.script("postinst", "configure")
        self.assertEqual(self.names(), ["rxe_rs.ko.xz"])
        (self.root / f"lib/modules/{self.KERNEL}/modules.order").unlink()
        self.script("postinst", "triggered")
        self.assertFalse(self.module.parent.exists())

    def test_package_of_the_module(self):
        """It has been installed meanwhile, and its module is used."""
        self.put("broken", "")
        self.script("prerm", "upgrade")
        self.put("lib/modules/{}/updates/rxe_rs.ko", "")
        self.script("postinst", "configure")
        self.assertEqual(self.names(), [])

    def test_removal(self):
        """Also of what an upgrade has put back, and of what one has kept that was interrupted."""
        self.put("broken", "")
        self.script("prerm", "upgrade")
        self.script("postinst", "configure")
        self.script("prerm", "upgrade")
        self.put("lib/modules/{}/updates/dkms/rxe_rs.ko.xz", "1.0\n")
        self.script("prerm", "remove")
        self.assertFalse(self.module.parent.exists())
        self.assertTrue((self.root / f"lib/modules/{self.KERNEL}/modules.order").exists())


if __name__ == "__main__":
    unittest.main()
