#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The kernel log gate: finds the lines of a kernel log that fail a test, whatever the test itself said.

gate.py FILE…    prints the offending lines of serial or dmesg logs; exit status 1 if there are any
"""
import re
import sys

# One pattern per way in which a kernel complains. Anchored on the kernel's own wording, so that a driver that prints
# "warning:" or a tool that prints "bug" in its output does not trip the gate.
BAD = tuple((name, re.compile(pattern)) for name, pattern in (
    ("warning", r"\bWARNING: (?!.*\bunsigned module\b)"),
    ("cut here", r"-+\[ cut here \]-+"),
    ("bug", r"\b(BUG: |kernel BUG at )"),
    ("oops", r"\b(Oops: |Oops\b.*\[#\d+\]|general protection fault|Unable to handle kernel|unable to handle page fault)"),
    ("double fault", r"\b(double fault|stack segment|divide error|invalid opcode): "),
    ("call trace", r"\bCall Trace:"),
    ("rust panic", r"rust_kernel: panicked at"),
    ("lockdep", r"(possible (circular|recursive) locking|possible irq lock inversion|inconsistent lock state|"
                r"suspicious RCU usage|lock held when returning to user space|bad unlock balance|held lock freed|"
                r"Invalid wait context|possible deadlock|trying to register non-static key|lockdep is turned off|"
                r"turning off the locking correctness validator|DEBUG_LOCKS_WARN_ON)"),
    ("atomic sleep", r"(sleeping function called from invalid context|scheduling while atomic)"),
    ("hung task", r"INFO: task .* blocked for more than"),
    ("stall", r"(rcu:.*\bstall|soft lockup|hard LOCKUP|workqueue lockup|self-detected stall)"),
    ("memory", r"(KASAN: |KFENCE: |KMSAN: |UBSAN: |kmemleak: \d+ new suspected memory leaks|unreferenced object 0x|"
               r"Slab .*: (Poison|Redzone|Object)|list_(add|del) corruption|refcount_t: |ODEBUG: )"),
    ("panic", r"(Kernel panic - not syncing|---\[ end Kernel panic)"),
    ("device leak", r"unregister_netdevice: waiting for .* to become free"),
    ("packet", r"skb_(over|under)_panic"),
))

# Lines of the stock kernel in these machines that say nothing about the driver.
HARMLESS = tuple(re.compile(p) for p in (
    r"Spectre V2 :",
    r"mitigations=off",
    r"WARNING: Spectre",
    r"TSC doesn't count with P0 frequency",
))

# A test that makes allocations fail says so. From then on the kernel's own reports of such failures are no faults: a line about it, and
# the call trace within so many lines of it.
FAILING_ALLOCATIONS = "rxe-test: allocations are made to fail"
NO_MEMORY = re.compile(r"(vmalloc error: |page allocation failure: |"
                       r"WARNING: lib/dynamic_debug\.c:\d+ at ddebug_module_notify\b|"
                       r"WARNING: kernel/jump_label\.c:\d+ at jump_label_(module_notify|del_module)\b)")
NO_MEMORY_LINES = 20
# A test that searches for leaks and looks at each that is found says so: how many there are is no fault from then on.
LEAKS_JUDGED = "rxe-test: leaks are judged one by one"
LEAKS = re.compile(r"kmemleak: \d+ new suspected memory leaks")


def check(text):
    """All offending lines of a log: [(line number, kind, line), …]."""
    found = []
    failing, judged, expected = False, False, 0
    for number, line in enumerate(text.splitlines(), 1):
        failing = failing or FAILING_ALLOCATIONS in line
        reported = failing and NO_MEMORY.search(line)
        expected = NO_MEMORY_LINES if reported else max(expected - 1, 0)
        judged = judged or LEAKS_JUDGED in line
        if any(p.search(line) for p in HARMLESS) or judged and LEAKS.search(line):
            continue
        kind = next((kind for kind, pattern in BAD if pattern.search(line)), None)
        if kind == "warning" and reported:
            # What begins a report is the line before it, or before the warning's own words.
            if found and found[-1][1] == "cut here" and number - found[-1][0] <= 2:
                found.pop()
        elif kind == "call trace" and expected:
            expected = 0
        elif kind:
            found.append((number, kind, line.strip()))
    return found


def main():
    bad = 0
    for name in sys.argv[1:]:
        with open(name, errors="replace") as log:
            for number, kind, line in check(log.read()):
                print(f"{name}:{number}: {kind}: {line}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
