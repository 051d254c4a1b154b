# SPDX-License-Identifier: GPL-2.0
"""Shared receive queues and the queue pairs that use them."""
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR
import pyverbs.enums as e

from lib.ends import ACCESS, End


class Pool:
    """A device with one shared receive queue, completion queue and memory region."""

    def __init__(self, name, gid_index, depth=64, sges=2, size=65536):
        self.ctx = Context(name=name)
        self.gid_index = gid_index
        self.size = size
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, size, ACCESS)
        self.cq = CQ(self.ctx, 1024, None, None, 0)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=depth, max_sge=sges)))

    def recv(self, wr_id, length=1000, offset=0, key=None):
        sge = SGE(self.mr.buf + offset, length, self.mr.lkey if key is None else key)
        self.srq.post_recv(RecvWR(num_sge=1, sg=[sge], wr_id=wr_id))

    def modify(self, mask, **attrs):
        self.srq.modify(SrqAttr(**attrs), mask)


class Member(End):
    """A queue pair that uses the shared receive queue of a pool."""

    def __init__(self, pool, pd=None, qp_type=e.IBV_QPT_RC):
        self.ctx, self.gid_index, self.cq, self.mr, self.size = pool.ctx, pool.gid_index, pool.cq, pool.mr, pool.size
        self.pd = pd or pool.pd
        cap = QPCap(max_send_wr=16, max_recv_wr=0, max_send_sge=1, max_recv_sge=0)
        self.qp = QP(self.pd, QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, srq=pool.srq, cap=cap, sq_sig_all=1))


def connected(names, members=2, retries=7, **options):
    """A pool of b with `members` queue pairs, each connected to a queue pair of a."""
    pool = Pool(names[2], int(names[3]), **options)
    pairs = []
    for n in range(members):
        a, b = End(names[0], int(names[1])), Member(pool)
        a.connect(b, 1000 * n, 7, rnr_retries=retries)
        b.connect(a, 7, 1000 * n, rnr_retries=retries)
        pairs.append((a, b))
    return pool, pairs
