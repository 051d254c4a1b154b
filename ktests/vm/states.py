# SPDX-License-Identifier: GPL-2.0
"""States of queue pairs, asynchronous events and failed completion queues, through pyverbs."""
import ctypes
import errno
import os
import struct
import subprocess
import sys
import time
import traceback

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import host, rings
from lib.debug_messages import refusal_logged
from lib.ends import ACCESS, MTU, End, async_event, datagram, datagram_pair, pair, refused, soon, ah_attr
from lib.libibverbs import VERBS, pointer_of
from lib.pkeys import Member

DEFAULTS = dict(timeout=40, driver="rxe_rs", reason="rdma_rxe has fewer states and events")


def to_state(end, state, mask=e.IBV_QP_STATE, **attrs):
    attr = QPAttr(qp_state=state)
    for name, value in attrs.items():
        setattr(attr, name, value)
    end.qp.modify(attr, mask)


def message(a, b, length=100):
    b.recv(b.sge(length))
    a.post(e.IBV_WR_SEND, a.sge(length))
    a.complete()
    b.complete()


def test_drained(names):
    """In SQD, requests that were begun complete, later ones wait; there is an event when the queue is drained, if requested."""
    a, b = pair(names, rnr_retries=7)
    a.post(e.IBV_WR_SEND, a.sge(100), wr_id=1)
    notify = e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY
    to_state(a, e.IBV_QPS_SQD, notify, en_sqd_async_notify=1)
    attr, _ = a.qp.query(e.IBV_QP_STATE)
    assert attr.qp_state == e.IBV_QPS_SQD and attr.sq_draining == 1
    assert async_event(a.ctx, 0.3) is None, "an event with a request outstanding"
    a.post(e.IBV_WR_SEND, a.sge(200), wr_id=2)
    b.recv(b.sge(500), wr_id=1)
    b.recv(b.sge(500), wr_id=2)
    assert async_event(a.ctx, 5) == e.IBV_EVENT_SQ_DRAINED
    attr, _ = a.qp.query(e.IBV_QP_STATE)
    assert attr.sq_draining == 0
    assert a.complete().wr_id == 1 and b.complete().byte_len == 100
    a.no_completion()
    # Attributes may be changed while the queue is drained.
    to_state(a, e.IBV_QPS_SQD, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT, timeout=15)
    to_state(a, e.IBV_QPS_RTS)
    assert a.complete().wr_id == 2 and b.complete().byte_len == 200
    # The event is not requested this time.
    to_state(a, e.IBV_QPS_SQD)
    assert async_event(a.ctx, 0.3) is None, "an event that was not requested"
    to_state(a, e.IBV_QPS_RTS)
    message(a, b)


def test_drained_datagrams(names):
    """A UD queue pair in SQD sends nothing; it continues in RTS."""
    a, b, ah = datagram_pair(names)
    to_state(a, e.IBV_QPS_SQD, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify=1)
    assert async_event(a.ctx, 5) == e.IBV_EVENT_SQ_DRAINED
    b.recv(b.sge(500))
    datagram(a, b, ah, 1)
    a.no_completion()
    to_state(a, e.IBV_QPS_RTS)
    a.complete()
    b.complete()


def test_send_error_datagrams(names):
    """After a send error, a UD queue pair is in SQE: it flushes sends and still receives, until it is modified to RTS."""
    a, b, ah = datagram_pair(names)
    back = AH(b.pd, attr=ah_attr(b, a))
    datagram(a, b, ah, 1, key=a.mr.lkey ^ 0x5500)
    a.complete(e.IBV_WC_LOC_PROT_ERR)
    assert a.state() == e.IBV_QPS_SQE
    datagram(a, b, ah, 2)
    assert a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 2
    # The queue pair still receives.
    a.recv(a.sge(500), wr_id=3)
    datagram(b, a, back, 4)
    b.complete()
    assert a.complete().wr_id == 3
    to_state(a, e.IBV_QPS_RTS, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE, cur_qp_state=e.IBV_QPS_SQE)
    assert a.state() == e.IBV_QPS_RTS
    b.recv(b.sge(500), wr_id=5)
    datagram(a, b, ah, 6)
    assert a.complete().wr_id == 6 and b.complete().wr_id == 5
    # A datagram that is longer than the path MTU.
    datagram(a, b, ah, 7, length=5000)
    a.complete(e.IBV_WC_LOC_LEN_ERR)
    assert a.state() == e.IBV_QPS_SQE


