#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A 9P2000.L server for one directory, independent of the transport (RDMA: ninep_rdma.py).

Numbers and layouts as in the kernel's include/net/9p/9p.h and net/9p/protocol.c; integers are little endian. Messages that are not in
`CALLS` (extended attributes, locks, devices, operations of older dialects) are answered by EOPNOTSUPP. Users are not distinguished: all
operations run as the serving process, which owns the files that are created.
"""
import errno
import os
import stat
import struct
import time

HEADER = struct.Struct("<IBH")
TVERSION, RLERROR = 100, 7
NO_FID = 0xFFFFFFFF
DIALECT = b"9P2000.L"
# The largest number of fids of a client, each with two descriptors at most.
FIDS = 4096
NAMES = 16
QID_DIR, QID_SYMLINK = 0x80, 0x02
AT_REMOVEDIR = 0x200
FILE_SYSTEM = 0x01021997
# The valid attributes in the reply to GETATTR: all from mode to blocks (P9_STATS_BASIC).
BASIC = 0x7FF
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_ATIME_TO, SET_MTIME_TO = (1 << n for n in (0, 1, 2, 3, 4, 5, 7, 8))
# The protocol's open flags have the values of amd64. O_NONBLOCK: no open waits for another process.
OPEN_FLAGS, ALWAYS = os.O_ACCMODE | os.O_TRUNC | os.O_DIRECTORY | os.O_EXCL, os.O_NONBLOCK | os.O_NOCTTY
CALLS = {}


class Malformed(Exception):
    """A message that cannot be answered: the connection ends."""


def refuse(code):
    raise OSError(code, os.strerror(code))


def name_of(text):
    """Checks a path component: no name may lead out of the exported directory."""
    if text in (b"", b".", b"..") or b"/" in text or b"\0" in text:
        refuse(errno.EINVAL)
    return text


def fields(form, data):
    """Decodes a message: B H I Q as in `struct`, s a counted string, n a counted path component, N a counted list of those, D counted
    data. EPROTO if bytes are missing or left over."""
    at, found = 0, []

    def take(count):
        nonlocal at
        if count > len(data) - at:
            refuse(errno.EPROTO)
        at += count
        return data[at - count:at]

    def number(letter):
        return struct.unpack("<" + letter, take(struct.calcsize("<" + letter)))[0]

    def name():
        return name_of(bytes(take(number("H"))))

    for letter in form:
        if letter == "s":
            found.append(bytes(take(number("H"))))
        elif letter == "n":
            found.append(name())
        elif letter == "N":
            count = number("H")
            if count > NAMES:
                refuse(errno.EPROTO)
            found.append([name() for _ in range(count)])
        elif letter == "D":
            found.append(take(number("I")))
        else:
            found.append(number(letter))
    if at != len(data):
        refuse(errno.EPROTO)
    return found


def text(value):
    return struct.pack("<H", len(value)) + value


def qid(info):
    """The qid of a file: its type, version and inode number."""
    kind = QID_DIR if stat.S_ISDIR(info.st_mode) else QID_SYMLINK if stat.S_ISLNK(info.st_mode) else 0
    return struct.pack("<BIQ", kind, info.st_mtime_ns & 0xFFFFFFFF, info.st_ino)


def call(number, form):
    """Declares that the method handles this message type; `form` is the argument of `fields`."""
    def known(method):
        CALLS[number] = form, method
        return method
    return known


class Fid:
    """A fid. The O_PATH descriptor `place` stays valid when files are renamed; `file` is set when the fid is open."""

    def __init__(self, place):
        self.place, self.file, self.names = place, None, []

    @property
    def path(self):
        return f"/proc/self/fd/{self.place}"

    def opened(self):
        return self.file if self.file is not None else refuse(errno.EBADF)

    def info(self):
        return os.fstat(self.place)

    def close(self):
        for descriptor in (self.place, self.file):
            if descriptor is not None:
                os.close(descriptor)
        self.place = self.file = None


class Session:
    """The state of one client, whose requests are answered in order."""

    def __init__(self, folder, limit):
        """`limit`: the length of the longest message, in bytes."""
        self.folder, self.limit, self.msize, self.fids = folder, limit, 0, {}

    def reply(self, request):
        """Returns the reply to a message, which is not longer than the negotiated msize. Raises Malformed."""
        if len(request) < HEADER.size or len(request) > (self.msize or self.limit):
            raise Malformed(f"{len(request)} bytes")
        size, kind, tag = HEADER.unpack_from(request)
        if size != len(request):
            raise Malformed(f"{size} in {len(request)} bytes")
        try:
            if not self.msize and kind != TVERSION:
                refuse(errno.EPROTO)
            if kind not in CALLS:
                refuse(errno.EOPNOTSUPP)
            form, method = CALLS[kind]
            body, kind = method(self, *fields(form, request[HEADER.size:])) or b"", kind + 1
        except (OSError, OverflowError, ValueError) as error:
            # A number that is out of range for a system call raises no OSError.
            body, kind = struct.pack("<I", getattr(error, "errno", None) or errno.EINVAL), RLERROR
        return HEADER.pack(HEADER.size + len(body), kind, tag) + body

    def close(self):
        for fid in self.fids.values():
            fid.close()
        self.fids.clear()

    def fid(self, number):
        return self.fids.get(number) or refuse(errno.EBADF)

    def add(self, number, place):
        """Takes over the descriptor `place`: the new fid owns it, or it is closed."""
        if number in self.fids or number == NO_FID or len(self.fids) >= FIDS:
            os.close(place)
            refuse(errno.EBADF if len(self.fids) < FIDS else errno.EMFILE)
        self.fids[number] = Fid(place)

    def room(self, count):
        """The number of data bytes, at most `count`, that fit into a reply."""
        return min(count, self.msize - HEADER.size - 4)

    @call(TVERSION, "Is")
    def version(self, msize, dialect):
        self.close()
        if msize < 4096:
            refuse(errno.EINVAL)
        self.msize = min(msize, self.limit)
        return struct.pack("<I", self.msize) + text(DIALECT if dialect == DIALECT else b"unknown")

    @call(104, "IIssI")
    def attach(self, number, auth, _user, _tree, _uid):
        if auth != NO_FID:
            refuse(errno.EOPNOTSUPP)
        self.add(number, os.open(self.folder, os.O_PATH | os.O_DIRECTORY))
        return qid(self.fid(number).info())

    @call(108, "H")
    def flush(self, _tag):
        """All earlier requests have been answered."""

    @call(110, "IIN")
    def walk(self, number, target, names):
        at, qids = os.dup(self.fid(number).place), []
        for name in names:
            try:
                below = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
            except OSError:
                if not qids:
                    raise
                # A partial walk does not affect `target`.
                break
            finally:
                os.close(at)
            at = below
            qids.append(qid(os.fstat(at)))
        else:
            if number == target:
                self.clunk(number)
            self.add(target, at)
        return struct.pack("<H", len(qids)) + b"".join(qids)

    @call(12, "II")
    def lopen(self, number, flags):
        fid = self.fid(number)
        if fid.file is not None:
            refuse(errno.EBUSY)
        fid.file = os.open(fid.path, flags & OPEN_FLAGS & ~os.O_EXCL | ALWAYS)
        return qid(fid.info()) + struct.pack("<I", 0)

    @call(14, "InIII")
    def lcreate(self, number, name, flags, mode, _gid):
        fid = self.fid(number)
        if fid.file is not None:
            refuse(errno.EBUSY)
        file = os.open(name, flags & OPEN_FLAGS | ALWAYS | os.O_CREAT | os.O_NOFOLLOW, mode & 0o7777, dir_fd=fid.place)
        folder, fid.place, fid.file = fid.place, os.dup(file), file
        os.close(folder)
        return qid(fid.info()) + struct.pack("<I", 0)

    @call(116, "IQI")
    def read(self, number, offset, count):
        data = os.pread(self.fid(number).opened(), self.room(count), offset)
        return struct.pack("<I", len(data)) + data

    @call(118, "IQD")
    def write(self, number, offset, data):
        return struct.pack("<I", os.pwrite(self.fid(number).opened(), data, offset))

    @call(40, "IQI")
    def readdir(self, number, offset, count):
        """Lists the names from when the directory was read at offset 0, so that offsets stay valid."""
        fid, entries = self.fid(number), b""
        if offset == 0:
            fid.names = os.listdir(fid.opened())
        for at in range(offset, len(fid.names)):
            try:
                info = os.stat(fid.names[at], dir_fd=fid.place, follow_symlinks=False)
            except FileNotFoundError:
                continue
            entry = qid(info) + struct.pack("<QB", at + 1, info.st_mode >> 12) + text(os.fsencode(fid.names[at]))
            if len(entries) + len(entry) > self.room(count):
                if not entries:
                    refuse(errno.EINVAL)
                break
            entries += entry
        return struct.pack("<I", len(entries)) + entries

    @call(120, "I")
    def clunk(self, number):
        self.fid(number)
        self.fids.pop(number).close()

    @call(50, "II")
    def fsync(self, number, data_only):
        (os.fdatasync if data_only else os.fsync)(self.fid(number).opened())

    @call(24, "IQ")
    def getattr(self, number, _wanted):
        info = self.fid(number).info()
        times = [part for when in (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns) for part in divmod(when, 10**9)]
        return struct.pack("<Q", BASIC) + qid(info) + struct.pack(
            "<III5Q6q4Q", info.st_mode, info.st_uid, info.st_gid, info.st_nlink, info.st_rdev, info.st_size, info.st_blksize,
            info.st_blocks, *times, 0, 0, 0, 0)

    @call(26, "IIIIIQQQQQ")
    def setattr(self, number, what, mode, uid, gid, size, atime, atime_ns, mtime, mtime_ns):
        fid = self.fid(number)
        if what & (SET_UID | SET_GID):
            os.chown(fid.path, uid if what & SET_UID else -1, gid if what & SET_GID else -1)
        if what & SET_MODE:
            os.chmod(fid.path, mode & 0o7777)
        if what & SET_SIZE:
            os.truncate(fid.path, size)
        if what & (SET_ATIME | SET_MTIME):
            info, now = fid.info(), time.time_ns()
            # Without SET_ATIME_TO or SET_MTIME_TO, a time is set to the current time.
            os.utime(fid.path, ns=(
                atime * 10**9 + atime_ns if what & SET_ATIME_TO else now if what & SET_ATIME else info.st_atime_ns,
                mtime * 10**9 + mtime_ns if what & SET_MTIME_TO else now if what & SET_MTIME else info.st_mtime_ns))

    @call(72, "InII")
    def mkdir(self, number, name, mode, _gid):
        place = self.fid(number).place
        os.mkdir(name, mode & 0o7777, dir_fd=place)
        return qid(os.stat(name, dir_fd=place, follow_symlinks=False))

    @call(16, "InsI")
    def symlink(self, number, name, target, _gid):
        place = self.fid(number).place
        os.symlink(target, name, dir_fd=place)
        return qid(os.stat(name, dir_fd=place, follow_symlinks=False))

    @call(22, "I")
    def readlink(self, number):
        return text(os.readlink(b"", dir_fd=self.fid(number).place))

    @call(70, "IIn")
    def link(self, folder, number, name):
        os.link(self.fid(number).path, name, dst_dir_fd=self.fid(folder).place, follow_symlinks=True)

    @call(74, "InIn")
    def renameat(self, folder, name, new_folder, new_name):
        os.rename(name, new_name, src_dir_fd=self.fid(folder).place, dst_dir_fd=self.fid(new_folder).place)

    @call(76, "InI")
    def unlinkat(self, folder, name, flags):
        (os.rmdir if flags & AT_REMOVEDIR else os.unlink)(name, dir_fd=self.fid(folder).place)

    @call(8, "I")
    def statfs(self, number):
        info = os.statvfs(self.fid(number).path)
        return struct.pack("<IIQQQQQQI", FILE_SYSTEM, info.f_bsize, info.f_blocks, info.f_bfree, info.f_bavail, info.f_files,
                           info.f_ffree, info.f_fsid & 0xFFFFFFFFFFFFFFFF, info.f_namemax)
