# SPDX-License-Identifier: GPL-2.0
"""Memory that a process can map and the kernel cannot read, through pyverbs: all queue pairs in one process.

Only requests that access the memory fail; another pair of queue pairs carries data before, in between and afterwards.
"""
import ctypes
import errno
import glob
import os
import resource
import select
import signal
import struct

from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

from lib import host, keys, segments
from lib.case import skip
from lib.counters import counter
from lib.debug_messages import refusal_logged
from lib.ends import ACCESS, in_thread, pair, pattern
from lib.keys import PAGE, TRANS, rereg, rereg_refused
from lib.kmemory import load
from lib.memory import MEMFD_SECRET, provide
from lib.odp import ON_DEMAND, FIXED, FLUSH, PREFETCH, PREFETCH_WRITE, RW, SHARED, Area, advise, libc, ok

DEFAULTS = dict(needs="kmemory", driver="rxe_rs", reason="rdma_rxe has no segments")
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
LOCAL, REMOTE = e.IBV_WC_LOC_PROT_ERR, e.IBV_WC_REM_ACCESS_ERR
HWPOISON = 100
HIDE, MOVE, LOSE = (ord("k") << 8 | n for n in (1, 2, 3))
# Eight attempts of a second each.
PATIENT = dict(retries=7, timeout=18)
PAGES = 4
SIZE = PAGES * PAGE


def beforehand():
    load()


def mapped(fd, length=SIZE, offset=0, at=None, protection=RW):
    addr = libc.mmap(at, length, protection, SHARED | (FIXED if at else 0), fd, offset)
    if addr == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return addr


def secret_file(size=SIZE):
    fd = libc.syscall(MEMFD_SECRET, 0)
    if fd < 0:
        skip("this kernel has no memfd_secret")
    os.ftruncate(fd, size)
    return fd


def kmemory(request, addr):
    """Calls /dev/kmemory. What HIDE does lasts until the returned file is closed; what MOVE and LOSE do does not depend on that file."""
    device = open("/dev/kmemory", "rb")
    if libc.ioctl(device.fileno(), request, addr):
        number = ctypes.get_errno()
        if number == errno.EOPNOTSUPP:
            skip("this kernel does not support such memory")
        raise OSError(number, os.strerror(number))
    return device


def unreadable(names):
    """Returns the counter unreadable_memory of each device."""
    return [counter(name, "unreadable_memory") for name in (names[0], names[2])]


class Bystander:
    """Two queue pairs that are not involved."""

    def __init__(self, names):
        self.ends = pair(names)
        self.seed = 0

    def check(self):
        a, b = self.ends
        self.seed += 1
        assert keys.write(a, b.mr.buf, b.mr.rkey, 5000, seed=self.seed) == b.mr.read(5000, 0)


def refused(what, *arguments):
    """The driver must refuse a call with EFAULT, and log that."""
    with refusal_logged(errno.EFAULT, "reg_user_mr|mr_add"):
        try:
            what(*arguments)
        except (PyverbsRDMAError, segments.Refused) as error:
            number = error.number if isinstance(error, segments.Refused) else error.error_code
            assert number == errno.EFAULT, f"{what.__name__}: {error}"
        else:
            raise AssertionError(f"{what.__name__} succeeded")


def region(end, addr, length=SIZE, access=ON_DEMAND):
    return MR(end.pd, length, access, address=addr)


