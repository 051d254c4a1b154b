# SPDX-License-Identifier: GPL-2.0
"""The verdict of a test, by its exit status, its kernel logs and its packet capture; and the report of a run: KTAP and files."""
import json
import shutil
from pathlib import Path

import gate
import wirecheck
from vm.discovery import CLONE

# Name of the kernel logs after the last test (guest/runner.sh).
LATE = "after"


def late_name(number):
    """The name of a failure that belongs to no test: a run has one for each machine at most, and each keeps its artefacts."""
    return LATE if number == 1 else f"{LATE}-{number}"


# KSFT_SKIP of tools/testing/selftests/kselftest.h.
SKIP = 4


def kernel_complaints(results, name):
    """Lines of the kernel logs of a test that fail it, with the node."""
    found = []
    for path in sorted(results.glob(f"{name}.dmesg-*")):
        found += [f"{path.suffix[1:]}: {line}" for _, _, line in gate.check(path.read_text(errors="replace"))]
    return found


def missing_logs(results, name, nodes):
    """What is said of each node whose kernel log of a test was not stored, because the disk of the host is full or machine b hangs: without
    the mark that guest/runner.sh makes at the beginning, nobody knows what else is missing."""
    found = []
    for node in nodes:
        path = results / f"{name}.dmesg-{node}"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if not any(line.endswith(f"rxe-test: begin {name}") for line in lines):
            found.append(f"dmesg-{node}: there is no kernel log of the test; is the disk full?")
    return found


def wire_complaints(results, name):
    """What is wrong with packets of the test's capture, if it has one."""
    path = results / f"{name}.wire"
    return wirecheck.check(path) if path.exists() else []


def serial_complaints(machines):
    return [f"machine {m.node}: {line}" for m in machines for _, _, line in gate.check(m.serial_text())]


def skip_reason(log):
    """Why a test was skipped, by its output; None if that does not say so."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line[6:] for line in lines if line.startswith("SKIP: ")), None)


def verdict(status, complaints, reason):
    """`pass`, `skip` or `fail`. A skip needs a reason, because programs that fail may have the same status."""
    if complaints:
        return "fail"
    if status == SKIP and reason is not None:
        return "skip"
    return "fail" if status else "pass"


def tail_of(path, lines):
    """The last lines of a file; none if there is no such file."""
    try:
        return path.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def show_tail(path, lines=25):
    for line in tail_of(path, lines):
        print(f"# {line}", flush=True)


class Report:
    """The results of a run: KTAP on stdout, results.txt with a line for each test, summary.json, and artefacts of failures in failed/."""

    def __init__(self, tests, out, heading):
        self.numbers = {test.name: number for number, test in enumerate(tests, 1)}
        self.out, self.done, self.late = out, {}, 0
        (out / "results.txt").unlink(missing_ok=True)
        print(f"KTAP version 1\n# {heading}\n1..{len(tests)}", flush=True)

    def add(self, name, found, seconds, session, why=()):
        """Adds the verdict of a test; `why`: the reasons of a failure that are not in its output."""
        self.done[name] = found
        log = session.results / f"{name}.log"
        reason = skip_reason(log) if found == "skip" else ""
        with open(self.out / "results.txt", "a") as results:
            results.write(f"{name} {found} {reason}".rstrip() + "\n")
        number = self.numbers[name]
        if found == "skip":
            print(f"ok {number} {name} # SKIP {reason}", flush=True)
            return
        print(f"{'ok' if found == 'pass' else 'not ok'} {number} {name} # {seconds:.1f} s", flush=True)
        if found == "fail":
            for line in why:
                print(f"#   {line}", flush=True)
            show_tail(log)
            show_tail(session.results / f"{name}.counters", 80)
            keep = self.keep(name, session)
            print(f"# artefacts: {keep.relative_to(CLONE) if keep.is_relative_to(CLONE) else keep}", flush=True)

    def add_late(self, session):
        """Adds a failed test if the kernel logs after the last test have a report."""
        if found := kernel_complaints(session.results, LATE):
            self.fail_late("kernel log after the last test", found[:12], session)

    def add_crash(self, session, why):
        """Adds a failed test for a machine that has ended, or hangs, while no test was running."""
        self.fail_late("machine while no test was running", why, session)

    def add_failed_boot(self, session, why, last):
        """Says that a machine has ended, or hangs, before a test could begin. The run has failed if it was the last trial."""
        if last:
            self.fail_late("machine before the first test", why, session)
            return
        print(f"# the machine is started again, because it failed before a test could begin (files in {session.folder.name}):", flush=True)
        for line in why:
            print(f"#   {line}", flush=True)

    def fail_late(self, what, why, session):
        self.late += 1
        name = late_name(self.late)
        self.numbers[name] = len(self.numbers) + 1
        self.done[name] = "fail"
        print(f"not ok {self.numbers[name]} {what}", flush=True)
        for line in why:
            print(f"#   {line}", flush=True)
        self.keep(name, session, LATE)

    def keep(self, name, session, stem=None):
        """Stores the serial logs, and the files of a boot whose names begin with `stem` (default: the name of the test), in failed/NAME."""
        folder = self.out / "failed" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in [*session.results.glob(f"{stem or name}.*"), *(m.serial for m in session.machines)]:
            if Path(path).exists():
                shutil.copy(path, folder)
        return folder

    def end(self):
        """Counts tests without a verdict as failed, and writes the summary. Returns the exit status of the run."""
        for name, number in self.numbers.items():
            if name not in self.done:
                self.done[name] = "fail"
                print(f"not ok {number} {name} # not run", flush=True)
        count = {found: list(self.done.values()).count(found) for found in ("pass", "fail", "skip")}
        print(f"# {count['pass']} passed, {count['fail']} failed, {count['skip']} skipped", flush=True)
        (self.out / "summary.json").write_text(json.dumps(self.done, indent=1) + "\n")
        return 1 if count["fail"] else 0
