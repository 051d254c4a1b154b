# SPDX-License-Identifier: GPL-2.0
"""What a test requires, and how it is skipped.

A test is a function `test_NAME(names)` of a file ktests/vm/SUBJECT.py; its name is SUBJECT.NAME. `names` are the arguments of
`lib.ends.pair`: the device of node a, the index of its IPv4 GID, and the same of node b. A test passes if it returns.

DEFAULTS of a file applies to all its tests and `@case(…)` to one. The host reads both without importing the file
(qemu/vm/discovery.py), so their values must be literals:

timeout=60        seconds that the test may take
needs="…"         what has to be built for the machine: `tools`, `packages`, or modules of ktests
driver="rxe_rs"   the test is skipped if node a has another driver; `reason` says why
cpus=2            the test is skipped on machines with fewer processors
fresh=True        it runs in an interpreter of its own, with no memory shared with a parent by fork
no_uml="…"        the reason to skip the test in User Mode Linux
"""
import functools
import gzip
import sys

# The exit status of the kernel's selftests (tools/testing/selftests/kselftest.h).
SKIP = 4


def case(**options):
    def mark(function):
        function.case = options
        return function
    return mark


def skip(reason):
    """Ends the test as skipped."""
    print(f"SKIP: {reason}", flush=True)
    sys.exit(SKIP)


def skip_with(option, reason):
    """Ends the test as skipped if the kernel has an option, such as KASAN. Those of this project tell their options, Debian's do not."""
    try:
        with gzip.open("/proc/config.gz", "rt") as options:
            has = f"CONFIG_{option}=y\n" in options
    except FileNotFoundError:
        return
    if has:
        skip(reason)


def families(*which):
    """Runs the test once for each of these address families, which it gets as its argument."""
    def wrap(function):
        @functools.wraps(function)
        def test(_names):
            for family in which:
                print(f"IPv{family}", flush=True)
                function(family)
        return test
    return wrap
