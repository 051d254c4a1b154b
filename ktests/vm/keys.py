# SPDX-License-Identifier: GPL-2.0
"""Memory windows, invalidation, atomic writes and re-registration of regions, between two devices."""
import ctypes
import mmap
import os
import tempfile
import time
import types

from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

from lib import uverbs
from lib.case import case
from lib.ends import ACCESS, MTU, End, completion, in_thread, pair, pattern
from lib.keys import (
    ACCESS_, ATOMIC, BINDABLE, LOCAL, PAGE, PD_, READ, REFUSED, TRANS, WRITE, bind, bind1, extended, local_inv, page_buffer, read,
    reregistered_repeatedly, rereg, write,
)
from lib.writer import writer

DEFAULTS = dict(driver="rxe_rs", reason="tests what the specification requires")
BIND_ERROR = e.IBV_WC_MW_BIND_ERR


def next_key(key):
    """The key with an incremented key byte."""
    return key & 0xFFFFFF00 | (key + 1) & 0xFF


def send_inv(end, key, length=64):
    wr = SendWR(wr_id=9, num_sge=1, sg=[end.sge(length)], opcode=e.IBV_WR_SEND_WITH_INV)
    wr.imm_data = key
    end.qp.post_send(wr)


def window(names, kind, **options):
    a, b = pair(names, b_access=BINDABLE, **options)
    mw = MW(b.pd, kind)
    return a, b, mw


def test_window_type_1(names):
    """Bind, access, bind to another range (which invalidates the old key), unbind with length 0."""
    a, b, mw = window(names, e.IBV_MW_TYPE_1)
    first = mw.rkey
    key = bind1(b, mw, 100, 5000, WRITE | READ)
    b.complete()
    assert key == next_key(first), f"{key:#x} after {first:#x}"
    data = write(a, b.mr.buf + 100, key, 5000)
    assert b.mr.read(5000, 100) == data and read(a, b.mr.buf + 100, key, 5000) == data
    again = bind1(b, mw, 8192, 100, WRITE)
    b.complete()
    data = write(a, b.mr.buf + 8192, again, 100, seed=2)
    assert b.mr.read(100, 8192) == data
    write(a, b.mr.buf + 100, key, 10, REFUSED)
    a, b, mw = window(names, e.IBV_MW_TYPE_1)
    key = bind1(b, mw, 0, 4096, WRITE)
    b.complete()
    write(a, b.mr.buf, key)
    key = bind1(b, mw, 0, 0, 0)
    b.complete()
    write(a, b.mr.buf, key, status=REFUSED)


def test_window_type_2(names):
    """Bind, access, invalidate, bind again with another key; the old keys are invalid."""
    a, b, mw = window(names, e.IBV_MW_TYPE_2)
    # The extended interface (ibv_wr_bind_mw()), with which the program chooses the key.
    b.qp.close()
    ops = e.IBV_QP_EX_WITH_BIND_MW | e.IBV_QP_EX_WITH_LOCAL_INV
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
    init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=b.cq, rcq=b.cq, cap=cap, pd=b.pd, send_ops_flags=ops, sq_sig_all=1,
                        comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
    b.qp = QPEx(b.ctx, init)
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.connect(b, 0xFFFFFE, 0x000123)
    b.connect(a, 0x000123, 0xFFFFFE)
    keys = []
    for n in range(3):
        key = mw.rkey & 0xFFFFFF00 | (mw.rkey + 0x55 * (n + 1)) & 0xFF
        b.qp.wr_start()
        b.qp.wr_id = 3
        b.qp.wr_flags = e.IBV_SEND_SIGNALED
        b.qp.wr_bind_mw(mw, key, MWBindInfo(b.mr, b.mr.buf + n * PAGE, PAGE, WRITE | READ))
        b.qp.wr_complete()
        assert b.complete().opcode == e.IBV_WC_BIND_MW
        data = write(a, b.mr.buf + n * PAGE, key, PAGE, seed=n)
        assert b.mr.read(PAGE, n * PAGE) == data
        keys.append(key)
        local_inv(b, key)
        assert b.complete().opcode == e.IBV_WC_LOCAL_INV
    assert len(set(keys)) == 3
    write(a, b.mr.buf, keys[0], status=REFUSED)


