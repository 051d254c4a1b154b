# SPDX-License-Identifier: GPL-2.0
"""Memory regions with segments, which are added and removed (uapi/rxe_rs.h), through pyverbs: both queue pairs in one process.

In all tests b has the memory and a accesses it.
"""
import contextlib
import ctypes
import errno
import os
import re
import resource
import struct
import subprocess
import threading
import time

from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

from lib import host, ties
from lib.case import case
from lib.debug_messages import DebugMessages, refusal
from lib.ends import ACCESS, End, happens, pair, pattern, soon
from lib.keys import ACCESS_, BINDABLE, LOCAL, PAGE, PD_, READ, REFUSED, TRANS, WRITE, bind, bind1, page_buffer, read, rereg, rereg_refused, write
from lib.memory import repeated_mapping
from lib.segments import (
    ADD, ATTR_MR, BY_HANDLE, BY_RANGE, FIRST, MAX, MIB, NAMES, Pins, RELEASED, REMOVE, Refused, add, add_request, call, decode, fails, get,
    pinned, put, refused, refused_by_core, region, remove, remove_request,
)

DEFAULTS = dict(driver="rxe_rs", reason="rdma_rxe has no such methods")


def test_grow(names):
    """Segments are added at the end and at the start of a region: accesses of all operations may span segments."""
    a, b, mr, buffer = region(names)
    start = buffer + 16 * PAGE
    state = add(b, mr, start + 4 * PAGE, 4 * PAGE)
    assert (state["start"], state["length"]) == (start, 8 * PAGE), state
    assert (state["run_start"], state["run_length"], state["bytes"], state["segments"]) == (start, 8 * PAGE, 8 * PAGE, 2), state
    state = add(b, mr, start - PAGE, PAGE)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start - PAGE, 9 * PAGE, 9 * PAGE, 3), state
    first = start - PAGE
    for n, (at, length) in enumerate(((0, 9 * PAGE), (PAGE - 1, 2), (5 * PAGE - 700, 1400), (4096 - 1, 4 * PAGE + 2), (9 * PAGE - 1, 1))):
        data = write(a, first + at, mr.rkey, length, seed=n)
        assert get(first + at, length) == data, (at, length)
        assert read(a, first + at, mr.rkey, length) == data
    # The L_Key, for receiving and for sending.
    data = pattern(9000, 5)
    a.mr.write(data, 9000)
    b.recv(SGE(first + 4 * PAGE - 500, 9000, mr.lkey))
    a.post(e.IBV_WR_SEND, a.sge(9000))
    a.complete()
    b.complete()
    assert get(first + 4 * PAGE - 500, 9000) == data
    a.recv(a.sge(9000, 20000))
    b.post(e.IBV_WR_SEND, SGE(first + 4 * PAGE - 500, 9000, mr.lkey))
    b.complete()
    a.complete()
    assert a.mr.read(9000, 20000) == data
    # Atomics in an added segment.
    word = first + 7 * PAGE + 8
    put(word, struct.pack("=Q", 40))
    wr = SendWR(wr_id=5, num_sge=1, sg=[a.sge(8)], opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_atomic(mr.rkey, word, 2, 0)
    a.qp.post_send(wr)
    a.complete()
    assert struct.unpack("=Q", get(word, 8)) == (42,) and struct.unpack("=Q", a.mr.read(8, 0)) == (40,)
    mr.close()
    write(a, first, state["rkey"], status=REFUSED)


def test_any_address(names):
    """Segments with any address and any memory; accesses to the holes between them fail."""
    far, high = 1 << 40, (1 << 64) - 4 * PAGE
    for at, length in ((4 * PAGE, 1), (4 * PAGE - 1, 2), (-1, 1), (-1, 2), (8 * PAGE, 1), (far - 1, 2), (far + 2 * PAGE - 1, 2),
                       (far + 2 * PAGE, 1), (0, far), (high - 1, 1), (high + PAGE - 8, 9)):
        a, b, mr, buffer = region(names)
        start = buffer + 16 * PAGE
        place = lambda at: at if at >= far else start + at
        add(b, mr, buffer, 2 * PAGE, far)
        add(b, mr, buffer + 2 * PAGE, PAGE, high)
        state = add(b, mr, buffer + 40 * PAGE, 2 * PAGE, start + 6 * PAGE)
        first = min(far, start)
        assert (state["start"], state["length"]) == (first, high + PAGE - first), state
        assert (state["run_start"], state["run_length"], state["bytes"]) == (start + 6 * PAGE, 2 * PAGE, 9 * PAGE), state
        for to, real, size in ((far, buffer, 2 * PAGE), (high, buffer + 2 * PAGE, PAGE), (start + 6 * PAGE, buffer + 40 * PAGE, 2 * PAGE),
                               (start, start, 4 * PAGE)):
            data = write(a, to, mr.rkey, size, seed=size // PAGE)
            assert get(real, size) == data and read(a, to, mr.rkey, size) == data
        before = get(buffer, 64 * PAGE)
        write(a, place(at), mr.rkey, min(length, 15 * PAGE), REFUSED)
        assert get(buffer, 64 * PAGE) == before, f"{length} bytes at {at:#x} changed memory"


def test_shrink(names):
    """Segments are removed by handle and by range: they are inaccessible at once, the others stay accessible."""
    a, b, mr, buffer = region(names)
    start = buffer + 16 * PAGE
    handles = [add(b, mr, start + n * PAGE, PAGE)["handle"] for n in range(4, 12)]
    assert len(set(handles)) == 8
    write(a, start, mr.rkey, 12 * PAGE)
    state = remove(b, mr, handle=handles[7])
    assert (state["start"], state["length"], state["segments"]) == (start, 11 * PAGE, 8), state
    state = remove(b, mr, start=start + 5 * PAGE, length=3 * PAGE)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start, 11 * PAGE, 8 * PAGE, 5), state
    state = remove(b, mr, handle=FIRST)
    assert (state["start"], state["length"], state["bytes"]) == (start + 4 * PAGE, 7 * PAGE, 4 * PAGE), state
    for handle in (FIRST, handles[7], handles[1], 12345):
        refused(errno.ENOENT, remove, b, mr, handle=handle)
    data = write(a, start + 4 * PAGE, mr.rkey, PAGE, seed=3)
    assert get(start + 4 * PAGE, PAGE) == data
    write(a, start + 8 * PAGE, mr.rkey, 3 * PAGE, seed=4)
    put(buffer, bytes(64 * PAGE))
    # Other memory at the same addresses.
    again = add(b, mr, buffer, PAGE, start + 5 * PAGE)
    assert again["handle"] not in handles and again["run_length"] == 2 * PAGE, again
    data = write(a, start + 4 * PAGE, mr.rkey, 2 * PAGE, seed=5)
    assert get(start + 4 * PAGE, PAGE) + get(buffer, PAGE) == data and get(start + 5 * PAGE, PAGE) == bytes(PAGE)
    remove(b, mr, handle=again["handle"])
    put(buffer, bytes(64 * PAGE))
    write(a, start + 5 * PAGE, mr.rkey, 64, REFUSED)
    assert get(buffer, 64 * PAGE) == bytes(64 * PAGE), "removed memory was written"
    for at in (0, 6 * PAGE, 11 * PAGE, 5 * PAGE - 1):
        a, b, mr, buffer = region(names)
        start = buffer + 16 * PAGE
        extra = [add(b, mr, start + n * PAGE, PAGE)["handle"] for n in range(4, 12)]
        remove(b, mr, start=start, length=4 * PAGE)
        remove(b, mr, start=start + 5 * PAGE, length=2 * PAGE)
        remove(b, mr, handle=extra[7])
        a.post(e.IBV_WR_RDMA_READ, a.sge(2), remote=(start + at, mr.rkey))
        a.complete(REFUSED)


def test_ranges(names):
    """A removed range may span holes and split segments at page boundaries; segments outside of it are not affected."""
    a, b, mr, buffer = region(names, pages=8)
    start = buffer + 16 * PAGE
    last = add(b, mr, start + 10 * PAGE, 4 * PAGE)["handle"]
    pins = Pins()
    for at, length in ((0, 0), (4 * PAGE, 0), (8 * PAGE, 2 * PAGE), (14 * PAGE, PAGE), (-PAGE, PAGE), (10 * PAGE, (1 << 64) - PAGE), (PAGE + 1, PAGE),
                       (PAGE, PAGE - 1), (PAGE + 8, 9 * PAGE - 8), (-1, 2), (7 * PAGE + 100, 200), (0, 13 * PAGE + 1)):
        refused(errno.EINVAL, remove, b, mr, start=start + at, length=length)
    data = write(a, start, mr.rkey, 8 * PAGE, seed=2)
    assert get(start, 8 * PAGE) == data and pins.more() == 0
    # From the middle: the segment is split in two.
    state = remove(b, mr, start=start + 2 * PAGE, length=PAGE)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start, 14 * PAGE, 11 * PAGE, 3), state
    assert pins.more() == -PAGE
    # Across a hole: the end of one segment and the beginning of another.
    state = remove(b, mr, start=start + 6 * PAGE, length=6 * PAGE)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start, 14 * PAGE, 7 * PAGE, 3), state
    assert pins.more() == -5 * PAGE
    for at, length in ((0, 2), (3, 3), (12, 2)):
        data = write(a, start + at * PAGE, mr.rkey, length * PAGE, seed=at)
        assert get(start + at * PAGE, length * PAGE) == data and read(a, start + at * PAGE, mr.rkey, length * PAGE) == data
    # A range that extends beyond the segments on both sides.
    state = remove(b, mr, start=start - 5 * PAGE, length=6 * PAGE)
    assert (state["start"], state["bytes"], state["segments"]) == (start + PAGE, 6 * PAGE, 3), state
    # Removed memory can be added again, as a new segment.
    again = add(b, mr, start + 2 * PAGE, PAGE)
    assert again["handle"] > last and (again["run_start"], again["run_length"]) == (start + PAGE, 5 * PAGE), again
    data = write(a, start + PAGE, mr.rkey, 5 * PAGE, seed=9)
    assert get(start + PAGE, 5 * PAGE) == data
    # Removal by handle removes all remaining parts of the segment.
    state = remove(b, mr, handle=FIRST)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start + 2 * PAGE, 12 * PAGE, 3 * PAGE, 2), state
    refused(errno.ENOENT, remove, b, mr, handle=FIRST)
    assert pins.more() == -9 * PAGE
    # The whole address space.
    state = remove(b, mr, start=0, length=(1 << 64) - 1)
    assert state["flags"] == RELEASED and pins.more() == -12 * PAGE, state
    for at in (PAGE, 2 * PAGE - 1, 6 * PAGE - 1, 11 * PAGE):
        a, b, mr, buffer = region(names, pages=8)
        start = buffer + 16 * PAGE
        add(b, mr, start + 10 * PAGE, 4 * PAGE)
        remove(b, mr, start=start + PAGE, length=PAGE)
        remove(b, mr, start=start + 6 * PAGE, length=6 * PAGE)
        untouched = get(buffer, 64 * PAGE)
        write(a, start + at, mr.rkey, 2, REFUSED)
        assert get(buffer, 64 * PAGE) == untouched, "an access to a hole has written memory"


