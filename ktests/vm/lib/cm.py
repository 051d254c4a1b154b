# SPDX-License-Identifier: GPL-2.0
"""Connections established by librdmacm: both sides in one process, each in the network namespace of its name."""
from contextlib import contextmanager
import os

from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.cm_enums as ce
import pyverbs.enums as e

from lib import host
from lib.ends import ACCESS, pattern, soon

PORTS = iter(range(7471, 7500))
ALL, MULTICAST_QPN = 0x1FFFFF, 0xFFFFFF
SIZE = 8 * 4096


@contextmanager
def namespace(name):
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    os.setns(there)
    try:
        yield
    finally:
        os.setns(here)
        os.close(here)
        os.close(there)


class Side:
    """An rdma_cm_id and a queue pair that was not created through it: the connection manager knows only its number."""

    def __init__(self, place, space):
        self.place, self.qp = place, None
        with namespace(place):
            self.channel = CMEventChannel()
            self.id = CMID(creator=self.channel, port_space=space)

    def event(self, kind):
        event = CMEvent(self.channel)
        assert event.event_type == kind, f"{self.place}: {event.event_str()}"
        return event

    def wait(self, kind):
        self.event(kind).ack_cm_event()

    def queue_pair(self):
        self.cq = CQ(self.id.context, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.id.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.mr = MR(self.id.pd, SIZE, ACCESS)

    def managed_queue_pair(self):
        """Creates the queue pair through the rdma_cm_id, so that librdmacm modifies its state."""
        self.cq = CQ(self.id.context, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        self.id.create_qp(QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.mr = self.id.reg_msgs(SIZE)

    def passes(self, other):
        """Sends a message of several packets, whatever the path MTU is, and checks the data."""
        other.id.post_recv(other.mr)
        self.mr.write(pattern(10000, 9), 10000)
        self.id.post_send(self.mr, length=10000)
        assert self.poll().status == e.IBV_WC_SUCCESS and other.poll().byte_len == 10000
        assert other.mr.read(10000, 0) == pattern(10000, 9)

    def poll(self):
        found = []
        soon(lambda: found.extend(self.cq.poll(1)[1] or ()) or found)
        return found[0]

    def to_rts(self, ignored_depth=None):
        """Uses the attributes of the connection manager, or another number of outstanding READs than was negotiated."""
        for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            attr, mask = self.id.init_qp_attr(state)
            if ignored_depth and state == e.IBV_QPS_RTS:
                attr.max_rd_atomic = ignored_depth
            if state == e.IBV_QPS_INIT:
                attr.qp_access_flags = ACCESS
            self.qp.modify(attr, mask)

    def depths(self):
        attr, _ = self.qp.query(ALL)
        return attr.max_rd_atomic, attr.max_dest_rd_atomic

    def state(self):
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return attr.qp_state

    def reads(self, other, count=8):
        """Posts READs as one list, so that they are in flight together. Returns their statuses."""
        other.mr.write(pattern(SIZE, count), SIZE)
        chain = [None]
        for n in reversed(range(count)):
            wr = SendWR(wr_id=n, num_sge=1, sg=[SGE(self.mr.buf + 4096 * n, 4096, self.mr.lkey)], opcode=e.IBV_WR_RDMA_READ,
                        send_flags=e.IBV_SEND_SIGNALED, next_wr=chain[-1])
            wr.set_wr_rdma(other.mr.rkey, other.mr.buf + 4096 * n)
            chain.append(wr)
        self.qp.post_send(chain[-1])
        seen = []
        soon(lambda: seen.extend(wc.status for wc in self.cq.poll(count)[1] or ()) or len(seen) == count)
        if seen == [e.IBV_WC_SUCCESS] * count:
            assert self.mr.read(SIZE, 0) == pattern(SIZE, count), "wrong data"
        return seen


def requested(prepare, **param):
    """A client in a that has sent a REQ, and a server in b that has received it. `prepare` creates the queue pair of each."""
    server, client, service = Side("b", ce.RDMA_PS_TCP), Side("a", ce.RDMA_PS_TCP), str(next(PORTS))
    with namespace("b"):
        server.id.bind_addr(AddrInfo(src=host.ip("b", 4), src_service=service, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE))
        server.id.listen()
    with namespace("a"):
        client.id.resolve_addr(AddrInfo(src=host.ip("a", 4), dst=host.ip("b", 4), dst_service=service, port_space=ce.RDMA_PS_TCP))
        client.wait(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        client.id.resolve_route()
        client.wait(ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
    prepare(client)
    client.id.connect(ConnParam(qp_num=client.qp.qp_num if client.qp else 0, **param))
    event = server.event(ce.RDMA_CM_EVENT_CONNECT_REQUEST)
    server.listening, server.id = server.id, CMID(creator=event, listen_id=server.id)
    event.ack_cm_event()
    prepare(server)
    return client, server
