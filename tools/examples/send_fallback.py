#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Transfers data by RDMA WRITE while the R_Key of the receiver is valid, and by SEND after it has been revoked.

send_fallback.py receive ADDRESS PORT SIZE [--revoke-after CHUNKS]
send_fallback.py send ADDRESS PORT SIZE

The receiver sends the R_Key of the destination memory, and the sender writes to that memory. The owner of the key may revoke it at any
time (here: by deregistration, after a number of chunks). The next WRITE then fails with a remote access error, and both queue pairs of the
connection enter the error state. No data are lost:

- Requests complete in order. The data of WRITEs that completed successfully are in the memory of the receiver. Those of the failed WRITE
  and of the requests that were flushed after it are not, or only in part.
- The sender establishes a new connection, over which the receiver sends no key, and transfers the rest by SEND. Each message contains the
  offset of its data. The receiver checks that the range is in its memory, and copies the data.

Finally both sides compare a digest. The script uses an unmodified librdmacm and libibverbs, through pyverbs.
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
# Number of receives posted, and limit on the requests in flight.
DEPTH = 8
# Header of each message: its type, an address or an offset, a length in bytes, a key.
HEADER = struct.Struct("!cQQI")
OFFER, WRITTEN, DATA, DONE, GOOD = b"O", b"W", b"D", b"E", b"G"
MESSAGE = HEADER.size + CHUNK


def pair_attr():
    cap = QPCap(max_send_wr=2 * DEPTH + 2, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=cap, sq_sig_all=1)


class ConnectionFailed(Exception):
    """A request failed, and the connection is in the error state. The argument is the status of the completion."""


class Connection:
    """A connection, and the messages that are sent over it."""

    def __init__(self, identifier):
        self.id = identifier
        self.receives = [MR(self.id.pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE) for _ in range(DEPTH)]
        for mr in self.receives:
            self.id.post_recv(mr)
        self.message = MR(self.id.pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE)

    def post(self, kind, position=0, length=0, key=0, data=b"", mr=None):
        """Posts a message, from `mr` if it is given. That must not be changed until the message has completed."""
        mr = mr or self.message
        mr.write(HEADER.pack(kind, position, length, key) + data, HEADER.size + len(data))
        self.id.post_send(mr)

    def completed(self):
        """Waits for the completion of the oldest request. Raises ConnectionFailed if it failed."""
        wc = self.id.get_send_comp()
        if wc.status != e.IBV_WC_SUCCESS:
            raise ConnectionFailed(wc.status)

    def send_message(self, *message, **options):
        """Posts a message and waits for its completion."""
        self.post(*message, **options)
        self.completed()

    def receive_message(self):
        """Waits for the next message; returns the fields of its header, and its data."""
        wc = self.id.get_recv_comp()
        if wc.status != e.IBV_WC_SUCCESS:
            raise ConnectionFailed(wc.status)
        mr = self.receives.pop(0)
        message = mr.read(MESSAGE, 0)
        self.receives.append(mr)
        self.id.post_recv(mr)
        return HEADER.unpack(message[:HEADER.size]), message[HEADER.size:]

    def close(self):
        # Closing the identifier disconnects, if the peer has not disconnected.
        for mr in (*self.receives, self.message):
            mr.close()
        self.id.close()


