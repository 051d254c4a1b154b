#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Regions whose memory comes and goes (uapi/rxe_rs.h), through pyverbs: both queue pairs in one process.

segments.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE

Case names are the functions below. In all of them b has the memory and a uses it.
"""
import ctypes
import errno
import struct
import sys

from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

from lib.ends import ACCESS, End, pair, pattern
from lib.keys import ACCESS_, BINDABLE, LOCAL, PAGE, PD_, READ, REFUSED, TRANS, WRITE, bind, bind1, page_buffer, read, rereg, write
from lib.segments import (
    ADD, ATTR_MR, BY_HANDLE, BY_RANGE, FIRST, NAMES, RELEASED, REMOVE, Refused, add, add_request, call, decode, get, pinned, put,
    refused, region, remove, remove_request,
)


def grow(names):
    """At the end and at the start: one region, one key; accesses of all kinds cross from one segment into the next."""
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
    # As a local key, for receiving and for sending.
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
    # Atomics in a segment that was added.
    word = first + 7 * PAGE + 8
    put(word, struct.pack("=Q", 40))
    wr = SendWR(wr_id=5, num_sge=1, sg=[a.sge(8)], opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_atomic(mr.rkey, word, 2, 0)
    a.qp.post_send(wr)
    a.complete()
    assert struct.unpack("=Q", get(word, 8)) == (42,) and struct.unpack("=Q", a.mr.read(8, 0)) == (40,)
    mr.close()
    write(a, first, state["rkey"], status=REFUSED)


def elsewhere(names):
    """Anywhere in the key's address space, memory from anywhere; what lies between is a hole."""
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
        write(a, place(at), mr.rkey, min(length, 60000), REFUSED)
        assert get(buffer, 64 * PAGE) == before, f"{length} bytes at {at:#x} changed memory"


def shrink(names):
    """By handle and by range; what is removed is refused at once and never written, what stays works."""
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
    # The same place again, other memory.
    again = add(b, mr, buffer, PAGE, start + 5 * PAGE)
    assert again["handle"] not in handles and again["run_length"] == 2 * PAGE, again
    data = write(a, start + 4 * PAGE, mr.rkey, 2 * PAGE, seed=5)
    assert get(start + 4 * PAGE, PAGE) + get(buffer, PAGE) == data and get(start + 5 * PAGE, PAGE) == bytes(PAGE)
    remove(b, mr, handle=again["handle"])
    put(buffer, bytes(64 * PAGE))
    write(a, start + 5 * PAGE, mr.rkey, 64, REFUSED)
    assert get(buffer, 64 * PAGE) == bytes(64 * PAGE), "memory that was removed has been written"
    for at in (0, 6 * PAGE, 11 * PAGE, 5 * PAGE - 1):
        a, b, mr, buffer = region(names)
        start = buffer + 16 * PAGE
        extra = [add(b, mr, start + n * PAGE, PAGE)["handle"] for n in range(4, 12)]
        remove(b, mr, start=start, length=4 * PAGE)
        remove(b, mr, start=start + 5 * PAGE, length=2 * PAGE)
        remove(b, mr, handle=extra[7])
        a.post(e.IBV_WR_RDMA_READ, a.sge(2), remote=(start + at, mr.rkey))
        a.complete(REFUSED)


