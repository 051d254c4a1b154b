#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Partitions: the P_Key table and what it lets through, between two devices of one machine.

pkeys.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE
"""
import errno
import os
import select
import subprocess
import sys
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.device import Context
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from status import ACCESS, End

QKEY = 0x4711
TYPES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}


def attribute(device):
    return f"/sys/class/infiniband/{device}/pkey_table"


# enum ibv_device_cap_flags: the device counts packets of other partitions, and with other Q_Keys.
BAD_PKEY_CNTR, BAD_QKEY_CNTR = 1 << 1, 1 << 2


def put(device, index, key):
    with open(attribute(device), "w") as table:
        table.write(f"{index} {key:#x}\n")


def table(device):
    with open(attribute(device)) as lines:
        return {int(index): int(key, 16) for index, key in (line.split() for line in lines)}


def refused(error, *args):
    try:
        put(*args)
    except OSError as e_:
        assert e_.errno == error, f"{args}: {e_}"
    else:
        raise AssertionError(f"{args} accepted")


class Member(End):
    """A queue pair of any type that sends with the P_Key at an index of its own."""

    def __init__(self, name, gid_index, kind, pkey_index):
        super().__init__(name, gid_index, qp_type=TYPES[kind])
        self.kind, self.pkey_index = kind, pkey_index

    def route(self, other, gid=None):
        gid = gid or other.ctx.query_gid(1, other.gid_index)
        return AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=64), is_global=1, port_num=1)

    def modify(self, attr, mask):
        self.qp.modify(attr, mask)

    def join(self, other, timeout=14, retries=1, gid=None, dest=None, mtu=e.IBV_MTU_1024, rq_psn=5, sq_psn=5, depth=1, peer_depth=1, qkey=QKEY):
        """Connects to another one. What is given besides the retries disagrees with what that one expects."""
        steps = e.IBV_QP_STATE
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.pkey_index = self.pkey_index
        init = steps | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
        dest = other.qp.qp_num if dest is None else dest
        if self.kind == "UD":
            attr.qkey = qkey
            self.modify(attr, init | e.IBV_QP_QKEY)
            self.modify(QPAttr(qp_state=e.IBV_QPS_RTR), steps)
            attr = QPAttr(qp_state=e.IBV_QPS_RTS)
            attr.sq_psn = sq_psn
            self.modify(attr, steps | e.IBV_QP_SQ_PSN)
            self.ah = AH(self.pd, attr=self.route(other, gid))
            self.peer = dest
            return
        attr.qp_access_flags = ACCESS if self.kind == "RC" else e.IBV_ACCESS_REMOTE_WRITE
        self.modify(attr, init | e.IBV_QP_ACCESS_FLAGS)
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        attr.ah_attr, attr.path_mtu, attr.dest_qp_num, attr.rq_psn = self.route(other, gid), mtu, dest, rq_psn
        rtr = steps | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        rts = steps | e.IBV_QP_SQ_PSN
        if self.kind == "RC":
            attr.max_dest_rd_atomic, attr.min_rnr_timer = peer_depth, 12
            rtr |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
            rts |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        self.modify(attr, rtr)
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = sq_psn, timeout, retries, 7, depth
        self.modify(attr, rts)

    def send(self, text, wr_id=2, qkey=QKEY):
        self.mr.write(text, len(text))
        wr = SendWR(wr_id=wr_id, num_sge=1, sg=[self.sge(len(text))], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        if self.kind == "UD":
            wr.set_wr_ud(self.ah, self.peer, qkey)
        self.qp.post_send(wr)

    def received(self, text):
        skip = 40 if self.kind == "UD" else 0
        wc = self.complete()
        assert wc.byte_len == skip + len(text) and self.mr.read(len(text), skip) == text
        return wc

    def drops(self):
        return self.ctx.query_port(1).bad_pkey_cntr


def two(names, kind, index_a, index_b, **retry):
    a, b = Member(names[0], int(names[1]), kind, index_a), Member(names[2], int(names[3]), kind, index_b)
    a.join(b, **retry)
    b.join(a, **retry)
    b.recv(b.sge())
    return a, b


def edit(names):
    device = names[0]
    ctx = Context(name=device)
    attr, port = ctx.query_device(), ctx.query_port(1)
    assert attr.max_pkeys == port.pkey_tbl_len == 128, (attr.max_pkeys, port.pkey_tbl_len)
    assert table(device) == {0: 0xFFFF}, table(device)
    put(device, 127, 0x8001)
    put(device, 3, 0x0001)
    put(device, 3, 0x7ABC)
    assert table(device) == {0: 0xFFFF, 3: 0x7ABC, 127: 0x8001}, table(device)
    for index, key in ((0, 0xFFFF), (1, 0), (3, 0x7ABC), (127, 0x8001)):
        # libibverbs gives it in wire order.
        seen = int.from_bytes(ctx.query_pkey(1, index).to_bytes(2, "little"), "big")
        assert seen == key, f"query_pkey({index}) is {seen:#x}"
        with open(f"/sys/class/infiniband/{device}/ports/1/pkeys/{index}") as entry:
            assert int(entry.read(), 16) == key
    for index, key in ((128, 0x8001), (1, 0x10000), (1, 0x8000), (-1, 0x8001)):
        refused(errno.EINVAL, device, index, key)
    refused(errno.EEXIST, device, 5, 0x7ABC)
    for garbage in ("", "1", "1 2 3", "x 1", "1 x"):
        try:
            with open(attribute(device), "w") as file:
                file.write(garbage + "\n")
        except OSError as error:
            assert error.errno == errno.EINVAL, f"{garbage}: {error}"
        else:
            raise AssertionError(f"'{garbage}' accepted")
    for _ in range(3):
        event = ctx.get_async_event()
        assert event.event_type == e.IBV_EVENT_PKEY_CHANGE, event.event_type
        event.ack()
    command = ["setpriv", "--bounding-set", "-net_admin", "sh", "-c", f"echo 9 0x8009 >{attribute(device)}"]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode, "changed without CAP_NET_ADMIN"
    put(device, 127, 0)
    put(device, 3, 0)
    assert table(device) == {0: 0xFFFF}


def last(names):
    """A port stays in one partition at least: its last entry can be changed, not emptied."""
    device = names[0]
    ctx = Context(name=device)
    descriptors = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")}
    opened = next(int(fd) for fd, what in descriptors.items() if what == "anon_inode:[infinibandevent]")
    refused(errno.EBUSY, device, 0, 0)
    put(device, 44, 0)
    put(device, 0, 0x0007)
    refused(errno.EBUSY, device, 0, 0)
    put(device, 90, 0xFFFF)
    put(device, 0, 0)
    refused(errno.EBUSY, device, 90, 0)
    assert table(device) == {90: 0xFFFF}, table(device)
    put(device, 0, 0x8008)
    put(device, 90, 0)
    put(device, 0, 0xFFFF)
    assert table(device) == {0: 0xFFFF}, table(device)
    # Consumers were told of each of the six changes, and of none that was refused.
    for _ in range(6):
        ctx.get_async_event().ack()
    quiet = select.poll()
    quiet.register(opened, select.POLLIN)
    assert not quiet.poll(200), "an event for a change that was refused"


def violations(names):
    """The device says that it counts violations of both keys, and the counters move by what was sent."""
    for device in (names[0], names[2]):
        flags = Context(name=device).query_device().device_cap_flags
        assert flags & BAD_PKEY_CNTR and flags & BAD_QKEY_CNTR, f"{device}: {flags:#x}"
    put(names[0], 12, 0x8031)
    a, b = two(names, "UD", 12, 0)
    try:
        port = b.ctx.query_port(1)
        for _ in range(3):
            a.send(b"of another partition")
            a.complete()
        b.quiet(0.1)
        now = b.ctx.query_port(1)
        assert (now.bad_pkey_cntr, now.qkey_viol_cntr) == (port.bad_pkey_cntr + 3, port.qkey_viol_cntr), now
    finally:
        put(names[0], 12, 0)
    a, b = two(names, "UD", 0, 0)
    port = b.ctx.query_port(1)
    for _ in range(2):
        a.send(b"with another key", qkey=QKEY + 1)
        a.complete()
    b.quiet(0.1)
    now = b.ctx.query_port(1)
    assert (now.bad_pkey_cntr, now.qkey_viol_cntr) == (port.bad_pkey_cntr, port.qkey_viol_cntr + 2), now


KEYS = {"A": 0x8001, "B": 0x0001, "C": 0x0001, "D": 0x8002}
TALK = {"AB", "BA", "AC", "CA"}


def four(names, kind):
    """Partition 1 with full member A and limited members B and C, partition 2 with D: who hears whom."""
    places = {key: index for index, key in enumerate(sorted(set(KEYS.values())), 5)}
    for key, index in places.items():
        put(names[0], index, key)
        put(names[2], 100 - index, key)
    for x in KEYS:
        for y in KEYS:
            if x == y:
                continue
            a, b = two(names, kind, places[KEYS[x]], 100 - places[KEYS[y]])
            before = b.drops()
            a.send(b"partition")
            if x + y in TALK:
                a.complete()
                b.received(b"partition")
                assert b.drops() == before, f"{kind} {x} to {y}: counted as dropped"
                continue
            a.complete(e.IBV_WC_RETRY_EXC_ERR if kind == "RC" else e.IBV_WC_SUCCESS)
            b.quiet(0.1)
            more = b.drops() - before
            assert more >= 2 if kind == "RC" else more == 1, f"{kind} {x} to {y}: {more} packets dropped"
            assert b.state() == e.IBV_QPS_RTS, f"{kind} {x} to {y}: the receiver's state changed"


def four_rc(names):
    four(names, "RC")


def four_uc(names):
    four(names, "UC")


def four_ud(names):
    four(names, "UD")


def taken_away(names):
    """An entry that is removed under a live queue pair stops its traffic; put back, it goes on."""
    for device in (names[0], names[2]):
        put(device, 7, 0x8005)
    for side in (0, 2):
        for kind in TYPES:
            a, b = two(names, kind, 7, 7, timeout=16, retries=7)
            a.send(b"before")
            a.complete()
            b.received(b"before")
            b.recv(b.sge())
            put(names[side], 7, 0)
            a.send(b"meanwhile")
            if kind == "RC":
                a.quiet(0.5)
                assert a.state() == b.state() == e.IBV_QPS_RTS
                put(names[side], 7, 0x8005)
                a.complete()
                b.received(b"meanwhile")
                b.recv(b.sge())
            else:
                a.complete()
                b.quiet(0.2)
                put(names[side], 7, 0x8005)
            a.send(b"after")
            a.complete()
            b.received(b"after")


def next_packet(names):
    """A change holds from the next packet on."""
    put(names[0], 2, 0x8011)
    put(names[2], 2, 0x8011)
    a, b = two(names, "UD", 2, 2)
    a.send(b"one")
    a.complete()
    b.received(b"one")
    b.recv(b.sge())
    put(names[2], 2, 0x8012)
    before = b.drops()
    a.send(b"two")
    a.complete()
    b.quiet(0.1)
    assert b.drops() == before + 1
    put(names[0], 2, 0x0012)
    a.send(b"three")
    a.complete()
    b.received(b"three")


def unused_index(names):
    put(names[0], 9, 0x8020)
    a = Member(names[0], int(names[1]), "UD", 9)
    b = Member(names[2], int(names[3]), "UD", 0)
    a.join(b)
    put(names[0], 9, 0)
    late = Member(names[0], int(names[1]), "UD", 9)
    try:
        late.join(b)
    except PyverbsRDMAError as error:
        assert error.error_code == errno.EINVAL
    else:
        raise AssertionError("an empty entry was accepted")


GSI_KEY = 0x80010000
# A performance management Get of ClassPortInfo (IBTA vol1 13.4.2, 16.1.3).
MAD = bytes((1, 4, 1, 1)) + bytes(4) + b"question" + (1).to_bytes(2, "big") + bytes(6) + bytes(232)


def services(names):
    """QP1 takes packets of any partition that the port is in, and answers in the partition of the question."""
    put(names[0], 30, 0x8055)
    put(names[2], 31, 0x8055)
    a = Member(names[0], int(names[1]), "UD", 30)
    b = Member(names[2], int(names[3]), "UD", 0)
    a.join(b, dest=1, qkey=GSI_KEY)

    def ask():
        a.recv(a.sge(1000, 1000))
        a.send(MAD, qkey=GSI_KEY)
        a.complete()

    try:
        before = a.drops(), b.drops()
        ask()
        wc = a.complete()
        answer = a.mr.read(256, 1000 + 40)
        assert wc.byte_len == 40 + 256 and wc.src_qp == 1 and wc.pkey_index == 30, (wc.byte_len, wc.src_qp, wc.pkey_index)
        assert answer[3] == 0x81 and answer[8:16] == MAD[8:16], answer[:24]
        assert (a.drops(), b.drops()) == before
        put(names[2], 31, 0)
        ask()
        a.quiet(0.3)
        assert b.drops() == before[1] + 1, "the question was not counted as one of another partition"
    finally:
        put(names[0], 30, 0)
        put(names[2], 31, 0)


# A request for a connection (IBTA vol1 12.6.5) to a service that nobody offers; all fields that need not be there are 0.
REQUEST = bytes((1, 7, 2, 3)) + bytes(4) + b"anyone??" + b"\x00\x10" + bytes(6) + b"\x12\x34\x56\x78" + bytes(4) + b"no such." + bytes(216)


def connection_requests(names):
    """The connection manager of B takes a request of a partition of its own, and its answer reaches the one of A in that partition."""
    def cm(device, kind, way):
        with open(f"/sys/class/infiniband/{device}/ports/1/cm_{way}_msgs/{kind}", encoding="ascii") as file:
            return int(file.read())

    def seen():
        return cm(names[2], "req", "rx"), cm(names[2], "rej", "tx"), cm(names[0], "rej", "rx")

    for device, key in ((names[0], 0x8055), (names[2], 0x0055)):
        put(device, 33, key)
        put(device, 0, 0)
    a, b = Member(names[0], int(names[1]), "UD", 33), Member(names[2], int(names[3]), "UD", 33)
    try:
        a.join(b, dest=1, qkey=GSI_KEY)
        for _ in range(3):
            before = seen()
            a.send(REQUEST, qkey=GSI_KEY)
            a.complete()
            deadline = time.monotonic() + 5
            while seen() != tuple(count + 1 for count in before) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert seen() == tuple(count + 1 for count in before), (before, seen())
        # In another partition it is not even seen.
        put(names[2], 33, 0x8056)
        before, drops = seen(), b.drops()
        a.send(REQUEST, qkey=GSI_KEY)
        a.complete()
        time.sleep(0.3)
        assert seen() == before and b.drops() == drops + 1, (before, seen())
    finally:
        for device in (names[0], names[2]):
            put(device, 0, 0xFFFF)
            put(device, 33, 0)


CASES = [services, connection_requests, edit, last, violations, four_rc, four_uc, four_ud, taken_away, next_packet, unused_index]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[5]](sys.argv[1:5])
    print("right")
