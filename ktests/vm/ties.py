# SPDX-License-Identifier: GPL-2.0
"""Tied regions, which end with a queue pair (uapi/rxe_rs.h), through pyverbs: both sides in one process.

In all tests b has the memory, tied to one of its queue pairs, and a accesses it through that queue pair and another one.
"""
import contextlib
import ctypes
import errno
import mmap
import os
import random
import struct
import threading
import time

from pyverbs.cmid import ConnParam
from pyverbs.cq import CQ
from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
import pyverbs.cm_enums as ce
import pyverbs.enums as e

from lib import cm
from lib.case import case
from lib.child_process import child_process
from lib.ends import ACCESS, End, Remote, happens, pair, soon
from lib.keys import ACCESS_, BINDABLE, PAGE, READ, REFUSED, TRANS, WRITE, bind, page_buffer, rereg, rereg_refused, write
from lib.segments import Refused, add, get, pages_pinned, pinned, put, refused, refused_by_core, remove
from lib.ties import handle_of, peer_of, tie_handles

DEFAULTS = dict(driver="rxe_rs", reason="rdma_rxe has no such methods")
PAGES = 8


class Branch(End):
    """One more queue pair of an end, with a completion queue of its own."""

    def __init__(self, end):
        self.ctx, self.gid_index, self.pd, self.mr, self.size = end.ctx, end.gid_index, end.pd, end.mr, end.size
        self.cq = CQ(self.ctx, 256)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=4, max_recv_sge=4)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))


def branches(a, b):
    more = Branch(a), Branch(b)
    more[0].connect(more[1], 70, 90)
    more[1].connect(more[0], 90, 70)
    return more


def tie(end, mr, qp):
    tie_handles(end.ctx.cmd_fd, mr.handle, mr.rkey, qp)


class Scene:
    """Two connections between a and b, and a region of b that is tied to the queue pair of the first one."""

    def __init__(self, names, access=ACCESS, tied=True):
        self.a, self.b = pair(names, timeout=14)
        self.other_a, self.other_b = branches(self.a, self.b)
        self.buffer = page_buffer(4 * PAGES)
        self.qp = handle_of(self.b, self.a)
        self.other_qp = handle_of(self.other_b, self.other_a)
        self.before = pinned()
        self.mr = MR(self.b.pd, PAGES * PAGE, access, address=self.buffer)
        if tied:
            tie(self.b, self.mr, self.qp)
            for end in (self.a, self.other_a):
                data = write(end, self.buffer, self.mr.rkey, PAGES * PAGE, seed=end.qp.qp_num & 0xFF)
                assert get(self.buffer, PAGES * PAGE) == data
            assert pinned() == self.before + PAGES * PAGE

    def fail(self):
        """Sends a request with an invalid R_Key, on which b's queue pair enters the error state."""
        write(self.a, 0, 0xDEAD00, status=REFUSED)

    def ended(self, late=False, key=None, buffer=None):
        """Checks that the region permits no access, is not pinned, and that all calls but deregistration fail."""
        put(self.buffer, bytes(PAGES * PAGE))
        write(self.other_a, self.buffer, self.mr.rkey, 64, REFUSED)
        assert get(self.buffer, PAGES * PAGE) == bytes(PAGES * PAGE), "memory was written after the queue pair had ended"
        assert happens(lambda: pinned() == self.before, 10 if late else 0), f"{pinned() - self.before} bytes still pinned"
        refused(errno.ENOENT, add, self.b, self.mr, self.buffer, PAGE, self.buffer + 2 * PAGES * PAGE)
        refused(errno.ENOENT, remove, self.b, self.mr, start=self.buffer, length=PAGE)
        refused(errno.ENOENT, tie, self.b, self.mr, self.other_qp)
        for flags in (ACCESS_, TRANS):
            rereg_refused(errno.ENOENT, self.mr, self.b, flags, addr=self.buffer, length=PAGE, access=ACCESS)
        # The key is not reused before the region is deregistered.
        spare = [MR(self.b.pd, PAGE, ACCESS) for _ in range(20)]
        assert self.mr.rkey >> 8 not in {mr.rkey >> 8 for mr in spare}
        self.mr.close()


def test_failed(names):
    """The queue pair enters the error state in softirq."""
    scene = Scene(names)
    scene.fail()
    assert scene.b.state() == e.IBV_QPS_ERR
    scene.ended(late=True)


