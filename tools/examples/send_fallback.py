#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Data that go by RDMA WRITE while the receiver's key is good, and by SEND when it is not any more.

send_fallback.py receive ADDRESS PORT SIZE [--revoke-after CHUNKS]
send_fallback.py send ADDRESS PORT SIZE

The receiver tells the sender a key for the memory where the data shall be, and the sender writes to it directly. The key may end at
any time, for whatever reason its owner has (here: deregistered when a number of chunks have been announced). The next WRITE is a
remote access error then, and takes both queue pairs of the connection to the error state. That is no loss of data:

- Requests complete in order. The WRITEs that completed well are in the receiver's memory; the refused one, and all that were flushed
  behind it, are not, or not all of them.
- The sender makes a new connection, which is told no key, and sends the rest by SEND, each message with the place where its data
  belong. The receiver looks whether that is in its memory, and copies.

What the receiver has in the end is compared by a digest. Everything here is stock: librdmacm and libibverbs, through pyverbs.
"""
import argparse
import hashlib
import mmap
import struct
import ctypes

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.mr import MR
from pyverbs.qp import QPCap, QPInitAttr

CHUNK = 16 << 10
# Receives posted, and requests under way at once.
DEPTH = 8
# Every message: what it is; an address or an offset; bytes; a key.
HEADER = struct.Struct("!cQQI")
OFFER, WRITTEN, DATA, DONE, GOOD = b"O", b"W", b"D", b"E", b"G"
MESSAGE = HEADER.size + CHUNK


def pair_attr():
    cap = QPCap(max_send_wr=2 * DEPTH + 2, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=cap, sq_sig_all=1)


class Lost(Exception):
    """The connection is in the error state."""


class Connection:
    """A connected identifier, and messages over it."""

    def __init__(self, identifier):
        self.id = identifier
        self.receives = [MR(self.id.pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE) for _ in range(DEPTH)]
        for mr in self.receives:
            self.id.post_recv(mr)
        self.message = MR(self.id.pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE)

    def post(self, kind, place=0, length=0, key=0, data=b"", mr=None):
        """Posts a message; `mr` is not to be changed before it has completed."""
        mr = mr or self.message
        mr.write(HEADER.pack(kind, place, length, key) + data, HEADER.size + len(data))
        self.id.post_send(mr)

    def completed(self):
        """Waits for the oldest request that has not completed; raises Lost if it went wrong."""
        wc = self.id.get_send_comp()
        if wc.status != e.IBV_WC_SUCCESS:
            raise Lost(wc.status)

    def say(self, *message, **options):
        self.post(*message, **options)
        self.completed()

    def hear(self):
        """The next message: its header and what follows."""
        wc = self.id.get_recv_comp()
        if wc.status != e.IBV_WC_SUCCESS:
            raise Lost(wc.status)
        mr = self.receives.pop(0)
        message = mr.read(MESSAGE, 0)
        self.receives.append(mr)
        self.id.post_recv(mr)
        return HEADER.unpack(message[:HEADER.size]), message[HEADER.size:]

    def close(self):
        # The connection manager tells the peer, if it does not know yet.
        for mr in (*self.receives, self.message):
            mr.close()
        self.id.close()


def contents(size):
    """What is sent."""
    return b"".join(hashlib.sha256(struct.pack("!Q", n)).digest() for n in range(size // 32 + 1))[:size]


def receive(options):
    memory = mmap.mmap(-1, options.size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    place = AddrInfo(src=options.address, src_service=str(options.port), port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=place, qp_init_attr=pair_attr())
    listener.listen()
    written = copied = refused = 0
    done = False
    while not done:
        identifier = listener.get_request()
        link = Connection(identifier)
        identifier.accept(ConnParam(rnr_retry=7))
        # Whoever has lost the right to write once is not given it again.
        lent = None
        if not refused:
            access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
            lent = MR(identifier.pd, options.size, access, address=address)
        try:
            link.say(OFFER, address if lent else 0, options.size if lent else 0, lent.rkey if lent else 0)
            while not done:
                (kind, offset, length, _), data = link.hear()
                if kind == WRITTEN:
                    written += 1
                    if written == options.revoke_after:
                        lent.close()
                        lent = None
                elif kind == DATA:
                    # It is the peer who says where.
                    if length > CHUNK or offset > options.size or length > options.size - offset:
                        raise SystemExit(f"receiver: {length} bytes for offset {offset}")
                    memory[offset:offset + length] = data[:length]
                    copied += 1
                elif kind == DONE:
                    if data[:32] != hashlib.sha256(memory).digest():
                        raise SystemExit("receiver: the data are damaged")
                    link.say(GOOD)
                    done = True
        except Lost:
            refused += 1
        if lent:
            lent.close()
        link.close()
    listener.close()
    print(f"received {options.size} bytes: {written} chunks announced as written, {copied} copied, {refused} connections lost")


class Sender:
    """What has to go, and how much of it is there: `done` bytes."""

    def __init__(self, options):
        self.options, self.data = options, contents(options.size)
        self.done = self.written = self.sent = 0

    def chunks(self):
        return range(self.done, len(self.data), CHUNK)

    def write(self, link, address, key):
        """Directly. A message behind each WRITE says so to the receiver."""
        mrs = [(MR(link.id.pd, CHUNK, e.IBV_ACCESS_LOCAL_WRITE), MR(link.id.pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE)) for _ in range(DEPTH)]
        under_way = []

        def oldest_completed():
            link.completed()    # Its WRITE: from here on these bytes are in the receiver's memory.
            self.done += under_way.pop(0)
            self.written += 1
            link.completed()

        try:
            for n, at in enumerate(self.chunks()):
                if len(under_way) == DEPTH:
                    oldest_completed()
                data, note = mrs[n % DEPTH]
                chunk = self.data[at:at + CHUNK]
                data.write(chunk, len(chunk))
                link.id.post_write(data, len(chunk), address + at, key, e.IBV_SEND_SIGNALED)
                link.post(WRITTEN, at, len(chunk), mr=note)
                under_way.append(len(chunk))
            while under_way:
                oldest_completed()
        finally:
            for mr in sum(mrs, ()):
                mr.close()

    def send(self, link):
        """By SEND; the receiver copies."""
        for at in self.chunks():
            chunk = self.data[at:at + CHUNK]
            link.say(DATA, at, len(chunk), data=chunk)
            self.done += len(chunk)
            self.sent += 1

    def run(self):
        while True:
            options = self.options
            place = AddrInfo(dst=options.address, dst_service=str(options.port), port_space=ce.RDMA_PS_TCP)
            identifier = CMID(creator=place, qp_init_attr=pair_attr())
            link = Connection(identifier)
            identifier.connect(ConnParam(rnr_retry=7))
            try:
                (_, address, length, key), _ = link.hear()
                if length:
                    self.write(link, address, key)
                else:
                    self.send(link)
                link.say(DONE, data=hashlib.sha256(self.data).digest())
                (kind, *_), _ = link.hear()
                if kind != GOOD:
                    raise SystemExit("sender: the receiver is not content")
                link.close()
                return
            except Lost as lost:
                # Anything but a refusal is not cured by another connection.
                if lost.args[0] != e.IBV_WC_REM_ACCESS_ERR:
                    raise SystemExit(f"sender: status {lost.args[0]}") from None
                print(f"a WRITE was refused after {self.done} bytes: the rest goes by SEND")
                link.close()


def send(options):
    sender = Sender(options)
    sender.run()
    print(f"sent {options.size} bytes: {sender.written} chunks by WRITE, {sender.sent} by SEND")


def main():
    parser = argparse.ArgumentParser(description="RDMA WRITE with SEND to fall back to.")
    parts = parser.add_subparsers(required=True)
    for name, function in (("receive", receive), ("send", send)):
        part = parts.add_parser(name)
        part.add_argument("address", help="the receiver's, on the network of the RDMA device")
        part.add_argument("port", type=int)
        part.add_argument("size", type=int, help="bytes")
        part.set_defaults(run=function)
        if name == "receive":
            part.add_argument("--revoke-after", type=int, default=0, help="chunks announced when the key ends (default: never)")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
