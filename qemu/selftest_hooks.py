# SPDX-License-Identifier: GPL-2.0
"""Tests of the git hooks, installed by make in a new repository whose checks are replaced by fakes; and of the messages of new commits."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Hooked(unittest.TestCase):
    """A new repository with the hooks."""

    MESSAGE = "README: add a line\n\nIt was missing.\n"

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
        said = self.git("commit", "-q", "-m", self.MESSAGE, *arguments, **options)
        return said, " ".join(self.calls())


class PreCommit(Hooked):
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


class CommitMessage(Hooked):
    BODY = "\n\nThe reason.\n"

    def message(self, text, *arguments, **options):
        """Commits with a message, cleaned up as one from an editor; returns the output of git."""
        file = self.top.parent / "message"
        file.write_text(text)
        return self.git("commit", "-q", "--allow-empty", "--cleanup=scissors", "-F", file, *arguments, **options)

    def test_accepted(self):
        for subject in ("qp/paging: count packets that the allocator refused", "kapi/net, rx: drop it", ".ci: run it", "qemu/selftest*: name tests",
                        "a: " + "b" * 69, "a: b" + "\N{MICRO SIGN}" * 68):
            with self.subTest(subject):
                self.assertEqual(self.message(subject + self.BODY), "")

    def test_refused(self):
        for text, why in (("count packets" + self.BODY, "path: imperative"), ("qp: Count packets" + self.BODY, "path: imperative"),
                          ("qp: count packets." + self.BODY, "path: imperative"), ("the qp: count packets" + self.BODY, "path: imperative"),
                          ("qp:count packets" + self.BODY, "path: imperative"), ("a: " + "b" * 70 + self.BODY, "72 characters"),
                          ("qp: count packets\nThe reason.\n", "not blank"), ("qp: count packets\n", "no body"),
                          ("qp: count packets\n\nFixes: 123456789012 (\"qp: add it\")\nSigned-off-by: A B <a@b>\n", "no body")):
            with self.subTest(text):
                self.assertIn(why, self.message(text, status=1))
                self.git("rev-parse", "-q", "--verify", "HEAD", status=1)

    def test_text_that_git_removes_is_no_body(self):
        scissors = "# ------------------------ >8 ------------------------\n"
        for rest in ("\n# Please enter the commit message.\n", f"\n{scissors}diff --git a/a b/a\n+a line\n"):
            self.assertIn("no body", self.message("qp: count packets\n" + rest, status=1))
        self.assertEqual(self.message(f"qp: count packets{self.BODY}{scissors}diff --git a/a b/a\n"), "")

    def test_subjects_of_git(self):
        self.message("qp: count packets" + self.BODY)
        self.git("commit", "-q", "--allow-empty", "--fixup", "HEAD")
        self.commit("README.md")
        self.git("revert", "--no-edit", "HEAD")
        self.assertIn('Revert "README: add a line"', self.git("log", "-1", "--format=%s"))

    def test_skipping(self):
        self.message("wrong", "--no-verify")
        self.message("wrong", RXE_SKIP_HOOKS="1")
        self.assertEqual(self.git("rev-list", "--count", "HEAD"), "2\n")


class NewCommits(unittest.TestCase):
    """The commits of this clone that its upstream branch lacks. They may have been made without the hooks."""

    def git(self, *arguments):
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", HERE.parent, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def test_messages(self):
        new = self.git("rev-list", "@{upstream}..HEAD")
        if new.returncode:
            self.skipTest("there is no upstream branch")
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "message"
        for commit in new.stdout.split():
            with self.subTest(commit):
                file.write_text(self.git("log", "-1", "--format=%B", commit).stdout)
                done = subprocess.run([HERE / "hooks/commit-msg", file], stderr=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]})
                self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
