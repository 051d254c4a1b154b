# SPDX-License-Identifier: GPL-2.0
"""Forged packets with all numbers right, and what they do to a connected queue pair that accepts them. Their ICRC is added by who sends
them."""
import struct

from pyverbs.qp import QPAttr
import pyverbs.enums as e

from lib.counters import counter
from lib.drops import ACKNOWLEDGE, bth
from lib.ends import happens, soon

RC, UC = 0x00, 0x20
SEND_ONLY, WRITE_ONLY, CNP = 0x04, 0x0A, 0x81
BECN = 1 << 30
# Syndromes of an AETH: an ACK without credits, a NAK with a remote access error.
ACK, NAK = 0x1F, 0x62
EVIL = b"evil" * 16
# An unanswered request is not retransmitted within some seconds, with this argument of `lib.ends.pair`.
PATIENT = dict(timeout=20)


class Responder:
    """A queue pair that has posted a receive, and whose memory another one may write to."""

    def __init__(self, end, expected, service=RC):
        self.end, self.expected, self.service = end, expected, service
        end.mr.write(bytes(8192), 8192)
        end.recv(end.sge(4096))

    def send(self, psn):
        return bth(self.service | SEND_ONLY, self.end.qp.qp_num, psn) + EVIL

    def write(self, psn):
        reth = struct.pack("!QII", self.end.mr.buf + 4096, self.end.mr.rkey, len(EVIL))
        return bth(self.service | WRITE_ONLY, self.end.qp.qp_num, psn) + reth + EVIL

    def packets(self):
        """Each of them would be accepted."""
        return [self.send(self.expected), self.write(self.expected)]

    def unharmed(self):
        self.end.no_completion()
        assert self.end.mr.read(8192, 0) == bytes(8192), "forged requests have written to memory of a connection"

    def harmed_by(self, transmit):
        """Checks that the queue pair accepts both packets by this way."""
        transmit(self.write(self.expected))
        soon(lambda: self.end.mr.read(len(EVIL), 4096) == EVIL, 10, "a forged WRITE was not accepted")
        transmit(self.send(self.expected + 1 & 0xFFFFFF))
        assert self.end.complete().byte_len == len(EVIL)
        assert self.end.mr.read(len(EVIL), 0) == EVIL


class Requester:
    """A queue pair with a request that its peer does not answer."""

    def __init__(self, end, peer, device, psn):
        self.end, self.device, self.psn = end, device, psn
        peer.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        end.post(e.IBV_WR_SEND, end.sge(64), wr_id=1)
        self.cnps_before = self.cnps()

    def cnps(self):
        return [counter(self.device, name) for name in ("rp_cnp_handled", "rp_cnp_ignored")]

    def acknowledgement(self, syndrome, psn, msn):
        return bth(ACKNOWLEDGE, self.end.qp.qp_num, psn, ack=0) + struct.pack("!I", syndrome << 24 | msn)

    def cnp(self):
        return bth(CNP, BECN | self.end.qp.qp_num, 0, ack=0) + bytes(16)

    def packets(self):
        """Each of them would be accepted: a CNP, an ACK and a NAK."""
        return [self.cnp(), self.acknowledgement(ACK, self.psn, 1), self.acknowledgement(NAK, self.psn, 0)]

    def unharmed(self):
        self.end.no_completion()
        assert self.cnps() == self.cnps_before, "a forged CNP has arrived"
        assert self.end.state() == e.IBV_QPS_RTS

    def harmed_by(self, transmit):
        """Checks that a CNP throttles the queue pair, an ACK completes its request, and a NAK ends it."""
        def throttled():
            # Only packets that were sent recently can have been marked.
            self.end.post(e.IBV_WR_SEND, self.end.sge(64), wr_id=2)
            transmit(self.cnp())
            return happens(lambda: self.cnps()[0] > self.cnps_before[0], 1)

        soon(throttled, 10, "a forged CNP was not accepted")
        transmit(self.acknowledgement(ACK, self.psn, 1))
        assert self.end.complete().wr_id == 1
        transmit(self.acknowledgement(NAK, self.psn + 1 & 0xFFFFFF, 1))
        assert self.end.complete(e.IBV_WC_REM_ACCESS_ERR).wr_id == 2
        soon(lambda: self.end.state() == e.IBV_QPS_ERR, 5, "the NAK has not ended the connection")
