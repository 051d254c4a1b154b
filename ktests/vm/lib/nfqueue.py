#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Gives back each packet of queue 0 of the network namespace to the network stack (NFQUEUE), until it is killed.

The numbers are those of linux/netfilter/nfnetlink_queue.h.
"""
import socket
import struct
import sys

from lib.netlink import HEADER, REQUEST, Connection, attribute, elements

NETFILTER = 12
PACKET, VERDICT, CONFIG = (3 << 8 | command for command in range(3))
PACKET_HEADER, VERDICT_HEADER = 1, 2
COMMAND, PARAMETERS = 1, 2
BIND, COPY_META, ACCEPT = 1, 1, 1
# The family, the version and the queue, which precede the attributes.
GENERIC = struct.pack("=BBH", 0, 0, 0)


def main():
    connection = Connection(NETFILTER)
    # Without room for its message a packet is dropped.
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    connection.request(CONFIG, GENERIC + attribute(COMMAND, struct.pack(">BxH", BIND, 0)))
    connection.request(CONFIG, GENERIC + attribute(PARAMETERS, struct.pack(">IB", 0, COPY_META)))
    while True:
        for message in elements(connection.socket.recv(65536)):
            if struct.unpack_from("=H", message, 4)[0] != PACKET:
                continue
            for part in elements(message[HEADER.size + len(GENERIC):]):
                if struct.unpack_from("=H", part, 2)[0] == PACKET_HEADER:
                    body = GENERIC + attribute(VERDICT_HEADER, struct.pack(">I", ACCEPT) + part[4:8])
                    connection.socket.send(HEADER.pack(HEADER.size + len(body), VERDICT, REQUEST, 0, 0) + body)


if __name__ == "__main__":
    sys.exit(main())
