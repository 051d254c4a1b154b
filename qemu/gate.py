#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Finds the lines of a kernel log that fail a test, whatever the exit status of the test.

gate.py FILE…    prints these lines of serial or dmesg logs; exit status 1 if there are any
"""
import re
import sys

# A pattern for each kind of report of the kernel. They match the exact wording of the kernel, so that a driver that prints "warning:" or a
# tool that prints "bug" does not fail a test.
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
    # A part of the log is missing (guest/lib.sh).
    ("log", r"rxe-test: the log has been overwritten since"),
))

# Lines of the stock kernel in these machines that do not concern the driver.
HARMLESS = tuple(re.compile(p) for p in (
    r"Spectre V2 :",
    r"mitigations=off",
    r"WARNING: Spectre",
    r"TSC doesn't count with P0 frequency",
))

# A test that provokes lines of a kind writes a mark to the kernel log. After the mark, lines of that kind that match the pattern do not
# fail the test, nor does a call trace within the given number of lines after one.
EXPECTED = tuple((mark, kind, re.compile(pattern), lines) for mark, kind, pattern, lines in (
    # Reports of failed allocations.
    ("rxe-test: allocations are made to fail", "warning",
     r"(vmalloc error: |page allocation failure: |WARNING: lib/dynamic_debug\.c:\d+ at ddebug_module_notify\b|"
     r"WARNING: kernel/jump_label\.c:\d+ at jump_label_(module_notify|del_module)\b)", 20),
    # Reports when a test exhausts the memory of the machine.
    ("rxe-test: the machine runs out of memory", "warning", r"(invoked oom-killer|page allocation failure: |vmalloc error: )", 20),
    # Reports when a test exhausts the memory of its cgroup.
    ("rxe-test: a cgroup runs out of memory", "warning", r"(invoked oom-killer|vmalloc error: )", 20),
    # The number of leaks: the test examines each of them.
    ("rxe-test: leaks are judged one by one", "memory", r"kmemleak: \d+ new suspected memory leaks", 0),
))

# Lock orders of other parts of the kernel that lockdep reports with any driver, as the locks of each cycle (rxe_rs/README.md).
KNOWN_CYCLES = ({"nvmet_config_sem", "&id_priv->handler_mutex"},)
LOCK_OF_A_CYCLE = re.compile(r"-> #\d+ \((\S+)\)\{")
CYCLE, END_OF_A_REPORT = "WARNING: possible circular locking dependency detected", "</TASK>"


def known_cycles(lines):
    """The numbers of the lines of reports of circular locking that are known and contain no function of the driver."""
    known, start = set(), None
    for number, line in enumerate(lines, 1):
        if CYCLE in line:
            start = number
        elif start and END_OF_A_REPORT in line:
            report = lines[start - 1:number]
            locks = {found[1] for found in map(LOCK_OF_A_CYCLE.search, report) if found}
            if locks in KNOWN_CYCLES and not any("[rxe_rs]" in line for line in report):
                known.update(range(start, number + 1))
            start = None
    return known


def check(text):
    """The lines of a log that fail a test: [(line number, kind, line), …]."""
    found, active, trace = [], [], 0
    lines = text.splitlines()
    known = known_cycles(lines)
    for number, line in enumerate(lines, 1):
        active += [entry for entry in EXPECTED if entry[0] in line]
        expected, left = next(((kind, left) for _, kind, pattern, left in active if pattern.search(line)), (None, trace - 1))
        trace = max(left, 0)
        if any(p.search(line) for p in HARMLESS):
            continue
        kind = next((kind for kind, pattern in BAD if pattern.search(line)), None)
        if kind and kind == expected:
            # The "cut here" line is one or two lines before the warning.
            if kind == "warning" and found and found[-1][1] == "cut here" and number - found[-1][0] <= 2:
                found.pop()
        elif kind == "call trace" and trace:
            trace = 0
        elif number in known and kind in ("warning", "call trace"):
            continue
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
