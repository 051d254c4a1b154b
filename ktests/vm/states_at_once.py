#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""As states.py: queue pairs that are done with as soon as the first completion is seen.

states_at_once.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import os
import sys
import traceback

from pyverbs.device import Context
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib.ends import End


class Peer:
    """What End.connect asks of the other side."""

    def __init__(self, device, gid_index, number):
        self.ctx, self.gid_index, self.qp = Context(name=device), gid_index, self
        self.qp_num = number


def leaves_at_once(names, leave):
    """Whoever has seen a completion may leave at once: what was received before is acknowledged all the same. The receiver is a process
    of its own, which sees the first message while the others of its train are still being received."""
    rounds, messages, size = 100, 60, 1024
    here, there = os.pipe(), os.pipe()
    tell = lambda pipe, number: os.write(pipe[1], number.to_bytes(4, "little"))
    hear = lambda pipe: int.from_bytes(os.read(pipe[0], 4), "little") or sys.exit("the other process is gone")
    child = os.fork()
    # Whoever waits for one that has died hears the end of its pipe.
    for unused in (here[0], there[1]) if child else (there[0], here[1]):
        os.close(unused)
    if not child:
        try:
            for _ in range(rounds):
                b = End(names[2], int(names[3]))
                tell(there, b.qp.qp_num)
                b.connect(Peer(names[0], int(names[1]), hear(here)), 99, 77)
                for _ in range(messages):
                    b.recv(b.sge(size))
                tell(there, 1)
                while not b.cq.poll(1)[0]:
                    pass
                leave(b.qp)
                assert hear(here)
                b.qp.close()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    for _ in range(rounds):
        a = End(names[0], int(names[1]))
        tell(here, a.qp.qp_num)
        a.connect(Peer(names[2], int(names[3]), hear(there)), 77, 99, timeout=14)
        assert hear(there)
        # A list, because a request does not keep the next one alive.
        chain = [None]
        for _ in range(messages):
            chain.append(SendWR(num_sge=1, sg=[a.sge(size)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED, next_wr=chain[-1]))
        a.qp.post_send(chain[-1])
        a.complete()
        tell(here, 1)
        a.qp.close()
    assert os.waitpid(child, 0)[1] == 0


def destroyed_at_once(names):
    leaves_at_once(names, lambda qp: qp.close())


def failed_at_once(names):
    leaves_at_once(names, lambda qp: qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE))


def reset_at_once(names):
    leaves_at_once(names, lambda qp: qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE))


CASES = [destroyed_at_once, failed_at_once, reset_at_once]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
