# SPDX-License-Identifier: GPL-2.0
"""Shared receive queues through pyverbs: several queue pairs of one device use one queue."""
import contextlib
import errno
import functools
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from lib.case import case
from lib.debug_messages import refusal_logged
from lib.ends import ACCESS, MTU, End, async_event, in_thread, pattern, refused
from lib.peer_process import connected as connected_with, peer_process
from lib.srq import Member, Pool, connected

DEFAULTS = dict(timeout=40)
QKEY = 0x1234


@case(driver="rxe_rs", reason="rdma_rxe reports other values")
def test_attributes(names):
    """The device reports limits of SRQs; creating an SRQ beyond them fails."""
    ctx = Context(name=names[0])
    device = ctx.query_device()
    assert device.max_srq > 100 and device.max_srq_wr > 1000 and device.max_srq_sge >= 8, device
    assert device.device_cap_flags & e.IBV_DEVICE_SRQ_RESIZE
    pd = PD(ctx)
    for wr, sge in ((1, 1), (100, 3), (device.max_srq_wr, 1), (10, device.max_srq_sge)):
        with SRQ(pd, SrqInitAttr(SrqAttr(max_wr=wr, max_sge=sge))) as srq:
            got = srq.query()
            assert got.max_wr >= wr and got.max_sge >= sge and got.srq_limit == 0, got
    for wr, sge in ((0, 1), (device.max_srq_wr + 1, 1), (1, device.max_srq_sge + 1), (0xFFFFFFFF, 1), (1, 0xFFFFFFFF)):
        with refusal_logged(errno.EINVAL, "create_srq"):
            refused(errno.EINVAL, SRQ, pd, SrqInitAttr(SrqAttr(max_wr=wr, max_sge=sge)))


@case(driver="rxe_rs", reason="rdma_rxe reports other values")
def test_bad_changes(names):
    """Invalid changes of an SRQ are refused and change nothing."""
    pool, [(a, b)] = connected(names, members=1, depth=15)
    attr = pool.srq.query()
    most = pool.ctx.query_device().max_srq_wr
    for n in range(attr.max_wr):
        pool.recv(n)
    refused(errno.ENOMEM, pool.recv, 99)
    size, limit = e.IBV_SRQ_MAX_WR, e.IBV_SRQ_LIMIT
    # The last two are smaller than the number of posted receives, and smaller than the limit to be set.
    for mask, change in ((limit, {"srq_limit": attr.max_wr + 1}), (size, {"max_wr": 0}), (size, {"max_wr": most + 1}),
                         (size, {"max_wr": 3}), (size | limit, {"max_wr": 20, "srq_limit": 40})):
        with refusal_logged(errno.EINVAL, "modify_srq"):
            refused(errno.EINVAL, pool.modify, mask, **change)
    # The attributes have not changed, and no receive is lost.
    after = pool.srq.query()
    assert after.max_wr == attr.max_wr and after.srq_limit == 0
    for n in range(attr.max_wr):
        a.post(e.IBV_WR_SEND, a.sge(10))
        a.complete()
        assert b.complete().wr_id == n
    # Nor can the queue become smaller than a limit that is armed.
    pool.modify(limit, srq_limit=10)
    with refusal_logged(errno.EINVAL, "modify_srq"):
        refused(errno.EINVAL, pool.modify, size, max_wr=5)
    after = pool.srq.query()
    assert after.max_wr == attr.max_wr and after.srq_limit == 10, after
    # The queue pair has no receive queue of its own.
    attr, init = b.qp.query(e.IBV_QP_CAP)
    assert attr.cap.max_recv_wr == 0 and init.cap.max_recv_sge == 0


def test_several_queue_pairs(names):
    """Messages to several queue pairs consume the receives in order; each completion has the right queue pair."""
    pool, pairs = connected(names, members=4)
    for n in range(40):
        pool.recv(n, 1500, 1500 * n)
    order = []
    for n in range(40):
        a, b = pairs[n * 7 % 4]
        data = pattern(1500 - n, n)
        a.mr.write(data, len(data))
        if n % 2:
            a.post(e.IBV_WR_SEND, a.sge(len(data)))
        else:
            a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, remote=(b.mr.buf, b.mr.rkey), imm=n)
        a.complete()
        wc = b.complete()
        assert wc.qp_num == b.qp.qp_num and wc.wr_id == n, (wc.qp_num, wc.wr_id)
        if n % 2:
            assert wc.byte_len == len(data) and pool.mr.read(len(data), 1500 * n) == data
        else:
            assert wc.imm_data == n
        order.append(wc.wr_id)
    assert order == list(range(40))


