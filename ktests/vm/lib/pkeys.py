# SPDX-License-Identifier: GPL-2.0
"""The P_Key table of a device, and queue pairs in its partitions."""
import contextlib

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.qp import QPAttr
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib.ends import ACCESS, End

QKEY = 0x4711
TYPES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}


def attribute(device):
    return f"/sys/class/infiniband/{device}/pkey_table"


def put(device, index, key):
    with open(attribute(device), "w") as table:
        table.write(f"{index} {key:#x}\n")


def table(device):
    with open(attribute(device)) as lines:
        return {int(index): int(key, 16) for index, key in (line.split() for line in lines)}


@contextlib.contextmanager
def entries(*them):
    """Sets entries of tables, each a device, an index and a key, and clears them at the end: other tests expect the table of a new link."""
    try:
        for entry in them:
            put(*entry)
        yield
    finally:
        for device, index, _ in them:
            put(device, index, 0)


class Member(End):
    """A queue pair of any type with a P_Key index of its own."""

    def __init__(self, name, gid_index, kind, pkey_index):
        super().__init__(name, gid_index, qp_type=TYPES[kind])
        self.kind, self.pkey_index = kind, pkey_index

    def route(self, other, gid=None):
        gid = gid or other.ctx.query_gid(1, other.gid_index)
        return AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=64), is_global=1, port_num=1)

    def modify(self, attr, mask):
        self.qp.modify(attr, mask)

    def join(self, other, timeout=14, retries=1, gid=None, dest=None, mtu=e.IBV_MTU_1024, rq_psn=5, sq_psn=5, depth=1, peer_depth=1, qkey=QKEY):
        """Connects to another one. Each optional argument but the retries is for an attribute that differs from the peer's."""
        steps = e.IBV_QP_STATE
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.pkey_index = self.pkey_index
        init = steps | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
        dest = other.qp.qp_num if dest is None else dest
        if self.kind == "UD":
            attr.qkey = qkey
            self.modify(attr, init | e.IBV_QP_QKEY)
            self.modify(QPAttr(qp_state=e.IBV_QPS_RTR), steps)
            attr = QPAttr(qp_state=e.IBV_QPS_RTS)
            attr.sq_psn = sq_psn
            self.modify(attr, steps | e.IBV_QP_SQ_PSN)
            self.ah = AH(self.pd, attr=self.route(other, gid))
            self.peer = dest
            return
        attr.qp_access_flags = ACCESS if self.kind == "RC" else e.IBV_ACCESS_REMOTE_WRITE
        self.modify(attr, init | e.IBV_QP_ACCESS_FLAGS)
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        attr.ah_attr, attr.path_mtu, attr.dest_qp_num, attr.rq_psn = self.route(other, gid), mtu, dest, rq_psn
        rtr = steps | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        rts = steps | e.IBV_QP_SQ_PSN
        if self.kind == "RC":
            attr.max_dest_rd_atomic, attr.min_rnr_timer = peer_depth, 12
            rtr |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
            rts |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        self.modify(attr, rtr)
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = sq_psn, timeout, retries, 7, depth
        self.modify(attr, rts)

    def send(self, text, wr_id=2, qkey=QKEY):
        self.mr.write(text, len(text))
        wr = SendWR(wr_id=wr_id, num_sge=1, sg=[self.sge(len(text))], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        if self.kind == "UD":
            wr.set_wr_ud(self.ah, self.peer, qkey)
        self.qp.post_send(wr)

    def received(self, text):
        skip = 40 if self.kind == "UD" else 0
        wc = self.complete()
        assert wc.byte_len == skip + len(text) and self.mr.read(len(text), skip) == text
        return wc

    def drops(self):
        return self.ctx.query_port(1).bad_pkey_cntr
