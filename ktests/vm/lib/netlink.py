# SPDX-License-Identifier: GPL-2.0
"""Requests over netlink, without the process of a tool."""
import json
import os
import socket
import struct
import subprocess

# Flags and types of messages, and protocols (linux/netlink.h).
REQUEST, ACK, DUMP = 1, 4, 0x300
ERROR, DONE = 2, 3
ROUTE, GENERIC, RDMA = 0, 16, 20
HEADER = struct.Struct("=IHHII")


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def elements(data):
    """The messages of a datagram, or the attributes of a message: the first two bytes of each are its length."""
    at = 0
    while at < len(data):
        length, = struct.unpack_from("=H", data, at)
        yield data[at:at + length]
        at += length + 3 & ~3


class Connection:
    """A socket of one of the protocols of netlink."""

    def __init__(self, protocol):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self.socket.bind((0, 0))

    def request(self, kind, body, flags=0):
        """Sends a request, and returns the messages up to the acknowledgement or to the end of the dump."""
        self.socket.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST | ACK | flags, 1, 0) + body)
        answers = []
        while True:
            for answer in elements(self.socket.recv(65536)):
                kind, = struct.unpack_from("=H", answer, 4)
                if kind == ERROR:
                    status, = struct.unpack_from("=i", answer, HEADER.size)
                    if status:
                        raise OSError(-status, os.strerror(-status))
                if kind in (ERROR, DONE):
                    return answers
                answers.append(answer)


class Netlink(Connection):
    """RDMA netlink requests, like those of the tool `rdma`."""
    NEWLINK, DELLINK, STAT_SET, STAT_DEL = 3, 4, 16, 18
    INDEX, NAME, PORT, LQPN, NETDEV, TYPE, MODE, RES, COUNTER = 1, 2, 3, 21, 51, 65, 74, 75, 79

    def __init__(self):
        super().__init__(RDMA)

    def __call__(self, command, **attributes):
        body = b""
        for kind, value in attributes.items():
            body += attribute(getattr(self, kind), value.encode() + b"\0" if isinstance(value, str) else struct.pack("=I", value))
        self.request(5 << 10 | command, body)


class Generic(Connection):
    """Requests of one family of generic netlink."""
    CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 16, 3, 1, 2
    GENERIC_HEADER = struct.Struct("=BBH")

    def __init__(self, family):
        super().__init__(GENERIC)
        self.family = self.CONTROL
        answer, = self(self.GET_FAMILY, attribute(self.FAMILY_NAME, family.encode() + b"\0"))
        for element in elements(answer[HEADER.size + self.GENERIC_HEADER.size:]):
            if struct.unpack_from("=H", element, 2)[0] == self.FAMILY_ID:
                self.family, = struct.unpack_from("=H", element, 4)

    def __call__(self, command, body=b"", flags=0):
        return self.request(self.family, self.GENERIC_HEADER.pack(command, 1, 0) + body, flags)


def index_of(device):
    return json.loads(subprocess.check_output(["rdma", "-j", "dev", "show", device]))[0]["ifindex"]
