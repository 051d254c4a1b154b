#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Writers of a disk that may be removed while they write, and the comparison of the disk with what they have written.

disk_writers.py write DEVICE FOLDER             WRITERS processes write until a request of each of them fails
disk_writers.py compare DEVICE FOLDER           fails unless the disk has all data of completed requests

A writer has BLOCKS blocks of the disk. Its request number N writes block N % BLOCKS with data that follow from the writer and N. FOLDER/WRITER
has the number of those that are complete. If one fails, it may have been executed or not; it is the first one of the next call. After each
write the writer reads another block, and compares it.
"""
import errno
import hashlib
import mmap
import os
import sys

WRITERS, BLOCKS, SIZE, SECTOR = 4, 16, 65536, 512
DIGITS = 9
# A disk that is removed has no sectors: writes behind its end fail with ENOSPC, and reads return nothing.
REMOVED = {errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOSPC, errno.ETIMEDOUT}


class Ended(Exception):
    """A request failed as requests of a removed disk do."""


def data(writer, number):
    return hashlib.shake_128(f"{writer} {number}".encode()).digest(SIZE)


def place(writer, number):
    return (writer * BLOCKS + number % BLOCKS) * SIZE


def transfer(request, disk, buffer, offset):
    try:
        size = request(disk, [buffer], offset)
    except OSError as error:
        if error.errno not in REMOVED:
            raise
        raise Ended(error.strerror) from error
    if not size:
        raise Ended("end of the disk")
    assert size == SIZE, f"{size} bytes of {SIZE} were transferred"


class Count:
    """The number of requests that a writer has completed, in a file: it stays when the process ends."""

    def __init__(self, folder, writer):
        self.file = os.open(f"{folder}/{writer}", os.O_RDWR | os.O_CREAT, 0o600)

    def get(self):
        return int(os.pread(self.file, DIGITS + 1, 0) or 0)

    def set(self, number):
        os.pwrite(self.file, b"%0*d\n" % (DIGITS, number), 0)


def run_writer(device, folder, writer):
    count = Count(folder, writer)
    disk = os.open(device, os.O_RDWR | os.O_DIRECT)
    buffer, number = mmap.mmap(-1, SIZE), count.get()
    try:
        while True:
            buffer[:] = data(writer, number)
            transfer(os.pwritev, disk, buffer, place(writer, number))
            number += 1
            count.set(number)
            if (earlier := number - BLOCKS // 2) >= 0:
                transfer(os.preadv, disk, buffer, place(writer, earlier))
                assert buffer[:] == data(writer, earlier), f"writer {writer} has read wrong data instead of those of request {earlier}"
    except Ended as reason:
        print(f"writer {writer} has completed {number} requests: {reason}", flush=True)


def write(device, folder):
    children = []
    for writer in range(WRITERS):
        if not (child := os.fork()):
            status = 1
            try:
                run_writer(device, folder, writer)
                status = 0
            except BaseException as error:
                print(f"writer {writer}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    sys.exit(bool(failed))


def compare(device, folder):
    disk = os.open(device, os.O_RDWR | os.O_DIRECT)
    buffer = mmap.mmap(-1, SIZE)
    for writer in range(WRITERS):
        done = Count(folder, writer).get()
        assert done >= BLOCKS, f"writer {writer} has not written all of its blocks"
        for number in range(done - BLOCKS, done):
            transfer(os.preadv, disk, buffer, place(writer, number))
            # The request that failed, if this is its block.
            allowed = [data(writer, number)] + [data(writer, done)] * (number + BLOCKS == done)
            for at in range(0, SIZE, SECTOR):
                assert any(buffer[at:at + SECTOR] == one[at:at + SECTOR] for one in allowed), \
                    f"writer {writer}, request {number}: the sector at {place(writer, number) + at} has other data"
    print(f"{WRITERS * BLOCKS} blocks are correct")


if __name__ == "__main__":
    {"write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:])