def test_send_error_and_full(names):
    """A request that is posted after a send error is flushed at once, although the completion queue is full: it is not executed later."""
    a, b, ah = datagram_pair(names, cqe=4, b_cqe=256)
    b.recv(b.sge(200))
    for n in range(3):
        datagram(a, b, ah, n)
    datagram(a, b, ah, 3, key=a.mr.lkey ^ 0x5500)
    soon(lambda: a.state() == e.IBV_QPS_SQE)
    datagram(a, b, ah, 4)
    to_state(a, e.IBV_QPS_RTS)
    statuses = [(0, e.IBV_WC_SUCCESS), (1, e.IBV_WC_SUCCESS), (2, e.IBV_WC_SUCCESS), (3, e.IBV_WC_LOC_PROT_ERR), (4, e.IBV_WC_WR_FLUSH_ERR)]
    for number, status in statuses:
        assert a.complete(status).wr_id == number
    datagram(a, b, ah, 5)
    assert a.complete().wr_id == 5


def test_send_error_and_posted(names):
    """What is in the ring when a queue pair leaves SQE is flushed, not executed, even if the driver has not looked at it yet."""
    a, b, ah = datagram_pair(names)
    b.recv(b.sge(200))
    datagram(a, b, ah, 77)
    a.complete()
    b.complete()
    first = rings.HEADER, struct.pack("=Q", 77)
    ring, = (ring for ring in rings.mapped() if ring.log2 >= 7 and ctypes.string_at(ring.address + first[0], 8) == first[1])
    datagram(a, b, ah, 78, key=a.mr.lkey ^ 0x5500)
    a.complete(e.IBV_WC_LOC_PROT_ERR)
    # The first request again, without a doorbell.
    ring.write(rings.HEADER + (2 << ring.log2), ctypes.string_at(ring.address + rings.HEADER, 1 << ring.log2))
    ring.number(rings.PRODUCER, 3)
    to_state(a, e.IBV_QPS_RTS)
    assert a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 77
    b.recv(b.sge(200))
    datagram(a, b, ah, 79)
    assert a.complete().wr_id == 79
    b.complete()


def unreliable_pair(names):
    ends = [End(names[n], int(names[n + 1]), qp_type=e.IBV_QPT_UC) for n in (0, 2)]
    for end, other in (ends, ends[::-1]):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS & ~(e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC)
        attr.ah_attr = ah_attr(end, other)
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = other.qp.qp_num
        attr.rq_psn = attr.sq_psn = 5
        end.qp.to_rts(attr)
    return ends


def test_send_error_unreliable(names):
    """The same for UC; an RC queue pair enters the error state."""
    a, b = unreliable_pair(names)
    message(a, b, 5000)
    a.post(e.IBV_WR_SEND, a.sge(100, key=a.mr.lkey ^ 0x5500))
    a.complete(e.IBV_WC_LOC_PROT_ERR)
    assert a.state() == e.IBV_QPS_SQE
    message(b, a)
    a.post(e.IBV_WR_SEND, a.sge(100), wr_id=9)
    assert a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 9
    to_state(a, e.IBV_QPS_RTS)
    message(a, b)
    # RC has no SQE state.
    c, _ = pair(names)
    c.post(e.IBV_WR_SEND, c.sge(100, key=c.mr.lkey ^ 0x5500))
    c.complete(e.IBV_WC_LOC_PROT_ERR)
    assert c.state() == e.IBV_QPS_ERR
    refused(22, to_state, c, e.IBV_QPS_RTS)


