#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Page faults that do not complete: a FUSE file system that delays READ replies, and a process whose queue pairs send from its file.

stuck.py serve FOLDER       mounts a file system with one file, `file`, on FOLDER and serves it. READ requests wait until FOLDER.go
                            exists; FOLDER.reads has the number of waiting ones.
stuck.py hold DEVICE GID-INDEX COUNT FILE
                            COUNT UD queue pairs, each of which sends a message from a page of its own of FILE, registered with
                            on-demand paging. Ends when all have completed and prints how many failed.
"""
import ctypes
import os
import select
import struct
import sys

STRIDE = 1 << 20
FILE_SIZE = 4096 * STRIDE
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR, INTERRUPT, DESTROY, BATCH_FORGET = \
    1, 2, 3, 14, 15, 18, 25, 26, 27, 29, 36, 38, 42
ENOSYS = 38
ROOT, FILE = 1, 2
RANDOM = 1

libc = ctypes.CDLL(None, use_errno=True)


def attributes(node):
    """struct fuse_attr."""
    mode, size = (0o40755, 0) if node == ROOT else (0o100644, FILE_SIZE)
    return struct.pack("=6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Server:
    """Answers the kernel's requests (include/uapi/linux/fuse.h), but holds READs back."""

    def __init__(self, folder):
        self.folder, self.reads = folder, []
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"fuse", folder.encode(), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")

    def reply(self, unique, data=b"", error=0):
        os.write(self.fd, struct.pack("=IiQ", 16 + len(data), -error, unique) + data)

    def request(self):
        packet = os.read(self.fd, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("=IIQQ", packet)
        if opcode == INIT:
            self.reply(unique, struct.pack("=4I2H2I2HI28x", 7, 31, 0, 0, 1000, 900, 4096, 1, 1, 0, 0))
        elif opcode == LOOKUP:
            self.reply(unique, struct.pack("=4Q2I", FILE, 0, 1000, 1000, 0, 0) + attributes(FILE))
        elif opcode == GETATTR:
            self.reply(unique, struct.pack("=Q2I", 1000, 0, 0) + attributes(node))
        elif opcode in (OPEN, OPENDIR):
            self.reply(unique, bytes(16))
        elif opcode == READ:
            self.reads.append((unique, struct.unpack_from("=I", packet, 56)[0]))
        elif opcode in (FLUSH, RELEASE, RELEASEDIR, DESTROY):
            self.reply(unique)
        elif opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
            self.reply(unique, error=ENOSYS)

    def write_count(self):
        with open(f"{self.folder}.tmp", "w") as out:
            print(len(self.reads), file=out)
        os.rename(f"{self.folder}.tmp", f"{self.folder}.reads")

    def run(self):
        written = None
        while True:
            if select.select([self.fd], [], [], 0.05)[0]:
                self.request()
            if os.path.exists(f"{self.folder}.go"):
                for unique, size in self.reads:
                    self.reply(unique, b"x" * size)
                self.reads.clear()
            if written != len(self.reads):
                written = len(self.reads)
                self.write_count()


def hold(name, gid_index, count, path):
    from pyverbs.addr import AH, AHAttr, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.wr import SGE, SendWR
    import pyverbs.enums as e

    from lib.ends import completion

    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    fd = os.open(path, os.O_RDONLY)
    addr = libc.mmap(None, count * STRIDE, 1, 2, fd, 0)
    assert addr != ctypes.c_void_p(-1).value
    # No readahead: one READ request for each page.
    assert libc.madvise(addr, count * STRIDE, RANDOM) == 0
    ctx = Context(name=name)
    pd = PD(ctx)
    cq = CQ(ctx, count)
    mr = MR(pd, count * STRIDE, e.IBV_ACCESS_ON_DEMAND, address=addr)
    init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1), sq_sig_all=1)
    qps = [QP(pd, init, QPAttr(port_num=1)) for _ in range(count)]
    route = GlobalRoute(dgid=ctx.query_gid(1, gid_index), sgid_index=gid_index)
    ah = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))
    for n, qp in enumerate(qps):
        wr = SendWR(wr_id=n, num_sge=1, sg=[SGE(addr + n * STRIDE, 100, mr.lkey)], opcode=e.IBV_WR_SEND,
                    send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(ah, 0xFFFFF, 0x11111111)
        qp.post_send(wr)
    print("posted", flush=True)
    statuses = []
    while len(statuses) < count:
        wc = completion(cq, 1)
        statuses += [wc.status] if wc else []
    print("completed, failed:", sum(status != 0 for status in statuses))
    sys.exit(any(statuses))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        Server(sys.argv[2]).run()
    hold(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
