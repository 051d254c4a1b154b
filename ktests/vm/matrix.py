# SPDX-License-Identifier: GPL-2.0
"""Attributes in which the two sides of a connection must agree: each with equal and with different values.

For different values the tests check the status of the requester's work request (UD and UC requesters get no error), the counter of the
receiver that rises, and the state of the receiver. Both queue pairs are in this process.
"""
import errno
import subprocess

from pyverbs.addr import AH, GID
from pyverbs.cmid import AddrInfo, ConnParam, UDParam
from pyverbs.cq import CQ
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SendWR
import pyverbs.cm_enums as ce
import pyverbs.enums as e

from lib import host
from lib.cm import ALL, MULTICAST_QPN, Side, requested, namespace
from lib.counters import counters, so_far, stays
from lib.ends import soon
from lib.mcast import Endpoint, Node, gid_of
from lib.pkeys import TYPES, Member, put

DEFAULTS = dict(driver="rxe_rs", reason="rdma_rxe has no counters of drop reasons")
# A second address of node a.
OTHER = "10.77.0.99"
RETRY_EXC, INV_REQ = e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_REM_INV_REQ_ERR


def sides(names, kind, index=0, a_wrong=None, b_wrong=None, b_index=None):
    """Two queue pairs whose attributes agree except for the given ones."""
    a = Member(names[0], int(names[1]), kind, index)
    b = Member(names[2], int(names[3]), kind, index if b_index is None else b_index)
    a.join(b, **(a_wrong or {}))
    b.join(a, **(b_wrong or {}))
    b.recv(b.sge())
    return a, b


def passes(a, b, text=b"agreed"):
    a.send(text)
    a.complete()
    b.received(text)


def dropped(names, a, b, counter, status=RETRY_EXC, text=b"in vain", **options):
    """A message of a is dropped; b counts it and stays in RTS."""
    before = so_far(counters, names[2])
    a.send(text, **options)
    a.complete(status if a.kind == "RC" else e.IBV_WC_SUCCESS)
    b.no_completion(0.1)
    assert b.state() == e.IBV_QPS_RTS, f"{a.kind}: B is in state {b.state()}"
    after = counters(names[2])
    assert after[counter] > before[counter], f"{a.kind}: {counter} of the receiver did not rise"


def test_pkey(names):
    """Different partitions: packets are dropped without a response, and RC exceeds its retries."""
    entries = ((names[0], 20, 0x8055), (names[2], 20, 0x8055), (names[2], 21, 0x8056))
    try:
        for entry in entries:
            put(*entry)
        for kind in TYPES:
            passes(*sides(names, kind, 20))
            dropped(names, *sides(names, kind, 20, b_index=21), "rx_bad_pkey")
    finally:
        for device, index, _ in entries:
            put(device, index, 0)


def test_psn(names):
    """RC: a PSN ahead of the expected one gets a NAK, which matches no outstanding request, until the retries are exceeded. A PSN behind it
    is a duplicate: acknowledged and not executed, so the requester succeeds. UC accepts the first packet of a message with any PSN; UD
    does not check the PSN."""
    passes(*sides(names, "RC"))
    dropped(names, *sides(names, "RC", a_wrong={"sq_psn": 6}), "out_of_seq_request")
    dropped(names, *sides(names, "RC", a_wrong={"sq_psn": 4}), "duplicate_request", e.IBV_WC_SUCCESS)
    for kind in ("UC", "UD"):
        passes(*sides(names, kind, a_wrong={"sq_psn": 1000}))


def test_destination(names):
    """A destination QPN without a queue pair, and one of another service type."""
    unused = 0x00FFFE
    for kind in TYPES:
        passes(*sides(names, kind))
        dropped(names, *sides(names, kind, a_wrong={"dest": unused}), "rx_no_qp")
        # A queue pair of another service type.
        other = Member(names[2], int(names[3]), "UD" if kind == "RC" else "RC", 0)
        other.join(Member(names[0], int(names[1]), other.kind, 0))
        dropped(names, *sides(names, kind, a_wrong={"dest": other.qp.qp_num}), "rx_wrong_transport")


