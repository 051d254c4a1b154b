# SPDX-License-Identifier: GPL-2.0
"""Fault injection into every allocation of every verb, one at a time: the call succeeds, or fails with an error and leaves nothing.

lib/sweeps.py describes how allocations are made to fail.
"""
import ctypes
import errno
import json
import os
import re
import subprocess
import time

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import Context
from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR
import pyverbs.cm_enums as ce
import pyverbs.enums as e

from lib import host, uverbs
from lib.case import skip
from lib.cm import namespace
from lib.ends import ACCESS, completion, datagram, datagram_pair, pair, pattern, soon
from lib.keys import bind, bind1, local_inv
from lib.libibverbs import VERBS, pointer_of
from lib.netlink import Netlink, index_of
from lib.sweeps import close, injector, sweep

DEFAULTS = dict(timeout=120, fresh=True, driver="rxe_rs", reason="tests rxe_rs only")
# Objects that existed before the test.
BEFORE = []
LIBC = ctypes.CDLL(None, use_errno=True)


def objects():
    """The number of objects of each type of the devices, including those of the connection manager."""
    return re.findall(r"rxe_[ab]:.*", host.shell("rdma resource show"))


def beforehand():
    if not os.path.exists("/proc/self/fail-nth"):
        skip("no fault injection in this kernel")
    injector()
    host.shell("mark 'allocations are made to fail'")
    BEFORE[:] = objects()


def afterwards():
    soon(lambda: objects() == BEFORE)


def test_device(names):
    # The library returns these errors if it has no memory to query the device.
    sweep("open device", lambda: Context(name=names[0]), undo=close, allowed=(errno.ENODEV, errno.ENOENT, errno.EMFILE))
    ctx = Context(name=names[0])
    sweep("query device", ctx.query_device)
    sweep("query device, extended", ctx.query_device_ex)
    sweep("query port", lambda: ctx.query_port(1))
    sweep("query gid", lambda: ctx.query_gid(1, int(names[1])))
    sweep("query gid table", lambda: ctx.query_gid_table(16))
    # This call returns -1 for any error.
    sweep("query pkey", lambda: ctx.query_pkey(1, 0), allowed=(errno.EPERM,))


def test_domains(names):
    ctx = Context(name=names[0])
    sweep("alloc_pd", lambda: PD(ctx), undo=close)
    pd = PD(ctx)
    gid = ctx.query_gid(1, int(names[1]))
    attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=int(names[1]), hop_limit=64), is_global=1, port_num=1)
    sweep("create_ah", lambda: AH(pd, attr=attr), undo=close)
    sweep("create_ah without room for its number",
          lambda: uverbs.create_ah(ctx.cmd_fd, pd.handle, uverbs.gid_bytes(gid), int(names[1]), numbered=False)[0],
          undo=lambda handle: uverbs.destroy_ah(ctx.cmd_fd, handle))


def test_completion_queues(names):
    ctx = Context(name=names[0])
    sweep("create_comp_channel", lambda: CompChannel(ctx), undo=close)
    channel = CompChannel(ctx)
    for size in (1, 100, 10000):
        sweep(f"create_cq of {size}", lambda: CQ(ctx, size, None, None, 0), undo=close)
    sweep("create_cq with a channel", lambda: CQ(ctx, 10, None, channel, 0), undo=close)
    sweep("create_cq_ex", lambda: CQEX(ctx, CqInitAttrEx(cqe=20, wc_flags=e.IBV_WC_STANDARD_FLAGS)), undo=close)
    cq = CQ(ctx, 10, None, channel, 0)
    sweep("req_notify_cq", lambda: cq.req_notify(0))
    for size in (20, 5000, 5):
        sweep(f"resize_cq to {size}", lambda: cq.resize(size), undo=lambda *_: cq.resize(10))


def test_receive_queues(names):
    ctx = Context(name=names[0])
    pd = PD(ctx)
    for size in (1, 100, 10000):
        init = SrqInitAttr(SrqAttr(max_wr=size, max_sge=3))
        sweep(f"create_srq of {size}", lambda: SRQ(pd, init), undo=close)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=100, max_sge=3)))
    mr = MR(pd, 4096, ACCESS)
    for n in range(20):
        srq.post_recv(RecvWR(num_sge=1, sg=[SGE(mr.buf, 100, mr.lkey)], wr_id=n))
    sweep("query_srq", srq.query)
    sweep("modify_srq, limit", lambda: srq.modify(SrqAttr(srq_limit=5), e.IBV_SRQ_LIMIT))
    for size in (31, 5000):
        sweep(f"modify_srq, size {size}", lambda: srq.modify(SrqAttr(max_wr=size), e.IBV_SRQ_MAX_WR),
              undo=lambda *_: srq.modify(SrqAttr(max_wr=100), e.IBV_SRQ_MAX_WR))
    assert srq.query().max_wr >= 100


