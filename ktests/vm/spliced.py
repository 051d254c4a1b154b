# SPDX-License-Identifier: GPL-2.0
"""Packets that share memory with their sender, which changes it while they are received: the data that is written to a region must be
the data whose ICRC was checked. And packets in socket buffers whose structure differs from what network devices deliver.

The sender is a socket in namespace a that may send to the RoCE port; its datagrams are WRITEs to a UC queue pair. They are sent over
IPv6, because the sender does not know the identification in IPv4 headers, which the ICRC covers.
"""
import ctypes
import mmap
import os
import signal
import socket
import struct
import time

import pyverbs.enums as e

from lib import host
from lib.case import case
from lib.ends import MTU, pair, soon
from lib.frames import icrc, within

DEFAULTS = dict(driver="rxe_rs", reason="tests rxe_rs only")
PORT = 4791
WRITE_ONLY = 0x2A
ROUNDS, SLOTS = 12, 48
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
IP_MTU_DISCOVER, IP_PMTUDISC_DO, UDP_SEGMENT = 10, 2, 103
GOOD, BAD = b"\x11", b"\xEE"


class Sender:
    """A page of a file that is sent as datagrams, and a process that changes the first byte of the payload continually."""

    def __init__(self, source, to):
        self.socket = within("a", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        self.socket.bind((source, 0))
        self.socket.connect((to, PORT))
        self.source, self.to = source, to
        self.file = os.memfd_create("page")
        os.ftruncate(self.file, 4096)
        self.memory = mmap.mmap(self.file, 4096)
        self.pipe = os.pipe()

    def start_changing(self, at):
        child = os.fork()
        if not child:
            # mov byte [rdi], GOOD; mov byte [rdi], BAD; jmp to the first: Python would be too slow.
            code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            code[:8] = b"\xC6\x07" + GOOD + b"\xC6\x07" + BAD + b"\xEB\xF8"
            address = ctypes.addressof(ctypes.c_char.from_buffer(code))
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(ctypes.c_char.from_buffer(self.memory, at)))
        return child

    def packet(self, qpn, psn, addr, key, payload):
        data = struct.pack(">BBHII", WRITE_ONLY, 0x40, 0xFFFF, qpn, psn) + struct.pack(">QII", addr, key, len(payload)) + payload
        data += icrc(self.source, self.to, self.socket.getsockname()[1], data)
        self.memory[:len(data)] = data
        return len(data)

    def splice(self, length):
        assert os.splice(self.file, self.pipe[1], length, offset_src=0) == length
        assert os.splice(self.pipe[0], self.socket.fileno(), length) == length

    def zero_copy(self, length):
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        self.socket.send(memoryview(self.memory)[:length], MSG_ZEROCOPY)


def between(family):
    """Returns the arguments of `pair` and the addresses of sender and receiver."""
    return host.names(family), host.ip("a", family), host.ip("b", family)


def attack(method):
    """Sends WRITEs by a method of Sender while their payload changes: memory must get only data whose ICRC was checked."""
    names, source, to = between(6)
    _, b = pair(names, qp_type=e.IBV_QPT_UC)
    sender = Sender(source, to)
    send = getattr(sender, method)
    payload = GOOD * MTU
    # The first packet is not changed and must arrive. Later ones are changed at the first byte after the headers.
    send(sender.packet(b.qp.qp_num, 0xFFFFFE, b.mr.buf, b.mr.rkey, payload))
    soon(lambda: b.mr.read(MTU, 0) == payload, 5, "the sender's packets are invalid")
    child = sender.start_changing(12 + 16)
    arrived, psn = 0, 0xFFFFFF
    try:
        for _ in range(ROUNDS):
            b.mr.write(bytes(SLOTS * MTU), SLOTS * MTU)
            for slot in range(SLOTS):
                send(sender.packet(b.qp.qp_num, psn, b.mr.buf + slot * MTU, b.mr.rkey, payload))
                psn = psn + 1 & 0xFFFFFF
            time.sleep(0.02)
            for slot in range(SLOTS):
                got = b.mr.read(MTU, slot * MTU)
                assert got in (bytes(MTU), payload), f"unchecked bytes were written: {got[:4].hex()}… after {arrived} valid packets"
                arrived += got == payload
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(f"{arrived} of {ROUNDS * SLOTS} arrived")
    assert 0 < arrived, "no packet was ever valid"
    assert arrived < ROUNDS * SLOTS, "no packet was ever changed"


@case(cpus=2)
def test_splice(_names):
    attack("splice")


@case(cpus=2)
def test_zero_copy(_names):
    """The network stack itself copies these pages when it delivers them within a machine."""
    attack("zero_copy")


@case(cpus=2)
def test_merged(_names):
    """The same with datagrams that GRO merges."""
    host.shell("""
        on a ethtool -K va tx-udp-segmentation off
        on b ethtool -K vb gro on rx-udp-gro-forwarding on""")
    try:
        attack("splice")
    finally:
        host.shell("""
            on a ethtool -K va tx-udp-segmentation on
            on b ethtool -K vb rx-udp-gro-forwarding off""")


def test_fragments(_names):
    """Datagrams of 1 to 17 fragments arrive. Another socket allocates the memory between the fragments, so that they are not merged."""
    names, source, to = between(6)
    _, b = pair(names, qp_type=e.IBV_QPT_UC)
    sender, other = Sender(source, to), Sender(source, to)
    payload, psn = bytes(range(256)) * (MTU // 256), 0xFFFFFE
    for count in range(1, 18):
        b.mr.write(bytes(MTU), MTU)
        length = sender.packet(b.qp.qp_num, psn, b.mr.buf, b.mr.rkey, payload)
        step = -(-length // count)
        for at in range(0, length, step):
            last = at + step >= length
            sender.socket.send(sender.memory[at:min(at + step, length)], 0 if last else socket.MSG_MORE)
            other.socket.send(bytes(64), socket.MSG_MORE)
        soon(lambda: b.mr.read(MTU, 0) == payload, 5, f"a datagram of {count} fragments did not arrive")
        psn = psn + 1 & 0xFFFFFF
        # The data of the other socket is too short for a packet.
        other.socket.close()
        other = Sender(source, to)


def test_same_id(_names):
    """GSO batches of IPv4 datagrams that all have the same identification: each datagram of each batch arrives."""
    names, source, to = between(4)
    _, b = pair(names, qp_type=e.IBV_QPT_UC)
    sock = within("a", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    # An unconnected socket does not increment the identification of datagrams with the DF bit.
    sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    sock.bind((source, 0))
    psn = 0xFFFFFE
    for count in (1, 2, 3, 16, 40):
        batch = b""
        for n in range(count):
            payload = bytes([n + 1]) * MTU
            data = struct.pack(">BBHII", WRITE_ONLY, 0x40, 0xFFFF, b.qp.qp_num, psn)
            data += struct.pack(">QII", b.mr.buf + n * MTU, b.mr.rkey, MTU) + payload
            batch += data + icrc(source, to, sock.getsockname()[1], data)
            psn = psn + 1 & 0xFFFFFF
        b.mr.write(bytes(count * MTU), count * MTU)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(batch) // count)
        sock.sendto(batch, (to, PORT))
        soon(lambda: all(b.mr.read(MTU, n * MTU) == bytes([n + 1]) * MTU for n in range(count)), 5, f"not all of {count} datagrams arrived")
