# SPDX-License-Identifier: GPL-2.0
"""Tests of install/: the verdicts of a boot, with a stand-in for QEMU; the answers to MokManager; the packages with another version; the disks;
and that bad input, a mirror that does not answer and a full disk are refused by one line. `make test-install` boots the real machine."""
import argparse
import base64
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "install")]
from faked import MMDEBSTRAP, Faked, setUpModule  # noqa: E402, F401
import disk  # noqa: E402
import image  # noqa: E402
import machine  # noqa: E402
import packages  # noqa: E402
import secure  # noqa: E402

CASES = (HERE / "install/cases.sh").read_text()
RELEASE = "7.3.4+deb13-amd64"
INFO = {"release": RELEASE, "series": "7.3", "packages": {f"linux-modules-{RELEASE}": "7.3.4-1", "linux-source-7.3": "7.3.4-1"}}


def program():
    """qemu/install/run as a module."""
    loader = importlib.machinery.SourceFileLoader("install_run", str(HERE / "install/run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("install_run", loader))
    loader.exec_module(module)
    return module


install = program()


class Verdicts(unittest.TestCase):
    def report(self, lines, why=None):
        """(verdicts, all that is printed) of a report with these lines."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            verdicts = install.Verdicts()
            report = install.Report("first", verdicts)
            for line in lines:
                report.line(line + "\n")
            report.finish(why)
            verdicts.end()
        return (verdicts.passed, verdicts.failed), said.getvalue().splitlines()

    def test_all_pass(self):
        counts, said = self.report(["plan one two", "ok one 3", "ok two 0", "end"])
        self.assertEqual(counts, (3, 0))
        self.assertEqual(said, ["ok 1 first.one # 3 s", "ok 2 first.two # 0 s", "ok 3 first.boot_ends", "# 3 passed, 0 failed"])

    def test_failure_with_its_output(self):
        counts, said = self.report(["plan one two", "not ok one 3", "# + false", "# why", "ok two 1", "end"])
        self.assertEqual(counts, (2, 1))
        self.assertEqual(said[:4], ["not ok 1 first.one # 3 s", "#   + false", "#   why", "ok 2 first.two # 1 s"])

    def test_failure_of_the_last_test(self):
        self.assertEqual(self.report(["plan one", "not ok one 3", "# why", "end"])[0], (1, 1))
        self.assertEqual(self.report(["plan one", "not ok one 3", "# why"])[0], (0, 2))

    def test_incomplete(self):
        """Tests without a verdict fail, and so does a boot without an end."""
        counts, said = self.report(["plan one two three", "ok one 3"])
        self.assertEqual(counts, (1, 3))
        self.assertIn("not ok 2 first.two", said)
        self.assertEqual(self.report([])[0], (0, 1))
        self.assertEqual(self.report(["plan one", "ok one 1", "end"], why="did not shut down")[0], (1, 1))

    def test_messages_outside_of_tests(self):
        said = self.report(["bash: cases.sh: line 3: syntax error"])[1]
        self.assertIn("#   bash: cases.sh: line 3: syntax error", said)


class Boots(Faked):
    GOOD = 'echo "plan one"; echo "ok one 1"; echo end'

    def boot(self, script, console="Linux version 7.3.4"):
        """The verdicts of a boot by a stand-in for QEMU, whose output goes to the report and the console."""
        self.fake(machine.QEMU, f"""
for word; do
	case $word in
	file:*) echo "{console}" >"${{word#file:}}" ;;
	file,id=report,path=*) {{ {script}; }} >"${{word#file,id=report,path=}}" ;;
	esac
