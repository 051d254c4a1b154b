#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""As keys.py: regions that are registered anew, and what keeps them from it.

keys_rereg.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import ctypes
import sys
import types

from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE
import pyverbs.enums as e

from lib.ends import ACCESS, pair, pattern
from lib.keys import (
    ACCESS_, ATOMIC, BINDABLE, LOCAL, PAGE, PD_, READ, REFUSED, TRANS, WRITE, bind, bind1, page_buffer, read, registered_again,
    rereg, write,
)


def region_with_windows(names):
    """A region cannot be deregistered or changed while a window is bound to it."""
    for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
        a, b = pair(names)
        mr = MR(b.pd, PAGE, BINDABLE)
        mw = MW(b.pd, kind)
        key = (bind1 if kind == e.IBV_MW_TYPE_1 else bind)(b, mw, 0, PAGE, WRITE, mr)
        b.complete()
        try:
            mr.close()
            raise AssertionError("deregistered under a window")
        except PyverbsError as error:
            assert "busy" in str(error).lower() or getattr(error, "error_code", 0) == 16, error
        assert rereg(mr, b, ACCESS_, access=BINDABLE | READ) == 16
        write(a, mr.buf, key)
        mw.close()
        write(a, mr.buf, key, status=REFUSED)
        mr.close()


def rereg_access(names):
    a, b = pair(names)
    mr = MR(b.pd, PAGE, LOCAL | READ)
    mr.write(pattern(64, 3), 64)
    assert read(a, mr.buf, mr.rkey) == pattern(64, 3)
    assert rereg(mr, b, ACCESS_, access=LOCAL | WRITE) == 0
    data = write(a, mr.buf, mr.rkey, seed=4)
    assert mr.read(64, 0) == data
    read(a, mr.buf, mr.rkey, status=REFUSED)
    # Refused changes leave it as it was.
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


def rereg_read_only(names):
    """Rights to write to a region that was pinned for reading only: writes arrive in the process's own pages."""
    a, b = pair(names)
    addr = page_buffer(4)
    # Pages never touched are the common page of zeros when pinned for reading.
    mr = MR(b.pd, 4 * PAGE, READ, address=addr)
    assert read(a, addr, mr.rkey) == bytes(64)
    assert rereg(mr, b, ACCESS_, access=LOCAL | WRITE | READ) == 0
    data = write(a, addr + PAGE, mr.rkey, 5000)
    assert ctypes.string_at(addr + PAGE, 5000) == data
    assert ctypes.string_at(addr, PAGE) == bytes(PAGE)
    assert ctypes.string_at(page_buffer(1), PAGE) == bytes(PAGE), "the common page of zeros was written"


def rereg_domain(names):
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


def rereg_translation(names):
    """Other memory, another length and another address, alone and with the rest."""
    a, b = pair(names)
    first, second = page_buffer(1), page_buffer(3)
    mr = MR(b.pd, PAGE, ACCESS, address=first)
    write(a, first, mr.rkey)
    assert rereg(mr, b, TRANS, addr=second, length=3 * PAGE, iova=0x10000) == 0
    data = write(a, 0x10000, mr.rkey, 3 * PAGE, seed=7)
    assert ctypes.string_at(second, 3 * PAGE) == data
    # As a local key too.
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


def rereg_mixes(names):
    """Translation, domain and rights, each mix of them: what is named changes, what is not stays; after a failure all of it is as before."""
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
        # In the domain of the queue pair, so that it can be seen what failures leave.
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
        assert rereg(mr, b, flags, pd=b.pd, addr=new, length=PAGE, iova=0x5000, access=LOCAL | READ | WRITE) == 0, flags
        at, real = (0x5000, new) if flags & TRANS else (old, old)
        assert probe(read, at, mr, True) == ctypes.string_at(real, 64), flags
        before = ctypes.string_at(old, PAGE), ctypes.string_at(new, PAGE)
        data = probe(write, at, mr, bool(flags & ACCESS_))
        if flags & ACCESS_:
            assert ctypes.string_at(real, 64) == data
        else:
            assert (ctypes.string_at(old, PAGE), ctypes.string_at(new, PAGE)) == before
        if flags & TRANS:
            probe(read, old, mr, False)


def rereg_under_traffic(names):
    """Registering anew, again and again, refuses no access that is allowed before and after."""
    a, b = pair(names, size=1 << 16)
    with registered_again(b.mr, b, b.mr.buf, b.size, ACCESS):
        for n in range(60):
            data = write(a, b.mr.buf, b.mr.rkey, 1 << 16, seed=n)
            assert b.mr.read(1 << 16, 0) == data
            assert read(a, b.mr.buf, b.mr.rkey, 1 << 16) == data


CASES = [region_with_windows, rereg_access, rereg_read_only, rereg_domain, rereg_translation, rereg_mixes, rereg_under_traffic]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