def test_concurrent(names):
    """Queue pairs that receive concurrently use every receive once, and each message is complete."""
    pool, pairs = connected(names, members=4, depth=200, size=1 << 20)
    rounds, length = 40, 5000
    for n in range(4 * rounds):
        pool.recv(n, length, length * n)

    def send(index, _stop):
        a = pairs[index][0]
        data = pattern(length, index)
        a.mr.write(data, length)
        for _ in range(rounds):
            a.post(e.IBV_WR_SEND, a.sge(length))
            a.complete()

    whose = {b.qp.qp_num: n for n, (_, b) in enumerate(pairs)}
    seen = set()
    with contextlib.ExitStack() as senders:
        for n in range(4):
            senders.enter_context(in_thread(functools.partial(send, n)))
        for _ in range(4 * rounds):
            wc = pairs[0][1].complete()
            assert wc.wr_id not in seen and wc.byte_len == length
            seen.add(wc.wr_id)
            assert pool.mr.read(length, length * wc.wr_id) == pattern(length, whose[wc.qp_num]), "mixed messages"
    assert len(seen) == 4 * rounds


def test_empty_queue(names):
    """Without a receive the sender gets RNR NAKs; it succeeds after one is posted."""
    pool, [(a, b)] = connected(names, members=1)
    a.mr.write(b"late", 4)
    a.post(e.IBV_WR_SEND, a.sge(4))
    a.no_completion(0.2)
    pool.recv(5, 4)
    a.complete()
    assert b.complete().wr_id == 5 and pool.mr.read(4, 0) == b"late"


