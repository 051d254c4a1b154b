# SPDX-License-Identifier: GPL-2.0
"""Adding segments to memory regions and removing them: the ioctl methods of uapi/rxe_rs.h."""
import contextlib
import ctypes
import errno
import re
import struct

from pyverbs.mr import MR

from lib import uverbs
from lib.debug_messages import refusal_logged
from lib.ends import ACCESS, pair
from lib.keys import PAGE, page_buffer

ADD, REMOVE = 0x1000, 0x1001
ATTR_MR, ATTR_REQUEST, ATTR_STATE = 0x1000, 0x1001, 0x1002
BY_HANDLE, BY_RANGE, RELEASED = 1, 2, 1
FIRST, MAX = 1, 4096
MIB = 1 << 20
NAMES = "lkey rkey handle start length run_start run_length bytes segments flags".split()


class Refused(Exception):
    def __init__(self, number):
        super().__init__(errno.errorcode.get(number, number))
        self.number = number


def call(fd, handle, method, request, room=64, response=None, attrs=None, driver=uverbs.DRIVER_ID):
    """Calls the ioctl method; returns the bytes of the response."""
    request = ctypes.create_string_buffer(request, len(request))
    state = ctypes.create_string_buffer(b"\xAA" * max(room, 1), max(room, 1))
    if attrs is None:
        attrs = [(ATTR_MR, 0, handle), (ATTR_REQUEST, len(request), ctypes.addressof(request)),
                 (ATTR_STATE, room, ctypes.addressof(state) if response is None else response)]
    try:
        uverbs.method(fd, uverbs.MR, method, attrs, driver)
    except OSError as error:
        raise Refused(error.errno) from None
    return state.raw


def decode(raw):
    return dict(zip(NAMES, struct.unpack("=IIQQQQQQII", raw[:64])))


def add_request(rkey, addr, length, iova, flags=0):
    return struct.pack("=QQQII", addr, length, iova, rkey, flags)


def remove_request(rkey, handle=0, start=0, length=0, flags=None):
    flags = (BY_HANDLE if handle else BY_RANGE) if flags is None else flags
    return struct.pack("=QQQII", handle, start, length, rkey, flags)


def add(end, mr, addr, length, iova=None):
    state = decode(call(end.ctx.cmd_fd, mr.handle, ADD, add_request(mr.rkey, addr, length, addr if iova is None else iova)))
    assert (state["lkey"], state["rkey"]) == (mr.lkey, mr.rkey), "the keys have changed"
    assert state["handle"] > FIRST and state["flags"] == 0
    return state


def remove(end, mr, handle=0, start=0, length=0):
    state = decode(call(end.ctx.cmd_fd, mr.handle, REMOVE, remove_request(mr.rkey, handle, start, length)))
    if not state["flags"] & RELEASED:
        assert (state["lkey"], state["rkey"]) == (mr.lkey, mr.rkey), "the keys have changed"
    assert state["handle"] == 0
    return state


def refused(number, f, *arguments, **options):
    """The driver must refuse a call with this error, and log that."""
    with refusal_logged(number, "mr_add|mr_remove|mr_tie"):
        fails(number, f, *arguments, **options)


def refused_by_core(number, f, *arguments, **options):
    """A call must be refused with this error, before it reaches the driver."""
    fails(number, f, *arguments, **options)


def fails(number, f, *arguments, **options):
    try:
        f(*arguments, **options)
    except Refused as error:
        assert error.number == number, f"{error}, expected {errno.errorcode[number]}"
        return
    raise AssertionError(f"{f.__name__}{arguments} was not refused")


def put(addr, data):
    ctypes.memmove(addr, data, len(data))


def get(addr, length):
    return ctypes.string_at(addr, length)


def pinned():
    """The number of bytes that this process has pinned."""
    return int(re.search(r"VmPin:\s*(\d+)", open("/proc/self/status").read())[1]) * 1024


def pages_pinned():
    """The number of pages that are pinned in the whole machine."""
    # Adds what the processors have not added to the sums yet; a kernel for one processor has nothing to add.
    with contextlib.suppress(FileNotFoundError), open("/proc/sys/vm/stat_refresh", encoding="ascii") as file:
        file.read()
    with open("/proc/vmstat", encoding="ascii") as file:
        values = dict(line.split() for line in file)
    return int(values["nr_foll_pin_acquired"]) - int(values["nr_foll_pin_released"])


class Pins:
    """The memory that is pinned since an object of this class was made. The driver counts for the process what it pins (VmPin), and the
    kernel counts the pages: the counts must agree, or other pages than those of the removed memory are unpinned."""

    def __init__(self):
        self.process, self.machine = pinned(), pages_pinned()

    def more(self):
        """Returns how many bytes more are pinned now."""
        process, machine = pinned() - self.process, (pages_pinned() - self.machine) * PAGE
        assert process == machine, f"the driver counts {process} bytes more, the kernel {machine}"
        return process


def region(names, pages=4, at=None, access=ACCESS, size=16 * PAGE, **options):
    """Two ends, and a region of b with `pages` pages in the middle of a larger buffer."""
    a, b = pair(names, size=size, **options)
    buffer = page_buffer(64)
    mr = MR(b.pd, pages * PAGE, access, address=buffer + 16 * PAGE)
    return a, b, mr, buffer
