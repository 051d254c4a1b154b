#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Multicast groups through pyverbs, both devices in one process: who gets a message and who does not.

mcast.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B GROUP CASE

GROUP is an IPv4 or IPv6 address of the family of the GIDs. Case names are the functions below.
"""
import ctypes
import ipaddress
import os
import sys
import time

from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

MULTICAST_QPN = 0xFFFFFF
QKEY = 0x1234
GRH = 40


def gid_of(address):
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        ip = ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + ip.packed)
    return GID(":".join(f"{int.from_bytes(ip.packed[i:i + 2], 'big'):04x}" for i in range(0, 16, 2)))


VERBS = ctypes.CDLL("libibverbs.so.1", use_errno=True)


def pointer_of(qp):
    """The `struct ibv_qp *` in a pyverbs object, which has no calls for groups: found by the number behind it."""
    with open("/proc/self/mem", "rb") as memory:
        def word(at, size=8):
            try:
                return int.from_bytes(os.pread(memory.fileno(), size, at), "little")
            except (OSError, OverflowError):
                return 0

        for slot in range(2, 24):
            candidate = word(id(qp) + 8 * slot)
            # Behind six pointers and the handle.
            if candidate and word(candidate + 52, 4) == qp.qp_num:
                return candidate
    raise AssertionError("no pointer to the queue pair")


def group_call(call, qp, group, lid=0):
    raw = bytes.fromhex(group.gid.replace(":", ""))
    error = call(ctypes.c_void_p(pointer_of(qp)), ctypes.create_string_buffer(raw, 16), ctypes.c_uint16(lid))
    if error:
        raise OSError(error, os.strerror(error))


def attach(qp, group):
    group_call(VERBS.ibv_attach_mcast, qp, group)


def detach(qp, group):
    group_call(VERBS.ibv_detach_mcast, qp, group)


def counter(device, name):
    with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}") as f:
        return int(f.read())


class Node:
    """A device and how to get from it to a group."""

    def __init__(self, name, gid_index):
        self.name, self.gid_index = name, int(gid_index)
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)

    def path(self, gid):
        route = GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=4)
        return AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=1))


class Endpoint:
    """A datagram queue pair that is ready."""

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
        """Through the last slot of the memory; receive requests of that slot are not reached by the tests."""
        self.mr.write(data, len(data), 15 * 2048)
        wr = SendWR(num_sge=1, sg=[SGE(self.mr.buf + 15 * 2048, len(data), self.mr.lkey)], wr_id=100)
        wr.set_wr_ud(ah, qpn, qkey)
        self.qp.post_send(wr)

    def poll(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            count, wcs = self.cq.poll(1)
            if count:
                assert wcs[0].status == e.IBV_WC_SUCCESS, f"status {wcs[0].status}"
                return wcs[0]
            time.sleep(0.001)
        return None

    def sent(self):
        wc = self.poll(10)
        assert wc and wc.wr_id == 100, "the send did not complete"

    def gets(self, data, source):
        wc = self.poll(10)
        assert wc and wc.opcode & e.IBV_WC_RECV, "nothing arrived"
        assert wc.byte_len == len(data) + GRH, f"{wc.byte_len} bytes"
        assert wc.src_qp == source.qp.qp_num, f"source {wc.src_qp}"
        assert wc.wc_flags & e.IBV_WC_GRH
        got = self.mr.read(len(data), wc.wr_id * 2048 + GRH)
        assert got == data, got[:40]
        return self.mr.read(GRH, wc.wr_id * 2048)

    def gets_nothing(self, seconds=0.3):
        wc = self.poll(seconds)
        assert not wc, f"wr_id {wc.wr_id} completed"


def refused(call, *args):
    try:
        call(*args)
    except OSError:
        return
    raise AssertionError("was accepted")


def setup(args):
    a, b = Node(args[0], args[1]), Node(args[2], args[3])
    return a, b, gid_of(args[4])


def members_get_it(args):
    """Every attached queue pair gets one copy, with the headers as sent; one that is not attached gets none."""
    a, b, group = setup(args)
    sender = Endpoint(a)
    members = [Endpoint(b) for _ in range(3)]
    other = Endpoint(b)
    for member in members:
        attach(member.qp, group)
    ah = a.path(group)
    for n, length in enumerate((1, 77, 1024)):
        data = bytes((n + i * 3) & 0xFF for i in range(length))
        sender.send(ah, data)
        sender.sent()
        for member in members:
            grh = member.gets(data, sender)
            assert ipaddress.ip_address(args[4]).packed in grh[20:], "the group's address is not in the header"
    for end in members + [other]:
        end.gets_nothing()


def leaving_ends_it(args):
    a, b, group = setup(args)
    sender, stays, leaves = Endpoint(a), Endpoint(b), Endpoint(b)
    ah = a.path(group)
    for end in (stays, leaves):
        attach(end.qp, group)
    sender.send(ah, b"both")
    for end in (stays, leaves):
        end.gets(b"both", sender)
    detach(leaves.qp, group)
    sender.send(ah, b"one")
    stays.gets(b"one", sender)
    leaves.gets_nothing()
    detach(stays.qp, group)
    sender.send(ah, b"none")
    stays.gets_nothing()
    leaves.gets_nothing(0.01)
    attach(stays.qp, group)
    sender.send(ah, b"again")
    stays.gets(b"again", sender)


def key_must_match(args):
    """A member with another Q_Key gets nothing; if that is all of them, the drop is counted as such, once."""
    a, b, group = setup(args)
    sender, right, wrong = Endpoint(a), Endpoint(b), Endpoint(b, qkey=QKEY + 1)
    attach(wrong.qp, group)
    before = counter(b.name, "rx_bad_qkey")
    ah = a.path(group)
    sender.send(ah, b"wrong key")
    wrong.gets_nothing()
    assert counter(b.name, "rx_bad_qkey") == before + 1
    attach(right.qp, group)
    sender.send(ah, b"right key")
    right.gets(b"right key", sender)
    wrong.gets_nothing()
    assert counter(b.name, "rx_bad_qkey") == before + 1


def sender_is_member(args):
    """A message comes back to members of the sending host, the sender among them."""
    a, b, group = setup(args)
    sender, near, far = Endpoint(a), Endpoint(a), Endpoint(b)
    ah = a.path(group)
    for end in (sender, near, far):
        attach(end.qp, group)
    sender.send(ah, b"everybody")
    near.gets(b"everybody", sender)
    far.gets(b"everybody", sender)
    kinds = sorted(bool(sender.poll(10).opcode & e.IBV_WC_RECV) for _ in range(2))
    assert kinds == [False, True], kinds
    for end in (sender, near, far):
        end.gets_nothing(0.2)


def numbers_and_addresses_agree(args):
    """A queue pair's own number with the address of a group, or the other way round, is dropped."""
    a, b, group = setup(args)
    sender, member = Endpoint(a), Endpoint(b)
    attach(member.qp, group)
    no_gid, no_group = counter(b.name, "rx_no_gid"), counter(b.name, "rx_no_mcast_group")
    to_group, to_b = a.path(group), a.path(gid_of(b.ctx.query_gid(1, b.gid_index).gid))
    sender.send(to_group, b"number", qpn=member.qp.qp_num)
    member.gets_nothing()
    assert counter(b.name, "rx_no_gid") == no_gid + 1
    sender.send(to_b, b"address")
    member.gets_nothing()
    assert counter(b.name, "rx_no_mcast_group") == no_group + 1
    sender.send(to_b, b"unicast", qpn=member.qp.qp_num)
    member.gets(b"unicast", sender)


