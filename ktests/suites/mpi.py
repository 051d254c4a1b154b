# SPDX-License-Identifier: GPL-2.0
"""Checks of an MPI implementation: each rank compares all data that it receives with what the others must have sent."""

import array
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()

# Bytes of a message: inline, eager, more than one packet, by rendezvous.
LENGTHS = (0, 1, 64, 1000, 8192, 65536, 1 << 20)


def pattern(sender, length):
    """What a rank sends: bytes that differ by sender and position."""
    step = bytes((17 * sender + 3 * i) % 251 for i in range(251))
    return bytearray((step * (length // 251 + 1))[:length])


def equal(got, want, what):
    if bytes(got) != bytes(want):
        at = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), min(len(got), len(want)))
        sys.exit(f"rank {rank}: {what} differs from byte {at} on")


def messages():
    """Each rank sends to each other one, all at the same time; then all send to one, which receives from any source."""
    for length in LENGTHS:
        into = [bytearray(length) for _ in range(size)]
        requests = [world.Irecv([into[other], MPI.BYTE], source=other, tag=length) for other in range(size) if other != rank]
        requests += [world.Isend([pattern(rank, length), MPI.BYTE], dest=other, tag=length) for other in range(size) if other != rank]
        MPI.Request.Waitall(requests)
        for other in range(size):
            if other != rank:
                equal(into[other], pattern(other, length), f"message of {length} bytes from rank {other}")
    # Synchronous sends, which are complete when the receiver has started; from any source.
    if rank == 0:
        for _ in range(1, size):
            status = MPI.Status()
            data = bytearray(4096)
            world.Recv([data, MPI.BYTE], source=MPI.ANY_SOURCE, tag=7, status=status)
            equal(data, pattern(status.Get_source(), 4096), f"synchronous message from rank {status.Get_source()}")
    else:
        world.Ssend([pattern(rank, 4096), MPI.BYTE], dest=0, tag=7)


def collectives():
    """Broadcast, reductions, exchanges of all with all."""
    for length in LENGTHS[1:]:
        data = pattern(2, length) if rank == 2 else bytearray(length)
        world.Bcast([data, MPI.BYTE], root=2)
        equal(data, pattern(2, length), f"broadcast of {length} bytes")

        everything = bytearray(length * size)
        world.Alltoall([pattern(rank, length * size), MPI.BYTE], [everything, MPI.BYTE])
        want = b"".join(bytes(pattern(other, length * size)[rank * length : (rank + 1) * length]) for other in range(size))
        equal(everything, want, f"exchange of {length} bytes")

    for count in (1, 1000, 100000):
        mine = array.array("q", (rank + i for i in range(count)))
        total = array.array("q", bytes(8 * count))
        world.Allreduce([mine, MPI.LONG_LONG], [total, MPI.LONG_LONG], op=MPI.SUM)
        want = array.array("q", (size * (size - 1) // 2 + size * i for i in range(count)))
        equal(memoryview(total).cast("B"), memoryview(want).cast("B"), f"sum of {count} numbers")


def one_sided():
    """Windows: PUT, GET and ACCUMULATE between fences, atomic operations under a lock."""
    # What a call sends must not change or go before the next fence.
    part = 65536
    mine, thousand = pattern(rank, part), array.array("q", [1000])
    window = MPI.Win.Allocate(part * size + 8, 1, comm=world)
    memory = window.tomemory()
    memory[:] = bytes(len(memory))
    window.Fence()
    for target in range(size):
        window.Put([mine, MPI.BYTE], target, [part * rank, part, MPI.BYTE])
    window.Fence()
    for origin in range(size):
        equal(memory[part * origin : part * (origin + 1)], pattern(origin, part), f"PUT of rank {origin}")
    window.Fence()
    next_rank = (rank + 1) % size
    got = bytearray(part)
    window.Get([got, MPI.BYTE], next_rank, [part * rank, part, MPI.BYTE])
    window.Fence()
    equal(got, pattern(rank, part), f"GET from rank {next_rank}")

    # Every rank counts in the same word of rank 0; each value is returned once.
    rounds = 50
    one, before = array.array("q", [1]), array.array("q", [0])
    seen = []
    for _ in range(rounds):
        window.Lock(0, MPI.LOCK_SHARED)
        window.Fetch_and_op([one, MPI.LONG_LONG], [before, MPI.LONG_LONG], 0, part * size, MPI.SUM)
        window.Unlock(0)
        seen.append(before[0])
    everything = sorted(value for values in world.allgather(seen) for value in values)
    if everything != list(range(rounds * size)):
        sys.exit(f"rank {rank}: the values of the counter are not each returned once: {everything[:10]}…")
    window.Fence()
    window.Accumulate([thousand, MPI.LONG_LONG], 0, [part * size, 1, MPI.LONG_LONG], MPI.SUM)
    window.Fence()
    if rank == 0:
        value = int.from_bytes(memory[part * size : part * size + 8], "little")
        if value != (rounds + 1000) * size:
            sys.exit(f"the counter is {value}")
    window.Free()


{"messages": messages, "collectives": collectives, "one_sided": one_sided}[sys.argv[1]]()
world.Barrier()
if rank == 0:
    print(f"{size} ranks: {sys.argv[1]} right")
