# SPDX-License-Identifier: GPL-2.0
"""Pages of send and receive queues, which are allocated when the process first accesses them."""
import ctypes
import mmap
import os
import signal
import struct
import traceback

from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
import pyverbs.enums as e

from lib import host, rings, uverbs
from lib.case import case
from lib.ends import completion, pair
from lib.ties import handle_of

DEFAULTS = dict(driver="rxe_rs", reason="tests rxe_rs only")
PAGE = mmap.PAGESIZE
MAYMOVE, FIXED = 1, 2
MAP_FIXED = 0x10
# Far from all other mappings, whose page tables are others.
FAR = 0x20_0000_0000


def present(address, size):
    """The number of pages that the page table of this process has."""
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // PAGE * 8)
        entries = struct.unpack(f"={size // PAGE}Q", pagemap.read(size // PAGE * 8))
    return sum(entry >> 63 for entry in entries)


def producer(ring):
    return struct.unpack("=I", ctypes.string_at(ring.address + rings.PRODUCER, 4))[0]


def test_never_accessed(names):
    """Requests that the process has never written are zeros: WRITEs of no bytes. Reading them allocates nothing."""
    count = 500
    a, b = pair(names, depth=1000)
    a.post(e.IBV_WR_RDMA_WRITE, wr_id=7, remote=(0, 0))
    assert completion(a.cq, 20).wr_id == 7
    # The elements of send queues are larger than those of other queues.
    largest = max(ring.log2 for ring in rings.mapped())
    queue, = (ring for ring in rings.mapped() if ring.log2 == largest and producer(ring) == 1)
    assert queue.size > 16 * PAGE and present(queue.address, queue.size) == 1
    queue.number(rings.PRODUCER, 1 + count)
    response = ctypes.create_string_buffer(4)
    uverbs.command(a.ctx.cmd_fd, rings.POST_SEND, struct.pack("=QIIII", ctypes.addressof(response), handle_of(a, b), 0, 0, 128), 4)
    for n in range(count):
        done = completion(a.cq, 20)
        assert (done.wr_id, done.status) == (0, e.IBV_WC_SUCCESS), (n, done)
    assert present(queue.address, queue.size) == 1


def queues(ctx, depth, count):
    """Queue pairs of a context, and what they need."""
    pd, cq = PD(ctx), CQ(ctx, 16)
    cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1)
    return [pd, cq] + [QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)) for _ in range(count)]


def overwrite(areas, value):
    for address, size in areas:
        ctypes.memset(address, value, size)
    for address, size in areas:
        assert ctypes.string_at(address, size) == bytes([value]) * size, hex(address)


def rearranged(areas):
    """Divides the first area by unmapping a page in its middle, and moves the second one; returns the parts."""
    libc = rings.LIBC
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    (first, size), (second, second_size), *others = areas
    half = size // PAGE // 2 * PAGE
    assert not libc.munmap(first + half, PAGE)
    # A place to which it is moved for certain, and not extended in place.
    target = libc.mmap(None, second_size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    moved = libc.mremap(second, second_size, second_size, MAYMOVE | FIXED, target)
    assert moved == target, os.strerror(ctypes.get_errno())
    return [(first, half), (first + half + PAGE, size - half - PAGE), (moved, second_size), *others]


def in_child(work):
    """Starts a child process that runs `work()` when it is told to; returns a function that tells it to, and waits for it."""
    start, go = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(go)
            assert os.read(start, 1)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(start)

    def finish():
        os.write(go, b"x")
        os.close(go)
        _, status = os.waitpid(child, 0)
        assert status == 0, signal.strsignal(status) if os.WIFSIGNALED(status) else status
    return finish


def test_outlive_the_queue(names):
    """Mappings that were divided, moved and inherited allocate pages also when the queue pairs are gone."""
    ctx = Context(name=names[0])
    objects = queues(ctx, 300, 2)
    areas = rearranged([(ring.address, ring.size) for ring in rings.mapped() if ring.size > 4 * PAGE])
    assert len(areas) == 5, areas
    # librxe unmaps queues when they are destroyed, at the addresses that it knows; the children have them still.
    ends = [in_child(lambda: overwrite(areas, 0x11)), in_child(lambda: overwrite(areas, 0x22))]
    for qp in objects[2:]:
        qp.close()
    for finish in ends:
        finish()


def test_replace_memory(names):
    """A queue that is mapped over memory of the process has its own pages there from the first access on."""
    ctx = Context(name=names[0])
    objects = queues(ctx, 300, 1)
    ring = max(rings.mapped(), key=lambda ring: ring.size)
    size, rest = ring.size, ring.size - PAGE
    both = mmap.PROT_READ | mmap.PROT_WRITE
    assert rings.LIBC.mmap(FAR, size, both, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, -1, 0) == FAR
    ctypes.memset(FAR, 0x66, size)
    assert rings.LIBC.mmap(FAR, size, both, mmap.MAP_SHARED | MAP_FIXED, ctx.cmd_fd, ring.offset) == FAR
    assert ctypes.string_at(FAR + PAGE, rest) == bytes(rest)
    ctypes.memset(FAR + PAGE, 0x77, rest)
    assert ctypes.string_at(ring.address + PAGE, rest) == b"\x77" * rest
    del objects


@case(timeout=120)
def test_outlive_the_module(names):
    """A process, and another one that has inherited its mappings, write to all pages of their queues after the module was unloaded."""
    ctx = Context(name=names[0])
    objects = queues(ctx, 300, 3)
    areas = [(ring.address, ring.size) for ring in rings.mapped() if ring.size > 4 * PAGE]
    assert len(areas) == 6
    # Pages that a process has accessed are kept.
    ctypes.memset(areas[2][0] + 2 * PAGE, 0x33, PAGE)
    areas = rearranged(areas)
    finish = in_child(lambda: overwrite(areas, 0x44))
    host.shell("no_links")
    try:
        kept = areas[3][0] + 2 * PAGE
        assert ctypes.string_at(kept, PAGE) == b"\x33" * PAGE
        assert ctypes.string_at(kept + PAGE, PAGE) == bytes(PAGE)
        for address, size in areas:
            ctypes.memset(address, 0x55, size)
            assert present(address, size) == size // PAGE
        finish()
    finally:
        host.shell("links")
    del objects
