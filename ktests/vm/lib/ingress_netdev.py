#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Valid packets that do not arrive by the link's network device, nor by an upper device of it in its namespace.

ingress_netdev.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B WAY [MAC [VLAN [NETDEV]]]

A queue pair on DEVICE-A (10.77.0.1 in namespace a) is connected to one on DEVICE-B (10.77.0.2 in namespace b), which answers nothing.
The packets are a datagram to QP1, one to a queue pair that does not exist, and forged ones to the queue pair of A with all numbers right.
Namespace c has the address 10.77.0.1, too, and a link on another network device, so that the driver receives packets from c. WAY says how
the packets arrive. `frame`: in namespace c, as frames sent by NETDEV in namespace b to MAC, with a VLAN tag if VLAN is not 0; `other`: in
namespace a by another network device; `socket`: from c to itself, as datagrams; `straight`: by DEVICE-A's own network device, so that the
queue pair accepts them.
"""
import socket
import struct
import sys
import time

from lib.counters import counters, is_drop
from lib.drops import RC_SEND_ONLY, UD_SEND_ONLY, bth
from lib.ends import pair, soon
from lib.forging import PATIENT, Requester, Responder
from lib.frames import PORT, checksum, icrc, within

FROM, TO, SPORT = "10.77.0.2", "10.77.0.1", 50000


def frame(mac, own, data, vlan):
    udp = struct.pack("!HHHH", SPORT, PORT, 8 + len(data), 0) + data
    head = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0))
    head += socket.inet_aton(FROM) + socket.inet_aton(TO)
    struct.pack_into("!H", head, 10, checksum(head))
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
    a, b = pair(names, **PATIENT)
    victims = [Responder(a, 0x000123), Requester(a, b, names[0], 0xFFFFFE)]
    here = "c" if way in ("frame", "socket") else "a"
    if way == "socket":
        wire = within("c", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        wire.bind((FROM, SPORT))
        wire.setsockopt(socket.IPPROTO_IP, 10, 2)
        transmit = lambda data: wire.sendto(data, (TO, PORT))
    else:
        wire = within("b", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        within("b", lambda: wire.bind((netdev, 0)))
        own = wire.getsockname()[4]
        target = bytes.fromhex(mac.replace(":", ""))
        transmit = lambda data: wire.send(frame(target, own, data, int(vlan)))
    send = lambda data: transmit(data + icrc(FROM, TO, SPORT, data))
    if way == "straight":
        for victim in victims:
            victim.harmed_by(send)
        return
    packets = [bth(UD_SEND_ONLY, 1) + struct.pack("!II", 0x11111111, 7) + bytes(256), bth(RC_SEND_ONLY, 5) + bytes(64)]
    for victim in victims:
        packets += victim.packets()
    before, seen = drops(names[0]), received(here)
    for data in packets:
        send(data)
    soon(lambda: received(here) >= seen + len(packets), 10, f"namespace {here} did not receive the packets")
    for victim in victims:
        victim.unharmed()
    after = drops(names[0])
    assert after == before, f"counted as packets of the device: {sorted(set(after.items()) - set(before.items()))}"


if __name__ == "__main__":
    main(sys.argv[1:5], *sys.argv[5:])