def test_established(names):
    """The first message to a queue pair in RTR generates the event that communication is established, once."""
    a, b = End(names[0], int(names[1])), End(names[2], int(names[3]))
    a.connect(b, 1, 2)
    attr = QPAttr(port_num=1)
    attr.ah_attr = ah_attr(b, a)
    attr.path_mtu, attr.dest_qp_num, attr.rq_psn = e.IBV_MTU_1024, a.qp.qp_num, 1
    attr.min_rnr_timer, attr.max_dest_rd_atomic, attr.qp_access_flags = 12, 1, ACCESS
    b.qp.to_rtr(attr)
    message(a, b)
    assert async_event(b.ctx, 5) == e.IBV_EVENT_COMM_EST
    message(a, b)
    assert async_event(b.ctx, 0.3) is None, "a second event"


def test_refusals(names):
    """A fatal error at the responder generates its event, unless a receive completes with the error."""
    a, b = pair(names)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(100), remote=(b.mr.buf, b.mr.rkey ^ 0x5500))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)
    assert async_event(b.ctx, 5) == e.IBV_EVENT_QP_ACCESS_ERR
    assert b.state() == e.IBV_QPS_ERR
    # Packets of another path MTU than the responder's.
    a, b = pair(names)
    to_state(b, e.IBV_QPS_RESET)
    connect_with_smaller_mtu(a, b)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(6000), remote=(b.mr.buf, b.mr.rkey))
    a.complete(e.IBV_WC_REM_INV_REQ_ERR)
    assert async_event(b.ctx, 5) == e.IBV_EVENT_QP_REQ_ERR
    assert b.state() == e.IBV_QPS_ERR
    # The receive completes with the error.
    a, b = pair(names)
    b.recv(b.sge(100))
    a.post(e.IBV_WR_SEND, a.sge(101))
    b.complete(e.IBV_WC_LOC_LEN_ERR)
    assert async_event(b.ctx, 0.3) is None, "an event in addition to the completion"


def connect_with_smaller_mtu(a, b):
    """Connects b, which is in RESET, with a smaller path MTU than that of a."""
    attr = QPAttr(port_num=1)
    attr.ah_attr = ah_attr(b, a)
    attr.path_mtu, attr.dest_qp_num, attr.rq_psn, attr.sq_psn = e.IBV_MTU_512, a.qp.qp_num, 0xFFFFFE, 0x123
    attr.min_rnr_timer, attr.max_dest_rd_atomic, attr.qp_access_flags = 12, 1, ACCESS
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = 14, 7, 7, 1
    b.qp.to_rts(attr)


def test_overflow(names):
    """A CQ overrun generates an event for the CQ, once, and for each queue pair that uses it, which enters the error state."""
    a, b = pair(names)
    small = CQ(b.ctx, 3, None, None, 0)
    others = []
    for scq, rcq in ((small, b.cq), (b.cq, small), (b.cq, b.cq)):
        end = End(names[2], int(names[3]))
        end.ctx, end.pd, end.cq, end.mr = b.ctx, b.pd, b.cq, b.mr
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        end.qp = QP(b.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=scq, rcq=rcq, cap=cap, sq_sig_all=1))
        peer = End(names[0], int(names[1]))
        peer.connect(end, 1, 2)
        end.connect(peer, 2, 1)
        others.append((peer, end))
    peer, end = others[1]
    room = small.cqe
    for n in range(room + 3):
        end.recv(end.sge(100), wr_id=n)
    for n in range(room + 2):
        peer.post(e.IBV_WR_SEND, peer.sge(50))
    events = sorted(async_event(b.ctx, 5) for _ in range(3))
    assert events == sorted([e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL, e.IBV_EVENT_QP_FATAL]), events
    assert async_event(b.ctx, 0.3) is None, "further events"
    states = [end.state() for _, end in others]
    assert states == [e.IBV_QPS_ERR, e.IBV_QPS_ERR, e.IBV_QPS_RTS], states
    # The completions in the CQ can still be polled.
    count, wcs = small.poll(room)
    assert count == room and [(wc.wr_id, wc.status, wc.byte_len) for wc in wcs] == [(n, 0, 50) for n in range(room)]
    # Queue pairs that do not use the CQ continue.
    message(a, b)
    message(*others[2])
    # A new queue pair that uses the CQ fails at its first completion, at the latest.
    end = others[0][1]
    end.qp = QP(b.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=small, rcq=b.cq, cap=cap, sq_sig_all=1))
    peer = End(names[0], int(names[1]))
    peer.connect(end, 1, 2)
    end.connect(peer, 2, 1)
    for n in range(room + 1):
        peer.recv(peer.sge(10))
        end.post(e.IBV_WR_SEND, end.sge(10))
    soon(lambda: end.state() == e.IBV_QPS_ERR)
    assert async_event(b.ctx, 5) == e.IBV_EVENT_QP_FATAL