def test_datagrams(names):
    """A UD queue pair uses the receives of an SRQ in order."""
    pool = Pool(names[2], int(names[3]))
    b = Member(pool, qp_type=e.IBV_QPT_UD)
    a = End(names[0], int(names[1]), qp_type=e.IBV_QPT_UD)
    for end in (a, b):
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        end.qp.to_rts(attr)
    route = GlobalRoute(dgid=b.ctx.query_gid(1, b.gid_index), sgid_index=a.gid_index, hop_limit=64)
    ah = AH(a.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    for n in range(10):
        pool.recv(n, 540, 1000 * n)
    for n in range(10):
        data = pattern(500, n)
        a.mr.write(data, 500)
        wr = SendWR(wr_id=n, num_sge=1, sg=[a.sge(500)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(ah, b.qp.qp_num, QKEY)
        a.qp.post_send(wr)
        a.complete()
        wc = b.complete()
        assert wc.wr_id == n and wc.byte_len == 540
        assert pool.mr.read(500, 1000 * n + 40) == data


@case(driver="rxe_rs", reason="rdma_rxe reports other values")
def test_limit(names):
    """The limit event is generated once when the number of receives falls below the limit."""
    pool, [(a, b)] = connected(names, members=1)

    def message():
        a.post(e.IBV_WR_SEND, a.sge(10))
        a.complete()
        b.complete()

    for n in range(8):
        pool.recv(n)
    pool.modify(e.IBV_SRQ_LIMIT, srq_limit=5)
    assert pool.srq.query().srq_limit == 5
    for _ in range(3):
        message()
    assert async_event(pool.ctx, 0.3) is None, "an event although the limit is not reached"
    message()
    assert async_event(pool.ctx, 5) == e.IBV_EVENT_SRQ_LIMIT_REACHED
    # The event is generated once; then the limit must be armed again.
    assert pool.srq.query().srq_limit == 0
    message()
    assert async_event(pool.ctx, 0.3) is None, "a second event"
    # Armed when there are already too few receives: the next message generates the event.
    pool.modify(e.IBV_SRQ_LIMIT, srq_limit=5)
    message()
    assert async_event(pool.ctx, 5) == e.IBV_EVENT_SRQ_LIMIT_REACHED
    # Armed when no receive is left: a message that gets an RNR NAK generates the event.
    message()
    message()
    pool.modify(e.IBV_SRQ_LIMIT, srq_limit=1)
    a.post(e.IBV_WR_SEND, a.sge(10))
    assert async_event(pool.ctx, 5) == e.IBV_EVENT_SRQ_LIMIT_REACHED
    pool.recv(1)
    a.complete()
    b.complete()
    # Disarmed.
    pool.recv(2)
    pool.modify(e.IBV_SRQ_LIMIT, srq_limit=3)
    pool.modify(e.IBV_SRQ_LIMIT, srq_limit=0)
    message()
    assert async_event(pool.ctx, 0.3) is None, "an event although the limit is disarmed"


def test_resize(names):
    """Posted receives persist, in order, when the queue is resized, at any position in the ring."""
    pool, [(a, b)] = connected(names, members=1, depth=15)
    posted, received = 0, 0
    for iteration, size in enumerate((40, 31, 200, 10, 7, 1000, 20)):
        while posted - received < 6:
            pool.recv(posted)
            posted += 1
        pool.modify(e.IBV_SRQ_MAX_WR, max_wr=size)
        assert pool.srq.query().max_wr >= size
        pool.recv(posted)
        posted += 1
        for _ in range(4 + iteration % 3):
            a.post(e.IBV_WR_SEND, a.sge(10))
            a.complete()
            assert b.complete().wr_id == received
            received += 1
    # The queue has the new size.
    room = pool.srq.query().max_wr - (posted - received)
    for _ in range(room):
        pool.recv(posted)
        posted += 1
    refused(errno.ENOMEM, pool.recv, 0)
    while received < posted:
        a.post(e.IBV_WR_SEND, a.sge(10))
        a.complete()
        assert b.complete().wr_id == received
        received += 1


@case(cpus=2, timeout=90)
def test_resize_under_traffic(names):
    """Queue pairs use receives while resizing moves these to another ring. The senders are processes, because a thread of Python that is in a
    system call keeps the others from running."""
    total, senders = 3000, 2

    def send(channel):
        a = connected_with(names, 0, channel)
        for _ in range(total // senders):
            a.post(e.IBV_WR_SEND, a.sge(700))
            a.complete()

    with contextlib.ExitStack() as end:
        channels = [end.enter_context(peer_process(send)) for _ in range(senders)]
        pool = Pool(names[2], int(names[3]), depth=100)
        # Kept, because a queue pair is destroyed with its last reference.
        _members = [connected_with(names, 2, channel, make=lambda *_: Member(pool)) for channel in channels]
        seen, posted, resized = [], 0, 0
        deadline = time.monotonic() + 80
        while len(seen) < total:
            assert time.monotonic() < deadline, f"{len(seen)} receives have completed"
            while posted < total and posted - len(seen) < 60:
                pool.recv(posted)
                posted += 1
            resized += 1
            pool.modify(e.IBV_SRQ_MAX_WR, max_wr=(63, 200, 100)[resized % 3])
            count, wcs = pool.cq.poll(16)
            for wc in wcs[:count]:
                assert wc.status == e.IBV_WC_SUCCESS
                seen.append(wc.wr_id)
    assert sorted(seen) == list(range(total)), "receives were lost or used twice"


@case(driver="rxe_rs", reason="rdma_rxe reports other values")
def test_last_wqe(names):
    """A queue pair that enters the error state generates one last-WQE event; the posted receives remain for the others."""
    pool, [(a, b), (c, d)] = connected(names)
    for n in range(4):
        pool.recv(n)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert async_event(pool.ctx, 5) == e.IBV_EVENT_QP_LAST_WQE_REACHED
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert async_event(pool.ctx, 0.3) is None, "a second event"
    b.no_completion(0.1)
    for n in range(4):
        c.post(e.IBV_WR_SEND, c.sge(10))
        c.complete()
        wc = d.complete()
        assert wc.wr_id == n and wc.qp_num == d.qp.qp_num
    # After a reset it can be used again, and fail again.
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.connect(b, 5, 6)
    b.connect(a, 6, 5)
    pool.recv(7)
    a.post(e.IBV_WR_SEND, a.sge(10))
    a.complete()
    assert b.complete().wr_id == 7
    # A message that is too long for the receive completes it in error.
    pool.recv(8, 5)
    a.post(e.IBV_WR_SEND, a.sge(10))
    assert b.complete(e.IBV_WC_LOC_LEN_ERR).wr_id == 8
    a.complete(e.IBV_WC_REM_INV_REQ_ERR)
    events = {async_event(pool.ctx, 5), async_event(pool.ctx, 5)}
    assert e.IBV_EVENT_QP_LAST_WQE_REACHED in events, events


def test_broken_message(names):
    """The receive of an incomplete message is flushed when its queue pair fails, and no other one is."""
    pool, [(a, b), (c, d)] = connected(names)
    big = MR(a.pd, 4 << 20, ACCESS)
    pool_big = MR(pool.pd, 4 << 20, ACCESS)
    pool.srq.post_recv(RecvWR(num_sge=1, sg=[SGE(pool_big.buf, 4 << 20, pool_big.lkey)], wr_id=50))
    pool.recv(51)
    # The second SGE has an invalid L_Key, so the sender stops in the middle.
    wr = SendWR(wr_id=1, num_sge=2, sg=[SGE(big.buf, 8 * MTU, big.lkey), SGE(big.buf, 100, big.lkey ^ 0x5500)],
                opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
    a.qp.post_send(wr)
    a.complete(e.IBV_WC_LOC_PROT_ERR)
    b.no_completion(0.2)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 50
    b.no_completion(0.1)
    c.post(e.IBV_WR_SEND, c.sge(10))
    c.complete()
    assert d.complete().wr_id == 51


def test_other_domain(names):
    """L_Keys of receives are checked against the protection domain of the SRQ, not that of the queue pair."""
    pool = Pool(names[2], int(names[3]))
    a, other = End(names[0], int(names[1])), PD(pool.ctx)
    mr = MR(other, 4096, ACCESS)
    b = Member(pool, pd=other)
    a.connect(b, 1, 2)
    b.connect(a, 2, 1)
    a.mr.write(b"domain", 6)
    pool.recv(1, 100, 100)
    a.post(e.IBV_WR_SEND, a.sge(6))
    a.complete()
    b.complete()
    assert pool.mr.read(6, 100) == b"domain"
    # R_Keys are checked against the protection domain of the queue pair.
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(6), remote=(mr.buf, mr.rkey))
    a.complete()
    assert mr.read(6, 0) == b"domain"
    pool.srq.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 100, mr.lkey)], wr_id=2))
    a.post(e.IBV_WR_SEND, a.sge(6))
    assert b.complete(e.IBV_WC_LOC_PROT_ERR).wr_id == 2
    a.complete(e.IBV_WC_REM_OP_ERR)
