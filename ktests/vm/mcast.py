#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Multicast groups through pyverbs, both devices in one process: who gets a message and who does not.

mcast.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B GROUP CASE

GROUP is an IPv4 or IPv6 address of the family of the GIDs. Case names are the functions below.
"""
import ipaddress
import sys

from pyverbs.qp import QP, QPCap, QPInitAttr
import pyverbs.enums as e

from lib.counters import counter
from lib.libibverbs import VERBS
from lib.mcast import QKEY, Endpoint, Node, attach, detach, gid_of, group_call


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
