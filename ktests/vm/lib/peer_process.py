# SPDX-License-Identifier: GPL-2.0
"""A process with the other end of a connection. Both processors of a machine can be in the driver at the same time then, as they never are
with two threads of Python: a thread that is in a system call keeps the others from running."""
import contextlib
import os
import socket
import struct
import traceback

from lib.child_process import kill
from lib.ends import End, Remote


@contextlib.contextmanager
def peer_process(work):
    """Runs `work(channel)` in a process, which ends with the block. Yields the channel to it, a socket."""
    own, channel = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            work(channel)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    # The end of the process is the end of the channel.
    channel.close()
    try:
        yield own
    finally:
        kill(child)


def connected(names, side, channel, make=End, **options):
    """An end, created by `make`, of a connection with the process at the other end of the channel, which has to connect as well."""
    end = make(names[side], int(names[side + 1]), **options)
    channel.send(struct.pack("I", end.qp.qp_num))
    number, = struct.unpack("I", channel.recv(4))
    # The peer may send before there is a receive.
    end.connect(Remote(*names[2 - side:4 - side], number), 100, 100, rnr_retries=7)
    channel.send(b"x")
    channel.recv(1)
    return end