def test_window_bounds(names):
    """Bounds and access rights of the window apply, not those of the region."""
    offset, length = 1000, 3000
    cases = [("write", offset - 1, 2), ("write", offset + length - 1, 2), ("write", offset + length, 1),
             ("write", offset, length + 1), ("read", offset, 1), ("write", 0, 1)]
    for what, at, size in cases:
        a, b, mw = window(names, e.IBV_MW_TYPE_2)
        key = bind(b, mw, offset, length, WRITE)
        b.complete()
        write(a, b.mr.buf + offset, key, length)
        write(a, b.mr.buf + offset + length - 1, key, 1)
        b.mr.write(bytes(b.size), b.size)
        {"write": write, "read": read}[what](a, b.mr.buf + at, key, size, status=REFUSED)
        assert b.mr.read(b.size, 0) == bytes(b.size), f"{what} of {size} at {at} changed memory"


def test_window_zero_based(names):
    """Addresses of a zero-based window begin at 0."""
    a, b, mw = window(names, e.IBV_MW_TYPE_2)
    key = bind(b, mw, 1000, 3000, WRITE | READ | e.IBV_ACCESS_ZERO_BASED)
    b.complete()
    data = write(a, 0, key, 3000)
    assert b.mr.read(3000, 1000) == data
    assert read(a, 2990, key, 10) == data[2990:]
    write(a, 1, key, 3000, REFUSED)


def test_window_of_other_queue_pair(names):
    """A type 2 window is valid for the queue pair that bound it, a type 1 window for the protection domain."""
    for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
        a, b, mw = window(names, kind)
        other_a, other_b = End(names[0], int(names[1])), b.with_another_qp()
        other_a.connect(other_b, 5, 6)
        other_b.connect(other_a, 6, 5)
        key = (bind1 if kind == e.IBV_MW_TYPE_1 else bind)(b, mw, 0, PAGE, WRITE)
        b.complete()
        write(a, b.mr.buf, key)
        write(other_a, b.mr.buf, key, status=e.IBV_WC_SUCCESS if kind == e.IBV_MW_TYPE_1 else REFUSED)


def test_window_other_domain(names):
    """Window, region and queue pair must be in one protection domain, also to invalidate."""
    a, b = pair(names, b_access=BINDABLE)
    foreign = PD(b.ctx)
    mw = MW(foreign, e.IBV_MW_TYPE_2)
    bind(b, mw, 0, PAGE, WRITE)
    b.complete(BIND_ERROR)
    a, b = pair(names, b_access=BINDABLE)
    mw = MW(b.pd, e.IBV_MW_TYPE_2)
    foreign = PD(b.ctx)
    mr = MR(foreign, PAGE, BINDABLE)
    bind(b, mw, 0, PAGE, WRITE, mr)
    b.complete(BIND_ERROR)
    a, b = pair(names, b_access=BINDABLE)
    local_inv(b, MW(PD(b.ctx), e.IBV_MW_TYPE_2).rkey)
    b.complete(BIND_ERROR)


