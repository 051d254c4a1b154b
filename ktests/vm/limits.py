# SPDX-License-Identifier: GPL-2.0
"""Memory that a process allocates through objects is charged to its cgroup; each kind of object has tests of its own.

A process in a cgroup creates objects; a bystander process outside of it has connections, which must not be affected. `use_up_*` creates
them until further ones are refused, `charged_*` compares what is charged with the size of the driver's part. Kernel threads that handle
page faults for a process allocate for it, too.

These kinds of object cannot use up a cgroup by themselves:

- contexts and protection domains: all their memory is ib_core's, which charges nobody (the driver keeps one bit for a domain).
  `contexts_of_a_process` shows what ends them without a cgroup, `rdma_controller` limits both;
- counters of queue pairs: each needs a queue pair of its own, which is larger, and an administrator who binds it.
"""
import contextlib
import ctypes
import errno
import gc
import mmap
import os
import resource
import select
import signal
import struct
import time
import traceback

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

from lib import dmabuf, host, mcast, rings, segments, ties, uverbs
from lib.bystander import Bystander
from lib.case import skip, skip_with
from lib.ends import ACCESS, End, completion, happens, pair, soon
from lib.keys import PAGE, page_buffer
from lib.netlink import Netlink, index_of
from lib.odp import FLUSH, NOHUGEPAGE, ON_DEMAND, PREFETCH, PREFETCH_WRITE, advise

DEFAULTS = dict(timeout=240, driver="rxe_rs", reason="rdma_rxe does not charge cgroups")
MIB = 1 << 20
LIMIT = 64 * MIB
# Tolerance for memory of the process itself, the core's part of each object, and other users of the machine.
SLACK = 48 * MIB
MOUNT = "/run/limits"
# For leaks.test: the processes whose children are never freed.
TASKS_KEPT = "/run/tasks-kept"
FEW = 1500
# What is left of the limit for small objects, of which as many as LIMIT has room for would take minutes in emulation.
ROOM = 4 * MIB
FILES = 600
# So many objects of which each takes some pages.
SOME = 100


def beforehand():
    host.shell("mkdir -p $1; mountpoint -q $1 || mount -t cgroup2 none $1", MOUNT)


class Cgroup:
    """A new cgroup."""

    def __init__(self, controller):
        with open(f"{MOUNT}/cgroup.controllers", encoding="ascii") as file:
            if controller not in file.read().split():
                skip(f"the kernel has no {controller} controller")
        with open(f"{MOUNT}/cgroup.subtree_control", "w", encoding="ascii") as file:
            file.write(f"+{controller}")
        self.path = f"{MOUNT}/limits-{os.getpid()}"
        os.mkdir(self.path)

    def set(self, name, value):
        with open(f"{self.path}/{name}", "w", encoding="ascii") as file:
            file.write(str(value))

    def get(self, name):
        with open(f"{self.path}/{name}", encoding="ascii") as file:
            return file.read()

    def kernel_bytes(self):
        """The number of bytes of kernel memory charged to the cgroup."""
        return int(dict(line.split() for line in self.get("memory.stat").splitlines())["kernel"])

    def event(self, name):
        return int(dict(line.split() for line in self.get("memory.events").splitlines())[name])

    def end(self):
        def removed():
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not os.path.exists(self.path)

        soon(removed, 10, "the cgroup is not empty")


def available():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def queue_pair(end, depth, sges):
    cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sges, max_recv_sge=sges)
    return lambda: QP(end.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=end.cq, rcq=end.cq, cap=cap))


def sparse(end):
    """A large region with on-demand paging, in which no page exists, and the addresses of its chunks."""
    span = 1 << 21
    area = mmap.mmap(-1, 40000 * span, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(area)), NOHUGEPAGE)
    mr = MR(end.pd, len(area), ON_DEMAND, address=address)
    return area, mr, iter(range(address, address + len(area), span))


def on_demand(end):
    """Faults in one page of each chunk, by calls."""
    area, mr, chunks = sparse(end)

    def make():
        error = advise(end, PREFETCH, FLUSH, (next(chunks), 1, mr.lkey))
        if error:
            raise OSError(error, os.strerror(error))
        return area, mr
    return make


def on_demand_by_requests(names):
    """The same by requests, for which kernel threads handle the page faults."""
    a, b = pair(names)
    area, mr, chunks = sparse(a)

    def make():
        a.post(e.IBV_WR_RDMA_WRITE, SGE(next(chunks), 8, mr.lkey), remote=(b.mr.buf, b.mr.rkey))
        if completion(a.cq, 20).status != e.IBV_WC_SUCCESS:
            raise OSError(errno.ENOMEM, "the page could not be faulted in")
        return area, mr
    return make


