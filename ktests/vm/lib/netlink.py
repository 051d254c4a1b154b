# SPDX-License-Identifier: GPL-2.0
"""Requests to the RDMA subsystem over netlink, without the process of a tool."""
import json
import os
import socket
import struct
import subprocess


class Netlink:
    """RDMA netlink requests, like those of the tool `rdma`."""
    NEWLINK, DELLINK, STAT_SET, STAT_DEL = 3, 4, 16, 18
    INDEX, NAME, PORT, LQPN, NETDEV, TYPE, MODE, RES, COUNTER = 1, 2, 3, 21, 51, 65, 74, 75, 79

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
        self.socket.bind((0, 0))

    def __call__(self, command, **attributes):
        body = b""
        for kind, value in attributes.items():
            data = value.encode() + b"\0" if isinstance(value, str) else struct.pack("=I", value)
            body += struct.pack("=HH", 4 + len(data), getattr(self, kind)) + data + bytes(-len(data) % 4)
        self.socket.send(struct.pack("=IHHII", 16 + len(body), 5 << 10 | command, 5, 1, 0) + body)
        while True:
            response = self.socket.recv(65536)
            if struct.unpack_from("=H", response, 4)[0] == 2:
                status = struct.unpack_from("=i", response, 16)[0]
                if status:
                    raise OSError(-status, os.strerror(-status))
                return


def index_of(device):
    return json.loads(subprocess.check_output(["rdma", "-j", "dev", "show", device]))[0]["ifindex"]
