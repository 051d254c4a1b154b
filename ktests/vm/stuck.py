# SPDX-License-Identifier: GPL-2.0
"""Page faults that do not complete: how much memory the deferred packets of many queue pairs take, and what the queue pair does meanwhile."""
import contextlib
import ctypes
import os
import re
import select
import signal
import types

from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE
import pyverbs.enums as e

from lib.case import skip_with
from lib.counters import counter
from lib.ends import ACCESS, pair, pattern, soon
from lib.memory import provide, repeated_mapping
from lib.odp import ON_DEMAND, PAGE, PREFETCH, Area, advise, sides, write

DEFAULTS = dict(timeout=120, driver="rxe_rs", reason="rdma_rxe defers no packets")
PAIRS = 64
# 512 packets, twice the limit of one queue pair.
SIZE = 512 << 10
LIMIT = 16 << 20
# Caches of the allocator, and allocations of others meanwhile.
SLACK = 2 << 20
# Processes that together use up the page faults of all.
HOGS = 60


def allocated():
    """The number of bytes allocated by kmalloc(), without those charged to cgroups."""
    with open("/proc/slabinfo") as slabinfo:
        found = re.findall(r"^kmalloc-(?:rnd-\d+-)?\d+k?\s+(\d+)\s+\d+\s+(\d+)", slabinfo.read(), re.MULTILINE)
    assert found
    return sum(int(objects) * int(size) for objects, size in found)


def test_packets_wait_up_to_a_limit(names):
    """Deferred packets take at most 16 MiB of a device, whatever the number of queue pairs; further ones are dropped and counted."""
    skip_with("KASAN", "the allocator counts KASAN's red zones")
    area = Area(PAIRS * SIZE, anonymous=True)
    fd = provide(area)
    ends = [pair(names, size=4096, depth=4, qp_type=e.IBV_QPT_UC) for _ in range(PAIRS)]
    source, _ = others = pair(names, size=SIZE)
    from_mrs = [MR(a.pd, SIZE, ACCESS, address=source.mr.buf) for a, _ in ends]
    to_mrs = [MR(b.pd, SIZE, ON_DEMAND, address=area.addr + n * SIZE) for n, (_, b) in enumerate(ends)]
    # An RC queue pair loses nothing: its peer retransmits dropped packets.
    a, b = reliable = pair(names, size=SIZE, timeout=20, retries=7)
    reliable_mr = MR(b.pd, SIZE, ON_DEMAND, address=area.addr)

    def dropped():
        return counter(names[2], "page_fault_dropped")

    lost, before = dropped(), allocated()
    for n, (end, _) in enumerate(ends):
        end.post(e.IBV_WR_RDMA_WRITE, SGE(source.mr.buf, SIZE, from_mrs[n].lkey), remote=(area.addr + n * SIZE, to_mrs[n].rkey))
        end.complete()
    lost = dropped() - lost
    kept = allocated() - before
    print(f"{PAIRS} queue pairs: {kept >> 10} KiB deferred, {lost} packets dropped")
    assert LIMIT // 2 < kept < LIMIT + SLACK, kept
    assert PAIRS * 256 < lost < PAIRS * 512, lost
    reliable[0].mr.write(b"reliable", 8)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), remote=(area.addr + 100, reliable_mr.rkey))
    # Other connections are not affected.
    one, other = others
    one.mr.write(pattern(SIZE, 3), SIZE)
    one.post(e.IBV_WR_RDMA_WRITE, one.sge(), remote=(other.mr.buf, other.mr.rkey))
    one.complete()
    assert other.mr.read(SIZE, 0) == pattern(SIZE, 3)
    a.no_completion(0)
    # Closing the userfaultfd completes the page faults.
    os.close(fd)
    a.complete()
    # Each connection works. Deferred packets may still be in progress; packets that arrive too early are dropped as well.
    for n, (end, peer) in enumerate(ends):
        word = b"word %4d" % n
        end.mr.write(word, len(word))
        peer.recv(peer.sge(0))

        def arrived():
            end.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, end.sge(len(word)), remote=(area.addr + n * SIZE, to_mrs[n].rkey), imm=n)
            end.complete()
            return peer.cq.poll(1)[0]

        soon(arrived, 30, f"nothing arrived at queue pair {n}")
    soon(lambda: allocated() - before < SLACK, 30, "packets are still deferred")


def write_pages(names, addr, count, size):
    """WRITEs one page after the other to the first `count` pages of a region of `size` bytes."""
    a, b = pair(names)
    mr = MR(b.pd, size, ON_DEMAND, address=addr)
    for n in range(count):
        word = b"page %d" % n
        a.mr.write(word, len(word))
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(PAGE), remote=(addr + n * PAGE, mr.rkey))
        a.complete()
        assert ctypes.string_at(addr + n * PAGE, len(word)) == word


