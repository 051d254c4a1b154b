#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Finds the tests that SECURITY.md names for its promises.

qemu/security.py netns|two    prints those that run in machines of that topology, a line each
qemu/security.py uml          those that expect a machine of native speed
qemu/security.py suites       the suites of ktests/suites
qemu/security.py crates       the crates with tests on the host, as options of `cargo test`
qemu/security.py scripts      the files with tests of scripts

A name in backticks is `file.test` for a test in a machine (ktests/vm) or a case of a suite, also as a pattern, `file::test` for a test
on the host (CRATES), or `qemu/selftest_NAME.py`. Each line that starts with `- ` or `| ` below a heading of PROMISES must name a test.
"""
import fnmatch
import re
import sys
from pathlib import Path

from vm.discovery import CLONE, Suite, all_tests

PROMISES = ("What is promised", "Blind attackers")
IN_MACHINE = re.compile(r"`([a-z]\w*\.[\w*]+)`")
ON_HOST = re.compile(r"`(\w+)::(\w+)`")
SCRIPTS = re.compile(r"`qemu/(selftest_\w+\.py)`")
NOT_TESTS = ("md", "h", "c", "rs", "py", "ko", "conf", "sh", "test")
CRATES = {"rxe_proto": "rxe_rs/proto/tests", "rxectl": "tools/rxectl/tests", "rxe_models": "ktests/models/tests"}
# Tests for both topologies that run in both; others of them run in netns only.
BETWEEN_MACHINES = ("ipsec.send", "ipsec.rekeying_between_machines")
# What these assert in an emulated machine is weaker: fewer objects, no limit of a queue.
NATIVE_SPEED = ("deregister.process_exit", "ecn.two_share_a_link", "ecn.no_congestion_control")


def patterns(text):
    """Names and patterns of tests in machines and of cases of suites, in the order of the text."""
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


def crate_of(file, test):
    """The crate with a host test, or None."""
    for crate, folder in CRATES.items():
        for path in (CLONE / folder / f"{file}.rs", *(CLONE / folder / file).glob("*.rs")):
            if path.exists() and re.search(rf"\bfn {test}\b", path.read_text()):
                return crate
    return None


def matching(text, tests):
    return [test.name for pattern in patterns(text) for test in tests if fnmatch.fnmatch(test.name, pattern)]


def in_netns(text):
    return matching(text, [test for test in all_tests() if "netns" in test.topologies])


def in_two(text):
    return matching(text, [test for test in all_tests() if "two" in test.topologies
                           and ("netns" not in test.topologies or test.name in BETWEEN_MACHINES)])


def in_uml(text):
    return [name for name in in_netns(text) if name in NATIVE_SPEED]


def suites():
    return [Suite(path.stem) for path in sorted((CLONE / "ktests/suites").glob("*.suite"))]


def named_suites(text):
    return [suite.path.stem for suite in suites() if matching(text, suite.tests(None))]


def crates(text):
    return [f"-p {crate}" for crate in filter(None, (crate_of(file, test) for file, test in host_tests(text)))]


KINDS = {"netns": in_netns, "two": in_two, "uml": in_uml, "suites": named_suites, "crates": crates, "scripts": SCRIPTS.findall}


def chosen(kind, text):
    """What `make test-security` runs of a kind, each once."""
    return list(dict.fromkeys(KINDS[kind](text)))


def main():
    print("\n".join(chosen(sys.argv[1], (CLONE / "SECURITY.md").read_text())))


if __name__ == "__main__":
    main()
