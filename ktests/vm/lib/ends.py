# SPDX-License-Identifier: GPL-2.0
"""End points: a queue pair and the objects that it needs, connected pairs of them in one process, and waiting."""
import contextlib
import copy
import errno
import signal
import threading
import time
import traceback
import types

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
MTU = 1024


class End:
    """A device with one protection domain, completion queue, queue pair and memory region."""

    def __init__(self, name, gid_index, size=65536, access=ACCESS, depth=64, qp_type=e.IBV_QPT_RC, sges=4, inline=0,
                 events=False, vector=0, cqe=None):
        self.ctx = Context(name=name)
        self.gid_index = gid_index
        self.pd = PD(self.ctx)
        self.channel = CompChannel(self.ctx) if events else None
        self.cq = CQ(self.ctx, cqe or 4 * depth, None, self.channel, vector)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sges, max_recv_sge=sges, max_inline_data=inline)
        self.init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, self.init)
        self.mr = MR(self.pd, size, access)
        self.size = size

    def with_another_qp(self):
        """This end with one more queue pair in place of its own; both have the same completion queue. It is not connected."""
        end = copy.copy(self)
        end.qp = QP(self.pd, self.init)
        return end

    def connect(self, other, psn, other_psn, retries=6, timeout=16, rnr_retries=6, mtu=e.IBV_MTU_1024, rights=ACCESS,
                rtr=False):
        """Connects to another end: up to RTS, or RTR."""
        gid = other.ctx.query_gid(1, other.gid_index)
        route = GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = rights
        self.qp.to_init(attr)
        attr = QPAttr(port_num=1)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.path_mtu = mtu
        attr.dest_qp_num = other.qp.qp_num
        attr.rq_psn = other_psn
        attr.min_rnr_timer = 12
        attr.max_dest_rd_atomic = 8
        attr.qp_access_flags = rights
        attr.sq_psn = psn
        attr.timeout = timeout
        attr.retry_cnt = retries
        attr.rnr_retry = rnr_retries
        attr.max_rd_atomic = 8
        (self.qp.to_rtr if rtr else self.qp.to_rts)(attr)

    def sge(self, length=None, offset=0, key=None):
        return SGE(self.mr.buf + offset, self.size if length is None else length, self.mr.lkey if key is None else key)

    def recv(self, *sges, wr_id=1):
        # pyverbs requires a non-empty list; an SGE of length 0 stands for none.
        self.qp.post_recv(RecvWR(num_sge=max(1, len(sges)), sg=list(sges) or [self.sge(0)], wr_id=wr_id))

    def post(self, opcode, *sges, wr_id=2, flags=e.IBV_SEND_SIGNALED, remote=None, imm=None):
        wr = SendWR(wr_id=wr_id, num_sge=max(1, len(sges)), sg=list(sges) or [self.sge(0)], opcode=opcode, send_flags=flags)
        if imm is not None:
            wr.imm_data = imm
        if remote:
            wr.set_wr_rdma(remote[1], remote[0])
        self.qp.post_send(wr)

    def complete(self, status=e.IBV_WC_SUCCESS, seconds=20):
        wc = completion(self.cq, seconds)
        assert wc, f"no completion within {seconds} s, expected status {status}"
        assert wc.status == status, f"status {wc.status} (vendor {wc.vendor_err}), expected {status}"
        return wc

    def no_completion(self, seconds=0.3):
        wc = completion(self.cq, seconds)
        assert not wc, f"unexpected completion, status {wc.status}"

    def state(self):
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return attr.qp_state


class Remote:
    """An end of another process, as far as `End.connect` and `ties.handle_of` need it."""

    def __init__(self, name, gid_index, qpn):
        self.ctx, self.gid_index, self.qp = Context(name=name), int(gid_index), types.SimpleNamespace(qp_num=qpn)