def test_query(names):
    """query_qp returns the attributes that were set, the state and the current PSNs."""
    a, b = pair(names)
    attr, init = a.qp.query(0x1FFFFF)
    want = {"qp_state": e.IBV_QPS_RTS, "cur_qp_state": e.IBV_QPS_RTS, "path_mtu": e.IBV_MTU_1024, "rq_psn": 0x123,
            "sq_psn": 0xFFFFFE, "dest_qp_num": b.qp.qp_num, "qp_access_flags": ACCESS, "pkey_index": 0, "port_num": 1,
            "max_rd_atomic": 8, "max_dest_rd_atomic": 8, "min_rnr_timer": 12, "timeout": 16, "retry_cnt": 6, "rnr_retry": 6,
            "sq_draining": 0}
    got = {name: getattr(attr, name) for name in want}
    assert got == want, {name: (got[name], want[name]) for name in want if got[name] != want[name]}
    route = attr.ah_attr
    assert route.is_global and route.port_num == 1 and route.sgid_index == a.gid_index and route.hop_limit == 64
    assert str(route.dgid) == str(b.ctx.query_gid(1, b.gid_index).gid), (route.dgid, b.ctx.query_gid(1, b.gid_index))
    cap = init.cap
    assert cap.max_send_wr >= 64 and cap.max_recv_wr >= 64 and cap.max_send_sge >= 4 and cap.max_recv_sge >= 4
    assert init.sq_sig_all == 1
    # Three packets one way, one the other.
    message(a, b, 2 * MTU + 1)
    message(b, a, 1)
    attr, _ = a.qp.query(e.IBV_QP_SQ_PSN)
    assert attr.sq_psn == 1 and attr.rq_psn == 0x124, (attr.sq_psn, attr.rq_psn)
    to_state(a, e.IBV_QPS_RESET)
    attr, _ = a.qp.query(0x1FFFFF)
    assert attr.qp_state == e.IBV_QPS_RESET and attr.dest_qp_num == 0 and attr.qp_access_flags == 0
    # Attributes that are not set are zero, not stale kernel memory, to which a failed call with all attributes may have written.
    nothing = str(QPAttr().alt_ah_attr)
    full = QPAttr(qp_state=e.IBV_QPS_SQE)
    full.ah_attr = full.alt_ah_attr = AHAttr(gr=GlobalRoute(dgid=b.ctx.query_gid(1, b.gid_index), sgid_index=a.gid_index), is_global=1, port_num=1)
    full.alt_port_num, full.alt_pkey_index, full.alt_timeout = 1, 7, 9
    for _ in range(20):
        try:
            a.qp.modify(full, 0x1FFFFF)
        except PyverbsRDMAError:
            pass
        attr, _ = a.qp.query(0x1FFFFF)
        assert str(attr.ah_attr) == str(attr.alt_ah_attr) == nothing, f"{attr.ah_attr}{attr.alt_ah_attr}"
        assert attr.alt_port_num == attr.alt_pkey_index == attr.alt_timeout == 0


