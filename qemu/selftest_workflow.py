# SPDX-License-Identifier: GPL-2.0
"""Tests of docs/rxe-ci-workflow.yml, the workflow that other projects copy, and of the commands in documents that no machine runs: options of
rxe-ci and targets of make exist. ci_test.py runs the last steps of the workflow with machines."""
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import workflow

CLONE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CLONE / "ktests/vm/lib"))
import page  # noqa: E402

TEXT = workflow.FILE.read_text()
CLI = (CLONE / "tools/rxe-ci/src/cli.rs").read_text()
# What a step may have.
KEYS = {"name", "id", "if", "uses", "with", "run"}
# Variables that the shell or the host has.
KNOWN = {"HOME", "PATH"}


def options(command):
    """The options of a command of rxe-ci by their names on the command line: the type of the value, or None."""
    body = re.search(rf"^pub struct {command.capitalize()} \{{\n(.*?)^\}}", CLI, re.M | re.S)[1]
    found = {}
    for words, field, kind in re.findall(r"#\[arg\((.*)\)\]\n    pub (\w+): (\S+),", body):
        kind = None if kind == "bool" else re.sub(r"^(?:Option|Vec)<(.*)>$", r"\1", kind)
        if re.search(r"\blong\b", words):
            found[f"--{field.replace('_', '-')}"] = kind
        if short := re.search(r"\bshort(?: = '(.)')?", words):
            found[f"-{short[1] or field[0]}"] = kind
    return found


def wrong_words(line):
    """What is wrong with the arguments of rxe-ci in a command line; None if nothing is."""
    words = shlex.split(line, comments=True)
    at = next((n for n, word in enumerate(words) if word.rpartition("/")[2] == "rxe-ci"), None)
    if at is None or at + 1 == len(words):
        return f"no command of rxe-ci: {line}"
    command, words = words[at + 1], words[at + 2:]
    if not re.search(rf"^    {command.capitalize()}\b", CLI, re.M):
        return f"rxe-ci has no command {command}"
    known, words = options(command), iter(words)
    for word in words:
        if word == "--":
            return None if next(words, None) else "no command for the machine"
        name, equals, value = word.partition("=")
        if name not in known:
            return f"rxe-ci {command} has no option {word}"
        if known[name] is None:
            continue
        value = value if equals else next(words, "--")
        if value == "--" or known[name][0] == "u" and not value.isdecimal():
            return f"{name} has no value of the type {known[name]}"
        if known[name] == "Accel" and not re.search(rf"^    {value.capitalize()},$", CLI, re.M):
            return f"{name} cannot be {value}"
    return "no command for the machine" if command == "run" else None


def wrong_target(line):
    """A target of a `make` command line that the Makefile does not have; None if there is none."""
    words = shlex.split(line.removeprefix("sudo "), comments=True)
    targets = re.findall(r"^([\w-]+):", (CLONE / "Makefile").read_text(), re.M)
    return next((word for word in words[1:] if "=" not in word and word not in targets), None) if words[:1] == ["make"] else None


class Words(unittest.TestCase):
    """Tests of the functions above."""

    def test_options(self):
        found = options("run")
        self.assertGreater(len(found), 10)
        self.assertEqual([found[name] for name in ("--nodes", "--each", "--env", "--boot-timeout", "-i", "-v", "--accel")],
                         ["u8", None, "OsString", "u64", None, None, "Accel"])

    def test_rxe_ci(self):
        for line in ("rxe-ci run -- x --no-such", "out/tools/rxe-ci run --nodes 2 --each --env=A=b -v -- x", "rxe-ci list --json", "rxe-ci run --accel uml -- x # y"):
            self.assertIsNone(wrong_words(line), line)
        for line in ("rxe-ci", "rxe-ci go -- x", "rxe-ci run --no-such -- x", "rxe-ci run --nodes -- x", "rxe-ci run --nodes two -- x", "rxe-ci run --accel xen -- x",
                     "rxe-ci run --each", "rxe-ci run --", "rxe-ci list --nodes 2"):
            self.assertIsNotNone(wrong_words(line), line)

    def test_make(self):
        for line in ("make", "make ci-machine UML=1   # x", "echo make no-such"):
            self.assertIsNone(wrong_target(line), line)
        self.assertEqual(wrong_target("make KERNEL=7.3 no-such"), "no-such")