def pattern(length, seed=1):
    block = bytes((i * 7 + seed + (i >> 8)) & 0xFF for i in range(4096))
    return (block * (length // 4096 + 1))[:length]


def both(names, **options):
    """Two ends that are not connected. Options that begin with `b_` are for the second one only."""
    b_options = {k[2:]: options.pop(k) for k in list(options) if k.startswith("b_")}
    return End(names[0], int(names[1]), **options), End(names[2], int(names[3]), **{**options, **b_options})


def pair(names, **options):
    retry = {k: options.pop(k) for k in ("retries", "timeout", "rnr_retries", "mtu") if k in options}
    a, b = both(names, **options)
    # Close to the end of the 24-bit PSN space, so that the PSN wraps in most tests.
    a.connect(b, 0xFFFFFE, 0x000123, **retry)
    b.connect(a, 0x000123, 0xFFFFFE, **retry)
    return a, b


def write_and_read(a, b, data):
    """A WRITE of the data, and a READ of the same backwards, both checked."""
    size = len(data)
    a.mr.write(data, size)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(size), remote=(b.mr.buf, b.mr.rkey))
    a.complete()
    assert b.mr.read(size, 0) == data, "a WRITE wrote wrong data"
    b.mr.write(data[::-1], size)
    a.post(e.IBV_WR_RDMA_READ, a.sge(size), remote=(b.mr.buf, b.mr.rkey))
    a.complete()
    assert a.mr.read(size, 0) == data[::-1], "a READ read wrong data"


def notified(end, seconds):
    """Whether a completion event arrives in time. The signal that ends the wait is repeated: it may arrive before the wait begins."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.02)
    try:
        end.channel.get_cq_event(end.cq)
    except PyverbsRDMAError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    end.cq.ack_events(1)
    return True


QKEY = 0x4321


def happens(condition, seconds=10):
    """Waits for a condition; returns whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def in_thread(function):
    """Runs `function` in another thread, with an event that tells it to end. An exception in it fails the test at the end of the block:
    Python prints those of threads, and goes on."""
    stop, failures = threading.Event(), []

    def run():
        try:
            function(stop)
        except BaseException as problem:
            traceback.print_exc()
            failures.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, f"another thread has failed: {failures[0]!r}"


def soon(condition, seconds=10, what="the condition did not become true"):
    """Waits for a condition, which must become true."""
    assert happens(condition, seconds), what


def completion(cq, seconds):
    """Returns the next completion, or None if there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        late = time.monotonic() > deadline
        count, wcs = cq.poll(1)
        if count or late:
            return wcs[0] if count else None
        time.sleep(0.001)


def ah_attr(end, other):
    """The address handle attributes of the path from one end to the other."""
    route = GlobalRoute(dgid=other.ctx.query_gid(1, other.gid_index), sgid_index=end.gid_index, hop_limit=64)
    return AHAttr(gr=route, is_global=1, port_num=1)


def datagram_pair(names, **options):
    """Two UD queue pairs, and an address handle of the first one for the second one."""
    a, b = both(names, qp_type=e.IBV_QPT_UD, **options)
    for end in (a, b):
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        end.qp.to_rts(attr)
    return a, b, AH(a.pd, attr=ah_attr(a, b))


def datagram(a, b, ah, wr_id, key=None, length=100):
    wr = SendWR(wr_id=wr_id, num_sge=1, sg=[a.sge(length, key=key)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_ud(ah, b.qp.qp_num, QKEY)
    a.qp.post_send(wr)


def connect(end, other, traffic_class, flow_label=0, retries=6):
    route = GlobalRoute(dgid=other.ctx.query_gid(1, other.gid_index), sgid_index=end.gid_index, hop_limit=64,
                        traffic_class=traffic_class, flow_label=flow_label)
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ACCESS
    end.qp.to_init(attr)
    attr = QPAttr(port_num=1)
    attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = other.qp.qp_num
    attr.min_rnr_timer = 12
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 8
    attr.qp_access_flags = ACCESS
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, retries, 6
    end.qp.to_rts(attr)


def async_event(ctx, seconds):
    """Returns the type of the next asynchronous event, or None if there is none in time. As for `notified` the signal is repeated."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.02)
    try:
        event = ctx.get_async_event()
    except PyverbsRDMAError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    kind = event.event_type
    event.ack()
    return kind


def refused(code, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except PyverbsRDMAError as error:
        assert error.error_code == code, f"{error}, expected {errno.errorcode[code]}"
        return
    raise AssertionError(f"accepted, expected {errno.errorcode[code]}")
