# SPDX-License-Identifier: GPL-2.0
"""Completion statuses and data of single work requests, through pyverbs: both queue pairs in one process, on one or two devices of one
machine.
"""
import os
import time

from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE
import pyverbs.enums as e

from lib.case import case
from lib.ends import ACCESS, MTU, completion, notified, pair, pattern
from lib.memory import repeated_mapping

DEFAULTS = dict(timeout=30)


def test_send_sizes(names):
    a, b = pair(names, size=1 << 20)
    for n, length in enumerate((0, 1, 2, 3, 4, 5, 255, MTU - 1, MTU, MTU + 1, 3 * MTU, 65537, 1 << 20)):
        data = pattern(length, n)
        if length:
            a.mr.write(data, length)
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, *([a.sge(length)] if length else []))
        a.complete()
        wc = b.complete()
        assert wc.byte_len == length, f"{wc.byte_len} bytes received of {length}"
        assert not length or b.mr.read(length, 0) == data, f"wrong data at length {length}"


def test_send_with_immediate(names):
    a, b = pair(names)
    b.recv(b.sge())
    a.mr.write(b"imm!", 4)
    a.post(e.IBV_WR_SEND_WITH_IMM, a.sge(4), imm=0x12345678)
    a.complete()
    wc = b.complete()
    assert wc.wc_flags & e.IBV_WC_WITH_IMM and wc.imm_data == 0x12345678, hex(wc.imm_data)


def test_write_sizes(names):
    a, b = pair(names, size=1 << 20)
    for n, length in enumerate((0, 1, 3, MTU - 1, MTU, MTU + 1, 65536, 1 << 20)):
        data = pattern(length, n)
        if length:
            a.mr.write(data, length)
        a.post(e.IBV_WR_RDMA_WRITE, *([a.sge(length)] if length else []), remote=(b.mr.buf, b.mr.rkey))
        a.complete()
        assert not length or b.mr.read(length, 0) == data, f"wrong data at length {length}"
    b.no_completion(0.1)


def test_write_with_immediate(names):
    a, b = pair(names)
    for length in (0, 1, MTU, 10000):
        b.recv()
        data = pattern(length, 9)
        if length:
            a.mr.write(data, length)
        a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, *([a.sge(length)] if length else []), remote=(b.mr.buf, b.mr.rkey), imm=7 + length)
        a.complete()
        wc = b.complete()
        assert wc.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM and wc.imm_data == 7 + length and wc.byte_len == length
        assert not length or b.mr.read(length, 0) == data


def test_read_sizes(names):
    a, b = pair(names, size=1 << 20)
    for n, length in enumerate((0, 1, 3, MTU - 1, MTU, MTU + 1, 65536, 1 << 20)):
        data = pattern(length, n)
        if length:
            b.mr.write(data, length)
        a.post(e.IBV_WR_RDMA_READ, *([a.sge(length)] if length else []), remote=(b.mr.buf, b.mr.rkey))
        a.complete()
        assert not length or a.mr.read(length, 0) == data, f"wrong data at length {length}"


def test_scatter_gather(names):
    a, b = pair(names)
    data = pattern(5000, 3)
    a.mr.write(data, 5000)
    b.recv(b.sge(1, 10), b.sge(1999, 100), b.sge(3000, 4096), b.sge(100, 9000))
    a.post(e.IBV_WR_SEND, a.sge(3, 0), a.sge(1500, 3), a.sge(0, 0), a.sge(3497, 1503))
    a.complete()
    assert b.complete().byte_len == 5000
    got = b.mr.read(1, 10) + b.mr.read(1999, 100) + b.mr.read(3000, 4096)
    assert got == data, "scattered data differs"


def test_inline_data(names):
    a, b = pair(names, inline=64)
    for length in (1, 17, 64):
        data = pattern(length, length)
        a.mr.write(data, length)
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, a.sge(length), flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE)
        a.mr.write(bytes(length), length)
        a.complete()
        b.complete()
        assert b.mr.read(length, 0) == data