def test_unsignaled(names):
    """Without sq_sig_all, requests without IBV_SEND_SIGNALED complete without a CQE."""
    a, b = pair(names)
    cap = QPCap(max_send_wr=15, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    a.qp = QP(a.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=a.cq, rcq=a.cq, cap=cap, sq_sig_all=0))
    to_state(b, e.IBV_QPS_RESET)
    a.connect(b, 1, 2)
    b.connect(a, 2, 1)
    for iteration in range(10):
        for n in range(5):
            b.recv(b.sge(10))
            a.post(e.IBV_WR_SEND, a.sge(10), wr_id=10 * iteration + n, flags=e.IBV_SEND_SIGNALED if n == 4 else 0)
        for n in range(5):
            b.complete()
        assert a.complete().wr_id == 10 * iteration + 4
    a.no_completion(0.1)
    # Errors always generate a CQE.
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(10), wr_id=7, flags=0, remote=(0, 0))
    assert a.complete(e.IBV_WC_REM_ACCESS_ERR).wr_id == 7


def not_changed(*arguments, **attrs):
    """The driver must refuse a change of a queue pair, and log that."""
    with refusal_logged(errno.EINVAL, "modify_qp"):
        refused(errno.EINVAL, to_state, *arguments, **attrs)


def test_bad_changes(names):
    """Transitions and values out of range are refused, and nothing changes."""
    a, b = pair(names)
    for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_SQE):
        not_changed(a, state)
    not_changed(a, e.IBV_QPS_RTS, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE, cur_qp_state=e.IBV_QPS_SQD)
    not_changed(a, e.IBV_QPS_RTS, e.IBV_QP_STATE | e.IBV_QP_MIN_RNR_TIMER, min_rnr_timer=32)
    not_changed(a, e.IBV_QPS_RTS, e.IBV_QP_STATE | e.IBV_QP_QKEY, qkey=1)
    assert a.state() == e.IBV_QPS_RTS
    message(a, b)
    to_state(a, e.IBV_QPS_SQD)
    not_changed(a, e.IBV_QPS_SQD, e.IBV_QP_STATE | e.IBV_QP_RETRY_CNT, retry_cnt=8)
    not_changed(a, e.IBV_QPS_SQD, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT, timeout=32)
    not_changed(a, e.IBV_QPS_SQD, e.IBV_QP_STATE | e.IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic=129)
    not_changed(a, e.IBV_QPS_SQD, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX, pkey_index=1000)
    to_state(a, e.IBV_QPS_RTS)
    message(a, b)


def test_port_events(_names):
    """Changes of the network device generate events of the port."""
    netdev = "vx"
    host.shell("""
        ip -n a link add vx type veth peer name vy
        ip -n a link set vx up
        ip -n a link set vy up
        add a rxe_x vx""")
    try:
        follows_netdev(End("rxe_x", 0), netdev)
    finally:
        host.shell("ip -n a link del vx; soon eval '! have a rxe_x'")


def test_port_events_of_a_bond(_names):
    """A network device without a carrier of its own that comes up, and then becomes a port of a bond, generates events when it is brought
    down and up there, and after it has left the bond."""
    host.shell("""
        modprobe dummy numdummies=0
        ip -n a link add vx type dummy
        add a rxe_x vx
        ip -n a link add bx type bond mode active-backup
        ip -n a link set vx master bx""")
    try:
        end = End("rxe_x", 0)
        host.shell("""soon eval '[ "$(port_state a rxe_x)" = PORT_ACTIVE ]'""")
        while async_event(end.ctx, 1) is not None:
            pass
        for _ in range(2):
            changes(end, "link set vx down", e.IBV_EVENT_PORT_ERR)
            changes(end, "link set vx up", e.IBV_EVENT_PORT_ACTIVE)
        changes(end, "link set vx nomaster", e.IBV_EVENT_PORT_ERR)
        changes(end, "link set vx up", e.IBV_EVENT_PORT_ACTIVE)
    finally:
        host.shell("ip -n a link del vx; ip -n a link del bx; soon eval '! have a rxe_x'")


def changes(end, command, *expected):
    """Changes a network device of host a and expects these events."""
    subprocess.run(["ip", "-n", "a"] + command.split(), check=True)
    wanted = set(expected)
    deadline = time.monotonic() + 10
    while wanted and time.monotonic() < deadline:
        wanted.discard(async_event(end.ctx, 1))
    assert not wanted, f"{command}: no event {wanted}"