def test_modified(names):
    """A process modifies it to ERR or RESET: the memory is unpinned when the call returns."""
    scenes = []
    for state in (e.IBV_QPS_ERR, e.IBV_QPS_RESET):
        scene = Scene(names)
        scenes.append(scene)    # Keep its pinned memory until the end of the test.
        scene.b.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)
        assert pinned() == scene.before
        scene.ended()


def test_destroyed(names):
    """The queue pair is destroyed: its tied region ends, and an untied one does not."""
    scene = Scene(names)
    untied = MR(scene.b.pd, PAGE, ACCESS)
    scene.before += PAGE
    scene.b.qp.close()
    assert pinned() == scene.before
    # The untied region can be accessed. The check below fails the connection, so it is the last one.
    write(scene.other_a, untied.buf, untied.rkey)
    scene.ended()


def test_after_reset(names):
    """A queue pair that is used again after a reset has no tied regions, and can have new ones."""
    scene = Scene(names)
    scene.b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    scene.a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    new = MR(scene.b.pd, PAGE, ACCESS)
    tie(scene.b, new, scene.qp)
    # Resetting a queue pair in RESET does not end its regions.
    scene.b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    scene.a.connect(scene.b, 17, 19)
    scene.b.connect(scene.a, 19, 17)
    data = write(scene.a, new.buf, new.rkey, PAGE, seed=7)
    assert new.read(PAGE, 0) == data
    scene.b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert pinned() == scene.before
    new.close()
    scene.ended()


def test_windows(names):
    """A window permits no access after its region has ended; the region can be deregistered only after the window, as always."""
    scene = Scene(names, access=ACCESS | BINDABLE)
    mw = MW(scene.b.pd, e.IBV_MW_TYPE_2)
    key = bind(scene.other_b, mw, 0, 2 * PAGE, WRITE | READ, scene.mr)
    scene.other_b.complete()
    data = write(scene.other_a, scene.buffer, key, 2 * PAGE, seed=8)
    assert get(scene.buffer, 2 * PAGE) == data
    scene.fail()
    put(scene.buffer, bytes(PAGE))
    write(scene.other_a, scene.buffer, key, 64, REFUSED)
    assert get(scene.buffer, PAGE) == bytes(PAGE)
    soon(lambda: pinned() == scene.before, 10, "pages are still pinned")
    try:
        scene.mr.close()
        raise AssertionError("the region was deregistered with a window bound to it")
    except PyverbsError:
        pass
    mw.close()
    scene.mr.close()


def test_segments(names):
    """Segments of a tied region end with it; removal and REREG_MR do not untie it; a region with on-demand paging ends, too."""
    scene = Scene(names)
    far = scene.buffer + 2 * PAGES * PAGE
    add(scene.b, scene.mr, far, PAGE)
    remove(scene.b, scene.mr, start=scene.buffer + PAGE, length=PAGE)
    write(scene.other_a, far, scene.mr.rkey)
    assert rereg(scene.mr, scene.b, TRANS, addr=scene.buffer, length=PAGES * PAGE, iova=scene.buffer) == 0
    add(scene.b, scene.mr, far, PAGE)
    demand = MR(scene.b.pd, PAGE, ACCESS | e.IBV_ACCESS_ON_DEMAND)
    tie(scene.b, demand, scene.qp)
    write(scene.a, demand.buf, demand.rkey)
    scene.b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    third_a, _ = branches(scene.a, scene.b)
    write(third_a, demand.buf, demand.rkey, status=REFUSED)
    fourth_a, _ = branches(scene.a, scene.b)
    write(fourth_a, far, scene.mr.rkey, status=REFUSED)
    demand.close()
    scene.ended()


