# SPDX-License-Identifier: GPL-2.0
"""Real-time tasks on the processor of other tasks. With PREEMPT_RT they preempt tasks that have bottom halves disabled, so no wait of the
driver may spin until another task has finished.
"""
import contextlib
import copy
import itertools
import mmap
import os
import random
import socket
import struct
import time
import traceback
from types import SimpleNamespace

from pyverbs.device import Context
from pyverbs.mr import MW
from pyverbs.qp import QP
import pyverbs.enums as e

from lib.child_process import kill
from lib.ends import End, pattern, soon
from lib.keys import BINDABLE, WRITE, bind1

DEFAULTS = dict(timeout=90)
SIZE = 16384
CHANGES = 1000
# In memory shared by two processes: address and key to write to, and the number of writes.
TARGET = struct.Struct("QI")
COUNT = struct.Struct("I")
# The kernel gives other tasks a processor that a real-time task keeps busy after 0.95 s (Documentation/scheduler/sched-deadline.rst, fair
# server). A task that spins therefore waits that long, and one that sleeps for the copy of one packet.
STARVED_S = 0.8


def remote(names, side, number):
    """The end of another process, as `End.connect` needs it."""
    return SimpleNamespace(ctx=Context(name=names[side]), gid_index=int(names[side + 1]), qp=SimpleNamespace(qp_num=number))


def connected(names, side, channel, **options):
    """An end of an unreliable connection with the process at the other end of the channel. If an access fails, the message is dropped
    and the connection continues."""
    end = End(names[side], int(names[side + 1]), size=SIZE, qp_type=e.IBV_QPT_UC, **options)
    channel.send(struct.pack("I", end.qp.qp_num))
    number, = struct.unpack("I", channel.recv(4))
    end.connect(remote(names, 2 - side, number), 100, 100)
    channel.send(b"x")
    channel.recv(1)
    return end


def write_repeatedly(names, channel, target):
    """Writes to the window whose address and key `target` has, and counts the writes there, until the process is killed."""
    os.sched_setaffinity(0, {0})
    end = connected(names, 0, channel)
    end.mr.write(pattern(SIZE), SIZE)
    for count in itertools.count(1):
        address, key = TARGET.unpack_from(target)
        end.post(e.IBV_WR_RDMA_WRITE, end.sge(), remote=(address, key))
        end.complete()
        COUNT.pack_into(target, TARGET.size, count)


@contextlib.contextmanager
def other_process(work, *args):
    child = os.fork()
    if child == 0:
        try:
            work(*args)
        finally:
            traceback.print_exc()
            os._exit(1)
    try:
        yield
    finally:
        kill(child)


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
    one, other = socket.socketpair()
    target = mmap.mmap(-1, mmap.PAGESIZE)
    with other_process(write_repeatedly, names, other, target):
        b = connected(names, 2, one, access=BINDABLE)
        # Binding by the queue pair that receives would wait for its lock, whose holder inherits the priority.
        binder = copy.copy(b)
        binder.qp = QP(b.pd, b.init)
        binder.connect(binder, 100, 100)
        window = MW(b.pd, e.IBV_MW_TYPE_1)
        slow, longest = 0, 0.0
        with real_time_on_first_processor():
            for _ in range(CHANGES):
                start = time.monotonic()
                key = bind1(binder, window, 0, SIZE, WRITE)
                took = time.monotonic() - start
                longest = max(longest, took)
                slow += took > STARVED_S
                assert slow < 3, f"binding starves the writer: the longest call took {longest:.1f} s"
                b.complete()
                TARGET.pack_into(target, 0, b.mr.buf, key)
                time.sleep(random.uniform(0.0005, 0.004))
        count, = COUNT.unpack_from(target, TARGET.size)
        print(f"bound {CHANGES} times during {count} writes, the longest call took {longest * 1000:.1f} ms")
        assert count > CHANGES / 2, f"{count} writes during {CHANGES} calls"
        # The writes arrive through the window as long as it is bound.
        b.mr.write(bytes(SIZE), SIZE)
        soon(lambda: b.mr.read(SIZE, 0) != bytes(SIZE), what="nothing is written through the window")
        bind1(binder, window, 0, 0, 0)
        b.complete()
        b.mr.write(bytes(SIZE), SIZE)
        before, = COUNT.unpack_from(target, TARGET.size)
        soon(lambda: COUNT.unpack_from(target, TARGET.size)[0] > before + 5)
        assert b.mr.read(SIZE, 0) == bytes(SIZE), "the memory was written after the window had been unbound"
