# SPDX-License-Identifier: GPL-2.0
"""Real-time tasks on the processor of other tasks. With PREEMPT_RT they preempt tasks that have bottom halves disabled, so no wait of the
driver may spin until another task has finished.
"""
import contextlib
import os
import random
import time

from pyverbs.mr import MW
import pyverbs.enums as e

from lib.ends import soon
from lib.keys import BINDABLE, WRITE, bind1
from lib.writer import writer

DEFAULTS = dict(timeout=90)
SIZE = 16384
CHANGES = 1000
# The kernel gives other tasks a processor that a real-time task keeps busy after 0.95 s (Documentation/scheduler/sched-deadline.rst, fair
# server). A task that spins therefore waits that long, and one that sleeps for the copy of one packet.
STARVED_S = 0.8


@contextlib.contextmanager
def real_time_on_first_processor():
    os.sched_setaffinity(0, {0})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, range(os.cpu_count()))


def test_window_rebound(names):
    """A real-time task binds a memory window again and again, on the processor of a task that writes to it and that it preempts at any
    moment. Binding waits for a write that is going on, because it invalidates the previous key."""
    # An unreliable connection: a write with a key that has become invalid is dropped, and the next one follows.
    with writer(names, BINDABLE, processor=0, size=SIZE, qp_type=e.IBV_QPT_UC) as writes:
        b = writes.end
        # Binding by the queue pair that receives would wait for its lock, whose holder inherits the priority.
        binder = b.with_another_qp()
        binder.connect(binder, 100, 100)
        window = MW(b.pd, e.IBV_MW_TYPE_1)

        def bind():
            key = bind1(binder, window, 0, SIZE, WRITE)
            b.complete()
            writes.set_target(b.mr.buf, key)

        # The writer needs time to start, of which the real-time task would leave it little on a busy host.
        bind()
        writes.goes_on()
        slow, longest, before = 0, 0.0, writes.count()
        with real_time_on_first_processor():
            for _ in range(CHANGES):
                start = time.monotonic()
                bind()
                took = time.monotonic() - start
                longest = max(longest, took)
                slow += took > STARVED_S
                assert slow < 3, f"binding starves the writer: the longest call took {longest:.1f} s"
                time.sleep(random.uniform(0.0005, 0.004))
        count = writes.count() - before
        print(f"bound {CHANGES} times during {count} writes, the longest call took {longest * 1000:.1f} ms")
        assert count > CHANGES / 2, f"{count} writes during {CHANGES} calls"
        # The writes arrive through the window as long as it is bound.
        b.mr.write(bytes(SIZE), SIZE)
        soon(lambda: b.mr.read(SIZE, 0) != bytes(SIZE), what="nothing is written through the window")
        bind1(binder, window, 0, 0, 0)
        b.complete()
        b.mr.write(bytes(SIZE), SIZE)
        writes.goes_on()
        assert b.mr.read(SIZE, 0) == bytes(SIZE), "the memory was written after the window had been unbound"