@case(driver="rxe_rs", reason="rdma_rxe reports another status")
def test_receive_too_small(names):
    """A message that is longer than the receive fails on both sides."""
    a, b = pair(names)
    b.recv(b.sge(100))
    a.post(e.IBV_WR_SEND, a.sge(101))
    b.complete(e.IBV_WC_LOC_LEN_ERR)
    a.complete(e.IBV_WC_REM_INV_REQ_ERR)
    assert a.state() == e.IBV_QPS_ERR


@case(driver="rxe_rs", reason="rdma_rxe reports another status")
def test_receive_too_small_many_packets(names):
    """The same for a message of several packets."""
    a, b = pair(names)
    b.recv(b.sge(2 * MTU))
    a.post(e.IBV_WR_SEND, a.sge(5 * MTU))
    b.complete(e.IBV_WC_LOC_LEN_ERR)
    a.complete(e.IBV_WC_REM_INV_REQ_ERR)


def test_bad_rkey_write(names):
    a, b = pair(names)
    # Different data on both sides, so that a write would be seen.
    a.mr.write(pattern(100, 1), 100)
    b.mr.write(pattern(100, 2), 100)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(b.mr.buf, b.mr.rkey ^ 0x55))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)
    assert a.state() == e.IBV_QPS_ERR
    assert b.mr.read(100, 0) == pattern(100, 2)


def test_bad_rkey_read(names):
    a, b = pair(names)
    a.post(e.IBV_WR_RDMA_READ, a.sge(100), remote=(b.mr.buf, b.mr.rkey ^ 0x5500))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)


def test_outside_region(names):
    a, b = pair(names)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(101), remote=(b.mr.buf + b.size - 100, b.mr.rkey))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)


def test_address_wraps(names):
    a, b = pair(names)
    a.post(e.IBV_WR_RDMA_READ, a.sge(8192), remote=(0xFFFFFFFFFFFFF800, b.mr.rkey))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)


def test_no_remote_right(names):
    a, b = pair(names, b_access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)
    a.post(e.IBV_WR_RDMA_READ, a.sge(100), remote=(b.mr.buf, b.mr.rkey))
    a.complete()
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(b.mr.buf, b.mr.rkey))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)


@case(driver="rxe_rs", reason="rdma_rxe reports another status")
def test_bad_lkey_send(names):
    a, b = pair(names)
    b.recv(b.sge())
    a.post(e.IBV_WR_SEND, a.sge(100, key=a.mr.lkey ^ 0xFF00))
    a.complete(e.IBV_WC_LOC_PROT_ERR)
    assert a.state() == e.IBV_QPS_ERR


@case(driver="rxe_rs", reason="rdma_rxe reports another status")
def test_bad_lkey_receive(names):
    a, b = pair(names)
    b.recv(b.sge(100, key=b.mr.lkey ^ 0xFF00))
    a.post(e.IBV_WR_SEND, a.sge(100))
    b.complete(e.IBV_WC_LOC_PROT_ERR)
    a.complete(e.IBV_WC_REM_OP_ERR)


def test_no_receive(names):
    """Without a receive the RNR retries are exceeded."""
    a, b = pair(names, rnr_retries=1)
    a.post(e.IBV_WR_SEND, a.sge(100))
    a.complete(e.IBV_WC_RNR_RETRY_EXC_ERR)


def test_late_receive(names):
    """With unlimited RNR retries, a message waits until a receive is posted."""
    a, b = pair(names, rnr_retries=7)
    a.mr.write(b"late", 4)
    a.post(e.IBV_WR_SEND, a.sge(4))
    a.no_completion(0.2)
    b.recv(b.sge())
    a.complete()
    b.complete()
    assert b.mr.read(4, 0) == b"late"


def test_no_peer(names):
    """Without a peer the retries are exceeded."""
    a, b = pair(names, retries=1, timeout=12)
    b.qp.close()
    a.post(e.IBV_WR_SEND, a.sge(100))
    a.complete(e.IBV_WC_RETRY_EXC_ERR)


def test_flush(names):
    """The error state flushes the posted receives, and later sends."""
    a, b = pair(names)
    for n in range(5):
        b.recv(b.sge(100), wr_id=100 + n)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    for n in range(5):
        assert b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 100 + n
    # Posting a receive rings no doorbell, so post a send to make the driver flush.
    b.post(e.IBV_WR_SEND, b.sge(10), wr_id=201)
    assert b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 201


