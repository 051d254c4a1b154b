#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""tun.py NETNS NAME NETNS NAME: creates two TUN devices and forwards packets between them until it is killed."""
import fcntl
import os
import selectors
import struct
import sys

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


def tun(netns, name):
    there = os.open(f"/run/netns/{netns}", os.O_RDONLY)
    os.setns(there, CLONE_NEWNET)
    os.close(there)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


ends = [tun(sys.argv[1], sys.argv[2]), tun(sys.argv[3], sys.argv[4])]
selector = selectors.DefaultSelector()
for n, end in enumerate(ends):
    selector.register(end, selectors.EVENT_READ, ends[1 - n])
while True:
    for key, _ in selector.select():
        packet = os.read(key.fd, 65536)
        try:
            os.write(key.data, packet)
        except OSError:
            # The other device is down.
            pass