def test_unaligned(names):
    """Regions that are not page-aligned, in the process or by IOVA: a page stays pinned while a byte of it is left."""
    a, b = pair(names, size=16 * PAGE)
    buffer, pins = page_buffer(16), Pins()
    mr = MR(b.pd, 5 * PAGE, ACCESS, address=buffer + 100)
    assert pins.more() == 6 * PAGE
    remove(b, mr, start=buffer + PAGE, length=PAGE)
    assert pins.more() == 5 * PAGE
    for at, length in ((100, PAGE - 100), (2 * PAGE, 3 * PAGE + 100)):
        data = write(a, buffer + at, mr.rkey, length, seed=at & 0xFF)
        assert get(buffer + at, length) == data
    remove(b, mr, start=buffer, length=PAGE)
    assert pins.more() == 4 * PAGE
    # An end that splits no segment need not be aligned.
    remove(b, mr, start=buffer + 5 * PAGE, length=100)
    remove(b, mr, start=buffer + 4 * PAGE, length=PAGE)
    assert pins.more() == 2 * PAGE
    mr.close()
    assert pins.more() == 0
    # The offset in a page differs between address and IOVA (zero-based): after a split both parts have bytes of one page.
    mr = MR(b.pd, 4 * PAGE, ACCESS | e.IBV_ACCESS_ZERO_BASED, address=buffer + 0x800)
    assert pins.more() == 5 * PAGE
    remove(b, mr, start=PAGE, length=PAGE)
    assert pins.more() == 5 * PAGE
    remove(b, mr, start=2 * PAGE, length=PAGE)
    assert pins.more() == 4 * PAGE
    put(buffer, bytes(16 * PAGE))
    for at, length in ((0, PAGE), (3 * PAGE, PAGE)):
        data = write(a, at, mr.rkey, length, seed=5)
        assert get(buffer + 0x800 + at, length) == data
    assert get(buffer + 0x800 + PAGE, 2 * PAGE) == bytes(2 * PAGE)
    remove(b, mr, start=0, length=PAGE)
    assert pins.more() == 2 * PAGE
    mr.close()
    assert pins.more() == 0


