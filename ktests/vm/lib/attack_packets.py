#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Hostile packets: captured frames of live connections, mutated by `mutate` (rxe_rs/proto/sim/mutate.rs) and injected.

attack_packets.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B COUNT SEED MUTATE-PROGRAM

The devices are on va in namespace a and vb in namespace b. The attacked connections are of all service types, and are re-established
when they break. A bystander process has connections that are not attacked: these must not be affected.
"""
import errno
import os
import random
import socket
import struct
import subprocess
import sys
import time

from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPAttr
import pyverbs.enums as e

from lib.bystander import Bystander
from lib.ends import datagram, datagram_pair, pair

CLONE_NEWNET = 0x40000000
OUTGOING = 4
BATCH = 500
ROCE = struct.pack("!H", 4791)


def victim(names):
    """Traffic on the attacked queue pairs. A broken connection is re-established with the same QPN, which `mutate` knows."""
    rng = random.Random(int(names[4]))
    os.nice(10)
    options = {"size": 16384, "retries": 3, "timeout": 10, "rnr_retries": 3}
    pairs = [pair(names, **options), pair(names, **options), pair(names, qp_type=e.IBV_QPT_UC, **options)]
    one, other, ah = datagram_pair(names)
    broken = 0
    while True:
        if rng.randrange(4) == 0:
            other.recv(other.sge(500))
            datagram(one, other, ah, 1)
            while one.cq.poll(8)[0] or other.cq.poll(8)[0]:
                pass
            continue
        a, b = rng.choice(pairs)
        if rng.randrange(2):
            a, b = b, a
        try:
            b.recv(b.sge())
            length = rng.choice((0, 1, 100, 1024, 5000))
            codes = [e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND_WITH_IMM]
            code = rng.choice(codes + ([e.IBV_WR_RDMA_READ] if (a, b) not in (pairs[2], pairs[2][::-1]) else []))
            a.post(code, *([a.sge(length)] if length else []), remote=(b.mr.buf, b.mr.rkey), imm=5)
            a.complete(seconds=3)
        except (AssertionError, PyverbsError):
            broken += 1
            for end in (a, b):
                end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
            first, second = rng.getrandbits(24), rng.getrandbits(24)
            a.connect(b, first, second, retries=3, timeout=10, rnr_retries=3)
            b.connect(a, second, first, retries=3, timeout=10, rnr_retries=3)
        while a.cq.poll(8)[0] or b.cq.poll(8)[0]:
            pass


class Tap:
    """A packet socket on a network device of a namespace."""

    def __init__(self, netns, netdev):
        own, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{netns}", os.O_RDONLY)
        os.setns(there, CLONE_NEWNET)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((netdev, 3))
        self.mac = self.socket.getsockname()[4]
        os.setns(own, CLONE_NEWNET)
        os.close(own)
        os.close(there)
        self.socket.setblocking(False)

    def sent(self, most):
        """Returns the frames that others have sent through the device since the last call, at most `most`."""
        frames = []
        for _ in range(most):
            try:
                data, source = self.socket.recvfrom(2048, socket.MSG_DONTWAIT)
            except OSError:
                break
            if source[2] == OUTGOING and ROCE in data[36:58]:
                frames.append(data)
        return frames

    def send(self, frame):
        """Sends a frame; false if the device refuses it. Waits while the queues are full: on PREEMPT_RT receivers run in threads."""
        for _ in range(100):
            try:
                self.socket.send(frame)
                return True
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    return False
            time.sleep(0.001)
        return False


def counters(device):
    folder = f"/sys/class/infiniband/{device}/ports/1/hw_counters"
    return {name: int(open(f"{folder}/{name}").read()) for name in os.listdir(folder) if name != "lifespan"}


def main(names, count, seed, program):
    taps = [Tap("a", "va"), Tap("b", "vb")]
    bystander = Bystander(names)
    mutate = subprocess.Popen([program, str(seed), *map(str, bystander.qpns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    victims = [subprocess.Popen([sys.executable, __file__, "victim", *names, str(seed + n)]) for n in range(2)]
    before = counters(names[2])
    generated = send_errors = captured = 0
    idle = True
    reported = started = time.monotonic()
    try:
        while generated < count:
            frames = [frame for tap in taps for frame in tap.sent(40)]
            captured += len(frames)
            request = b"".join(b"L" + struct.pack("!H", len(f)) + f for f in frames)
            # `mutate` returns nothing before the victims have sent packets.
            number = 1 if idle else min(BATCH, count - generated)
            mutate.stdin.write(request + b"G" + struct.pack("!I", number))
            mutate.stdin.flush()
            for _ in range(number):
                length, = struct.unpack("!H", mutate.stdout.read(2))
                if not length:
                    continue
                frame = mutate.stdout.read(length)
                tap = taps[1] if frame[:6] == taps[0].mac else taps[0]
                send_errors += not tap.send(frame)
                generated += 1
            if idle:
                idle = not generated
                time.sleep(0.01)
            # Let victims and bystander run: without their traffic there is nothing to mutate.
            elif not frames:
                time.sleep(0.005)
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                print(f"{generated} packets, {captured} captured", flush=True)
            assert generated or time.monotonic() - started < 60, "no traffic to mutate"
        assert all(process.poll() is None for process in victims), "a victim ended"
    finally:
        for process in victims:
            process.kill()
            process.wait()
    mutate.stdin.close()
    mutate.wait()
    elapsed = time.monotonic() - started
    increments = {name: value - before[name] for name, value in counters(names[2]).items() if value != before.get(name)}
    print(f"{generated} packets in {elapsed:.0f} s ({send_errors} not sent), {captured} captured; counters of {names[2]}: {increments}")
    assert send_errors < generated // 10, "most packets could not be sent"
    bystander.end(10)


if __name__ == "__main__":
    if sys.argv[1] == "victim":
        victim(sys.argv[2:7])
    else:
        main(sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6]), sys.argv[7])
        print("passed")
