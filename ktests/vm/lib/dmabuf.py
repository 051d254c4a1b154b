# SPDX-License-Identifier: GPL-2.0
"""DMA buffers, which udmabuf creates from files in memory, and regions and segments of them.

librxe cannot register DMA buffers, so these functions call the ioctl methods themselves.
"""
import ctypes
import fcntl
import mmap
import os
import struct

from pyverbs.wr import SGE

from lib import segments, uverbs
from lib.case import skip
from lib.ends import ACCESS

UDMABUF_CREATE = (1 << 30) | (24 << 16) | (ord("u") << 8) | 0x42
ADD_SEALS, SEAL_SHRINK = 1033, 2
REG_DMABUF = 4
ADD_DMABUF = 1
PAGE = mmap.PAGESIZE
SIZE = 1 << 20


def require_udmabuf():
    if not os.path.exists("/dev/udmabuf"):
        skip("this kernel has no udmabuf")


class Buffer:
    """A DMA buffer of SIZE bytes, and the file that it was created from."""

    def __init__(self):
        require_udmabuf()
        self.file = os.memfd_create("buffer", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, SIZE)
        fcntl.fcntl(self.file, ADD_SEALS, SEAL_SHRINK)
        with open("/dev/udmabuf", "rb") as maker:
            self.buffer = fcntl.ioctl(maker, UDMABUF_CREATE, bytearray(struct.pack("=IIQQ", self.file, 1, 0, SIZE)))
        self.offset = 0

    def close_files(self):
        """Closes both files, which users of the buffer do not need."""
        os.close(self.file)
        os.close(self.buffer)

    def put(self, data, at=0):
        os.pwrite(self.file, data, self.offset + at)

    def get(self, length, at=0):
        return os.pread(self.file, length, self.offset + at)


def register(end, fd, offset, length, iova, access=ACCESS):
    """Registers a range of a buffer; returns the handle of the region, its L_Key and its R_Key. Raises OSError."""
    keys_at = [ctypes.c_uint32(), ctypes.c_uint32()]
    attrs = [(0, 0, 0), (1, 0, end.pd.handle), (2, 8, offset), (3, 8, length), (4, 8, iova), (5, 4, fd), (6, 4, access)]
    attrs += [(7 + n, 4, ctypes.addressof(key)) for n, key in enumerate(keys_at)]
    handle, *_ = uverbs.method(end.ctx.cmd_fd, uverbs.MR, REG_DMABUF, attrs)
    return handle, *(key.value for key in keys_at)


class Region(Buffer):
    """A buffer of SIZE bytes, and a region of `length` bytes of it from `offset` on."""

    def __init__(self, end, offset=0, length=None, iova=None, access=ACCESS, fd=None):
        super().__init__()
        self.end = end
        self.offset, self.length = offset, SIZE - offset if length is None else length
        self.iova = 0x7000_0000_0000 + offset % PAGE if iova is None else iova
        try:
            self.handle, self.lkey, self.rkey = register(end, self.buffer if fd is None else fd, self.offset, self.length, self.iova, access)
        except OSError:
            self.close_files()
            raise

    def deregister(self):
        uverbs.dereg_mr(self.end.ctx.cmd_fd, self.handle)

    def sge(self, length, at=0):
        return SGE(self.iova + at, length, self.lkey)


def add_buffer(end, mr, buffer, offset, length, iova, fd=None, flags=ADD_DMABUF):
    """Adds a range of a buffer to a region as a segment."""
    request = struct.pack("=QQQIIiI", offset, length, iova, mr.rkey, flags, buffer.buffer if fd is None else fd, 0)
    return segments.decode(segments.call(end.ctx.cmd_fd, mr.handle, segments.ADD, request))