def ranges(names):
    """A range may span holes and cut segments, at pages; what lies outside of it stays as it was."""
    a, b, mr, buffer = region(names, pages=8)
    start = buffer + 16 * PAGE
    last = add(b, mr, start + 10 * PAGE, 4 * PAGE)["handle"]
    before = pinned()
    for at, length in ((0, 0), (4 * PAGE, 0), (8 * PAGE, 2 * PAGE), (14 * PAGE, PAGE), (-PAGE, PAGE), (10 * PAGE, (1 << 64) - PAGE), (PAGE + 1, PAGE),
                       (PAGE, PAGE - 1), (PAGE + 8, 9 * PAGE - 8), (-1, 2), (7 * PAGE + 100, 200), (0, 13 * PAGE + 1)):
        refused(errno.EINVAL, remove, b, mr, start=start + at, length=length)
    data = write(a, start, mr.rkey, 8 * PAGE, seed=2)
    assert get(start, 8 * PAGE) == data and pinned() == before
    # Out of the middle: two segments are left of the one.
    state = remove(b, mr, start=start + 2 * PAGE, length=PAGE)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start, 14 * PAGE, 11 * PAGE, 3), state
    assert pinned() == before - PAGE
    # Over a hole: the end of one segment and the beginning of another.
    state = remove(b, mr, start=start + 6 * PAGE, length=6 * PAGE)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start, 14 * PAGE, 7 * PAGE, 3), state
    assert pinned() == before - 5 * PAGE
    for at, length in ((0, 2), (3, 3), (12, 2)):
        data = write(a, start + at * PAGE, mr.rkey, length * PAGE, seed=at)
        assert get(start + at * PAGE, length * PAGE) == data and read(a, start + at * PAGE, mr.rkey, length * PAGE) == data
    # The beginning of one, all of another, and more than there is on both sides.
    state = remove(b, mr, start=start - 5 * PAGE, length=6 * PAGE)
    assert (state["start"], state["bytes"], state["segments"]) == (start + PAGE, 6 * PAGE, 3), state
    # What has been removed can be added again, and is a segment of its own.
    again = add(b, mr, start + 2 * PAGE, PAGE)
    assert again["handle"] > last and (again["run_start"], again["run_length"]) == (start + PAGE, 5 * PAGE), again
    data = write(a, start + PAGE, mr.rkey, 5 * PAGE, seed=9)
    assert get(start + PAGE, 5 * PAGE) == data
    # A handle names what is left of what was added, in however many parts.
    state = remove(b, mr, handle=FIRST)
    assert (state["start"], state["length"], state["bytes"], state["segments"]) == (start + 2 * PAGE, 12 * PAGE, 3 * PAGE, 2), state
    refused(errno.ENOENT, remove, b, mr, handle=FIRST)
    assert pinned() == before - 9 * PAGE
    # All of it, wherever it is.
    state = remove(b, mr, start=0, length=(1 << 64) - 1)
    assert state["flags"] == RELEASED and pinned() == before - 12 * PAGE, state
    for at in (PAGE, 2 * PAGE - 1, 6 * PAGE - 1, 11 * PAGE):
        a, b, mr, buffer = region(names, pages=8)
        start = buffer + 16 * PAGE
        add(b, mr, start + 10 * PAGE, 4 * PAGE)
        remove(b, mr, start=start + PAGE, length=PAGE)
        remove(b, mr, start=start + 6 * PAGE, length=6 * PAGE)
        untouched = get(buffer, 64 * PAGE)
        write(a, start + at, mr.rkey, 2, REFUSED)
        assert get(buffer, 64 * PAGE) == untouched, "written where nothing is"


def odd(names):
    """Regions that neither begin nor end at pages, in the process or among the peer's addresses: a page is pinned while a byte of it is left."""
    a, b = pair(names, size=65536)
    buffer, zero = page_buffer(16), pinned()
    mr = MR(b.pd, 5 * PAGE, ACCESS, address=buffer + 100)
    assert pinned() == zero + 6 * PAGE
    remove(b, mr, start=buffer + PAGE, length=PAGE)
    assert pinned() == zero + 5 * PAGE
    for at, length in ((100, PAGE - 100), (2 * PAGE, 3 * PAGE + 100)):
        data = write(a, buffer + at, mr.rkey, length, seed=at & 0xFF)
        assert get(buffer + at, length) == data
    remove(b, mr, start=buffer, length=PAGE)
    assert pinned() == zero + 4 * PAGE
    # An end that cuts nothing may be anywhere.
    remove(b, mr, start=buffer + 5 * PAGE, length=100)
    remove(b, mr, start=buffer + 4 * PAGE, length=PAGE)
    assert pinned() == zero + 2 * PAGE
    mr.close()
    assert pinned() == zero
    # Other places in a page here than there (addresses from 0): a cut leaves both sides a part of one page.
    mr = MR(b.pd, 4 * PAGE, ACCESS | e.IBV_ACCESS_ZERO_BASED, address=buffer + 0x800)
    assert pinned() == zero + 5 * PAGE
    remove(b, mr, start=PAGE, length=PAGE)
    assert pinned() == zero + 5 * PAGE
    remove(b, mr, start=2 * PAGE, length=PAGE)
    assert pinned() == zero + 4 * PAGE
    put(buffer, bytes(16 * PAGE))
    for at, length in ((0, PAGE), (3 * PAGE, PAGE)):
        data = write(a, at, mr.rkey, length, seed=5)
        assert get(buffer + 0x800 + at, length) == data
    assert get(buffer + 0x1800, 2 * PAGE) == bytes(2 * PAGE)
    remove(b, mr, start=0, length=PAGE)
    assert pinned() == zero + 2 * PAGE
    mr.close()
    assert pinned() == zero


def unmapped(names):
    """What is left of a segment is the memory that was pinned, though the process has something else there by now, or nothing."""
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