def test_sends_beyond_the_slots(names):
    """The driver keeps at most 1024 WQEs of a queue (MAX_SLOTS in qp/sq.rs). Further ones wait in the ring, and complete or are flushed in
    order."""
    depth, posted = 1400, 0
    a, b = pair(names, depth=depth, sges=1, rnr_retries=7)

    def post(count):
        nonlocal posted
        for _ in range(count):
            a.post(e.IBV_WR_SEND, a.sge(8), wr_id=posted)
            posted += 1

    # No WQE can complete before a receive is posted, so the number of slots grows step by step.
    post(depth)
    for n in range(depth):
        b.recv(b.sge(8), wr_id=n)
    assert [a.complete().wr_id for _ in range(depth)] == list(range(depth))
    assert [b.complete().wr_id for _ in range(depth)] == list(range(depth))
    post(depth)
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert [a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id for _ in range(depth)] == list(range(depth, 2 * depth))


def test_flush_after_error(names):
    """After a failed request, later ones are flushed."""
    a, b = pair(names)
    for n in range(4):
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(b.mr.buf, 0 if n == 1 else b.mr.rkey), wr_id=n)
    assert a.complete().wr_id == 0
    assert a.complete(e.IBV_WC_REM_ACCESS_ERR).wr_id == 1
    assert a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 2
    assert a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 3


def test_completions_in_order(names):
    """Requests of different opcodes complete in order on both sides."""
    a, b = pair(names)
    for iteration in range(3):
        for n in range(20):
            b.recv(b.sge(100, n * 100), wr_id=n)
        for n in range(20):
            kind = n % 3
            if kind == 0:
                a.post(e.IBV_WR_SEND, a.sge(100), wr_id=n)
            elif kind == 1:
                a.post(e.IBV_WR_RDMA_READ, a.sge(3000), wr_id=n, remote=(b.mr.buf, b.mr.rkey))
            else:
                a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(3000), wr_id=n, remote=(b.mr.buf, b.mr.rkey), imm=n)
        assert [a.complete().wr_id for _ in range(20)] == list(range(20))
        expected = sum(1 for n in range(20) if n % 3 != 1)
        assert [b.complete().wr_id for _ in range(expected)] == list(range(expected))
        b.qp.query(e.IBV_QP_STATE)
        # Unused receives stay posted: consume them before the next round.
        for n in range(20 - expected):
            a.post(e.IBV_WR_SEND, a.sge(1), wr_id=n)
            a.complete()
            b.complete()


def test_reset_and_reuse(names):
    a, b = pair(names)
    for iteration in range(3):
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, a.sge(5000))
        a.complete()
        b.complete()
        for end in (a, b):
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        a.connect(b, 77 + iteration, 99)
        b.connect(a, 99, 77 + iteration)


def test_big_message(names):
    size = 16 << 20
    a, b = pair(names, size=size, timeout=20)
    data = pattern(size, 5)
    a.mr.write(data, size)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
    a.complete(seconds=60)
    assert b.mr.read(size, 0) == data
    a.mr.write(bytes(size), size)
    a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(b.mr.buf, b.mr.rkey))
    a.complete(seconds=60)
    assert a.mr.read(size, 0) == data


@case(timeout=200, no_uml="in User Mode Linux each page is a mapping of the host, which has a limit for them")
def test_huge_message(names):
    """A message of 1 GiB arrives; one of 2 GiB fails."""
    size, unit = 1 << 30, 1 << 24
    a, b = pair(names, size=4096, timeout=21)
    source, source_file = repeated_mapping(size, unit)
    target, target_file = repeated_mapping(size, unit)
    data = pattern(unit, 11)
    os.pwrite(source_file, data, 0)
    from_mr = MR(a.pd, size, ACCESS, address=source)
    to_mr = MR(b.pd, size, ACCESS, address=target)
    a.post(e.IBV_WR_RDMA_WRITE, SGE(source, size, from_mr.lkey), remote=(target, to_mr.rkey))
    a.complete(seconds=240)
    assert os.pread(target_file, unit, 0) == data
    # A message above the maximum size fails at the requester or the responder; it is never truncated.
    a.post(e.IBV_WR_RDMA_WRITE, SGE(source, size, from_mr.lkey), SGE(source, size, from_mr.lkey), remote=(target, to_mr.rkey))
    wc = completion(a.cq, 60)
    assert wc and wc.status != e.IBV_WC_SUCCESS


