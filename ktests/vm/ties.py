# SPDX-License-Identifier: GPL-2.0
"""Regions that end with a queue pair (uapi/rxe_rs.h), through pyverbs: both sides in one process.

In all of them b has the memory, tied to one of its queue pairs, and a uses it, through that one
and through another.
"""
import errno
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
from lib.ends import ACCESS, End, happens, pair, soon
from lib.keys import ACCESS_, BINDABLE, PAGE, READ, REFUSED, TRANS, WRITE, bind, page_buffer, rereg, write
from lib.segments import Refused, add, get, pinned, put, refused, remove
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
    """Two connections between a and b, and a region of b that is tied to the first one's queue pair."""

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
        """A request that b's queue pair cannot accept: it fails by itself."""
        write(self.a, 0, 0xDEAD00, status=REFUSED)

    def ended(self, late=False, key=None, buffer=None):
        """The region grants nothing, is not pinned, and has no use left but to be deregistered."""
        put(self.buffer, bytes(PAGES * PAGE))
        write(self.other_a, self.buffer, self.mr.rkey, 64, REFUSED)
        assert get(self.buffer, PAGES * PAGE) == bytes(PAGES * PAGE), "written after its queue pair had ended"
        assert happens(lambda: pinned() == self.before, 10 if late else 0), f"{pinned() - self.before} bytes pinned yet"
        refused(errno.ENOENT, add, self.b, self.mr, self.buffer, PAGE, self.buffer + 2 * PAGES * PAGE)
        refused(errno.ENOENT, remove, self.b, self.mr, start=self.buffer, length=PAGE)
        refused(errno.ENOENT, tie, self.b, self.mr, self.other_qp)
        for flags in (ACCESS_, TRANS):
            assert rereg(self.mr, self.b, flags, addr=self.buffer, length=PAGE, access=ACCESS) == errno.ENOENT
        # Nobody else gets the key before it is deregistered.
        spare = [MR(self.b.pd, PAGE, ACCESS) for _ in range(20)]
        assert self.mr.rkey >> 8 not in {mr.rkey >> 8 for mr in spare}
        self.mr.close()


def test_failed(names):
    """The queue pair fails in softirq."""
    scene = Scene(names)
    scene.fail()
    assert scene.b.state() == e.IBV_QPS_ERR
    scene.ended(late=True)


def test_modified(names):
    """A program takes it to the error state, or resets it: the memory is free when the call returns."""
    scenes = []
    for state in (e.IBV_QPS_ERR, e.IBV_QPS_RESET):
        scene = Scene(names)
        scenes.append(scene)    # What it has pinned stays so until all are over.
        scene.b.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)
        assert pinned() == scene.before
        scene.ended()


def test_destroyed(names):
    scene = Scene(names)
    untied = MR(scene.b.pd, PAGE, ACCESS)
    scene.before += PAGE
    scene.b.qp.close()
    assert pinned() == scene.before
    # What is not tied stays; the other connection is to fail last.
    write(scene.other_a, untied.buf, untied.rkey)
    scene.ended()


def test_again(names):
    """A queue pair that is used once more after a reset has no regions of its former life, and can have new ones."""
    scene = Scene(names)
    scene.b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    scene.a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    new = MR(scene.b.pd, PAGE, ACCESS)
    tie(scene.b, new, scene.qp)
    # To reset what has been reset ends nothing.
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
    """A window opens nothing any more when its region has ended; as ever the region is deregistered after it."""
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
    soon(lambda: pinned() == scene.before, 10, "pages are pinned yet")
    try:
        scene.mr.close()
        raise AssertionError("deregistered under a window")
    except PyverbsError:
        pass
    mw.close()
    scene.mr.close()


