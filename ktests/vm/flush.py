# SPDX-License-Identifier: GPL-2.0
"""FLUSH to global visibility and to persistence, through pyverbs: both queue pairs in one process.

In all tests b has the memory and a accesses it. Persistent memory is /dev/dax0.0.
"""
import ctypes
import errno
import os
import subprocess
import time

from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
import pyverbs.enums as e

from lib import host, odp
from lib.case import skip
from lib.counters import counter
from lib.ends import ACCESS, End, pair, pattern, soon
from lib.keys import ACCESS_, PAGE, REFUSED, TRANS, extended, page_buffer, read, rereg
from lib.segments import Refused, add, pinned, remove
from lib.traced import Traced

DEFAULTS = dict(driver="rxe_rs", reason="tests what the specification requires")
DAX = "/dev/dax0.0"
GLOBAL, PERSISTENT = e.IBV_ACCESS_FLUSH_GLOBAL, e.IBV_ACCESS_FLUSH_PERSISTENT
PERSISTENT_ACCESS = ACCESS | PERSISTENT
WHOLE, RANGE = e.IBV_FLUSH_MR, e.IBV_FLUSH_RANGE
OPS = e.IBV_QP_EX_WITH_FLUSH | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_SEND
DEVICE_PERSISTENT = 1 << 39
MIB = 1 << 20
# The function that writes caches back, with address and size.
WRITTEN_BACK = dict(written_back="arch_wb_cache_pmem addr=%di size=%si")
# The largest number of bytes that are written back at once.
PART = 65536
SHARED, FIXED, ANONYMOUS_PRIVATE = 0x01, 0x10, 0x22

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


def persistent_memory():
    """Configures the machine's persistent memory as /dev/dax0.0, like ndctl. That of a host is not touched (selftest.sh)."""
    if host.setting("RXE_PERSISTENT_MEMORY") == "no":
        skip("it would be overwritten")
    if os.path.exists(DAX):
        return
    with open("/proc/iomem", encoding="ascii") as file:
        if "Persistent Memory" not in file.read():
            skip("this machine has no persistent memory")
    if subprocess.run(["modprobe", "-a", "nd_e820", "dax_pmem", "device_dax"]).returncode:
        skip("this kernel does not provide persistent memory to programs")
    with open("/proc/sys/kernel/random/uuid", encoding="ascii") as file:
        uuid = file.read()
    devices = "/sys/bus/nd/devices"
    for path, text in ((f"{devices}/dax0.0/uuid", uuid), (f"{devices}/dax0.0/mode", "pmem"), (f"{devices}/dax0.0/align", "4096"),
                       (f"{devices}/dax0.0/namespace", "namespace0.0"), ("/sys/bus/nd/drivers/dax_pmem/bind", "dax0.0")):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    soon(lambda: os.path.exists(DAX))


def dax_size():
    persistent_memory()
    return int(open(f"/sys/bus/dax/devices/{os.path.basename(DAX)}/size").read())


def map_dax(length, offset=0, at=None):
    """Maps a part of the persistent memory, at any address or replacing the mapping at `at`; returns the address."""
    persistent_memory()
    fd = os.open(DAX, os.O_RDWR)
    addr = libc.mmap(at, length, 3, SHARED | (FIXED if at else 0), fd, offset)
    assert addr != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    os.close(fd)
    return addr


def get(addr, length):
    return ctypes.string_at(addr, length)


def request(a, wr_id):
    a.qp.wr_id = wr_id
    a.qp.wr_flags = e.IBV_SEND_SIGNALED


def write_wr(a, key, addr, length, offset=0, wr_id=5):
    request(a, wr_id)
    a.qp.wr_rdma_write(key, addr)
    a.qp.wr_set_sge(a.sge(length, offset))


def flush_wr(a, key, addr, length, kind, level, wr_id=4):
    request(a, wr_id)
    a.qp.wr_flush(key, addr, length, kind, level)


def flush(a, key, addr, length, kind, level, status=e.IBV_WC_SUCCESS):
    a.qp.wr_start()
    flush_wr(a, key, addr, length, kind, level)
    a.qp.wr_complete()
    return a.complete(status)


def flush_persistent(a, mr, addr, length, level=RANGE, status=e.IBV_WC_SUCCESS):
    return flush(a, mr.rkey, addr, length, e.IBV_FLUSH_PERSISTENT, level, status)


