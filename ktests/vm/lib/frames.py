# SPDX-License-Identifier: GPL-2.0
"""Hand-made packets: their checksums, and sockets in another network namespace."""
import os
import socket
import struct
import zlib

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PORT = 4791
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33


def enter(netns):
    with open(f"/run/netns/{netns}", "rb") as there:
        os.setns(there.fileno(), CLONE_NEWNET)


def within(netns, what):
    """Runs `what` in a network namespace: sockets that it creates stay there."""
    with open("/proc/self/ns/net", "rb") as here:
        enter(netns)
        try:
            return what()
        finally:
            os.setns(here.fileno(), CLONE_NEWNET)


def packet_socket(netns, netdev):
    """A socket that receives all frames of a network device in a namespace."""
    sock = within(netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)))
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    within(netns, lambda: sock.bind((netdev, ETH_P_ALL)))
    return sock


def checksum(data):
    """The checksum of IPv4 headers and of ICMP (RFC 1071), over an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def icrc(source, to, sport, data, ident=0):
    """The ICRC of a RoCEv2 packet: fields that routers may change are replaced by ones (IBTA vol1 annex A17). `ident` is the
    identification of IPv4."""
    length = 8 + len(data) + 4
    udp = struct.pack("!HHHH", sport, PORT, length, 0xFFFF)
    if ":" in to:
        ip = struct.pack("!IHBB", 0x6FFFFFFF, length, 17, 0xFF)
        ip += socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to)
    else:
        ip = struct.pack("!BBHHHBBH", 0x45, 0xFF, 20 + length, ident, 0x4000, 0xFF, 17, 0xFFFF)
        ip += socket.inet_aton(source) + socket.inet_aton(to)
    masked = data[:4] + b"\xff" + data[5:]
    return struct.pack("<I", zlib.crc32(bytes(8 * [0xFF]) + ip + udp + masked))