def test_unmapped(names):
    """The rest of a segment is the memory that was pinned, although the process has unmapped it."""
    a, b, mr, buffer = region(names, pages=16)
    start, before = buffer + 16 * PAGE, pinned()
    data = write(a, start, mr.rkey, 15 * PAGE, seed=3)
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap(start, 16 * PAGE)
    remove(b, mr, start=start + 5 * PAGE, length=PAGE)
    remove(b, mr, start=start + 10 * PAGE, length=PAGE)
    assert pinned() == before - 2 * PAGE
    for at, length in ((0, 5), (6, 4), (11, 4)):
        assert read(a, start + at * PAGE, mr.rkey, length * PAGE) == data[at * PAGE:(at + length) * PAGE]
    mr.close()
    assert pinned() == before - 16 * PAGE


def test_at_random(names):
    """Adds and removes random ranges, and compares with a model of the memory behind each page."""
    rng = host.random_of_run()
    a, b, mr, buffer = region(names, pages=4)
    space, pins = buffer + 16 * PAGE, Pins()
    # For each page of the region's addresses, the page of the buffer and the segment's handle.
    behind = {n: (16 + n, FIRST) for n in range(4)}
    for _ in range(120):
        at, length = rng.randrange(24), rng.randrange(1, 9)
        inside = set(range(at, at + length))
        what = rng.randrange(5)
        if what < 2:
            memory = rng.randrange(64 - length)
            if inside & set(behind):
                refused(errno.EEXIST, add, b, mr, buffer + memory * PAGE, length * PAGE, space + at * PAGE)
                continue
            state = add(b, mr, buffer + memory * PAGE, length * PAGE, space + at * PAGE)
            behind |= {at + n: (memory + n, state["handle"]) for n in range(length)}
        else:
            if what == 2 and behind:
                handle = rng.choice([handle for _, handle in behind.values()])
                inside = {n for n, (_, of) in behind.items() if of == handle}
                options = {"handle": handle}
            else:
                options = {"start": space + at * PAGE, "length": length * PAGE}
            if not inside & set(behind):
                refused(errno.EINVAL, remove, b, mr, **options)
                continue
            if not set(behind) - inside:
                continue    # Removing the last segment would release the key.
            state = remove(b, mr, **options)
            behind = {n: page for n, page in behind.items() if n not in inside}
        assert state["bytes"] == len(behind) * PAGE and pins.more() == (len(behind) - 4) * PAGE, (state, behind)
        assert (state["start"], state["length"]) == (space + min(behind) * PAGE, (max(behind) - min(behind) + 1) * PAGE), state
        n = rng.choice(list(behind))
        data = write(a, space + n * PAGE, mr.rkey, 100, seed=rng.randrange(256))
        assert get(buffer + behind[n][0] * PAGE, 100) == data
    holes = sorted(set(range(-1, 33)) - set(behind))
    write(a, space + rng.choice(holes) * PAGE, mr.rkey, 1, REFUSED)


def test_refusals(names):
    """Invalid arguments fail with the right error and change nothing."""
    a, b, mr, buffer = region(names)
    start, spare = buffer + 16 * PAGE, buffer + 40 * PAGE
    fd = b.ctx.cmd_fd
    at = start + 8 * PAGE
    for addr, length, iova in ((spare + 1, PAGE, at), (spare, PAGE + 1, at), (spare, PAGE, at + 1), (spare, 100, at), (spare, 0, at),
                               (spare, PAGE, (1 << 64) - PAGE), (spare, 1 << 48, at), (spare, (1 << 64) - PAGE, at),
                               ((1 << 64) - PAGE, 2 * PAGE, at)):
        refused(errno.EINVAL, add, b, mr, addr, length, iova)
    for iova, length in ((start, PAGE), (start + 3 * PAGE, PAGE), (start - PAGE, 2 * PAGE), (start + PAGE, PAGE), (start - PAGE, 6 * PAGE)):
        refused(errno.EEXIST, add, b, mr, spare, length, iova)
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    gone, fixed = page_buffer(2), page_buffer(2)
    libc.munmap(gone + PAGE, PAGE)
    libc.mprotect(fixed, 2 * PAGE, 1)
    refused(errno.EFAULT, add, b, mr, gone, 2 * PAGE, at)
    refused(errno.EFAULT, add, b, mr, fixed, 2 * PAGE, at)
    good = add_request(mr.rkey, spare, PAGE, at)
    back = remove_request(mr.rkey, handle=FIRST)
    for method, request in ((ADD, good), (REMOVE, back)):
        refused(errno.EFAULT, call, fd, mr.handle, method, request, response=0x1000)
        refused_by_core(errno.EINVAL, call, fd, mr.handle, method, request[:-4])
        refused_by_core(errno.EINVAL, call, fd, mr.handle, method, request, room=60)
        refused_by_core(errno.EOPNOTSUPP, call, fd, mr.handle, method, request + bytes(8 if method == ADD else 0) + b"\1")
        refused_by_core(errno.EINVAL, call, fd, mr.handle, method, request, driver=15)
        refused_by_core(errno.EINVAL, call, fd, mr.handle, method, request, attrs=[(ATTR_MR, 0, mr.handle)])
        for handle in (b.pd.handle + 12345, 0xFFFFFFFF, 1 << 40):
            refused_by_core(errno.ENOENT, call, fd, handle, method, request)
    refused_by_core(errno.EPROTONOSUPPORT, call, fd, mr.handle, 0x1FFF, good)
    refused(errno.EINVAL, call, fd, mr.handle, ADD, add_request(mr.rkey, spare, PAGE, at, flags=2))
    refused(errno.EINVAL, call, fd, mr.handle, ADD, good + b"\1")
    refused(errno.EINVAL, call, fd, mr.handle, ADD, add_request(mr.rkey ^ 1, spare, PAGE, at))
    refused(errno.EINVAL, call, fd, mr.handle, REMOVE, remove_request(b.mr.rkey, handle=FIRST))
    for flags, handle, where, length in ((0, 1, 0, 0), (3, 1, 0, 0), (4, 1, 0, 0), (BY_HANDLE, 1, start, 0), (BY_HANDLE, 1, 0, 1),
                                         (BY_RANGE, 1, start, 4 * PAGE)):
        refused(errno.EINVAL, call, fd, mr.handle, REMOVE, remove_request(mr.rkey, handle, where, length, flags))
    before = pinned()
    data = write(a, start, mr.rkey, 4 * PAGE, seed=7)
    assert get(start, 4 * PAGE) == data
    # A newer caller: a larger response buffer, and additional fields that are 0.
    response = call(fd, mr.handle, ADD, good + bytes(8), room=80)
    assert decode(response)["segments"] == 2 and response[64:] == bytes(16), response
    assert pinned() == before + PAGE
    write(a, at, mr.rkey, PAGE)
    write(a, at + PAGE, mr.rkey, 1, REFUSED)