def test_bad_binds(names):
    """Binding fails without the required access rights, out of bounds, and for a type 2 window that is bound."""
    def attempt(kind, *arguments, access=BINDABLE, prepare=None, status=BIND_ERROR):
        a, b = pair(names, b_access=access)
        mw = MW(b.pd, kind)
        if prepare:
            prepare(b, mw)
        (bind1 if kind == e.IBV_MW_TYPE_1 else bind)(b, mw, *arguments)
        b.complete(status)
        assert b.state() == (e.IBV_QPS_ERR if status else e.IBV_QPS_RTS)

    def bound(b, mw):
        bind(b, mw, 0, PAGE, WRITE)
        b.complete()

    for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
        attempt(kind, 0, PAGE, WRITE, status=0)
        attempt(kind, 0, PAGE, WRITE, access=LOCAL)
        attempt(kind, 0, PAGE, WRITE, access=e.IBV_ACCESS_MW_BIND)
        attempt(kind, 0, PAGE, READ, access=e.IBV_ACCESS_MW_BIND, status=0)
        attempt(kind, 0, 1 << 20, WRITE)
        attempt(kind, 0, (1 << 64) - 1, WRITE)
        attempt(kind, 65530, 7, WRITE)
    attempt(e.IBV_MW_TYPE_2, 0, 0, WRITE)
    attempt(e.IBV_MW_TYPE_2, 0, PAGE, WRITE, prepare=bound)


def test_unbound_window(names):
    """A window that was never bound permits no access. Invalidating it succeeds locally and fails for the peer."""
    a, b, mw = window(names, e.IBV_MW_TYPE_2)
    local_inv(b, mw.rkey)
    b.complete()
    write(a, b.mr.buf, mw.rkey, status=REFUSED)
    a, b, mw = window(names, e.IBV_MW_TYPE_2)
    b.recv(b.sge(64, key=b.mr.lkey))
    send_inv(a, mw.rkey)
    a.complete(REFUSED)
    b.complete(e.IBV_WC_REM_INV_REQ_ERR)
    a, b, mw = window(names, e.IBV_MW_TYPE_1)
    bind1(b, mw, 0, PAGE, WRITE)
    b.complete()
    local_inv(b, mw.rkey)
    b.complete(BIND_ERROR)


def test_send_with_invalidate(names):
    """The receiver's completion has the invalidated key, with which accesses fail afterwards."""
    a, b, mw = window(names, e.IBV_MW_TYPE_2)
    for length in (1, MTU, 3 * MTU + 1):
        key = bind(b, mw, 0, PAGE, WRITE)
        b.complete()
        write(a, b.mr.buf, key)
        b.recv(b.sge())
        data = pattern(length, length)
        a.mr.write(data, length)
        send_inv(a, key, length)
        a.complete()
        wc = b.complete()
        assert wc.wc_flags & e.IBV_WC_WITH_INV and wc.imm_data == key, f"{wc.wc_flags:#x} {wc.imm_data:#x}, key {key:#x}"
        assert wc.byte_len == length and b.mr.read(length, 0) == data
    write(a, b.mr.buf, key, status=REFUSED)


def test_bad_invalidate(names):
    """Keys that are not those of type 2 windows cannot be invalidated, neither locally nor by the peer."""
    a, b = pair(names)
    local_inv(b, b.mr.rkey)
    b.complete(BIND_ERROR)
    assert b.state() == e.IBV_QPS_ERR
    for key in (None, 0, 0xFFFFFFFF, 0x12345678):
        a, b = pair(names)
        spare = MR(b.pd, PAGE, ACCESS)
        b.recv(b.sge())
        send_inv(a, spare.rkey if key is None else key)
        a.complete(REFUSED)
        b.complete(e.IBV_WC_REM_INV_REQ_ERR)
        assert b.state() == e.IBV_QPS_ERR


def test_invalidate_in_order(names):
    """LOCAL_INV takes effect after earlier requests have completed."""
    a, b, mw = window(names, e.IBV_MW_TYPE_2, size=1 << 20)
    for n in range(10):
        key = bind(b, mw, 0, 1 << 20, WRITE | READ)
        b.complete()
        a.recv(a.sge())
        data = pattern(1 << 20, n)
        b.mr.write(data, 1 << 20)
        b.post(e.IBV_WR_SEND, b.sge(), wr_id=11)
        local_inv(b, key, flags=e.IBV_SEND_SIGNALED | (e.IBV_SEND_FENCE if n % 2 else 0), wr_id=12)
        b.recv(b.sge(64))
        ids = [b.complete().wr_id, b.complete().wr_id]
        assert ids == [11, 12], ids
        a.complete()
        assert a.mr.read(1 << 20, 0) == data
        a.post(e.IBV_WR_SEND, a.sge(64))
        a.complete()
        b.complete()
    write(a, b.mr.buf, key, status=REFUSED)