def write_and_flush(a, key, addr, length, kind, level, seed):
    """Posts a WRITE and a FLUSH together; the memory has the data when the FLUSH completes."""
    data = pattern(length, seed)
    a.mr.write(data, length)
    a.qp.wr_start()
    write_wr(a, key, addr, length)
    flush_wr(a, key, addr, length, kind, level)
    a.qp.wr_complete()
    assert a.complete().wr_id == 5
    wc = a.complete()
    assert wc.wr_id == 4 and wc.opcode == e.IBV_WC_FLUSH, wc
    assert get(addr, length) == data


def has_capability(ctx):
    return bool(ctx.query_device_ex().device_cap_flags_ex & DEVICE_PERSISTENT)


def not_registered(pd, length, access, addr, number=errno.EINVAL):
    before = pinned()
    try:
        MR(pd, length, access, address=addr)
        raise AssertionError(f"registered {length} bytes for {access:#x}")
    except PyverbsRDMAError as error:
        assert error.error_code == number, error
    assert pinned() == before, "pages are still pinned"


def refusal(kind, allowed):
    """The status of a FLUSH that the queue pair, with the access rights `allowed`, or the region does not permit. If the queue pair does
    not, it is an invalid request (IBTA vol1 9.7.4.1.5)."""
    needed = {e.IBV_FLUSH_GLOBAL: GLOBAL, e.IBV_FLUSH_PERSISTENT: PERSISTENT}
    missing = any(kind & placement and not allowed & right for placement, right in needed.items())
    return e.IBV_WC_REM_INV_REQ_ERR if missing else REFUSED


def test_global_visibility(names):
    """FLUSH to global visibility of a range and of the whole region, which requires access rights of region and queue pair."""
    a, b = extended(names, OPS, ACCESS | GLOBAL, ACCESS | GLOBAL)
    for level in (RANGE, WHOLE, RANGE):
        write_and_flush(a, b.mr.rkey, b.mr.buf, 5000, e.IBV_FLUSH_GLOBAL, level, level)
    flush(a, b.mr.rkey, b.mr.buf + 60000, 5537, e.IBV_FLUSH_GLOBAL, RANGE, REFUSED)
    for access, rights, kind in ((ACCESS, ACCESS | GLOBAL, e.IBV_FLUSH_GLOBAL), (ACCESS | GLOBAL, ACCESS, e.IBV_FLUSH_GLOBAL),
                                 (ACCESS | GLOBAL, ACCESS | GLOBAL | PERSISTENT, e.IBV_FLUSH_PERSISTENT)):
        for level in (RANGE, WHOLE):
            a, b = extended(names, OPS, access, rights)
            flush(a, b.mr.rkey, b.mr.buf, 100, kind, level, refusal(kind, rights))


def test_ordinary_memory(names):
    """Volatile memory cannot be registered with FLUSH_PERSISTENT by any call, and nothing is left pinned."""
    _, b = pair(names)
    addr = page_buffer(16)
    # Without the device capability, the core refuses it.
    number = errno.EINVAL if has_capability(b.ctx) else errno.EOPNOTSUPP
    for access in (PERSISTENT, PERSISTENT_ACCESS, PERSISTENT_ACCESS | GLOBAL, PERSISTENT_ACCESS | e.IBV_ACCESS_ON_DEMAND):
        not_registered(b.pd, 16 * PAGE, access, addr, number)
    mr = MR(b.pd, 16 * PAGE, ACCESS, address=addr)
    before = pinned()
    assert rereg(mr, b, ACCESS_, access=PERSISTENT_ACCESS) == number
    assert rereg(mr, b, ACCESS_ | TRANS, addr=page_buffer(2), length=2 * PAGE, access=PERSISTENT_ACCESS) == number
    assert pinned() == before
    mr.close()


def test_capability(names):
    """On a machine with persistent memory, the devices report the capability."""
    persistent_memory()
    for name in (names[0], names[2]):
        assert has_capability(End(name, 1).ctx), f"{name} does not report the capability"


def dax_pair(names, size=8 * PAGE, access=PERSISTENT_ACCESS, rights=PERSISTENT_ACCESS | GLOBAL, offset=0):
    """Two ends, and a region of b that is persistent memory."""
    a, b = extended(names, OPS, ACCESS, rights)
    addr = map_dax(size, offset)
    return a, b, MR(b.pd, size, access, address=addr), addr


