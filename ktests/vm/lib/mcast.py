# SPDX-License-Identifier: GPL-2.0
"""Multicast groups, and UD queue pairs to attach to them."""
import ctypes
import ipaddress
import os

from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from lib import uverbs
from lib.ends import completion
from lib.libibverbs import VERBS, pointer_of

MULTICAST_QPN = 0xFFFFFF
QKEY = 0x1234
GRH = 40


def gid_of(address):
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        ip = ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + ip.packed)
    return GID(":".join(f"{int.from_bytes(ip.packed[i:i + 2], 'big'):04x}" for i in range(0, 16, 2)))


def group_call(call, qp, group, lid=0):
    error = call(ctypes.c_void_p(pointer_of(qp)), ctypes.create_string_buffer(uverbs.gid_bytes(group), 16), ctypes.c_uint16(lid))
    if error:
        raise OSError(error, os.strerror(error))


def attach(qp, group):
    group_call(VERBS.ibv_attach_mcast, qp, group)


def detach(qp, group):
    group_call(VERBS.ibv_detach_mcast, qp, group)


class Node:
    """A device, and address handles for groups."""

    def __init__(self, name, gid_index):
        self.name, self.gid_index = name, int(gid_index)
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)

    def path(self, gid):
        route = GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=4)
        return AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))


class Endpoint:
    """A UD queue pair in RTS with posted receives."""

    def __init__(self, node, qkey=QKEY, receives=16):
        self.node = node
        self.cq = CQ(node.ctx, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(node.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        attr = QPAttr(port_num=1)
        attr.qkey = qkey
        self.qp.to_rts(attr)
        self.mr = MR(node.pd, 16 * 2048, e.IBV_ACCESS_LOCAL_WRITE)
        for n in range(receives):
            self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf + n * 2048, 2048, self.mr.lkey)], wr_id=n))

    def send(self, ah, data, qpn=MULTICAST_QPN, qkey=QKEY):
        """Sends from the last buffer of the region; no test consumes as many receives as would reach it."""
        self.mr.write(data, len(data), 15 * 2048)
        wr = SendWR(num_sge=1, sg=[SGE(self.mr.buf + 15 * 2048, len(data), self.mr.lkey)], wr_id=100)
        wr.set_wr_ud(ah, qpn, qkey)
        self.qp.post_send(wr)

    def poll(self, seconds):
        wc = completion(self.cq, seconds)
        assert not wc or wc.status == e.IBV_WC_SUCCESS, f"status {wc.status}"
        return wc

    def expect_sent(self):
        wc = self.poll(10)
        assert wc and wc.wr_id == 100, "the send did not complete"

    def expect_message(self, data, source):
        wc = self.poll(10)
        assert wc and wc.opcode & e.IBV_WC_RECV, "nothing arrived"
        assert wc.byte_len == len(data) + GRH, f"{wc.byte_len} bytes"
        assert wc.src_qp == source.qp.qp_num, f"source {wc.src_qp}"
        assert wc.wc_flags & e.IBV_WC_GRH
        got = self.mr.read(len(data), wc.wr_id * 2048 + GRH)
        assert got == data, got[:40]
        return self.mr.read(GRH, wc.wr_id * 2048)

    def expect_nothing(self, seconds=0.3):
        wc = self.poll(seconds)
        assert not wc, f"wr_id {wc.wr_id} completed"
