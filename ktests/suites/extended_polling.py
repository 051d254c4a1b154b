#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Polls with ibv_start_poll(), ibv_next_poll() until there is no more, and ibv_end_poll(), by the librxe of this machine.

Each completion must be returned once and in order, and no queue pair may fail. Debian's librxe 44 leaves the consumer index one past the
producer's each time, which the driver must have corrected; a library that does not is the wrong one for this test. The program polls only
when requests have completed: the driver cannot prevent that this library returns old entries of a queue that is empty.
"""
import ctypes
import random
import re
import subprocess

from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
import pyverbs.enums as e

from lib import host, rings
from lib.ends import ACCESS, End, async_event, soon

ROUNDS = 10_000
DEPTH = 64


class Extended(End):
    """An end with an extended CQ."""

    def __init__(self, name, gid_index):
        self.ctx, self.gid_index = Context(name=name), gid_index
        self.pd = PD(self.ctx)
        others = {ring.address for ring in rings.mapped()}
        self.cq = CQEX(self.ctx, CqInitAttrEx(cqe=DEPTH))
        self.ring, = (ring for ring in rings.mapped() if ring.address not in others)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.size = 4096
        self.mr = MR(self.pd, self.size, ACCESS)

    def producer(self):
        """The number of completions that the driver has published, modulo the size of the queue."""
        return int.from_bytes(ctypes.string_at(self.ring.address + rings.PRODUCER, 4), "little") & self.ring.mask

    def poll(self):
        """Returns the wr_ids of all completions."""
        if self.cq.start_poll(PollCqAttr()):
            return []
        found = []
        while True:
            assert self.cq.status == e.IBV_WC_SUCCESS, f"status {self.cq.status}"
            found.append(self.cq.wr_id)
            if self.cq.poll_next():
                self.cq.end_poll()
                return found


def index_repairs():
    text = subprocess.run(["rdma", "-dd", "resource", "show", "cq"], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"drv_index_repairs (\d+)", text)))


def main():
    print(subprocess.run(["dpkg-query", "-W", "ibverbs-providers"], capture_output=True, text=True, check=True).stdout.strip())
    names, rng = host.names(), random.Random(1)
    a, b = Extended(names[0], int(names[1])), End(names[2], int(names[3]))
    a.connect(b, 1, 2)
    b.connect(a, 2, 1)
    posted = 0
    for _ in range(ROUNDS):
        first, count = posted + 1, rng.choice((1, 1, 2, 5, DEPTH))
        for posted in range(first, first + count):
            a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), wr_id=posted, remote=(b.mr.buf, b.mr.rkey))
        soon(lambda: a.producer() == posted & a.ring.mask, 20, f"{count} completions are missing")
        found = a.poll()
        assert found == list(range(first, first + count)), f"from {first} to {posted}: {found}"
    assert a.state() == b.state() == e.IBV_QPS_RTS, "a queue pair has failed"
    assert async_event(a.ctx, 0.2) is None, "an event"
    repairs = index_repairs()
    print(f"{posted} completions, {repairs} corrections of the index")
    assert repairs > ROUNDS // 2, "this librxe has not the fault"


if __name__ == "__main__":
    main()
