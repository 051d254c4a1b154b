#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Walks the states of queue pairs: every state, every next state, with many sets of attributes, against transitions.txt.

transitions.py DEVICE GID-INDEX SERVICE [RANDOM-SETS [SEED]]

For each pair of states: all sets of the attributes that the transition has to do with, each also without one it needs and with one it
cannot have, and as many random sets (default 16). A refused change must leave everything as it was.
"""
import errno
import itertools
import os
import random
import sys

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr, QPCap
from pyverbs.wr import SendWR
import pyverbs.enums as e

from status import End

STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
TYPES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD, "RAW": e.IBV_QPT_RAW_PACKET}
NAMES = ("STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT",
         "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP",
         "DEST_QPN")
BITS = {name: getattr(e, f"IBV_QP_{name}") for name in NAMES}
STATE = BITS["STATE"]
# RoCE has no path migration: the core refuses these whatever the state.
NEVER = BITS["ALT_PATH"] | BITS["PATH_MIG_STATE"]


def mask_of(names):
    return sum(BITS[name] for name in names)


def rules(service):
    """What transitions.txt says of a service: (state, next state) to required and optional attributes."""
    table = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "transitions.txt"), encoding="ascii") as lines:
        for line in lines:
            head, _, optional = line.partition("|")
            words = head.split()
            if words[0] == service:
                table[tuple(words[1:3])] = mask_of(words[3:]), mask_of(optional.split())
    for state in STATES:
        table[state, "RESET"] = 0, 0
        if state != "RESET":
            table[state, "ERR"] = 0, 0
    return table


class Walker:
    def __init__(self, name, gid_index, service):
        self.service, self.rules = service, rules(service)
        self.end = End(name, gid_index, qp_type=TYPES[service])
        gid = self.end.ctx.query_gid(1, gid_index)
        self.path = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=gid_index, hop_limit=64), is_global=1, port_num=1)
        self.changes = 0

    def attributes(self, state, target):
        attr = QPAttr(qp_state=getattr(e, f"IBV_QPS_{target}"), cur_qp_state=getattr(e, f"IBV_QPS_{state}"), port_num=1)
        attr.ah_attr = attr.alt_ah_attr = self.path
        attr.path_mtu, attr.dest_qp_num, attr.qkey = e.IBV_MTU_1024, self.end.qp.qp_num, 0x1234
        attr.rq_psn = attr.sq_psn = 77
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 3, 3, 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 2
        attr.qp_access_flags, attr.cap = e.IBV_ACCESS_REMOTE_WRITE, QPCap()
        attr.alt_port_num, attr.path_mig_state = 1, e.IBV_MIG_MIGRATED
        return attr

    def modify(self, state, target, mask):
        """True if the change is made, False if it is refused."""
        self.changes += 1
        try:
            self.end.qp.modify(self.attributes(state, target), mask)
        except PyverbsRDMAError as error:
            assert error.error_code in (errno.EINVAL, errno.EOPNOTSUPP), f"{state} to {target}, {mask:#x}: {error}"
            return False
        return True

    def step(self, state, target):
        assert self.modify(state, target, STATE | self.rules[state, target][0]), f"{state} to {target} with what it needs is refused"

    def fail(self):
        """Makes the send queue fail."""
        wr = SendWR(wr_id=1, num_sge=1, sg=[self.end.sge(64, key=self.end.mr.lkey ^ 0x5500)], opcode=e.IBV_WR_SEND,
                    send_flags=e.IBV_SEND_SIGNALED)
        if self.service == "UD":
            wr.set_wr_ud(AH(self.end.pd, attr=self.path), self.end.qp.qp_num, 0x1234)
        self.end.qp.post_send(wr)
        self.end.complete(e.IBV_WC_LOC_PROT_ERR)

    def enter(self, state):
        self.step(self.state(), "RESET")
        way = {"RESET": (), "INIT": ("INIT",), "ERR": ("INIT", "ERR"), "SQD": ("INIT", "RTR", "RTS", "SQD")}
        at = "RESET"
        for target in way.get(state, ("INIT", "RTR", "RTS")[:3 if state in ("RTS", "SQE") else 2]):
            self.step(at, target)
            at = target
        if state == "SQE":
            self.fail()
        assert self.state() == state, f"{self.state()}, not {state}"

    def state(self):
        numbers = {getattr(e, f"IBV_QPS_{state}"): state for state in STATES}
        return numbers[self.end.state()]

    def try_one(self, state, target, mask):
        required, optional = self.rules.get((state, target), (0, None))
        seen = mask
        if mask & BITS["AV"] and not (mask & STATE and target == "RTR"):
            # The system call's own doing: who changes the path in SQD changes the port, which keeps UC from it.
            seen |= BITS["PORT"]
        allowed = optional is not None and seen & required == required and not seen & ~(STATE | required | optional) and not seen & NEVER
        made = self.modify(state, target, mask)
        names = " ".join(name for name in NAMES if mask & BITS[name])
        assert made == allowed, f"{self.service} {state} to {target} with {names}: {'made' if made else 'refused'}"
        if made and (target != state or state in ("RESET", "ERR")):
            assert self.state() == target
            self.enter(state)

    def walk(self, state, target, dice, count):
        required, optional = self.rules.get((state, target), (0, 0))
        singles = [bit for bit in BITS.values() if bit != STATE]
        choices = [bit for bit in singles if bit & optional]
        # One that changes the state has the way back to pay for each: a sample of its sets.
        sets = [sum(bits) for n in range(len(choices) + 1) for bits in itertools.combinations(choices, n)]
        if len(sets) > 4 * count:
            sets = dice.sample(sets, 4 * count)
        masks = {STATE | required | more for more in sets}
        masks |= {STATE | required & ~bit for bit in singles} | {STATE | required | bit for bit in singles}
        masks |= {STATE | dice.getrandbits(21) & mask_of(NAMES) for _ in range(count)}
        if state == target:
            # Without the state named it stays the same.
            masks |= {mask & ~STATE for mask in masks}
        for mask in sorted(masks):
            self.try_one(state, target, mask)
        assert self.state() == state, f"refused changes left {self.state()}, not {state}"

    def walk_all(self, count, seed):
        dice = random.Random(seed)
        for state in STATES:
            if state == "SQE" and self.service == "RC":
                continue
            self.enter(state)
            for target in STATES:
                self.walk(state, target, dice, count)


if __name__ == "__main__":
    walker = Walker(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    if os.environ.get("WITHOUT"):
        STATES = tuple(state for state in STATES if state not in os.environ["WITHOUT"].split())
    walker.walk_all(int(sys.argv[4]) if len(sys.argv) > 4 else 16, int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    print(f"{walker.changes} changes, all as the table says")