def follows_netdev(end, netdev):
    changes(end, f"addr add 10.99.1.1/24 dev {netdev}", e.IBV_EVENT_GID_CHANGE)
    changes(end, f"addr del 10.99.1.1/24 dev {netdev}", e.IBV_EVENT_GID_CHANGE)
    changes(end, f"link set {netdev} mtu 1400", e.IBV_EVENT_CLIENT_REREGISTER)
    changes(end, f"link set {netdev} down", e.IBV_EVENT_PORT_ERR)
    assert end.ctx.query_port(1).state == e.IBV_PORT_DOWN
    changes(end, f"link set {netdev} up", e.IBV_EVENT_PORT_ACTIVE)
    assert end.ctx.query_port(1).state == e.IBV_PORT_ACTIVE


def test_vectors(names):
    """CQs can be created with every completion vector of the device, and with no other."""
    a, b = pair(names)
    count = a.ctx.num_comp_vectors
    assert count >= 1
    for vector in range(count):
        CQ(a.ctx, 10, None, None, vector).close()
    refused(22, CQ, a.ctx, 10, None, None, count)


def test_posts_by_state(names):
    """Sends before RTS are refused and not sent later; receives posted in INIT are used; in RTR messages are received."""
    steps = []

    class Watched(Member):
        def modify(self, attr, mask):
            steps.append(self.state())
            if steps[-1] in (e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR):
                refused(22, self.post, e.IBV_WR_SEND, self.sge(10))
            if steps[-1] == e.IBV_QPS_INIT:
                self.recv(self.sge(500), wr_id=11)
            if steps[-1] == e.IBV_QPS_RTR:
                a.post(e.IBV_WR_SEND, a.sge(300))
                a.complete()
                wc = self.complete()
                assert (wc.wr_id, wc.byte_len) == (11, 300)
            super().modify(attr, mask)

    a, b = (kind(names[n], int(names[n + 1]), "RC", 0) for n, kind in ((0, Member), (2, Watched)))
    a.join(b)
    b.join(a)
    assert steps == [e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR], steps
    a.recv(a.sge(500))
    a.no_completion(0.2)
    b.post(e.IBV_WR_SEND, b.sge(20))
    assert b.complete().wr_id == 2 and a.complete().byte_len == 20
    # In the error state earlier and later requests are flushed in order; after a reset the queue pair can be used again.
    for n in range(3):
        b.recv(b.sge(100), wr_id=n)
    to_state(b, e.IBV_QPS_ERR)
    b.recv(b.sge(100), wr_id=3)
    for n in (4, 5):
        b.post(e.IBV_WR_SEND, b.sge(10), wr_id=n)
    flushed = [b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id for _ in range(6)]
    assert [n for n in flushed if n < 4] == [0, 1, 2, 3] and [n for n in flushed if n > 3] == [4, 5], flushed
    to_state(a, e.IBV_QPS_RESET)
    to_state(b, e.IBV_QPS_RESET)
    a.join(b)
    b.join(a)
    message(a, b)
    message(b, a)


def test_receives_posted_in_error(names):
    """Receive requests that a process posts in the error state are flushed, although librxe does not call the driver for them."""
    for make in (pair, unreliable_pair, datagram_pair):
        b = make(names)[1]
        to_state(b, e.IBV_QPS_ERR)
        b.no_completion(0.2)
        for n in range(3):
            b.recv(b.sge(100), wr_id=n)
            assert b.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == n
        b.no_completion(0.2)


def test_receives_posted_after_a_send_error(names):
    """The same if a request has failed as soon as it was posted, without any call behind that."""
    for requests in (1, 2, 3):
        a = pair(names)[0]
        for _ in range(requests):
            a.post(e.IBV_WR_SEND, a.sge(100, key=a.mr.lkey ^ 0x5500))
        a.complete(e.IBV_WC_LOC_PROT_ERR)
        for _ in range(requests - 1):
            a.complete(e.IBV_WC_WR_FLUSH_ERR)
        a.recv(a.sge(100), wr_id=5)
        assert a.complete(e.IBV_WC_WR_FLUSH_ERR).wr_id == 5


