# SPDX-License-Identifier: GPL-2.0
"""Attributes out of range: each call fails with the right error, and the kernel log has the reason if dynamic debug is on."""
import contextlib
import errno
import mmap

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.enums as e

from lib import host
from lib.debug_messages import DebugMessages, refusal, refusal_logged
from lib.netlink import Netlink

DEFAULTS = dict(driver="rxe_rs", reason="checks the log messages of rxe_rs")
FAR = 0x7FFFFFFF


class Device:
    def __init__(self, name, gid_index):
        self.gid_index = gid_index
        self.ctx = Context(name=name)
        self.limits = self.ctx.query_device()
        self.limits_of_port = self.ctx.query_port(1)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 16, None, None, 0)

    def qp(self, qp_type=e.IBV_QPT_RC, **cap):
        full = {"max_send_wr": 4, "max_recv_wr": 4, "max_send_sge": 1, "max_recv_sge": 1, "max_inline_data": 0} | cap
        return QP(self.pd, QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=QPCap(**full)))

    def init(self, **changes):
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        for key, value in changes.items():
            setattr(attr, key, value)
        self.qp().modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)

    def ready_to_receive(self, **changes):
        own = self.qp()
        own.to_init(QPAttr(port_num=1))
        gid = self.ctx.query_gid(1, self.gid_index)
        attr = QPAttr(qp_state=e.IBV_QPS_RTR, port_num=1)
        attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=64), is_global=1, port_num=1)
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn, attr.min_rnr_timer = e.IBV_MTU_1024, own.qp_num, 0, 12
        attr.max_dest_rd_atomic = 1
        for key, value in changes.items():
            setattr(attr, key, value)
        own.modify(attr, e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN |
                   e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
        return own

    def ready_to_send(self, **changes):
        own = self.ready_to_receive()
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.sq_psn, attr.max_rd_atomic = 14, 7, 7, 0, 1
        for key, value in changes.items():
            setattr(attr, key, value)
        own.modify(attr, e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN |
                   e.IBV_QP_MAX_QP_RD_ATOMIC)
        return own

    def address(self, port=1, source=None, is_global=1):
        route = GlobalRoute(dgid=self.ctx.query_gid(1, self.gid_index), sgid_index=self.gid_index if source is None else source, hop_limit=64)
        return AH(self.pd, attr=AHAttr(gr=route, is_global=is_global, port_num=port))

    def claim_another_state(self):
        self.qp().modify(QPAttr(qp_state=e.IBV_QPS_INIT, cur_qp_state=e.IBV_QPS_RTS, port_num=1),
                    e.IBV_QP_STATE | e.IBV_QP_CUR_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)

    def srq(self, max_wr=8, max_sge=1):
        return SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=max_wr, max_sge=max_sge)))

    def shrink_a_full_queue(self):
        queue = self.srq(60)
        for n in range(60):
            queue.post_recv(RecvWR(num_sge=1, sg=[SGE(4096, 0, 0)], wr_id=n))
        queue.modify(SrqAttr(max_wr=5), e.IBV_SRQ_MAX_WR)

    def bound_region(self):
        own, region = self.ready_to_send(), MR(self.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_MW_BIND)
        window = MW(self.pd, e.IBV_MW_TYPE_1)
        own.bind_mw(window, MWBind(MWBindInfo(region, region.buf, 4096, e.IBV_ACCESS_REMOTE_WRITE), 0))
        try:
            region.close()
        finally:
            window.close()
            region.close()

    def skip_a_state(self):
        self.qp().modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)

    def calls(self):
        """Calls, with the expected error and the reason that the driver logs: part of its message; "" if it logs only the operation and the
        error; None where ib_core or the library refuses the call, and the driver logs nothing."""
        return [
            ("too many sends", lambda: self.qp(max_send_wr=self.limits.max_qp_wr + 1), errno.EINVAL, "work requests than"),
            ("too many receives", lambda: self.qp(max_recv_wr=FAR), errno.EINVAL, "work requests than"),
            ("too many send SGEs", lambda: self.qp(max_send_sge=self.limits.max_sge + 1), errno.EINVAL, "SGEs or inline data"),
            ("too many receive SGEs", lambda: self.qp(max_recv_sge=self.limits.max_sge + 1), errno.EINVAL, "SGEs or inline data"),
            ("too much inline data", lambda: self.qp(max_inline_data=1 << 20), errno.EINVAL, "SGEs or inline data"),
            ("too many completions", lambda: CQ(self.ctx, self.limits.max_cqe + 1, None, None, 0), errno.EINVAL, "no completions, or more"),
            ("remote write alone", lambda: MR(self.pd, 4096, e.IBV_ACCESS_REMOTE_WRITE), errno.EINVAL, None),
            ("undefined access flags", lambda: MR(self.pd, 4096, 1 << 19), errno.EINVAL, None),
            ("unmapped memory", lambda: MR(self.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE, address=1 << 20), errno.EFAULT, ""),
            ("memory beyond all addresses", lambda: MR(self.pd, 1 << 62, e.IBV_ACCESS_LOCAL_WRITE, address=1 << 63), errno.EINVAL, ""),
            ("no such window type", lambda: MW(self.pd, 3), errno.EINVAL, None),
            ("no such completion vector", lambda: CQ(self.ctx, 16, None, None, 1000), errno.EINVAL, None),
            ("a completion queue without entries", lambda: CQ(self.ctx, 0, None, None, 0), errno.EINVAL, None),
            ("no such queue pair type", lambda: self.qp(77), errno.EINVAL, None),
            ("an unsupported queue pair type", lambda: self.qp(e.IBV_QPT_XRC_SEND), errno.EOPNOTSUPP, ""),
            ("cur_qp_state is not the current state", self.claim_another_state, errno.EINVAL, "cur_qp_state is not"),
            ("a limit above the size of the SRQ", lambda: self.srq().modify(SrqAttr(srq_limit=1000), e.IBV_SRQ_LIMIT), errno.EINVAL,
             "limit above the size"),
            ("too many receives in an SRQ", lambda: self.srq(self.limits.max_srq_wr + 1), errno.EINVAL, "more than the device's limit"),
            ("too many SGEs in an SRQ", lambda: self.srq(1, self.limits.max_srq_sge + 1), errno.EINVAL, "more SGEs than"),
            ("more posted receives than would fit", self.shrink_a_full_queue, errno.EINVAL, "receive requests wait than would fit"),
            ("a region with a window bound to it", self.bound_region, errno.EBUSY, "a memory window is bound"),
            ("an address handle with another port", lambda: self.address(port=2), errno.EINVAL, None),
            ("an address handle without a GRH", lambda: self.address(is_global=0), errno.EINVAL, None),
            ("an address handle with a GID index beyond the table", lambda: self.address(source=255), errno.ENODATA, None),
            ("an address handle with an empty GID", lambda: self.address(source=self.limits_of_port.gid_tbl_len - 1), errno.ENODATA, None),
            ("no such P_Key", lambda: self.init(pkey_index=5), errno.EINVAL, "names no P_Key"),
            ("P_Key beyond the table", lambda: self.init(pkey_index=self.limits.max_pkeys), errno.EINVAL, "names no P_Key"),
            ("no such port", lambda: self.init(port_num=2), errno.EINVAL, None),
            ("an access flag that does not exist", lambda: self.init(qp_access_flags=1 << 10), errno.EINVAL, "unknown bits in qp_access_flags"),
            ("the last access flag", lambda: self.init(qp_access_flags=1 << 31), errno.EINVAL, "unknown bits in qp_access_flags"),
            ("a transition that skips states", self.skip_a_state, errno.EINVAL, "no such state change"),
            ("path MTU above the port's", lambda: self.ready_to_receive(path_mtu=e.IBV_MTU_4096), errno.EINVAL, "path_mtu above"),
            ("no such path MTU", lambda: self.ready_to_receive(path_mtu=77), errno.EINVAL, ""),
            ("max_dest_rd_atomic", lambda: self.ready_to_receive(max_dest_rd_atomic=255), errno.EINVAL, "max_dest_rd_atomic above"),
            ("min_rnr_timer", lambda: self.ready_to_receive(min_rnr_timer=32), errno.EINVAL, "min_rnr_timer above"),
            ("dest_qp_num", lambda: self.ready_to_receive(dest_qp_num=1 << 24), errno.EINVAL, "dest_qp_num has more"),
            ("max_rd_atomic", lambda: self.ready_to_send(max_rd_atomic=255), errno.EINVAL, "max_rd_atomic above"),
            ("timeout", lambda: self.ready_to_send(timeout=32), errno.EINVAL, "timeout above"),
            ("retry_cnt", lambda: self.ready_to_send(retry_cnt=8), errno.EINVAL, "retry_cnt above"),
            ("rnr_retry", lambda: self.ready_to_send(rnr_retry=8), errno.EINVAL, "rnr_retry above"),
        ]