def test_last(names):
    """Removing the last segment releases the key; the region can still be deregistered."""
    for by_range in (False, True):
        a, b, mr, buffer = region(names)
        start = buffer + 16 * PAGE
        key, before = mr.rkey, pinned()
        add(b, mr, start + 8 * PAGE, PAGE)
        remove(b, mr, handle=FIRST)
        write(a, start + 8 * PAGE, key, PAGE)
        options = dict(start=start + 8 * PAGE, length=PAGE) if by_range else dict(handle=2)
        state = remove(b, mr, **options)
        assert state == dict.fromkeys(NAMES, 0) | {"flags": RELEASED}, state
        assert pinned() == before - 4 * PAGE
        refused(errno.ENOENT, add, b, mr, start, PAGE)
        refused(errno.ENOENT, remove, b, mr, **options)
        for flags in (ACCESS_, TRANS):
            rereg_refused(errno.ENOENT, mr, b, flags, addr=start, length=PAGE, access=ACCESS)
        spare = [MR(b.pd, PAGE, ACCESS) for _ in range(50)]
        write(a, start + 8 * PAGE, key, status=REFUSED)
        mr.close()
        # Deregistration did not release a key of another region.
        for end in (a, b):
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        a.connect(b, 7, 9)
        b.connect(a, 9, 7)
        for other in spare:
            data = write(a, other.buf, other.rkey, PAGE, seed=other.rkey & 0xFF)
            assert other.read(PAGE, 0) == data


def test_foreign(names):
    """Another context cannot modify the region, and a queue pair in another protection domain cannot access it."""
    a, b, mr, buffer = region(names)
    start, at = buffer + 16 * PAGE, buffer + 24 * PAGE
    other = End(names[2], int(names[3]))
    # Handles belong to a context; in this one the handle does not exist or is that of another object.
    taken = {thing.handle for thing in (other.pd, other.mr)}
    for handle in set(range(64)) - taken | {mr.handle}:
        for method, request in ((ADD, add_request(mr.rkey, start, PAGE, at)), (REMOVE, remove_request(mr.rkey, handle=FIRST))):
            try:
                call(other.ctx.cmd_fd, handle, method, request)
                raise AssertionError("another context has modified the region")
            except Refused as error:
                assert error.number in (errno.ENOENT, errno.EINVAL), error
    write(a, start, mr.rkey, 4 * PAGE)
    # A segment has the protection domain of the region.
    pd = PD(b.ctx)
    mr2 = MR(pd, PAGE, ACCESS, address=buffer)
    add(b, mr2, buffer + PAGE, PAGE)
    write(a, buffer + PAGE, mr2.rkey, status=REFUSED)


def test_rights(names):
    """A segment has the access rights of its region."""
    a, b, mr, buffer = region(names, access=LOCAL | READ)
    start = buffer + 16 * PAGE
    add(b, mr, start + 4 * PAGE, PAGE)
    put(start + 4 * PAGE, pattern(64, 9))
    assert read(a, start + 4 * PAGE, mr.rkey) == pattern(64, 9)
    write(a, start + 4 * PAGE, mr.rkey, status=REFUSED)
    assert get(start + 4 * PAGE, 64) == pattern(64, 9)
    # Memory that is read-only for this process can be added to a region for reading.
    a, b, mr, buffer = region(names, access=READ)
    start = buffer + 16 * PAGE
    fixed = page_buffer(1)
    put(fixed, pattern(PAGE, 8))
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mprotect(fixed, PAGE, 1)
    add(b, mr, fixed, PAGE, start + 4 * PAGE)
    assert read(a, start + 4 * PAGE, mr.rkey, PAGE) == pattern(PAGE, 8)


def test_windows(names):
    """A window may span segments, cannot be bound to a range with a hole, and loses what is removed from the region."""
    for kind, opener in ((e.IBV_MW_TYPE_1, bind1), (e.IBV_MW_TYPE_2, bind)):
        a, b, mr, buffer = region(names, access=BINDABLE)
        start = buffer + 16 * PAGE
        mw = MW(b.pd, kind)
        extra = add(b, mr, start + 4 * PAGE, 4 * PAGE)["handle"]
        key = opener(b, mw, 3 * PAGE, 3 * PAGE, WRITE | READ, mr)
        b.complete()
        data = write(a, start + 3 * PAGE, key, 3 * PAGE)
        assert get(start + 3 * PAGE, 3 * PAGE) == data and read(a, start + 3 * PAGE, key, 3 * PAGE) == data
        # The region grows at both ends; the window does not move.
        add(b, mr, start - PAGE, PAGE)
        add(b, mr, start + 8 * PAGE, PAGE)
        data = write(a, start + 3 * PAGE, key, 3 * PAGE, seed=2)
        assert get(start + 3 * PAGE, 3 * PAGE) == data
        # Remove a range outside of the window.
        remove(b, mr, start=start + PAGE, length=PAGE)
        data = write(a, start + 3 * PAGE, key, 3 * PAGE, seed=6)
        assert get(start + 3 * PAGE, 3 * PAGE) == data
        remove(b, mr, handle=FIRST)
        data = write(a, start + 4 * PAGE, key, 2 * PAGE, seed=3)
        assert get(start + 4 * PAGE, 2 * PAGE) == data
        # While the window is bound, the last segment cannot be removed, nor the region be deregistered.
        refused(errno.EBUSY, remove_all, b, mr, start)
        try:
            mr.close()
            raise AssertionError("the region was deregistered with a window bound to it")
        except PyverbsError:
            pass
        before = get(buffer, 64 * PAGE)
        write(a, start + 3 * PAGE, key, PAGE + 1, REFUSED)
        assert get(buffer, 64 * PAGE) == before
        mw.close()
        # Bind to a range with a hole.
        a, b = pair(names, b_access=BINDABLE)
        mr = MR(b.pd, PAGE, BINDABLE, address=buffer)
        add(b, mr, buffer + 2 * PAGE, PAGE)
        mw = MW(b.pd, kind)
        opener(b, mw, PAGE - 1, 2, WRITE, mr)
        b.complete(e.IBV_WC_MW_BIND_ERR)


def remove_all(end, mr, start):
    """Removes all segments but one, then that one."""
    for at, length in ((-PAGE, PAGE), (8 * PAGE, PAGE), (4 * PAGE, 4 * PAGE)):
        try:
            remove(end, mr, start=start + at, length=length)
        except Refused as error:
            if error.number != errno.EINVAL:
                raise


