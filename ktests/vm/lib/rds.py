#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reliable datagram sockets (RDS), which use RDMA by themselves: messages of several sizes, answered with the bytes reversed.

rds.py serve ADDRESS FILE       creates the file when ready, answers every message until `end`
rds.py call ADDRESS SERVER      sends messages, several at a time, and checks the answers
"""
import random
import socket
import sys

PORT = 18634
# From the kernel's headers; these may exceed the limits of unprivileged sockets.
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
SIZES = (1, 2, 100, 4095, 4096, 4097, 8192, 65536, 300000, 1 << 20)


def open_at(address, port):
    rds = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
    rds.settimeout(60)
    # Several whole messages must fit into the buffers.
    for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        rds.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
    rds.bind((address, port))
    return rds


def serve(address, ready):
    rds = open_at(address, PORT)
    with open(ready, "w", encoding="ascii"):
        pass
    while True:
        data, sender = rds.recvfrom(2 << 20)
        rds.sendto(data[::-1], sender)
        if data == b"end":
            break


def call(address, server):
    rds = open_at(address, PORT + 1)
    rng = random.Random(1)
    for size in SIZES:
        batch = [rng.randbytes(size) for _ in range(4)]
        for data in batch:
            assert rds.sendto(data, (server, PORT)) == size
        for data in batch:
            answer, _ = rds.recvfrom(2 << 20)
            assert answer == data[::-1], f"wrong answer to {size} bytes"
        print(f"{size} bytes: {len(batch)} answers are correct")
    rds.sendto(b"end", (server, PORT))
    assert rds.recvfrom(10)[0] == b"dne"


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