def test_queue_pairs(names):
    """Queue pairs of all types are created, modified through all states, and destroyed."""
    ctx = Context(name=names[0])
    pd = PD(ctx)
    cq = CQ(ctx, 100, None, None, 0)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=10, max_sge=3)))
    gid = ctx.query_gid(1, int(names[1]))
    route = GlobalRoute(dgid=gid, sgid_index=int(names[1]), hop_limit=64)
    for kind, options in (("RC", {}), ("RC", {"srq": srq}), ("UC", {}), ("UD", {}), ("RAW_PACKET", {})):
        inline = 200 if kind == "RC" else 0
        recvs = 0 if options else 50
        cap = QPCap(max_send_wr=50, max_recv_wr=recvs, max_send_sge=3, max_recv_sge=min(recvs, 3), max_inline_data=inline)
        init = QPInitAttr(qp_type=getattr(e, f"IBV_QPT_{kind}"), scq=cq, rcq=cq, cap=cap, sq_sig_all=1, **options)
        name = kind + (" with a shared receive queue" if options else "")
        sweep(f"create_qp {name}", lambda: QP(pd, init), undo=close)
        qp = QP(pd, init)
        changes = []

        def before():
            """Returns to the state before the change."""
            qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
            for attr, mask in changes:
                qp.modify(attr, mask)
            return ()

        def change(state, mask, **attrs):
            attr = QPAttr(qp_state=state, port_num=1)
            for key, value in attrs.items():
                setattr(attr, key, value)
            sweep(f"modify_qp {name} to {state}", lambda: qp.modify(attr, e.IBV_QP_STATE | mask), prepare=before)
            changes.append((attr, e.IBV_QP_STATE | mask))

        first = e.IBV_QP_PORT
        if kind == "UD":
            first |= e.IBV_QP_PKEY_INDEX | e.IBV_QP_QKEY
        elif kind != "RAW_PACKET":
            first |= e.IBV_QP_PKEY_INDEX | e.IBV_QP_ACCESS_FLAGS
        change(e.IBV_QPS_INIT, first, qkey=1, qp_access_flags=ACCESS)
        second, third = 0, 0
        if kind in ("RC", "UC"):
            second = e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
            third = e.IBV_QP_SQ_PSN
        if kind == "RC":
            second |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
            third |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        if kind == "UD":
            third = e.IBV_QP_SQ_PSN
        change(e.IBV_QPS_RTR, second, ah_attr=AHAttr(gr=route, is_global=1, port_num=1), path_mtu=e.IBV_MTU_1024,
               dest_qp_num=qp.qp_num, rq_psn=1, max_dest_rd_atomic=128, min_rnr_timer=12)
        change(e.IBV_QPS_RTS, third, sq_psn=1, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=128)
        sweep(f"query_qp {name}", lambda: qp.query(0x1FFFFF))
        if kind == "RC":
            change(e.IBV_QPS_SQD, 0)
            change(e.IBV_QPS_RTS, 0)
        change(e.IBV_QPS_ERR, 0)
        change(e.IBV_QPS_RESET, 0)
        close(qp)


def test_regions(names):
    ctx = Context(name=names[0])
    pd, other = PD(ctx), PD(ctx)
    for size in (100, 65536, 1 << 20):
        sweep(f"reg_mr of {size}", lambda: MR(pd, size, ACCESS), undo=close)
    mr = MR(pd, 1 << 20, ACCESS)
    spare = MR(pd, 1 << 20, ACCESS)

    def rereg(flags, domain, addr, length, access):
        uverbs.rereg_mr(ctx.cmd_fd, mr.handle, flags, domain.handle, addr, length, addr, access)

    sweep("rereg_mr, translation", lambda: rereg(1, pd, spare.buf, 1 << 19, 0))
    sweep("rereg_mr, domain", lambda: rereg(2, other, 0, 0, 0), undo=lambda *_: rereg(2, pd, 0, 0, 0))
    sweep("rereg_mr, access", lambda: rereg(4, pd, 0, 0, e.IBV_ACCESS_LOCAL_WRITE))
    sweep("rereg_mr, all", lambda: rereg(7, other, mr.buf, 1 << 20, ACCESS), undo=lambda *_: rereg(2, pd, 0, 0, 0))
    for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2):
        sweep(f"alloc_mw type {kind}", lambda: MW(pd, kind), undo=close)