def test_reregistered(names):
    """REREG_MR of the translation replaces all segments by one; access rights and domain change for all segments."""
    a, b, mr, buffer = region(names, access=LOCAL | READ)
    start = buffer + 16 * PAGE
    old = add(b, mr, start + 8 * PAGE, PAGE)
    assert rereg(mr, b, ACCESS_, access=ACCESS) == 0
    for at in (start, start + 8 * PAGE):
        data = write(a, at, mr.rkey, PAGE, seed=at & 0xFF)
        assert get(at, PAGE) == data
    before = pinned()
    assert rereg(mr, b, TRANS, addr=buffer, length=2 * PAGE, iova=0x10000) == 0
    assert pinned() == before - 3 * PAGE
    data = write(a, 0x10000, mr.rkey, 2 * PAGE, seed=4)
    assert get(buffer, 2 * PAGE) == data
    new = add(b, mr, buffer + 4 * PAGE, PAGE, 0x10000 + 2 * PAGE)
    assert new["handle"] > old["handle"] and (new["start"], new["length"]) == (0x10000, 3 * PAGE), new
    write(a, 0x10000, mr.rkey, 3 * PAGE)
    refused(errno.ENOENT, remove, b, mr, handle=FIRST)
    write(a, start + 8 * PAGE, mr.rkey, status=REFUSED)
    # Another domain and back.
    a, b, mr, buffer = region(names)
    start = buffer + 16 * PAGE
    add(b, mr, start + 8 * PAGE, PAGE)
    pd = PD(b.ctx)
    assert rereg(mr, b, PD_, pd=pd) == 0
    assert rereg(mr, b, PD_, pd=b.pd) == 0
    write(a, start + 8 * PAGE, mr.rkey)
    assert rereg(mr, b, PD_, pd=pd) == 0
    write(a, start + 8 * PAGE, mr.rkey, status=REFUSED)
    # Pages that were pinned for reading are pinned again for writing.
    a, b, mr, buffer = region(names, access=READ)
    start, fresh = buffer + 16 * PAGE, page_buffer(2)
    add(b, mr, fresh, 2 * PAGE, start + 4 * PAGE)
    assert read(a, start + 4 * PAGE, mr.rkey) == bytes(64)
    assert rereg(mr, b, ACCESS_, access=ACCESS) == 0
    data = write(a, start, mr.rkey, 6 * PAGE, seed=6)
    assert get(start, 4 * PAGE) + get(fresh, 2 * PAGE) == data
    assert get(page_buffer(1), PAGE) == bytes(PAGE), "the zero page was written"


def test_many(names):
    """The largest number of segments, with one message that spans all of them; no further one can be added."""
    size = MAX * PAGE
    a, b = pair(names, size=size, timeout=20)
    base, space = page_buffer(MAX), 1 << 44
    mr = MR(b.pd, PAGE, ACCESS, address=base)
    # Every other one first, then those between, which are inserted in the middle of the table.
    for n in [*range(2, MAX, 2), *range(1, MAX, 2)]:
        state = add(b, mr, base + n * PAGE, PAGE, base + n * PAGE)
    assert (state["segments"], state["bytes"], state["length"]) == (MAX, size, size), state
    refused(errno.ENOSPC, add, b, mr, base, PAGE, space)
    data = pattern(size, 6)
    a.mr.write(data, size)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(base, mr.rkey))
    a.complete(seconds=60)
    assert get(base, size) == data
    a.mr.write(bytes(size), size)
    a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(base, mr.rkey))
    a.complete(seconds=60)
    assert a.mr.read(size, 0) == data
    remove(b, mr, handle=77)
    add(b, mr, base, PAGE, space)
    state = remove(b, mr, start=base, length=PAGE)
    assert state["segments"] == MAX - 1, state
    write(a, space, mr.rkey, PAGE)
    # A split needs an additional segment.
    state = add(b, mr, base, 3 * PAGE, 2 * space)
    assert state["segments"] == MAX, state
    refused(errno.ENOSPC, remove, b, mr, start=2 * space + PAGE, length=PAGE)
    data = write(a, 2 * space, mr.rkey, 3 * PAGE)
    assert get(base, 3 * PAGE) == data
    state = remove(b, mr, start=2 * space, length=PAGE)
    assert (state["segments"], state["bytes"]) == (MAX, size + PAGE), state


def test_cost_of_packets(names):
    """What a packet takes does not depend on the number of segments that its message is in."""
    # User Mode Linux maps each page on its own, and the host limits its mappings (vm.max_map_count).
    count, size = 8 if host.is_uml() else 16, MAX * PAGE
    a, b = pair(names, size=PAGE, sges=count, timeout=20)
    target, _ = repeated_mapping(count * size, size)
    to = MR(a.pd, count * size, ACCESS, address=target)
    base = page_buffer(MAX)
    whole, many = (MR(b.pd, length, ACCESS, address=base) for length in (size, PAGE))
    for n in range(1, MAX):
        add(b, many, base + n * PAGE, PAGE)
    took = {whole: [], many: []}
    # Other work of the host takes its time from some rounds, not from all.
    for mr in [whole, many] * 6:
        begin = time.monotonic()
        b.post(e.IBV_WR_RDMA_WRITE, *[SGE(base, size, mr.lkey)] * count, remote=(target, to.rkey))
        b.complete(seconds=100)
        took[mr].append(time.monotonic() - begin)
    one, segmented = min(took[whole]), min(took[many])
    print(f"{count * size >> 20} MiB: {one * 1e3:.0f} ms from one segment, {segmented * 1e3:.0f} ms from {MAX} segments")
    # Within 1.4 without the walk over all segments for each packet.
    assert segmented < 3 * one, took


def test_under_traffic(names):
    """Adding and removing segments repeatedly does not make accesses to other segments fail or wait."""
    a, b = pair(names, size=1 << 16)
    extra = page_buffer(64)
    stop = threading.Event()
    failures, rounds, slowest = [], [0], [0.0]

    def change():
        far = 1 << 40
        try:
            while not stop.is_set():
                begin = time.monotonic()
                handles = [add(b, b.mr, extra + n * PAGE, PAGE, far + n * PAGE)["handle"] for n in (0, 1, 3, 5)]
                remove(b, b.mr, start=far, length=2 * PAGE)
                for handle in handles[2:]:
                    remove(b, b.mr, handle=handle)
                rounds[0] += 1
                slowest[0] = max(slowest[0], time.monotonic() - begin)
        except (Refused, AssertionError) as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        n = 0
        while (n < 60 or rounds[0] < 10) and time.monotonic() < deadline:
            data = write(a, b.mr.buf, b.mr.rkey, 1 << 16, seed=n)
            assert b.mr.read(1 << 16, 0) == data
            assert read(a, b.mr.buf, b.mr.rkey, 1 << 16) == data
            n += 1
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
    assert n >= 60 and rounds[0] >= 10, f"{n} transfers, {rounds[0]} changes"
    print(f"{n} transfers; {rounds[0]} times 7 changes, at most {slowest[0] * 1e3:.1f} ms")


