#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A receive window that slides over an endless stream, with one R_Key.

sliding_window.py --library FILE receive DEVICE GID-INDEX PORT
sliding_window.py send DEVICE GID-INDEX PORT ADDRESS [--chunks N]

Each byte of the stream has an address in one region: the receiver sends its R_Key and the address of byte 0 once, and the peer writes
byte n to n bytes after that address. The receiver has memory for a few chunks only. It consumes the chunk at the tail of the window,
removes its memory from the region, adds the memory again at the head of the window, and then sends the peer the number of chunks that it
may write. The region contains the memory of the window only: a write to consumed chunks, or beyond the head, is refused.

The script calls librxe_rs, with an ibv_mr of an unmodified rdma-core (through pyverbs).
"""
import argparse
import ctypes
import mmap
import socket
import struct
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

CHUNK = 16 * mmap.PAGESIZE
WINDOW = 8
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
HELLO = struct.Struct("!II39sQI")  # QP number, PSN, GID; address and key of byte 0


def contents(number):
    """The data of a chunk of the stream."""
    block = bytes((number * 31 + n) & 0xFF for n in range(256))
    return struct.pack("!Q", number) + (block * (CHUNK // 256))[8:]


class State(ctypes.Structure):
    """struct rxe_rs_mr_state"""
    _fields_ = [("lkey", ctypes.c_uint32), ("rkey", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64) for name in ("handle", "start", "length", "run_start", "run_length", "bytes")] + [
        ("segments", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class Region:
    """The calls of librxe_rs for one ibv_mr."""

    def __init__(self, library, ctx, mr):
        self.library = ctypes.CDLL(library)
        self.names = (ctypes.c_int(ctx.cmd_fd), ctypes.c_uint32(mr.handle), ctypes.c_uint32(mr.rkey))

    def add(self, addr, length, iova):
        state = State()
        self.check(self.library.rxe_rs_add(*self.names, ctypes.c_void_p(addr), ctypes.c_uint64(length), ctypes.c_uint64(iova),
                                           ctypes.byref(state)))
        return state

    def remove(self, handle):
        state = State()
        self.check(self.library.rxe_rs_remove(*self.names, ctypes.c_uint64(handle), ctypes.byref(state)))
        return state

    @staticmethod
    def check(number):
        if number:
            raise OSError(number, "librxe_rs")


class End:
    """A queue pair, its completion queue and memory for `slots` chunks."""

    def __init__(self, device, gid_index, slots):
        self.ctx = Context(name=device)
        self.gid_index = gid_index
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 256)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.memory = mmap.mmap(-1, slots * CHUNK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.completions = []
        # pyverbs requires an element in each list. A length of 0 needs no key.
        self.empty = SGE(self.address, 0, 0)

    def hello(self, base=0, key=0):
        gid = str(self.ctx.query_gid(1, self.gid_index))
        return HELLO.pack(self.qp.qp_num, 0x1000, gid.encode(), base, key)

    def connect(self, hello):
        number, psn, gid, base, key = HELLO.unpack(hello)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        self.qp.to_init(attr)
        route = GlobalRoute(dgid=GID(gid.decode()), sgid_index=self.gid_index, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = number, psn, 0x1000
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 16, 6, 7
        attr.qp_access_flags = ACCESS
        self.qp.to_rts(attr)
        return base, key

    def expect(self):
        """Posts a receive for a message without data."""
        self.qp.post_recv(RecvWR(num_sge=1, sg=[self.empty], wr_id=0))

    def poll(self):
        """Waits for the next completion."""
        while not self.completions:
            self.completions = self.cq.poll(16)[1]
            if not self.completions:
                time.sleep(0.0001)
        return self.completions.pop(0)


def receive(options):
    end = End(options.device, options.gid_index, WINDOW)
    # Byte 0 has the address of the first chunk in this process; the other addresses of the region have no meaning here.
    mr = MR(end.pd, CHUNK, ACCESS, address=end.address)
    region = Region(options.library, end.ctx, mr)
    base, key = mr.buf, mr.rkey
    handles = [1] + [region.add(end.address + n * CHUNK, CHUNK, base + n * CHUNK).handle for n in range(1, WINDOW)]
    with socket.create_server((options.listen, options.port)) as server:
        peer, _ = server.accept()
    with peer:
        end.connect(peer.recv(HELLO.size, socket.MSG_WAITALL))
        for _ in range(2 * WINDOW):
            end.expect()
        peer.sendall(end.hello(base, key))
        chunks, = struct.unpack("!I", peer.recv(4, socket.MSG_WAITALL))
        tail = 0
        while tail < chunks:
            wc = end.poll()
            if wc.status != e.IBV_WC_SUCCESS:
                raise SystemExit(f"receiver: status {wc.status}")
            if wc.opcode != e.IBV_WC_RECV_RDMA_WITH_IMM:
                continue
            end.expect()
            if wc.imm_data != tail:
                raise SystemExit(f"received chunk {wc.imm_data} instead of {tail}")
            slot = tail % WINDOW
            if end.memory[slot * CHUNK:(slot + 1) * CHUNK] != contents(tail):
                raise SystemExit(f"chunk {tail} is damaged")
            region.remove(handles[slot])
            # The memory is in no region now, so nobody else writes to it.
            end.memory[slot * CHUNK:(slot + 1) * CHUNK] = bytes(CHUNK)
            head = tail + WINDOW
            state = region.add(end.address + slot * CHUNK, CHUNK, base + head * CHUNK)
            handles[slot] = state.handle
            tail += 1
            if (state.rkey, state.start, state.length) != (key, base + tail * CHUNK, WINDOW * CHUNK):
                raise SystemExit("the region does not have the expected key and range")
            wr = SendWR(wr_id=head, num_sge=1, sg=[end.empty], opcode=e.IBV_WR_SEND_WITH_IMM)
            wr.imm_data = head + 1
            end.qp.post_send(wr)
        # The peer writes outside the window, and reports the end of that.
        if peer.recv(1, socket.MSG_WAITALL) != b"!":
            raise SystemExit("the peer closed the connection")
        if end.memory[:] != bytes(len(end.memory)):
            raise SystemExit("memory was written after it left the window")
    print(f"received {chunks} chunks, {chunks * CHUNK >> 10} KiB, through {WINDOW * CHUNK >> 10} KiB with key {key:#x}")


def send(options):
    end = End(options.device, options.gid_index, WINDOW)
    mr = MR(end.pd, WINDOW * CHUNK, e.IBV_ACCESS_LOCAL_WRITE, address=end.address)

    def write(number, at):
        wr = SendWR(wr_id=number, num_sge=1, sg=[SGE(mr.buf + number % WINDOW * CHUNK, CHUNK, mr.lkey)],
                    opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM)
        wr.imm_data = number
        wr.set_wr_rdma(key, at)
        end.qp.post_send(wr)

    with socket.create_connection((options.address, options.port)) as peer:
        peer.sendall(end.hello())
        base, key = end.connect(peer.recv(HELLO.size, socket.MSG_WAITALL))
        for _ in range(2 * WINDOW):
            end.expect()
        peer.sendall(struct.pack("!I", options.chunks))
        sent = done = 0
        allowed = WINDOW
        while done < options.chunks or allowed < options.chunks + WINDOW:
            while sent < min(allowed, options.chunks) and sent < done + WINDOW:
                end.memory[sent % WINDOW * CHUNK:(sent % WINDOW + 1) * CHUNK] = contents(sent)
                write(sent, base + sent * CHUNK)
                sent += 1
            wc = end.poll()
            if wc.status != e.IBV_WC_SUCCESS:
                raise SystemExit(f"sender: status {wc.status} after {done} chunks")
            if wc.opcode & e.IBV_WC_RECV:
                allowed = wc.imm_data
                end.expect()
            else:
                done += 1
        # With the same key, a write outside the window is refused.
        write(0, base + options.outside * CHUNK)
        status = end.poll().status
        peer.sendall(b"!")
        if status != e.IBV_WC_REM_ACCESS_ERR:
            raise SystemExit(f"a write outside the window ended with status {status}")
    print(f"sent {options.chunks} chunks with one key, {key:#x}; a write outside the window was refused")


def main():
    parser = argparse.ArgumentParser(description="A receive window that slides over a stream, with one R_Key.")
    parser.add_argument("--library", default="librxe_rs.so", help="path of librxe_rs.so")
    parts = parser.add_subparsers(required=True)
    for name, function in (("receive", receive), ("send", send)):
        part = parts.add_parser(name)
        part.add_argument("device")
        part.add_argument("gid_index", type=int)
        part.add_argument("port", type=int)
        part.set_defaults(run=function)
        if name == "receive":
            part.add_argument("--listen", default="", help="address to listen at (default: any)")
        else:
            part.add_argument("address", help="where the receiver listens")
            part.add_argument("--chunks", type=int, default=200)
            part.add_argument("--outside", type=int, default=0, metavar="CHUNK", help="chunk outside the window that is written at the end (default: 0)")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
