# SPDX-License-Identifier: GPL-2.0
"""Controlled Q_Keys, which only privileged users may set. Mismatches and work requests with a controlled Q_Key: drops.qkeys; multicast
groups: mcast.key_must_match.
"""
import errno

from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
import pyverbs.enums as e

from lib import host
from lib.case import skip
from lib.pkeys import Member

GSI = 0x80010000


def controlled(names, expected):
    """Sets controlled Q_Keys (with the top bit), in the transition to INIT and later."""
    for key in (GSI, 0x80000000, 0xFFFFFFFF):
        end = Member(names[0], int(names[1]), "UD", 0)
        peer = Member(names[2], int(names[3]), "UD", 0)
        for change in (lambda: end.join(peer, qkey=key), lambda: (end.join(peer), end.qp.modify(live(key), e.IBV_QP_QKEY))):
            seen = 0
            try:
                change()
            except PyverbsRDMAError as error:
                seen = error.error_code
            assert seen == expected, f"Q_Key {key:#x}: error {seen}, expected {expected}"
            end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    # Every user may set Q_Keys without the top bit.
    end.join(peer, qkey=0x7FFFFFFF)


def live(key):
    attr = QPAttr()
    attr.qkey = key
    return attr


def test_well_known(names):
    """The Q_Key of general services: packets have it only if the sending queue pair does, not if only the work request does."""
    a, b = Member(names[0], int(names[1]), "UD", 0), Member(names[2], int(names[3]), "UD", 0)
    a.join(b, qkey=GSI)
    b.join(a, qkey=GSI)
    b.recv(b.sge())
    a.send(b"services", qkey=GSI)
    a.complete()
    b.received(b"services")
    # In a work request on a queue pair with another Q_Key, the queue pair's own is sent: b drops the packet.
    before = b.ctx.query_port(1).qkey_viol_cntr
    b.recv(b.sge())
    a.qp.modify(live(0x1111), e.IBV_QP_QKEY)
    a.send(b"forged", qkey=GSI)
    a.complete()
    b.no_completion(0.1)
    assert b.ctx.query_port(1).qkey_viol_cntr == before + 1
    assert b.state() == e.IBV_QPS_RTS
    # The Q_Key applies from the next packet on.
    b.qp.modify(live(0x1111), e.IBV_QP_QKEY)
    a.send(b"own", qkey=GSI)
    a.complete()
    b.received(b"own")


def test_privileged(names):
    controlled(names, 0)


def refused(names):
    controlled(names, errno.EPERM)


def permitted(names):
    controlled(names, 0)


def unprivileged(function):
    """Runs a function of this file in a process without CAP_NET_RAW."""
    host.shell("setpriv --bounding-set -net_raw python3 /share/tests/lib/run.py alone $1 $2", __file__, function.__name__)


def test_unprivileged(_names):
    """Without CAP_NET_RAW, setting a controlled Q_Key is refused, unless the administrator permits it to all users."""
    if "privileged-qkey" not in host.shell("rdma system show"):
        skip("this rdma tool does not support privileged-qkey")
    unprivileged(refused)
    host.shell("rdma system set privileged-qkey on")
    try:
        unprivileged(permitted)
    finally:
        host.shell("rdma system set privileged-qkey off")
    unprivileged(refused)
