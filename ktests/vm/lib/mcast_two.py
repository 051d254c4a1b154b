#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Multicast groups between two machines, each of which runs one end.

mcast_two.py receive DEVICE GID-INDEX GROUP FILE [INTERFACE]
    joins, creates FILE, and expects the messages of `send`: each once, in order, with the group's address in the header. Then leaves and
    expects nothing more. INTERFACE: adds the host to the group by a socket, for drivers that do not.
mcast_two.py send DEVICE GID-INDEX GROUP
    sends the messages, and in between one to another group and one with another Q_Key
"""
import ipaddress
import socket
import struct
import sys

import pyverbs.enums as e

from lib.mcast import GRH, QKEY, Endpoint, Node, attach, detach, gid_of

SIZES = (12, 77, 1024)
ROUNDS = 4


def message(number, size, sender):
    """`size` bytes, at least twelve: the sender's QPN, the number and the size of the message, a pattern."""
    return struct.pack(">III", sender, number, size) + bytes((number + 3 * n) & 0xFF for n in range(size - 12))


def member(group, interface):
    """A socket that has joined the group."""
    address, index = ipaddress.ip_address(group), struct.pack("@I", socket.if_nametoindex(interface))
    if address.version == 4:
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # struct ip_mreqn: group, no local address, the interface.
        there.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, address.packed + bytes(4) + index)
    else:
        there = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        there.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, address.packed + index)
    return there


def receive(device, index, group, ready, interface=None):
    end, sender = Endpoint(Node(device, index)), None
    attach(end.qp, gid_of(group))
    there = member(group, interface) if interface else None
    with open(ready, "w", encoding="ascii"):
        pass
    for number in range(ROUNDS * len(SIZES)):
        wc = end.poll(30)
        assert wc and wc.opcode & e.IBV_WC_RECV and wc.wc_flags & e.IBV_WC_GRH, f"message {number} did not arrive"
        sender = sender or wc.src_qp
        data = end.mr.read(wc.byte_len - GRH, wc.wr_id * 2048 + GRH)
        assert wc.src_qp == sender and data == message(number, SIZES[number % len(SIZES)], sender), f"message {number}: {data[:20]}"
        assert ipaddress.ip_address(group).packed in end.mr.read(GRH, wc.wr_id * 2048)[20:], "the group's address is not in the header"
    end.expect_nothing()
    detach(end.qp, gid_of(group))
    if there:
        there.close()
    print(f"{number + 1} messages of queue pair {sender} are correct")


def send(device, index, group):
    end = Endpoint(Node(device, index))
    to_group, to_other = (end.node.path(gid_of(str(ipaddress.ip_address(group) + n))) for n in (0, 1))
    for number in range(ROUNDS * len(SIZES)):
        data = message(number, SIZES[number % len(SIZES)], end.qp.qp_num)
        if number == 1:
            end.send(to_other, data)
            end.expect_sent()
            end.send(to_group, data, qkey=QKEY + 1)
            end.expect_sent()
        end.send(to_group, data)
        end.expect_sent()


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](*sys.argv[2:])
