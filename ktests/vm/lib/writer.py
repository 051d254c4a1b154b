# SPDX-License-Identifier: GPL-2.0
"""A process that writes to memory of its parent, by one WRITE after the other."""
import contextlib
import itertools
import mmap
import os
import struct

import pyverbs.enums as e

from lib.ends import pattern, soon
from lib.peer_process import connected, peer_process

# In memory that both processes share: address and key to write to, and the number of writes that have completed.
TARGET = struct.Struct("QI")
COUNT = struct.Struct("I")


class Writer:
    """What the parent knows of the process; `end` is its end of the connection."""

    def __init__(self, end, shared):
        self.end, self.shared = end, shared

    def set_target(self, address, key):
        TARGET.pack_into(self.shared, 0, address, key)

    def count(self):
        return COUNT.unpack_from(self.shared, TARGET.size)[0]

    def goes_on(self):
        """Waits for more writes, which must complete."""
        before = self.count()
        soon(lambda: self.count() > before + 5, what="no more writes complete")


def write_repeatedly(names, channel, shared, processor, options):
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    end = connected(names, 0, channel, **options)
    end.mr.write(pattern(end.size), end.size)
    soon(lambda: TARGET.unpack_from(shared)[1], 60)
    for count in itertools.count(1):
        address, key = TARGET.unpack_from(shared)
        end.post(e.IBV_WR_RDMA_WRITE, end.sge(), remote=(address, key))
        end.complete()
        COUNT.pack_into(shared, TARGET.size, count)


@contextlib.contextmanager
def writer(names, access, processor=None, **options):
    """Starts a process with an end at a, which runs on this processor, and connects it with an end at b, whose region permits `access`.
    The process begins when it has a target, and ends with the block or if a write fails. Yields a Writer."""
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    with peer_process(lambda channel: write_repeatedly(names, channel, shared, processor, options)) as channel:
        yield Writer(connected(names, 2, channel, access=access, **options), shared)