def contents(size):
    """The data to transfer."""
    return b"".join(hashlib.sha256(struct.pack("!Q", n)).digest() for n in range(size // 32 + 1))[:size]


def receive(options):
    memory = mmap.mmap(-1, options.size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    source = AddrInfo(src=options.address, src_service=str(options.port), port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=source, qp_init_attr=pair_attr())
    listener.listen()
    written = copied = failed = 0
    done = False
    while not done:
        identifier = listener.get_request()
        link = Connection(identifier)
        identifier.accept(ConnParam(rnr_retry=7))
        # After a failed connection the sender gets no key.
        target = None
        if not failed:
            access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
            target = MR(identifier.pd, options.size, access, address=address)
        try:
            link.send_message(OFFER, address if target else 0, options.size if target else 0, target.rkey if target else 0)
            while not done:
                (kind, offset, length, _), data = link.receive_message()
                if kind == WRITTEN:
                    written += 1
                    if written == options.revoke_after:
                        target.close()
                        target = None
                elif kind == DATA:
                    # The offset and the length are from the peer, so they must be checked.
                    if length > CHUNK or offset > options.size or length > options.size - offset:
                        raise SystemExit(f"receiver: {length} bytes for offset {offset}")
                    memory[offset:offset + length] = data[:length]
                    copied += 1
                elif kind == DONE:
                    if data[:32] != hashlib.sha256(memory).digest():
                        raise SystemExit("receiver: the digest does not match")
                    link.send_message(GOOD)
                    done = True
        except ConnectionFailed:
            failed += 1
        if target:
            target.close()
        link.close()
    listener.close()
    print(f"received {options.size} bytes: {written} chunks announced as written, {copied} copied, {failed} connections failed")


class Sender:
    """The data, of which the receiver has the first `done` bytes."""

    def __init__(self, options):
        self.options, self.data = options, contents(options.size)
        self.done = self.written = self.sent = 0

    def chunks(self):
        return range(self.done, len(self.data), CHUNK)

    def write(self, link, address, key):
        """Transfers the rest by WRITE. A message after each WRITE announces it to the receiver."""
        mrs = [(MR(link.id.pd, CHUNK, e.IBV_ACCESS_LOCAL_WRITE), MR(link.id.pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE)) for _ in range(DEPTH)]
        in_flight = []

        def oldest_completed():
            link.completed()    # The WRITE: these bytes are in the memory of the receiver now.
            self.done += in_flight.pop(0)
            self.written += 1
            link.completed()

        try:
            for n, at in enumerate(self.chunks()):
                if len(in_flight) == DEPTH:
                    oldest_completed()
                data, note = mrs[n % DEPTH]
                chunk = self.data[at:at + CHUNK]
                data.write(chunk, len(chunk))
                link.id.post_write(data, len(chunk), address + at, key, e.IBV_SEND_SIGNALED)
                link.post(WRITTEN, at, len(chunk), mr=note)
                in_flight.append(len(chunk))
            while in_flight:
                oldest_completed()
        finally:
            for mr in sum(mrs, ()):
                mr.close()

    def send(self, link):
        """Transfers the rest by SEND; the receiver copies."""
        for at in self.chunks():
            chunk = self.data[at:at + CHUNK]
            link.send_message(DATA, at, len(chunk), data=chunk)
            self.done += len(chunk)
            self.sent += 1

    def run(self):
        while True:
            options = self.options
            destination = AddrInfo(dst=options.address, dst_service=str(options.port), port_space=ce.RDMA_PS_TCP)
            identifier = CMID(creator=destination, qp_init_attr=pair_attr())
            link = Connection(identifier)
            identifier.connect(ConnParam(rnr_retry=7))
            try:
                (_, address, length, key), _ = link.receive_message()
                if length:
                    self.write(link, address, key)
                else:
                    self.send(link)
                link.send_message(DONE, data=hashlib.sha256(self.data).digest())
                (kind, *_), _ = link.receive_message()
                if kind != GOOD:
                    raise SystemExit("sender: the receiver did not confirm the digest")
                link.close()
                return
            except ConnectionFailed as failure:
                # Another connection helps only after a remote access error.
                if failure.args[0] != e.IBV_WC_REM_ACCESS_ERR:
                    raise SystemExit(f"sender: status {failure.args[0]}") from None
                print(f"a WRITE was refused after {self.done} bytes: sending the rest by SEND")
                link.close()


def send(options):
    sender = Sender(options)
    sender.run()
    print(f"sent {options.size} bytes: {sender.written} chunks by WRITE, {sender.sent} by SEND")


def main():
    parser = argparse.ArgumentParser(description="Transfers data by RDMA WRITE, and by SEND after the key has been revoked.")
    parts = parser.add_subparsers(required=True)
    for name, function in (("receive", receive), ("send", send)):
        part = parts.add_parser(name)
        part.add_argument("address", help="the receiver's, on the network of the RDMA device")
        part.add_argument("port", type=int)
        part.add_argument("size", type=int, help="bytes")
        part.set_defaults(run=function)
        if name == "receive":
            part.add_argument("--revoke-after", type=int, default=0, help="number of chunks after which the key is revoked (default: never)")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
