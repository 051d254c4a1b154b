#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Finds the rows of the table of contexts in rxe_rs/README.md that no test has entered.

qemu/contexts.py LOG…    the logs are outputs of qemu/run with the kernel that checks locks and contexts

A row is entered if one of the tests that it names has passed; a skipped one enters nothing. Prints the rows that were not entered; exit
status 1 if there are some.
"""
import re
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent


def rows(text):
    """The rows of the table, each as its entry points and the names of its tests."""
    section = text.split("\n## Contexts\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return [(entry, re.findall(r"`(\w+\.\w+)`", tests)) for entry, _, _, _, tests in cells[2:]]


def of_readme():
    return rows((CLONE / "rxe_rs/README.md").read_text())


def passed(log):
    """The names of the tests that passed, by the output of a run."""
    return set(re.findall(r"^ok \d+ (\S+) # [\d.]+ s$", log, re.M))


def not_entered(table, logs):
    entered = set().union(*map(passed, logs))
    return [(entry, tests) for entry, tests in table if not entered.intersection(tests)]


def main():
    missing = not_entered(of_readme(), [Path(path).read_text(errors="replace") for path in sys.argv[1:]])
    for entry, tests in missing:
        print(f"no test entered: {entry} ({', '.join(tests)})")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