done""")
        verdicts = install.Verdicts()
        with self.heard(), contextlib.redirect_stdout(io.StringIO()) as said:
            going = install.run_boot("first", {"VMLINUZ": "vmlinuz", "INITRD": "initrd"}, self.folder, False, verdicts)
        return going, (verdicts.passed, verdicts.failed), said.getvalue()

    def test_good(self):
        self.assertEqual(self.boot(self.GOOD)[:2], (True, (3, 0)))

    def test_kernel_log(self):
        going, counts, said = self.boot(self.GOOD, "Linux version 7.3.4\nBUG: unable to handle page fault")
        self.assertEqual((going, counts), (True, (2, 1)))
        self.assertIn("BUG: unable to handle page fault", said)
        self.assertEqual(self.boot(self.GOOD, "nothing")[1], (2, 1))

    def test_ends_early(self):
        going, counts, _ = self.boot('echo "plan one two"; echo "ok one 1"')
        self.assertEqual((going, counts), (False, (2, 2)))

    def test_qemu_fails(self):
        going, counts, said = self.boot("echo cannot open the disk >&2; exit 1")
        self.assertEqual((going, counts), (False, (1, 1)))
        self.assertIn("QEMU failed: cannot open the disk", said)

    def test_hangs(self):
        with mock.patch.multiple(install, BOOT_SECONDS=1, SHUTDOWN_SECONDS=1):
            going, counts, said = self.boot('echo "plan one"; exec sleep 60 >/dev/null')
            self.assertEqual((going, counts), (False, (1, 2)))
            self.assertIn("hung", said)
            going, counts, said = self.boot(f"{self.GOOD}; exec sleep 60 >/dev/null")
            self.assertEqual((going, counts), (False, (2, 1)))
            self.assertIn("did not shut down", said)

    def test_command(self):
        line = install.command("second", {"VMLINUZ": "vmlinuz", "INITRD": "initrd"}, self.folder, False)
        append = line[line.index("-append") + 1]
        # What the kernel takes at most.
        self.assertLess(len(append), 2048)
        unit = base64.b64decode(append.split("systemd.extra-unit.test.service:")[1]).decode()
        self.assertIn("/run/test/cases.sh second ", unit)
        networks = [word for word in line if word.startswith("user,")]
        self.assertEqual([word.split(",")[2] for word in networks], ["restrict=on"] * len(install.NICS))
        self.assertEqual(sorted(re.findall(r"iface (\S+)", disk.INTERFACES)), sorted(install.NICS))
        self.assertNotIn("pflash", " ".join(line))

    def test_command_of_arm64(self):
        line = install.command("before", {"VMLINUZ": "vmlinuz", "INITRD": "initrd"}, self.folder, False, "arm64")
        platform = machine.PLATFORMS["arm64"]
        found = line[0], line[line.index("-machine") + 1], line[line.index("-cpu") + 1]
        self.assertEqual(found, (platform.qemu, platform.machine, platform.cpu))
        append = line[line.index("-append") + 1]
        self.assertIn(" console=ttyAMA0 ", append)
        self.assertNotIn(machine.TIMER, append)

    def test_secure_command(self):
        """The firmware has the variables of this run, and loads the kernel that is signed."""
        files = {"VMLINUZ": "vmlinuz", "INITRD": "initrd", "SIGNED_VMLINUZ": "signed", "VARIABLES": "variables"}
        line = install.command(install.SECURE, files, self.folder, False)
        self.assertEqual((line[line.index("-kernel") + 1], line[line.index("-machine") + 1]), ("signed", "q35,smm=on"))
        drives = [word for word in line if word.startswith("if=pflash")]
        self.assertEqual([word.rpartition("file=")[2] for word in drives], [f"{secure.FIRMWARE}/OVMF_CODE_4M.secboot.fd", "variables"])
        for name in ("OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.fd", "OVMF_VARS_4M.ms.fd"):
            self.assertTrue((secure.FIRMWARE / name).exists())

    def test_command_by_shim(self):
        """The firmware boots from the partition, and GRUB loads the kernel of the disk: QEMU loads none."""
        files = {"VMLINUZ": "vmlinuz", "INITRD": "initrd", "PARTITION": self.folder, "VARIABLES": "variables"}
        for boot in (*install.SHIM, install.MOKMANAGER):
            line = install.command(boot, files, self.folder, False)
            self.assertEqual({"-kernel", "-initrd", "-append"} & set(line), set())
            self.assertEqual(line[line.index("-machine") + 1], "q35,smm=on")
            order = {word.split("bootindex=")[1]: word.split(",")[1] for word in line if "bootindex=" in word}
            self.assertEqual(order, {"0": "drive=partition", "1": "drive=system"})
            self.assertEqual(line[line.index("-serial") + 1], "stdio" if boot == install.MOKMANAGER else f"file:{self.folder}/console-{boot}.log")
        secure.configure(self.folder, RELEASE, install.kernel_line("enrolled"))
        text = (self.folder / secure.GRUB).read_text()
        self.assertIn(f"\nlinux /boot/vmlinuz-{RELEASE} root=LABEL={disk.LABEL} ", text)
        unit = base64.b64decode(re.search(r"systemd.extra-unit.test.service:(\S+)", text)[1]).decode()
        self.assertIn("/run/test/cases.sh enrolled ", unit)


class MokManager(Faked):
    """A program shows the screens of MokManager, and ends if other keys are pressed."""

    def enrol(self, *screens, end="exit 0", seconds=120):
        """Why the key was not enrolled, by a stand-in that shows these screens, each until the wanted key is pressed."""
        script = [f"printf '\\033[2J\\033[03;10H%s\\033[05;10H%s' {' '.join(f"'{word}'" for word in text.split(' ', 1))}\n"
                  f"[ \"$(head -c {len(keys)} | od -An -w99 -tx1)\" = \"{''.join(f' {key:02x}' for key in keys)}\" ] || exit 7"
                  for text, keys in screens]
        self.fake("qemu", "\n".join([*script, end]))
        with mock.patch.multiple(secure, QUIET_SECONDS=0.1, SCREEN_SECONDS=seconds):
            return secure.enrol(["qemu"], self.folder / "console.log")

    SCREENS = [(text if " " in text else f"{text} ", keys) for text, keys in secure.SCREENS]

    def test_enrols(self):
        self.assertIsNone(self.enrol(*self.SCREENS))
        self.assertIn("Enroll", (self.folder / "console.log").read_text())

    def test_other_keys_are_wanted(self):
        self.assertIn("ended before MokManager showed", self.enrol(*self.SCREENS[:2], (self.SCREENS[2][0], b"x"), *self.SCREENS[3:]))

    def test_no_mokmanager(self):
        self.assertIn('did not show "Press any key', self.enrol(("Linux version", b"x"), seconds=1))
        self.assertIn('ended before MokManager showed "Press any key', self.enrol())

    def test_hangs(self):
        self.assertIn("did not restart", self.enrol(*self.SCREENS, end="exec sleep 600 >/dev/null", seconds=5))

    def test_qemu_fails(self):
        self.assertIn("QEMU failed: no such disk", self.enrol(*self.SCREENS, end="echo no such disk >&2; exit 1"))

    def test_page_says_what_to_choose(self):
        page = " ".join((HERE.parent / "docs/install.md").read_text().split())
        choices = [text for text, _ in secure.SCREENS if text in ("Enroll MOK", "Reboot")]
        self.assertEqual(len(choices), 2)
        for word in (*choices, "Continue", "Yes"):
            self.assertTrue(f"*{word}*" in page, f"docs/install.md does not say that *{word}* is to be chosen")

    def test_page_makes_the_key(self):
        lines = install.page_lines("install", "openssl req ")
        self.assertEqual([line.split()[0] for line in lines], ["openssl", "mokutil", "make"])
        self.assertIn("-keyout mok.key -out mok.der", lines[0])
        self.assertEqual(lines[1], "mokutil --import mok.der")
        self.assertIn("SIGN_KEY=mok.key SIGN_CERT=mok.der", lines[2])


class Cases(unittest.TestCase):
    def test_each_case_is_in_one_boot(self):
        planned = [name for boot in (*install.BOOTS, *install.SHIM, *install.MANAGERS, *install.UPGRADE, install.SIGNED)
                   for name in re.search(rf'^{boot}="([^"]*)"$', CASES, re.M)[1].split()]
        self.assertEqual(sorted(planned), sorted(re.findall(r"^case_(\w+)\(\)", CASES, re.M)))

    def test_settings(self):
        """What cases.sh reads is what the host writes."""
        read = set(re.findall(r"\$\{?([A-Z][A-Z_]+)\b", CASES)) - {"PATH", "SECONDS"}
        written = {"NIC", "OTHER_NIC", "FULL_DISK", "PASSWORD", "VERSION", "NEWER", *packages.others(RELEASE), *map(str.upper, install.UPGRADE)}
        self.assertEqual(read, written)

    def test_last_boot_switches_off(self):
        self.assertIn(f'if [ "$1" = {install.BOOTS[-1]} ]; then systemctl poweroff', CASES)


class Packages(Faked):
    def test_key(self):
        """The files that build-deb.sh and the firmware take."""
        key = packages.Key(self.folder, "foreign").make()
        subject = subprocess.run(["openssl", "x509", "-in", key.certificate, "-noout", "-subject"], stdout=subprocess.PIPE, text=True, check=True)
        self.assertRegex(subject.stdout, r"CN\s*=\s*foreign$")
        subprocess.run(["openssl", "pkey", "-in", key.key, "-noout"], check=True)

    def test_key_of_dkms(self):
        """From the disk of a system on which DKMS has made one: its certificate is in the other encoding."""
        key = packages.Key(self.folder, "mok").make()
        tree = self.folder / "tree/var/lib/dkms"
        tree.mkdir(parents=True)
        key.key.rename(tree / "mok.key")
        subprocess.run(["openssl", "x509", "-in", key.certificate, "-outform", "DER", "-out", tree / "mok.pub"], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-d", self.folder / "tree", self.folder / "disk", "8M"], check=True)
        found = secure.key_of_dkms(self.folder / "disk", self.folder)
        self.assertEqual(found.certificate.read_text(), key.certificate.read_text())
        self.assertEqual(found.key.read_text(), (tree / "mok.key").read_text())

    def module(self, folder):
        """An object with the information that modinfo reads from a module."""
        folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "modinfo").write_text(f"name=rxe_rs\0version=0.9\0vermagic={RELEASE} SMP preempt \0")
        subprocess.run(["gcc", "-c", "-x", "c", "-", "-o", folder / "rxe_rs.ko"], input="int x;\n", text=True, check=True)
        subprocess.run(["objcopy", "--add-section", f".modinfo={self.folder}/modinfo", folder / "rxe_rs.ko"], check=True)
        return folder / "rxe_rs.ko"

    def package(self, name, depends="libc6", module=False):
        tree = self.folder / "trees" / name
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\nMaintainer: none <none@example.org>\n"
                                             f"Depends: {depends}\nDescription: a test\n")
        (tree / "DEBIAN/md5sums").write_text("0 usr/other\n")
        if module:
            self.module(tree / "usr/lib/modules" / RELEASE / "updates")
        out = self.folder / "packages"
        out.mkdir(exist_ok=True)
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, out], check=True, stdout=subprocess.DEVNULL)

    def all_packages(self):
        for name in packages.names(RELEASE):
            self.package(name, "librxe-rs1 (= 1.0), libibverbs-dev" if name == "librxe-rs-dev" else "libc6", name.startswith(packages.PREFIX))
        return self.folder / "packages"

    def test_missing_packages(self):
        self.dies("has no package rxe-rs-modules-7.3.4+deb13-amd64", "make deb", what=self.folder, call=lambda folder: packages.check(folder, RELEASE))
        folder = self.all_packages()
        packages.check(folder, RELEASE)
        # Packages for another kernel.
        self.dies("has no package rxe-rs-modules-7.2.12+deb13-amd64", what=folder, call=lambda where: packages.check(where, "7.2.12+deb13-amd64"))
        next(folder.glob("rxe-rs-tools_*")).unlink()
        self.dies("has no package rxe-rs-tools;", what=folder, call=lambda where: packages.check(where, RELEASE))

    def test_release(self):
        self.dies("has no package rxe-rs-modules-", "FLAVOUR=arm64", what=self.folder, call=packages.release_in)
        self.assertEqual(packages.release_in(self.all_packages()), RELEASE)

    def test_newer(self):
        folder, out = self.all_packages(), self.folder / "newer"
        out.mkdir()
        for deb in folder.iterdir():
            packages.newer(deb, "1.0.1", out)

        def field(name, which):
            return packages.run("dpkg-deb", "--field", packages.find(out, name), which).strip()
        self.assertEqual({field(name, "Version") for name in packages.names(RELEASE)}, {"1.0.1"})
        self.assertEqual(field("librxe-rs-dev", "Depends"), "librxe-rs1 (= 1.0.1), libibverbs-dev")
        packages.run("dpkg-deb", "--raw-extract", packages.find(out, packages.PREFIX + RELEASE), self.folder / "raw")
        module = f"usr/lib/modules/{RELEASE}/updates/rxe_rs.ko"
        self.assertEqual(packages.run("modinfo", "-F", "version", self.folder / "raw" / module).strip(), "1.0.1")
        sums = (self.folder / "raw/DEBIAN/md5sums").read_text().splitlines()
        self.assertEqual([line.split()[-1] for line in sums], ["usr/other", module])
        packages.run("md5sum", "--check", "--strict", input=f"{sums[1]}\n", cwd=self.folder / "raw")

    def test_modinfo(self):
        module = self.module(self.folder / "own")
        packages.modinfo(module, {"vermagic": "7.3.999 SMP preempt "})
        self.assertEqual(packages.run("modinfo", "-F", "vermagic", module).strip(), "7.3.999 SMP preempt")
        self.assertEqual(packages.run("modinfo", "-F", "version", module).strip(), "0.9")
        self.dies("has no field srcversion", what=module, call=lambda path: packages.modinfo(path, {"srcversion": "1"}))

    def test_others(self):
        self.assertEqual(packages.others(RELEASE), {"OTHER_RELEASE": "7.3.999+deb13-amd64", "OTHER_FLAVOUR": "7.3.4+deb13-cloud-amd64"})
        self.assertEqual(packages.others("7.2.12+deb13-cloud-amd64")["OTHER_FLAVOUR"], "7.2.12+deb13-amd64")

    def lint(self, script, label=""):
        folder, root = self.all_packages(), self.folder / "lintian"
        root.mkdir()
        (self.bin / "chroot").write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
        (self.bin / "chroot").chmod(0o755)
        verdicts = install.Verdicts()
        with mock.patch.object(packages, "lintian", lambda: root), contextlib.redirect_stdout(io.StringIO()) as said:
            packages.lint(folder, RELEASE, self.folder, verdicts, label)
        return (verdicts.passed, verdicts.failed), said.getvalue()

    def test_lintian_finds_nothing(self):
        counts, said = self.lint("exit 0")
        self.assertEqual(counts, (5, 0))
        self.assertIn("ok 1 lintian.rxe-rs-modules\n", said)

    def test_lintian_finds_an_error(self):
        counts, said = self.lint('case $last in *tools*) echo "E: rxe-rs-tools: bad-thing"; exit 2 ;; *) echo "W: x: doubtful" ;; esac')
        self.assertEqual(counts, (4, 1))
        self.assertIn("#   E: rxe-rs-tools: bad-thing", said)

    def test_lintian_of_another_architecture(self):
        counts, said = self.lint('case $last in *tools*) echo "E: rxe-rs-tools: bad-thing"; exit 2 ;; esac', "foreign.")
        self.assertEqual(counts, (4, 1))
        self.assertIn("ok 1 lintian.foreign.rxe-rs-modules\n", said)
        self.assertIn("not ok 3 lintian.foreign.rxe-rs-tools\n#   E: rxe-rs-tools: bad-thing", said)
        self.assertIn("==== foreign.rxe-rs-tools\n", (self.folder / "lintian.log").read_text())

    def test_lintian_does_not_run(self):
        self.assertEqual(self.lint('echo "cannot load"; exit 1')[0], (0, 5))


# What mmdebstrap leaves, as far as disk.py needs it.
SYSTEM = MMDEBSTRAP + f"""
mkdir -p "$target/etc/network/interfaces.d" "$target/boot"
echo kernel >"$target/boot/vmlinuz-{RELEASE}"
echo initrd >"$target/boot/initrd.img-{RELEASE}"
"""


class Disks(Faked):
    def system(self, info=INFO):
        with mock.patch.object(disk, "SIZE", "4M"), self.heard():
            return disk.system(info)

    def refused(self, *words):
        self.dies(*words, what=INFO, call=disk.system)
        self.assertEqual([path for path in image.IMAGES.glob("installed-*") if path.suffix != ".part"], [])

    def test_system(self):
        self.fake("mmdebstrap", SYSTEM)
        found = self.system()
        self.assertEqual(found["VMLINUZ"].read_text(), "kernel\n")
        shown = packages.run("debugfs", "-R", "cat /etc/fstab", found["DISK"])
        self.assertIn(f"LABEL={disk.LABEL} / ext4", shown)
        asked = self.calls("mmdebstrap")[0]
        self.assertIn(f"linux-image-{RELEASE}=7.3.4-1", asked)
        self.assertIn("--variant=important", asked)
        # Another run uses it; another kernel needs another one.
        self.assertEqual(self.system(), found)
        self.assertEqual(len(self.calls("mmdebstrap")), 1)
        other = json.loads(json.dumps(INFO).replace("7.3.4-1", "7.3.4-2"))
        self.assertNotEqual(self.system(other), found)

    def test_no_mirror(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "echo 'E: Failed to fetch'; exit 1")
        self.refused("cannot install Debian 13 for the test machine", "check the network", "run the same command again")
        # The next run makes it.
        self.fake("mmdebstrap", SYSTEM)
        self.system()

    def test_no_space(self):
        self.small_disk()
        self.fake("mmdebstrap", SYSTEM)
        self.refused("0 GB free", "RXE_RS_CACHE")
        self.assertEqual(self.calls("mmdebstrap"), [])

    def test_kernel_without_initrd(self):
        self.fake("mmdebstrap", SYSTEM + f'rm "$target/boot/initrd.img-{RELEASE}"')
        self.refused(f"no file boot/initrd.img-{RELEASE}")

    def test_no_lintian(self):
        self.fake("mmdebstrap", MMDEBSTRAP + "exit 1")
        self.dies("cannot install Debian 13 for lintian", call=lambda _: packages.lintian())

    def test_layer(self):
        """The layer has the disk below it, which is left as it was."""
        below, layer = self.folder / "below", self.folder / "layer"
        below.write_bytes(bytes(1 << 20))
        disk.layer(below, layer)
        head = layer.read_bytes()
        self.assertEqual(head[:4], b"QFI\xfb")
        self.assertIn(str(below).encode(), head)
        self.assertEqual(int.from_bytes(head[24:32], "big"), 1 << 20)
        self.assertEqual(below.read_bytes(), bytes(1 << 20))
        self.dies("QEMU cannot make", call=lambda _: disk.layer(below, self.folder / "missing/layer"))


class Usage(unittest.TestCase):
    def test_options_are_described(self):
        with mock.patch.object(argparse.ArgumentParser, "add_argument") as added, mock.patch.dict("os.environ", RXE_IN_ROOT="1"), \
                mock.patch.object(argparse.ArgumentParser, "parse_args", side_effect=SystemExit), self.assertRaises(SystemExit):
            install.main()
        names = [call.args[0] for call in added.call_args_list if call.args[0] != "-h"]
        self.assertGreater(len(names), 2)
        for name in names:
            self.assertRegex(install.__doc__, rf"(?m)^{name}\b")


if __name__ == "__main__":
    unittest.main()