def test_refusals(names):
    """Invalid arguments fail with the right error and do not tie the region."""
    scene = Scene(names, tied=False)
    b, mr, qp = scene.b, scene.mr, scene.qp
    fd = b.ctx.cmd_fd
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey ^ 1, qp)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, b.mr.rkey, qp)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, qp, flags=1)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, qp, reserved=1)
    refused_by_core(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, qp, size=12)
    refused_by_core(errno.EOPNOTSUPP, tie_handles, fd, mr.handle, mr.rkey, qp, more=b"\1")
    for handle in (b.pd.handle, mr.handle):
        refused_by_core(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, handle)
    for handle in (12345, 0xFFFFFFFF, 1 << 40):
        refused_by_core(errno.ENOENT, tie_handles, fd, mr.handle, mr.rkey, handle)
    for handle in (qp, b.pd.handle):
        refused_by_core(errno.EINVAL, tie_handles, fd, handle, mr.rkey, qp)
    for handle in (12345, 0xFFFFFFFF):
        refused_by_core(errno.ENOENT, tie_handles, fd, handle, mr.rkey, qp)
    # Region and queue pair of another context.
    strange = End(names[2], int(names[3]))
    try:
        tie_handles(strange.ctx.cmd_fd, mr.handle, mr.rkey, qp)
        raise AssertionError("another context has tied the region")
    except Refused as error:
        assert error.number in (errno.ENOENT, errno.EINVAL), error
    strange.mr.close()
    pd = PD(b.ctx)
    foreign = MR(pd, PAGE, ACCESS)
    refused(errno.EINVAL, tie, b, foreign, qp)
    foreign.close()
    scene.fail()
    refused(errno.EINVAL, tie, b, mr, qp)
    data = write(scene.other_a, scene.buffer, mr.rkey, PAGE, seed=4)
    assert get(scene.buffer, PAGE) == data, "the region ended although it was not tied"
    # The first call succeeds, with additional bytes that are 0; the second one fails.
    tie_handles(fd, mr.handle, mr.rkey, scene.other_qp, more=bytes(8))
    refused(errno.EEXIST, tie, b, mr, scene.other_qp)
    scene.other_b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert pinned() == scene.before
    refused(errno.ENOENT, tie, b, mr, scene.other_qp)
    mr.close()


def test_many(names):
    """Hundreds of regions tied to one queue pair, some of them deregistered, in random order, before it ends."""
    scene = Scene(names)
    rng = random.Random(scene.b.qp.qp_num)
    regions = [MR(scene.b.pd, PAGE, ACCESS, address=scene.buffer) for _ in range(300)]
    for mr in regions:
        tie(scene.b, mr, scene.qp)
    for _ in range(150):
        regions.pop(rng.randrange(len(regions))).close()
    for _ in range(20):
        mr = regions.pop(rng.randrange(len(regions)))
        remove(scene.b, mr, start=scene.buffer, length=PAGE)
        mr.close()
    assert pinned() == scene.before + (PAGES + len(regions)) * PAGE
    write(scene.other_a, scene.buffer, rng.choice(regions).rkey)
    scene.fail()
    write(scene.other_a, scene.buffer, rng.choice(regions).rkey, status=REFUSED)
    soon(lambda: pinned() == scene.before, 10, "pages are still pinned")
    for mr in regions:
        mr.close()
    scene.mr.close()


def test_race(names):
    """The queue pair fails while threads modify, tie and deregister its regions: none stays pinned or accessible."""
    scenes = []
    for iteration in range(4):
        scene = Scene(names)
        scenes.append(scene)    # Keep its pinned memory until the end of the test.
        far = scene.buffer + 2 * PAGES * PAGE
        failures, stop = [], threading.Event()

        def change():
            try:
                while not stop.is_set():
                    add(scene.b, scene.mr, far, PAGE)
                    remove(scene.b, scene.mr, start=far, length=PAGE)
            except Refused as error:
                if error.number != errno.ENOENT:
                    failures.append(error)
            except Exception as error:
                failures.append(error)

        def register_and_deregister():
            try:
                while not stop.is_set():
                    mr = MR(scene.b.pd, PAGE, ACCESS)
                    tie(scene.b, mr, scene.qp)
                    mr.close()
            except Refused as error:
                mr.close()
                # The queue pair failed before or while the region was tied.
                if error.number not in (errno.EINVAL, errno.ENOENT):
                    failures.append(error)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=target) for target in (change, register_and_deregister)]
        for thread in threads:
            thread.start()
        time.sleep(0.05 * iteration)
        scene.fail()
        for thread in threads:
            thread.join(20)
        stop.set()
        assert not failures and not any(thread.is_alive() for thread in threads), failures
        scene.ended(late=True)