def test_persistent(names):
    """FLUSH to persistence of a range and of the whole region, alone and with global visibility: the memory has the data."""
    a, b, mr, addr = dax_pair(names, access=PERSISTENT_ACCESS | GLOBAL)
    both = e.IBV_FLUSH_PERSISTENT | e.IBV_FLUSH_GLOBAL
    for n, (kind, level) in enumerate((k, l) for k in (e.IBV_FLUSH_PERSISTENT, both) for l in (RANGE, WHOLE)):
        write_and_flush(a, mr.rkey, addr + 77 * n, 3 * PAGE + n, kind, level, n)
        assert get(map_dax(8 * PAGE), 8 * PAGE) == get(addr, 8 * PAGE)
    flush_persistent(a, mr, addr + 8 * PAGE - 1, 1)
    flush_persistent(a, mr, addr, 0)
    mr.close()


def test_rights(names):
    """Each access right is checked separately, for region and queue pair, and the range must be in the region."""
    everything = PERSISTENT_ACCESS | GLOBAL
    for access, allowed, kind in ((ACCESS, everything, e.IBV_FLUSH_PERSISTENT), (ACCESS | GLOBAL, everything, e.IBV_FLUSH_PERSISTENT),
                                  (PERSISTENT_ACCESS, everything, e.IBV_FLUSH_GLOBAL), (everything, ACCESS | GLOBAL, e.IBV_FLUSH_PERSISTENT),
                                  (PERSISTENT_ACCESS, everything, e.IBV_FLUSH_PERSISTENT | e.IBV_FLUSH_GLOBAL)):
        for level in (RANGE, WHOLE):
            a, b, mr, addr = dax_pair(names, access=access, rights=allowed)
            flush(a, mr.rkey, addr, 100, kind, level, refusal(kind, allowed))
            assert b.state() == e.IBV_QPS_ERR
            mr.close()
    for at, length in ((-1, 2), (8 * PAGE - 1, 2), (8 * PAGE, 1), (0, 8 * PAGE + 1), (0, 1 << 30)):
        a, b, mr, addr = dax_pair(names)
        flush_persistent(a, mr, addr + at, length, status=REFUSED)
        mr.close()


