# SPDX-License-Identifier: GPL-2.0
"""On-demand paging through pyverbs: both queue pairs in one process.

The tests access data through a file, so that only the device faults pages in.
"""
import ctypes
import errno
import mmap
import os
import random
import select
import signal
import struct
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from lib import host, keys, segments, uverbs
from lib.counters import counter
from lib.debug_messages import refusal_logged
from lib.ends import ACCESS, End, pair, pattern, soon
from lib.keys import ACCESS_, PD_, TRANS
from lib.mcast import MULTICAST_QPN, attach, detach, gid_of
from lib.memory import provide
from lib.odp import (
    ON_DEMAND, FLUSH, INVOKE_WRITE, NO_FAULT, PAGE, PREFETCH, PREFETCH_WRITE, USER_END, Area, Side, advise, check, drop_pages, dropping_pages, invoke,
    libc, ok, read, send, sides, write,
)

DEFAULTS = dict(driver="rxe_rs", reason="tests what the interface specifies")
QKEY = 0x1234


def atomic(a, b, opcode, at, compare_add, swap=0):
    wr = SendWR(wr_id=5, num_sge=1, sg=[a.sge(8, at)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
    addr, rkey = b.remote(at)
    wr.set_wr_atomic(rkey, addr, compare_add, swap)
    a.end.qp.post_send(wr)
    a.end.complete()


def word(side, at):
    return struct.unpack("=Q", side.area.get(8, at))[0]


def test_capabilities(names):
    """The device reports the capabilities of on-demand paging for each service type."""
    caps = End(names[0], int(names[1])).ctx.query_device_ex().odp_caps
    assert caps.general_caps == e.IBV_ODP_SUPPORT | e.IBV_ODP_SUPPORT_IMPLICIT, caps.general_caps
    send_recv = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV
    assert caps.ud_odp_caps == send_recv
    assert caps.uc_odp_caps == send_recv | e.IBV_ODP_SUPPORT_WRITE
    rdma = e.IBV_ODP_SUPPORT_WRITE | e.IBV_ODP_SUPPORT_READ | e.IBV_ODP_SUPPORT_ATOMIC
    assert caps.rc_odp_caps & (send_recv | rdma) == send_recv | rdma


def test_operations(names):
    """Each operation with no page present on either side; waiting for page faults uses up no retries."""
    a, b = sides(names, retries=1, rnr_retries=0, timeout=20)
    send(a, b, 50000)
    write(a, b, 50000)
    write(a, b, 50000, imm=7)
    read(a, b, 50000)
    b.area.put(struct.pack("=Q", 40), 64)
    drop_pages(a, b)
    atomic(a, b, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 2)
    assert (word(a, 64), word(b, 64)) == (40, 42)
    drop_pages(a, b)
    atomic(a, b, e.IBV_WR_ATOMIC_CMP_AND_SWP, 64, 42, 99)
    assert (word(a, 64), word(b, 64)) == (42, 99)
    assert a.area.resident() == 1 and b.area.resident() == 1
    # ATOMIC WRITE and FLUSH, by the extended interface of the library.
    ops = e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_FLUSH
    right = e.IBV_ACCESS_FLUSH_GLOBAL
    a, b = keys.extended(names, ops, ACCESS | right, ACCESS | right)
    side = Side(b, access=ON_DEMAND | right)
    drop_pages(side)
    a.qp.wr_start()
    a.qp.wr_id = 3
    a.qp.wr_flags = e.IBV_SEND_SIGNALED
    a.qp.wr_atomic_write(side.mr.rkey, side.area.addr + 8, struct.pack("=Q", 0x0102030405060708))
    a.qp.wr_complete()
    a.complete()
    assert word(side, 8) == 0x0102030405060708
    drop_pages(side)
    a.qp.wr_start()
    a.qp.wr_id = 4
    a.qp.wr_flags = e.IBV_SEND_SIGNALED
    a.qp.wr_flush(side.mr.rkey, side.area.addr, 100, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE)
    a.qp.wr_complete()
    a.complete()


def test_offsets(names):
    """Different lengths and offsets, across the ends of pages and of chunks (2 MiB)."""
    a, b = sides(names, size=6 << 20)
    edge = (-a.area.addr) % (2 << 20), (-b.area.addr) % (2 << 20)
    cases = [(1, 0), (1, PAGE - 1), (2, PAGE - 1), (5000, 1), (4096, 4095), (100, 2 * PAGE - 50), (70001, 333)]
    cases += [(3000, at - 1500) for at in edge if at > 1500] + [(1 << 20, edge[0] + 77), (3 << 20, 12345)]
    for n, (length, at) in enumerate(cases):
        for operation in (send, write, read):
            operation(a, b, length, at, seed=n)


def test_other_address(names):
    """A region whose IOVA is not the address in the process."""
    a, b = pair(names)
    area = Area(16 * PAGE)
    # pyverbs cannot register such a region.
    iova = 0x70000010
    mr, _, rkey = uverbs.reg_mr(b.ctx.cmd_fd, b.pd.handle, area.addr + PAGE + 16, 10 * PAGE, iova, ON_DEMAND)
    data = keys.write(a, iova + 123, rkey, 9000)
    assert area.get(9000, PAGE + 16 + 123) == data
    keys.write(a, iova + 10 * PAGE - 1, rkey, 2, e.IBV_WC_REM_ACCESS_ERR)
    uverbs.dereg_mr(b.ctx.cmd_fd, mr)


def test_shared_receives(names):
    """Page faults in receives of an SRQ."""
    a, b = pair(names)
    srq = SRQ(b.pd, SrqInitAttr(SrqAttr(max_wr=16, max_sge=1)))
    b.init.srq = srq
    b.qp.close()
    b.qp = QP(b.pd, b.init)
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.connect(b, 5, 6)
    b.connect(a, 6, 5)
    side = Side(b)
    for n in range(8):
        srq.post_recv(RecvWR(num_sge=1, sg=[side.sge(10000, n * 12345)], wr_id=n))
    for n in range(8):
        data = pattern(10000, n)
        a.mr.write(data, 10000)
        drop_pages(side)
        a.post(e.IBV_WR_SEND, a.sge(10000))
        a.complete()
        assert b.complete().wr_id == n
        check(side, data, n * 12345)


def test_unreliable(names):
    """UC has no retransmission: packets that cause page faults must be deferred, not dropped."""
    a, b = sides(names, qp_type=e.IBV_QPT_UC)
    # An overtaking packet would end the message.
    with host.one_cpu("b"):
        for n in range(20):
            data = pattern(30000, n)
            a.area.put(data)
            b.end.recv(b.sge(40000, 1000 * n))
            b.end.recv(b.sge(0))
            drop_pages(a, b)
            a.end.post(e.IBV_WR_SEND, a.sge(30000))
            a.end.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(30000), remote=b.remote(500000), imm=n)
            for _ in range(2):
                a.end.complete()
                b.end.complete()
            check(b, data, 1000 * n)
            check(b, data, 500000)


def test_gaps_between_deferred(names):
    """Packets are lost that follow one with a page fault: those behind the gaps are kept when the page is there, and not sent again."""
    size = 64 << 10
    a, b = pair(names, size=size, timeout=18)
    data = pattern(size, os.getpid())
    a.mr.write(data, size)

    def kept():
        return counter(names[2], "kept_out_of_seq")

    start = kept()
    netdev = host.netdev("a")
    host.shell('modprobe sch_netem; on a ethtool -K "$1" tx-udp-segmentation off', netdev)
    try:
        # In most rounds the requester has sent enough behind the first lost packet, and knows that it may.
        for _ in range(8):
            area = Area(size, anonymous=True)
            fd = provide(area)
            mr = MR(b.pd, size, ON_DEMAND, address=area.addr)
            # Netem drops packets, not buffers of many.
            host.shell('on a tc qdisc add dev "$1" root netem loss 20%', netdev)
            # The requester learns from lost packets that the responder keeps others.
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
            a.complete()
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(area.addr, mr.rkey))
            assert select.select([fd], [], [], 10)[0], "no page fault"
            time.sleep(0.1)
            before = kept()
            host.shell('on a tc qdisc del dev "$1" root', netdev)
            os.close(fd)
            a.complete()
            assert ctypes.string_at(area.addr, size) == data, "wrong data was received"
            time.sleep(0.1)
            print(f"{kept() - before} packets were kept of those that had been deferred")
            if kept() - before >= 10:
                break
        else:
            assert before > start, "no packets were kept at all"
            raise AssertionError("deferred packets behind a gap were dropped")
    finally:
        host.shell('on a tc qdisc del dev "$1" root 2>/dev/null || true; on a ethtool -K "$1" tx-udp-segmentation on', netdev)


