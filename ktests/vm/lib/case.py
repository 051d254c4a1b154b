# SPDX-License-Identifier: GPL-2.0
"""What a test says about itself, and how it is skipped.

A test is a function `test_NAME(names)` of a file ktests/vm/SUBJECT.py; its name is SUBJECT.NAME. `names` is what `lib.ends.pair` takes:
the device of node a, the index of its IPv4 GID, and the same of node b. A test that returns has passed.

DEFAULTS in a file holds for all its tests and `@case(…)` for one. The host reads both without importing the file
(qemu/vm/discovery.py), so their values are literals:

timeout=60        seconds that the test may take
needs="…"         what is built for the machine: `tools`, or modules of ktests
driver="rxe_rs"   with another driver in node a the test is skipped; `reason` says why
cpus=2            with fewer processors the test is skipped
fresh=True        it runs in an interpreter of its own, with no memory that is another process's, too
no_uml="…"        the reason to skip the test in User Mode Linux
"""
import functools
import sys

# As the kernel's selftests have it (tools/testing/selftests/kselftest.h).
SKIP = 4


def case(**said):
    def mark(function):
        function.case = said
        return function
    return mark


def skip(why):
    """Ends the test."""
    print(f"SKIP: {why}", flush=True)
    sys.exit(SKIP)


def families(*which):
    """The test gets an address family instead of names, each of these in turn."""
    def wrap(function):
        @functools.wraps(function)
        def test(_names):
            for family in which:
                print(f"IPv{family}", flush=True)
                function(family)
        return test
    return wrap
