# SPDX-License-Identifier: GPL-2.0
"""Invalid packets, sent as UDP datagrams from an ordinary socket in namespace a, and the drop counters that count them."""
import socket
import struct

from lib import sending
from lib.counters import counters, is_drop
from lib.ends import happens
from lib.frames import PORT, icrc, within

RC_SEND_ONLY, UD_SEND_ONLY, UC_SEND_ONLY, ACKNOWLEDGE = 0x04, 0x64, 0x24, 0x11


class Target:
    """The counters of a device, and a socket that sends packets to it."""

    def __init__(self, names, source, to):
        self.names = names
        self.device = names[2]
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        # A socket stays in the namespace in which it was created; RDMA devices are visible in all namespaces.
        self.socket = within("a", lambda: socket.socket(family, socket.SOCK_DGRAM))
        self.socket.bind((source, 0))
        self.source = source
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_IP, sending.IP_MTU_DISCOVER, sending.IP_PMTUDISC_DO)
        self.to = (to, PORT)

    def counters(self):
        return counters(self.device)

    def intact(self, damaged):
        """The packet with a correct ICRC."""
        data = damaged[:-4]
        return data + icrc(self.source, self.to[0], self.socket.getsockname()[1], data)

    def soon(self, counter, value):
        """Waits until a counter has a value: the RDMA core shows values of up to 10 ms ago."""
        assert happens(lambda: self.counters()[counter] == value, 5), f"{counter} is {self.counters()[counter]}, expected {value}"

    def send(self, *packets):
        """Sends packets; returns which drop counters rose, and by how much."""
        before = self.counters()
        for packet in packets:
            self.socket.sendto(packet, self.to)

        def risen():
            after = self.counters()
            return {k: after[k] - before[k] for k in after if after[k] != before[k] and is_drop(k)}

        happens(lambda: sum(risen().values()) >= len(packets), 5)
        return risen()

    def expect(self, counter, *packets):
        risen = self.send(*packets)
        assert risen == {counter: len(packets)}, f"expected {counter} +{len(packets)}, saw {risen}"


def bth(opcode, qpn, psn=0, pkey=0xFFFF, pad=0, version=0, ack=1):
    return struct.pack(">BBHII", opcode, 0x40 | pad << 4 | version, pkey, qpn, ack << 31 | psn)


def packet(opcode, qpn, body=b"", **fields):
    """A packet with an incorrect ICRC."""
    return bth(opcode, qpn, **fields) + body + b"\xde\xad\xbe\xef"
