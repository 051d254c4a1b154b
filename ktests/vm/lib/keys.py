# SPDX-License-Identifier: GPL-2.0
"""Memory keys: remote accesses, memory windows, and re-registration of regions."""
import contextlib
import ctypes
import errno
import mmap

from pyverbs.mr import MWBind, MWBindInfo
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SendWR
import pyverbs.enums as e

from lib import uverbs
from lib.debug_messages import refusal_logged
from lib.ends import ACCESS, in_thread, pair, pattern

LOCAL = e.IBV_ACCESS_LOCAL_WRITE
BINDABLE = LOCAL | e.IBV_ACCESS_MW_BIND
WRITE, READ, ATOMIC = e.IBV_ACCESS_REMOTE_WRITE, e.IBV_ACCESS_REMOTE_READ, e.IBV_ACCESS_REMOTE_ATOMIC
REFUSED = e.IBV_WC_REM_ACCESS_ERR
PAGE = mmap.PAGESIZE
# Flags of IBV_REREG_MR_CHANGE_…
TRANS, PD_, ACCESS_ = 1, 2, 4


def local_inv(end, key, flags=e.IBV_SEND_SIGNALED, wr_id=8):
    wr = SendWR(wr_id=wr_id, num_sge=1, sg=[end.sge(0)], opcode=e.IBV_WR_LOCAL_INV, send_flags=flags)
    wr.imm_data = key
    end.qp.post_send(wr)


def bind(end, mw, offset, length, access, mr=None, flags=e.IBV_SEND_SIGNALED):
    """Binds a window of type 2 and returns its new key."""
    mr = mr or end.mr
    info = MWBindInfo(mr, mr.buf + offset, length, access)
    wr = SendWR(wr_id=7, opcode=e.IBV_WR_BIND_MW, send_flags=flags)
    wr.set_bind_wr(mw, info)
    key = wr.rkey
    end.qp.post_send(wr)
    return key


def bind1(end, mw, offset, length, access, mr=None):
    """Binds a window of type 1 and returns its new key."""
    mr = mr or end.mr
    end.qp.bind_mw(mw, MWBind(MWBindInfo(mr, mr.buf + offset, length, access), e.IBV_SEND_SIGNALED))
    return mw.rkey


def write(a, addr, key, length=64, status=e.IBV_WC_SUCCESS, seed=1):
    data = pattern(length, seed)
    a.mr.write(data, length)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(length), remote=(addr, key))
    a.complete(status)
    return data


def read(a, addr, key, length=64, status=e.IBV_WC_SUCCESS):
    a.post(e.IBV_WR_RDMA_READ, a.sge(length), remote=(addr, key))
    a.complete(status)
    return a.mr.read(length, 0)


def extended(names, ops, access=ACCESS, rights=ACCESS):
    """Two connected ends. The queue pair of a is created with ibv_create_qp_ex(); both grant their peer these access rights."""
    a, b = pair(names, b_access=access)
    a.qp.close()
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
    init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=a.cq, rcq=a.cq, cap=cap, pd=a.pd, send_ops_flags=ops, sq_sig_all=1,
                        comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
    a.qp = QPEx(a.ctx, init)
    b.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    a.connect(b, 0xFFFFFE, 0x000123, rights=rights)
    b.connect(a, 0x000123, 0xFFFFFE, rights=rights)
    return a, b


def rereg(mr, end, flags, pd=None, addr=0, length=0, iova=None, access=0):
    """Calls REREG_MR, which the provider library lacks. Returns the error number, or 0; the keys must not change."""
    try:
        keys = uverbs.rereg_mr(end.ctx.cmd_fd, mr.handle, flags, pd.handle if pd else 0, addr, length, addr if iova is None else iova, access)
    except OSError as error:
        return error.errno
    assert keys == (mr.lkey, mr.rkey), f"keys have changed: {keys}"
    return 0


def rereg_refused(number, mr, end, flags, **options):
    """The driver must refuse the call with this error, and log that."""
    with refusal_logged(number, "rereg_user_mr"):
        error = rereg(mr, end, flags, **options)
    assert error == number, f"{errno.errorcode.get(error, error)}, expected {errno.errorcode[number]}"


def page_buffer(pages):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    return libc.mmap(None, pages * PAGE, 3, 0x22, -1, 0)


@contextlib.contextmanager
def reregistered_repeatedly(mr, end, addr, length, access):
    """Re-registers the region repeatedly in another thread. No call may fail."""
    failures = []

    def change(stop):
        n = 0
        while not stop.is_set():
            flags = (TRANS, ACCESS_, TRANS | ACCESS_)[n % 3]
            error = rereg(mr, end, flags, addr=addr, length=length, access=access)
            if error:
                failures.append(error)
            n += 1
        print(f"re-registered {n} times")

    with in_thread(change):
        yield
    assert not failures, failures