def resized(end):
    """Completion queues that are resized to a large size."""
    def make():
        cq = CQ(end.ctx, 1, None, None, 0)
        cq.resize(30000)
        return cq
    return make


def region(end, access=ACCESS):
    address = page_buffer(1)

    def make():
        uverbs.reg_mr(end.ctx.cmd_fd, end.pd.handle, address, PAGE, address, access)
    return make


def region_on_demand(end):
    return region(end, ACCESS | e.IBV_ACCESS_ON_DEMAND)


def segments_of_regions(end, add):
    """Segments of regions with 100 of them each, because a region copies its table when it changes."""
    address, count, mrs = page_buffer(1), 0, []

    def make():
        nonlocal count
        if count % 100 == 0:
            mrs.append(MR(end.pd, PAGE, ACCESS, address=address))
        count += 1
        add(mrs[-1], (1 << 40) + 2 * PAGE * count)
    return make


def segment(end):
    address = page_buffer(1)
    return segments_of_regions(end, lambda mr, at: segments.add(end, mr, address, PAGE, at))


def dmabuf_region(end):
    buffer = dmabuf.Buffer()

    def make():
        dmabuf.register(end, buffer.buffer, 0, PAGE, 0)
    return make


def dmabuf_segment(end):
    buffer = dmabuf.Buffer()
    return segments_of_regions(end, lambda mr, at: dmabuf.add_buffer(end, mr, buffer, 0, PAGE, at))


def queue_pair_handle(end):
    """The uverbs handle of the only queue pair of an end."""
    return next(handle for handle in range(4096) if ties.peer_of(end.ctx.cmd_fd, handle) is not None)


def tied_region(end):
    address, qp = page_buffer(1), queue_pair_handle(end)

    def make():
        handle, _, rkey = uverbs.reg_mr(end.ctx.cmd_fd, end.pd.handle, address, PAGE, address, ACCESS)
        ties.tie_handles(end.ctx.cmd_fd, handle, rkey, qp)
    return make


def tie(end):
    """Ties regions that exist already."""
    address, qp = page_buffer(1), queue_pair_handle(end)
    regions = [uverbs.reg_mr(end.ctx.cmd_fd, end.pd.handle, address, PAGE, address, ACCESS) for _ in range(FEW)]

    def make():
        handle, _, rkey = regions.pop()
        ties.tie_handles(end.ctx.cmd_fd, handle, rkey, qp)
    return make


def window(end):
    def make():
        uverbs.alloc_mw(end.ctx.cmd_fd, end.pd.handle, e.IBV_MW_TYPE_2)
    return make


def address_handle(end):
    gid = uverbs.gid_bytes(end.ctx.query_gid(1, end.gid_index))

    def make():
        uverbs.create_ah(end.ctx.cmd_fd, end.pd.handle, gid, end.gid_index)
    return make


def small_queue_pair(end, qp_type):
    cap = QPCap(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    return QP(end.pd, QPInitAttr(qp_type=qp_type, scq=end.cq, rcq=end.cq, cap=cap))


def attachment(end):
    group = mcast.gid_of("239.7.7.7")

    def make():
        qp = small_queue_pair(end, e.IBV_QPT_UD)
        mcast.attach(qp, group)
        return qp
    return make


def counter(end, device):
    """Counters of queue pairs that exist already."""
    request, where = Netlink(), {"INDEX": index_of(device), "PORT": 1}
    qps = iter([small_queue_pair(end, e.IBV_QPT_RC) for _ in range(FEW)])

    def make():
        qp = next(qps)
        request(Netlink.STAT_SET, **where, MODE=2, RES=19, LQPN=qp.qp_num)
        return qp
    return make


def context(device):
    path = uverbs.path_of(device)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, most))

    def make():
        try:
            fd = os.open(path, os.O_RDWR)
            uverbs.get_context(fd)
        except OSError:
            # The process opens files when it reports.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            raise
    return make


def connected(qp, end, resources):
    """Connects a queue pair to itself, with these responder resources; it accepts packets, and can send."""
    gid = end.ctx.query_gid(1, end.gid_index)
    attr = QPAttr(port_num=1)
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=end.gid_index, hop_limit=64), is_global=1, port_num=1)
    attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_1024, qp.qp_num
    attr.max_dest_rd_atomic = resources
    qp.to_rts(attr)


