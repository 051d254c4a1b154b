# SPDX-License-Identifier: GPL-2.0
"""All transitions between the states of queue pairs with sets of attributes, through ibv_modify_qp, compared with transitions.txt.

`every`: all sets of the attributes that the table names for the service type: 12,582,912 calls for RC, distributed to all processors.
`rows`: for each pair of states all sets of the attributes that the transition requires or permits; of the others single ones and pairs.
Both: what each row of the table permits together with every other attribute, and random sets of all bits.

RC and UC use `every` where a call takes some microseconds (KVM, User Mode Linux: `make test-transitions`), `rows` in emulation and on the
debug kernel, where a call takes ten times as long. `qemu/run --set WALK=every` overrides this; WALK_SEED is for the random sets.

Calls that must be refused have values that differ from the current ones, and no attribute may have changed afterwards.
"""
import ctypes
import errno
import itertools
import os
import random
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import host
from lib.ends import End
from lib.libibverbs import VERBS, pointer_of

DEFAULTS = dict(timeout=600, driver="rxe_rs", reason="rdma_rxe refuses more than the table and never enters SQE")
STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
TYPES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD, "RAW": e.IBV_QPT_RAW_PACKET}
NAMES = ("STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT",
         "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP",
         "DEST_QPN")
BITS = {name: int(getattr(e, f"IBV_QP_{name}")) for name in NAMES}
STATE = BITS["STATE"]
# RoCE has no path migration: the core refuses these in every state.
NEVER = BITS["ALT_PATH"] | BITS["PATH_MIG_STATE"]
# Bits that are not attributes of the specification; bit 25 is the rate limit, which the device does not support.
BEYOND = tuple(1 << n for n in range(21, 31))
# An IPv4 multicast group, because the kernel accepts it as an address without neighbour resolution.
GROUP = bytes(10) + b"\xff\xff" + bytes((239, 77, 1, 3))

MODIFY = VERBS.ibv_modify_qp
MODIFY.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]


class Path(ctypes.Structure):
    """struct ibv_ah_attr (infiniband/verbs.h)."""
    _fields_ = [("dgid", ctypes.c_uint64 * 2), ("flow_label", ctypes.c_uint32), *((name, ctypes.c_uint8) for name in (
        "sgid_index", "hop_limit", "traffic_class")), ("dlid", ctypes.c_uint16), *((name, ctypes.c_uint8) for name in (
            "sl", "src_path_bits", "static_rate", "is_global", "port_num"))]


class Attributes(ctypes.Structure):
    """struct ibv_qp_attr (infiniband/verbs.h)."""
    _fields_ = [*((name, ctypes.c_uint32) for name in (
        "qp_state", "cur_qp_state", "path_mtu", "path_mig_state", "qkey", "rq_psn", "sq_psn", "dest_qp_num", "qp_access_flags")),
                ("cap", ctypes.c_uint32 * 5), ("ah_attr", Path), ("alt_ah_attr", Path), ("pkey_index", ctypes.c_uint16),
                ("alt_pkey_index", ctypes.c_uint16), *((name, ctypes.c_uint8) for name in (
                    "en_sqd_async_notify", "sq_draining", "max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer", "port_num", "timeout",
                    "retry_cnt", "rnr_retry", "alt_port_num", "alt_timeout")), ("rate_limit", ctypes.c_uint32)]


assert ctypes.sizeof(Attributes) == 144


def mask_of(names):
    return sum(BITS[name] for name in names)


def names_of(mask):
    return " ".join(name for name in NAMES if mask & BITS[name]) + (f" and {mask >> 21 << 21:#x}" if mask >> 21 else "")


def subsets(mask):
    """All sets of the bits of a mask."""
    sets = [0]
    for bit in BITS.values():
        if mask & bit:
            sets += [one | bit for one in sets]
    return sets


