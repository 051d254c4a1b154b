#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What the two sides of a connection must agree in, attribute by attribute: once they do, and once they do not.

matrix.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B OTHER-GID-INDEX-A CASE

Every disagreement has its consequence: the status with which the sender's request completes (a datagram or UC sender never learns), the
counter of the receiver that rises, what the receiver's state is. Both queue pairs are in this process.
"""
import errno
import sys

from pyverbs.addr import GID
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib.counters import counters
from lib.ends import soon
from lib.pkeys import TYPES, Member, put

RETRY_EXC, INV_REQ = e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_REM_INV_REQ_ERR


def sides(names, kind, index=0, a_wrong=None, b_wrong=None, b_index=None):
    """Two queue pairs that agree but for what is given."""
    a = Member(names[0], int(names[1]), kind, index)
    b = Member(names[2], int(names[3]), kind, index if b_index is None else b_index)
    a.join(b, **(a_wrong or {}))
    b.join(a, **(b_wrong or {}))
    b.recv(b.sge())
    return a, b


def passes(a, b, text=b"agreed"):
    a.send(text)
    a.complete()
    b.received(text)


def lost(names, a, b, counter, status=RETRY_EXC, text=b"in vain", **options):
    """What A sends does not arrive; B counts it and otherwise goes on."""
    before = counters(names[2])
    a.send(text, **options)
    a.complete(status if a.kind == "RC" else e.IBV_WC_SUCCESS)
    b.quiet(0.1)
    assert b.state() == e.IBV_QPS_RTS, f"{a.kind}: B is in state {b.state()}"
    after = counters(names[2])
    assert after[counter] > before[counter], f"{a.kind}: {counter} of the receiver did not rise"


def pkey(names):
    """Different partitions: silence; RC runs out of retries."""
    entries = ((names[0], 20, 0x8055), (names[2], 20, 0x8055), (names[2], 21, 0x8056))
    try:
        for entry in entries:
            put(*entry)
        for kind in TYPES:
            passes(*sides(names, kind, 20))
            lost(names, *sides(names, kind, 20, b_index=21), "rx_bad_pkey")
    finally:
        for device, index, _ in entries:
            put(device, index, 0)


def psn(names):
    """RC: a PSN ahead of the expected one is answered with a sequence error that fits nothing outstanding, until the retries are used up.
    One behind it is taken for a repetition: acknowledged and not executed, so the sender believes that it arrived. UC takes the first
    packet of a message with any PSN; UD does not look at it."""
    passes(*sides(names, "RC"))
    lost(names, *sides(names, "RC", a_wrong={"sq_psn": 6}), "out_of_seq_request")
    lost(names, *sides(names, "RC", a_wrong={"sq_psn": 4}), "duplicate_request", e.IBV_WC_SUCCESS)
    for kind in ("UC", "UD"):
        passes(*sides(names, kind, a_wrong={"sq_psn": 1000}))


def destination(names):
    """A number nobody has: counted at the device, since there is no queue pair to count it."""
    unused = 0x00FFFE
    for kind in TYPES:
        passes(*sides(names, kind))
        lost(names, *sides(names, kind, a_wrong={"dest": unused}), "rx_no_qp")
        # One of another transport.
        other = Member(names[2], int(names[3]), "UD" if kind == "RC" else "RC", 0)
        other.join(Member(names[0], int(names[1]), other.kind, 0))
        lost(names, *sides(names, kind, a_wrong={"dest": other.qp.qp_num}), "rx_wrong_transport")


def path_mtu(names):
    """Messages of one packet pass while they are not too long; of a longer one the first packet gives it away. RC: refused for good,
    and B fails with it; UC: dropped; UD: a datagram is one packet, and the sender's own port is its limit."""
    long = bytes(range(250)) * 6
    for kind in ("RC", "UC"):
        a, b = sides(names, kind, a_wrong={"mtu": e.IBV_MTU_512}, b_wrong={"mtu": e.IBV_MTU_512})
        passes(a, b, long)
        for mine, peers in ((e.IBV_MTU_512, e.IBV_MTU_1024), (e.IBV_MTU_1024, e.IBV_MTU_512)):
            a, b = sides(names, kind, a_wrong={"mtu": mine}, b_wrong={"mtu": peers})
            passes(a, b, b"short")
            b.recv(b.sge())
            a.send(long)
            if kind == "RC":
                a.complete(INV_REQ)
                b.complete(e.IBV_WC_WR_FLUSH_ERR)
                assert b.state() == e.IBV_QPS_ERR
            else:
                a.complete()
                b.quiet(0.1)
                assert b.state() == e.IBV_QPS_RTS
    a, b = sides(names, "UD")
    a.send(long * 4)
    a.complete(e.IBV_WC_LOC_LEN_ERR)


