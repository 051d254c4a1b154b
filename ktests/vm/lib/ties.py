# SPDX-License-Identifier: GPL-2.0
"""Tied regions, which end with a queue pair: the ioctl method of uapi/rxe_rs.h."""
import ctypes
import struct

from lib import uverbs
from lib.segments import ATTR_MR, ATTR_REQUEST, Refused

TIE, ATTR_QP = 0x1002, 0x1003


def handle_of(end, peer):
    """The uverbs handle of an end's queue pair, which pyverbs does not expose: that of the one connected to `peer`."""
    for handle in range(4096):
        if peer_of(end.ctx.cmd_fd, handle) == peer.qp.qp_num:
            return handle
    raise AssertionError("no such queue pair")


def tie_handles(fd, mr, rkey, qp, flags=0, reserved=0, size=16, more=b""):
    request = ctypes.create_string_buffer(struct.pack("=IIQ", rkey, flags, reserved)[:size] + more, size + len(more))
    attrs = [(ATTR_MR, 0, mr), (ATTR_REQUEST, len(request), ctypes.addressof(request)), (ATTR_QP, 0, qp)]
    try:
        uverbs.method(fd, uverbs.MR, TIE, attrs)
    except OSError as error:
        raise Refused(error.errno) from None


def peer_of(fd, handle):
    """The destination QPN of the queue pair with this handle; None if there is no such handle."""
    try:
        return uverbs.query_qp(fd, handle)["dest_qp_num"]
    except OSError:
        return None
