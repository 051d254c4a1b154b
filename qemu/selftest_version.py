# SPDX-License-Identifier: GPL-2.0
"""Tests that Cargo.toml is the only place that has the version, and that all programs and documents that show it agree with it."""
import os
import re
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
WORKSPACE = tomllib.loads((TOP / "Cargo.toml").read_text())["workspace"]
VERSION = WORKSPACE["package"]["version"]
# A copy of an old release, with its version.
FROZEN = "ktests/old_library"


def changelog(text):
    """The versions in a change log, newest first."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", text, re.M)


class Version(unittest.TestCase):
    def test_form(self):
        self.assertRegex(VERSION, r"^\d+\.\d+\.\d+$")

    def test_crates_inherit_it(self):
        names = {}
        for member in WORKSPACE["members"]:
            package = tomllib.loads((TOP / member / "Cargo.toml").read_text())["package"]
            names[package["name"]] = member
            if member != FROZEN:
                with self.subTest(member):
                    self.assertEqual(package["version"], {"workspace": True})
        self.assertIn("tools/rxectl", names.values())
        locked = {package["name"]: package["version"] for package in tomllib.loads((TOP / "Cargo.lock").read_text())["package"] if "source" not in package}
        self.assertEqual(set(locked), set(names))
        self.assertEqual({version for name, version in locked.items() if names[name] != FROZEN}, {VERSION})

    def test_tools_show_that_of_their_crate(self):
        self.assertRegex((TOP / "tools/rxectl/src/cli.rs").read_text(), r"#\[command\(name = \"rxectl\", version,")

    def test_no_source_has_it_written_down(self):
        """A second place would be forgotten at the next change."""
        written = re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])")
        places = []
        for folder in ("rxe_rs", "tools", "uapi", "qemu", "ktests"):
            for path in (TOP / folder).rglob("*"):
                if path.suffix in (".rs", ".c", ".h", ".py", ".sh", ".test", ".toml", ".txt") and path.is_file() and FROZEN not in str(path):
                    if written.search(path.read_text()):
                        places.append(str(path.relative_to(TOP)))
        self.assertEqual(places, [])

    def test_documents_name_it(self):
        self.assertEqual(re.findall(r"version (\d+\.\d+\.\d+)", (TOP / "rxe_rs/FEATURES.md").read_text()), [VERSION])
        self.assertEqual(changelog((TOP / "CHANGELOG.md").read_text())[:1], [VERSION])

    def test_headings_of_the_change_log_are_read(self):
        self.assertEqual(changelog("## [9.2.0] - unreleased\n### Added\n## [9.1.0] - 2026-01-31\n## [9.0.1]\n"), ["9.2.0", "9.1.0"])

    def test_kbuild_passes_it_on(self):
        """To the C file with MODULE_VERSION, and to the driver's crate, which reports it as the firmware version of devices."""
        show = "show: ; @echo $(CFLAGS_rxe_rs/kapi/helpers/rdma.o)\nrxe_rs/rxe_rs.o: ; @echo $$RXE_RS_VERSION\nFORCE:\n"
        with tempfile.TemporaryDirectory() as folder:
            makefile = Path(folder) / "Makefile"
            makefile.write_text(f"obj := .\nsrc := {TOP}\nif_changed_dep =\ninclude {TOP}/Kbuild\n{show}")
            said = []
            for goal in ("show", "./rxe_rs/rxe_rs.o"):
                done = subprocess.run(["make", "-s", "-f", makefile, goal, "-o", f"{TOP}/Cargo.toml", "-o", "./rxe_rs/proto/rxe_proto.o",
                                       "-o", "./rxe_rs/kapi/rxe_kapi.o"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                said.append(done.stdout.strip())
        self.assertEqual(said, [f'-DRXE_RS_VERSION="{VERSION}"', VERSION])


class Packages(unittest.TestCase):
    """package-version.sh, in a repository of the test."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.time = 1_800_000_000
        self.cargo("1.2.3")

    def cargo(self, version):
        (self.folder / "Cargo.toml").write_text(f'[workspace.package]\nversion = "{version}"\n')

    def git(self, *arguments):
        who = {f"GIT_{role}_{field}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
        when = {"GIT_COMMITTER_DATE": f"{self.time} +0200", "GIT_AUTHOR_DATE": f"{self.time} +0200"}
        done = subprocess.run(["git", "-C", self.folder, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **who, **when})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.strip()

    def commit(self):
        self.time += 3600
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "test")
        return self.git("log", "-1", "--format=%h")

    def version(self, folder="."):
        done = subprocess.run([HERE / "package-version.sh", self.folder / folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.strip()

    def test_grows_with_each_change(self):
        self.git("init", "-q")
        versions = []
        commit = self.commit()
        versions.append(self.version())
        self.assertEqual(versions[0], f"1.2.3~git20270115.090000.{commit}")
        commit = self.commit()
        versions.append(self.version())
        self.assertEqual(versions[1], f"1.2.3~git20270115.100000.{commit}")
        for seconds in (1800, 1900):
            (self.folder / "changed file").write_text(f"{seconds}\n")
            os.utime(self.folder / "changed file", (self.time + seconds, self.time + seconds))
            versions.append(self.version())
        self.assertEqual(versions[-1], f"1.2.3~git20270115.103140.{commit}.modified")
        self.commit()
        self.git("tag", "v1.2.3")
        versions.append(self.version())
        self.assertEqual(versions[-1], "1.2.3")
        (self.folder / "changed file").unlink()
        versions.append(self.version())
        self.assertRegex(versions[-1], r"^1\.2\.3\+git\S+\.modified$")
        # Changed before the last commit, which does not have the change.
        (self.folder / "old file").write_text("")
        os.utime(self.folder / "old file", (self.time - 7200, self.time - 7200))
        self.assertEqual(self.version(), versions[-1])
        commit = self.commit()
        versions.append(self.version())
        self.assertEqual(versions[-1], f"1.2.3+git20270115.120000.{commit}")
        self.cargo("1.2.4")
        self.commit()
        versions.append(self.version())
        self.assertTrue(versions[-1].startswith("1.2.4~git"))
        for old, new in zip(versions, versions[1:]):
            with self.subTest(old=old, new=new):
                self.assertEqual(subprocess.run(["dpkg", "--compare-versions", old, "lt", new]).returncode, 0)

    def test_without_git(self):
        """The source of a release, unpacked anywhere, also in a folder of another repository."""
        self.assertEqual(self.version(), "1.2.3")
        (self.folder / "inner").mkdir()
        (self.folder / "Cargo.toml").rename(self.folder / "inner/Cargo.toml")
        self.git("init", "-q")
        self.commit()
        self.assertEqual(self.version("inner"), "1.2.3")


class Module(unittest.TestCase):
    """The version that modinfo shows."""

    def compile(self, *flags):
        """Builds the object with MODULE_VERSION; returns the versions in it."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        series = ["-k", os.environ["KERNEL"]] if os.environ.get("KERNEL") else []
        object_file = "rxe_rs/kapi/helpers/rdma.o"
        done = subprocess.run([HERE / "build-module.sh", "-o", folder, *series, TOP, *flags, object_file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return re.findall(rb"\0version=([^\0]*)\0", b"\0" + (folder / object_file).read_bytes())

    def test_version(self):
        self.assertEqual(self.compile(), [VERSION.encode()])

    def test_version_is_that_of_kbuild(self):
        self.assertEqual(self.compile("rxe-version=9.8.7"), [b"9.8.7"])


if __name__ == "__main__":
    unittest.main()
