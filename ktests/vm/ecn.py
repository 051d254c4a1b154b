# SPDX-License-Identifier: GPL-2.0
"""Congestion control by ECN: the queues of slow links mark packets instead of dropping them."""
import contextlib
import json
import socket
import statistics
import struct
import subprocess
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import host
from lib.child_process import child_process
from lib.case import families
from lib.ends import End, connect, pattern
from lib.forging import BECN, CNP
from lib.frames import PORT, icrc, packet_socket

DEFAULTS = dict(timeout=120, driver="rxe_rs", reason="rdma_rxe sends no CNPs")
SIZE = 1 << 20
# What the queue of a link that two senders share holds, with congestion control and without: 64 ms of it.
QUEUE = "400kb"
# UDP payload: BTH, 16 bytes of zero, ICRC.
CNP_BYTES = 12 + 16 + 4


@contextlib.contextmanager
def marking(node, mbit=100, milliseconds=1, room="16mb"):
    """The node sends through a slow link. Its queue marks packets that waited longer than `milliseconds`, and holds `room` bytes."""
    host.shell("""
        modprobe -a sch_tbf sch_fq_codel 2>/dev/null || true
        on $1 tc qdisc replace dev $2 root handle 1: tbf rate $3mbit burst 20kb limit 8mb
        on $1 tc qdisc add dev $2 parent 1: fq_codel flows 1 ecn ce_threshold $4ms limit 10000 memory_limit $5""",
               node, host.netdev(node), mbit, milliseconds, room)
    try:
        yield
    finally:
        host.shell("on $1 tc qdisc del dev $2 root", node, host.netdev(node))