def test_changed(names):
    """What is added to a tied region ends with it; neither removing nor registering anew unties it; a region on demand ends like others."""
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
    """Bad arguments, each with its error; the region is not tied then."""
    scene = Scene(names, tied=False)
    b, mr, qp = scene.b, scene.mr, scene.qp
    fd = b.ctx.cmd_fd
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey ^ 1, qp)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, b.mr.rkey, qp)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, qp, flags=1)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, qp, reserved=1)
    refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, qp, size=12)
    refused(errno.EOPNOTSUPP, tie_handles, fd, mr.handle, mr.rkey, qp, more=b"\1")
    for handle in (b.pd.handle, mr.handle):
        refused(errno.EINVAL, tie_handles, fd, mr.handle, mr.rkey, handle)
    for handle in (12345, 0xFFFFFFFF, 1 << 40):
        refused(errno.ENOENT, tie_handles, fd, mr.handle, mr.rkey, handle)
    for handle in (qp, b.pd.handle):
        refused(errno.EINVAL, tie_handles, fd, handle, mr.rkey, qp)
    for handle in (12345, 0xFFFFFFFF):
        refused(errno.ENOENT, tie_handles, fd, handle, mr.rkey, qp)
    # Neither a stranger's region nor a stranger's queue pair.
    strange = End(names[2], int(names[3]))
    try:
        tie_handles(strange.ctx.cmd_fd, mr.handle, mr.rkey, qp)
        raise AssertionError("a stranger tied the region")
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
    assert get(scene.buffer, PAGE) == data, "ended though it was not tied"
    # Once, and more bytes that are 0.
    tie_handles(fd, mr.handle, mr.rkey, scene.other_qp, more=bytes(8))
    refused(errno.EEXIST, tie, b, mr, scene.other_qp)
    scene.other_b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert pinned() == scene.before
    refused(errno.ENOENT, tie, b, mr, scene.other_qp)
    mr.close()


def test_many(names):
    """Hundreds of regions of one queue pair, some of them deregistered before it ends, in any order."""
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
    soon(lambda: pinned() == scene.before, 10, "pages are pinned yet")
    for mr in regions:
        mr.close()
    scene.mr.close()


def test_race(names):
    """The queue pair fails while threads change, tie and deregister its regions: none of them keeps memory, and none is left usable."""
    scenes = []
    for turn in range(4):
        scene = Scene(names)
        scenes.append(scene)    # What it has pinned stays so until all are over.
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

        def come_and_go():
            try:
                while not stop.is_set():
                    mr = MR(scene.b.pd, PAGE, ACCESS)
                    tie(scene.b, mr, scene.qp)
                    mr.close()
            except Refused as error:
                mr.close()
                # The queue pair has failed, or did while the region was being tied.
                if error.number not in (errno.EINVAL, errno.ENOENT):
                    failures.append(error)

        threads = [threading.Thread(target=target) for target in (change, come_and_go)]
        for thread in threads:
            thread.start()
        time.sleep(0.05 * turn)
        scene.fail()
        for thread in threads:
            thread.join(20)
        stop.set()
        assert not failures and not any(thread.is_alive() for thread in threads), failures
        scene.ended(late=True)


def test_killed(names):
    """The process that has the region is killed: its peer gets nowhere, nothing is left behind (the caller looks)."""
    # The child is b, and tells by a pipe.
    ours, theirs = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        scene = Scene(names)
        os.write(ours[1], struct.pack("=QI", scene.buffer, scene.mr.rkey))
        os.read(theirs[0], 1)
        os._exit(1)
    os.close(ours[1])
    assert len(os.read(ours[0], 12)) == 12, "the process that was to be killed has failed"
    os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    assert status == 9, status


class CmBranch(Branch):
    """A queue pair beside that of a connection, in its protection domain."""

    def __init__(self, side, gid_index):
        self.ctx, self.pd, self.mr, self.size, self.gid_index = side.id.context, side.id.pd, side.mr, PAGE, gid_index
        super().__init__(self)


def test_disconnected(names):
    """A connection of the connection manager ends: by its owner, or by the peer, which the owner hears of and follows."""
    sides, known = [], {None, 0}
    for first in (0, 1):
        client, server = cm.asked(cm.Side.known_queue_pair, resources=8, depth=8)
        server.id.accept(ConnParam(resources=8, depth=8))
        client.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
        server.wait(ce.RDMA_CM_EVENT_ESTABLISHED)
        a, b = End(names[0], int(names[1])), CmBranch(server, int(names[3]))
        sides.append((a, b, client, server))
        a.connect(b, 27, 29)
        b.connect(a, 29, 27)
        before = pinned()
        mr = MR(b.pd, PAGE, ACCESS)
        # The one queue pair of its context that has a peer, besides those made before, and the one just made.
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