def refused_repeatedly(names, attempt, make_other):
    """A peer writes through a window of type 2, while another queue pair makes the same refused request again and again: `attempt` posts it to
    the end that `make_other` returns for the one with the window. Not one write is refused."""
    size = 1 << 16
    with writer(names, BINDABLE, size=size) as writes:
        b = writes.end
        mw = MW(b.pd, e.IBV_MW_TYPE_2)
        key = bind(b, mw, 0, size, WRITE)
        b.complete()
        writes.set_target(b.mr.buf, key)
        writes.goes_on()
        other = make_other(b)
        for _ in range(1000):
            other.connect(other, 100, 100)
            attempt(other, mw, key)
            other.complete(BIND_ERROR)
            other.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        writes.goes_on()
        print(f"{writes.count()} writes")


def test_refused_invalidations(names):
    """A queue pair that did not bind a window tries to invalidate it."""
    refused_repeatedly(names, lambda other, _, key: local_inv(other, key), End.with_another_qp)


def test_refused_binds(names):
    """Another queue pair tries to bind a window that is bound already."""
    refused_repeatedly(names, lambda other, mw, _: bind(other, mw, 0, PAGE, WRITE), End.with_another_qp)


def test_refused_binds_of_strangers(names):
    """A queue pair of another protection domain tries to bind the window to memory of its own."""
    refused_repeatedly(names, lambda other, mw, _: bind(other, mw, 0, PAGE, WRITE), lambda _: End(names[2], int(names[3]), access=BINDABLE))


def test_process_killed(names):
    """A process that exits with bound windows leaves no objects."""
    child = os.fork()
    if not child:
        a, b = pair(names)
        early = MW(b.pd, e.IBV_MW_TYPE_2)
        mr = MR(b.pd, PAGE, BINDABLE)
        late = MW(b.pd, e.IBV_MW_TYPE_1)
        bind(b, early, 0, PAGE, WRITE, mr)
        b.complete()
        bind1(b, late, 0, PAGE, WRITE, mr)
        b.complete()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def test_atomic_write(names):
    """ATOMIC WRITE of eight aligned bytes; it fails if the address is not aligned, or without the access right to write."""
    def put(addr, key, value, status=e.IBV_WC_SUCCESS):
        a.qp.wr_start()
        a.qp.wr_id = 4
        a.qp.wr_flags = e.IBV_SEND_SIGNALED
        a.qp.wr_atomic_write(key, addr, value)
        a.qp.wr_complete()
        return a.complete(status)

    a, b = extended(names, e.IBV_QP_EX_WITH_ATOMIC_WRITE)
    for n in range(10):
        value = pattern(8, n)
        assert put(b.mr.buf + 8 * n, b.mr.rkey, value).opcode == e.IBV_WC_ATOMIC_WRITE
        assert b.mr.read(8, 8 * n) == value
    put(b.mr.buf + 4, b.mr.rkey, bytes(8), e.IBV_WC_LOC_QP_OP_ERR)
    # Missing access rights of the queue pair make the request invalid (IBTA vol1 9.7.4.1.5).
    for key, access, rights, addr, status in ((None, ACCESS & ~WRITE, ACCESS, 0, REFUSED),
                                              (None, ACCESS, ACCESS & ~WRITE, 0, e.IBV_WC_REM_INV_REQ_ERR),
                                              (1, ACCESS, ACCESS, 0, REFUSED), (None, ACCESS, ACCESS, 65536, REFUSED)):
        a, b = extended(names, e.IBV_QP_EX_WITH_ATOMIC_WRITE, access, rights)
        b.mr.write(pattern(64), 64)
        put(b.mr.buf + addr, b.mr.rkey if key is None else key, bytes(8), status)
        assert b.mr.read(64, 0) == pattern(64)


