# SPDX-License-Identifier: GPL-2.0
"""Regions with on-demand paging on file mappings: the test accesses the file, so that only the device faults pages in."""
import ctypes
import functools
import mmap
import os
import random
import struct

from pyverbs.mr import MR
from pyverbs.wr import SGE
import pyverbs.enums as e

from lib import uverbs
from lib.ends import ACCESS, in_thread, pair, pattern, soon

ON_DEMAND = ACCESS | e.IBV_ACCESS_ON_DEMAND
PAGE = mmap.PAGESIZE
# The end of the addresses that a process has unless it requests more.
USER_END = 1 << (48 if os.uname().machine == "aarch64" else 47)
DONTNEED, NOHUGEPAGE = 4, 15
RW, SHARED, PRIVATE, FIXED, ANONYMOUS, NORESERVE = 3, 1, 2, 0x10, 0x20, 0x4000
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for name in ("madvise", "mprotect"):
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def ok(result):
    assert result == 0, os.strerror(ctypes.get_errno())


class Area:
    """A mapping of the process: of a file, with no page present, or anonymous."""

    def __init__(self, size, anonymous=False, at=None):
        self.size = size
        self.fd = -1 if anonymous else os.memfd_create("area")
        flags = PRIVATE | ANONYMOUS | NORESERVE if anonymous else SHARED
        if not anonymous:
            os.ftruncate(self.fd, size)
        self.addr = libc.mmap(at, size, RW, flags | (FIXED if at else 0), self.fd, 0)
        assert self.addr != ctypes.c_void_p(-1).value
        if anonymous:
            libc.madvise(self.addr, size, NOHUGEPAGE)

    def put(self, data, at=0):
        os.pwrite(self.fd, data, at)

    def get(self, length, at=0):
        return os.pread(self.fd, length, at)

    def drop(self, at=0, size=None):
        ok(libc.madvise(self.addr + at, self.size if size is None else size, DONTNEED))

    def resident(self):
        """The number of pages that are present."""
        pages = self.size // PAGE
        with open("/proc/self/pagemap", "rb") as pagemap:
            pagemap.seek(self.addr // PAGE * 8)
            return sum(entry >> 63 for (entry,) in struct.iter_unpack("=Q", pagemap.read(8 * pages)))

    def unmap(self):
        ok(libc.munmap(self.addr, self.size))

    def close(self):
        self.unmap()
        if self.fd >= 0:
            os.close(self.fd)


class Side:
    """A mapping of one end and its memory region."""

    def __init__(self, end, size=1 << 20, anonymous=False, access=ON_DEMAND, implicit=False):
        self.end = end
        self.area = Area(size, anonymous)
        self.mr = MR(end.pd, implicit=True, access=access) if implicit else MR(end.pd, size, access, address=self.area.addr)

    def sge(self, length, at=0):
        return SGE(self.area.addr + at, length, self.mr.lkey)

    def remote(self, at=0):
        return self.area.addr + at, self.mr.rkey


def sides(names, size=1 << 20, implicit=False, **options):
    a, b = pair(names, **options)
    return Side(a, size, implicit=implicit), Side(b, size, implicit=implicit)


def try_drop(side):
    """Drops all pages of a mapping; false if one is there again, because a prefetch in the background has faulted it in."""
    side.area.drop()
    return side.area.resident() == 0


def drop_pages(*both):
    """Drops all pages of the mappings."""
    for side in both:
        soon(functools.partial(try_drop, side), 10, "pages of a mapping are still present")


def check(side, data, at=0):
    got = side.area.get(len(data), at)
    if got != data:
        wrong = [n for n in range(len(data)) if got[n] != data[n]]
        raise AssertionError(f"{len(wrong)} of {len(data)} bytes are wrong, from {wrong[0]} on")


def send(a, b, length, at=0, seed=1):
    data = pattern(length, seed)
    a.area.put(data, at)
    b.end.recv(b.sge(b.area.size))
    drop_pages(a, b)
    a.end.post(e.IBV_WR_SEND, a.sge(length, at))
    a.end.complete()
    b.end.complete()
    check(b, data)


def write(a, b, length, at=0, seed=2, imm=None):
    data = pattern(length, seed)
    a.area.put(data, at)
    if imm is not None:
        b.end.recv()
    drop_pages(a, b)
    a.end.post(e.IBV_WR_RDMA_WRITE if imm is None else e.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(length, at), remote=b.remote(at), imm=imm)
    a.end.complete()
    if imm is not None:
        b.end.complete()
    check(b, data, at)


def read(a, b, length, at=0, seed=3):
    data = pattern(length, seed)
    b.area.put(data, at)
    drop_pages(a, b)
    a.end.post(e.IBV_WR_RDMA_READ, a.sge(length, at), remote=b.remote(at))
    a.end.complete()
    check(a, data, at)


def dropping_pages(*areas):
    """Drops pages continually in another thread."""
    def drop(stop):
        rng = random.Random(1)
        while not stop.is_set():
            area = rng.choice(areas)
            page = rng.randrange(area.size // PAGE)
            area.drop(page * PAGE, PAGE * min(rng.randrange(1, 16), area.size // PAGE - page))
            os.sched_yield()

    return in_thread(drop)


INVOKE_WRITE, ADVISE = 0, 2
PREFETCH, PREFETCH_WRITE, NO_FAULT, FLUSH = 0, 1, 2, 1


def invoke(end, object_type, method, *attrs):
    """Calls a uverbs ioctl method with attributes (id, length, data or address); returns the error number or 0."""
    try:
        uverbs.method(end.ctx.cmd_fd, object_type, method, attrs)
    except OSError as error:
        return error.errno
    return 0


def advise(end, advice, flags, *ranges, pd=None):
    """Calls ADVISE_MR, which the provider library lacks; returns the error number or 0."""
    sges = b"".join(struct.pack("=QII", addr, length, key) for addr, length, key in ranges)
    buffer = ctypes.create_string_buffer(sges, max(1, len(sges)))
    return invoke(end, uverbs.MR, ADVISE, (0, 0, (pd or end.pd).handle), (1, 8, advice), (2, 4, flags),
                  (3, len(sges), ctypes.addressof(buffer)))
