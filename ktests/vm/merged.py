# SPDX-License-Identifier: GPL-2.0
"""Merged packets: between queue pairs of one kernel a packet carries the payload of several. It arrives whole or not at all, and messages
arrive also where the path drops it."""
import ctypes
import os
import select
import subprocess
import time

from pyverbs.mr import MR, MW
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE
import pyverbs.enums as e

from lib import host
from lib.case import skip
from lib.child_process import child_process
from lib.counters import counter, grows, so_far, stays, total
from lib.ends import ACCESS, End, happens, pair, pattern, write_and_read
from lib.keys import BINDABLE, bind, bind1
from lib.memory import provide
from lib.odp import ON_DEMAND, PAGE, Area

DEFAULTS = dict(timeout=60, driver="rxe_rs", reason="rdma_rxe sends packets of the path MTU only")
# With the path MTU of 1024 more than two merged packets.
SIZE = 200000


def transfer(a, b, rounds=3, size=SIZE):
    """A WRITE, a READ and a SEND of new data each, checked."""
    for n in range(rounds):
        write_and_read(a, b, pattern(size, os.getpid() + n))
        # In parts that do not begin or end with a packet or a page.
        third = size // 3 | 1
        b.recv(b.sge(third, size - third), b.sge(size - third, 0))
        a.post(e.IBV_WR_SEND, a.sge(1000, 5), a.sge(size - 1000, 1000))
        a.complete()
        b.complete()
        sent = a.mr.read(1000, 5) + a.mr.read(size - 1000, 1000)
        got = b.mr.read(third, size - third) + b.mr.read(size - third, 0)
        assert got == sent, "a SEND sent wrong data"


def test_by_reference_ipv4(_names):
    by_reference(host.names(4))


def test_by_reference_ipv6(_names):
    by_reference(host.names(6))