def test_readahead(names):
    """A sequence of accesses does not wait for pages behind them, which nothing accesses and user space does not provide."""
    area = Area(64 * PAGE, anonymous=True)
    fd = provide(types.SimpleNamespace(addr=area.addr + 8 * PAGE, size=56 * PAGE))
    write_pages(names, area.addr, 8, area.size)
    os.close(fd)


def test_readahead_of_a_file(names):
    """It does not allocate pages of a file that nothing accesses."""
    size = 64 * PAGE
    shared, file = repeated_mapping(size, size)
    write_pages(names, shared, 8, size)
    assert os.fstat(file).st_blocks * 512 == 8 * PAGE, os.fstat(file)


def test_reset(names):
    """A queue pair that is reset while a page fault does not complete: its next connection does not wait for that."""
    stuck, area = Area(PAGE, anonymous=True), Area(2 * PAGE, anonymous=True)
    fd = provide(stuck)
    a, b = pair(names, timeout=17)
    of_stuck = MR(b.pd, PAGE, ON_DEMAND, address=stuck.addr)
    mr = MR(b.pd, 2 * PAGE, ON_DEMAND, address=area.addr)
    for n in range(20):
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(stuck.addr, of_stuck.rkey))
        a.no_completion(0.05)
        for end in (a, b):
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        a.connect(b, 77 + n, 99)
        b.connect(a, 99, 77 + n)
        # Both pages cause a page fault each time.
        area.drop()
        word = b"word %4d" % n
        a.mr.write(word, len(word))
        for at in (0, PAGE):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(len(word)), remote=(area.addr + at, mr.rkey))
            a.complete()
            assert ctypes.string_at(area.addr + at, len(word)) == word
    os.close(fd)


def test_failed(names):
    """A queue pair that fails while a page fault does not complete, for which a response waits: its receive requests are flushed, also those
    that are posted later."""
    stuck = Area(PAGE, anonymous=True)
    fd = provide(stuck)
    a, b = pair(names, timeout=17)
    of_stuck = MR(b.pd, PAGE, ON_DEMAND, address=stuck.addr)
    for n in range(3):
        b.recv(b.sge(10), wr_id=n)
    b.post(e.IBV_WR_RDMA_READ, SGE(stuck.addr, 100, of_stuck.lkey), remote=(a.mr.buf, a.mr.rkey), wr_id=9)
    b.no_completion(0.5)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert sorted(b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id for _ in range(4)) == [0, 1, 2, 9]
    b.recv(b.sge(10), wr_id=5)
    assert b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 5
    os.close(fd)


def test_full_meanwhile(names):
    """A message waits for room in a completion queue while a page fault of another operation of its queue pair does not complete. It arrives
    when there is room."""
    stuck = Area(PAGE, anonymous=True)
    fd = provide(stuck)
    a, b = pair(names, b_cqe=14, timeout=20)
    of_stuck = MR(b.pd, PAGE, ON_DEMAND, address=stuck.addr)
    b.post(e.IBV_WR_RDMA_WRITE, SGE(stuck.addr, 100, of_stuck.lkey), remote=(a.mr.buf, a.mr.rkey), wr_id=100)
    a.no_completion(0.3)
    for n in range(20):
        b.recv(b.sge(10), wr_id=n)
        a.post(e.IBV_WR_SEND, a.sge(8), wr_id=n)
    for n in range(20):
        assert b.complete(seconds=3).wr_id == n
    os.close(fd)
    assert b.complete().wr_id == 100
    assert a.state() == b.state() == e.IBV_QPS_RTS


def hog(name, progress):
    """Has page faults that do not complete, as many as the driver runs; writes a byte before each."""
    end = types.SimpleNamespace(ctx=Context(name=name))
    end.pd = PD(end.ctx)
    area = Area(PAGE, anonymous=True)
    provide(area)
    mr = MR(end.pd, PAGE, ON_DEMAND, address=area.addr)
    while True:
        os.write(progress, b"x")
        # Where no more run in the background, the call itself waits.
        assert advise(end, PREFETCH, 0, (area.addr, PAGE, mr.lkey)) == 0


def test_always_one(names):
    """Many processes together use all page faults that they share: each further one still has its own."""
    os.close(provide(Area(PAGE, anonymous=True)))
    progress, to_write = os.pipe()
    hogs = []
    try:
        # The first one gets a ninth of the page faults, the second one a ninth of the rest, and so on.
        for _ in range(HOGS):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    hog(names[0], to_write)
                os._exit(1)
            hogs.append(child)
        faults = 0
        while select.select([progress], [], [], 5)[0]:
            faults += len(os.read(progress, 65536))
        print(f"{faults} page faults of {HOGS} processes")
        assert faults > 1024 + HOGS, faults
        write(*sides(names, timeout=20), 1000)
    finally:
        for child in hogs:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