def read_depth(names):
    """More READs at once than the target keeps resources for are an invalid request; as many are fine."""
    for mine, peers, status in ((4, 4, e.IBV_WC_SUCCESS), (1, 8, e.IBV_WC_SUCCESS), (8, 1, INV_REQ), (1, 0, INV_REQ)):
        a, b = sides(names, "RC", a_wrong={"depth": mine}, b_wrong={"peer_depth": peers})
        # Posted at once, so that they are on the way together.
        chain = [None]
        for n in range(8):
            wr = SendWR(wr_id=n, num_sge=1, sg=[a.sge(4096, 4096 * n)], opcode=e.IBV_WR_RDMA_READ, send_flags=e.IBV_SEND_SIGNALED,
                        next_wr=chain[-1])
            wr.set_wr_rdma(b.mr.rkey, b.mr.buf)
            chain.append(wr)
        a.qp.post_send(chain[-1])
        seen = []
        soon(lambda: seen.extend(wc.status for wc in a.cq.poll(8)[1] or ()) or len(seen) == 8)
        if status == e.IBV_WC_SUCCESS:
            assert seen == [status] * 8, seen
        else:
            assert status in seen and e.IBV_WC_SUCCESS not in seen[seen.index(status):], f"{mine} against {peers}: {seen}"


def port(names):
    """There is one: any other is refused before anything is sent."""
    for kind in TYPES:
        end = Member(names[0], int(names[1]), kind, 0)
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=2)
        mask = e.IBV_QP_STATE | e.IBV_QP_PORT | e.IBV_QP_PKEY_INDEX
        mask |= e.IBV_QP_QKEY if kind == "UD" else e.IBV_QP_ACCESS_FLAGS
        try:
            end.qp.modify(attr, mask)
        except PyverbsRDMAError as error:
            assert error.error_code == errno.EINVAL
        else:
            raise AssertionError(f"{kind}: port 2 accepted")


def gid(names):
    """A GID that is not in the peer's table. Nobody answers for the address: who names it is told at once, since the core looks for
    the neighbour. It is another one's, or another one of the peer: B drops what does not come from where it was told."""
    ours = Member(names[0], int(names[1]), "UD", 0)
    other_gid = ours.ctx.query_gid(1, int(names[4]))
    nobody = GID(str(other_gid.gid)[:-2] + "c8")
    for kind in TYPES:
        passes(*sides(names, kind))
        try:
            sides(names, kind, a_wrong={"gid": nobody})
        except PyverbsRDMAError as error:
            assert errno.ETIMEDOUT in (error.error_code,) or "Connection timed out" in str(error), error
        else:
            raise AssertionError(f"{kind}: a path to nobody")
        if kind != "UD":
            lost(names, *sides(names, kind, b_wrong={"gid": other_gid}), "rx_bad_peer")


def qkey(names):
    """Datagrams only: B's own key is what counts, whatever A's is."""
    passes(*sides(names, "UD", a_wrong={"qkey": 0x77}))
    a, b = sides(names, "UD", b_wrong={"qkey": 0x77})
    before = b.ctx.query_port(1).qkey_viol_cntr
    lost(names, a, b, "rx_bad_qkey")
    assert b.ctx.query_port(1).qkey_viol_cntr == before + 1
    a.send(b"agreed", qkey=0x77)
    a.complete()
    b.received(b"agreed")
    # The peer does not tell A which key it wants, and connections have none: nothing to disagree in.
    for kind in ("RC", "UC"):
        passes(*sides(names, kind))


CASES = [pkey, psn, destination, path_mtu, read_depth, port, gid, qkey]

if __name__ == "__main__":
    {case.__name__: case for case in CASES}[sys.argv[6]](sys.argv[1:6])
    print("right")