def by_reference(names):
    """The payload is copied from the sender's memory, that of longer lists is in the packets."""
    a, b = pair(names, size=SIZE, sges=8)
    transfer(a, b, 1)
    before, gone = total("rcvd_by_reference"), total("reference_gone")
    transfer(a, b)
    assert grows("rcvd_by_reference", before), "no packet is by reference"
    before = so_far(counter, host.device("a"), "rcvd_by_reference")
    for n in range(3):
        data = pattern(SIZE, os.getpid() + n)
        b.mr.write(data, SIZE)
        a.mr.write(bytes(SIZE), SIZE)
        a.post(e.IBV_WR_RDMA_READ, *(a.sge(SIZE // 8, SIZE // 8 * part) for part in range(8)), remote=(b.mr.buf, b.mr.rkey))
        a.complete()
        assert a.mr.read(SIZE, 0) == data, "a READ into eight entries read wrong data"
    assert happens(lambda: counter(host.device("a"), "rcvd_by_reference") > before, 5), "no READ response is by reference"
    before = so_far(total, "rcvd_by_reference")
    for n in range(3):
        data = pattern(SIZE, os.getpid() + n)
        a.mr.write(data, SIZE)
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, *(a.sge(SIZE // 8, SIZE // 8 * part) for part in range(8)))
        a.complete()
        b.complete()
        assert b.mr.read(SIZE, 0) == data, "a SEND of eight entries sent wrong data"
    assert stays("rcvd_by_reference", before), "a packet is by reference"
    assert stays("reference_gone", gone), "a packet was dropped"


def test_by_reference_within_one_device(names):
    """Between two queue pairs of one device."""
    a, b = End(names[0], int(names[1]), size=SIZE), End(names[0], int(names[1]), size=SIZE)
    a.connect(b, 1, 1)
    b.connect(a, 1, 1)
    transfer(a, b)
    before = total("rcvd_by_reference")
    transfer(a, b)
    assert grows("rcvd_by_reference", before), "no packet is by reference"


def test_by_reference_memory_reused(names):
    """What the sender stores in its buffer after a request has completed, or has failed, is never received."""
    a, b = pair(names, size=SIZE, sges=2)
    transfer(a, b, 1)
    for n in range(50):
        data = pattern(SIZE, os.getpid() + n)
        a.mr.write(data, SIZE)
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, a.sge())
        a.complete()
        a.mr.write(b"\xee" * SIZE, SIZE)
        b.complete()
        assert b.mr.read(SIZE, 0) == data, "the sender's later data was received"
    b.mr.write(b"\x11" * SIZE, SIZE)
    for _ in range(8):
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
    a.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    a.mr.write(b"\x22" * SIZE, SIZE)
    assert b"\x22" not in b.mr.read(SIZE, 0), "data that was stored after the failure was received"


def test_by_reference_stopped_responder(names):
    """What the responder stores in its region after its queue pair has been stopped is never read."""
    for state in (e.IBV_QPS_ERR, e.IBV_QPS_RESET, None):
        a, b = pair(names, size=SIZE, sges=2)
        transfer(a, b, 1)
        a.mr.write(b"\x11" * SIZE, SIZE)
        b.mr.write(b"\x11" * SIZE, SIZE)
        for _ in range(8):
            a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(b.mr.buf, b.mr.rkey))
        if state is None:
            b.qp.close()
        else:
            b.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)
        b.mr.write(b"\x22" * SIZE, SIZE)
        assert b"\x22" not in a.mr.read(SIZE, 0), f"data that was stored after the queue pair was stopped ({state}) was read"


def absent(pd):
    """Memory without pages, the userfaultfd that waits for their page faults, and a region of it. Closing the descriptor resolves them."""
    area = Area(-(-SIZE // PAGE) * PAGE, anonymous=True)
    return area, provide(area), MR(pd, SIZE, ON_DEMAND, address=area.addr)


def test_by_reference_page_fault(names):
    """A packet that waits for a page fault of the receiver delivers nothing that its sender stores after its queue pair has been stopped."""
    for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
        a, b = pair(names, size=SIZE, sges=2)
        transfer(a, b, 1)
        sender, receiver = (b, a) if opcode == e.IBV_WR_RDMA_READ else (a, b)
        area, fd, mr = absent(receiver.pd)
        sender.mr.write(b"\x11" * SIZE, SIZE)
        gone = total("reference_gone")
        if opcode == e.IBV_WR_RDMA_READ:
            a.post(opcode, SGE(area.addr, SIZE, mr.lkey), remote=(b.mr.buf, b.mr.rkey))
        else:
            a.post(opcode, a.sge(), remote=(area.addr, mr.rkey))
        assert select.select([fd], [], [], 10)[0], "no page fault"
        sender.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        sender.mr.write(b"\x22" * SIZE, SIZE)
        # Closing the userfaultfd completes the page fault.
        os.close(fd)
        assert grows("reference_gone", gone), "the packet did not wait"
        assert ctypes.string_at(area.addr, SIZE) == bytes(SIZE), "data of the stopped queue pair was received"


def test_by_reference_read_withdrawn(names):
    """As above, with a responder whose queue pair goes on without the right to READ."""
    a, b = pair(names, size=SIZE, sges=2)
    transfer(a, b, 1)
    area, fd, mr = absent(a.pd)
    b.mr.write(b"\x11" * SIZE, SIZE)
    gone = total("reference_gone")
    a.post(e.IBV_WR_RDMA_READ, SGE(area.addr, SIZE, mr.lkey), remote=(b.mr.buf, b.mr.rkey))
    assert select.select([fd], [], [], 10)[0], "no page fault"
    rights = QPAttr(qp_state=e.IBV_QPS_RTS)
    rights.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
    b.qp.modify(rights, e.IBV_QP_STATE | e.IBV_QP_ACCESS_FLAGS)
    b.mr.write(b"\x22" * SIZE, SIZE)
    os.close(fd)
    assert grows("reference_gone", gone), "the packet did not wait"
    a.complete(e.IBV_WC_REM_ACCESS_ERR)
    assert ctypes.string_at(area.addr, SIZE) == bytes(SIZE), "data was read without the right"


def test_by_reference_read_failed_responder(names):
    """As above, with a responder whose queue pair fails by itself: its consumer may use the memory again when it sees that."""
    a, b = pair(names, size=SIZE, sges=2, retries=1, timeout=12)
    transfer(a, b, 1)
    area, fd, mr = absent(a.pd)
    b.mr.write(b"\x11" * SIZE, SIZE)
    gone = total("reference_gone")
    a.post(e.IBV_WR_RDMA_READ, SGE(area.addr, SIZE, mr.lkey), remote=(b.mr.buf, b.mr.rkey))
    assert select.select([fd], [], [], 10)[0], "no page fault"
    b.post(e.IBV_WR_SEND, SGE(b.mr.buf, 8, 0))
    b.complete(e.IBV_WC_LOC_PROT_ERR)
    b.mr.write(b"\x22" * SIZE, SIZE)
    os.close(fd)
    assert grows("reference_gone", gone), "the packet did not wait"
    a.complete(e.IBV_WC_RETRY_EXC_ERR)
    assert ctypes.string_at(area.addr, SIZE) == bytes(SIZE), "data that was stored after the failure was read"


def test_by_reference_behind_others(names):
    """A request whose packets are by reference waits at the receiver, while two before it complete whose packets are not: none is dropped."""
    a, b = pair(names, size=SIZE, sges=8)
    a.qp.close()
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=8, max_recv_sge=8)
    init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=a.cq, rcq=a.cq, cap=cap, pd=a.pd, send_ops_flags=e.IBV_QP_EX_WITH_RDMA_WRITE,
                        sq_sig_all=1, comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
    a.qp = QPEx(a.ctx, init)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.connect(b, 0xFFFFFE, 0x000123)
    b.connect(a, 0x000123, 0xFFFFFE)
    transfer(a, b)
    area, fd, mr = absent(b.pd)
    data = pattern(SIZE, os.getpid())
    a.mr.write(data, SIZE)
    gone = total("reference_gone")
    # The list of the first one is too long for a reference, and its packets are enough for an acknowledgement.
    lists = ([a.sge(5000, 5000 * n) for n in range(8)], [a.sge(8)], [a.sge()])
    a.qp.wr_start()
    for (addr, key), sges in zip([(b.mr.buf, b.mr.rkey)] * 2 + [(area.addr, mr.rkey)], lists):
        a.qp.wr_id = 1
        a.qp.wr_flags = e.IBV_SEND_SIGNALED
        a.qp.wr_rdma_write(key, addr)
        a.qp.wr_set_sge_list(len(sges), sges)
    a.qp.wr_complete()
    assert select.select([fd], [], [], 10)[0], "no page fault"
    a.complete()
    os.close(fd)
    a.complete()
    a.complete()
    assert ctypes.string_at(area.addr, SIZE) == data, "wrong data was received"
    assert stays("reference_gone", gone), "a packet was dropped"


def test_by_reference_windows(names):
    """READs through windows are by reference, and one that has been invalidated grants nothing."""
    for kind, bind_it in ((e.IBV_MW_TYPE_1, bind1), (e.IBV_MW_TYPE_2, bind)):
        a, b = pair(names, size=SIZE, sges=2, access=ACCESS | BINDABLE)
        transfer(a, b, 1)
        window = MW(b.pd, kind)
        key = bind_it(b, window, 0, SIZE, e.IBV_ACCESS_REMOTE_READ)
        b.complete()
        data = pattern(SIZE, os.getpid() + kind)
        b.mr.write(data, SIZE)
        before = so_far(counter, host.device("a"), "rcvd_by_reference")
        a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(b.mr.buf, key))
        a.complete()
        assert a.mr.read(SIZE, 0) == data, "a READ through a window read wrong data"
        assert happens(lambda: counter(host.device("a"), "rcvd_by_reference") > before, 5), "no READ response is by reference"
        window.close()
        a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(b.mr.buf, key))
        a.complete(e.IBV_WC_REM_ACCESS_ERR)


def test_by_reference_disabled(_names):
    """With same_host_copy=1 all packets contain their payload, and are merged."""
    with host.reloaded("same_host_copy=1"), child_process(contain_payload):
        pass


def contain_payload():
    names = host.names(4)
    a, b = pair(names, size=SIZE, sges=2)
    transfer(a, b, 1)
    before = total("rcvd_merged")
    transfer(a, b)
    assert grows("rcvd_merged", before), "no packet was merged"
    assert stays("rcvd_by_reference", 0), "a packet is by reference"


def sent_singly(a, b, rounds):
    before = total("rcvd_merged")
    transfer(a, b, rounds)
    return stays("rcvd_merged", before)


def merged(names):
    a, b = pair(names, size=SIZE, sges=2)
    transfer(a, b, 1)
    before, packets = total("rcvd_merged"), total("rcvd_pkts")
    transfer(a, b)
    assert grows("rcvd_merged", before), "no packet was merged"
    # Each counts as many packets as it stands for.
    assert happens(lambda: total("rcvd_pkts") - packets >= 9 * SIZE // 1024, 5), "packets are not counted"


def test_ipv4(_names):
    merged(host.names(4))


def test_ipv6(_names):
    merged(host.names(6))


def test_path_mtus(names):
    for mtu in (e.IBV_MTU_256, e.IBV_MTU_512, e.IBV_MTU_1024):
        a, b = pair(names, size=SIZE, sges=2, mtu=mtu)
        transfer(a, b, 1)
        before = total("rcvd_merged")
        transfer(a, b, 1)
        assert grows("rcvd_merged", before), f"no packet was merged with MTU {mtu}"


def test_queueing_discipline(names):
    """A queueing discipline may have to segment buffers, and drops merged packets then, so none are sent: nothing is lost."""
    a, b = pair(names, size=SIZE, sges=2)
    transfer(a, b)
    host.shell("modprobe sch_tbf; for n in a b; do on $n tc qdisc replace dev $(netdev $n) root tbf rate 5gbit burst 2kb limit 8mb; done")
    try:
        lost = total("send_err")
        assert happens(lambda: sent_singly(a, b, 3)), "a packet was merged"
        assert stays("send_err", lost), "a packet was lost"
    finally:
        host.shell("for n in a b; do on $n tc qdisc del dev $(netdev $n) root; done")
    before = total("rcvd_merged")
    transfer(a, b)
    assert grows("rcvd_merged", before), "packets are not merged again"


def test_feature_off(names):
    """Without the feature of the device that merged packets need, none are sent."""
    a, b = pair(names, size=SIZE, sges=2)
    transfer(a, b)
    try:
        for node in "ab":
            host.shell("on $1 ethtool -K $2 tx-sctp-segmentation off", node, host.netdev(node))
        lost = total("send_err")
        assert happens(lambda: sent_singly(a, b, 3)), "a packet was merged"
        assert stays("send_err", lost), "a packet was lost"
    finally:
        for node in "ab":
            host.shell("on $1 ethtool -K $2 tx-sctp-segmentation on", node, host.netdev(node))


def test_responder_in_rtr(names):
    """perftest's servers stay in RTR while only the client sends."""
    a, b = End(names[0], int(names[1]), size=SIZE), End(names[2], int(names[3]), size=SIZE)
    a.connect(b, 1, 1)
    b.connect(a, 1, 1, rtr=True)
    before = counter(host.device("b"), "rcvd_merged")
    for n in range(3):
        data = pattern(SIZE, os.getpid() + n)
        a.mr.write(data, SIZE)
        a.post(e.IBV_WR_RDMA_WRITE, a.sge(), remote=(b.mr.buf, b.mr.rkey))
        a.complete()
        assert b.mr.read(SIZE, 0) == data
    assert happens(lambda: counter(host.device("b"), "rcvd_merged") > before, 5), "no packet was merged"


def test_connection_tracking(_names):
    """Connection tracking takes the first packet after a pause for that of a new connection, and it may be a merged one."""
    if subprocess.run(["modprobe", "-qn", "nf_conntrack"], check=False).returncode:
        skip("this kernel has no module for connection tracking")
    # The hooks of a link precede those that exist already.
    host.shell("no_links; modprobe nf_conntrack enable_hooks=1; links")
    try:
        host.shell("for n in a b; do on $n sysctl -qw net.netfilter.nf_conntrack_udp_timeout=1; done")
        with child_process(track):
            pass
    finally:
        host.shell("modprobe -r nf_conntrack; no_links; links")


def track():
    # Longer lists than packets refer to.
    a, b = pair(host.names(4), size=SIZE, sges=8)
    transfer(a, b)
    losses = ("out_of_seq_request", "duplicate_request", "local_ack_timeout_err", "completer_retry_err")
    for n in range(3):
        time.sleep(1.5)
        lost, before = {name: total(name) for name in losses}, total("rcvd_merged")
        data = pattern(40000, os.getpid() + n)
        a.mr.write(data, len(data))
        b.recv(b.sge())
        a.post(e.IBV_WR_SEND, *(a.sge(5000, 5000 * part) for part in range(8)))
        a.complete()
        b.complete()
        assert b.mr.read(len(data), 0) == data, "wrong data was received"
        assert grows("rcvd_merged", before), "no packet was merged"
        for name, value in lost.items():
            assert stays(name, value), f"a packet was lost: {name} was {value}, and is {total(name)}"
