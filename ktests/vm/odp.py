#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Memory that is got on demand, and what is done with it, through pyverbs: both queue pairs in one process.

odp.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE

Case names are the functions below. Data are put into memory and looked at through a file, so that nothing but the device brings pages in.
"""
import os
import random
import signal
import struct
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.qp import QP, QPAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SendWR
import pyverbs.enums as e

from lib import keys, uverbs
from lib.counters import counter
from lib.ends import ACCESS, End, pair, pattern
from lib.odp import DEMAND, PAGE, Area, Disturber, Side, check, fresh, read, send, sides, write

QKEY = 0x1234


def atomic(a, b, opcode, at, compare_add, swap=0):
    wr = SendWR(wr_id=5, num_sge=1, sg=[a.sge(8, at)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
    addr, rkey = b.remote(at)
    wr.set_wr_atomic(rkey, addr, compare_add, swap)
    a.end.qp.post_send(wr)
    a.end.complete()


def word(side, at):
    return struct.unpack("=Q", side.area.get(8, at))[0]


def capabilities(names):
    caps = End(names[0], int(names[1])).ctx.query_device_ex().odp_caps
    assert caps.general_caps == e.IBV_ODP_SUPPORT | e.IBV_ODP_SUPPORT_IMPLICIT, caps.general_caps
    send_recv = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV
    assert caps.ud_odp_caps == send_recv
    assert caps.uc_odp_caps == send_recv | e.IBV_ODP_SUPPORT_WRITE
    rdma = e.IBV_ODP_SUPPORT_WRITE | e.IBV_ODP_SUPPORT_READ | e.IBV_ODP_SUPPORT_ATOMIC
    assert caps.rc_odp_caps & (send_recv | rdma) == send_recv | rdma


def operations(names):
    """Each operation, with no page of either side there; waiting uses up no retries."""
    a, b = sides(names, retries=1, rnr_retries=0, timeout=20)
    send(a, b, 50000)
    write(a, b, 50000)
    write(a, b, 50000, imm=7)
    read(a, b, 50000)
    b.area.put(struct.pack("=Q", 40), 64)
    fresh(a, b)
    atomic(a, b, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 2)
    assert (word(a, 64), word(b, 64)) == (40, 42)
    fresh(a, b)
    atomic(a, b, e.IBV_WR_ATOMIC_CMP_AND_SWP, 64, 42, 99)
    assert (word(a, 64), word(b, 64)) == (42, 99)
    assert a.area.resident() == 1 and b.area.resident() == 1
    # The newer interface of the library: ATOMIC WRITE and FLUSH.
    ops = e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_FLUSH
    right = e.IBV_ACCESS_FLUSH_GLOBAL
    a, b = keys.extended(names, ops, ACCESS | right, ACCESS | right)
    side = Side(b, access=DEMAND | right)
    fresh(side)
    a.qp.wr_start()
    a.qp.wr_id = 3
    a.qp.wr_flags = e.IBV_SEND_SIGNALED
    a.qp.wr_atomic_write(side.mr.rkey, side.area.addr + 8, struct.pack("=Q", 0x0102030405060708))
    a.qp.wr_complete()
    a.complete()
    assert word(side, 8) == 0x0102030405060708
    fresh(side)
    a.qp.wr_start()
    a.qp.wr_id = 4
    a.qp.wr_flags = e.IBV_SEND_SIGNALED
    a.qp.wr_flush(side.mr.rkey, side.area.addr, 100, e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE)
    a.qp.wr_complete()
    a.complete()


def offsets(names):
    """Lengths and offsets of all kinds, over ends of pages and of the 2 MiB that are looked after together."""
    a, b = sides(names, size=6 << 20)
    edge = (-a.area.addr) % (2 << 20), (-b.area.addr) % (2 << 20)
    cases = [(1, 0), (1, PAGE - 1), (2, PAGE - 1), (5000, 1), (4096, 4095), (100, 2 * PAGE - 50), (70001, 333)]
    cases += [(3000, at - 1500) for at in edge if at > 1500] + [(1 << 20, edge[0] + 77), (3 << 20, 12345)]
    for n, (length, at) in enumerate(cases):
        for operation in (send, write, read):
            operation(a, b, length, at, seed=n)


def other_address(names):
    """A region whose addresses are not those of the process."""
    a, b = pair(names)
    area = Area(16 * PAGE)
    # The library's class cannot say it.
    iova = 0x70000010
    mr, _, rkey = uverbs.reg_mr(b.ctx.cmd_fd, b.pd.handle, area.addr + PAGE + 16, 10 * PAGE, iova, DEMAND)
    data = keys.write(a, iova + 123, rkey, 9000)
    assert area.get(9000, PAGE + 16 + 123) == data
    keys.write(a, iova + 10 * PAGE - 1, rkey, 2, e.IBV_WC_REM_ACCESS_ERR)
    uverbs.dereg_mr(b.ctx.cmd_fd, mr)


def uses_srq(names):
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
        fresh(side)
        a.post(e.IBV_WR_SEND, a.sge(10000))
        a.complete()
        assert b.complete().wr_id == n
        check(side, data, n * 12345)


def unreliable(names):
    """Nobody would send again what is lost."""
    a, b = sides(names, qp_type=e.IBV_QPT_UC)
    for n in range(20):
        data = pattern(30000, n)
        a.area.put(data)
        b.end.recv(b.sge(40000, 1000 * n))
        b.end.recv(b.sge(0))
        fresh(a, b)
        a.end.post(e.IBV_WR_SEND, a.sge(30000))
        a.end.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(30000), remote=b.remote(500000), imm=n)
        for _ in range(2):
            a.end.complete()
            b.end.complete()
        check(b, data, 1000 * n)
        check(b, data, 500000)


def too_many_wait(names):
    """More packets than can wait for memory: they are lost and counted, and what comes afterwards arrives."""
    a, b = sides(names, qp_type=e.IBV_QPT_UC)

    def dropped():
        return counter(names[2], "page_fault_dropped")

    before = dropped()
    for _ in range(30):
        b.area.drop()
        # 1024 packets, sent in one go.
        a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(1 << 20), remote=b.remote())
        a.end.complete()
        if dropped() > before:
            break
    print(f"{dropped() - before} dropped")
    assert dropped() > before
    # Those that wait are not done with yet, perhaps: what comes too early is lost as well.
    a.area.put(b"at last")
    deadline = time.monotonic() + 20
    while b.area.get(7, 999) != b"at last":
        assert time.monotonic() < deadline, "nothing arrives any more"
        a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(7), remote=b.remote(999))
        a.end.complete()
        time.sleep(0.05)


def datagrams(names):
    """All of them arrive, whole. One that another processor sends may overtake others, for nobody promises an order of datagrams."""
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
        fresh(a, b)
        for m in range(8):
            wr = SendWR(wr_id=m, num_sge=1, sg=[a.sge(1000, 5000 * m)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
            wr.set_wr_ud(ah, b.end.qp.qp_num, QKEY)
            a.end.qp.post_send(wr)
        for m in range(8):
            a.end.complete()
            assert b.end.complete().wr_id == m
        held = [b.area.get(1000, 5000 * m + 3640) for m in range(8)]
        sent = [pattern(1000, n + m) for m in range(8)]
        # A datagram that is there twice and memory that is not the right one look different.
        whose = [next((m for m in range(8) if data == sent[m]), "zeros" if not any(data) else "?") for data in held]
        assert set(whose) == set(range(8)), f"round {n}: the receives hold the datagrams {whose}"


def pages_go_under_traffic(names):
    a, b = sides(names, size=256 * 1024)
    length = 100000
    with Disturber(a.area, b.area):
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


def torn_down_under_traffic(names):
    """Regions, queue pairs and mappings go while memory is being got for them."""
    draw = random.Random(3)
    for n in range(12):
        a, b = sides(names, retries=1, timeout=14)
        with Disturber(a.area, b.area):
            for m in range(8):
                operation = [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ][m % 2]
                a.end.post(operation, a.sge(1 << 20), remote=b.remote())
            time.sleep(draw.random() * 0.02)
            for thing in draw.sample([a.mr, b.mr, a.end.qp, b.end.qp], 4):
                thing.close()


def process_killed(names):
    for n in range(6):
        child = os.fork()
        if not child:
            a, b = sides(names)
            with Disturber(a.area, b.area):
                while True:
                    a.end.post(e.IBV_WR_RDMA_WRITE, a.sge(1 << 20), remote=b.remote())
                    a.end.complete()
        time.sleep(0.4 + 0.1 * n)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


CASES = [capabilities, operations, offsets, other_address, uses_srq, unreliable, too_many_wait, datagrams, pages_go_under_traffic,
         torn_down_under_traffic, process_killed]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
