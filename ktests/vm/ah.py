# SPDX-License-Identifier: GPL-2.0
"""Address handles of libraries that do not know their numbers, such as librxe before rdma-core 39: the response to the creation of one has no
room for a number, and requests contain the address vector. Requests are written to the send queue directly. Also handles whose route goes.
"""
import contextlib
import ctypes
import struct

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.pd import PD
from pyverbs.qp import QPAttr
import pyverbs.enums as e

from lib import host, rings, uverbs
from lib.counters import counter
from lib.ends import QKEY, datagram, datagram_pair, soon
from lib.libibverbs import pointer_of

# Of `struct ibv_qp`.
HANDLE = 48
# The fields of a datagram request: QP number, Q_Key, P_Key index, number of the address handle.
DATAGRAM = "=IIIIQQ"
# The address vector: port, network type, Ethernet address, GID, flow label, source GID, hop limit, traffic class.
VECTOR = "=BB6s16sIBBB"


class Sender:
    """Sends datagrams from a to b as such a library does."""

    def __init__(self, names):
        self.a, self.b, handle = datagram_pair(names)
        handle.close()
        # librxe keeps the addresses of the queues behind its `struct ibv_qp`; the elements of a send queue are the larger ones.
        words = struct.unpack("=128Q", ctypes.string_at(pointer_of(self.a.qp), 1024))
        self.ring = next(ring for ring in rings.mapped() if ring.address in words and ring.log2 >= 8)
        self.gid = uverbs.gid_bytes(self.b.ctx.query_gid(1, self.b.gid_index))
        self.fd, self.posted = self.a.ctx.cmd_fd, 0

    def create(self, pd=None, **vector):
        return uverbs.create_ah(self.fd, (pd or self.a.pd).handle, self.gid, self.a.gid_index, numbered=False, **vector)[0]

    def send(self, data, flow_label=0, traffic_class=0, number=0):
        self.posted += 1
        self.a.mr.write(data, len(data))
        own = struct.pack(DATAGRAM, self.b.qp.qp_num, QKEY, 0, number, 0, 0)
        own += struct.pack(VECTOR, 1, 2, b"", self.gid, flow_label, self.a.gid_index, 0, traffic_class)
        head = struct.pack("=QIIII", self.posted, 0, e.IBV_WR_SEND.value, e.IBV_SEND_SIGNALED.value, 0)
        dma = struct.pack("=IIIIII", len(data), 0, 0, 1, 0, 0)
        request = head + own.ljust(160, b"\0") + dma + struct.pack("=QII", self.a.mr.buf, len(data), self.a.mr.lkey)
        self.ring.write(rings.HEADER + ((self.ring.next & self.ring.mask) << self.ring.log2), request)
        self.ring.next += 1
        self.ring.number(rings.PRODUCER, self.ring.next & self.ring.mask)
        handle = int.from_bytes(ctypes.string_at(pointer_of(self.a.qp) + HANDLE, 4), "little")
        response = ctypes.create_string_buffer(4)
        uverbs.command(self.fd, rings.POST_SEND, struct.pack("=QIIII", ctypes.addressof(response), handle, 0, 0, 128), 4)

    def arrives(self, data, **vector):
        self.b.recv(self.b.sge(4096))
        self.send(data, **vector)
        self.a.complete()
        self.b.complete()
        assert self.b.mr.read(len(data), 40) == data

    def refused(self, **vector):
        """The request completes with an error, and the queue pair can be used again."""
        self.send(b"to nobody", **vector)
        self.a.complete(e.IBV_WC_LOC_QP_OP_ERR)
        assert self.a.state() == e.IBV_QPS_SQE
        self.a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS, cur_qp_state=e.IBV_QPS_SQE), e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)


def test_number_of_a_destroyed_handle(names):
    """The number of a handle leads to its path as long as the handle exists."""
    sender = Sender(names)
    handle, number = uverbs.create_ah(sender.fd, sender.a.pd.handle, sender.gid, sender.a.gid_index)
    assert number
    sender.arrives(b"by number", number=number)
    uverbs.destroy_ah(sender.fd, handle)
    sender.refused(number=number)


def test_by_vector(names):
    """A datagram takes the path of the handle of its vector, as long as one exists: flow label and traffic class are parts of it."""
    sender = Sender(names)
    sender.refused()
    first, second = sender.create(), sender.create()
    other = sender.create(flow_label=5, traffic_class=8)
    sender.arrives(b"first")
    sender.arrives(b"other", flow_label=5, traffic_class=8)
    sender.refused(flow_label=5)
    sender.refused(traffic_class=8)
    uverbs.destroy_ah(sender.fd, first)
    sender.arrives(b"second")
    uverbs.destroy_ah(sender.fd, second)
    sender.refused()
    uverbs.destroy_ah(sender.fd, other)
    sender.refused(flow_label=5, traffic_class=8)


def test_vector_of_another_domain(names):
    """A handle of another protection domain with the same vector is none of this queue pair."""
    sender = Sender(names)
    pd = PD(sender.a.ctx)
    foreign = sender.create(pd)
    sender.refused()
    own = sender.create()
    sender.arrives(b"own")
    uverbs.destroy_ah(sender.fd, foreign)
    sender.arrives(b"still there")
    uverbs.destroy_ah(sender.fd, own)
    sender.refused()
    pd.close()


def test_many_vectors(names):
    """Hundreds of vectors, created and destroyed in another order, keep apart."""
    sender = Sender(names)
    handles = {label: sender.create(flow_label=label) for label in range(1, 600)}
    for label in (1, 300, 599):
        sender.arrives(b"%d" % label, flow_label=label)
    for label in range(1, 600, 2):
        uverbs.destroy_ah(sender.fd, handles.pop(label))
    for label in (2, 300, 598):
        sender.arrives(b"%d" % label, flow_label=label)
    for label in (1, 301, 599, 600):
        sender.refused(flow_label=label)
    for handle in handles.values():
        uverbs.destroy_ah(sender.fd, handle)


@contextlib.contextmanager
def second_addresses():
    """Both devices have another address; yields the indexes of their GIDs."""
    each = 'for n in a b; do on $n ip addr "$1" "10.79.0.$(number $n)/24" dev v$n || [ "$1" = del ]; done'
    host.shell(each, "add")
    try:
        yield [int(host.gid_index(host.device(node), f"10.79.0.{number}")) for node, number in host.NODES.items()]
    finally:
        host.shell(each, "del")


def test_route_goes(names):
    """Datagrams without a route are lost, and others of the same queue pair do not wait for it: the address from which a handle sends is
    deleted."""
    a, b, stays = datagram_pair(names)
    with second_addresses() as (sgid_index, dgid_index):
        route = GlobalRoute(dgid=b.ctx.query_gid(1, dgid_index), sgid_index=sgid_index, hop_limit=64)
        goes = AH(a.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
        for number in range(2):
            b.recv(b.sge(4096))
            datagram(a, b, goes, number)
            a.complete()
            if number == 0:
                b.complete()
                # The handle keeps the entry of the GID table.
                host.shell("on a ip addr del 10.79.0.1/24 dev va")
                lost = counter(names[0], "send_err")
        datagram(a, b, stays, 2)
        a.complete()
        b.complete()
        soon(lambda: counter(names[0], "send_err") == lost + 1)
        goes.close()