def test_path_mtu(names):
    """Messages of one packet pass while they fit; a longer message differs from the first packet on. RC: an invalid request, on which both
    fail; UC: dropped; UD: a datagram is one packet, and its limit is the sender's own active MTU."""
    long = bytes(range(250)) * 6
    for kind in ("RC", "UC"):
        a, b = sides(names, kind, a_wrong={"mtu": e.IBV_MTU_512}, b_wrong={"mtu": e.IBV_MTU_512})
        passes(a, b, long)
        for mine, peers in ((e.IBV_MTU_512, e.IBV_MTU_1024), (e.IBV_MTU_1024, e.IBV_MTU_512)):
            a, b = sides(names, kind, a_wrong={"mtu": mine}, b_wrong={"mtu": peers})
            passes(a, b, b"short")
            b.recv(b.sge())
            a.send(long)
            if kind == "RC":
                a.complete(INV_REQ)
                b.complete(e.IBV_WC_WR_FLUSH_ERR)
                assert b.state() == e.IBV_QPS_ERR
            else:
                a.complete()
                b.no_completion(0.1)
                assert b.state() == e.IBV_QPS_RTS
    a, b = sides(names, "UD")
    a.send(long * 4)
    a.complete(e.IBV_WC_LOC_LEN_ERR)


def test_read_depth(names):
    """More outstanding READs than the responder has resources for are an invalid request."""
    for mine, peers, status in ((4, 4, e.IBV_WC_SUCCESS), (1, 8, e.IBV_WC_SUCCESS), (8, 1, INV_REQ), (1, 0, INV_REQ)):
        a, b = sides(names, "RC", a_wrong={"depth": mine}, b_wrong={"peer_depth": peers})
        # Posted as one list, so that they are in flight together.
        chain = [None]
        for n in range(8):
            wr = SendWR(wr_id=n, num_sge=1, sg=[a.sge(4096, 4096 * n)], opcode=e.IBV_WR_RDMA_READ, send_flags=e.IBV_SEND_SIGNALED,
                        next_wr=chain[-1])
            wr.set_wr_rdma(b.mr.rkey, b.mr.buf)
            chain.append(wr)
        a.qp.post_send(chain[-1])
        seen = []
        soon(lambda: seen.extend(wc.status for wc in a.cq.poll(8)[1] or ()) or len(seen) == 8)
        if status == e.IBV_WC_SUCCESS:
            assert seen == [status] * 8, seen
        else:
            assert status in seen and e.IBV_WC_SUCCESS not in seen[seen.index(status):], f"{mine} against {peers}: {seen}"


def test_port(names):
    """The device has one port; another one is refused by modify_qp."""
    for kind in TYPES:
        end = Member(names[0], int(names[1]), kind, 0)
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=2)
        mask = e.IBV_QP_STATE | e.IBV_QP_PORT | e.IBV_QP_PKEY_INDEX
        mask |= e.IBV_QP_QKEY if kind == "UD" else e.IBV_QP_ACCESS_FLAGS
        try:
            end.qp.modify(attr, mask)
        except PyverbsRDMAError as error:
            assert error.error_code == errno.EINVAL
        else:
            raise AssertionError(f"{kind}: port 2 accepted")


def test_gid(names):
    """A path to a GID that no host has fails at once, because the core resolves the neighbour. A peer whose path has another
    GID drops the packets, because they do not come from the address that it expects."""
    ours = Member(names[0], int(names[1]), "UD", 0)
    subprocess.run(["ip", "-n", "a", "addr", "replace", f"{OTHER}/24", "dev", "va"], check=True)
    try:
        other_gid = ours.ctx.query_gid(1, int(host.gid_index(names[0], OTHER)))
        unused_gid = GID(str(other_gid.gid)[:-2] + "c8")
        for kind in TYPES:
            passes(*sides(names, kind))
            try:
                sides(names, kind, a_wrong={"gid": unused_gid})
            except PyverbsRDMAError as error:
                assert errno.ETIMEDOUT in (error.error_code,) or "Connection timed out" in str(error), error
            else:
                raise AssertionError(f"{kind}: a path to a GID that no host has")
            if kind != "UD":
                dropped(names, *sides(names, kind, b_wrong={"gid": other_gid}), "rx_bad_peer")
    finally:
        subprocess.run(["ip", "-n", "a", "addr", "del", f"{OTHER}/24", "dev", "va"], check=True)