def test_groups(names):
    a, _, _ = datagram_pair(names)
    qp = ctypes.c_void_p(pointer_of(a.qp))

    def call(verb, group):
        error = verb(qp, group, ctypes.c_uint16(0))
        if error:
            raise OSError(error, os.strerror(error))

    for address in ("00000000000000000000ffffefff0305", "ff0e0000000000000000000000001234"):
        group = ctypes.create_string_buffer(bytes.fromhex(address), 16)
        sweep(f"attach_mcast {address}", lambda: call(VERBS.ibv_attach_mcast, group),
              undo=lambda *_: call(VERBS.ibv_detach_mcast, group))
        sweep(f"detach_mcast {address}", lambda: call(VERBS.ibv_detach_mcast, group),
              prepare=lambda: call(VERBS.ibv_attach_mcast, group) or (),
              failed=lambda: call(VERBS.ibv_detach_mcast, group))


def finished(end, seconds=20):
    """Returns the status of the next completion."""
    wc = completion(end.cq, seconds)
    assert wc, "no completion"
    return wc.status


def kick(end, other):
    """Posts a request of length 0: the doorbell makes the driver process a WQE whose own doorbell call failed."""
    end.post(e.IBV_WR_RDMA_WRITE, remote=(other.mr.buf, other.mr.rkey))


def test_posts(names):
    """Requests of all opcodes: a packet or response without memory is lost and retransmitted, nothing worse."""
    a, b = pair(names, retries=7, timeout=8, rnr_retries=7, inline=200)
    data = pattern(20000)
    for name, code, length, flags, imm in (
            ("send", e.IBV_WR_SEND, 3000, 0, None), ("send, inline", e.IBV_WR_SEND, 100, e.IBV_SEND_INLINE, None),
            ("send, large", e.IBV_WR_SEND, 20000, 0, None), ("write", e.IBV_WR_RDMA_WRITE, 20000, 0, None),
            ("write with immediate", e.IBV_WR_RDMA_WRITE_WITH_IMM, 3000, 0, 7), ("read", e.IBV_WR_RDMA_READ, 20000, 0, None)):
        receives = code in (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE_WITH_IMM)
        source, target = (b.mr, a.mr) if code == e.IBV_WR_RDMA_READ else (a.mr, b.mr)
        source.write(data, len(data))

        def before():
            # Data of an earlier request must not stand for that of this one.
            target.write(bytes(length), length)
            if receives:
                b.recv(b.sge())
            return ()

        def after(*_):
            assert finished(a) == e.IBV_WC_SUCCESS, name
            assert not receives or finished(b) == e.IBV_WC_SUCCESS, name
            assert target.read(length, 0) == data[:length], name

        def late():
            kick(a, b)
            assert finished(a) == e.IBV_WC_SUCCESS, name
            after()

        sweep(f"post {name}", lambda: a.post(code, a.sge(length), flags=e.IBV_SEND_SIGNALED | flags, remote=(b.mr.buf, b.mr.rkey),
                                             imm=imm), prepare=before, undo=after, failed=late)

    def later(window, *_):
        kick(b, a)
        assert finished(b) == e.IBV_WC_SUCCESS and finished(b) == e.IBV_WC_SUCCESS
        window.close()

    for kind, binder in ((e.IBV_MW_TYPE_1, bind1), (e.IBV_MW_TYPE_2, bind)):
        region = MR(b.pd, 4096, ACCESS | e.IBV_ACCESS_MW_BIND)

        def bound(_, window):
            assert finished(b) == e.IBV_WC_SUCCESS, "bind"
            window.close()

        sweep(f"bind type {kind}", lambda window: binder(b, window, 0, 4096, e.IBV_ACCESS_REMOTE_WRITE, region),
              prepare=lambda: (MW(b.pd, kind),), undo=bound, failed=later)

    def bound_window():
        window = MW(b.pd, e.IBV_MW_TYPE_2)
        key = bind(b, window, 0, 4096, e.IBV_ACCESS_REMOTE_WRITE, region)
        assert finished(b) == e.IBV_WC_SUCCESS
        return window, key

    sweep("local invalidate", lambda window, key: local_inv(b, key), prepare=bound_window, failed=later,
          undo=lambda _, window, key: (finished(b), window.close()))
    a, b, ah = datagram_pair(names)

    def datagram_done(*_):
        assert finished(a) in (e.IBV_WC_SUCCESS, e.IBV_WC_GENERAL_ERR)
        while b.cq.poll(1)[0]:
            pass

    sweep("post a datagram", lambda: datagram(a, b, ah, 1), prepare=lambda: b.recv(b.sge(500)) or (), undo=datagram_done)


def test_links(_names):
    host.shell("ip link add d0 type dummy; ip link set d0 up")
    try:
        sweep_links("d0", host.shell("link_type a").strip())
    finally:
        host.shell("ip link del d0")


