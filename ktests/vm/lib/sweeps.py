# SPDX-License-Identifier: GPL-2.0
"""Fault injection into allocations, for faults.py: one at a time, or at random.

The kernel makes the N-th allocation of this thread's system calls fail if N is written to `fail-nth`; a sweep increases N until a call
has fewer allocations than that. Successful calls that change something are undone; undoing is swept, too.
"""
import errno
import os
import time

from pyverbs.pyverbs_error import PyverbsError

# Errors that a call may return without memory. EAGAIN: for pages; EINVAL: device queries that got no response.
EXPECTED_ERRORS = {errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.EFAULT, errno.ENOSPC, errno.EINVAL, errno.ENFILE}
LIMIT = 3000
DEBUGFS = "/sys/kernel/debug"


def injector(probability=0, atomic_only=False, one_in=1):
    """Enables failures of slab and page allocations: by `fail-nth`, and at random if `probability` (per cent) is not 0."""
    for name in ("failslab", "fail_page_alloc"):
        for option, value in (("probability", 0), ("ignore-gfp-wait", "Y" if atomic_only else "N"), ("verbose", 0), ("times", -1),
                              ("interval", one_in), ("min-order", 0), ("ignore-gfp-highmem", "N"), ("probability", probability)):
            path = f"{DEBUGFS}/{name}/{option}"
            if os.path.exists(path):
                write(path, value)


def write(path, value):
    """Writes to a file of debugfs; retried, for opening a file allocates, and allocations may be failing at random."""
    for left in reversed(range(100)):
        try:
            with open(path, "w") as f:
                f.write(str(value))
            return
        except OSError:
            if not left:
                raise


class Nth:
    """The failure of one allocation of this thread."""

    def __init__(self):
        self.fd = os.open("/proc/thread-self/fail-nth", os.O_RDWR)

    def arm(self, n):
        os.pwrite(self.fd, str(n).encode(), 0)

    def left(self):
        return int(os.pread(self.fd, 16, 0))


def error_of(error):
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError):
        return error.errno
    if "find device" in str(error):
        return errno.ENODEV
    return abs(getattr(error, "error_code", None) or 0) or next(
        (n for n in EXPECTED_ERRORS if os.strerror(n).lower() in str(error).lower()), None)


def sweep(name, call, prepare=lambda: (), undo=None, allowed=(), limit=LIMIT, seconds=None, failed=None, dense=LIMIT):
    """Runs `call(*prepare())` with each of its allocations failing; `undo(result, *prepared)` after successful calls,
    `failed(*prepared)` after others. From allocation number `dense` on, the distance grows: sysfs creates thousands of similar files."""
    nth = Nth()
    errors = {}
    deadline = time.monotonic() + (seconds or 1e9)
    n = 0
    while n < limit:
        n += 1 + n // dense
        state = prepare()
        problem = result = None
        nth.arm(n)
        try:
            result = call(*state)
        except (PyverbsError, OSError, MemoryError) as error:
            problem = error
        injected = nth.left() == 0
        nth.arm(0)
        if problem is not None:
            code = error_of(problem)
            assert injected, f"{name}: fails without an injected failure: {problem}"
            assert code in EXPECTED_ERRORS or code in allowed, f"{name}: allocation {n}: {problem!r}"
            errors[code] = errors.get(code, 0) + 1
            # Release what the exception refers to now, not in a later round.
            problem.__traceback__ = None
            del problem
            if failed:
                failed(*state)
        elif undo:
            undo(result, *state)
        del result, state
        if not injected or time.monotonic() > deadline:
            break
    else:
        raise AssertionError(f"{name}: still meets the failure after {limit} allocations")
    os.close(nth.fd)
    summary = " ".join(f"{errno.errorcode.get(c, c)} {count}" for c, count in sorted(errors.items(), key=str)) or "none"
    print(f"{name}: {n - 1} allocations, errors: {summary}{' (stopped by the time limit)' if injected else ''}", flush=True)


def close(thing, *_):
    """Closes an object with each allocation failing. After an error the object still exists, and the next call continues."""
    nth = Nth()
    for n in range(1, LIMIT):
        nth.arm(n)
        try:
            thing.close()
        except (PyverbsError, OSError) as error:
            assert nth.left() == 0, f"closing fails: {error}"
            continue
        finally:
            nth.arm(0)
        break
    os.close(nth.fd)
