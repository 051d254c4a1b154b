#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Stream sockets over RDMA (SMC-R version 2): TCP connections that use RDMA WRITEs once both sides have agreed to it.

smc.py enable                   lets both sides agree, by a common enterprise identifier
smc.py serve ADDRESS COUNT      serves that many connections: answers each byte inverted
smc.py call ADDRESS COUNT SIZE  makes as many at the same time, and checks the answers to SIZE bytes of each
smc.py links                    prints the number of links
"""
import ctypes
import os
import random
import socket
import struct
import sys
import threading

from lib.netlink import DUMP, Generic, attribute

PORT = 18635
AF_SMC = 43
INVERTED = bytes(255 - n for n in range(256))
ADD_UEID, LINKS = 10, 3
libc = ctypes.CDLL(None, use_errno=True)


def checked(value):
    if value < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value


def address_of(address):
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(PORT), socket.inet_aton(address))


def smc_socket():
    """Python does not know the address family."""
    return checked(libc.socket(AF_SMC, socket.SOCK_STREAM, 0))


def as_python(number):
    stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number)
    stream.settimeout(60)
    return stream


def echo(stream):
    with stream:
        while data := stream.recv(1 << 20):
            stream.sendall(data.translate(INVERTED))


def serve(address, count):
    listener = smc_socket()
    stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=listener)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stream.detach()
    checked(libc.bind(listener, address_of(address), 16))
    checked(libc.listen(listener, 64))
    threads = []
    for _ in range(int(count)):
        stream = as_python(checked(libc.accept(listener, None, None)))
        threads.append(threading.Thread(target=echo, args=(stream,)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def talk(address, seed, size, failed):
    rng = random.Random(seed)
    number = smc_socket()
    checked(libc.connect(number, address_of(address), 16))
    with as_python(number) as stream:
        left = size
        while left:
            data = rng.randbytes(min(left, rng.choice((1, 100, 4096, 30000, 65536, 200000))))
            left -= len(data)
            sender = threading.Thread(target=stream.sendall, args=(data,))
            sender.start()
            answer = b""
            while len(answer) < len(data):
                part = stream.recv(1 << 20)
                assert part, "the connection ended"
                answer += part
            sender.join()
            assert answer == data.translate(INVERTED), f"wrong answer to {len(data)} bytes"
    failed.remove(seed)


def call(address, count, size):
    failed = set(range(int(count)))
    threads = [threading.Thread(target=talk, args=(address, seed, int(size), failed)) for seed in tuple(failed)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, f"connections failed: {failed}"


def enable():
    smc = Generic("SMC_GEN_NETLINK")
    try:
        smc(ADD_UEID, attribute(1, b"RXE".ljust(32) + b"\0"))
    except FileExistsError:
        pass


def links():
    smc = Generic("SMC_GEN_NETLINK")
    print(len(smc(LINKS, flags=DUMP)))


if __name__ == "__main__":
    {"enable": enable, "serve": serve, "call": call, "links": links}[sys.argv[1]](*sys.argv[2:])