def at_random(names):
    """Ranges added and removed at random, against a model that knows the memory behind each page."""
    import random
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    a, b, mr, buffer = region(names, pages=4)
    space, zero = buffer + 16 * PAGE, pinned() - 4 * PAGE
    # For each page of the key's addresses the page of the buffer, and the segment.
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
                continue    # The last of it would take the key along.
            state = remove(b, mr, **options)
            behind = {n: page for n, page in behind.items() if n not in inside}
        assert state["bytes"] == len(behind) * PAGE and pinned() == zero + len(behind) * PAGE, (state, behind)
        assert (state["start"], state["length"]) == (space + min(behind) * PAGE, (max(behind) - min(behind) + 1) * PAGE), state
        n = rng.choice(list(behind))
        data = write(a, space + n * PAGE, mr.rkey, 100, seed=rng.randrange(256))
        assert get(buffer + behind[n][0] * PAGE, 100) == data
    holes = sorted(set(range(-1, 33)) - set(behind))
    write(a, space + rng.choice(holes) * PAGE, mr.rkey, 1, REFUSED)


def refusals(names):
    """Bad arguments, each with its error, and nothing changes."""
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
        refused(errno.EFAULT, call, fd, mr.handle, method, request, answer=0x1000)
        refused(errno.EINVAL, call, fd, mr.handle, method, request[:-4])
        refused(errno.EINVAL, call, fd, mr.handle, method, request, room=60)
        refused(errno.EOPNOTSUPP, call, fd, mr.handle, method, request + bytes(8 if method == ADD else 0) + b"\1")
        refused(errno.EINVAL, call, fd, mr.handle, method, request, driver=15)
        refused(errno.EINVAL, call, fd, mr.handle, method, request, attrs=[(ATTR_MR, 0, mr.handle)])
        for handle in (b.pd.handle + 12345, 0xFFFFFFFF, 1 << 40):
            refused(errno.ENOENT, call, fd, handle, method, request)
    refused(errno.EPROTONOSUPPORT, call, fd, mr.handle, 0x1FFF, good)
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
    # A caller of tomorrow: more room for the answer, more fields that are 0.
    answer = call(fd, mr.handle, ADD, good + bytes(8), room=80)
    assert decode(answer)["segments"] == 2 and answer[64:] == bytes(16), answer
    assert pinned() == before + PAGE
    write(a, at, mr.rkey, PAGE)
    write(a, at + PAGE, mr.rkey, 1, REFUSED)


def last(names):
    """With the last segment the key goes; the region itself is still there to be deregistered."""
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
            assert rereg(mr, b, flags, addr=start, length=PAGE, access=ACCESS) == errno.ENOENT
        spare = [MR(b.pd, PAGE, ACCESS) for _ in range(50)]
        write(a, start + 8 * PAGE, key, status=REFUSED)
        mr.close()
        # Deregistering it took nobody else's key along.
        for end in (a, b):
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        a.connect(b, 7, 9)
        b.connect(a, 9, 7)
        for other in spare:
            data = write(a, other.buf, other.rkey, PAGE, seed=other.rkey & 0xFF)
            assert other.read(PAGE, 0) == data


def foreign(names):
    """Neither another context nor another protection domain reaches the region."""
    a, b, mr, buffer = region(names)
    start, at = buffer + 16 * PAGE, buffer + 24 * PAGE
    other = End(names[2], int(names[3]))
    # Handles are numbers of a context; this one has nothing under the number, or something else.
    taken = {thing.handle for thing in (other.pd, other.mr)}
    for handle in set(range(64)) - taken | {mr.handle}:
        for method, request in ((ADD, add_request(mr.rkey, start, PAGE, at)), (REMOVE, remove_request(mr.rkey, handle=FIRST))):
            try:
                call(other.ctx.cmd_fd, handle, method, request)
                raise AssertionError("a stranger changed the region")
            except Refused as error:
                assert error.number in (errno.ENOENT, errno.EINVAL), error
    write(a, start, mr.rkey, 4 * PAGE)
    # A segment is of the region's domain.
    pd = PD(b.ctx)
    mr2 = MR(pd, PAGE, ACCESS, address=buffer)
    add(b, mr2, buffer + PAGE, PAGE)
    write(a, buffer + PAGE, mr2.rkey, status=REFUSED)


def rights(names):
    """A segment grants what its region grants."""
    a, b, mr, buffer = region(names, access=LOCAL | READ)
    start = buffer + 16 * PAGE
    add(b, mr, start + 4 * PAGE, PAGE)
    put(start + 4 * PAGE, pattern(64, 9))
    assert read(a, start + 4 * PAGE, mr.rkey) == pattern(64, 9)
    write(a, start + 4 * PAGE, mr.rkey, status=REFUSED)
    assert get(start + 4 * PAGE, 64) == pattern(64, 9)
    # Memory that this process cannot write may be shown to others.
    a, b, mr, buffer = region(names, access=READ)
    start = buffer + 16 * PAGE
    fixed = page_buffer(1)
    put(fixed, pattern(PAGE, 8))
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mprotect(fixed, PAGE, 1)
    add(b, mr, fixed, PAGE, start + 4 * PAGE)
    assert read(a, start + 4 * PAGE, mr.rkey, PAGE) == pattern(PAGE, 8)