def test_attributes(names):
    """The device reports memory windows and the memory management extensions."""
    ctx = End(names[0], int(names[1])).ctx
    attr = ctx.query_device()
    for cap in (e.IBV_DEVICE_MEM_WINDOW, e.IBV_DEVICE_MEM_WINDOW_TYPE_2B, e.IBV_DEVICE_MEM_MGT_EXTENSIONS):
        assert attr.device_cap_flags & cap, f"{cap:#x} is missing"
    assert attr.max_mw > 1000


def test_region_with_windows(names):
    """A region cannot be deregistered or changed while a window is bound to it."""
    for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
        a, b = pair(names)
        mr = MR(b.pd, PAGE, BINDABLE)
        mw = MW(b.pd, kind)
        key = (bind1 if kind == e.IBV_MW_TYPE_1 else bind)(b, mw, 0, PAGE, WRITE, mr)
        b.complete()
        try:
            mr.close()
            raise AssertionError("the region was deregistered with a window bound to it")
        except PyverbsError as error:
            assert "busy" in str(error).lower() or getattr(error, "error_code", 0) == 16, error
        assert rereg(mr, b, ACCESS_, access=BINDABLE | READ) == 16
        write(a, mr.buf, key)
        mw.close()
        write(a, mr.buf, key, status=REFUSED)
        mr.close()


def test_rereg_access(names):
    """REREG_MR changes the access rights; refused calls change nothing."""
    a, b = pair(names)
    mr = MR(b.pd, PAGE, LOCAL | READ)
    mr.write(pattern(64, 3), 64)
    assert read(a, mr.buf, mr.rkey) == pattern(64, 3)
    assert rereg(mr, b, ACCESS_, access=LOCAL | WRITE) == 0
    data = write(a, mr.buf, mr.rkey, seed=4)
    assert mr.read(64, 0) == data
    read(a, mr.buf, mr.rkey, status=REFUSED)
    # Refused calls change nothing.
    a, b = pair(names)
    mr = MR(b.pd, PAGE, LOCAL | READ)
    for flags, options in ((ACCESS_, dict(access=WRITE)), (ACCESS_, dict(access=ATOMIC)), (0, {}), (8, {}),
                           (TRANS, dict(addr=0x1000, length=PAGE)), (TRANS, dict(addr=mr.buf, length=0)),
                           (TRANS | ACCESS_, dict(addr=mr.buf, length=1 << 60, access=LOCAL)),
                           (TRANS, dict(addr=mr.buf, length=PAGE, iova=2**64 - PAGE)),
                           (TRANS, dict(addr=mr.buf, length=PAGE, iova=mr.buf + 1))):
        assert rereg(mr, b, flags, **options) != 0, (flags, options)
        mr.write(pattern(64, 5), 64)
        assert read(a, mr.buf, mr.rkey) == pattern(64, 5)


def test_rereg_read_only(names):
    """Adding write access to a region that was pinned for reading only: WRITEs go to the process's own pages."""
    a, b = pair(names)
    addr = page_buffer(4)
    # Untouched pages are the zero page when pinned for reading.
    mr = MR(b.pd, 4 * PAGE, READ, address=addr)
    assert read(a, addr, mr.rkey) == bytes(64)
    assert rereg(mr, b, ACCESS_, access=LOCAL | WRITE | READ) == 0
    data = write(a, addr + PAGE, mr.rkey, 5000)
    assert ctypes.string_at(addr + PAGE, 5000) == data
    assert ctypes.string_at(addr, PAGE) == bytes(PAGE)
    assert ctypes.string_at(page_buffer(1), PAGE) == bytes(PAGE), "the zero page was written"


