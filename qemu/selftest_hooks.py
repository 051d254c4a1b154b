# SPDX-License-Identifier: GPL-2.0
"""Tests of the pre-commit hook, installed by make in a new repository whose checks are replaced by fakes."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Hook(unittest.TestCase):
    def setUp(self):
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory())) / "clone"
        (self.top / "qemu").mkdir(parents=True)
        shutil.copy(HERE.parent / "Makefile", self.top)
        shutil.copytree(HERE / "hooks", self.top / "qemu/hooks")
        for name in ("in-root.sh", "lint.sh"):
            script = self.top / "qemu" / name
            script.write_text(f'#!/bin/sh\necho {name} "$@" >>../calls\nif [ -e ../broken ]; then echo "something is wrong"; exit 1; fi\n')
            script.chmod(0o755)
        self.git("init", "-q")
        self.run_("make", "-o", "setup", "hooks")
        self.assertEqual(self.calls(), ["in-root.sh qemu/fetch-crates.sh"])

    def run_(self, *command, status=0, **environment):
        identity = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(command, cwd=self.top, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null", **environment})
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def git(self, *arguments, **options):
        return self.run_("git", *arguments, **options)

    def calls(self):
        try:
            lines = (self.top.parent / "calls").read_text().splitlines()
            (self.top.parent / "calls").unlink()
        except FileNotFoundError:
            return []
        return lines

    def commit(self, path, *arguments, **options):
        """Commits a change of one file; returns the output of git, and the checks that ran."""
        (self.top / path).parent.mkdir(parents=True, exist_ok=True)
        with open(self.top / path, "a") as file:
            file.write("a line\n")
        self.git("add", path)
        said = self.git("commit", "-q", "-m", "test", *arguments, **options)
        return said, " ".join(self.calls())

    def test_checks_follow_what_changes(self):
        documents = "python3 -m unittest selftest_documents selftest_version.Version selftest_docs selftest_walk selftest_drawings selftest_citations selftest_structure selftest_discovery.Files selftest_sleeps selftest_security"
        for path, wanted in (("README.md", []), ("rxe_rs/qp.rs", ["fmt-check"]), ("tools/rxectl/src/main.rs", ["fmt-check", "clippy-host"]),
                             ("rxe_rs/proto/ids.rs", ["fmt-check", "clippy-host", "cargo test"]), ("Cargo.lock", ["clippy-host", "cargo test"])):
            with self.subTest(path):
                said, calls = self.commit(path)
                self.assertEqual(said, "")
                self.assertIn(documents, calls)
                for check in ("fmt-check", "clippy-host", "cargo test"):
                    self.assertEqual(check in calls, check in wanted, check)

    def test_a_failing_check_refuses_the_commit(self):
        (self.top.parent / "broken").touch()
        for path, name in (("README.md", "documents"), ("rxe_rs/qp.rs", "formatting")):
            said, _ = self.commit(path, status=1)
            self.assertIn("something is wrong", said)
            self.assertIn(name, said)
            self.assertIn("--no-verify", said)
            self.git("rev-parse", "-q", "--verify", "HEAD", status=1)

    def test_skipping(self):
        (self.top.parent / "broken").touch()
        self.assertEqual(self.commit("rxe_rs/qp.rs", "--no-verify"), ("", ""))
        self.assertEqual(self.commit("rxe_rs/qp.rs", RXE_SKIP_HOOKS="1"), ("", ""))
        self.assertEqual(self.git("rev-list", "--count", "HEAD"), "2\n")

    def test_tests_that_the_hook_names_exist(self):
        named = re.search(r"unittest ([\w. ]+)'", (HERE / "hooks/pre-commit").read_text())[1].split()
        self.assertGreater(len(named), 1)
        for name in named:
            module, _, case = name.partition(".")
            self.assertIn(f"class {case}", (HERE / f"{module}.py").read_text())


if __name__ == "__main__":
    unittest.main()