def test_refused_change_while_sending(names):
    """A request completes although changes to ERR are asked for and refused meanwhile: a queue pair about to stop sends what it owes, and so
    takes over the sending from another context."""
    a, b = pair(names, qp_type=e.IBV_QPT_UC, size=32 << 20)
    attributes = (ctypes.c_int * 64)(e.IBV_QPS_ERR, e.IBV_QPS_SQD)
    mask = ctypes.c_int(e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
    for _ in range(20):
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
        for _ in range(3):
            assert VERBS.ibv_modify_qp(ctypes.c_void_p(pointer_of(a.qp)), attributes, mask) == errno.EINVAL
        a.complete()


def test_numbers(names):
    """QPNs have 24 bits, are never 0 or 1 nor predictable, and are not reused within half a minute."""
    end = End(names[0], int(names[1]))
    cap = QPCap(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    seen = []
    start = time.monotonic()
    while len(seen) < 3500 and time.monotonic() - start < 25:
        qp = QP(end.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=end.cq, rcq=end.cq, cap=cap))
        seen.append(qp.qp_num)
        qp.close()
    assert len(seen) > 1000, f"only {len(seen)} queue pairs in 25 s"
    assert all(1 < n < 0xFFFFFF for n in seen)
    # QPNs that agree in 20 bits are in quarantine together; with random QPNs, about six pairs would agree.
    assert len({n & 0xFFFFF for n in seen}) == len(seen), "a QPN was reused at once"
    steps = {(y - x) % (1 << 24) for x, y in zip(seen, seen[1:])}
    assert len(steps) > len(seen) * 9 // 10, "the next QPN is predictable"


class Peer:
    """The attributes of a peer that End.connect uses."""

    def __init__(self, device, gid_index, number):
        self.ctx, self.gid_index, self.qp = Context(name=device), gid_index, self
        self.qp_num = number


def closed_at_once(names, close_qp):
    """A queue pair may be closed right after a completion was polled: earlier messages are acknowledged nevertheless. The receiver is a
    child process, which polls the first completion while later packets of the same RX batch are being received."""
    rounds, messages, size = 100, 60, 1024
    here, there = os.pipe(), os.pipe()
    send_number = lambda pipe, number: os.write(pipe[1], number.to_bytes(4, "little"))
    receive_number = lambda pipe: int.from_bytes(os.read(pipe[0], 4), "little") or sys.exit("the other process has ended")
    child = os.fork()
    # Close the other ends of the pipes, so that each process notices if the other one has died.
    for unused in (here[0], there[1]) if child else (there[0], here[1]):
        os.close(unused)
    if not child:
        try:
            for _ in range(rounds):
                b = End(names[2], int(names[3]))
                send_number(there, b.qp.qp_num)
                b.connect(Peer(names[0], int(names[1]), receive_number(here)), 99, 77)
                for _ in range(messages):
                    b.recv(b.sge(size))
                send_number(there, 1)
                while not b.cq.poll(1)[0]:
                    pass
                close_qp(b.qp)
                assert receive_number(here)
                b.qp.close()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    for _ in range(rounds):
        a = End(names[0], int(names[1]))
        send_number(here, a.qp.qp_num)
        a.connect(Peer(names[2], int(names[3]), receive_number(there)), 77, 99, timeout=14)
        assert receive_number(there)
        # A list that keeps references, because a SendWR does not reference the next one.
        chain = [None]
        for _ in range(messages):
            chain.append(SendWR(num_sge=1, sg=[a.sge(size)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED, next_wr=chain[-1]))
        a.qp.post_send(chain[-1])
        a.complete()
        send_number(here, 1)
        a.qp.close()
    assert os.waitpid(child, 0)[1] == 0


def test_destroyed_at_once(names):
    closed_at_once(names, lambda qp: qp.close())


def test_failed_at_once(names):
    closed_at_once(names, lambda qp: qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE))


def test_reset_at_once(names):
    closed_at_once(names, lambda qp: qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE))