def test_qkey(names):
    """UD only: the Q_Key must be that of b's queue pair, whatever that of a's is."""
    passes(*sides(names, "UD", a_wrong={"qkey": 0x77}))
    a, b = sides(names, "UD", b_wrong={"qkey": 0x77})
    before = b.ctx.query_port(1).qkey_viol_cntr
    dropped(names, a, b, "rx_bad_qkey")
    assert b.ctx.query_port(1).qkey_viol_cntr == before + 1
    a.send(b"agreed", qkey=0x77)
    a.complete()
    b.received(b"agreed")
    # RC and UC have no Q_Key.
    for kind in ("RC", "UC"):
        passes(*sides(names, kind))


GROUP = "239.77.1.9"
# The Q_Key of the port space RDMA_PS_UDP (rdma_cma.h).
QKEY = 0x01234567


def connected(names, wanted, granted, ignored_depth=None):
    """A connection; `wanted` and `granted` are (responder resources, initiator depth) of the client's REQ and the server's REP."""
    client, server = requested(Side.queue_pair, resources=wanted[0], depth=wanted[1])
    # From then on, the kernel gives the negotiated values for the queue pair.
    server.id.accept(ConnParam(resources=granted[0], depth=granted[1], qp_num=server.qp.qp_num))
    server.to_rts()
    client.wait(ce.RDMA_CM_EVENT_CONNECT_RESPONSE)
    client.to_rts(ignored_depth)
    client.id.establish()
    server.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
    return client, server


def test_cm_path_mtu(names):
    """Both sides use the path MTU of the client's port. If it is above that of the server's port, accepting fails at the server (EINVAL),
    and the client is rejected."""
    def mtu(node, size):
        subprocess.run(["ip", "-n", node, "link", "set", f"v{node}", "mtu", str(size)], check=True)

    def path_mtu_of(side):
        attr, _ = side.id.query_qp(ALL)
        return attr.path_mtu

    try:
        mtu("b", 4200)
        for size, value in ((1500, e.IBV_MTU_1024), (4200, e.IBV_MTU_4096)):
            mtu("a", size)
            client, server = requested(Side.managed_queue_pair)
            server.id.accept(ConnParam())
            client.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
            server.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
            assert path_mtu_of(client) == path_mtu_of(server) == value, (path_mtu_of(client), path_mtu_of(server))
            client.passes(server)
        mtu("b", 1500)
        client, server = requested(Side.managed_queue_pair)
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


def test_cm_read_depth(names):
    """The server's REP determines how many READs each side may have outstanding."""
    fine = [e.IBV_WC_SUCCESS] * 8
    client, server = connected(names, (4, 4), (4, 4))
    assert client.depths() == server.depths() == (4, 4), (client.depths(), server.depths())
    assert client.reads(server) == server.reads(client) == fine
    # The client requests more than is granted: it gets what is granted, and its READs wait for each other.
    client, server = connected(names, (8, 8), (1, 2))
    assert client.depths() == (1, 2) and server.depths() == (2, 1), (client.depths(), server.depths())
    assert client.reads(server) == server.reads(client) == fine
    # None is granted: the READ fails at the client, and nothing is sent.
    client, server = connected(names, (4, 4), (0, 4))
    assert client.depths() == (0, 4)
    assert client.reads(server) == [e.IBV_WC_LOC_QP_OP_ERR] + [e.IBV_WC_WR_FLUSH_ERR] * 7
    assert server.state() == e.IBV_QPS_RTS
    # A client that sends more READs than negotiated: an invalid request, and both sides enter the error state.
    client, server = connected(names, (8, 8), (1, 1), ignored_depth=8)
    assert client.depths() == (8, 1)
    seen = client.reads(server)
    assert INV_REQ in seen and set(seen[seen.index(INV_REQ) + 1:]) <= {e.IBV_WC_WR_FLUSH_ERR}, seen
    assert client.state() == e.IBV_QPS_ERR
    soon(lambda: server.state() == e.IBV_QPS_ERR)
    # More than the device supports (255 means its maximum) is refused before anything is sent.
    try:
        connected(names, (4, 254), (4, 4))
    except PyverbsRDMAError as error:
        assert error.error_code == errno.EINVAL or "Invalid argument" in str(error), error
    else:
        raise AssertionError("254 outstanding READs were accepted")


