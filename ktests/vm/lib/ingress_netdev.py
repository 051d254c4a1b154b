#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Valid packets that do not arrive by the link's network device, nor by an upper device of it in its namespace.

ingress_netdev.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B WAY [MAC [VLAN [NETDEV]]]

A queue pair on DEVICE-A (10.77.0.1 in namespace a) is connected to one on DEVICE-B (10.77.0.2 in namespace b), which answers nothing.
The packets are a datagram to QP1, one to a queue pair that does not exist, one to a multicast group to which a queue pair of A is attached,
and forged ones to the connected queue pair of A with all numbers right. Namespace c has the address 10.77.0.1, too, and a link on another
network device, so that the driver receives packets from c. WAY says how the packets arrive. `frame`: in namespace c, as frames sent by
NETDEV in namespace b to MAC, with a VLAN tag if VLAN is not 0; `shared`: the same, without the datagram to the group; `other`: in namespace
a by another network device; `socket`: from c to itself, as datagrams; `straight`: by DEVICE-A's own network device, so that the queue pairs
accept them.
"""
import socket
import struct
import sys
import time

import pyverbs.enums as e

from lib import mcast
from lib.counters import counters, is_drop
from lib.drops import RC_SEND_ONLY, UD_SEND_ONLY, bth
from lib.ends import pair, soon
from lib.forging import PATIENT, Requester, Responder
from lib.frames import PORT, checksum, icrc, within

FROM, TO, GROUP, SPORT = "10.77.0.2", "10.77.0.1", "239.77.0.1", 50000
# The network device of namespace c, or the other one of a, by which the packets arrive.
ARRIVES_BY = {"frame": "ux", "socket": "ux", "other": "xa"}
IP_MULTICAST_IF, IP_ADD_MEMBERSHIP = 32, 35


def frame(mac, own, data, vlan, to):
    udp = struct.pack("!HHHH", SPORT, PORT, 8 + len(data), 0) + data
    head = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0))
    head += socket.inet_aton(FROM) + socket.inet_aton(to)
    struct.pack_into("!H", head, 10, checksum(head))
    tag = struct.pack("!HH", 0x8100, vlan) if vlan else b""
    return mac + own + tag + b"\x08\x00" + bytes(head) + udp


def statistic(netns, file, table, name):
    """A counter of a namespace's IP layer."""
    def read():
        with open(f"/proc/thread-self/net/{file}", encoding="ascii") as lines:
            names, values = [line.split() for line in lines if line.startswith(table)]
        return int(values[names.index(name)])
    return within(netns, read)


def received(netns):
    """The number of datagrams that the namespace's IP layer has received."""
    return statistic(netns, "snmp", "Ip:", "InReceives")


def received_by_groups(netns):
    """The number of those to groups that the namespace has joined on the network device by which they arrived."""
    return statistic(netns, "netstat", "IpExt:", "InMcastPkts")


def group_socket(netns, netdev):
    """A socket that joins the group on a network device of a namespace."""
    def join():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        mreqn = struct.pack("=4s4si", socket.inet_aton(GROUP), bytes(4), socket.if_nametoindex(netdev))
        sock.setsockopt(socket.IPPROTO_IP, IP_ADD_MEMBERSHIP, mreqn)
        sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_IF, mreqn)
        return sock
    return within(netns, join)


class Member:
    """A UD queue pair that is attached to the group."""

    DATA = b"to the group" * 20

    def __init__(self, device, gid_index):
        self.end, self.group = mcast.Endpoint(mcast.Node(device, gid_index)), mcast.gid_of(GROUP)
        mcast.attach(self.end.qp, self.group)

    def packet(self):
        return bth(UD_SEND_ONLY, mcast.MULTICAST_QPN) + struct.pack("!II", mcast.QKEY, 7) + self.DATA

    def unharmed(self):
        self.end.expect_nothing()
        mcast.detach(self.end.qp, self.group)

    def harmed_by(self, transmit):
        """Checks that the queue pair receives the packet by this way."""
        transmit(self.packet())
        wc = self.end.poll(10)
        assert wc and wc.opcode & e.IBV_WC_RECV, "the datagram to the group was not received"
        assert self.end.mr.read(len(self.DATA), wc.wr_id * 2048 + mcast.GRH) == self.DATA
        mcast.detach(self.end.qp, self.group)


def drops(device):
    time.sleep(0.05)    # The RDMA core shows values of up to 10 ms ago.
    return {name: value for name, value in counters(device).items() if is_drop(name)}


def main(names, way, mac="", vlan="0", netdev="vb"):
    a, b = pair(names, **PATIENT)
    victims, member = [Responder(a, 0x000123), Requester(a, b, names[0], 0xFFFFFE)], Member(*names[:2])
    here = "c" if way in ("frame", "shared", "socket") else "a"
    joined = group_socket(here, ARRIVES_BY[way]) if way in ARRIVES_BY else None
    if way == "socket":
        wire = joined
        wire.bind((FROM, SPORT))
        wire.setsockopt(socket.IPPROTO_IP, 10, 2)
        transmit = lambda data, to: wire.sendto(data, (to, PORT))
    else:
        wire = within("b", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        within("b", lambda: wire.bind((netdev, 0)))
        own = wire.getsockname()[4]
        target = bytes.fromhex(mac.replace(":", ""))
        transmit = lambda data, to: wire.send(frame(target, own, data, int(vlan), to))
    send = lambda data, to=TO: transmit(data + icrc(FROM, to, SPORT, data), to)
    if way == "straight":
        for victim in victims:
            victim.harmed_by(send)
        member.harmed_by(lambda data: send(data, GROUP))
        return
    packets = [bth(UD_SEND_ONLY, 1) + struct.pack("!II", 0x11111111, 7) + bytes(256), bth(RC_SEND_ONLY, 5) + bytes(64)]
    for victim in victims:
        packets += victim.packets()
    before, seen, seen_by_groups = drops(names[0]), received(here), received_by_groups(here)
    for data in packets:
        send(data)
    if joined:
        send(member.packet(), GROUP)
        soon(lambda: received_by_groups(here) > seen_by_groups, 10, f"namespace {here} did not receive the datagram to the group")
    soon(lambda: received(here) >= seen + len(packets), 10, f"namespace {here} did not receive the packets")
    for victim in [*victims, member]:
        victim.unharmed()
    after = drops(names[0])
    assert after == before, f"counted as packets of the device: {sorted(set(after.items()) - set(before.items()))}"


if __name__ == "__main__":
    main(sys.argv[1:5], *sys.argv[5:])
