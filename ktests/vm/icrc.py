# SPDX-License-Identifier: GPL-2.0
"""Packets without an ICRC: queue pairs of one kernel send them as long as the packets do not leave its memory. If something changes
packets, or takes them out of memory, they must have an ICRC again, without an error and without wrong data."""
import contextlib
import os

import pyverbs.enums as e

from lib import host
from lib.child_process import child_process
from lib.counters import grows, stays, total
from lib.ends import datagram, datagram_pair, happens, pair, pattern, write_and_read
from lib.frames import PORT, packet_socket

DEFAULTS = dict(timeout=60, driver="rxe_rs", reason="rdma_rxe always sends an ICRC")
SIZE = 20000
# Counts the packets that a device has received without an ICRC.
WITHOUT_ICRC = "rcvd_without_icrc"


def transfer(a, b, rounds=5):
    """WRITEs and READs of new data, checked."""
    for n in range(rounds):
        write_and_read(a, b, pattern(SIZE, os.getpid() + n))


def omitted(names):
    before = total(WITHOUT_ICRC)
    a, b = pair(names)
    transfer(a, b)
    assert grows(WITHOUT_ICRC, before), "all packets had an ICRC"


def checksums(node, state):
    """Switches the offload of checksums of a node's device: without it the stack computes them, and tags no longer arrive."""
    host.shell("on $1 ethtool -K $2 tx $3", node, host.netdev(node), state)


def kept(a, b):
    """Asserts that packets soon have an ICRC: those in flight may be lost first."""
    transfer(a, b)
    assert happens(lambda: settled(a, b), 10), "packets still have no ICRC"


def settled(a, b):
    before = total(WITHOUT_ICRC)
    transfer(a, b, 1)
    return total(WITHOUT_ICRC) == before and stays(WITHOUT_ICRC, before)


def test_omitted_ipv4(_names):
    omitted(host.names(4))


def test_omitted_ipv6(_names):
    omitted(host.names(6))


def test_zero_on_the_device(names):
    """What a packet socket shows: the first packets have an ICRC, later ones have zeros."""
    sock = packet_socket("b", host.netdev("b"))
    a, b = pair(names)
    transfer(a, b, 2)
    sock.setblocking(False)
    ends = []
    with contextlib.suppress(BlockingIOError):
        while True:
            frame = sock.recv(65536)
            if PORT.to_bytes(2, "big") in frame[34:40]:
                ends.append(frame[-4:])
    assert ends and ends[0] != bytes(4), "the first packet has no ICRC"
    assert bytes(4) in ends, "all packets have an ICRC"


def test_path_changes(names):
    """The checksums of either device are switched off and on while a connection exists: it goes on, with and without the ICRC."""
    a, b = pair(names)
    try:
        for node in ("a", "b", "a"):
            before = total(WITHOUT_ICRC)
            transfer(a, b)
            assert grows(WITHOUT_ICRC, before), "all packets had an ICRC"
            checksums(node, "off")
            kept(a, b)
            checksums(node, "on")
    finally:
        for node in "ab":
            checksums(node, "on")
    before = total(WITHOUT_ICRC)
    transfer(a, b)
    assert grows(WITHOUT_ICRC, before), "the ICRC is not omitted again"


def test_corrupted(names):
    """netem changes bits of packets: none of them may be accepted because it has no ICRC."""
    a, b = pair(names)
    before, bad = total(WITHOUT_ICRC), total("rx_bad_icrc")
    transfer(a, b)
    assert grows(WITHOUT_ICRC, before), "all packets had an ICRC"
    try:
        for node in "ab":
            host.shell("on $1 tc qdisc add dev $2 root netem corrupt 10%", node, host.netdev(node))
        transfer(a, b, 40)
    finally:
        for node in "ab":
            host.shell("on $1 tc qdisc del dev $2 root", node, host.netdev(node))
    assert grows("rx_bad_icrc", bad), "no packet was corrupted"


def test_services(names):
    """Datagrams and unreliable connections, whose packets nobody repeats, and connections without a retry keep the ICRC."""
    before = total(WITHOUT_ICRC)
    one, other, ah = datagram_pair(names)
    for _ in range(10):
        other.recv(other.sge(200))
        datagram(one, other, ah, 1)
        one.complete()
        other.complete()
    transfer(*pair(names, retries=0))
    a, b = pair(names, qp_type=e.IBV_QPT_UC)
    for _ in range(10):
        b.recv(b.sge(100))
        a.post(e.IBV_WR_SEND, a.sge(100))
        a.complete()
        b.complete()
    assert stays(WITHOUT_ICRC, before), "a packet had no ICRC"


def test_disabled(_names):
    """With same_host_icrc=1 all packets have an ICRC."""
    with host.reloaded("same_host_icrc=1"), child_process(all_have_icrc):
        pass


def all_have_icrc():
    transfer(*pair(host.names()))
    assert stays(WITHOUT_ICRC, 0), "a packet had no ICRC"
