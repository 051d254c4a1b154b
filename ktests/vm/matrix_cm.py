#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""As matrix.py, where librdmacm makes the connection: path MTU, READs at once, multicast groups.

matrix_cm.py DEVICE-A GID-INDEX-A DEVICE-B ADDRESS-A ADDRESS-B CASE

Both sides are in this process, each in the network namespace of its name (a, b). Case names are the functions below.
"""
import errno
import subprocess
import sys

from pyverbs.addr import AH
from pyverbs.cmid import AddrInfo, ConnParam, UDParam
from pyverbs.cq import CQ
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPCap, QPInitAttr
import pyverbs.cm_enums as ce
import pyverbs.enums as e

from lib.cm import ALL, EVERYBODY, Side, asked, namespace
from lib.counters import counters
from lib.ends import soon
from lib.mcast import Endpoint, Node, gid_of
from lib.pkeys import put
from matrix import INV_REQ

GROUP = "239.77.1.9"
# Every group of the port space RDMA_PS_UDP has it (rdma_cma.h).
QKEY = 0x01234567


def connected(names, wanted, granted, ignored_depth=None):
    """A connection; `wanted` by the client and `granted` by the server are (READs accepted, READs made) at once."""
    client, server = asked(names, Side.queue_pair, resources=wanted[0], depth=wanted[1])
    # What is told to the peer is what the queue pair is to have: the kernel says so from then on.
    server.id.accept(ConnParam(resources=granted[0], depth=granted[1], qp_num=server.qp.qp_num))
    server.to_rts()
    client.wait(ce.RDMA_CM_EVENT_CONNECT_RESPONSE)
    client.to_rts(ignored_depth)
    client.id.establish()
    server.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
    return client, server


def path_mtu(names):
    """The client's port says which path MTU both use. One that the server's port does not carry: accepting fails at the server (EINVAL),
    and the client hears that it has been rejected."""
    def mtu(node, size):
        subprocess.run(["ip", "-n", node, "link", "set", f"v{node}", "mtu", str(size)], check=True)

    def path_mtu_of(side):
        attr, _ = side.id.query_qp(ALL)
        return attr.path_mtu

    try:
        mtu("b", 4200)
        for size, value in ((1500, e.IBV_MTU_1024), (4200, e.IBV_MTU_4096)):
            mtu("a", size)
            client, server = asked(names, Side.known_queue_pair)
            server.id.accept(ConnParam())
            client.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
            server.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
            assert path_mtu_of(client) == path_mtu_of(server) == value, (path_mtu_of(client), path_mtu_of(server))
            client.passes(server)
        mtu("b", 1500)
        client, server = asked(names, Side.known_queue_pair)
        try:
            server.id.accept(ConnParam())
        except PyverbsRDMAError as error:
            assert "Invalid argument" in str(error), error
        else:
            raise AssertionError("accepted with a path MTU of 4096 over 1500 bytes")
        server.id.reject(b"no")
        client.wait(ce.RDMA_CM_EVENT_REJECTED)
    finally:
        mtu("a", 1500)
        mtu("b", 1500)


def read_depth(names):
    """The server has the last word: its answer sets how many READs each side makes at once."""
    fine = [e.IBV_WC_SUCCESS] * 8
    client, server = connected(names, (4, 4), (4, 4))
    assert client.depths() == server.depths() == (4, 4), (client.depths(), server.depths())
    assert client.reads(server) == server.reads(client) == fine
    # More than is granted is asked for: the client gets what is granted, and its READs wait for each other.
    client, server = connected(names, (8, 8), (1, 2))
    assert client.depths() == (1, 2) and server.depths() == (2, 1), (client.depths(), server.depths())
    assert client.reads(server) == server.reads(client) == fine
    # None is granted: the READ fails at once at the client, nothing goes out.
    client, server = connected(names, (4, 4), (0, 4))
    assert client.depths() == (0, 4)
    assert client.reads(server) == [e.IBV_WC_LOC_QP_OP_ERR] + [e.IBV_WC_WR_FLUSH_ERR] * 7
    assert server.state() == e.IBV_QPS_RTS
    # A client that makes more of them than was agreed: an invalid request, and both sides are in error.
    client, server = connected(names, (8, 8), (1, 1), ignored_depth=8)
    assert client.depths() == (8, 1)
    seen = client.reads(server)
    assert INV_REQ in seen and set(seen[seen.index(INV_REQ) + 1:]) <= {e.IBV_WC_WR_FLUSH_ERR}, seen
    assert client.state() == e.IBV_QPS_ERR
    soon(lambda: server.state() == e.IBV_QPS_ERR)
    # More than the device can do (255 stands for that) is refused before anything is sent.
    try:
        connected(names, (4, 254), (4, 4))
    except PyverbsRDMAError as error:
        assert error.error_code == errno.EINVAL or "Invalid argument" in str(error), error
    else:
        raise AssertionError("254 READs at once")


class Member(Side):
    """Joins the group through the connection manager, unless told not to."""

    def __init__(self, place, address, join=True):
        super().__init__(place, ce.RDMA_PS_UDP)
        with namespace(place):
            self.id.bind_addr(AddrInfo(src=address, port_space=ce.RDMA_PS_UDP, flags=ce.RAI_PASSIVE))
            self.id.resolve_addr(AddrInfo(src=address, dst=GROUP, port_space=ce.RDMA_PS_UDP))
            self.wait(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
            self.cq = CQ(self.id.context, 64)
            cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
            self.id.create_qp(QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
            self.mr = self.id.reg_msgs(2048)
            if join:
                self.join()

    def join(self):
        self.id.join_multicast(addr=AddrInfo(src=GROUP))
        event = self.event(ce.RDMA_CM_EVENT_MULTICAST_JOIN)
        param = UDParam(event)
        event.ack_cm_event()
        assert param.qp_num == EVERYBODY and param.qkey == QKEY, (param.qp_num, param.qkey)
        self.ah = AH(self.id.pd, attr=param.ah_attr)

    def send(self, text):
        self.mr.write(text, len(text))
        self.id.post_ud_send(self.mr, self.ah, rqpn=EVERYBODY, length=len(text))
        assert self.poll().status == e.IBV_WC_SUCCESS, "a sender to a group does not learn who got it"

    def listen(self):
        self.id.post_recv(self.mr)

    def gets(self, text):
        wc = self.poll()
        assert wc.status == e.IBV_WC_SUCCESS and wc.byte_len == 40 + len(text), (wc.status, wc.byte_len)
        assert self.mr.read(len(text), 40) == text
        self.listen()

    def gets_nothing(self):
        assert not self.cq.poll(1)[0], f"{self.place} got it"


def multicast(names):
    """Who has joined gets a copy. Who has not, has left, is in another partition or has another Q_Key gets nothing; the sender sees no
    difference, and the receiving device counts why."""
    sender = Member("a", names[3])
    member, other, stranger = Member("b", names[4]), Member("b", names[4]), Member("b", names[4], join=False)
    everybody = [member, other, stranger]
    for end in everybody:
        end.listen()

    def heard(text, *by, counter=None, send=sender.send):
        before = counters(names[2])
        send(text)
        for end in by:
            end.gets(text)
        if counter:
            soon(lambda: counters(names[2])[counter] > before[counter])
        else:
            assert counters(names[2])["rx_bad_qkey"] == before["rx_bad_qkey"]
        for end in everybody:
            end.gets_nothing()

    heard(b"to all members", member, other)
    with namespace("b"):
        other.id.leave_multicast(AddrInfo(src=GROUP))
    heard(b"to one", member)
    with namespace("b"):
        stranger.join()
    heard(b"to who came late", member, stranger)
    # From the same address with the right key and with a wrong one, by the verbs alone.
    plain = Endpoint(Node(names[0], names[1]), qkey=QKEY)
    to_group = plain.node.path(gid_of(GROUP))

    def with_key(qkey):
        def send(text):
            plain.send(to_group, text, qkey=qkey)
            plain.sent()
        return send

    heard(b"right key", member, stranger, send=with_key(QKEY))
    heard(b"wrong key", counter="rx_bad_qkey", send=with_key(QKEY + 1))
    put(names[2], 0, 0x8077)
    try:
        heard(b"other partition", counter="rx_bad_pkey")
    finally:
        put(names[2], 0, 0xFFFF)
    heard(b"and back", member, stranger)


CASES = [path_mtu, read_depth, multicast]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[6]](sys.argv[1:6])
    print("right")