def sweep_links(netdev, kind):
    request = Netlink()

    def there():
        return os.path.exists("/sys/class/infiniband/rxe_f")

    def remove(*_):
        # The response may be lost without memory, although the request has succeeded.
        if there():
            request(Netlink.DELLINK, INDEX=index_of("rxe_f"))
        return ()

    def add():
        if not there():
            request(Netlink.NEWLINK, NAME="rxe_f", TYPE=kind, NETDEV=netdev)
        return (index_of("rxe_f"),)

    sweep("rdma link add", lambda: request(Netlink.NEWLINK, NAME="rxe_f", TYPE=kind, NETDEV=netdev), undo=remove, prepare=remove,
          dense=100, limit=20000)
    sweep("rdma link del", lambda index: request(Netlink.DELLINK, INDEX=index), prepare=add, dense=100, limit=20000)
    remove()


def test_counters(names):
    """Binds a queue pair to a counter and unbinds it."""
    request = Netlink()
    a, b = pair(names)
    where = {"INDEX": index_of(names[0]), "PORT": 1}

    def counter():
        text = subprocess.check_output(["rdma", "-j", "statistic", "qp", "show", "link", f"{names[0]}/1"]) or b"[]"
        return [c["cntn"] for c in json.loads(text)]

    def bind_it():
        request(Netlink.STAT_SET, **where, MODE=2, RES=19, LQPN=a.qp.qp_num)

    def unbind(*_):
        for cntn in counter():
            request(Netlink.STAT_DEL, **where, RES=19, COUNTER=cntn, LQPN=a.qp.qp_num)

    sweep("rdma statistic qp bind", bind_it, prepare=lambda: unbind() or (), undo=unbind, allowed=(errno.EINVAL,))
    unbind()
    assert not counter()


def test_connections(_names):
    """The work of the connection manager before it sends: address, route and queue pair. From then on every failure is a lost packet, which
    is retransmitted seconds later."""
    address = host.ip("b", 4)
    cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
    # EPERM: the library returns this for a failure without an error number.
    gone = (errno.EPERM, errno.ETIMEDOUT, errno.ENODEV, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH)

    def endpoint():
        info = AddrInfo(dst=address, dst_service="7174", port_space=ce.RDMA_PS_TCP, flags=0)
        return CMID(creator=info, qp_init_attr=QPInitAttr(qp_type=e.IBV_QPT_RC, cap=cap, sq_sig_all=1))

    with namespace("a"):
        sweep("address, route and queue pair", endpoint, undo=lambda cmid: cmid.close(), allowed=gone)
    # Connections still work.
    host.shell("""
        serve b rping -s -a "$(ip4 b)" -V -C 5
        listening b cm
        client a rping -c -a "$(ip4 b)" -V -C 5
        served || true""")


def test_module(_names):
    """Loads and unloads the module; there are no devices meanwhile."""
    host.shell("no_links; load a")
    path = "/share/rxe_rs.ko"
    fd = os.open(path, os.O_RDONLY)

    def call(number, *arguments):
        if LIBC.syscall(number, *arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def gone(*_):
        call(176, b"rxe_rs", os.O_NONBLOCK)

    gone()
    sweep("insmod", lambda: call(313, fd, b"", 0), undo=gone, allowed=(errno.EEXIST,), seconds=150, limit=20000)
    call(313, fd, b"", 0)
    sweep("rmmod", gone, undo=lambda *_: call(313, fd, b"", 0))
    host.shell("links")


def test_random(names):
    """Atomic allocations fail at random, also in softirq: packets are lost, but all messages arrive in the end."""
    a, b = pair(names, retries=7, timeout=8, rnr_retries=7, size=40000)
    injector(3, atomic_only=True)
    deadline = time.monotonic() + 20
    rounds = 0
    try:
        while time.monotonic() < deadline:
            data = pattern(40000, rounds)
            a.mr.write(data, len(data))
            b.recv(b.sge())
            a.post((e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE_WITH_IMM)[rounds % 2], a.sge(), remote=(b.mr.buf, b.mr.rkey), imm=1)
            assert finished(a, 60) == e.IBV_WC_SUCCESS and finished(b) == e.IBV_WC_SUCCESS, f"message {rounds}"
            assert b.mr.read(len(data), 0) == data
            a.post(e.IBV_WR_RDMA_READ, a.sge(), remote=(b.mr.buf, b.mr.rkey))
            assert finished(a, 60) == e.IBV_WC_SUCCESS, f"read {rounds}"
            rounds += 1
    finally:
        injector()
    print(f"{rounds} rounds")
    assert rounds > 3, rounds
