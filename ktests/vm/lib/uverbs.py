# SPDX-License-Identifier: GPL-2.0
"""Direct calls of the uverbs interface (include/uapi/rdma/ib_user_verbs.h and rdma_user_ioctl.h), for verbs and arguments that the
library lacks or rejects. All raise OSError."""
import ctypes
import fcntl
import glob
import os
import struct

GET_CONTEXT, CREATE_AH, DESTROY_AH = 0, 5, 8
REG_MR, REREG_MR, DEREG_MR, ALLOC_MW = 9, 11, 13, 14
QUERY_QP = 25
# Object types (`enum uverbs_default_objects`).
DEVICE, MR = 0, 7
# Methods of memory regions (`enum uverbs_methods_mr`).
QUERY_MR, REG_MR_METHOD = 3, 5
DRIVER_ID = 14
MANDATORY = 1
IOCTL = (3 << 30) | (24 << 16) | (0x1B << 8) | 1


def command(fd, number, body, response=0):
    """Writes a command; `response` is the length of the response, whose address is in the body."""
    os.write(fd, struct.pack("=IHH", number, (8 + len(body)) // 4, response // 4) + body)


def method(fd, object_type, number, attrs, driver=DRIVER_ID):
    """Calls an ioctl method with attributes (id, length, data or address); returns the data of each as the kernel left it."""
    body = b"".join(struct.pack("=HHHHQ", attr, size, MANDATORY, 0, data) for attr, size, data in attrs)
    request = bytearray(struct.pack("=HHHHQII", 24 + len(body), object_type, number, len(attrs), 0, driver, 0) + body)
    fcntl.ioctl(fd, IOCTL, request)
    return [data for *_, data in struct.iter_unpack("=HHHHQ", request[24:])]


def path_of(device):
    """The path of the character device of an RDMA device."""
    for path in glob.glob("/sys/class/infiniband_verbs/uverbs*/ibdev"):
        with open(path, encoding="ascii") as file:
            if file.read().strip() == device:
                return f"/dev/infiniband/{path.split('/')[-2]}"
    raise FileNotFoundError(device)


def get_context(fd):
    """Creates the context of an open character device; returns its file of asynchronous events."""
    response = ctypes.create_string_buffer(8)
    command(fd, GET_CONTEXT, struct.pack("=Q", ctypes.addressof(response)), len(response))
    return struct.unpack("=II", response.raw)[0]


def gid_bytes(gid):
    """The 16 bytes of a GID of pyverbs."""
    return bytes.fromhex(gid.gid.replace(":", ""))


def create_ah(fd, pd, gid, gid_index, numbered=True, flow_label=0, traffic_class=0):
    """Returns the handle of an address handle for a GID of 16 bytes, and its number. `numbered`: with room for that in the response."""
    # The driver's part of the response is a number and a reserved field.
    response = ctypes.create_string_buffer(12 if numbered else 4)
    command(fd, CREATE_AH, struct.pack("=QQII16sIBBBBHBBBBBB", ctypes.addressof(response), 0, pd, 0, gid, flow_label, gid_index, 64, traffic_class,
                                       0, 0, 0, 0, 0, 1, 1, 0), len(response))
    return struct.unpack("=II", response.raw[:8].ljust(8, b"\0"))


def destroy_ah(fd, handle):
    command(fd, DESTROY_AH, struct.pack("=I", handle))


def alloc_mw(fd, pd, kind):
    """Returns handle and R_Key."""
    response = ctypes.create_string_buffer(8)
    command(fd, ALLOC_MW, struct.pack("=QIB3x", ctypes.addressof(response), pd, kind), len(response))
    return struct.unpack("=II", response.raw)


def reg_mr(fd, pd, addr, length, iova, access):
    """Returns handle, L_Key and R_Key."""
    response = ctypes.create_string_buffer(12)
    command(fd, REG_MR, struct.pack("=QQQQII", ctypes.addressof(response), addr, length, iova, pd, access), len(response))
    return struct.unpack("=III", response.raw)


def rereg_mr(fd, mr, flags, pd=0, addr=0, length=0, iova=0, access=0):
    """Returns L_Key and R_Key. `flags` says what changes: translation 1, protection domain 2, access rights 4."""
    response = ctypes.create_string_buffer(8)
    command(fd, REREG_MR, struct.pack("=QIIQQQII", ctypes.addressof(response), mr, flags, addr, length, iova, pd, access), len(response))
    return struct.unpack("=II", response.raw)


def dereg_mr(fd, mr):
    command(fd, DEREG_MR, struct.pack("=I", mr))


def reg_mr_by_method(fd, pd, addr, length, iova, access):
    """As `reg_mr`, by the ioctl method."""
    lkey, rkey = ctypes.c_uint32(), ctypes.c_uint32()
    handle, *_ = method(fd, MR, REG_MR_METHOD, [(0, 0, 0), (1, 0, pd), (3, 8, iova), (4, 8, addr), (5, 8, length), (6, 4, access),
                                                (9, 4, ctypes.addressof(lkey)), (10, 4, ctypes.addressof(rkey))])
    return handle, lkey.value, rkey.value


def query_mr(fd, mr):
    """Returns L_Key, R_Key, length and address of a region, as `ibv_import_mr` gets them."""
    values = [ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint64(), ctypes.c_uint64()]
    attrs = [(1 + n, ctypes.sizeof(value), ctypes.addressof(value)) for n, value in enumerate(values)]
    method(fd, MR, QUERY_MR, [(0, 0, mr), *attrs])
    return tuple(value.value for value in values)


def query_qp(fd, qp):
    """Returns some attributes of the queue pair with this handle."""
    response = ctypes.create_string_buffer(128)
    command(fd, QUERY_QP, struct.pack("=QII", ctypes.addressof(response), qp, 0), len(response))
    qkey, rq_psn, sq_psn, dest_qp_num = struct.unpack_from("=IIII", response, 84)
    return {"qkey": qkey, "rq_psn": rq_psn, "sq_psn": sq_psn, "dest_qp_num": dest_qp_num}