@case(driver="rxe_rs", reason="rdma_rxe sends from a work item")
def test_post_returns_soon(names):
    """Posting a long message takes the caller about a millisecond, or one transmission round; then a work item continues. Where the
    machine is emulated, what interrupts the caller takes some milliseconds more, and the message some seconds."""
    unit, size = 512 << 10, 64 << 20
    a, b = pair(names, size=size, qp_type=e.IBV_QPT_UC)

    def post(length):
        # The time of this thread only, and until the completion.
        before, begin = time.thread_time(), time.monotonic()
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(length), remote=(b.mr.buf, b.mr.rkey))
        taken = time.thread_time() - before
        a.complete(seconds=120)
        return taken, time.monotonic() - begin

    post(unit)
    one_round, _ = min(post(unit) for _ in range(5))
    whole, elapsed = min(post(size) for _ in range(3))
    print(f"{one_round * 1e3:.2f} ms for {unit >> 10} KiB, {whole * 1e3:.2f} ms for {size >> 20} MiB, which took {elapsed * 1e3:.0f} ms")
    assert whole < max(3 * one_round + 0.002, elapsed / 50), "the caller sends the whole message"


def test_many_queue_pairs(names):
    ends = [pair(names, size=4096, depth=8) for _ in range(30)]
    for n, (a, b) in enumerate(ends):
        a.mr.write(pattern(4096, n), 4096)
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, a.sge())
    for n, (a, b) in enumerate(ends):
        a.complete()
        b.complete()
        assert b.mr.read(4096, 0) == pattern(4096, n)


def test_deregistered(names):
    """A WRITE to a deregistered region fails."""
    a, b = pair(names)
    address, key = b.mr.buf, b.mr.rkey
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(address, key))
    a.complete()
    b.mr.close()
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(address, key))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)


def test_events(names):
    """An armed CQ generates an event for the next completion, once; if armed for solicited completions, only for those and errors."""
    a, b = pair(names, b_events=True)

    def send(flags=0, imm=None):
        b.recv(b.sge(100))
        a.post(e.IBV_WR_SEND if imm is None else e.IBV_WR_SEND_WITH_IMM, a.sge(100), flags=e.IBV_SEND_SIGNALED | flags, imm=imm)
        a.complete()

    b.cq.req_notify(0)
    send()
    assert notified(b, 5), "no event"
    send()
    assert not notified(b, 0.3), "an event although the CQ was not armed again"
    b.complete()
    b.complete()
    b.cq.req_notify(1)
    send()
    b.complete()
    assert not notified(b, 0.3), "an event for a completion that was not solicited"
    send(e.IBV_SEND_SOLICITED)
    assert notified(b, 5), "no event for a solicited SEND"
    b.complete()
    b.cq.req_notify(1)
    send(e.IBV_SEND_SOLICITED, 0x1234)
    assert notified(b, 5), "no event for a solicited SEND with immediate data"
    b.complete()
    b.cq.req_notify(1)
    b.recv(b.sge(100), wr_id=9)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert notified(b, 5), "no event for an error"
    b.complete(e.IBV_WC_WR_FLUSH_ERR)


def test_device_attributes(names):
    ctx = Context(name=names[0])
    attr = ctx.query_device()
    assert attr.max_qp > 100 and attr.max_cqe > 100 and attr.max_sge >= 4 and attr.max_mr > 100
    port = ctx.query_port(1)
    assert port.state == e.IBV_PORT_ACTIVE and port.active_mtu >= e.IBV_MTU_256 and port.gid_tbl_len > 0
    assert port.max_msg_sz >= 1 << 30, port.max_msg_sz
    assert ctx.query_pkey(1, 0) & 0x7FFF == 0x7FFF