def test_too_many_deferred(names):
    """More packets than can be deferred: further ones are dropped and counted, and later messages arrive."""
    a, b = sides(names, qp_type=e.IBV_QPT_UC)

    def dropped():
        return counter(names[2], "page_fault_dropped")

    before = dropped()
    for _ in range(30):
        b.area.drop()
        # 1024 packets in one message.
        a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(1 << 20), remote=b.remote())
        a.end.complete()
        if dropped() > before:
            break
    print(f"{dropped() - before} dropped")
    assert dropped() > before
    # Deferred packets may still be in progress; packets that arrive too early are dropped as well.
    a.area.put(b"at last")

    def arrived():
        a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(7), remote=b.remote(999))
        a.end.complete()
        return b.area.get(7, 999) == b"at last"

    soon(arrived, 20, "no message arrived")


def test_first_page_of_many(names):
    """A page fault of the first packet of a message defers the packets behind it, more than are passed on at once when it has ended."""
    size = 8 << 20
    a, b = pair(names, size=size)
    to = Side(b, size)
    for n in range(5):
        data = pattern(size, n)
        a.mr.write(data, size)
        to.area.put(data[::-1])
        assert advise(b, PREFETCH_WRITE, FLUSH, (to.area.addr, size, to.mr.lkey)) == 0
        to.area.drop(0, PAGE)
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=to.remote())
        a.complete()
        assert to.area.get(size) == data, n


