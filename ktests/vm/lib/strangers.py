#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Packets that are right but for the way they came: not by the link's network device, nor by one above it in its namespace.

strangers.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B WAY [MAC [VLAN [NETDEV]]]

A queue pair on DEVICE-A (10.77.0.1 in namespace a) is connected to one on DEVICE-B (10.77.0.2 in namespace b). Namespace c has the
address 10.77.0.1 too, and a link of its own somewhere, so that packets get from it to the driver. WAY is `frame`: a frame from NETDEV in
namespace b to MAC, in a VLAN perhaps, which namespace c gets; `other`: one that namespace a gets by another network device; `socket`: a
datagram from c to itself; `straight`: a frame to DEVICE-A's own network device, which the queue pair takes.
"""
import socket
import struct
import sys
import time

import pyverbs.enums as e

from lib.counters import counters, is_drop
from lib.ends import pair, pattern, soon
from lib.frames import PORT, icrc, within

FROM, TO, SPORT = "10.77.0.2", "10.77.0.1", 50000
SEND_ONLY, UD_SEND_ONLY = 0x04, 0x64


def packet(opcode, qpn, psn, body, sport=SPORT):
    data = struct.pack("!BBHII", opcode, 0x40, 0xFFFF, qpn, psn) + body
    return data + icrc(FROM, TO, sport, data)


def frame(mac, own, data, vlan):
    udp = struct.pack("!HHHH", SPORT, PORT, 8 + len(data), 0) + data
    head = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0))
    head += socket.inet_aton(FROM) + socket.inet_aton(TO)
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", head, 10, ~(total + (total >> 16)) & 0xFFFF)
    tag = struct.pack("!HH", 0x8100, vlan) if vlan else b""
    return mac + own + tag + b"\x08\x00" + bytes(head) + udp


def received(netns):
    """Datagrams that the namespace's IP layer has seen."""
    def read():
        with open("/proc/thread-self/net/snmp", encoding="ascii") as file:
            names, values = [line.split() for line in file if line.startswith("Ip:")]
        return int(values[names.index("InReceives")])
    return within(netns, read)


def drops(device):
    time.sleep(0.05)    # How long the core shows old values.
    return {name: value for name, value in counters(device).items() if is_drop(name)}


def main(names, way, mac="", vlan="0", netdev="vb"):
    a, b = pair(names)
    a.recv(a.sge(4096))
    a.mr.write(bytes(64), 64)
    # B's number of its first packet.
    packets = [packet(UD_SEND_ONLY, 1, 0, struct.pack("!II", 0x11111111, 7) + bytes(256)),
               packet(SEND_ONLY, 5, 0, bytes(64)),
               packet(SEND_ONLY, a.qp.qp_num, 0x000123, pattern(64, 5))]
    here = "c" if way in ("frame", "socket") else "a"
    if way == "socket":
        wire = within("c", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        wire.bind((FROM, SPORT))
        wire.setsockopt(socket.IPPROTO_IP, 10, 2)
        send = lambda data: wire.sendto(data, (TO, PORT))
    else:
        wire = within("b", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        within("b", lambda: wire.bind((netdev, 0)))
        own = wire.getsockname()[4]
        target = bytes.fromhex(mac.replace(":", ""))
        send = lambda data: wire.send(frame(target, own, data, int(vlan)))
    before, seen = drops(names[0]), received(here)
    for data in packets:
        send(data)
    soon(lambda: received(here) >= seen + len(packets), 10, f"namespace {here} did not see the packets")
    if way == "straight":
        a.complete()
        assert a.mr.read(64, 0) == pattern(64, 5)
        return
    a.quiet()
    assert a.mr.read(64, 0) == bytes(64), "memory was written by what came another way"
    after = drops(names[0])
    assert after == before, f"taken for the device's own: {sorted(set(after.items()) - set(before.items()))}"
    assert a.state() == e.IBV_QPS_RTS


if __name__ == "__main__":
    main(sys.argv[1:5], *sys.argv[5:])
