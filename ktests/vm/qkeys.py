# SPDX-License-Identifier: GPL-2.0
"""Controlled Q_Keys, which only privileged users may set. Mismatches and the top bit of a request's key: drops.qkeys; groups:
mcast.key_must_match.
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
    """Sets keys with the top bit, when a queue pair is initialised and later on."""
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
    # What has no top bit is everybody's.
    end.join(peer, qkey=0x7FFFFFFF)


def live(key):
    attr = QPAttr()
    attr.qkey = key
    return attr


def test_well_known(names):
    """The key of the general services: a request cannot name it, a queue pair that has it sends it."""
    a, b = Member(names[0], int(names[1]), "UD", 0), Member(names[2], int(names[3]), "UD", 0)
    a.join(b, qkey=GSI)
    b.join(a, qkey=GSI)
    b.recv(b.sge())
    a.send(b"services", qkey=GSI)
    a.complete()
    b.received(b"services")
    # Named by a queue pair that has another, it sends that: B does not take it.
    before = b.ctx.query_port(1).qkey_viol_cntr
    b.recv(b.sge())
    a.qp.modify(live(0x1111), e.IBV_QP_QKEY)
    a.send(b"forged", qkey=GSI)
    a.complete()
    b.quiet(0.1)
    assert b.ctx.query_port(1).qkey_viol_cntr == before + 1
    assert b.state() == e.IBV_QPS_RTS
    # From the next packet on.
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
    """Calls a function of this file in a process without CAP_NET_RAW."""
    host.shell("setpriv --bounding-set -net_raw python3 /share/tests/lib/run.py alone $1 $2", __file__, function.__name__)


def test_unprivileged(_names):
    """Without CAP_NET_RAW a controlled key is refused, unless the administrator opens them to everybody."""
    if "privileged-qkey" not in host.shell("rdma system show"):
        skip("this rdma tool knows no privileged-qkey")
    unprivileged(refused)
    host.shell("rdma system set privileged-qkey on")
    try:
        unprivileged(permitted)
    finally:
        host.shell("rdma system set privileged-qkey off")
    unprivileged(refused)