def windows(names):
    """A window opens what the region has: it may cross segments, cannot be bound over a hole, and loses what the region loses."""
    for kind, opener in ((e.IBV_MW_TYPE_1, bind1), (e.IBV_MW_TYPE_2, bind)):
        a, b, mr, buffer = region(names, access=BINDABLE)
        start = buffer + 16 * PAGE
        mw = MW(b.pd, kind)
        extra = add(b, mr, start + 4 * PAGE, 4 * PAGE)["handle"]
        key = opener(b, mw, 3 * PAGE, 3 * PAGE, WRITE | READ, mr)
        b.complete()
        data = write(a, start + 3 * PAGE, key, 3 * PAGE)
        assert get(start + 3 * PAGE, 3 * PAGE) == data and read(a, start + 3 * PAGE, key, 3 * PAGE) == data
        # The region grows and moves at its ends; the window stays where it is.
        add(b, mr, start - PAGE, PAGE)
        add(b, mr, start + 8 * PAGE, PAGE)
        data = write(a, start + 3 * PAGE, key, 3 * PAGE, seed=2)
        assert get(start + 3 * PAGE, 3 * PAGE) == data
        # Cut, but not where the window is.
        remove(b, mr, start=start + PAGE, length=PAGE)
        data = write(a, start + 3 * PAGE, key, 3 * PAGE, seed=6)
        assert get(start + 3 * PAGE, 3 * PAGE) == data
        remove(b, mr, handle=FIRST)
        data = write(a, start + 4 * PAGE, key, 2 * PAGE, seed=3)
        assert get(start + 4 * PAGE, 2 * PAGE) == data
        # While it is open the last segments cannot go, nor can the region.
        refused(errno.EBUSY, remove_all, b, mr, start)
        try:
            mr.close()
            raise AssertionError("deregistered under a window")
        except PyverbsError:
            pass
        before = get(buffer, 64 * PAGE)
        write(a, start + 3 * PAGE, key, PAGE + 1, REFUSED)
        assert get(buffer, 64 * PAGE) == before
        mw.close()
        # Over a hole.
        a, b = pair(names, b_access=BINDABLE)
        mr = MR(b.pd, PAGE, BINDABLE, address=buffer)
        add(b, mr, buffer + 2 * PAGE, PAGE)
        mw = MW(b.pd, kind)
        opener(b, mw, PAGE - 1, 2, WRITE, mr)
        b.complete(e.IBV_WC_MW_BIND_ERR)


def remove_all(end, mr, start):
    """Leaves one segment, then removes that too."""
    for at, length in ((-PAGE, PAGE), (8 * PAGE, PAGE), (4 * PAGE, 4 * PAGE)):
        try:
            remove(end, mr, start=start + at, length=length)
        except Refused as error:
            if error.number != errno.EINVAL:
                raise


def reregistered(names):
    """Registering anew gives one segment in place of all; rights and domain change for all of them."""
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
    new = add(b, mr, buffer + 4 * PAGE, PAGE, 0x12000)
    assert new["handle"] > old["handle"] and (new["start"], new["length"]) == (0x10000, 3 * PAGE), new
    write(a, 0x10000, mr.rkey, 3 * PAGE)
    refused(errno.ENOENT, remove, b, mr, handle=FIRST)
    write(a, start + 8 * PAGE, mr.rkey, status=REFUSED)
    # Another domain, both ways.
    a, b, mr, buffer = region(names)
    start = buffer + 16 * PAGE
    add(b, mr, start + 8 * PAGE, PAGE)
    pd = PD(b.ctx)
    assert rereg(mr, b, PD_, pd=pd) == 0
    assert rereg(mr, b, PD_, pd=b.pd) == 0
    write(a, start + 8 * PAGE, mr.rkey)
    assert rereg(mr, b, PD_, pd=pd) == 0
    write(a, start + 8 * PAGE, mr.rkey, status=REFUSED)
    # Pages pinned for reading are pinned anew before they are written.
    a, b, mr, buffer = region(names, access=READ)
    start, fresh = buffer + 16 * PAGE, page_buffer(2)
    add(b, mr, fresh, 2 * PAGE, start + 4 * PAGE)
    assert read(a, start + 4 * PAGE, mr.rkey) == bytes(64)
    assert rereg(mr, b, ACCESS_, access=ACCESS) == 0
    data = write(a, start, mr.rkey, 6 * PAGE, seed=6)
    assert get(start, 4 * PAGE) + get(fresh, 2 * PAGE) == data
    assert get(page_buffer(1), PAGE) == bytes(PAGE), "the common page of zeros was written"


CASES = [grow, elsewhere, shrink, ranges, odd, unmapped, at_random, refusals, last, foreign, rights, windows, reregistered]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