def responder_resources(end):
    """The most responder resources, for queue pairs that exist already."""
    most = end.ctx.query_device().max_qp_rd_atom
    qps = iter([small_queue_pair(end, e.IBV_QPT_RC) for _ in range(SOME)])

    def make():
        qp = next(qps)
        connected(qp, end, most)
        return qp
    return make


def send_requests(end):
    """Requests that fill the send queues of queue pairs that are connected already. In SQD they do not send them."""
    depth, sges = 63, 32
    qps = [queue_pair(end, depth, sges)() for _ in range(SOME)]
    for qp in qps:
        connected(qp, end, 0)
        qp.modify(QPAttr(qp_state=e.IBV_QPS_SQD), e.IBV_QP_STATE)
    qps = iter(qps)

    def make():
        qp = next(qps)
        for _ in range(depth):
            qp.post_send(SendWR(num_sge=1, sg=[end.sge(8)], opcode=e.IBV_WR_SEND))
        return qp
    return make


def offers(end, names):
    """The slots of the requests whose payload the receiver copies from the memory of the sender: for queue pairs that are connected already,
    and have sent one message, of which they have learnt that the peer is in the same kernel."""
    peer = End(names[2], int(names[3]), size=end.size)

    def send(sender, receiver):
        receiver.recv(receiver.sge())
        sender.post(e.IBV_WR_SEND, sender.sge())
        sender.complete()
        receiver.complete()
        return sender, receiver
    pairs = []
    for _ in range(SOME):
        sender, receiver = end.with_another_qp(), peer.with_another_qp()
        sender.connect(receiver, 1, 2)
        receiver.connect(sender, 2, 1)
        pairs.append(send(sender, receiver))
    pairs = iter(pairs)
    return lambda: send(*next(pairs))


def ring_pages(end):
    """All pages of the queues of queue pairs that exist already."""
    qps = [queue_pair(end, 63, 32)() for _ in range(SOME)]
    areas = iter([ring for ring in rings.mapped() if ring.size > 1 << 16])

    def make():
        # A send queue or a receive queue; there are twice as many as queue pairs.
        queue = next(areas)
        ctypes.memset(queue.address + mmap.PAGESIZE, 0, queue.size - mmap.PAGESIZE)
        return qps
    return make


def resized_shared_queue(end):
    """A large size for shared receive queues that exist already."""
    srqs = iter([SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=1, max_sge=1))) for _ in range(SOME)])

    def make():
        srq = next(srqs)
        srq.modify(SrqAttr(max_wr=1000), e.IBV_SRQ_MAX_WR)
        return srq
    return make


def largest_queue(end):
    """The largest completion queues, larger than the cgroup's limit; the first one, which is made outside of it, is small."""
    sizes = iter([1])
    return lambda: CQ(end.ctx, next(sizes, end.ctx.query_device().max_cqe), None, None, 0)


def error_of(problem):
    return getattr(problem, "error_code", None) or getattr(problem, "errno", None) or getattr(problem, "number", None) or -1