class GroupMember(Side):
    """A member of the group through the connection manager, unless `join` is false."""

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
        assert param.qp_num == MULTICAST_QPN and param.qkey == QKEY, (param.qp_num, param.qkey)
        self.ah = AH(self.id.pd, attr=param.ah_attr)

    def send(self, text):
        self.mr.write(text, len(text))
        self.id.post_ud_send(self.mr, self.ah, rqpn=MULTICAST_QPN, length=len(text))
        assert self.poll().status == e.IBV_WC_SUCCESS, "sending to a group failed"

    def listen(self):
        self.id.post_recv(self.mr)

    def expect_message(self, text):
        wc = self.poll()
        assert wc.status == e.IBV_WC_SUCCESS and wc.byte_len == 40 + len(text), (wc.status, wc.byte_len)
        assert self.mr.read(len(text), 40) == text
        self.listen()

    def expect_nothing(self):
        assert not self.cq.poll(1)[0], f"{self.place} received a message"


def test_cm_multicast(names):
    """Members of the group receive a copy. Queue pairs that have not joined, have left, are in another partition or have another Q_Key
    receive nothing; the sender gets no error, and the receiving device counts the reason."""
    for node in "ab":
        subprocess.run(["ip", "-n", node, "route", "replace", "224.0.0.0/4", "dev", f"v{node}"], check=True)
    sender = GroupMember("a", host.ip("a", 4))
    member, other, outsider = (GroupMember("b", host.ip("b", 4), join=join) for join in (True, True, False))
    receivers = [member, other, outsider]
    for end in receivers:
        end.listen()

    def check_delivery(text, *by, counter=None, send=sender.send):
        before = so_far(counters, names[2])
        send(text)
        for end in by:
            end.expect_message(text)
        if counter:
            soon(lambda: counters(names[2])[counter] > before[counter])
        else:
            assert stays("rx_bad_qkey", before["rx_bad_qkey"], lambda name: counters(names[2])[name]), f"{text} was counted as rx_bad_qkey"
        for end in receivers:
            end.expect_nothing()

    check_delivery(b"to all members", member, other)
    with namespace("b"):
        other.id.leave_multicast(AddrInfo(src=GROUP))
    check_delivery(b"to one", member)
    with namespace("b"):
        outsider.join()
    check_delivery(b"to later members", member, outsider)
    # Packets from the same address with the right and with a wrong Q_Key, sent without the connection manager.
    plain = Endpoint(Node(names[0], names[1]), qkey=QKEY)
    to_group = plain.node.path(gid_of(GROUP))

    def with_key(qkey):
        def send(text):
            plain.send(to_group, text, qkey=qkey)
            plain.expect_sent()
        return send

    check_delivery(b"right key", member, outsider, send=with_key(QKEY))
    check_delivery(b"wrong key", counter="rx_bad_qkey", send=with_key(QKEY + 1))
    put(names[2], 0, 0x8077)
    try:
        check_delivery(b"other partition", counter="rx_bad_pkey")
    finally:
        put(names[2], 0, 0xFFFF)
    check_delivery(b"and back", member, outsider)