def test_rereg_domain(names):
    """REREG_MR changes the protection domain."""
    a, b = pair(names)
    mr = MR(b.pd, PAGE, ACCESS)
    pd = PD(b.ctx)
    write(a, mr.buf, mr.rkey)
    assert rereg(mr, b, PD_, pd=pd) == 0
    write(a, mr.buf, mr.rkey, status=REFUSED)
    a, b = pair(names)
    foreign = PD(b.ctx)
    mr = MR(foreign, PAGE, ACCESS)
    assert rereg(mr, b, PD_, pd=b.pd) == 0
    write(a, mr.buf, mr.rkey)


def test_rereg_translation(names):
    """Changes memory, length and address, alone and together with the other attributes."""
    a, b = pair(names)
    first, second = page_buffer(1), page_buffer(3)
    mr = MR(b.pd, PAGE, ACCESS, address=first)
    write(a, first, mr.rkey)
    assert rereg(mr, b, TRANS, addr=second, length=3 * PAGE, iova=0x10000) == 0
    data = write(a, 0x10000, mr.rkey, 3 * PAGE, seed=7)
    assert ctypes.string_at(second, 3 * PAGE) == data
    # The L_Key is also changed.
    b.recv(SGE(0x10000 + 10, 100, mr.lkey))
    a.post(e.IBV_WR_SEND, a.sge(100))
    a.complete()
    b.complete()
    assert ctypes.string_at(second + 10, 100) == data[:100]
    pd = PD(b.ctx)
    other = MR(pd, PAGE, LOCAL, address=first)
    assert rereg(other, b, TRANS | PD_ | ACCESS_, pd=b.pd, addr=second + 1, length=100, iova=0x20001, access=ACCESS) == 0
    data = write(a, 0x20001, other.rkey, 100, seed=8)
    assert ctypes.string_at(second + 1, 100) == data
    write(a, 0x10000 + 3 * PAGE, mr.rkey, 1, REFUSED)


def test_rereg_mixes(names):
    """All combinations of translation, domain and access rights: only the selected ones change, and none after a failure."""
    a, b = pair(names)

    def probe(call, addr, mr, allowed):
        result = call(a, addr, mr.rkey, status=e.IBV_WC_SUCCESS if allowed else REFUSED)
        if not allowed:
            for end in (a, b):
                end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
            a.connect(b, 7, 8)
            b.connect(a, 8, 7)
        return result

    for flags in range(1, 8):
        old, new, foreign = page_buffer(1), page_buffer(1), PD(b.ctx)
        for addr, seed in ((old, 1), (new, 2)):
            ctypes.memmove(addr, pattern(PAGE, seed), PAGE)
        # In the protection domain of the queue pair, so that the region can be accessed after failed calls.
        mr = MR(b.pd, PAGE, LOCAL | READ, address=old)
        nobody = types.SimpleNamespace(handle=0x7FFFFFFF)
        for part, bad in ((TRANS, dict(addr=0x1000)), (TRANS, dict(length=1 << 60)), (PD_, dict(pd=nobody)), (ACCESS_, dict(access=WRITE)),
                          (ACCESS_, dict(access=ATOMIC))):
            if flags & part:
                values = dict(pd=foreign, addr=new, length=PAGE, access=LOCAL | READ | WRITE) | bad
                assert rereg(mr, b, flags, **values) != 0, (flags, bad)
                assert probe(read, old, mr, True) == pattern(64, 1), f"{flags} {bad}"
                probe(write, old, mr, False)
        mr.close()
        mr = MR(foreign if flags & PD_ else b.pd, PAGE, LOCAL | READ, address=old)
        assert rereg(mr, b, flags, pd=b.pd, addr=new, length=PAGE, iova=5 * PAGE, access=LOCAL | READ | WRITE) == 0, flags
        at, real = (5 * PAGE, new) if flags & TRANS else (old, old)
        assert probe(read, at, mr, True) == ctypes.string_at(real, 64), flags
        before = ctypes.string_at(old, PAGE), ctypes.string_at(new, PAGE)
        data = probe(write, at, mr, bool(flags & ACCESS_))
        if flags & ACCESS_:
            assert ctypes.string_at(real, 64) == data
        else:
            assert (ctypes.string_at(old, PAGE), ctypes.string_at(new, PAGE)) == before
        if flags & TRANS:
            probe(read, old, mr, False)


