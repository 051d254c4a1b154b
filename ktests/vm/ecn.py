#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Congestion control. Marks come from queues that the caller has set up.

ecn.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from status import ACCESS, End, pattern

SIZE = 1 << 20


def counters(device):
    names = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled")
    return [int(open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}").read()) for name in names]


def connect(end, other, traffic_class, flow_label=0):
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
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, 6, 6
    end.qp.to_rts(attr)


def pair(args, class_a, class_b, qp_type=e.IBV_QPT_RC):
    a = End(args[0], int(args[1]), size=SIZE, qp_type=qp_type)
    b = End(args[2], int(args[3]), size=SIZE, qp_type=qp_type)
    connect(a, b, class_a)
    connect(b, a, class_b)
    return a, b


def change(args, work):
    """By how much the counters of a and b grow."""
    before = [counters(args[0]), counters(args[2])]
    work()
    time.sleep(0.1)
    after = [counters(args[0]), counters(args[2])]
    return [[y - x for x, y in zip(*both)] for both in zip(before, after)]


def moved_and_slowed(end, opcode, other, length=None):
    end.post(opcode, end.sge(length), remote=(other.mr.buf, other.mr.rkey))
    end.complete(seconds=60)


def write_is_slowed(args):
    a, b = pair(args, 0, 0)
    data = pattern(SIZE, 3)
    a.mr.write(data, SIZE)
    (seen_a, sent_a, handled_a), (seen_b, sent_b, handled_b) = change(
        args, lambda: moved_and_slowed(a, e.IBV_WR_RDMA_WRITE, b))
    assert b.mr.read(SIZE, 0) == data
    print(seen_b, sent_b, handled_a)
    assert 0 < sent_b <= seen_b
    assert 0 < handled_a <= sent_b
    assert (seen_a, sent_a, handled_b) == (0, 0, 0)


def read_is_slowed(args):
    """The data comes from the other side: that one is told."""
    a, b = pair(args, 0, 0)
    data = pattern(SIZE, 4)
    b.mr.write(data, SIZE)
    (seen_a, sent_a, _), (_, _, handled_b) = change(args, lambda: moved_and_slowed(a, e.IBV_WR_RDMA_READ, b))
    assert a.mr.read(SIZE, 0) == data
    assert 0 < handled_b <= sent_a <= seen_a


def unreliable_is_slowed(args):
    a, b = pair(args, 0, 0, qp_type=e.IBV_QPT_UC)

    def work():
        for _ in range(5):
            moved_and_slowed(a, e.IBV_WR_RDMA_WRITE, b, 65536)
            time.sleep(0.01)
    (_, _, handled_a), (seen_b, sent_b, _) = change(args, work)
    assert 0 < handled_a <= sent_b <= seen_b


def datagrams_are_not_marked(args):
    """Nobody would slow down: the queue may drop them, but marks nothing."""
    a = End(args[0], int(args[1]), qp_type=e.IBV_QPT_UD)
    b = End(args[2], int(args[3]), qp_type=e.IBV_QPT_UD)
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
    assert change(args, work) == [[0, 0, 0], [0, 0, 0]]


def users_mark_nothing(args):
    for traffic_class in (0, 1, 2, 3, 0xFC, 0xFF):
        a, b = pair(args, traffic_class, traffic_class)
        work = lambda: moved_and_slowed(a, e.IBV_WR_RDMA_WRITE, b)  # noqa: E731
        assert change(args, work) == [[0, 0, 0], [0, 0, 0]], traffic_class


def nothing_is_marked(args):
    a, b = pair(args, 0, 0)
    assert change(args, lambda: moved_and_slowed(a, e.IBV_WR_RDMA_WRITE, b)) == [[0, 0, 0], [0, 0, 0]]


CASES = [write_is_slowed, read_is_slowed, unreliable_is_slowed, datagrams_are_not_marked, users_mark_nothing, nothing_is_marked]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
