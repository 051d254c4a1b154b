#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Connections that are not attacked: traffic in both directions with checked data and statuses, while others are attacked.

bystander.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B [COMMAND …]

Prints the numbers of its queue pairs in one line, sends until its standard input is closed, then prints the number of rounds. With a
command: sends while that runs; the command must not affect the traffic.
"""
import os
import select
import subprocess
import sys

import pyverbs.enums as e

from lib.ends import datagram, datagram_pair, pair, pattern

SIZE = 12000


class Bystander:
    """A bystander in a process of its own."""

    def __init__(self, names):
        self.process = subprocess.Popen([sys.executable, __file__, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline().split()
        assert line and line[0] == "qpns", line
        self.qpns = [int(word) for word in line[1:]]

    def end(self, rounds):
        """Ends the bystander, which must have completed so many rounds without an error."""
        rest, _ = self.process.communicate("\n", timeout=120)
        print(f"the bystander: {rest.strip()}")
        assert self.process.returncode == 0, f"the bystander was affected: {rest}"
        assert int(rest.split()[0]) >= rounds, f"the bystander made no progress: {rest}"


def exchange(number, a, b, data):
    a.mr.write(data, len(data))
    b.recv(b.sge())
    a.post((e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE_WITH_IMM)[number % 2], a.sge(len(data)), remote=(b.mr.buf, b.mr.rkey), imm=number)
    a.complete(seconds=100)
    b.complete(seconds=100)
    assert b.mr.read(len(data), 0) == data, f"round {number}: wrong data"
    a.mr.write(bytes(len(data)), len(data))
    a.post(e.IBV_WR_RDMA_READ, a.sge(len(data)), remote=(b.mr.buf, b.mr.rkey))
    a.complete(seconds=100)
    assert a.mr.read(len(data), 0) == data, f"round {number}: wrong data read"


def main(names):
    ends = [pair(names, size=SIZE, retries=7, timeout=14, rnr_retries=7) for _ in range(2)]
    a, b, ah = datagram_pair(names)
    print("qpns", *(end.qp.qp_num for two in [*ends, (a, b)] for end in two), flush=True)
    rounds, received = 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        one, other = ends[rounds % 2] if rounds & 2 else ends[rounds % 2][::-1]
        exchange(rounds, one, other, pattern(SIZE - rounds % 3000, rounds))
        # Only datagrams may be lost.
        while b.cq.poll(1)[0]:
            received += 1
        if rounds < received + 60:
            b.recv(b.sge(500))
        datagram(a, b, ah, 1)
        a.complete()
        rounds += 1
    print(f"{rounds} rounds, {received} datagrams", flush=True)


def run_command(names, command):
    # The bystander needs little processor time.
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    bystander = Bystander(names)
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    status = subprocess.run(command).returncode
    bystander.end(10)
    assert status == 0, f"{command[0]} ended with {status}"


if __name__ == "__main__":
    if sys.argv[5:]:
        run_command(sys.argv[1:5], sys.argv[5:])
    else:
        main(sys.argv[1:5])