def test_killed(names):
    """The process that has the region is killed: its memory is unpinned, a peer in another process has no access any more, and nothing is
    left (lib/run.py checks that). The peer gets no answer, because the queue pair of the region is gone as well."""
    a = End(names[0], int(names[1]))
    memory = mmap.mmap(-1, PAGES * PAGE)    # Shared with the child, so that the test sees what is written after its end.
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    before = pages_pinned()
    out, into = os.pipe()

    def own_region():
        b, peer = End(names[2], int(names[3])), Remote(names[0], names[1], a.qp.qp_num)
        b.connect(peer, 17, 19)
        mr = MR(b.pd, PAGES * PAGE, ACCESS, address=start)
        tie(b, mr, handle_of(b, peer))
        os.write(into, struct.pack("=II", b.qp.qp_num, mr.rkey))
        return b, peer, mr

    with child_process(own_region) as kill:
        qpn, rkey = struct.unpack("=II", os.read(out, 8))
        a.connect(Remote(names[2], names[3], qpn), 19, 17, timeout=14, retries=3)
        data = write(a, start, rkey, PAGES * PAGE, seed=5)
        assert memory[:] == data
        assert pages_pinned() >= before + PAGES
        kill()
    write(a, start, rkey, 64, e.IBV_WC_RETRY_EXC_ERR, seed=6)
    assert memory[:] == data, "memory was written after its process had ended"
    soon(lambda: pages_pinned() == before, 10, "pages are still pinned")


class CmBranch(Branch):
    """A queue pair in the protection domain of a connection by the connection manager."""

    def __init__(self, side, gid_index):
        self.ctx, self.pd, self.mr, self.size, self.gid_index = side.id.context, side.id.pd, side.mr, PAGE, gid_index
        super().__init__(self)


def test_disconnected(names):
    """A connection is disconnected by the owner of the region, or by its peer and then by the owner, after the event."""
    sides, known = [], {None, 0}
    for first in (0, 1):
        client, server = cm.requested(cm.Side.managed_queue_pair, resources=8, depth=8)
        server.id.accept(ConnParam(resources=8, depth=8))
        client.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
        server.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
        a, b = End(names[0], int(names[1])), CmBranch(server, int(names[3]))
        sides.append((a, b, client, server))
        a.connect(b, 27, 29)
        b.connect(a, 29, 27)
        before = pinned()
        mr = MR(b.pd, PAGE, ACCESS)
        # The queue pair of the connection is the only one with an unknown peer.
        known.add(a.qp.qp_num)
        peers = {handle: peer_of(b.ctx.cmd_fd, handle) for handle in range(256)}
        tie(b, mr, next(handle for handle, peer in peers.items() if peer not in known))
        known.update(peers.values())
        write(a, mr.buf, mr.rkey, 64)
        (server, client)[first].id.disconnect()
        if first:
            server.wait(ce.RDMA_CM_EVENT_DISCONNECTED)
            server.id.disconnect()
        data = mr.read(64, 0)
        write(a, mr.buf, mr.rkey, 64, REFUSED, seed=77)
        assert mr.read(64, 0) == data and pinned() == before, pinned() - before
        mr.close()


@case(timeout=120, cpus=2)
def test_deregistered_while_released(names):
    """A region is deregistered while a work item releases it, because its queue pair has failed: it is unpinned when the call returns."""
    ended_while_released(names, lambda end, mr: mr.close())


@case(timeout=120, cpus=2)
def test_reset_while_released(names):
    """The queue pair is reset meanwhile: the region is unpinned when the call returns."""
    def reset(end, mr):
        end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)

    ended_while_released(names, reset)


def ended_while_released(names, end_it):
    a, b = pair(names)
    size = 256 << 20
    buffer = page_buffer(size // PAGE)
    # Small pages, so that the release takes a while.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(buffer), ctypes.c_size_t(size), mmap.MADV_NOHUGEPAGE)
    before = pinned()
    # The peer does not answer.
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    for n in range(10):
        b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        b.connect(a, 0x000123, 0xFFFFFE, retries=0, timeout=12)
        mr = MR(b.pd, size, ACCESS, address=buffer)
        tie(b, mr, handle_of(b, a))
        assert pinned() == before + size
        # The timer expires, and the work item runs, on the processor of the post.
        os.sched_setaffinity(0, {0})
        b.post(e.IBV_WR_SEND, b.sge(64))
        os.sched_setaffinity(0, {1})
        while not b.cq.poll(1)[0]:
            pass
        # It begins then or a little later.
        for _ in range(5000 * n):
            pass
        end_it(b, mr)
        assert pinned() == before, f"{pinned() - before} bytes still pinned"
        mr.close()
