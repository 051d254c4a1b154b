#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Hostile rings: processes overwrite the queues that they share with the driver, from several threads, while these are in use.

attack_rings.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B SECONDS SEED

Attackers are killed after some seconds, in mid-operation. The connections of a bystander process must not be affected.
"""
import ctypes
import random
import struct
import subprocess
import sys
import threading
import time

from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPAttr
import pyverbs.enums as e

from lib import uverbs
from lib.bystander import Bystander
from lib.ends import End, datagram_pair, pair
from lib.libibverbs import pointer_of
from lib.rings import CONSUMER, HEADER, LIBC, MODIFY_SRQ, POST_SEND, PRODUCER, REQ_NOTIFY_CQ, RESIZE_CQ, Ring, mapped
from lib.srq import Member, Pool

ROUND = 4
ATTACKERS = 2
THREADS = 3


class Attacker:
    def __init__(self, names, seed):
        self.rng = random.Random(seed)
        self.pairs = [pair(names, size=32768, retries=2, timeout=8, rnr_retries=1, inline=100)]
        self.pairs += [pair(names, size=32768, qp_type=e.IBV_QPT_UC, depth=7)]
        self.datagrams = datagram_pair(names)
        self.pool = Pool(names[2], int(names[3]), depth=15)
        sender, member = End(names[0], int(names[1])), Member(self.pool)
        sender.connect(member, 5, 6, retries=2, timeout=8, rnr_retries=1)
        member.connect(sender, 6, 5, retries=2, timeout=8, rnr_retries=1)
        self.pairs.append((sender, member))
        self.ends = [end for two in [*self.pairs, self.datagrams[:2]] for end in two]
        self.rings = mapped()
        self.keys = [end.mr for end in self.ends]
        self.handles = []
        for end in self.ends:
            qp = pointer_of(end.qp)
            word = lambda at: int.from_bytes(ctypes.string_at(at, 4), "little")
            pointer = lambda at: int.from_bytes(ctypes.string_at(at, 8), "little")
            # `struct ibv_qp` has the CQ at offset 24, the SRQ at 40, the handle at 48; CQ and SRQ have their handle at 24.
            srq = pointer(qp + 40)
            self.handles.append((end.ctx.cmd_fd, word(qp + 48), word(pointer(qp + 24) + 24), word(srq + 24) if srq else None))
        self.response = ctypes.create_string_buffer(64)

    # --- content of rings -------------------------------------------------------------------------------------------------------

    def unusual(self, rng):
        choices = (0, 1, 2, 3, 16, 31, 32, 255, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, rng.getrandbits(32))
        return rng.choice(choices)

    def usually(self, rng, value):
        """Returns the value, or with a probability of 10 % an unusual one."""
        return value if rng.random() < 0.9 else self.unusual(rng)

    def sges(self, rng, count):
        out = b""
        for _ in range(count):
            mr = rng.choice(self.keys)
            out += struct.pack("=QII", self.usually(rng, mr.buf + rng.randrange(4096)) & (1 << 64) - 1,
                               self.usually(rng, rng.randrange(3000)), self.usually(rng, mr.lkey))
        return out

    def send_request(self, rng):
        mr = rng.choice(self.keys)
        own = struct.pack("=QII", self.usually(rng, mr.buf), self.usually(rng, mr.rkey), self.unusual(rng))
        kind = rng.randrange(4)
        if kind == 0:
            own = struct.pack("=QQQI", mr.buf + rng.choice((0, 8, 1)), 1, 2, self.usually(rng, mr.rkey))
        elif kind == 1:
            own = struct.pack("=QQIIII", mr.buf, self.usually(rng, 4096), mr.lkey, self.unusual(rng), self.unusual(rng), self.unusual(rng))
        elif kind == 2:
            end = rng.choice(self.ends)
            own = struct.pack("=IIIIII", self.usually(rng, end.qp.qp_num), self.usually(rng, 0x4321), 0, self.usually(rng, rng.randrange(40)), 0, 0)
        count = rng.choice((0, 1, 1, 1, 2, 4))
        head = struct.pack("=QIIII", rng.getrandbits(64), 0, self.usually(rng, rng.randrange(16)), rng.choice((2, 2, 2, 3, 6, 10, self.unusual(rng))),
                           self.unusual(rng))
        dma = struct.pack("=IIIIII", self.usually(rng, rng.randrange(5000)), self.unusual(rng), self.unusual(rng), self.usually(rng, count),
                          self.unusual(rng), self.unusual(rng))
        return head + own.ljust(120, b"\0") + bytes(40) + dma + self.sges(rng, count)

    def receive_request(self, rng):
        count = rng.choice((0, 1, 1, 2, 4))
        return struct.pack("=QQIIIIII", rng.getrandbits(64), 0, self.usually(rng, 3000), self.unusual(rng), self.unusual(rng),
                           self.usually(rng, count), self.unusual(rng), self.unusual(rng)) + self.sges(rng, count)

    def overwrite(self, seed):
        rng = random.Random(seed)
        while True:
            ring = rng.choice(self.rings)
            kind = rng.randrange(20)
            if kind < 11:
                request = self.send_request(rng) if 1 << ring.log2 >= 256 else self.receive_request(rng)
                for _ in range(rng.randrange(1, 4)):
                    ring.write(HEADER + ((ring.next & ring.mask) << ring.log2), request)
                    ring.next += 1
                ring.number(PRODUCER, ring.next & ring.mask)
            elif kind < 14:
                ring.write(rng.randrange(HEADER, max(ring.size, HEADER + 1)), rng.randbytes(rng.choice((1, 4, 8, 64, 256))))
            elif kind < 16:
                ring.number(PRODUCER, self.unusual(rng))
            elif kind < 18:
                ring.number(CONSUMER, self.unusual(rng))
            elif kind == 18:
                ring.number(rng.choice((0, 4)), self.unusual(rng))
            else:
                ring.write(0, rng.randbytes(HEADER))
            if rng.random() < 0.02:
                time.sleep(0.002)

    # --- calls that make the driver read the rings ------------------------------------------------------------------------------

    def command(self, fd, number, body, response=0):
        try:
            uverbs.command(fd, number, body, response)
            return True
        except OSError:
            return False

    def resize(self, fd, cq):
        where = ctypes.addressof(self.response)
        size = self.rng.choice((1, 10, 63, 300, 4000))
        if self.command(fd, RESIZE_CQ, struct.pack("=QII", where, cq, size), 24):
            offset, length = struct.unpack_from("=QI", self.response.raw, 8)
            address = LIBC.mmap(None, length, 3, 1, fd, offset)
            if address not in (None, ctypes.c_void_p(-1).value):
                self.rings.append(Ring(address, length, offset))

    def run(self):
        for _ in range(THREADS):
            threading.Thread(target=self.overwrite, args=(self.rng.getrandbits(32),), daemon=True).start()
        where = ctypes.addressof(self.response)
        while True:
            fd, qp, cq, srq = self.rng.choice(self.handles)
            kind = self.rng.randrange(400)
            if kind < 300:
                self.command(fd, POST_SEND, struct.pack("=QIIII", where, qp, 0, 0, 128), 4)
            elif kind < 380:
                self.command(fd, REQ_NOTIFY_CQ, struct.pack("=II", cq, kind & 1))
            elif kind < 384:
                self.resize(fd, cq)
            elif kind < 390 and srq is not None:
                mask = self.rng.choice((1, 2, 3))
                self.command(fd, MODIFY_SRQ, struct.pack("=IIIIQ", srq, mask, self.rng.choice((1, 10, 63, 500)), self.rng.randrange(5), where))
            elif kind < 394:
                # Re-establish a broken connection. Nothing is posted through the library, which trusts the rings.
                first, second = self.rng.choice(self.pairs)
                try:
                    if kind == 390:
                        first.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
                        continue
                    for end in (first, second):
                        end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
                    first.connect(second, 1, 2, retries=2, timeout=8, rnr_retries=1)
                    second.connect(first, 2, 1, retries=2, timeout=8, rnr_retries=1)
                except PyverbsError:
                    pass
            elif kind == 399:
                time.sleep(0.005)


def main(names, seconds, seed):
    bystander = Bystander(names)
    end = time.monotonic() + seconds
    rounds, ended = 0, 0
    while time.monotonic() < end:
        attackers = [subprocess.Popen([sys.executable, __file__, "attack", *names, str(seed * 1000 + rounds * ATTACKERS + n)])
                     for n in range(ATTACKERS)]
        time.sleep(ROUND)
        for process in attackers:
            ended += process.poll() is not None
            process.kill()
        for process in attackers:
            process.wait()
        rounds += 1
    print(f"{rounds} rounds of {ATTACKERS} attackers, {ended} ended early")
    assert ended <= rounds * ATTACKERS // 2, "most attackers ended early: nothing was attacked"
    bystander.end(10)


if __name__ == "__main__":
    if sys.argv[1] == "attack":
        Attacker(sys.argv[2:6], int(sys.argv[6])).run()
    else:
        main(sys.argv[1:5], float(sys.argv[5]), int(sys.argv[6]))
        print("passed")