def test_rereg_under_traffic(names):
    """No access fails during REREG_MR that is permitted before and after it."""
    a, b = pair(names, size=1 << 16)
    with reregistered_repeatedly(b.mr, b, b.mr.buf, b.size, ACCESS):
        for n in range(60):
            data = write(a, b.mr.buf, b.mr.rkey, 1 << 16, seed=n)
            assert b.mr.read(1 << 16, 0) == data
            assert read(a, b.mr.buf, b.mr.rkey, 1 << 16) == data


def shared_page(file):
    """Returns the address of a page of a file that this process may read only."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    return libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)


@case(timeout=120, cpus=2)
def test_binds_while_reregistered(names):
    """A region is changed to memory that its process may only read, while a window is bound: the window grants no WRITE to that."""
    a, b = pair(names)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(PAGE))
        file.flush()
        own, foreign = page_buffer(1), shared_page(file)
        region = MR(b.pd, PAGE, BINDABLE, address=own)

        def change(stop):
            n = 0
            while not stop.is_set():
                addr, access = ((foreign, 0), (own, BINDABLE))[n % 2]
                n += not rereg(region, b, TRANS | ACCESS_, addr=addr, length=PAGE, iova=own, access=access)
            print(f"re-registered {n} times")
            assert n > 1, "the region was not changed and changed back"

        mw, bound = MW(b.pd, e.IBV_MW_TYPE_1), 0
        with in_thread(change):
            end = time.monotonic() + 20
            while time.monotonic() < end:
                key = bind1(b, mw, 0, PAGE, WRITE, region)
                if completion(b.cq, 20).status == e.IBV_WC_SUCCESS:
                    bound += 1
                    write(a, own, key, PAGE)
                    bind1(b, mw, 0, 0, 0, region)
                    b.complete()
                    continue
                for one in (a, b):
                    one.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
                a.connect(b, 1, 2)
                b.connect(a, 2, 1)
                # The library has changed the key of the window nevertheless.
                mw = MW(b.pd, e.IBV_MW_TYPE_1)
        file.seek(0)
        assert file.read() == bytes(PAGE), f"one of {bound} windows granted WRITEs to memory that was registered for reading"
        assert bound, "no window was bound"


def test_query(names):
    """Each call that registers a region enters keys, length and address in what QUERY_MR returns; it must not matter which."""
    a, b = pair(names)
    addr, fd = page_buffer(2), b.ctx.cmd_fd
    for register in uverbs.reg_mr, uverbs.reg_mr_by_method:
        for access in ACCESS, ACCESS | e.IBV_ACCESS_ON_DEMAND:
            iova = 0x7000_0000_0000 + 100
            handle, lkey, rkey = register(fd, b.pd.handle, addr + 100, 5000, iova, access)
            assert uverbs.query_mr(fd, handle) == (lkey, rkey, 5000, iova)
            assert rereg(types.SimpleNamespace(handle=handle, lkey=lkey, rkey=rkey), b, TRANS, addr=addr + 8, length=99) == 0
            assert uverbs.query_mr(fd, handle) == (lkey, rkey, 99, addr + 8)
            write(a, addr + 8, rkey, 99)
            uverbs.dereg_mr(fd, handle)