class Workflow(unittest.TestCase):
    def setUp(self):
        self.workflow, self.steps = workflow.parse(TEXT), workflow.steps(TEXT)
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_form(self):
        self.assertLessEqual({"name", "on", "jobs"}, set(self.workflow))
        self.assertGreater(len(workflow.commands()), 4)
        for step in self.steps:
            with self.subTest(step.get("name", step.get("uses"))):
                self.assertLessEqual(set(step), KEYS)
                self.assertEqual(len({"uses", "run"} & set(step)), 1)
                self.assertRegex(step.get("uses", "a/b@v1"), r"^[\w-]+/[\w-]+@v\d+$")
                self.assertNotIn("\t", step.get("run", ""))

    def test_expressions(self):
        """They name variables of the workflow, and results of steps above."""
        names, seen = {f"env.{name}" for name in self.workflow["env"]}, 0
        for step in self.steps:
            words = [str(step.get("if", "")), *re.findall(r"\$\{\{(.*?)\}\}", str(step))]
            for name in re.findall(r"\b(?:env|steps|matrix|secrets|inputs)\.[\w.-]+", " ".join(words)):
                self.assertIn(name, names, step)
                seen += 1
            if "id" in step:
                # What actions/cache reports.
                names.add(f"steps.{step['id']}.outputs.cache-hit")
        self.assertGreater(seen, 3)

    def test_variables(self):
        """The commands use variables of the workflow, of rxe-ci and of the shell only."""
        documented = set(re.findall(r"\bRXE_CI_\w+", CLI))
        for name, text in workflow.commands().items():
            for variable in re.findall(r"\$\{?([A-Za-z_]\w*)", text):
                with self.subTest(name):
                    self.assertIn(re.sub(r"(?<=IPV[46]_)\d$", "N", variable), {*documented, *self.workflow["env"], *KNOWN})

    def test_shell(self):
        """As the runner calls it; a script that a step writes is parsed as well."""
        for name, text in workflow.commands().items():
            for shell, script in (("bash", text), *(("sh", inner) for inner in re.findall(r"<<'END'\n(.*?)^END$", text, re.M | re.S))):
                with self.subTest(name):
                    done = subprocess.run([shell, "-n"], input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_rxe_ci(self):
        lines = [line for text in workflow.commands().values() for line in text.splitlines() if line.startswith("rxe-ci ")]
        self.assertGreater(len(lines), 2)
        for line in lines:
            self.assertIsNone(wrong_words(line), line)

    def test_installs_rxe_ci(self):
        """From where the second checkout is."""
        path = next(step["with"]["path"] for step in self.steps if "path" in step.get("with", {}))
        words = shlex.split(workflow.commands()["Install rxe-ci"])
        self.assertEqual(words[:-1], ["cargo", "install", "--locked", "--path"])
        folder = CLONE / Path(words[-1]).relative_to(path)
        self.assertRegex((folder / "Cargo.toml").read_text(), r'(?m)^name = "rxe-ci"$')
        self.assertTrue((CLONE / "Cargo.lock").is_file())

    def run_step(self, name, **programs):
        """Runs a step with programs that take the place of others. Returns its status and its output."""
        (self.folder / "bin").mkdir()
        for program, body in programs.items():
            path = self.folder / "bin" / program
            path.write_text(f"#!/bin/sh -e\n{body}\n")
            path.chmod(0o755)
        variables = {**os.environ, **self.workflow["env"], **self.variables, "HOME": str(self.folder / "home"), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-e", "-c", workflow.commands()[name]], cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    variables = {}

    def test_installs_qemu(self):
        status, said = self.run_step("Install QEMU and let this user use KVM", sudo='echo "$@"')
        self.assertEqual(status, 0, said)
        (installed,) = [line.split() for line in said.splitlines() if line.startswith("apt-get install")]
        packages = [word for word in installed[2:] if not word.startswith("-")]
        self.assertLessEqual(set(packages), set((CLONE / "qemu/root-packages.txt").read_text().split()))

    def archive(self, checksum=None):
        """Publishes an archive with a machine; curl is replaced by a copy."""
        (self.folder / "7.9.1").mkdir()
        (self.folder / "7.9.1/machine.json").write_text("{}")
        archive = self.folder / "rxe-ci-7.9.1.tar.zst"
        subprocess.run(["tar", "-C", self.folder, "--zstd", "-cf", archive, "7.9.1"], check=True)
        self.variables = {"MACHINE_URL": f"https://x.invalid{archive}", "MACHINE_SHA256": checksum or hashlib.sha256(archive.read_bytes()).hexdigest()}
        return self.run_step("Fetch the prepared machine", curl='[ "$1 $2" = "-fsSL -o" ] && [ $# = 4 ] && cp "${4#https://x.invalid}" "$3"')

    def test_fetches_the_machine(self):
        status, said = self.archive()
        self.assertEqual((status, said), (0, "machine.tar.zst: OK\n"))
        # Where rxe-ci searches it, and what the action keeps.
        kept = next(step["with"]["path"] for step in self.steps if step.get("uses", "").startswith("actions/cache@"))
        self.assertTrue((self.folder / kept.replace("~", "home") / "7.9.1/machine.json").is_file())
        self.assertIn(kept, CLI)
        self.assertFalse((self.folder / "machine.tar.zst").exists())

    def test_fetches_another_file(self):
        status, said = self.archive("0" * 64)
        self.assertNotEqual(status, 0, said)
        self.assertFalse((self.folder / "home").exists())


class Documents(unittest.TestCase):
    """The blocks of documents that are not run."""

    def lines(self):
        paths = [CLONE / "README.md", CLONE / "tools/README.md", *sorted((CLONE / "docs").glob("*.md"))]
        return [(f"{path.name}:{block.line}", line) for path in paths for block in page.blocks(path.read_text()) if block.kind == "not run" for line in block.lines]

    def test_rxe_ci(self):
        lines = [(place, line) for place, line in self.lines() if re.match(r"(\S*/)?rxe-ci ", line)]
        self.assertGreater(len(lines), 4)
        for place, line in lines:
            self.assertIsNone(wrong_words(line), place)

    def test_make(self):
        lines = [(place, line) for place, line in [*self.lines(), ("the workflow", "make ci-machine")] if line.startswith("make ")]
        self.assertIn("`make ci-machine`", TEXT)
        self.assertGreater(len(lines), 4)
        for place, line in lines:
            self.assertIsNone(wrong_target(line), place)


if __name__ == "__main__":
    unittest.main()