def rules(service):
    """The table in transitions.txt for a service type: (state, next state) to required and optional attributes."""
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
        self.known = 0
        for masks in self.rules.values():
            self.known |= masks[0] | masks[1]
        self.end = End(name, gid_index, qp_type=TYPES[service])
        self.qp = pointer_of(self.end.qp)
        self.calls = 0

    def attributes(self, state, target, other=False):
        """Values for all attributes; with `other`, values that differ from those that `enter` sets."""
        paths = []
        for last in (0, other):
            path = Path(sgid_index=self.end.gid_index, hop_limit=64 - other, is_global=1, port_num=1)
            ctypes.memmove(path.dgid, GROUP[:-1] + bytes((GROUP[-1] + last,)), 16)
            paths.append(path)
        return Attributes(
            qp_state=getattr(e, f"IBV_QPS_{target}"), cur_qp_state=getattr(e, f"IBV_QPS_{state}"), port_num=1, alt_port_num=1,
            ah_attr=paths[1], alt_ah_attr=paths[1], path_mtu=e.IBV_MTU_512 if other else e.IBV_MTU_1024,
            dest_qp_num=self.end.qp.qp_num ^ other, qkey=0x1234 + other, rq_psn=77 + other, sq_psn=77 + other, timeout=14 + other,
            retry_cnt=3 + other, rnr_retry=3 + other, min_rnr_timer=12 + other, max_rd_atomic=2 + other, max_dest_rd_atomic=2 + other,
            qp_access_flags=e.IBV_ACCESS_REMOTE_READ if other else e.IBV_ACCESS_REMOTE_WRITE, path_mig_state=e.IBV_MIG_MIGRATED)

    def modify(self, state, target, masks, other=False):
        """Calls ibv_modify_qp with each of these masks. Returns the error number of each, or 0."""
        self.calls += len(masks)
        attributes = self.attributes(state, target, other)
        return list(map(MODIFY, itertools.repeat(self.qp), itertools.repeat(ctypes.addressof(attributes)), masks))

    def step(self, state, target):
        error, = self.modify(state, target, [STATE | self.rules[state, target][0]])
        assert not error, f"{state} to {target} with the required attributes is refused: {os.strerror(error)}"

    def fail(self):
        """Makes a send fail, so that the queue pair enters the SQE state."""
        wr = SendWR(wr_id=1, num_sge=1, sg=[self.end.sge(64, key=self.end.mr.lkey ^ 0x5500)], opcode=e.IBV_WR_SEND,
                    send_flags=e.IBV_SEND_SIGNALED)
        if self.service == "UD":
            gid = self.end.ctx.query_gid(1, self.end.gid_index)
            route = GlobalRoute(dgid=gid, sgid_index=self.end.gid_index, hop_limit=64)
            wr.set_wr_ud(AH(self.end.pd, attr=AHAttr(gr=route, is_global=1, port_num=1)), self.end.qp.qp_num, 0x1234)
        self.end.qp.post_send(wr)
        self.end.complete(e.IBV_WC_LOC_PROT_ERR)

    def enter(self, state):
        self.step(self.state(), "RESET")
        steps = {"RESET": (), "INIT": ("INIT",), "ERR": ("INIT", "ERR"), "SQD": ("INIT", "RTR", "RTS", "SQD")}
        at = "RESET"
        for target in steps.get(state, ("INIT", "RTR", "RTS")[:3 if state in ("RTS", "SQE") else 2]):
            self.step(at, target)
            at = target
        if state == "SQE":
            self.fail()
        assert self.state() == state, f"{self.state()}, not {state}"

    def state(self):
        numbers = {getattr(e, f"IBV_QPS_{state}"): state for state in STATES}
        return numbers[self.end.state()]

    def all_attributes(self):
        """Returns all attributes of the queue pair as text."""
        attr, _ = self.end.qp.query(mask_of(NAMES) & ~BITS["CAP"])
        return str(attr)

    def allowed(self, state, target, mask):
        required, optional = self.rules.get((state, target), (0, None))
        if mask & BITS["AV"] and not (mask & STATE and target == "RTR"):
            # The core sets the port if the path is changed in SQD, which the table does not permit for UC.
            mask |= BITS["PORT"]
        return optional is not None and mask & required == required and not mask & ~(STATE | required | optional) and not mask & NEVER

    def masks(self, state, target, rng, every):
        required, optional = self.rules.get((state, target), (0, 0))
        singles = [0, *(bit for bit in BITS.values() if bit != STATE), *BEYOND]
        if every:
            masks = set(subsets(self.known))
        else:
            masks = set(subsets(required | optional))
            masks |= {a | b for a in singles for b in singles}
            # Attributes of other transitions from this state and to the target.
            for (left, right), (needs, may) in self.rules.items():
                if left == state or right == target:
                    masks |= {needs, needs | may & ~NEVER}
        for base in {0, required, required | optional & ~NEVER}:
            masks |= {base ^ bit for bit in singles}
        masks |= {rng.getrandbits(21) & ~STATE for _ in range(200)} | {rng.getrandbits(31) & ~STATE for _ in range(50)}
        for mask in sorted(masks):
            yield STATE | mask
            if state == target:
                # Without STATE in the mask the state stays the same.
                yield mask

    def walk(self, state, target, rng, every):
        def what(mask):
            return f"{self.service} {state} to {target} with {names_of(mask)}"

        accepted, refused = [], []
        for mask in self.masks(state, target, rng, every):
            (accepted if self.allowed(state, target, mask) else refused).append(mask)
        before = self.all_attributes()
        for mask, error in zip(refused, self.modify(state, target, refused, other=True)):
            assert error, f"{what(mask)} is accepted"
            assert error in (errno.EINVAL, errno.EOPNOTSUPP), f"{what(mask)}: {os.strerror(error)}"
        after = self.all_attributes()
        assert before == after, f"{state} to {target}: refused changes resulted in\n{after}\ninstead of\n{before}"
        for mask in accepted:
            error, = self.modify(state, target, [mask])
            assert not error, f"{what(mask)} is refused: {os.strerror(error)}"
            if target != state:
                # Return to the state.
                assert self.state() == target
                self.enter(state)
        assert self.state() == state, f"changes without a change of state left {self.state()}, not {state}"
        return len(accepted)

    def walk_all(self, states, rng, every):
        """Returns the number of accepted calls, not counting those that only enter a state."""
        accepted_calls = 0
        for state in states:
            self.enter(state)
            accepted_calls += sum(self.walk(state, target, rng, every) for target in STATES)
        return accepted_calls


def extent():
    return host.setting("WALK", "rows" if host.is_slow() else "every")


def walk(names, service, extent):
    """A child process per processor handles some of the states, with a queue pair of its own."""
    begin = time.monotonic()
    # RC queue pairs do not have the SQE state.
    states = [state for state in STATES if service != "RC" or state != "SQE"]
    count = min(len(os.sched_getaffinity(0)), len(states))
    children = []
    for n in range(count):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 1
            try:
                walker = Walker(names[0], int(names[1]), service)
                accepted_calls = walker.walk_all(states[n::count], random.Random(int(host.setting("WALK_SEED", "1")) * 100 + n), extent == "every")
                seconds = time.monotonic() - begin
                print(f"{walker.calls} calls, {accepted_calls} changes accepted, {seconds / walker.calls * 1e6:.1f} us each")
                code = 0
            except Exception:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    assert not failed, "the table and the driver disagree"
    print(f"{service}: all transitions are as in the table, in {time.monotonic() - begin:.1f} s")


def test_rc(names):
    walk(names, "RC", extent())


def test_uc(names):
    walk(names, "UC", extent())


def test_ud(names):
    walk(names, "UD", "every")


def test_raw(names):
    walk(names, "RAW", "every")
