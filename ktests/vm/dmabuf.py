#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Regions of DMA buffers, which udmabuf makes of files in memory: both queue pairs in one process.

dmabuf.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE

Case names are the functions below. librxe has no call that registers them: the ioctl goes to the kernel as it is. Data are put
into the buffer and looked at through its file.
"""
import ctypes
import errno
import fcntl
import os
import signal
import struct
import sys
import time

from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

import keys
import keys_rereg
import segments
import uverbs
from status import ACCESS, pair, pattern

UDMABUF_CREATE = (1 << 30) | (24 << 16) | (ord("u") << 8) | 0x42
ADD_SEALS, SEAL_SHRINK = 1033, 2
REG_DMABUF = 4
PAGE = 4096
SIZE = 1 << 20


class Region:
    """A buffer of SIZE bytes and the region that is `length` bytes at `offset` of it."""

    def __init__(self, end, offset=0, length=None, iova=None, access=ACCESS, fd=None):
        self.end = end
        self.file = os.memfd_create("buffer", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, SIZE)
        fcntl.fcntl(self.file, ADD_SEALS, SEAL_SHRINK)
        with open("/dev/udmabuf", "rb") as maker:
            self.buffer = fcntl.ioctl(maker, UDMABUF_CREATE, bytearray(struct.pack("=IIQQ", self.file, 1, 0, SIZE)))
        self.offset, self.length = offset, SIZE - offset if length is None else length
        self.iova = 0x7000_0000_0000 + offset % PAGE if iova is None else iova
        keys_at = [ctypes.c_uint32(), ctypes.c_uint32()]
        attrs = [(0, 0, 0), (1, 0, end.pd.handle), (2, 8, self.offset), (3, 8, self.length), (4, 8, self.iova),
                 (5, 4, self.buffer if fd is None else fd), (6, 4, access)]
        attrs += [(7 + n, 4, ctypes.addressof(key)) for n, key in enumerate(keys_at)]
        try:
            self.handle, *_ = uverbs.method(end.ctx.cmd_fd, uverbs.MR, REG_DMABUF, attrs)
        except OSError:
            self.forget()
            raise
        self.lkey, self.rkey = (key.value for key in keys_at)

    def forget(self):
        """The process gives the files up; the region needs neither."""
        os.close(self.file)
        os.close(self.buffer)

    def deregister(self):
        uverbs.dereg_mr(self.end.ctx.cmd_fd, self.handle)

    def sge(self, length, at=0):
        return SGE(self.iova + at, length, self.lkey)

    def put(self, data, at=0):
        os.pwrite(self.file, data, self.offset + at)

    def get(self, length, at=0):
        return os.pread(self.file, length, self.offset + at)


def operations(names):
    """Each operation, with such memory on both sides; the regions begin within a page and end within one."""
    a, b = pair(names)
    ra, rb = Region(a, 100, 500_000), Region(b, 3 * PAGE + 8, 600_001)
    data = pattern(400_000, 1)
    ra.put(data, 17)
    b.recv(rb.sge(400_000, 3))
    a.post(e.IBV_WR_SEND, ra.sge(400_000, 17))
    a.complete()
    b.complete()
    assert rb.get(400_000, 3) == data
    data = pattern(300_000, 2)
    ra.put(data)
    a.post(e.IBV_WR_RDMA_WRITE, ra.sge(300_000), remote=(rb.iova + 5, rb.rkey))
    a.complete()
    assert rb.get(300_000, 5) == data
    rb.put(pattern(300_000, 3), 77)
    a.post(e.IBV_WR_RDMA_READ, ra.sge(300_000), remote=(rb.iova + 77, rb.rkey))
    a.complete()
    assert ra.get(300_000) == pattern(300_000, 3)
    # What the last byte of the region is, and what is in the buffer behind it.
    behind = rb.get(1, 600_001)
    keys.write(a, rb.iova + 600_000, rb.rkey, 1)
    assert rb.get(1, 600_001) == behind
    rb.put(struct.pack("=Q", 40), 64)
    for opcode, operands, before, after in ((e.IBV_WR_ATOMIC_FETCH_AND_ADD, (2, 0), 40, 42), (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 99), 42, 99)):
        wr = SendWR(wr_id=5, num_sge=1, sg=[ra.sge(8)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_atomic(rb.rkey, rb.iova + 64, *operands)
        a.qp.post_send(wr)
        a.complete()
        assert struct.unpack("=QQ", ra.get(8) + rb.get(8, 64)) == (before, after)
    keys.write(a, rb.iova + 600_000, rb.rkey, 2, e.IBV_WC_REM_ACCESS_ERR)


def rights(names):
    a, b = pair(names)
    region = Region(b, access=e.IBV_ACCESS_REMOTE_READ)
    region.put(b"right")
    assert keys.read(a, region.iova, region.rkey, 5) == b"right"
    keys.write(a, region.iova, region.rkey, 5, e.IBV_WC_REM_ACCESS_ERR)
    assert region.get(5) == b"right"


def buffer_closed(names):
    """The region keeps the buffer; it goes with the region."""
    a, b = pair(names)
    region = Region(b)
    region.forget()
    data = keys.write(a, region.iova + 99, region.rkey, 9000)
    assert keys.read(a, region.iova + 99, region.rkey, 9000) == data
    region.deregister()
    keys.write(a, region.iova, region.rkey, 1, e.IBV_WC_REM_ACCESS_ERR)


def refused(code, *arguments, **more):
    try:
        Region(*arguments, **more)
    except OSError as error:
        assert error.errno == code, f"{arguments[1:]} {more}: {error}"
        return
    raise AssertionError(f"{arguments[1:]} {more} was accepted")


def bad(names):
    _, b = pair(names)
    refused(errno.EBADF, b, fd=999)
    plain = os.memfd_create("no buffer")
    refused(errno.EINVAL, b, fd=plain)
    refused(errno.EINVAL, b, length=SIZE + 1)
    refused(errno.EINVAL, b, offset=SIZE, length=PAGE)
    refused(errno.EINVAL, b, length=0)
    refused(errno.EINVAL, b, offset=PAGE, length=(1 << 64) - PAGE)
    refused(errno.EINVAL, b, length=(1 << 64) - 1)
    refused(errno.EINVAL, b, iova=1)
    refused(errno.EINVAL, b, iova=(1 << 64) - PAGE, length=2 * PAGE)
    refused(errno.EINVAL, b, access=e.IBV_ACCESS_REMOTE_WRITE)
    refused(errno.EINVAL, b, access=ACCESS | e.IBV_ACCESS_ON_DEMAND)
    # It stays what it is.
    region = Region(b)
    region.buf = region.iova
    assert keys_rereg.rereg(region, b, keys_rereg.ACCESS_, access=ACCESS) == errno.EOPNOTSUPP
    try:
        segments.add(b, region, b.mr.buf, PAGE, region.iova + SIZE)
        raise AssertionError("a segment was added")
    except segments.Refused as refusal:
        assert refusal.number == errno.EOPNOTSUPP, refusal


def torn_down(names):
    """Regions go while peers write to them, by a call and with their process."""
    for _ in range(5):
        a, b = pair(names)
        region = Region(b)
        region.forget()
        for n in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(region.iova + 65536 * (n % 16), region.rkey))
        region.deregister()
        statuses = []
        deadline = time.monotonic() + 20
        while len(statuses) < 20:
            assert time.monotonic() < deadline
            statuses += [wc.status for wc in a.cq.poll(20)[1]]
        assert set(statuses) <= {e.IBV_WC_SUCCESS, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_WR_FLUSH_ERR}, statuses
    ready, say = os.pipe()
    child = os.fork()
    if not child:
        a, b = pair(names)
        region = Region(b)
        region.forget()
        os.write(say, b".")
        while True:
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(region.iova, region.rkey))
            a.complete()
    os.read(ready, 1)
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


CASES = [operations, rights, buffer_closed, bad, torn_down]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