def test_never_stale(names):
    """A segment is removed while a peer writes to it: nothing is written afterwards."""
    for iteration in range(8):
        a, b, mr, buffer = region(names, size=MIB)
        big = page_buffer(256)
        at = 1 << 40
        handle = add(b, mr, big, MIB, at)["handle"]
        a.mr.write(pattern(MIB, iteration), MIB)
        for _ in range(20):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(at, mr.rkey))
        time.sleep(0.002 * iteration)
        remove(b, mr, handle=handle)
        # From now on only this process may change the memory.
        put(big, bytes(MIB))
        time.sleep(0.05)
        assert get(big, MIB) == bytes(MIB), "memory was written after it was removed"
        done = [wc.status for wc in drain(a, 20)]
        ok = done.count(e.IBV_WC_SUCCESS)
        assert done[:ok] == [e.IBV_WC_SUCCESS] * ok, done
        assert ok == 20 or done[ok] == REFUSED and set(done[ok + 1:]) <= {e.IBV_WC_WR_FLUSH_ERR}, done


def drain(end, count, seconds=30):
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += end.cq.poll(count)[1]
    assert len(found) == count, f"{len(found)} completions of {count}"
    return found


def huge_page():
    """The size of the kernel's huge pages in bytes, which depends on that of its pages; None without huge pages."""
    with open("/proc/meminfo", encoding="ascii") as file:
        found = re.search(r"^Hugepagesize: *(\d+) kB$", file.read(), re.M)
    return found and int(found[1]) << 10


def huge_mapping(size):
    """Maps one huge page repeatedly to `size` bytes of address space; None without huge pages."""
    path = "/proc/sys/vm/nr_hugepages"

    def reserve(number):
        with open(path, "w", encoding="ascii") as file:
            file.write(str(number))

    try:
        with open(path, encoding="ascii") as file:
            before = int(file.read())
    except FileNotFoundError:
        return None
    try:
        reserve(before + 4)
        return repeated_mapping(size, huge_page(), os.MFD_HUGETLB)
    except (OSError, AssertionError):
        return None
    finally:
        # The kernel releases those that are mapped when they no longer are.
        with contextlib.suppress(OSError):
            reserve(before)


def test_cost(names):
    """Pinned memory and time of adding and removing depend on the size of the segment, not of the region."""
    a, b = pair(names, size=MIB)
    size, before = 4 << 30, pinned()
    huge = huge_mapping(size)
    if huge:
        address, _ = huge
        unit, begin = huge_page(), time.monotonic()
        mr = MR(b.pd, size, ACCESS, address=address)
    else:
        # User Mode Linux cannot map as many pages: add the same 128 MiB repeatedly, as separate segments.
        part = 128 * MIB
        address, _ = repeated_mapping(part, 1 << 24)
        unit, begin = 1 << 24, time.monotonic()
        mr = MR(b.pd, part, ACCESS, address=address)
        for at in range(part, size, part):
            state = add(b, mr, address, part, address + at)
        assert (state["length"], state["bytes"]) == (size, size), state
    whole = time.monotonic() - begin
    assert pinned() == before + size, (pinned(), before, size)
    small = MR(b.pd, 4 * MIB, ACCESS, address=page_buffer(1024))
    more = page_buffer(256)
    put(more, bytes(MIB))
    before, took = pinned(), {}
    for region_, end in ((small, small.buf + 4 * MIB), (mr, address + size)):
        took[region_] = []
        for _ in range(10):
            begin = time.monotonic()
            state = add(b, region_, more, MIB, end)
            middle = time.monotonic()
            assert pinned() == before + MIB and state["length"] == end + MIB - state["start"], state
            before_remove = time.monotonic()
            remove(b, region_, handle=state["handle"])
            took[region_].append((middle - begin, time.monotonic() - before_remove))
            assert pinned() == before
    print(f"4 GiB registered in {whole * 1e3:.0f} ms", *(f"{what} 4 MiB {min(times[n] for times in took[small]) * 1e6:.0f} µs, "
          f"4 GiB {min(times[n] for times in took[mr]) * 1e6:.0f} µs" for n, what in enumerate(("1 MiB added to", "removed from"))), sep="; ")
    for n in (0, 1):
        few, many_ = (min(times[n] for times in took[region_]) for region_ in (small, mr))
        # Both wait for an RCU grace period of one or several ticks; pinning all memory again would take as long as registration.
        assert many_ - few < whole / 4, f"{many_:.6f} s for 1 MiB of 4 GiB, {few:.6f} s for 1 MiB of 4 MiB, {whole:.6f} s for 4 GiB"
    add(b, mr, more, MIB, address + size)
    data = write(a, address + size - 3000, mr.rkey, 6000)
    assert get(more, 3000) == data[3000:] and read(a, address + size - 3000, mr.rkey, 6000) == data
    assert read(a, address + unit - 3000, mr.rkey, 3000) == data[:3000], "the mapping does not repeat the same memory"


def test_shrunk_by_half(names):
    """A region of 1 GiB shrinks to its first half, first by pages and then at once, under traffic: the key stays valid, unpinned memory and
    time depend on the removed part."""
    # In User Mode Linux each run of contiguous pages is a mapping of the host, which allows a process 65,530 of them.
    size, unit = (1 << 27, 1 << 23) if host.is_uml() else (1 << 30, 1 << 26)
    half = size // 2
    a, b = pair(names, size=1 << 16, timeout=18)
    address, _ = repeated_mapping(size, unit)
    zero, begin = pinned(), time.monotonic()
    mr = MR(b.pd, size, ACCESS, address=address)
    whole = time.monotonic() - begin
    assert pinned() == zero + size
    stop, failures, rounds = threading.Event(), [], [0]

    def traffic():
        try:
            while not stop.is_set():
                at = address + half - (1 << 16) * (rounds[0] % 64 + 1)
                write(a, at, mr.rkey, 1 << 16, seed=rounds[0] & 0xFF)
                rounds[0] += 1
        except AssertionError as error:
            failures.append(error)

    thread = threading.Thread(target=traffic)
    thread.start()
    took = []
    try:
        for n in range(1, 9):
            begin = time.monotonic()
            state = remove(b, mr, start=address + size - n * PAGE, length=PAGE)
            took.append(time.monotonic() - begin)
            assert pinned() == zero + state["bytes"] == zero + size - n * PAGE, state
        begin = time.monotonic()
        state = remove(b, mr, start=address + half, length=half)
        most = time.monotonic() - begin
        assert (state["start"], state["length"], state["bytes"], state["segments"]) == (address, half, half, 1), state
        assert pinned() == zero + half
        before = rounds[0]
        happens(lambda: rounds[0] >= before + 3 or not thread.is_alive(), 20)
    finally:
        stop.set()
        thread.join()
    assert not failures and rounds[0] >= before + 3, (failures, rounds)
    data = write(a, address + half - 5000, mr.rkey, 5000, seed=1)
    assert get(address + half - 5000, 5000) == data and read(a, address + half - 5000, mr.rkey, 5000) == data
    print(f"{size >> 20} MiB registered in {whole * 1e3:.1f} ms; a page of it removed in {min(took) * 1e3:.2f} ms, half of it in {most * 1e3:.1f} ms; "
          f"{rounds[0]} messages meanwhile")
    assert min(took) < whole / 4, "removing a page takes as long as for the whole region"
    write(a, address + half - 1, mr.rkey, 2, REFUSED)
    mr.close()
    assert pinned() == zero


