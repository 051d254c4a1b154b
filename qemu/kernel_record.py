#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Which kernels the project supports, whether this clone has a module for them, and which tests ran on them.

kernel_record.py    prints that as a table: for each kernel the release that is prepared, when its module was built, and for each topology
                    the files of the tests that ran, the time of the last run, and how many passed, failed and were skipped. The kernels
                    of other suites of Debian follow for which suite-module.sh has built the module, or tried to

Each run of tests with the module on a stock kernel adds its verdicts to out/kernels/KERNEL.json: {topology: {test: [verdict, time]}}. The
last verdict of each test counts, whenever that was; `make clean` removes all.
"""
import fcntl
import json
import sys
import textwrap
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernel  # noqa: E402

OUT = Path(__file__).resolve().parent.parent / "out"
HEADINGS = ("kernel", "release", "module built", "topology", "last run", "passed", "failed", "skipped", "tests")
# Those of which suite-module.sh builds the module for the kernel.
SUITES = ("testing", "sid", "experimental")
VERDICTS = ("pass", "fail", "skip")
# The width of the column of tests.
TESTS_WIDTH = 60


def record(name):
    """What ran on a kernel."""
    path = OUT / "kernels" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add(name, topology, verdicts):
    """Adds the verdicts of a run, by the names of the tests, to the record of a kernel; removes the tests whose verdict is None."""
    folder = OUT / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    now = int(time.time())
    # Runs may end at the same time.
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = record(name)
        tests = known.get(topology, {}) | {test: [verdict, now] for test, verdict in verdicts.items()}
        known[topology] = {test: last for test, last in tests.items() if last[0]}
        tmp = folder / f"{name}.tmp"
        tmp.write_text(json.dumps(known, indent=1) + "\n")
        tmp.rename(folder / f"{name}.json")


def minute(seconds):
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def rows():
    """The rows of the table: of each kernel one for each topology, at least one."""
    for name in kernel.NAMES:
        ready, module = kernel.cached(name), OUT / name / "rxe_rs.ko"
        first = (name, ready["release"] if ready else "not prepared", minute(module.stat().st_mtime) if module.exists() else "-")
        for topology, tests in sorted(record(name).items()) or [("-", {})]:
            counts = [str(sum(verdict == wanted for verdict, _ in tests.values())) for wanted in VERDICTS] if tests else ["-"] * 3
            files = " ".join(sorted({test.split(".")[0] for test in tests}))
            last = minute(max(when for _, when in tests.values())) if tests else "-"
            yield (*first, topology, last, *counts, textwrap.shorten(files, TESTS_WIDTH, placeholder=" …"))
            first = ("", "", "")
    for suite in SUITES:
        release, module = OUT / suite / "release", OUT / suite / "rxe_rs.ko"
        if release.exists():
            built = minute(module.stat().st_mtime) if module.exists() else "does not build"
            yield (suite, release.read_text().strip(), built, *["-"] * 5, "")


def table():
    """The lines of the table, and of the list of tests that failed."""
    cells = [HEADINGS, *rows()]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
    for name in kernel.NAMES:
        for topology, tests in sorted(record(name).items()):
            for test in sorted(test for test, (verdict, _) in tests.items() if verdict == "fail"):
                yield f"failed: {name} {topology} {test}"


if __name__ == "__main__":
    print("\n".join(table()))