def arguments_are_checked(args):
    a, _, group = setup(args)
    end = Endpoint(a)
    refused(detach, end.qp, group)
    refused(attach, end.qp, gid_of("10.1.2.3"))
    refused(attach, end.qp, gid_of("fd00::1"))
    attach(end.qp, group)
    attach(end.qp, group)
    detach(end.qp, group)
    # The core keeps an entry per LID, which means nothing here, and undoes each of them before the queue pair can be destroyed.
    attach(end.qp, group)
    refused(group_call, VERBS.ibv_attach_mcast, end.qp, group, 1)
    detach(end.qp, group)
    end.qp.close()
    end = Endpoint(a)
    rc = QP(a.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=end.cq, rcq=end.cq, cap=QPCap()))
    refused(attach, rc, group)
    limits = a.ctx.query_device()
    assert limits.max_mcast_grp > 0 and limits.max_mcast_qp_attach > 0


def groups_are_apart(args):
    """Members of many groups get the messages of their own."""
    a, b, _ = setup(args)
    sender = Endpoint(a)
    base = ipaddress.ip_address(args[4])
    groups = [gid_of(str(base + n)) for n in range(20)]
    members = [Endpoint(b, receives=4) for _ in groups]
    for member, group in zip(members, groups):
        attach(member.qp, group)
    for n, group in enumerate(groups):
        sender.send(a.path(group), b"group %d" % n)
        sender.sent()
    for n, member in enumerate(members):
        member.gets(b"group %d" % n, sender)
    for member in members:
        member.gets_nothing(0.02)


def join_and_wait(args):
    """Joins, says so and waits for a line or for its death."""
    a, b, group = setup(args)
    end = Endpoint(b)
    attach(end.qp, group)
    print("joined", flush=True)
    sys.stdin.readline()


def send_one(args):
    a, _, group = setup(args)
    sender = Endpoint(a)
    sender.send(a.path(group), b"hello")
    sender.sent()


CASES = [members_get_it, leaving_ends_it, key_must_match, sender_is_member, numbers_and_addresses_agree,
         arguments_are_checked, groups_are_apart, join_and_wait, send_one]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[6]](sys.argv[1:6])
    print("right")