def test_cut_under_traffic(names):
    """Threads remove and add ranges of one region while a peer writes to another part: no call and no WRITE fails unexpectedly."""
    a, b, mr, buffer = region(names, pages=16, size=16 * PAGE)
    start, zero = buffer + 16 * PAGE, pinned() - 16 * PAGE
    stop = threading.Event()
    failures, done = [], [0, 0]

    def change(number):
        try:
            while not stop.is_set():
                at = start + (2 + done[number] % 13) * PAGE
                for call_, arguments in ((remove, {"start": at, "length": PAGE}), (add, {"addr": at, "length": PAGE})):
                    try:
                        call_(b, mr, **arguments)
                        done[number] += 1
                    except Refused as error:
                        # The other thread is changing the region, or has changed this range.
                        if error.number not in (errno.EBUSY, errno.EINVAL, errno.EEXIST):
                            raise
        except (Refused, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        deadline, n = time.monotonic() + 20, 0
        while (n < 60 or min(done) < 20) and time.monotonic() < deadline:
            data = write(a, start, mr.rkey, 2 * PAGE, seed=n)
            assert get(start, 2 * PAGE) == data
            n += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures and n >= 60 and min(done) >= 20, (failures, n, done)
    state = add(b, mr, buffer, PAGE)
    assert pinned() == zero + state["bytes"], state
    mr.close()
    assert pinned() == zero
    print(f"{n} transfers; {sum(done)} changes")


def test_memlock(names):
    """Added memory counts against RLIMIT_MEMLOCK; a call that exceeds it leaves nothing pinned."""
    a, b, mr, buffer = region(names)
    extra = page_buffer(1024)
    with contextlib.closing(DebugMessages()) as log:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (pinned() + 64 * PAGE, pinned() + 64 * PAGE))
        # Without capabilities, until the messages are switched off again.
        os.setresuid(65534, 65534, 0)
        try:
            exceed_memlock(b, mr, extra)
            assert sum(map(bool, map(refusal(errno.ENOMEM, "mr_add").search, log.read()))) == 2, "a refusal was not logged"
            # Nothing may be pinned at all, which is another error, as of ibv_reg_mr().
            before = pinned()
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            fails(errno.EPERM, add, b, mr, extra, PAGE, 1 << 40)
            assert pinned() == before
        finally:
            os.setresuid(0, 0, 0)


def exceed_memlock(b, mr, extra):
    """The limit is 64 pages above what is pinned."""
    at, before = 1 << 40, pinned()
    fails(errno.ENOMEM, add, b, mr, extra, 65 * PAGE, at)
    assert pinned() == before
    handle = add(b, mr, extra, 64 * PAGE, at)["handle"]
    assert pinned() == before + 64 * PAGE
    fails(errno.ENOMEM, add, b, mr, extra + 64 * PAGE, PAGE, at + 64 * PAGE)
    remove(b, mr, handle=handle)
    state = add(b, mr, extra + 64 * PAGE, 64 * PAGE, at + 64 * PAGE)
    assert state["segments"] == 2 and pinned() == before + 64 * PAGE


def test_process_killed(names):
    """A process with segments that exits or is killed leaves nothing."""
    for how in ("exit", "kill"):
        child = os.fork()
        if not child:
            a, b, mr, buffer = region(names)
            for n in range(5):
                add(b, mr, buffer + 40 * PAGE + 2 * n * PAGE, PAGE)
            remove(b, mr, handle=FIRST)
            empty = MR(b.pd, PAGE, ACCESS)
            remove(b, empty, handle=FIRST)
            os.kill(os.getpid(), 9) if how == "kill" else os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == (9 if how == "kill" else 0), status


def test_device_gone(names):
    """When the device is deleted, the memory is unpinned and the methods fail."""
    a, b, mr, buffer = region(names)
    before = pinned()
    add(b, mr, buffer + 40 * PAGE, 8 * PAGE)
    subprocess.run(["rdma", "link", "del", names[2]], check=True)
    soon(lambda: pinned() < before, 10, "still pinned")
    refused_by_core(errno.EIO, add, b, mr, buffer + 50 * PAGE, PAGE)
    refused_by_core(errno.EIO, remove, b, mr, handle=FIRST)


def test_shown(names):
    """Resource tracking shows the size in bytes and the number of segments."""
    a, b, mr, buffer = region(names)
    add(b, mr, buffer + 40 * PAGE, 3 * PAGE)
    text = subprocess.run(["rdma", "-dd", "resource", "show", "mr"], stdout=subprocess.PIPE, text=True, check=True).stdout
    # Details follow the line of their region.
    assert re.search(rf"mrlen {7 * PAGE}\b[^\n]*\n?[^\n]*drv_segments 2", text), text


@case(needs="tools")
def test_other_process(names):
    """Another process, which has inherited the context, adds memory of its own through the Rust library."""
    a, b, mr, buffer = region(names)
    at, before = buffer + 20 * PAGE, pinned()
    os.set_inheritable(b.ctx.cmd_fd, True)
    command = ["/share/examples/exercise", *(str(n) for n in (b.ctx.cmd_fd, mr.handle, mr.rkey, at))]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False)
    line = child.stdout.readline()
    assert line == f"added 2 run {5 * PAGE}\n", line
    line = child.stdout.readline()
    assert line.startswith(f"refused {errno.EEXIST} it overlaps another segment"), line
    assert pinned() == before, "memory of another process counts for this one"
    assert read(a, at, mr.rkey, 5) == b"hello"
    # A message that spans memory of this process and of the other one.
    data = write(a, at - 8, mr.rkey, 16, seed=1)
    a.mr.write(b"12345678", 8)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), remote=(at + PAGE - 8, mr.rkey))
    a.complete()
    assert get(at - 8, 8) == data[:8] and get(at, PAGE) == bytes(PAGE), "the page of the other process was not written"
    rest, _ = child.communicate("\n")
    first = data[8:13].decode(errors="replace")
    assert rest == f"seen 12345678\nremoved {first} left 1\nrefused {errno.EINVAL}\n", rest
    assert child.returncode == 0
    write(a, at, mr.rkey, 8, REFUSED)