def test_out_of_range(names):
    with contextlib.closing(DebugMessages()) as log:
        wrong = out_of_range(names[0], int(names[1]), log)
    assert not wrong, "\n".join(wrong)


def out_of_range(name, gid_index, log):
    """Makes each call; returns what was wrong."""
    device = Device(name, gid_index)
    wrong = []
    for title, call, error, reason in device.calls():
        log.read()
        try:
            call()
            wrong.append(f"{title}: accepted")
            continue
        except PyverbsRDMAError as refused:
            if refused.error_code != error:
                wrong.append(f"{title}: {refused}")
        said = [line for line in log.read() if name in line]
        print(f"{title}: {errno.errorcode[error]}", *said, sep="\n    ")
        if reason is None:
            if said:
                wrong.append(f"{title}: the driver has refused the call")
            continue
        if not any(reason in line for line in said):
            wrong.append(f"{title}: the log does not say '{reason}'")
        if not any(refusal(error, device=name).search(line) for line in said):
            wrong.append(f"{title}: the log does not have the operation and its error")
    # Values in range are still accepted.
    own = device.ready_to_send()
    # The error of a work request is in its completion status and, in words, in the log.
    log.read()
    own.post_send(SendWR(wr_id=99, num_sge=1, sg=[SGE(4096, 16, 77)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED))
    polled = []
    while not any(wc.wr_id == 99 for wc in polled):
        polled = device.cq.poll()[1]
    if polled[-1].status != e.IBV_WC_LOC_PROT_ERR:
        wrong.append(f"an L_Key that does not exist: status {polled[-1].status}")
    said = [line for line in log.read() if name in line]
    if not any(f"QP {own.qp_num}: a send request completed in error: local protection error" in line for line in said):
        wrong.append(f"the log does not have the failed work request: {said}")
    return wrong


def test_granted(names):
    """No size that is granted is above the limit of the device, and each can be requested: ibv_create_qp stores the sizes of the new queue pair
    in the structure that it was called with, from which programs create the next one."""
    device = Device(names[0], int(names[1]))
    limits = device.limits
    bounds = {"max_send_wr": limits.max_qp_wr, "max_recv_wr": limits.max_qp_wr, "max_send_sge": limits.max_sge, "max_recv_sge": limits.max_sge}
    for wanted in ({}, {"max_send_wr": 100, "max_recv_wr": 100, "max_inline_data": 100}, bounds):
        own = device.qp(**wanted)
        cap = own.query(e.IBV_QP_CAP)[1].cap
        granted = {name: getattr(cap, name) for name in (*bounds, "max_inline_data")}
        print(wanted, granted, sep="\n    ")
        assert all(granted[name] >= size for name, size in wanted.items()), granted
        assert all(granted[name] <= size for name, size in bounds.items()), (granted, bounds)
        own.close()
        own = device.qp(**granted)
        cap = own.query(e.IBV_QP_CAP)[1].cap
        assert granted == {name: getattr(cap, name) for name in granted}, (granted, cap)
        own.close()
    for wanted in (1, 100, limits.max_srq_wr):
        granted = device.srq(wanted).query().max_wr
        assert wanted <= granted <= limits.max_srq_wr and device.srq(granted).query().max_wr == granted, (wanted, granted)
    for wanted in (1, 100, limits.max_cqe):
        granted = CQ(device.ctx, wanted, None, None, 0).cqe
        assert wanted <= granted <= limits.max_cqe and CQ(device.ctx, granted, None, None, 0).cqe == granted, (wanted, granted)


def test_ip_based_gids(names):
    """The port says that its GIDs are IP addresses, as those of adapters for RoCE v2 do (IB_UVERBS_PCF_IP_BASED_GIDS)."""
    flags = Context(name=names[0]).query_port(1).port_cap_flags
    assert flags & 1 << 26 and flags & 1 << 16, f"{flags:#x}"


def test_mapping(names):
    """Memory that no ring has cannot be mapped."""
    ctx = Context(name=names[0])
    for offset, length in ((0, mmap.PAGESIZE), (1 << 30, mmap.PAGESIZE), (1 << 30, 1 << 20)):
        with refusal_logged(errno.EINVAL, "mmap", names[0]):
            try:
                mmap.mmap(ctx.cmd_fd, length, offset=offset)
                raise AssertionError(f"{length} bytes at {offset} were mapped")
            except OSError as error:
                assert error.errno == errno.EINVAL, error


def test_link(_names):
    """A second link on a network device and one on a VLAN device are refused; there is no RDMA device that a message could name."""
    request, kind = Netlink(), host.shell("link_type a").strip()
    host.shell("ip link add d0 type dummy; ip link set d0 up; ip link add link d0 name d0.7 type vlan id 7; ip link set d0.7 up")
    try:
        request(Netlink.NEWLINK, NAME="rxe_f", TYPE=kind, NETDEV="d0")
        for netdev, number in (("d0", errno.EEXIST), ("d0.7", errno.EINVAL)):
            with refusal_logged(number, "rdma link add rxe_g", netdev.replace(".", r"\.")):
                try:
                    request(Netlink.NEWLINK, NAME="rxe_g", TYPE=kind, NETDEV=netdev)
                    raise AssertionError(f"there is a link on {netdev}")
                except OSError as error:
                    assert error.errno == number, error
    finally:
        host.shell("ip link del d0")
