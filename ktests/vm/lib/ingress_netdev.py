#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Valid packets that do not arrive by the link's network device, nor by an upper device of it in its namespace.

ingress_netdev.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B WAY [MAC [VLAN [NETDEV]]]

A queue pair on DEVICE-A (10.77.0.1 in namespace a) is connected to one on DEVICE-B (10.77.0.2 in namespace b). Namespace c has the
address 10.77.0.1, too, and a link on another network device, so that the driver receives packets from c. WAY says how the packets
arrive. `frame`: in namespace c, as frames sent by NETDEV in namespace b to MAC, with a VLAN tag if VLAN is not 0; `other`: in namespace
a by another network device; `socket`: from c to itself, as datagrams; `straight`: by DEVICE-A's own network device, so that the queue
pair accepts them.
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
    """The number of datagrams that the namespace's IP layer has received."""
    def read():
        with open("/proc/thread-self/net/snmp", encoding="ascii") as file:
            names, values = [line.split() for line in file if line.startswith("Ip:")]
        return int(values[names.index("InReceives")])
    return within(netns, read)


def drops(device):
    time.sleep(0.05)    # The RDMA core shows values of up to 10 ms ago.
    return {name: value for name, value in counters(device).items() if is_drop(name)}


def main(names, way, mac="", vlan="0", netdev="vb"):
    a, b = pair(names)
    a.recv(a.sge(4096))
    a.mr.write(bytes(64), 64)
    # The last one has the PSN that A expects from B.
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
    soon(lambda: received(here) >= seen + len(packets), 10, f"namespace {here} did not receive the packets")
    if way == "straight":
        a.complete()
        assert a.mr.read(64, 0) == pattern(64, 5)
        return
    a.no_completion()
    assert a.mr.read(64, 0) == bytes(64), "a packet that arrived by another device has written memory"
    after = drops(names[0])
    assert after == before, f"counted as packets of the device: {sorted(set(after.items()) - set(before.items()))}"
    assert a.state() == e.IBV_QPS_RTS


if __name__ == "__main__":
    main(sys.argv[1:5], *sys.argv[5:])
