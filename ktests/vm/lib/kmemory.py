# SPDX-License-Identifier: GPL-2.0
"""The test module kmemory, and the DMA buffers that it exports (ktests/kmemory/kmemory.h)."""
import errno
import fcntl
import mmap
import os

from lib import host
from lib.case import skip

EXPORT, RELOCATE, USES = (ord("k") << 8 | n for n in (4, 5, 6))
# How a buffer is pinned, and what its exporter refuses.
STATIC, DYNAMIC, FAIL_ATTACH, FAIL_PIN, FAIL_ACCESS, DEVICE, FAIL_MAP = 0, 1, 2, 4, 8, 16, 32
SIZE = 4 * mmap.PAGESIZE


def load():
    host.shell("lsmod | grep -q ^kmemory || insmod /share/kmemory.ko")


class MovingBuffer:
    """A DMA buffer of SIZE bytes that moves on request, unless it is pinned."""

    def __init__(self, flags):
        load()
        with open("/dev/kmemory", "rb") as device:
            try:
                self.buffer = fcntl.ioctl(device, EXPORT, flags)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    skip("this kernel has no DMA buffers")
                raise

    def call(self, request):
        with open("/dev/kmemory", "rb") as device:
            return fcntl.ioctl(device, request, self.buffer)

    def moves(self):
        """Moves the buffer to other pages; returns False if it is pinned."""
        try:
            self.call(RELOCATE)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def uses(self):
        """How often the buffer is attached, pinned, prepared for the CPU, and mapped for it."""
        return tuple(self.call(USES).to_bytes(4, "little"))

    def get(self, length, at=0):
        """Reads from the pages that the buffer has now."""
        with mmap.mmap(self.buffer, SIZE) as data:
            return data[at:at + length]

    def close(self):
        os.close(self.buffer)
