# SPDX-License-Identifier: GPL-2.0
"""Checks of R_Keys by the responder, through pyverbs: both queue pairs in one process.

In all tests b has the memory and a accesses it.
"""
import ctypes

from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from lib.ends import ACCESS, MTU, End, pair, pattern, soon
from lib.keys import ATOMIC, BINDABLE, LOCAL, PAGE, READ, REFUSED, WRITE, bind, bind1, local_inv, page_buffer

DEFAULTS = dict(driver="rxe_rs", reason="tests what the specification requires")
ALL = (WRITE, READ, ATOMIC)
TOP = 1 << 64


def operations(rights):
    """Names of the operations that need these access rights."""
    table = {WRITE: ("write", "write_imm", "long_write"), READ: ("read", "long_read"), ATOMIC: ("fetch_add", "cmp_swap")}
    return [name for right in rights for name in table[right]]


def post(a, name, addr, key, length=64):
    """Posts the operation; `length` applies to short writes and reads."""
    if name in ("fetch_add", "cmp_swap"):
        opcode = e.IBV_WR_ATOMIC_FETCH_AND_ADD if name == "fetch_add" else e.IBV_WR_ATOMIC_CMP_AND_SWP
        wr = SendWR(wr_id=3, num_sge=1, sg=[a.sge(8)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        # The comparison succeeds if the memory holds the pattern of `untouched`.
        compare = int.from_bytes(pattern(8, 77), "little")
        wr.set_wr_atomic(key, addr, 1 if name == "fetch_add" else compare, 0x1234567890)
        a.qp.post_send(wr)
        return
    if name.startswith("long_"):
        length = 5 * MTU + 1
    opcode = {"read": e.IBV_WR_RDMA_READ, "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM}.get(name.removeprefix("long_"), e.IBV_WR_RDMA_WRITE)
    a.post(opcode, a.sge(length), remote=(addr, key), imm=5 if name == "write_imm" else None)


def size_of(name, length=64):
    return 8 if name in ("fetch_add", "cmp_swap") else 5 * MTU + 1 if name.startswith("long_") else length


def untouched(names, make, rights=ALL, length=64):
    """Each operation on what `make(b, size)` returns (address, key and objects to keep alive) must be refused: the requester gets a remote
    access error, both queue pairs enter the error state, and none of b's memory changes."""
    for name in operations(rights):
        a, b = pair(names, b_access=ACCESS | BINDABLE)
        buffer = page_buffer(32)
        fill = pattern(32 * PAGE, 77)
        ctypes.memmove(buffer, fill, len(fill))
        b.mr.write(fill[:b.size], b.size)
        b.buffer = buffer
        if name == "write_imm":
            b.recv(b.sge(0))
        addr, key, *alive = make(b, size_of(name, length))
        post(a, name, addr % TOP, key, length)
        a.complete(REFUSED)
        assert a.state() == e.IBV_QPS_ERR, f"{name}: the requester is in state {a.state()}"
        soon(lambda: b.state() == e.IBV_QPS_ERR, 5, f"{name}: the responder does not enter the error state")
        assert ctypes.string_at(buffer, len(fill)) == fill and b.mr.read(b.size, 0) == fill[:b.size], f"{name} changed memory"
        del alive


def test_unpredictable(names):
    """Index and key byte of a key cannot be predicted from those of earlier keys."""
    b = End(names[2], int(names[3]))
    count = 1500
    address = page_buffer(1)
    regions = [MR(b.pd, PAGE, LOCAL, address=address) for _ in range(count)]
    keys = [mr.rkey for mr in regions]
    assert all(mr.lkey == mr.rkey for mr in regions)
    indices, variants = [key >> 8 for key in keys], [key & 0xFF for key in keys]
    assert len(set(indices)) == count and 0 not in indices
    # Each bit is set in about half of the keys (within 6 standard deviations).
    for bit in range(32):
        ones = sum(key >> bit & 1 for key in keys)
        assert abs(ones - count / 2) < 6 * (count / 4) ** 0.5, f"bit {bit} is set in {ones} of {count}"
    rises = sum(x < y for x, y in zip(indices, indices[1:]))
    assert abs(rises - count / 2) < 6 * (count / 12) ** 0.5, f"{rises} of {count} are above their predecessor"
    near = sum(abs(x - y) < 256 for x, y in zip(indices, indices[1:]))
    assert near < 5, f"{near} neighbours"
    assert len(set(variants)) > 240, f"{len(set(variants))} key bytes"
    # The index of a deregistered region is not reused at once.
    again = 0
    for _ in range(200):
        mr = MR(b.pd, PAGE, LOCAL, address=address)
        index = mr.rkey >> 8
        mr.close()
        mr = MR(b.pd, PAGE, LOCAL, address=address)
        again += index == mr.rkey >> 8
        mr.close()
    assert again < 3, f"{again} of 200 indices were reused at once"


def test_stale(names):
    """The key of a deregistered region, whose memory is registered again with another key."""
    def gone(b, size):
        mr = MR(b.pd, 16 * PAGE, ACCESS, address=b.buffer)
        key = mr.rkey
        mr.close()
        return b.buffer, key, MR(b.pd, 16 * PAGE, ACCESS, address=b.buffer)

    untouched(names, gone)


def test_unknown(names):
    """Keys with another key byte, with an adjacent index, and keys that do not exist."""
    for change in (lambda k: k ^ 1, lambda k: k ^ 0x80, lambda k: k ^ 0xFF, lambda k: k ^ 0x100, lambda k: 0, lambda k: 0xFFFFFFFF,
                   lambda k: k & 0xFF, lambda k: k ^ 0x80000000):
        untouched(names, lambda b, size: (b.mr.buf, change(b.mr.rkey)), rights=(WRITE, READ))
    untouched(names, lambda b, size: (b.mr.buf, b.mr.rkey ^ 1), rights=(ATOMIC,))


def test_key_of_the_kernel(names):
    """The key 0, by which consumers in the kernel access their memory, grants a process nothing, in sends and in receives."""
    for address in (None, 0xFFFF888000100000, 0):
        a, b = pair(names)
        a.qp.post_send(SendWR(wr_id=3, num_sge=1, sg=[SGE(a.mr.buf if address is None else address, 64, 0)], opcode=e.IBV_WR_SEND,
                              send_flags=e.IBV_SEND_SIGNALED))
        a.complete(e.IBV_WC_LOC_PROT_ERR)
        a, b = pair(names)
        # Different data on both sides, so that a write would be seen.
        fill = pattern(b.size, 77)
        b.mr.write(fill, b.size)
        a.mr.write(pattern(64), 64)
        b.qp.post_recv(RecvWR(wr_id=4, num_sge=1, sg=[SGE(b.mr.buf if address is None else address, 64, 0)]))
        a.post(e.IBV_WR_SEND, a.sge(64))
        b.complete(e.IBV_WC_LOC_PROT_ERR)
        assert b.mr.read(b.size, 0) == fill


def test_other_domain(names):
    """The key of a region in another protection domain of the same process."""
    def other(b, size):
        pd = PD(b.ctx)
        mr = MR(pd, 16 * PAGE, ACCESS, address=b.buffer)
        return b.buffer, mr.rkey, mr, pd

    untouched(names, other)


def test_wrong_access(names):
    """Each operation on a region that grants all access rights but the one it needs."""
    for right in ALL:
        def without(b, size):
            mr = MR(b.pd, 16 * PAGE, ACCESS & ~right | LOCAL, address=b.buffer)
            return b.buffer, mr.rkey, mr

        untouched(names, without, rights=(right,))
    # Local access rights do not permit remote access.
    def local(b, size):
        mr = MR(b.pd, 16 * PAGE, BINDABLE & ~(WRITE | READ | ATOMIC), address=b.buffer)
        return b.buffer, mr.rkey, mr

    untouched(names, local)


def test_out_of_bounds(names):
    """Accesses before the region, behind it, across either end, and far away."""
    for place in (lambda size: -8, lambda size: 8 * PAGE + 8, lambda size: 8 * PAGE - size + 8, lambda size: 1 << 40, lambda size: -1 << 40):
        def outside(b, size):
            mr = MR(b.pd, 8 * PAGE, ACCESS, address=b.buffer + 8 * PAGE)
            return b.buffer + 8 * PAGE + (place(size) + 7) // 8 * 8, mr.rkey, mr

        untouched(names, outside)
    for place in (lambda size: -1, lambda size: 8 * PAGE, lambda size: 8 * PAGE - size + 1):
        def byte(b, size):
            mr = MR(b.pd, 8 * PAGE, ACCESS, address=b.buffer + 8 * PAGE)
            return b.buffer + 8 * PAGE + place(size), mr.rkey, mr

        untouched(names, byte, rights=(WRITE, READ))


def test_wrapping(names):
    """Addresses whose sum with the length is beyond 2^64."""
    for addr in (TOP - 8, TOP - 64, TOP - 4096):
        untouched(names, lambda b, size: (addr, b.mr.rkey), rights=(WRITE, READ), length=8192)
    untouched(names, lambda b, size: (TOP - 8, b.mr.rkey), rights=(ATOMIC,))


def test_invalidated(names):
    """The key of a window that was invalidated, unbound, bound again, or deallocated."""
    rights = WRITE | READ | ATOMIC

    def window(kind, end_it):
        """A window's key after `end_it(b, window, key)`, which returns true if it posted something."""
        def make(b, size):
            mw = MW(b.pd, kind)
            key = (bind1 if kind == e.IBV_MW_TYPE_1 else bind)(b, mw, 0, b.size // 2, rights)
            b.complete()
            if end_it(b, mw, key):
                b.complete()
            return b.mr.buf, key, mw

        return make

    untouched(names, window(e.IBV_MW_TYPE_2, lambda b, mw, key: local_inv(b, key) or True))
    untouched(names, window(e.IBV_MW_TYPE_1, lambda b, mw, key: bind1(b, mw, 0, b.size // 2, rights)))
    untouched(names, window(e.IBV_MW_TYPE_1, lambda b, mw, key: bind1(b, mw, 0, 0, 0)))
    untouched(names, window(e.IBV_MW_TYPE_1, lambda b, mw, key: mw.close()))


def test_no_bytes(names):
    """Operations without bytes check neither key nor address, and change nothing."""
    a, b = pair(names)
    fill = pattern(b.size, 77)
    b.mr.write(fill, b.size)
    gone = MR(b.pd, PAGE, ACCESS)
    dead = gone.rkey
    gone.close()
    for key in (b.mr.rkey, b.mr.rkey ^ 1, dead, 0, 0xFFFFFFFF, MR(PD(b.ctx), PAGE, ACCESS).rkey):
        for addr in (b.mr.buf, 0, TOP - 1, b.mr.buf + b.size + 1):
            for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE_WITH_IMM):
                imm = opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM
                if imm:
                    b.recv(b.sge(0))
                a.post(opcode, a.sge(0), remote=(addr, key), imm=9 if imm else None)
                a.complete()
                if imm:
                    assert b.complete().byte_len == 0
    assert b.mr.read(b.size, 0) == fill
    assert a.state() == b.state() == e.IBV_QPS_RTS
    # A later access with data is still checked.
    post(a, "write", b.mr.buf, dead)
    a.complete(REFUSED)
    assert b.mr.read(b.size, 0) == fill


def test_unreliable(names):
    """On UC, WRITEs with invalid keys complete at the requester but write nothing; a later valid WRITE arrives."""
    a, b = pair(names, qp_type=e.IBV_QPT_UC)
    fill = pattern(b.size, 77)
    b.mr.write(fill, b.size)
    foreign = MR(PD(b.ctx), PAGE, ACCESS)
    for addr, key in ((b.mr.buf, b.mr.rkey ^ 1), (b.mr.buf + b.size - 1, b.mr.rkey), (TOP - 8, b.mr.rkey), (foreign.buf, foreign.rkey)):
        for name in ("write", "long_write"):
            post(a, name, addr, key)
            a.complete()
    # A valid WRITE after all of those, to other memory.
    data, at = pattern(5 * MTU + 1, 3), b.size // 2
    a.mr.write(data, len(data))
    post(a, "long_write", b.mr.buf + at, b.mr.rkey)
    a.complete()
    soon(lambda: b.mr.read(len(data), at) == data, 5, "the valid WRITE did not arrive")
    assert b.mr.read(at, 0) == fill[:at]
    assert b.mr.read(b.size - at - len(data), at + len(data)) == fill[at + len(data):]
