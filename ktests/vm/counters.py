# SPDX-License-Identifier: GPL-2.0
"""Counters of requests from peers and of drops: hw_counters in sysfs, and the same in `rdma statistic`."""
import json
import subprocess

from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import host
from lib.counters import counters
from lib.drops import RC_SEND_ONLY, Target, packet
from lib.ends import MTU, End, pair, soon

DEFAULTS = dict(driver="rxe_rs", reason="these are counters of rxe_rs")
REQUESTS = {"rx_read_requests", "rx_write_requests", "rx_atomic_requests"}


def statistic(device):
    """Returns the counters that `rdma statistic` shows."""
    text = subprocess.check_output(["rdma", "-j", "statistic", "show", "link", f"{device}/1"])
    return {name: value for name, value in json.loads(text)[0].items() if name not in ("ifname", "port")}


def test_requests(names):
    """The responder counts each request once, whatever its number of packets; the requester counts none."""
    a, b = pair(names)
    before = [counters(names[side]) for side in (0, 2)]
    remote = b.mr.buf, b.mr.rkey
    for length in (8, 3 * MTU):
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(length), remote=remote)
        a.complete()
        a.post(e.IBV_WR_RDMA_READ, a.sge(length), remote=remote)
        a.complete()
    b.recv(b.sge(8))
    a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(8), remote=remote, imm=1)
    a.complete()
    b.complete()
    for opcode in (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP):
        for _ in range(2):
            wr = SendWR(wr_id=1, num_sge=1, sg=[a.sge(8)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
            wr.set_wr_atomic(b.mr.rkey, b.mr.buf, 0, 0)
            a.qp.post_send(wr)
            a.complete()
    # A request with an unknown R_Key is refused and not counted.
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(8), remote=(b.mr.buf, b.mr.rkey ^ 0xFF))
    a.complete(e.IBV_WC_REM_ACCESS_ERR)

    def risen(side):
        after = counters(names[2 * side])
        return {name: after[name] - before[side][name] for name in REQUESTS}

    expected = {"rx_read_requests": 2, "rx_write_requests": 3, "rx_atomic_requests": 4}
    soon(lambda: risen(1) == expected, what=f"{risen(1)}, expected {expected}")
    # The refused request was the last event, so all earlier requests have been counted.
    assert set(risen(0).values()) == {0}, f"the requester counts {risen(0)}"


def test_of_the_port(_names):
    """The counters of performance management count what is dropped, at both ends."""
    # Some of them have 8 bits, and stay at their maximum when they have reached it: those of new links begin with 0.
    host.shell("no_links; links")
    names = host.names()
    a, b = pair(names, retries=0, timeout=10)
    target = Target(names, host.ip("a", 4), host.ip("b", 4))

    def shows(side, name, value):
        def shown():
            with open(f"/sys/class/infiniband/{names[side]}/ports/1/counters/{name}", encoding="ascii") as file:
                return int(file.read())
        soon(lambda: shown() == value, what=f"{name} is {shown()}, expected {value}")

    target.expect("rx_bad_icrc", packet(RC_SEND_ONLY, b.qp.qp_num))
    target.expect("rx_bad_version", packet(RC_SEND_ONLY, b.qp.qp_num, version=1))
    shows(2, "port_rcv_errors", 2)
    target.expect("rx_bad_pkey", *[target.intact(packet(RC_SEND_ONLY, b.qp.qp_num, pkey=0x8001))] * 3)
    shows(2, "port_rcv_constraint_errors", 3)
    shows(2, "port_rcv_errors", 2)
    shows(0, "port_xmit_discards", 0)
    # A queue without room for a packet.
    host.shell("on a tc qdisc replace dev va root bfifo limit 1")
    try:
        a.post(e.IBV_WR_SEND, a.sge(8))
        a.complete(e.IBV_WC_RETRY_EXC_ERR)
    finally:
        host.shell("on a tc qdisc del dev va root")
    sent = counters(names[0])["send_err"]
    assert sent, "no packet was refused"
    shows(0, "port_xmit_discards", sent)


def test_in_rdma_statistic(names):
    """`rdma statistic` shows the same drops and requests of peers as sysfs."""
    a, b = pair(names)
    early = End(names[2], int(names[3]))
    a.post(e.IBV_WR_RDMA_READ, a.sge(8), remote=(b.mr.buf, b.mr.rkey))
    a.complete()
    target = Target(names, host.ip("a", 4), host.ip("b", 4))
    target.expect("rx_not_ready", packet(RC_SEND_ONLY, early.qp.qp_num))
    shown = counters(names[2])
    # Not a counter, but how long sysfs shows old values.
    del shown["lifespan"]
    assert statistic(names[2]) == shown
    assert shown["rx_not_ready"] and shown["rx_read_requests"], shown