def accesses(names, addr, make=region):
    """All accesses to the page at `addr`, each by a pair of its own and through a region from `make`, must fail."""
    def post(end, opcode, *sges, remote=None, atomic=False):
        wr = SendWR(wr_id=5, num_sge=len(sges), sg=list(sges), opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        if atomic:
            wr.set_wr_atomic(remote[1], remote[0], 1, 2)
        elif remote:
            wr.set_wr_rdma(remote[1], remote[0])
        end.qp.post_send(wr)

    # Memory of the requester.
    for opcode in (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
        a, b = pair(names)
        mr = make(a, addr)
        b.recv(b.sge())
        atomic = opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD
        remote = None if opcode == e.IBV_WR_SEND else (b.mr.buf, b.mr.rkey)
        post(a, opcode, SGE(addr, 8 if atomic else 1000, mr.lkey), remote=remote, atomic=atomic)
        a.complete(LOCAL)
        mr.close()
    # One SGE of several, after readable ones.
    a, b = pair(names)
    mr = make(a, addr)
    b.recv(b.sge())
    post(a, e.IBV_WR_SEND, a.sge(3000), SGE(addr + 77, 300, mr.lkey), a.sge(10))
    a.complete(LOCAL)
    mr.close()
    # Memory of the responder.
    for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP):
        a, b = pair(names)
        mr = make(b, addr)
        atomic = opcode in (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP)
        post(a, opcode, a.sge(8 if atomic else 1000), remote=(addr, mr.rkey), atomic=atomic)
        a.complete(REMOTE)
        mr.close()
    a, b = pair(names)
    mr = make(b, addr)
    b.recv(SGE(addr, 1000, mr.lkey))
    a.post(e.IBV_WR_SEND, a.sge(1000))
    b.complete(LOCAL)
    a.complete(e.IBV_WC_REM_OP_ERR)
    mr.close()
    # On UC, the send completes in error.
    a, b = pair(names, qp_type=e.IBV_QPT_UC)
    mr = make(a, addr)
    post(a, e.IBV_WR_SEND, SGE(addr, 1000, mr.lkey))
    a.complete(LOCAL)
    mr.close()


def check_not_pinned(names, addr, size=SIZE):
    """All calls that pin the memory fail, including those that add it to a region or replace other memory, which stays accessible."""
    a, b = pair(names)
    refused(region, b, addr, size, ACCESS)
    refused(region, b, addr, size, e.IBV_ACCESS_REMOTE_READ)
    spare = Area(2 * size)
    mr = region(b, spare.addr, size, ACCESS)
    refused(segments.add, b, mr, addr, size, spare.addr + size)
    rereg_refused(errno.EFAULT, mr, b, TRANS, addr=addr, length=size)
    assert keys.write(a, spare.addr, mr.rkey, 1000) == spare.get(1000)
    mr.close()


def check_on_demand(names, addr, size=SIZE):
    """On-demand paging, prefetching, and replacing other memory with on-demand paging: registration succeeds, and accesses fail."""
    a, b = pair(names)
    mr = region(b, addr, size)
    for advice in (PREFETCH, PREFETCH_WRITE):
        assert advise(b, advice, FLUSH, (addr, size, mr.lkey)) == errno.EFAULT
        assert advise(b, advice, 0, (addr, size, mr.lkey)) == 0
    mr.close()
    spare = Area(size)
    mr = region(b, spare.addr, size)
    assert rereg(mr, b, TRANS, addr=addr, length=size) == 0
    keys.read(a, addr, mr.rkey, 100, REMOTE)
    mr.close()
    accesses(names, addr, lambda end, at: region(end, at, size))


def test_secret(names):
    """memfd_secret(2), which unprivileged processes may use: pages that the kernel has not mapped."""
    others = Bystander(names)
    addr = mapped(secret_file())
    ctypes.memset(addr, 7, SIZE)
    check_not_pinned(names, addr)
    others.check()
    check_on_demand(names, addr)
    others.check()
    # A secret page between ordinary ones: only accesses to that page fail.
    area = Area(3 * PAGE)
    mapped(secret_file(), PAGE, at=area.addr + PAGE)
    ctypes.memset(area.addr + PAGE, 7, PAGE)
    a, b = pair(names)
    mr = region(b, area.addr, 3 * PAGE)
    assert keys.write(a, area.addr, mr.rkey, PAGE) == ctypes.string_at(area.addr, PAGE)
    assert keys.write(a, area.addr + 2 * PAGE, mr.rkey, PAGE) == ctypes.string_at(area.addr + 2 * PAGE, PAGE)
    keys.write(a, area.addr + PAGE - 8, mr.rkey, 16, REMOTE)
    assert ctypes.string_at(area.addr + PAGE, PAGE) == bytes([7]) * PAGE
    # A secret page is mapped over a page that has been accessed.
    area = Area(PAGE)
    a, b = pair(names)
    mr = region(b, area.addr, PAGE)
    keys.write(a, area.addr, mr.rkey, 64)
    mapped(secret_file(), PAGE, at=area.addr)
    ctypes.memset(area.addr, 7, PAGE)
    keys.write(a, area.addr, mr.rkey, 64, REMOTE)
    assert ctypes.string_at(area.addr, PAGE) == bytes([7]) * PAGE
    others.check()


def test_secret_remapped(names):
    """An unprivileged process maps secret and ordinary memory over each other in a thread: accesses succeed or fail, nothing else."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 30, 1 << 30))
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    others = Bystander(names)
    area = Area(SIZE)
    file = secret_file()
    fds = [file, area.fd]

    def remap(stop):
        iteration = 0
        while not stop.is_set():
            mapped(fds[iteration % 2], at=area.addr)
            ctypes.memset(area.addr, iteration & 255, SIZE)
            iteration += 1

    # An access fails again as long as the pages are remapped between the page fault and the next attempt, which a busy host delays.
    a, b = pair(names, **PATIENT)
    mr = region(b, area.addr)
    with in_thread(remap):
        for n in range(60):
            a.post(e.IBV_WR_RDMA_WRITE if n % 2 else e.IBV_WR_RDMA_READ, a.sge(SIZE), remote=(area.addr, mr.rkey))
            while True:
                count, wcs = a.cq.poll(1)
                if count:
                    break
            assert wcs[0].status in (e.IBV_WC_SUCCESS, REMOTE), wcs[0].status
            if wcs[0].status != e.IBV_WC_SUCCESS:
                mr.close()
                a, b = pair(names, **PATIENT)
                mr = region(b, area.addr)
    others.check()


def test_page_frames(names):
    """A PFN mapping (VM_PFNMAP) of RAM, and an ordinary page that a driver has inserted into a mapping."""
    others = Bystander(names)
    with open("/dev/kmemory", "rb+", buffering=0) as device:
        frames, page = mapped(device.fileno(), PAGE), mapped(device.fileno(), PAGE, offset=PAGE)
        a, b = pair(names)
        for access in (ACCESS, ON_DEMAND):
            mr = region(b, page, PAGE, access)
            assert keys.write(a, page, mr.rkey, 1000, seed=3) == ctypes.string_at(page, 1000)
            mr.close()
        check_not_pinned(names, frames, PAGE)
        check_on_demand(names, frames, PAGE)
    others.check()


def test_device_registers(names):
    """A PFN mapping of a PCI device, which is no RAM."""
    for path in glob.glob("/sys/bus/pci/devices/*/resource[0-9]"):
        try:
            with open(path, "rb+", buffering=0) as file:
                addr = mapped(file.fileno(), PAGE)
        except OSError:
            continue
        others = Bystander(names)
        check_not_pinned(names, addr, PAGE)
        check_on_demand(names, addr, PAGE)
        others.check()
        return
    skip("there is no PCI device that can be mapped")


def test_device_private(names):
    """Device-private pages: accesses migrate them back to RAM, or fail if that fails."""
    others = Bystander(names)
    for access in (ACCESS, ON_DEMAND):
        a, b = pair(names)
        addr = Area(PAGE, anonymous=True).addr
        ctypes.memmove(addr, pattern(PAGE, 5), PAGE)
        device = kmemory(MOVE, addr)
        mr = region(b, addr, PAGE, access)
        assert keys.read(a, addr, mr.rkey, PAGE) == pattern(PAGE, 5)
        if access == ON_DEMAND:
            # The page is migrated after the device has accessed it.
            again = kmemory(MOVE, addr)
            assert keys.read(a, addr, mr.rkey, PAGE) == pattern(PAGE, 5)
            again.close()
        mr.close()
        device.close()
        assert ctypes.string_at(addr, PAGE) == pattern(PAGE, 5)
    area = Area(PAGE, anonymous=True)
    ctypes.memset(area.addr, 7, PAGE)
    with kmemory(LOSE, area.addr):
        check_not_pinned(names, area.addr, PAGE)
        check_on_demand(names, area.addr, PAGE)
        area.unmap()
    others.check()


def poison(addr):
    # The process gets the signal of a process that has consumed corrupted data.
    signal.signal(signal.SIGBUS, lambda *_: None)
    if libc.madvise(addr, PAGE, HWPOISON):
        skip(f"this kernel poisons no memory: {os.strerror(ctypes.get_errno())}")


def test_poisoned(names):
    """A page that was hardware-poisoned before registration."""
    others = Bystander(names)
    for anonymous in (True, False):
        area = Area(SIZE, anonymous)
        ctypes.memset(area.addr, 7, SIZE)
        poison(area.addr)
        check_not_pinned(names, area.addr)
        check_on_demand(names, area.addr)
        others.check()


def test_poisoned_afterwards(names):
    """A page that is poisoned after it was pinned or faulted in: a pinned page stays in the region, and other pages are not affected."""
    others = Bystander(names)
    # The page is not really corrupted, so that it can still be accessed if it is pinned, except on arm64, where a page that is known to be
    # damaged is not accessed.
    pinned = REMOTE if os.uname().machine == "aarch64" else e.IBV_WC_SUCCESS
    for access, status in ((ACCESS, pinned), (ON_DEMAND, REMOTE)):
        a, b = pair(names)
        area = Area(SIZE, anonymous=True)
        ctypes.memset(area.addr, 7, SIZE)
        mr = region(b, area.addr, access=access)
        keys.write(a, area.addr, mr.rkey, SIZE)
        poison(area.addr + PAGE)
        assert keys.write(a, area.addr, mr.rkey, PAGE, seed=9) == ctypes.string_at(area.addr, PAGE)
        keys.write(a, area.addr + PAGE, mr.rkey, 100, status)
        mr.close()
        others.check()


def test_hidden_pinned(names):
    """A pinned page is removed from the linear map, as after a machine check: only accesses to that page fail."""
    others = Bystander(names)
    area = Area(SIZE, anonymous=True)
    ctypes.memset(area.addr, 7, SIZE)
    hidden = []

    def make(end, addr):
        mr = region(end, addr, access=ACCESS)
        if not hidden:
            hidden.append(kmemory(HIDE, addr))
        return mr

    before = unreadable(names)
    accesses(names, area.addr, make)
    # Five requests access the memory of each device, and retries count again. Other accesses are not counted.
    counted = unreadable(names)
    found = [now - then for now, then in zip(counted, before)]
    assert all(5 <= n <= 10 for n in found), f"unreadable_memory grew by {found}"
    others.check()
    assert unreadable(names) == counted
    # Adjacent pages can be accessed up to their ends.
    hidden.pop().close()
    a, b = pair(names)
    mr = region(b, area.addr, access=ACCESS)
    with kmemory(HIDE, area.addr + PAGE):
        for at, length in ((0, PAGE), (PAGE - 3, 3), (2 * PAGE, 2 * PAGE), (PAGE - 500, 500)):
            data = keys.write(a, area.addr + at, mr.rkey, length, seed=at)
            assert ctypes.string_at(area.addr + at, length) == data
            assert keys.read(a, area.addr + at, mr.rkey, length) == data
        keys.write(a, area.addr + PAGE - 1, mr.rkey, 2, REMOTE)
        for at, length in ((PAGE - 500, 501), (2 * PAGE - 1, 1), (2 * PAGE - 7, 1000), (0, SIZE)):
            mr.close()
            a, b = pair(names)
            mr = region(b, area.addr, access=ACCESS)
            keys.read(a, area.addr + at, mr.rkey, length, REMOTE)
    mr.close()
    a, b = pair(names)
    mr = region(b, area.addr, access=ACCESS)
    assert keys.write(a, area.addr, mr.rkey, SIZE) == ctypes.string_at(area.addr, SIZE)
    others.check()


def test_hidden_on_demand(names):
    """The same with on-demand paging, for a page that was faulted in before it is removed, and for one that was not."""
    others = Bystander(names)
    area = Area(SIZE)
    ctypes.memset(area.addr, 7, SIZE)
    a, b = pair(names)
    mr = region(b, area.addr)
    keys.write(a, area.addr, mr.rkey, SIZE)
    with kmemory(HIDE, area.addr + PAGE):
        assert keys.write(a, area.addr, mr.rkey, PAGE, seed=4) == ctypes.string_at(area.addr, PAGE)
        keys.write(a, area.addr + PAGE, mr.rkey, 8, REMOTE)
        mr.close()
        assert advise(b, PREFETCH, FLUSH, (b.mr.buf, 8, b.mr.lkey)) == errno.EFAULT
    with kmemory(HIDE, area.addr):
        check_on_demand(names, area.addr)
    others.check()


def test_hidden_segment(names):
    """The same in an added segment; other segments stay accessible."""
    others = Bystander(names)
    area = Area(2 * SIZE, anonymous=True)
    ctypes.memset(area.addr, 7, 2 * SIZE)

    def make(end):
        mr = region(end, area.addr, access=ACCESS)
        segments.add(end, mr, area.addr + SIZE, SIZE)
        return mr

    a, b = pair(names)
    mr = make(b)
    with kmemory(HIDE, area.addr + SIZE):
        assert keys.write(a, area.addr, mr.rkey, SIZE) == ctypes.string_at(area.addr, SIZE)
        keys.write(a, area.addr + SIZE - 100, mr.rkey, 200, REMOTE)
        mr.close()
        a, b = pair(names)
        mr = make(b)
        keys.read(a, area.addr + SIZE - 100, mr.rkey, 200, REMOTE)
        mr.close()
    others.check()


def test_userfaultfd(names):
    """Page faults that the process resolves (userfaultfd): requests wait until it does, and other connections continue."""
    others = Bystander(names)
    area = Area(SIZE, anonymous=True)
    fd = provide(area)
    source = Area(PAGE, anonymous=True)
    ctypes.memmove(source.addr, pattern(PAGE, 8), PAGE)

    def resolve(page):
        """Waits for the page fault of that page and resolves it."""
        assert select.select([fd], [], [], 10)[0], "no page fault for the page"
        event, _, _, _, _, address, _, _ = struct.unpack("=BBHIQQII", os.read(fd, 32))
        assert (event, address & ~(PAGE - 1)) == (0x12, area.addr + page * PAGE), (event, hex(address))
        a.no_completion(0.1)
        copy = (ctypes.c_uint64 * 5)(area.addr + page * PAGE, source.addr, PAGE, 0, 0)
        ok(libc.ioctl(fd, 3 << 30 | 40 << 16 | 0xAA << 8 | 3, copy))

    a, b = pair(names)
    # A page fault of the requester.
    mr = region(a, area.addr)
    b.recv(b.sge())
    a.post(e.IBV_WR_SEND, SGE(area.addr, PAGE, mr.lkey))
    others.check()
    resolve(0)
    a.complete()
    b.complete()
    assert b.mr.read(PAGE, 0) == pattern(PAGE, 8)
    mr.close()
    # A page fault of the responder.
    mr = region(b, area.addr)
    a.post(e.IBV_WR_RDMA_READ, a.sge(PAGE), remote=(area.addr + PAGE, mr.rkey))
    resolve(1)
    a.complete()
    assert a.mr.read(PAGE, 0) == pattern(PAGE, 8)
    mr.close()
    # A page fault that is not resolved: closing the userfaultfd ends the wait.
    mr = region(a, area.addr)
    a.post(e.IBV_WR_SEND, SGE(area.addr + 2 * PAGE, 100, mr.lkey))
    assert select.select([fd], [], [], 10)[0], "no page fault for the page"
    b.recv(b.sge())
    os.close(fd)
    a.complete()
    mr.close()
    others.check()
