# SPDX-License-Identifier: GPL-2.0
"""Forged ICMP errors. Whoever knows the addresses of two hosts can claim that packets between them are too long for the path."""
import socket
import struct

import pyverbs.enums as e

from lib import host
from lib.case import families
from lib.ends import pair, pattern, soon
from lib.frames import PORT, checksum, within

DEFAULTS = dict(driver="rxe_rs", reason="rdma_rxe believes such errors")
SIZE = 65536
# Below these IPv4 and IPv6 ignore what an error claims.
SHORTEST = {4: 552, 6: 1280}
# What the devices carry, for packets of 4096 bytes.
MTU = 4200


def too_long(source, to, family):
    """An ICMP error about a RoCE packet from `source`."""
    udp = struct.pack("!HHHH", 50000, PORT, 1100, 0)
    if family == 6:
        inner = struct.pack("!IHBB", 6 << 28, 1100, 17, 64) + socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to)
        # The kernel computes the checksum.
        return struct.pack("!BBHI", 2, 0, 0, SHORTEST[6]) + inner + udp
    inner = struct.pack("!BBHHHBBH", 0x45, 0, 1120, 0, 0x4000, 64, 17, 0) + socket.inet_aton(source) + socket.inet_aton(to)
    head = struct.pack("!BBHHH", 3, 4, 0, 0, SHORTEST[4])
    return head[:2] + struct.pack("!H", checksum(head + inner + udp)) + head[4:] + inner + udp


def forge(node, other, family):
    """Sends an error to `node` from the other one, and waits until the routes of `node` believe it."""
    kind, protocol = ((socket.AF_INET, socket.IPPROTO_ICMP), (socket.AF_INET6, socket.IPPROTO_ICMPV6))[family == 6]
    here, there = host.ip(node, family), host.ip(other, family)
    with within(other, lambda: socket.socket(kind, socket.SOCK_RAW, protocol)) as sock:
        sock.sendto(too_long(here, there, family), (here, 0))
    soon(lambda: f"mtu {SHORTEST[family]}" in host.shell('on "$1" ip route get "$2"', node, there), 10, "the error had no effect on routes")


def works(a, b):
    for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
        source, target = (a, b) if opcode == e.IBV_WR_RDMA_WRITE else (b, a)
        source.mr.write(pattern(SIZE, opcode + 1), SIZE)
        a.post(opcode, a.sge(SIZE), remote=(b.mr.buf, b.mr.rkey))
        a.complete()
        assert target.mr.read(SIZE, 0) == pattern(SIZE, opcode + 1)


@families(4, 6)
def test_path_mtu(family):
    """Connections are not affected, and neither are new ones."""
    host.shell("for n in a b; do on $n ip link set v$n mtu $1; done", MTU)
    try:
        names = host.names(family)
        old = pair(names, mtu=e.IBV_MTU_4096, retries=2, timeout=15)
        works(*old)
        forge("a", "b", family)
        forge("b", "a", family)
        works(*old)
        works(*pair(names, mtu=e.IBV_MTU_4096, retries=2, timeout=15))
    finally:
        host.shell("""
            for n in a b; do
                on $n ip route flush cache
                on $n ip -6 route flush cache
                on $n ip link set v$n mtu 1500
            done""")