GUARD = b"\xA5" * 64


class OldLibrary:
    """A library, called as defined by the first header: it must not write beyond the structure of that header."""

    def __init__(self, name, end, mr):
        self.library = ctypes.CDLL(f"/share/lib/{name}")
        self.of = ctypes.c_int(end.ctx.cmd_fd), ctypes.c_uint32(mr.handle), ctypes.c_uint32(mr.rkey)

    def run(self, function, *arguments):
        state = ctypes.create_string_buffer(bytes(64) + GUARD, 64 + len(GUARD))
        number = function(*self.of, *arguments, state)
        assert state.raw[64:] == GUARD, "the library has written beyond the structure"
        if number:
            assert state.raw[:64] == bytes(64), "a result in spite of an error"
            return -number
        return decode(state.raw)

    def add(self, addr, length, iova):
        return self.run(self.library.rxe_rs_add, ctypes.c_void_p(addr), ctypes.c_uint64(length), ctypes.c_uint64(iova))

    def remove(self, handle):
        return self.run(self.library.rxe_rs_remove, ctypes.c_uint64(handle))

    def remove_range(self, start, length):
        return self.run(self.library.rxe_rs_remove_range, ctypes.c_uint64(start), ctypes.c_uint64(length))


@case(needs="tools")
def test_old_library(names):
    """All calls and errors, with the library of the first header and with the current one in its place."""
    for library in ("librxe_rs_old.so", "librxe_rs.so"):
        a, b, mr, buffer = region(names)
        old, key, start, before = OldLibrary(library, b, mr), mr.rkey, buffer + 16 * PAGE, pinned()
        state = old.add(start + 4 * PAGE, 2 * PAGE, start + 4 * PAGE)
        wanted = (mr.lkey, key, 2, start, 6 * PAGE, start, 6 * PAGE, 6 * PAGE, 2, 0)
        assert state == dict(zip(NAMES, wanted)), state
        far = old.add(buffer, PAGE, 1 << 40)
        assert (far["handle"], far["run_length"], far["bytes"], far["segments"]) == (3, PAGE, 7 * PAGE, 3), far
        assert pinned() == before + 3 * PAGE
        data = write(a, start, key, 6 * PAGE)
        assert get(start, 6 * PAGE) == data and read(a, start, key, 6 * PAGE) == data
        for number, addr, length, iova in ((errno.EINVAL, buffer + 1, PAGE, start + 8 * PAGE), (errno.EINVAL, buffer, 0, start + 8 * PAGE),
                                           (errno.EEXIST, buffer, PAGE, start), (errno.EFAULT, 1 << 46, PAGE, start + 8 * PAGE)):
            assert old.add(addr, length, iova) == -number, (addr, length, iova)
        assert old.remove(99) == -errno.ENOENT and old.remove_range(start + 6 * PAGE, PAGE) == -errno.EINVAL
        stale = old.of
        old.of = (*stale[:2], ctypes.c_uint32(key ^ 1))
        assert old.add(buffer, PAGE, start + 8 * PAGE) == -errno.EINVAL and old.remove(FIRST) == -errno.EINVAL
        old.of = stale
        state = old.remove(3)
        assert (state["handle"], state["start"], state["length"], state["segments"], state["flags"]) == (0, start, 6 * PAGE, 2, 0), state
        state = old.remove_range(start, 4 * PAGE)
        assert (state["start"], state["bytes"], state["rkey"]) == (start + 4 * PAGE, 2 * PAGE, key), state
        assert pinned() == before - 2 * PAGE
        # Calls without a result.
        assert old.library.rxe_rs_add(*old.of, ctypes.c_void_p(start), ctypes.c_uint64(PAGE), ctypes.c_uint64(start), None) == 0
        data = write(a, start, key, PAGE, seed=3)
        assert get(start, PAGE) == data
        assert old.library.rxe_rs_remove_range(*old.of, ctypes.c_uint64(start), ctypes.c_uint64(PAGE), None) == 0
        state = old.remove(2)
        assert state == dict.fromkeys(NAMES, 0) | {"flags": RELEASED}, state
        assert old.add(buffer, PAGE, start) == -errno.ENOENT and old.remove(2) == -errno.ENOENT
        assert pinned() == before - 4 * PAGE
        write(a, start + 4 * PAGE, key, status=REFUSED)
        mr.close()


@case(needs="tools")
def test_sizes(names):
    """Fields that a caller does not pass are 0; bytes that the driver does not know must be 0; a response is at most as long as the
    caller's buffer."""
    a, b, mr, buffer = region(names)
    start, fd = buffer + 16 * PAGE, b.ctx.cmd_fd
    add = lambda n: add_request(mr.rkey, buffer + n * PAGE, PAGE, start + (8 + n) * PAGE)
    remove = lambda n: remove_request(mr.rkey, start=start + (8 + n) * PAGE, length=PAGE)
    # 32 bytes in the first header; the file descriptor and the reserved field were added later.
    longer = [b"", bytes(1), bytes(4), bytes(8), bytes(16), bytes(200)]
    for method, request, known in ((ADD, add, 40), (REMOVE, remove, 32)):
        for n, more in enumerate(longer):
            state = decode(call(fd, mr.handle, method, request(n) + more))
            assert state["rkey"] == mr.rkey, (method, n)
        for length in (0, 8, 24, 28, 31):
            refused_by_core(errno.EINVAL, call, fd, mr.handle, method, request(9)[:length])
        for length in range(32, 64):
            number = errno.EINVAL if length < known else errno.EOPNOTSUPP
            refuse = refused if length < known else refused_by_core
            refuse(number, call, fd, mr.handle, method, request(9) + bytes(length - 32) + b"\1")
    for room in (64, 65, 72, 256):
        response = call(fd, mr.handle, ADD, add(10), room=room)
        assert decode(response)["handle"] > FIRST and response[64:] == bytes(room - 64), "bytes were written beyond the response"
        call(fd, mr.handle, REMOVE, remove(10))
    for room in (0, 8, 60, 63):
        refused_by_core(errno.EINVAL, call, fd, mr.handle, ADD, add(10), room=room)
    qp = ties.handle_of(b, a)
    for size in (0, 4, 8, 15):
        refused_by_core(errno.EINVAL, ties.tie_handles, fd, mr.handle, mr.rkey, qp, size=size)
    refused_by_core(errno.EOPNOTSUPP, ties.tie_handles, fd, mr.handle, mr.rkey, qp, more=bytes(7) + b"\1")
    data = write(a, start, mr.rkey, 4 * PAGE)
    assert get(start, 4 * PAGE) == data
    ties.tie_handles(fd, mr.handle, mr.rkey, qp, more=bytes(8))