def counters(device):
    names = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled")
    return [int(open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}").read()) for name in names]


def pair(args, class_a, class_b, qp_type=e.IBV_QPT_RC, **options):
    a = End(args[0], int(args[1]), size=SIZE, qp_type=qp_type)
    b = End(args[2], int(args[3]), size=SIZE, qp_type=qp_type)
    connect(a, b, class_a, **options)
    connect(b, a, class_b, **options)
    return a, b


def counter_increments(args, work):
    """Returns the increments of the counters of a and b."""
    before = [counters(args[0]), counters(args[2])]
    work()
    # The RDMA core shows values of up to 10 ms ago, and a CNP may still be in flight.
    time.sleep(0.1)
    after = [counters(args[0]), counters(args[2])]
    return [[y - x for x, y in zip(*both)] for both in zip(before, after)]


def transfer(end, opcode, other, length=None):
    end.post(opcode, end.sge(length), remote=(other.mr.buf, other.mr.rkey))
    end.complete(seconds=60)


def cnps(sock, family):
    """The CNPs among the frames that a packet socket has received: traffic class, IPv4 identification, UDP source port and UDP payload of
    each. GRO may have merged some."""
    found = []
    sock.setblocking(False)
    while True:
        try:
            ip = sock.recv(1 << 17)[14:]
        except BlockingIOError:
            return found
        version, (head, protocol) = ip[0] >> 4, ((ip[0] & 15) * 4, ip[9]) if ip[0] >> 4 == 4 else (40, ip[6])
        if version != family or protocol != socket.IPPROTO_UDP:
            continue
        source_port, port, length = struct.unpack_from("!HHH", ip, head)
        payload = ip[head + 8:head + length]
        if port == PORT and payload[0] == CNP:
            traffic_class = ip[1] if version == 4 else struct.unpack_from("!H", ip)[0] >> 4 & 0xFF
            ident = struct.unpack_from("!H", ip, 4)[0]
            found += [(traffic_class, ident + at // CNP_BYTES & 0xFFFF, source_port, payload[at:at + CNP_BYTES])
                      for at in range(0, len(payload), CNP_BYTES)]


def check_cnp(family, qpn, traffic_class, ident, source_port, payload):
    """A CNP as ConnectX adapters send it: DSCP 48, not ECN-capable, all flags of the BTH clear but BECN, PSN 0, 16 bytes of zero."""
    assert traffic_class == 0xC0, hex(traffic_class)
    data = struct.pack("!BBHII", CNP, 0x00, 0xFFFF, BECN | qpn, 0) + bytes(16)
    assert payload[:-4] == data, payload.hex()
    assert payload[-4:] == icrc(host.ip("b", family), host.ip("a", family), source_port, data, ident), "ICRC"


@families(4, 6)
def test_write_is_slowed(family):
    """The responder of a WRITE sees marked packets and sends CNPs; the requester handles them. The data is correct, and so is each CNP on
    the wire."""
    names = host.names(family)
    wire = packet_socket("a", host.netdev("a"))
    with marking("a"), host.one_cpu("b"):
        # A traffic class of the user applies to data, not to CNPs. Without retries all packets have an ICRC (icrc.py), and none may be
        # lost or arrive out of order.
        a, b = pair(names, 0, 0x28, retries=0)
        data = pattern(SIZE, 3)
        a.mr.write(data, SIZE)
        (seen_a, sent_a, handled_a), (seen_b, sent_b, handled_b) = counter_increments(
            names, lambda: transfer(a, e.IBV_WR_RDMA_WRITE, b))
        assert b.mr.read(SIZE, 0) == data
        print(seen_b, sent_b, handled_a)
        assert 0 < sent_b <= seen_b
        assert 0 < handled_a <= sent_b
        assert (seen_a, sent_a, handled_b) == (0, 0, 0)
        sent = cnps(wire, family)
        assert len(sent) == sent_b, f"{len(sent)} CNPs on the wire, {sent_b} counted"
        for one in sent:
            check_cnp(family, a.qp.qp_num, *one)


@families(4, 6)
def test_read_is_slowed(family):
    """The requester of a READ sees marked packets and sends CNPs; the responder handles them."""
    names = host.names(family)
    with marking("b"):
        a, b = pair(names, 0, 0)
        data = pattern(SIZE, 4)
        b.mr.write(data, SIZE)
        (seen_a, sent_a, _), (_, _, handled_b) = counter_increments(names, lambda: transfer(a, e.IBV_WR_RDMA_READ, b))
        assert a.mr.read(SIZE, 0) == data
        assert 0 < handled_b <= sent_a <= seen_a


@families(4, 6)
def test_unreliable_is_slowed(family):
    """The same as for a WRITE on RC, for UC."""
    names = host.names(family)
    with marking("a"):
        a, b = pair(names, 0, 0, qp_type=e.IBV_QPT_UC)

        def work():
            for _ in range(5):
                transfer(a, e.IBV_WR_RDMA_WRITE, b, 65536)
                time.sleep(0.01)
        (_, _, handled_a), (seen_b, sent_b, _) = counter_increments(names, work)
        assert 0 < handled_a <= sent_b <= seen_b


@families(4, 6)
def test_datagrams_are_not_marked(family):
    """Datagrams have no congestion control: they are not ECN-capable, so the queue may drop but not mark them."""
    names = host.names(family)
    with marking("a"):
        a = End(names[0], int(names[1]), qp_type=e.IBV_QPT_UD)
        b = End(names[2], int(names[3]), qp_type=e.IBV_QPT_UD)
        for end in (a, b):
            end.qp.to_rts(QPAttr(port_num=1))
        handle = AH(a.pd, attr=AHAttr(gr=GlobalRoute(dgid=b.ctx.query_gid(1, b.gid_index), sgid_index=a.gid_index, hop_limit=64,
                                                     traffic_class=3), is_global=1, port_num=1))

        def work():
            for _ in range(8):
                for _ in range(32):
                    wr = SendWR(wr_id=1, num_sge=1, sg=[a.sge(1024)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
                    wr.set_wr_ud(handle, b.qp.qp_num, 0)
                    a.qp.post_send(wr)
                for _ in range(32):
                    a.complete(seconds=60)
        assert counter_increments(names, work) == [[0, 0, 0], [0, 0, 0]]


@families(4, 6)
def test_user_traffic_class(family):
    """No packet is marked, whatever ECN bits the traffic class of the user has."""
    names = host.names(family)
    for traffic_class in (0, 1, 2, 3, 0xFC, 0xFF):
        a, b = pair(names, traffic_class, traffic_class)
        work = lambda: transfer(a, e.IBV_WR_RDMA_WRITE, b)  # noqa: E731
        assert counter_increments(names, work) == [[0, 0, 0], [0, 0, 0]], traffic_class


def nothing_is_marked():
    names = host.names()
    a, b = pair(names, 0, 0)
    assert counter_increments(names, lambda: transfer(a, e.IBV_WR_RDMA_WRITE, b)) == [[0, 0, 0], [0, 0, 0]]


def test_disabled(_names):
    """With ecn=0 packets are not ECN-capable: none is marked."""
    with host.reloaded("ecn=0"), marking("a"), child_process(nothing_is_marked):
        pass


class Sender:
    """Keeps eight WRITEs of 64 KiB in flight."""
    LENGTH = 65536

    def __init__(self, args):
        self.a, self.b = pair(args, 0, 0)
        self.done = 0
        for _ in range(8):
            self.post()

    def post(self):
        self.a.post(e.IBV_WR_RDMA_WRITE, self.a.sge(self.LENGTH), remote=(self.b.mr.buf, self.b.mr.rkey))

    def poll_and_post(self):
        count, wcs = self.a.cq.poll(8)
        for wc in wcs[:count]:
            assert wc.status == e.IBV_WC_SUCCESS, wc.status
            self.done += self.LENGTH
            self.post()


def queue_of(device):
    """Returns the backlog of a device in namespace a in bytes, and how many packets were dropped and marked."""
    out = subprocess.run(["ip", "netns", "exec", "a", "tc", "-s", "-j", "qdisc", "show", "dev", device], check=True,
                         stdout=subprocess.PIPE).stdout
    codel, = (qdisc for qdisc in json.loads(out) if qdisc["kind"] == "fq_codel")
    return codel["backlog"], codel["drops"], codel["ecn_mark"] + codel.get("ce_mark", 0)


def link_speed():
    """The rate in Mbit/s. The link must be slower than the machine."""
    return 20 if host.is_slow() else 50


def shared():
    """Two senders, one over IPv4 and one over IPv6, for six seconds through the queue of node a, of which the last four are measured.
    Returns their rates in Mbit/s of payload, Jain's fairness index, the backlogs in ms, and the dropped and marked packets."""
    senders, device, mbit = [Sender(host.names(family)) for family in (4, 6)], host.netdev("a"), link_speed()
    start = time.monotonic()
    before, backlogs, samples = None, [], 0
    while True:
        for sender in senders:
            sender.poll_and_post()
        time.sleep(0.002)
        elapsed = time.monotonic() - start
        if before is None and elapsed >= 2:
            before = elapsed, [sender.done for sender in senders], queue_of(device)
        if elapsed >= 6:
            break
        if before and elapsed > 2 + samples / 10:
            backlogs.append(queue_of(device)[0] * 8 / 1000 / mbit)
            samples += 1
    since, done, (_, dropped, marked) = before
    rates = [(sender.done - before) * 8 / 1e6 / (elapsed - since) for sender, before in zip(senders, done)]
    _, all_dropped, all_marked = queue_of(device)
    jain = sum(rates) ** 2 / (2 * sum(rate ** 2 for rate in rates) or 1)
    result = rates, jain, backlogs, all_dropped - dropped, all_marked - marked
    print(f"{rates[0]:.1f} and {rates[1]:.1f} of {mbit} Mbit/s, Jain {jain:.3f}, backlog {statistics.median(backlogs):.1f} ms in the median,"
          f" {max(backlogs):.1f} at most; {result[3]} packets dropped, {result[4]} marked")
    return result


def test_two_share_a_link(_names):
    """Two senders get equal shares without loss; unless the machine is too slow, the queue is short and the link is utilised."""
    # An emulated processor may be late by milliseconds, which is no congestion: mark only packets that waited for more than 4 ms.
    with marking("a", link_speed(), 4, QUEUE):
        rates, jain, backlogs, dropped, marked = shared()
    # Packets other than RoCE, such as neighbour discovery, cannot be marked and may be dropped.
    assert marked and dropped <= 3
    assert jain > (0.9 if host.is_slow() else 0.95)
    if not host.is_slow():
        # 0.57 to 0.64 in User Mode Linux, and down to 0.33 on a host with forty runnable tasks. The simulator judges how much of a
        # link is used (congestion::two_share_a_link); here it must not be idle.
        assert sum(rates) > 0.3 * link_speed()
        assert statistics.median(backlogs) < 10


def without_congestion_control():
    _, _, backlogs, dropped, marked = shared()
    assert not marked
    assert dropped or statistics.median(backlogs) > 20


def test_no_congestion_control(_names):
    """Without congestion control, no packet is marked, and the queue grows until packets are dropped."""
    with host.reloaded("ecn=0"), marking("a", link_speed(), 4, QUEUE), child_process(without_congestion_control):
        pass
