#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs tests of rdma-core, each in a process of its own.

pyverbs_server.py list               prints the names of all tests except those for devices of one vendor
pyverbs_server.py serve DEVICE GID   reads lines `NAME LOG SECONDS` from /run/pyverbs.ask, runs each test in a forked child with its output
                                     in LOG, and writes 0 (passed), 4 (skipped), 1 (failed) or 124 (not ended after SECONDS, and killed) to
                                     /run/pyverbs.answer
"""
import importlib
import os
import select
import signal
import sys
import types
import unittest
from pathlib import Path

TESTS = Path("/usr/share/doc/rdma-core/tests")
VENDORS = ("test_mlx4", "test_mlx5", "test_efa", "test_cuda", "test_irdma", "test_hns")


def load(arguments):
    """Imports the test modules into a package `tests` that lacks the __init__ of the original, which searches for modules itself."""
    sys.path.insert(0, str(TESTS))
    package = types.ModuleType("tests")
    package.__path__ = [str(TESTS)]
    sys.modules["tests"] = package
    sys.argv = ["run_tests.py", *arguments]
    importlib.import_module("args_parser").parser.parse_args()
    names = sorted(p.stem for p in TESTS.glob("test_*.py") if not p.stem.startswith(VENDORS))
    return [importlib.import_module(f"tests.{name}") for name in names]


def ids(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from ids(part)
        else:
            yield part.id()


def run_one(name, log):
    """Runs a test in the child; does not return."""
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    status = 1
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(f"tests.{name}")
        result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)
        if result.wasSuccessful() and result.testsRun:
            status = 4 if result.skipped else 0
        for _, reason in result.skipped:
            print("SKIP: " + " ".join(reason.split()), flush=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait_for(child, seconds):
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended], [], [], seconds)
    os.close(ended)
    if not ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF if ready else 124


def main():
    if sys.argv[1] == "list":
        for module in load([]):
            for name in ids(unittest.defaultTestLoader.loadTestsFromModule(module)):
                print(name.removeprefix("tests."))
        return
    load(["--dev", sys.argv[2], "--port", "1", "--gid", sys.argv[3], "-v"])
    Path("/run/pyverbs.ready").touch()
    while True:
        with open("/run/pyverbs.ask") as ask:
            request = ask.readline().split()
        if not request:
            continue
        name, log, seconds = request
        child = os.fork()
        if child == 0:
            run_one(name, log)
        status = wait_for(child, float(seconds))
        with open("/run/pyverbs.answer", "w") as answer:
            answer.write(f"{status}\n")


if __name__ == "__main__":
    main()