def test_written_back(names):
    """Exactly the requested range is written back before the response, in bounded parts."""
    size = dax_size()
    a, b, mr, addr = dax_pair(names, size=size)
    with Traced(**WRITTEN_BACK) as traced:
        flush_persistent(a, mr, addr, size, WHOLE)
        calls = traced.calls()
        base = calls[0][0]
        at = base
        for start, length in calls:
            assert start == at and 0 < length <= PART, f"{length} bytes at {start:#x} after {at:#x}"
            at = start + length
        assert at == base + size
        print(f"{size} bytes in {len(calls)} parts")
        for offset, length in ((0, 1), (100, 5000), (PAGE - 1, 2), (3, PART), (12345, 3 * PART + 1), (size - 9, 9)):
            flush_persistent(a, mr, addr + offset, length)
            calls = traced.calls()
            assert calls[0][0] == base + offset and sum(n for _, n in calls) == length, (offset, length, calls)
            assert len(calls) == -(-length // PART), calls
        flush(a, mr.rkey, addr, 0, e.IBV_FLUSH_PERSISTENT, RANGE)
        assert not traced.calls(), "a FLUSH of length 0 wrote back something"
    mr.close()


def test_mixed_memory(names):
    """Registration fails if a single page of the region is volatile memory."""
    _, b = pair(names)
    for ordinary in (0, 3, 7):
        addr = map_dax(8 * PAGE)
        libc.mmap(addr + ordinary * PAGE, PAGE, 3, ANONYMOUS_PRIVATE | FIXED, -1, 0)
        not_registered(b.pd, 8 * PAGE, PERSISTENT_ACCESS, addr)
    # Persistent memory may be mapped in any order of pages.
    addr = page_buffer(8)
    for n, page in enumerate((3, 2, 7, 9, 10, 11, 1, 0)):
        map_dax(PAGE, page * PAGE, addr + n * PAGE)
    a, b = extended(names, OPS, ACCESS, PERSISTENT_ACCESS | GLOBAL)
    mr = MR(b.pd, 8 * PAGE, PERSISTENT_ACCESS, address=addr)
    write_and_flush(a, mr.rkey, addr + 50, 6 * PAGE, e.IBV_FLUSH_PERSISTENT, RANGE, 9)
    flush_persistent(a, mr, addr, 0, WHOLE)
    mr.close()


def test_on_demand(names):
    """On-demand paging of device DAX, which is memory of a device: registration succeeds, prefetching and accesses fail."""
    a, b = pair(names)
    addr = map_dax(PAGE)
    ctypes.memset(addr, 7, PAGE)
    mr = MR(b.pd, PAGE, odp.ON_DEMAND, address=addr)
    assert odp.advise(b, odp.PREFETCH, odp.FLUSH, (addr, PAGE, mr.lkey)) == errno.EFAULT
    read(a, addr, mr.rkey, 100, REFUSED)
    mr.close()


def test_rereg(names):
    """REREG_MR checks access rights and memory like registration; refused calls change nothing."""
    a, b, mr, addr = dax_pair(names, access=ACCESS)
    ordinary, other = page_buffer(8), map_dax(8 * PAGE, 8 * PAGE)
    assert rereg(mr, b, ACCESS_, access=PERSISTENT_ACCESS) == 0
    write_and_flush(a, mr.rkey, addr, 5000, e.IBV_FLUSH_PERSISTENT, RANGE, 1)
    before = pinned()
    assert rereg(mr, b, TRANS, addr=ordinary, length=8 * PAGE, iova=addr) == errno.EINVAL
    assert rereg(mr, b, TRANS | ACCESS_, addr=ordinary, length=8 * PAGE, iova=addr, access=PERSISTENT_ACCESS) == errno.EINVAL
    assert pinned() == before
    write_and_flush(a, mr.rkey, addr, 5000, e.IBV_FLUSH_PERSISTENT, WHOLE, 2)
    assert rereg(mr, b, TRANS, addr=other, length=8 * PAGE) == 0
    write_and_flush(a, mr.rkey, other, 5000, e.IBV_FLUSH_PERSISTENT, RANGE, 3)
    # Without FLUSH_PERSISTENT the memory may be volatile, and then the access right cannot be added.
    assert rereg(mr, b, TRANS | ACCESS_, addr=ordinary, length=8 * PAGE, access=ACCESS) == 0
    assert rereg(mr, b, ACCESS_, access=PERSISTENT_ACCESS) == errno.EINVAL
    assert rereg(mr, b, TRANS | ACCESS_, addr=addr, length=8 * PAGE, access=PERSISTENT_ACCESS) == 0
    flush_persistent(a, mr, addr, 100)
    assert rereg(mr, b, ACCESS_, access=ACCESS) == 0
    flush_persistent(a, mr, addr, 100, status=REFUSED)
    mr.close()


def test_segments(names):
    """Added segments must be persistent, too. A flushed range must not contain holes; a FLUSH of the whole region skips them."""
    size = 8 * PAGE
    a, b, mr, addr = dax_pair(names)
    before = pinned()
    try:
        add(b, mr, page_buffer(8), size, addr + size)
        raise AssertionError("volatile memory was added")
    except Refused as refused:
        assert refused.number == errno.EINVAL, refused
    assert pinned() == before
    more = map_dax(2 * size, 2 * size)
    add(b, mr, more, size, addr + size)
    far = add(b, mr, more + size, size, addr + 4 * size)
    with Traced(**WRITTEN_BACK) as traced:
        flush_persistent(a, mr, addr + 100, 2 * size - 100)
        assert sum(n for _, n in traced.calls()) == 2 * size - 100
        flush_persistent(a, mr, addr + 4 * size, size)
        traced.calls()
        flush_persistent(a, mr, addr, 0, WHOLE)
        calls = traced.calls()
        assert len({start for start, _ in calls}) == len(calls) and sum(n for _, n in calls) == 3 * size, calls
        remove(b, mr, handle=far["handle"])
        flush_persistent(a, mr, addr, 0, WHOLE)
        assert sum(n for _, n in traced.calls()) == 2 * size
        flush_persistent(a, mr, addr + size, size + 1, status=REFUSED)
        assert not traced.calls()
    mr.close()
    # A region without FLUSH_PERSISTENT may have segments of both kinds.
    _, b, mr, addr = dax_pair(names, access=ACCESS)
    add(b, mr, page_buffer(8), size, addr + size)
    assert rereg(mr, b, ACCESS_, access=PERSISTENT_ACCESS) == errno.EINVAL
    mr.close()


def test_pipelined(names):
    """WRITE, FLUSH of the whole region, ATOMIC WRITE and SEND, posted together, repeatedly: executed in order, nothing is lost."""
    size = dax_size()
    a, b, mr, addr = dax_pair(names, size=size)
    lost = ("local_ack_timeout_err", "retry_exceeded_err", "out_of_seq_request", "page_fault_dropped")
    before = [counter(name, what) for name in (names[0], names[2]) for what in lost]
    for n in range(5):
        data = pattern(9000, n)
        a.mr.write(data, 9000)
        b.recv(b.sge(100))
        a.qp.wr_start()
        write_wr(a, mr.rkey, addr + 50 * n, 9000, wr_id=1)
        flush_wr(a, mr.rkey, addr, size, e.IBV_FLUSH_PERSISTENT, WHOLE, wr_id=2)
        request(a, 3)
        a.qp.wr_atomic_write(mr.rkey, addr + size - 8, bytes([n + 1] * 8))
        request(a, 4)
        a.qp.wr_send()
        a.qp.wr_set_sge(a.sge(100))
        a.qp.wr_complete()
        assert [a.complete().wr_id for _ in range(4)] == [1, 2, 3, 4]
        b.complete()
        assert b.mr.read(100, 0) == data[:100] and get(addr + 50 * n, 9000) == data
        assert get(addr + size - 8, 8) == bytes([n + 1] * 8)
    after = [counter(name, what) for name in (names[0], names[2]) for what in lost]
    assert after == before, (before, after)
    mr.close()


def test_others_continue(names):
    """While a queue pair flushes all of the memory repeatedly, requests of another one are executed between the parts."""
    size, total, words = dax_size(), 40, 0
    a, b, mr, addr = dax_pair(names, size=size)
    other_a, other_b, word, at = dax_pair(names, size=PAGE)
    with Traced(**WRITTEN_BACK) as traced:
        posted = done = 0
        while done < total:
            while posted < total and posted - done < 12:
                a.qp.wr_start()
                flush_wr(a, mr.rkey, addr, size, e.IBV_FLUSH_PERSISTENT, WHOLE)
                a.qp.wr_complete()
                posted += 1
            write_and_flush(other_a, word.rkey, at, 8, e.IBV_FLUSH_PERSISTENT, RANGE, words)
            words += 1
            count, wcs = a.cq.poll(12)
            assert all(wc.status == e.IBV_WC_SUCCESS for wc in wcs[:count])
            done += count
        calls = traced.calls()
    base = calls[0][0] if calls[0][1] != 8 else calls[1][0]
    between = sum(1 for before, call in zip(calls, calls[1:])
                  if call[1] == 8 and before[1] != 8 and before[0] + before[1] != base + size)
    print(f"{words} words during {done} flushes, {between} between parts of one of them")
    assert between > 0 and sum(n for _, n in calls) == 8 * words + size * total
    word.close()
    mr.close()


def test_torn_down(names):
    """During a FLUSH the queue pair is destroyed, reset or fails, or the region is deregistered."""
    size = dax_size()
    for n in range(12):
        a, b, mr, addr = dax_pair(names, size=size)
        a.qp.wr_start()
        for _ in range(4):
            flush_wr(a, mr.rkey, addr, size, e.IBV_FLUSH_PERSISTENT, WHOLE)
        a.qp.wr_complete()
        if n % 4 == 0:
            b.qp.close()
        elif n % 4 == 1:
            b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        elif n % 4 == 2:
            b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        else:
            # The first ones succeed, the next one is refused, and the rest is flushed.
            mr.close()
            statuses = []
            deadline = time.monotonic() + 20
            while len(statuses) < 4:
                assert time.monotonic() < deadline, statuses
                count, wcs = a.cq.poll(4)
                statuses += [wc.status for wc in wcs[:count]]
            good = statuses.count(e.IBV_WC_SUCCESS)
            print(f"{good} of them succeeded")
            assert statuses == [e.IBV_WC_SUCCESS] * good + ([REFUSED] + [e.IBV_WC_WR_FLUSH_ERR] * 4)[:4 - good], statuses
        a.qp.close()
        mr.close()
    a, b, mr, addr = dax_pair(names)
    flush_persistent(a, mr, addr, 100)
    mr.close()
