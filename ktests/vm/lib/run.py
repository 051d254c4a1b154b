# SPDX-License-Identifier: GPL-2.0
"""Runs one test of a Python file.

run.py FILE FUNCTION          runs the test as described below
run.py alone FILE FUNCTION    only calls the function

The test runs in a child process, whose end closes everything that it left open; after that no process may have objects of a device. Two
functions of the file, if present, are called around each test: `beforehand()` creates what all of them need, or skips them, and
`afterwards()` checks after a passed test that nothing else is left. The exit status is the test's: 4 if it was skipped.
"""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from ending import status_of
from lib import host
from lib.case import SKIP


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def skip_reason(options):
    """Returns the reason why a test cannot run here, or None."""
    if options.get("driver", host.driver("a")) != host.driver("a"):
        return options["reason"]
    if os.cpu_count() < options.get("cpus", 1):
        return f"{options['cpus']} processors are needed"
    if "no_uml" in options and host.is_uml():
        return options["no_uml"]
    return None


def run_in_child(function, names):
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = status_of(function, names)
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        print(f"the test was ended by signal {-code}", file=sys.stderr)
    return code if code >= 0 else 128 - code


def main(path, name):
    module = load(path)
    function = getattr(module, name)
    options = {**getattr(module, "DEFAULTS", {}), **getattr(function, "case", {})}
    reason = skip_reason(options)
    if reason:
        print(f"SKIP: {reason}")
        return SKIP
    if hasattr(module, "beforehand"):
        module.beforehand()
    if options.get("fresh"):
        status = subprocess.run([sys.executable, __file__, "alone", path, name]).returncode
    else:
        status = run_in_child(function, host.names())
    if status:
        return status
    left = host.users_objects()
    assert not left, "objects are left:\n" + "\n".join(left)
    if hasattr(module, "afterwards"):
        module.afterwards()
    return 0


def alone(path, name):
    return status_of(getattr(load(path), name), host.names())


if __name__ == "__main__":
    sys.exit(alone(*sys.argv[2:]) if sys.argv[1] == "alone" else main(*sys.argv[1:]))
