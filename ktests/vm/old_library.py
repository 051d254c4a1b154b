#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Programs built with the first librxe_rs (ktests/old_library), and structures of other lengths than the driver's.

old_library.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import ctypes
import errno
import sys

from lib import ties
from lib.keys import PAGE, REFUSED, read, write
from lib.segments import ADD, FIRST, NAMES, RELEASED, REMOVE, add_request, call, decode, get, pinned, refused, region, remove_request

GUARD = b"\xA5" * 64


class Old:
    """A library, called as the first header says: what is behind its structure is the caller's own."""

    def __init__(self, name, end, mr):
        self.library = ctypes.CDLL(f"/share/lib/{name}")
        self.of = ctypes.c_int(end.ctx.cmd_fd), ctypes.c_uint32(mr.handle), ctypes.c_uint32(mr.rkey)

    def run(self, function, *arguments):
        state = ctypes.create_string_buffer(bytes(64) + GUARD, 64 + len(GUARD))
        number = function(*self.of, *arguments, state)
        assert state.raw[64:] == GUARD, "written behind the structure"
        if number:
            assert state.raw[:64] == bytes(64), "an answer with an error"
            return -number
        return decode(state.raw)

    def add(self, addr, length, iova):
        return self.run(self.library.rxe_rs_add, ctypes.c_void_p(addr), ctypes.c_uint64(length), ctypes.c_uint64(iova))

    def remove(self, handle):
        return self.run(self.library.rxe_rs_remove, ctypes.c_uint64(handle))

    def remove_range(self, start, length):
        return self.run(self.library.rxe_rs_remove_range, ctypes.c_uint64(start), ctypes.c_uint64(length))


def every_call(names):
    """Each call and each error, with the library that came with the header and with today's in its place."""
    for library in ("librxe_rs_old.so", "librxe_rs.so"):
        a, b, mr, buffer = region(names)
        old, key, start, before = Old(library, b, mr), mr.rkey, buffer + 16 * PAGE, pinned()
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
        # Who does not want the answer.
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


def sizes(names):
    """Fields that a caller does not pass are 0; bytes the driver does not know must be 0; of an answer there is as much as there is room for."""
    a, b, mr, buffer = region(names)
    start, fd = buffer + 16 * PAGE, b.ctx.cmd_fd
    add = lambda n: add_request(mr.rkey, buffer + n * PAGE, PAGE, start + (8 + n) * PAGE)
    remove = lambda n: remove_request(mr.rkey, start=start + (8 + n) * PAGE, length=PAGE)
    # From the first header on 32 bytes; the file and what is reserved behind it since.
    longer = [b"", bytes(1), bytes(4), bytes(8), bytes(16), bytes(200)]
    for method, request, known in ((ADD, add, 40), (REMOVE, remove, 32)):
        for n, more in enumerate(longer):
            state = decode(call(fd, mr.handle, method, request(n) + more))
            assert state["rkey"] == mr.rkey, (method, n)
        for length in (0, 8, 24, 28, 31):
            refused(errno.EINVAL, call, fd, mr.handle, method, request(9)[:length])
        for length in range(32, 64):
            number = errno.EINVAL if length < known else errno.EOPNOTSUPP
            refused(number, call, fd, mr.handle, method, request(9) + bytes(length - 32) + b"\1")
    for room in (64, 65, 72, 256):
        answer = call(fd, mr.handle, ADD, add(10), room=room)
        assert decode(answer)["handle"] > FIRST and answer[64:] == bytes(room - 64), "bytes behind the answer"
        call(fd, mr.handle, REMOVE, remove(10))
    for room in (0, 8, 60, 63):
        refused(errno.EINVAL, call, fd, mr.handle, ADD, add(10), room=room)
    qp = ties.handle_of(b, a)
    for size in (0, 4, 8, 15):
        refused(errno.EINVAL, ties.tie_handles, fd, mr.handle, mr.rkey, qp, size=size)
    refused(errno.EOPNOTSUPP, ties.tie_handles, fd, mr.handle, mr.rkey, qp, more=bytes(7) + b"\1")
    data = write(a, start, mr.rkey, 4 * PAGE)
    assert get(start, 4 * PAGE) == data
    ties.tie_handles(fd, mr.handle, mr.rkey, qp, more=bytes(8))


CASES = [every_call, sizes]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
