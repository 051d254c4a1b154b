# SPDX-License-Identifier: GPL-2.0
"""Special mappings for memory regions."""
import ctypes
import mmap
import os

from lib.case import skip
from lib.odp import libc, ok

MEMFD_SECRET, USERFAULTFD = 447, 323


def repeated_mapping(size, unit, flags=0):
    """Maps `unit` bytes of memory repeatedly to `size` bytes of address space: a small machine can register a large region."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    memory = os.memfd_create("region", flags)
    os.ftruncate(memory, unit)
    read_write = mmap.PROT_READ | mmap.PROT_WRITE
    # Aligned to `unit`.
    base = (libc.mmap(None, size + unit, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE, -1, 0) + unit - 1) & -unit
    for offset in range(0, size, unit):
        got = libc.mmap(base + offset, unit, read_write, mmap.MAP_SHARED | 0x10, memory, 0)
        assert got == base + offset
    return base, memory


def provide(area):
    """Registers the area with userfaultfd(2): this process has to resolve its page faults until it closes the returned descriptor."""
    fd = libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        skip("this kernel has no userfaultfd")
    api = (ctypes.c_uint64 * 3)(0xAA, 0, 0)
    ok(libc.ioctl(fd, 3 << 30 | 24 << 16 | 0xAA << 8 | 0x3F, api))
    # UFFDIO_REGISTER_MODE_MISSING.
    register = (ctypes.c_uint64 * 4)(area.addr, area.size, 1, 0)
    ok(libc.ioctl(fd, 3 << 30 | 32 << 16 | 0xAA << 8, register))
    return fd
