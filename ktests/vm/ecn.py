#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Congestion marks: the sender sets the mark itself, in the traffic class, as a congested router would.

ecn.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import sys
import time

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.qp import QPAttr
import pyverbs.enums as e

from status import ACCESS, End, pattern

CONGESTION_EXPERIENCED = 3
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


def write_is_slowed(args):
    a, b = pair(args, CONGESTION_EXPERIENCED, 0)
    data = pattern(SIZE, 3)
    a.mr.write(data, SIZE)

    def work():
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
        a.complete(seconds=60)
    (seen_a, sent_a, handled_a), (seen_b, sent_b, handled_b) = change(args, work)
    assert b.mr.read(SIZE, 0) == data
    print(seen_b, sent_b, handled_a)
    assert seen_b >= SIZE // 1024 and 0 < sent_b < seen_b
    assert 0 < handled_a <= sent_b
    assert (seen_a, sent_a, handled_b) == (0, 0, 0)


def read_is_slowed(args):
    """The data comes from the other side: that one is told."""
    a, b = pair(args, 0, CONGESTION_EXPERIENCED)
    data = pattern(SIZE, 4)
    b.mr.write(data, SIZE)

    def work():
        a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(b.mr.buf, b.mr.rkey))
        a.complete(seconds=60)
    (seen_a, sent_a, _), (_, _, handled_b) = change(args, work)
    assert a.mr.read(SIZE, 0) == data
    assert seen_a >= SIZE // 1024 and 0 < sent_a < seen_a and 0 < handled_b <= sent_a


def unreliable_is_slowed(args):
    a, b = pair(args, CONGESTION_EXPERIENCED, 0, qp_type=e.IBV_QPT_UC)

    def work():
        for _ in range(5):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(65536), remote=(b.mr.buf, b.mr.rkey))
            a.complete(seconds=60)
            time.sleep(0.01)
    (_, _, handled_a), (seen_b, sent_b, _) = change(args, work)
    assert seen_b > 0 and sent_b > 0 and handled_a > 0


def other_marks_mean_nothing(args):
    for traffic_class in (0, 1, 2, 0xFC):
        a, b = pair(args, traffic_class, traffic_class)

        def work():
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
            a.complete(seconds=60)
        assert change(args, work) == [[0, 0, 0], [0, 0, 0]], traffic_class


CASES = [write_is_slowed, read_is_slowed, unreliable_is_slowed, other_marks_mean_nothing]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
