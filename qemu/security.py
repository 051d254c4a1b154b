#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Finds the tests that SECURITY.md names for its promises.

qemu/security.py netns|two    prints those that run in machines of that topology, a line each

A name in backticks is `file.test` for a test in a machine (ktests/vm), also as a pattern, or `file::test` for a test of the
protocol crate (rxe_rs/proto/tests/file.rs) or of rxectl (tools/rxectl/tests/file.rs). Each line that starts with `- ` or `| ` below a
heading of PROMISES must name a test.
"""
import fnmatch
import re
import sys
from pathlib import Path

from vm.discovery import all_tests

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
PROMISES = ("What is promised", "Blind attackers")
IN_MACHINE = re.compile(r"`([a-z]\w*\.[\w*]+)`")
ON_HOST = re.compile(r"`(\w+)::(\w+)`")
NOT_TESTS = ("md", "h", "c", "rs", "py", "ko", "conf", "sh", "test")


def patterns(text):
    """Names and patterns of tests in machines, in the order of the text."""
    found = [name for name in IN_MACHINE.findall(text) if name.split(".")[1] not in NOT_TESTS]
    return list(dict.fromkeys(found))


def host_tests(text):
    """Pairs of a file with host tests and a test in it."""
    return list(dict.fromkeys(ON_HOST.findall(text)))


def promises(text):
    """The lines with promises."""
    heading, table = "", False
    for line in text.splitlines():
        if re.match("##? ", line):
            heading = line.lstrip("# ")
        if heading.startswith(PROMISES):
            # The row above the delimiter row of a table is its header.
            if line.startswith("- ") or line.startswith("| ") and table:
                yield line
            table = line.startswith("|--") or line.startswith("| ") and table


def exists_on_host(file, test):
    sources = []
    for folder in (CLONE / "rxe_rs/proto/tests", CLONE / "tools/rxectl/tests"):
        sources += [folder / f"{file}.rs", *(folder / file).glob("*.rs")]
    return any(re.search(rf"\bfn {test}\b", path.read_text()) for path in sources if path.exists())


def main():
    topology = sys.argv[1]
    text = (CLONE / "SECURITY.md").read_text()
    tests = [test for test in all_tests() if topology in test.topologies]
    chosen = dict.fromkeys(test.name for pattern in patterns(text) for test in tests if fnmatch.fnmatch(test.name, pattern))
    # Tests for both topologies are run once, in netns.
    if topology == "two":
        either = {test.name for test in tests if "netns" in test.topologies}
        chosen = [name for name in chosen if name not in either]
    print("\n".join(chosen))


if __name__ == "__main__":
    main()