def test_datagrams(names):
    """All datagrams arrive and are complete. Their order is not guaranteed: one that another processor sends may overtake others."""
    ends = [End(names[n], int(names[n + 1]), qp_type=e.IBV_QPT_UD) for n in (0, 2)]
    a, b = (Side(end) for end in ends)
    for end in ends:
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        end.qp.to_rts(attr)
    route = GlobalRoute(dgid=b.end.ctx.query_gid(1, b.end.gid_index), sgid_index=a.end.gid_index, hop_limit=64)
    ah = AH(a.end.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    for n in range(5):
        for m in range(8):
            a.area.put(pattern(1000, n + m), 5000 * m)
            b.end.recv(b.sge(1040, 5000 * m + 3600), wr_id=m)
        drop_pages(a, b)
        for m in range(8):
            wr = SendWR(wr_id=m, num_sge=1, sg=[a.sge(1000, 5000 * m)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
            wr.set_wr_ud(ah, b.end.qp.qp_num, QKEY)
            a.end.qp.post_send(wr)
        for m in range(8):
            a.end.complete()
            assert b.end.complete().wr_id == m
        held = [b.area.get(1000, 5000 * m + 3640) for m in range(8)]
        sent = [pattern(1000, n + m) for m in range(8)]
        # Distinguishes duplicated datagrams from wrong memory.
        whose = [next((m for m in range(8) if data == sent[m]), "zeros" if not any(data) else "?") for data in held]
        assert set(whose) == set(range(8)), f"round {n}: the receives hold the datagrams {whose}"


def test_datagrams_to_group(names):
    """A datagram to a multicast group arrives at a page that is not present, at a queue pair that nothing else makes send or receive."""
    a, b = (Side(End(names[n], int(names[n + 1]), qp_type=e.IBV_QPT_UD)) for n in (0, 2))
    for side in (a, b):
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        side.end.qp.to_rts(attr)
    group = gid_of("239.77.1.3")
    attach(b.end.qp, group)
    route = GlobalRoute(dgid=group, sgid_index=a.end.gid_index, hop_limit=4)
    ah = AH(a.end.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    for n in range(3):
        data = pattern(1000, n)
        a.area.put(data)
        b.end.recv(b.sge(1040, 3600))
        drop_pages(b)
        wr = SendWR(num_sge=1, sg=[a.sge(1000)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(ah, MULTICAST_QPN, QKEY)
        a.end.qp.post_send(wr)
        a.end.complete()
        b.end.complete()
        check(b, data, 3640)
    detach(b.end.qp, group)


def test_pages_dropped_under_traffic(names):
    """All operations transfer the right data while pages are dropped continually."""
    a, b = sides(names, size=256 * 1024)
    length = 100000
    with dropping_pages(a.area, b.area):
        for n in range(60):
            at = 1111 * (n % 100)
            data = pattern(length, n)
            a.area.put(data, at)
            b.end.recv(b.sge(length, at))
            a.end.post([e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND][n % 2], a.sge(length, at), remote=b.remote(at), imm=n)
            a.end.complete()
            b.end.complete()
            check(b, data, at)
            data = pattern(length, n + 100)
            b.area.put(data, at)
            a.end.post(e.IBV_WR_RDMA_READ, a.sge(length, at), remote=b.remote(at))
            a.end.complete()
            check(a, data, at)
            atomic(a, b, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 250000, 1)
            assert word(b, 250000) == n + 1


def test_torn_down_under_traffic(names):
    """Regions and queue pairs are destroyed while page faults for them are in progress."""
    rng = random.Random(3)
    for n in range(12):
        a, b = sides(names, retries=1, timeout=14)
        with dropping_pages(a.area, b.area):
            for m in range(8):
                operation = [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ][m % 2]
                a.end.post(operation, a.sge(1 << 20), remote=b.remote())
            time.sleep(rng.random() * 0.02)
            for thing in rng.sample([a.mr, b.mr, a.end.qp, b.end.qp], 4):
                thing.close()


def test_process_killed(names):
    """A process is killed while page faults are in progress: nothing is left of it."""
    for n in range(6):
        child = os.fork()
        if not child:
            a, b = sides(names)
            with dropping_pages(a.area, b.area):
                while True:
                    a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(1 << 20), remote=b.remote())
                    a.end.complete()
        time.sleep(0.4 + 0.1 * n)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the process has failed"


FREE, PAGEOUT = 8, 21


def test_fork(names):
    """A forked child keeps the data from before the fork; later WRITEs are visible in the parent only."""
    a, b = pair(names)
    side = Side(b, 16 * PAGE, anonymous=True)
    old = pattern(10000, 1)
    ctypes.memmove(side.area.addr, old, len(old))
    for n in range(10):
        keys.write(a, side.area.addr, side.mr.rkey, 64, seed=n)
        ctypes.memmove(side.area.addr, old, len(old))
        go, went = os.pipe()
        child = os.fork()
        if not child:
            os.read(go, 1)
            os._exit(0 if ctypes.string_at(side.area.addr, len(old)) == old else 1)
        new = keys.write(a, side.area.addr, side.mr.rkey, 10000, seed=n + 2)
        os.write(went, b"!")
        _, status = os.waitpid(child, 0)
        assert status == 0, "the child has seen data that was written after the fork"
        assert ctypes.string_at(side.area.addr, len(new)) == new, "the process does not see what was written"
        # A write by the processor may replace the page that the device has mapped.
        child = os.fork()
        if not child:
            os.read(go, 1)
            os._exit(0)
        mine = pattern(5000, n + 7)
        ctypes.memmove(side.area.addr + 100, mine, len(mine))
        assert keys.read(a, side.area.addr + 100, side.mr.rkey, len(mine)) == mine, "an old page was read"
        os.write(went, b"!")
        os.waitpid(child, 0)
        os.close(go), os.close(went)


def test_not_mapped(names):
    """Accesses to unmapped addresses fail like accesses outside the region, and other accesses do not."""
    for operation in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
        a, b = sides(names)
        write(a, b, 10000)
        ok(libc.munmap(b.area.addr + 4 * PAGE, PAGE))
        a.end.post(operation, a.sge(100), remote=b.remote(4 * PAGE))
        a.end.complete(e.IBV_WC_REM_ACCESS_ERR)
    for kind in ("send", "read"):
        a, b = sides(names)
        ok(libc.munmap(a.area.addr + 4 * PAGE, PAGE))
        b.end.recv(b.sge(100))
        if kind == "send":
            a.end.post(e.IBV_WR_SEND, a.sge(100, 5 * PAGE - 50))
        else:
            a.end.post(e.IBV_WR_RDMA_READ, a.sge(100, 5 * PAGE - 50), remote=b.remote())
        a.end.complete(e.IBV_WC_LOC_PROT_ERR)
    a, b = sides(names)
    ok(libc.munmap(b.area.addr, PAGE))
    b.end.recv(b.sge(100))
    a.end.post(e.IBV_WR_SEND, a.sge(100))
    b.end.complete(e.IBV_WC_LOC_PROT_ERR)
    a.end.complete(e.IBV_WC_REM_OP_ERR)


def test_read_only(names):
    """WRITEs to read-only mappings and regions fail; a WRITE to a page that was read before replaces the zero page."""
    a, b = sides(names)
    data = pattern(5000, 4)
    b.area.put(data)
    ok(libc.mprotect(b.area.addr, b.area.size, mmap.PROT_READ))
    drop_pages(a, b)
    a.end.post(e.IBV_WR_RDMA_READ, a.sge(5000), remote=b.remote())
    a.end.complete()
    check(a, data)
    a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(100, 9000), remote=b.remote())
    a.end.complete(e.IBV_WC_REM_ACCESS_ERR)
    check(b, data)
    # A page that is read before it is written, and a region without write access.
    a, b = pair(names)
    side = Side(b, anonymous=True)
    assert keys.read(a, *side.remote(), 64) == bytes(64)
    new = keys.write(a, *side.remote(), 64)
    assert ctypes.string_at(side.area.addr, 64) == new
    assert ctypes.string_at(Area(PAGE, anonymous=True).addr, PAGE) == bytes(PAGE), "the zero page was written"
    side = Side(b, access=e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_ON_DEMAND)
    side.area.put(data)
    assert keys.read(a, *side.remote(), 5000) == data
    keys.write(a, *side.remote(), 64, e.IBV_WC_REM_ACCESS_ERR)


def test_remapped(names):
    """Other memory is mapped at the same addresses: accesses go to the new memory."""
    a, b = sides(names)
    write(a, b, 50000)
    old = b.area
    before = old.get(old.size)
    b.area = Area(old.size, at=old.addr)
    for operation in (send, write, read):
        operation(a, b, 50000)
    assert old.get(old.size) == before, "memory was written that is no longer mapped"


def test_madv_free(names):
    """Pages marked with MADV_FREE are not freed after a peer has written to them."""
    a, b = pair(names)
    side = Side(b, 64 * PAGE, anonymous=True)
    for n in range(3):
        for page in range(64):
            ctypes.memset(side.area.addr + page * PAGE, n + 1, PAGE)
        ok(libc.madvise(side.area.addr, side.area.size, FREE))
        data = keys.write(a, *side.remote(), 60000, seed=n)
        with open("/proc/sys/vm/drop_caches", "w") as drop:
            drop.write("3\n")
        try:
            # Reclaims the pages that may be reclaimed.
            libc.madvise(side.area.addr, side.area.size, PAGEOUT)
        except OSError:
            pass
        assert ctypes.string_at(side.area.addr, 60000) == data, "written data are lost"


def test_large_and_empty(names):
    """A region of 64 GiB, of which only some pages are accessed."""
    a, b = pair(names)
    side = Side(b, 64 << 30, anonymous=True)
    begin = time.monotonic()
    rng = random.Random(2)
    for n in range(50):
        at = rng.randrange(side.area.size - 10000)
        data = keys.write(a, *side.remote(at), 9000, seed=n)
        assert ctypes.string_at(side.area.addr + at, 9000) == data
        assert keys.read(a, *side.remote(at), 9000) == data
    side.mr.close()
    print(f"{time.monotonic() - begin:.3f} s")


def test_implicit(names):
    """An implicit region covers the whole address space, also later mappings."""
    a, b = sides(names, implicit=True)
    for operation in (send, write, read):
        operation(a, b, 70000, 4321)
    for n in range(3):
        for side in (a, b):
            side.area.close()
            side.area = Area((n + 1) << 20)
        write(a, b, 30000, 99, seed=n)
    # Many different addresses, one after the other.
    for n in range(40):
        area = Area(PAGE, anonymous=True, at=0x100000000000 + n * (32 << 20))
        data = keys.write(a.end, area.addr, b.mr.rkey, 64, seed=n)
        assert ctypes.string_at(area.addr, 64) == data
        area.unmap()
    keys.write(a.end, USER_END, b.mr.rkey, 64, e.IBV_WC_REM_ACCESS_ERR)


def rereg(side, flags, **options):
    return keys.rereg(side.mr, side.end, flags, **options)


def rereg_by_ioctl(side, access):
    """Changes access rights by the ioctl, which the core also permits to other processes."""
    response = ctypes.create_string_buffer(8)
    body = struct.pack("=QIIQQQII", 0, side.mr.handle, ACCESS_, 0, 0, 0, 0, access)
    body = ctypes.create_string_buffer(body, len(body))
    return invoke(side.end, uverbs.DEVICE, INVOKE_WRITE, (0, len(body), ctypes.addressof(body)),
                  (1, 8, ctypes.addressof(response)), (2, 8, uverbs.REREG_MR))


def test_rereg_translation(names):
    """Other memory for the same keys, with no page present; the old memory is inaccessible."""
    a, b = sides(names)
    other = Area(8 * PAGE)
    assert rereg(b, TRANS, addr=other.addr + PAGE, length=5 * PAGE, iova=0x10000) == 0
    drop_pages(b)
    data = keys.write(a.end, 0x10000 + 77, b.mr.rkey, 4 * PAGE)
    assert other.get(4 * PAGE, PAGE + 77) == data
    assert keys.read(a.end, 0x10000 + 77, b.mr.rkey, 4 * PAGE) == data
    # The L_Key is also changed.
    other.drop()
    b.end.recv(SGE(0x10000, 100, b.mr.lkey))
    a.end.post(e.IBV_WR_SEND, a.end.sge(100))
    a.end.complete()
    b.end.complete()
    assert other.get(100, PAGE) == data[:100]
    assert b.area.resident() == 0
    keys.write(a.end, 0x10000 + 5 * PAGE - 1, b.mr.rkey, 2, e.IBV_WC_REM_ACCESS_ERR)
    a, b = sides(names)
    assert rereg(b, TRANS, addr=other.addr, length=PAGE) == 0
    keys.write(a.end, *b.remote(), 10, e.IBV_WC_REM_ACCESS_ERR)
    # The whole address space.
    a, b = sides(names)
    assert rereg(b, TRANS, length=(1 << 64) - 1) == 0
    other.drop()
    for area in other, b.area:
        data = keys.write(a.end, area.addr, b.mr.rkey, PAGE)
        assert area.get(PAGE) == data


def test_rereg_rights(names):
    """REREG_MR changes the access rights; only the owner of the memory can add write access."""
    reading = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_ON_DEMAND
    a, b = pair(names)
    side = Side(b, anonymous=True, access=reading)
    # An untouched page is the zero page after a page fault for reading.
    assert keys.read(a, *side.remote(), 64) == bytes(64)
    assert rereg(side, ACCESS_, access=ON_DEMAND) == 0
    data = keys.write(a, *side.remote(), 5000)
    assert ctypes.string_at(side.area.addr, 5000) == data
    assert ctypes.string_at(keys.page_buffer(1), PAGE) == bytes(PAGE), "the zero page was written"
    assert rereg(side, ACCESS_, access=reading) == 0
    assert keys.read(a, *side.remote(), 5000) == data
    keys.write(a, *side.remote(), 10, e.IBV_WC_REM_ACCESS_ERR)
    # Only the process that owns the memory can add write access.
    a, b = pair(names)
    side = Side(b, access=reading)
    child = os.fork()
    if not child:
        os._exit(rereg_by_ioctl(side, ON_DEMAND))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EINVAL
    assert rereg_by_ioctl(side, ON_DEMAND) == 0
    keys.write(a, *side.remote(), 10)


def test_rereg_domain(names):
    """REREG_MR changes the protection domain; a refused access faults no page in."""
    a, b = sides(names)
    other = PD(b.end.ctx)
    keys.write(a.end, *b.remote(), 10)
    assert rereg(b, PD_, pd=other) == 0
    assert rereg(b, PD_ | ACCESS_ | TRANS, pd=b.end.pd, access=ON_DEMAND, addr=b.area.addr, length=b.area.size) == 0
    write(a, b, 9000)
    assert rereg(b, PD_, pd=other) == 0
    drop_pages(b)
    keys.write(a.end, *b.remote(), 10, e.IBV_WC_REM_ACCESS_ERR)
    assert b.area.resident() == 0
    b.mr.close()


def test_rereg_kind(names):
    """REREG_MR changes between pinned memory and on-demand paging only together with the translation."""
    a, b = pair(names)
    side = Side(b, access=ACCESS)
    assert side.area.resident() == side.area.size // PAGE
    assert rereg(side, ACCESS_, access=ON_DEMAND) == errno.EOPNOTSUPP
    where = dict(addr=side.area.addr, length=side.area.size)
    assert rereg(side, ACCESS_ | TRANS, access=ON_DEMAND, **where) == 0
    drop_pages(side)
    data = keys.write(a, *side.remote(), 3 * PAGE)
    check(side, data)
    assert 3 <= side.area.resident() < side.area.size // PAGE
    assert rereg(side, ACCESS_, access=ACCESS) == errno.EOPNOTSUPP
    assert rereg(side, ACCESS_ | TRANS, access=ACCESS, **where) == 0
    assert side.area.resident() == side.area.size // PAGE
    assert keys.read(a, *side.remote(), 3 * PAGE) == data


def test_rereg_under_traffic(names):
    """No access fails during REREG_MR, while pages are dropped, that is permitted before and after it."""
    a, b = sides(names)
    with keys.reregistered_repeatedly(b.mr, b.end, b.area.addr, b.area.size, ON_DEMAND):
        for n in range(15):
            for operation in (write, read):
                operation(a, b, 70000, 4321, seed=n)


def test_bad_registrations(names):
    """Invalid address ranges and flags are refused, and so are calls that the kind of region does not support."""
    _, b = pair(names)
    for start, length in ((0, 0), (USER_END, PAGE), (USER_END - PAGE, 2 * PAGE), (2**64 - PAGE, PAGE)):
        try:
            MR(b.pd, length, ON_DEMAND, address=start).close()
            raise AssertionError(f"registered {length:#x} bytes at {start:#x}")
        except PyverbsError:
            pass
    try:
        MR(b.pd, implicit=True, access=ON_DEMAND | e.IBV_ACCESS_HUGETLB).close()
        raise AssertionError("registered all memory as huge pages")
    except PyverbsError:
        pass
    # Changing between the two requires the translation; segments require pinned memory.
    side = Side(b)
    assert keys.rereg(side.mr, b, ACCESS_, access=ACCESS) == errno.EOPNOTSUPP
    segments.refused(errno.EOPNOTSUPP, segments.add, b, side.mr, side.area.addr, PAGE, side.area.addr + side.area.size)
    segments.refused(errno.EOPNOTSUPP, segments.remove, b, side.mr, segments.FIRST)
    assert keys.rereg(b.mr, b, ACCESS_, access=ON_DEMAND) == errno.EOPNOTSUPP


def test_windows(names):
    """Accesses through windows of both types cause page faults."""
    a, b = pair(names, b_access=keys.BINDABLE)
    side = Side(b, access=ON_DEMAND | e.IBV_ACCESS_MW_BIND)
    for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
        mw = MW(b.pd, kind)
        bound = MWBindInfo(side.mr, side.area.addr + 100, 3 * PAGE, keys.WRITE | keys.READ)
        if kind == e.IBV_MW_TYPE_1:
            b.qp.bind_mw(mw, MWBind(bound, e.IBV_SEND_SIGNALED))
            key = mw.rkey
        else:
            wr = SendWR(wr_id=7, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
            wr.set_bind_wr(mw, bound)
            key = wr.rkey
            b.qp.post_send(wr)
        b.complete()
        drop_pages(side)
        data = keys.write(a, side.area.addr + 100, key, 3 * PAGE, seed=kind)
        check(side, data, 100)
        drop_pages(side)
        assert keys.read(a, side.area.addr + 100, key, 3 * PAGE) == data
        mw.close()


def test_prefetch(names):
    """ADVISE_MR faults pages in, immediately or in the background, or only maps present ones."""
    for everything in (False, True):
        a, b = sides(names, implicit=everything)
        start, key = b.area.addr, b.mr.lkey
        drop_pages(b)
        # No page is present, and none is faulted in.
        assert advise(b.end, NO_FAULT, FLUSH, (start, 10 * PAGE, key)) == 0
        assert b.area.resident() == 0
        assert advise(b.end, PREFETCH, FLUSH, (start, 10 * PAGE, key)) == 0
        assert b.area.resident() >= 10
        drop_pages(b)
        assert advise(b.end, PREFETCH_WRITE, FLUSH, (start + 100, 2 * PAGE, key), (start + 20 * PAGE, 1, key)) == 0
        assert 4 <= b.area.resident() <= 40
        drop_pages(b)
        assert advise(b.end, PREFETCH_WRITE, 0, (start, b.area.size, key)) == 0
        soon(lambda: b.area.resident() == b.area.size // PAGE, 10, "the pages were not faulted in in the background")
        for _ in range(300):
            assert advise(b.end, PREFETCH, 0, (start, b.area.size, key)) == 0
        for operation in (send, write, read):
            operation(a, b, 70000, 4321)
        if not everything:
            b.mr.close()


def test_bad_prefetch(names):
    """ADVISE_MR with invalid ranges, keys or flags fails with the right error."""
    _, b = sides(names)
    start, key, size = b.area.addr, b.mr.lkey, b.area.size
    end = b.end
    whole = (start, PAGE, key)
    mw = MW(end.pd, e.IBV_MW_TYPE_2)
    read_only = MR(end.pd, size, e.IBV_ACCESS_ON_DEMAND, address=start)
    for flags in (0, FLUSH):
        for expected, advice, ranges in ((errno.EFAULT, PREFETCH, [(start, size + 1, key)]),
                                         (errno.EFAULT, PREFETCH, [(start - 1, 2, key)]),
                                         (errno.EFAULT, PREFETCH, [whole, (2**64 - 1, 2, key)]),
                                         (errno.EFAULT, PREFETCH, [(start, PAGE, key ^ 0x55)]),
                                         (errno.EFAULT, PREFETCH, [(start, PAGE, key ^ 0x5500)]),
                                         (errno.EFAULT, PREFETCH, [(end.mr.buf, 100, end.mr.lkey)]),
                                         (errno.EFAULT, PREFETCH_WRITE, [(start, PAGE, read_only.lkey)]),
                                         (errno.EINVAL, PREFETCH, [(start, PAGE, mw.rkey)])):
            with refusal_logged(expected, "advise_mr"):
                got = advise(end, advice, flags, *ranges)
            assert got == expected, (got, expected, advice, flags, ranges)
        with refusal_logged(errno.EFAULT, "advise_mr"):
            assert advise(end, PREFETCH, flags, whole, pd=PD(end.ctx)) == errno.EFAULT
        with refusal_logged(errno.EOPNOTSUPP, "advise_mr"):
            assert advise(end, 3, flags, whole) == errno.EOPNOTSUPP
    assert advise(end, PREFETCH, 2, whole) == errno.EINVAL
    ok(libc.munmap(start, PAGE))
    with refusal_logged(errno.EFAULT, "advise_mr"):
        assert advise(end, PREFETCH, FLUSH, whole) == errno.EFAULT
    assert advise(end, PREFETCH, 0, whole) == 0
