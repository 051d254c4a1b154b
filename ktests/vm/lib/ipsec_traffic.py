#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Queue pairs over paths that IPsec protects: path MTU, packets that become too long, packets that wait for keys.

ipsec_traffic.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B CASE

The caller changes the IPsec configuration in between: a case prints `ready` and continues when it reads a line.
"""
import errno
import struct
import sys

import pyverbs.enums as e

from lib import host, sending
from lib.drops import RC_SEND_ONLY, UC_SEND_ONLY, UD_SEND_ONLY, Target, bth, packet
from lib.ends import End, pair, pattern, refused


def call():
    print("ready", flush=True)
    assert sys.stdin.readline(), "the caller has ended"


def works(a, b):
    """WRITEs of half a packet, one full packet and three packets at the largest path MTU, in both directions."""
    size = 3 * 4096
    for one, other in ((a, b), (b, a)):
        for seed, length in enumerate((2048, 4096, size)):
            data = pattern(length, seed)
            one.mr.write(data, length)
            other.recv(other.sge(size, size))
            one.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, one.sge(length), remote=(other.mr.buf, other.mr.rkey), imm=seed)
            one.complete()
            other.complete()
            assert other.mr.read(length, 0) == data, f"wrong data in a WRITE of {length} bytes"


def fits_4096(names):
    works(*pair(names, mtu=e.IBV_MTU_4096))


def fits_2048(names):
    refused(errno.EINVAL, pair, names, mtu=e.IBV_MTU_4096)
    works(*pair(names, mtu=e.IBV_MTU_2048))


def too_long(names):
    """The connection was established before the policies: short packets still arrive, a full packet exceeds its retries."""
    a, b = pair(names, mtu=e.IBV_MTU_4096, retries=2, timeout=15)
    works(a, b)
    call()
    b.recv(b.sge())
    a.post(e.IBV_WR_SEND, a.sge(100))
    a.complete()
    b.complete()
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(4096), remote=(b.mr.buf, b.mr.rkey))
    a.complete(e.IBV_WC_RETRY_EXC_ERR)


def late_keys(names):
    """Nothing is sent without keys; nothing is lost if the keys are added in time."""
    a, b = pair(names, retries=7, timeout=19)
    works(a, b)
    call()
    data = pattern(9000, 5)
    a.mr.write(data, len(data))
    b.recv(b.sge())
    a.post(e.IBV_WR_SEND, a.sge(len(data)))
    call()
    a.complete(seconds=60)
    b.complete(seconds=60)
    assert b.mr.read(len(data), 0) == data, "wrong data"


def unprotected(names):
    """IPsec policies of the receiver reject all packets without ESP, sent as single datagrams or by UDP segmentation offload."""
    family = 6 if names[1] == host.gid("a", 6) else 4
    target = Target(names, host.ip("a", family), host.ip("b", family))
    counter = "rx_policy_refused"
    qpn = End(target.names[2], int(target.names[3])).qp.qp_num
    deth = struct.pack(">II", 0x11111111, 7)
    whole = [packet(RC_SEND_ONLY, qpn, pattern(200)), packet(UC_SEND_ONLY, qpn, pattern(20)), packet(UD_SEND_ONLY, 1, deth + bytes(256))]
    target.expect(counter, *[target.intact(one) for one in whole])
    target.expect(counter, *whole, packet(RC_SEND_ONLY, 0), bth(RC_SEND_ONLY, qpn)[:11], b"")
    before = target.counters()[counter]
    assert sending.segmented(target.socket, whole[0], target.to) == 0, "the segmented buffer was not sent"
    target.soon(counter, before + 3)


if __name__ == "__main__":
    globals()[sys.argv[5]](sys.argv[1:5])