def child(names, group, make_of, count, room, each):
    """A child process that creates objects in the cgroup, in which it leaves `room` bytes for them, writes their number, the error and the
    charged bytes to a pipe, and waits. The statistics may be two seconds old, so it waits until they show `each` bytes per object."""
    ready, ready_in = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready_in)
        return pid, ready
    try:
        end = End(names[0], int(names[1]))
        make = make_of(end)
        kept = [make()]
        # A collection writes to all objects that the process has from its parent, and so copies their pages: megabytes in the cgroup.
        gc.disable()
        group.set("cgroup.procs", os.getpid())
        if room < LIMIT:
            ballast = mmap.mmap(-1, LIMIT - room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        before, error = group.kernel_bytes(), 0
        while len(kept) < count:
            try:
                kept.append(make())
            except (OSError, PyverbsError, segments.Refused) as problem:
                error = error_of(problem)
                break
        happens(lambda: group.kernel_bytes() >= before + each * (len(kept) - 1), 10)
        os.write(ready_in, struct.pack("=QqQ", len(kept), error, group.kernel_bytes() - before))
        signal.pause()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def run(names, make_of, count, room=LIMIT, seconds=200, each=0):
    group = Cgroup("memory")
    group.set("memory.max", LIMIT)
    with contextlib.suppress(OSError):
        group.set("memory.swap.max", 0)
    with open("/dev/kmsg", "w", encoding="ascii") as log:
        log.write("rxe-test: a cgroup runs out of memory\n")
    bystander = Bystander(names)
    before = least = available()
    pid, ready = child(names, group, make_of, count, room, each)
    os.set_blocking(ready, False)
    report, kernel, deadline = None, 0, time.monotonic() + seconds
    try:
        while report is None:
            assert time.monotonic() < deadline, "the process got no error and was not killed in time"
            select.select([ready], [], [], 0.02)
            least, kernel = min(least, available()), max(kernel, group.kernel_bytes())
            assert before - least < LIMIT + SLACK, f"the machine has {(before - least) // MIB} MiB less, the cgroup is charged {group.get('memory.current')}"
            with contextlib.suppress(BlockingIOError):
                report = os.read(ready, 24)
        peak, kills = int(group.get("memory.current")), group.event("oom_kill")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    bystander.end(3)
    reached = group.event("max")
    group.end()
    number, error, charged = struct.unpack("=QqQ", report) if report else (0, 0, 0)
    print(f"{number} objects, error {error}, {charged} bytes charged, {peak} in total, {kernel} of the kernel at most; killed: {kills}, "
          f"limit reached: {reached}, the machine had {(before - least) // MIB} MiB less")
    assert report or kills, "the process ended by itself"
    return number, error, charged, kills, reached, kernel


def use_up(names, make_of, room=LIMIT):
    """Creates objects up to the cgroup's limit: further ones fail, or the process is killed, and no other process is affected."""
    number, error, _, kills, reached, kernel = result = run(names, make_of, 1 << 30, room)
    assert kills or error in (errno.ENOMEM, errno.EAGAIN), f"refused with {error} after {number}"
    assert reached, "the limit of the cgroup was not reached"
    # Objects without rings have only memory of the kernel; the process itself needs the rest.
    assert room == LIMIT or kernel > room // 4, f"only {kernel} bytes were charged for objects"
    return result


def charged(names, make_of, least, all_fit=True, count=FEW):
    """Creates `count` objects. At least `least` bytes, the driver's part, must be charged for each."""
    number, error, bytes_charged, kills, *_ = run(names, make_of, count, each=least)
    assert number >= 100 if not all_fit else not error and not kills and number == count, (error, kills, number)
    assert bytes_charged >= least * (number - 1), f"{bytes_charged} bytes for {number}"


def test_use_up_queue(names):
    use_up(names, lambda end: lambda: CQ(end.ctx, 4000, None, None, 0))


def test_use_up_largest_queue(names):
    use_up(names, largest_queue)


def test_use_up_resized_queue(names):
    use_up(names, resized)


def test_use_up_queue_pair(names):
    use_up(names, lambda end: queue_pair(end, 60, 4))


def test_use_up_largest_queue_pair(names):
    use_up(names, lambda end: queue_pair(end, 16000, 32))


def test_use_up_ring_pages(names):
    """A page fault cannot fail, so the kernel ends the process."""
    number, error, _, kills, *_ = use_up(names, ring_pages, ROOM)
    assert kills and not error, (number, error, kills)


def test_use_up_shared_queue(names):
    use_up(names, lambda end: lambda: SRQ(end.pd, SrqInitAttr(SrqAttr(max_wr=4000, max_sge=4))))


def test_use_up_on_demand(names):
    use_up(names, on_demand)


def test_use_up_on_demand_by_requests(names):
    use_up(names, lambda _: on_demand_by_requests(names), ROOM)


def test_use_up_region(names):
    use_up(names, region, ROOM)


def test_use_up_region_on_demand(names):
    use_up(names, region_on_demand, ROOM)


def test_use_up_segment(names):
    use_up(names, segment, ROOM)


def test_use_up_dmabuf_region(names):
    dmabuf.require_udmabuf()
    use_up(names, dmabuf_region, ROOM)


def test_use_up_dmabuf_segment(names):
    dmabuf.require_udmabuf()
    use_up(names, dmabuf_segment, ROOM)


def test_use_up_tied_region(names):
    use_up(names, tied_region, ROOM)


def test_use_up_window(names):
    use_up(names, window, ROOM)


def test_use_up_address_handle(names):
    use_up(names, address_handle, ROOM)


def test_contexts_of_a_process(names):
    """Each context has two files, so RLIMIT_NOFILE limits the contexts of a process."""
    number, error, _, kills, *_ = run(names, lambda _: context(names[0]), 1 << 30)
    assert error == errno.EMFILE and not kills and FILES // 2 - 50 < number < FILES // 2, (number, error, kills)


def test_charged_region(names):
    charged(names, region, 512)


def test_charged_region_on_demand(names):
    charged(names, region_on_demand, 512)


def test_charged_segment(names):
    charged(names, segment, 100)


def test_charged_dmabuf_region(names):
    dmabuf.require_udmabuf()
    charged(names, dmabuf_region, 400)


def test_charged_dmabuf_segment(names):
    dmabuf.require_udmabuf()
    charged(names, dmabuf_segment, 100)


def test_charged_tie(names):
    # A new layout of the region; the old one was not charged to the cgroup.
    charged(names, tie, 100)


def test_charged_window(names):
    charged(names, window, 128)


def test_charged_address_handle(names):
    charged(names, address_handle, 300)


def test_charged_counter(names):
    charged(names, lambda end: counter(end, names[0]), 800)


def test_charged_attachment(names):
    # The device limits the members of a group.
    charged(names, attachment, 10000, all_fit=False)


def test_charged_responder_resources(names):
    # Pending responses and replay entries, 8 KiB each.
    charged(names, responder_resources, 14000, count=SOME)


def test_charged_send_requests(names):
    # Of 64 slots: 8 KiB for the requests, 32 KiB for their scatter/gather lists.
    charged(names, send_requests, 36000, count=SOME)


def test_charged_offers(names):
    # A page.
    charged(names, lambda end: offers(end, names), 3500, count=SOME)


def test_charged_resized_shared_queue(names):
    charged(names, resized_shared_queue, 1 << 16, count=SOME)


def module_users():
    with open("/sys/module/rxe_rs/refcnt", encoding="ascii") as file:
        return int(file.read())


def test_prefetch_ends_with_the_process(names):
    """A process that prefetches a gigabyte in the background exits at once. What kernel threads faulted in after that would belong to no
    process and be charged to no cgroup, so they stop."""
    group, size = Cgroup("memory"), 1 << 30
    before = least = available()
    pid = os.fork()
    if not pid:
        try:
            end = End(names[0], int(names[1]))
            area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(area))
            mr = MR(end.pd, size, ON_DEMAND, address=address)
            group.set("cgroup.procs", os.getpid())
            os._exit(advise(end, PREFETCH_WRITE, 0, (address, size, mr.lkey)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(255)
    assert os.waitpid(pid, 0)[1] == 0, "the process has failed, see above"

    def ended():
        nonlocal least
        least = min(least, available())
        assert before - least < LIMIT + SLACK, f"the machine has {(before - least) // MIB} MiB less"
        return not module_users()

    soon(ended, 60, "the prefetch does not end")
    print(f"the machine had {(before - least) // MIB} MiB less")
    group.end()


def test_rdma_controller(names):
    """The RDMA cgroup controller limits contexts and objects of the device."""
    group = Cgroup("rdma")
    group.set("rdma.max", f"{names[0]} hca_handle=2 hca_object=6")
    parent, pid = os.getpid(), os.fork()
    if not pid:
        status = 1
        try:
            group.set("cgroup.procs", os.getpid())
            first = Context(name=names[0])
            domains = [PD(first) for _ in range(6)]
            for more in (lambda: PD(first), lambda: CQ(first, 10, None, None, 0)):
                try:
                    more()
                    raise AssertionError("more objects than permitted")
                except PyverbsError as problem:
                    assert problem.error_code == errno.EAGAIN, problem
            domains.pop().close()
            queue = CQ(first, 10, None, None, 0)
            assert "hca_handle=1 hca_object=6" in group.get("rdma.current"), group.get("rdma.current")
            queue.close()
            second = Context(name=names[0])
            # ib_uverbs does not release the task whose context it refuses.
            with open(TASKS_KEPT, "a", encoding="ascii") as kept:
                print(parent, file=kept)
            try:
                Context(name=names[0])
                raise AssertionError("more contexts than permitted")
            except PyverbsError:
                pass
            second.close()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "the child has failed, see above"
    group.end()


def test_charged_ring_pages(names):
    # Of 64 requests with 32 scatter/gather entries.
    charged(names, ring_pages, 60000, count=SOME)


def test_queues_not_written(names):
    """Queue pairs are charged for pages of their queues that have been written, and not for more than a megabyte each that has not."""
    skip_with("KASAN", "KASAN's red zones are charged")
    skip_with("LOCKDEP", "what lockdep has in each lock is charged")
    number, error, bytes_charged, kills, *_ = run(names, lambda end: queue_pair(end, 1000, 32), FEW)
    assert not error and not kills and number == FEW, (number, error, kills)
    assert bytes_charged < 30000 * number, f"{bytes_charged} bytes for {number}"
