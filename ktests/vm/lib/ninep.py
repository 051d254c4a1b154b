#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A folder for clients of 9P2000.L: what each message means, however it travels (over RDMA: ninep_rdma.py).

Numbers and layouts as in the kernel's include/net/9p/9p.h and net/9p/protocol.c; numbers are little endian. What is not in `CALLS`
(extended attributes, locks, devices, old operations for which there are new ones) is answered by EOPNOTSUPP. There are no users:
everything is done as the process that serves, and what is made belongs to it.
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
# How many files and folders a client may hold, each by two descriptors at most.
FIDS = 4096
NAMES = 16
QID_DIR, QID_SYMLINK = 0x80, 0x02
AT_REMOVEDIR = 0x200
FILE_SYSTEM = 0x01021997
# What of a file is known: everything from mode to blocks.
BASIC = 0x7FF
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_ATIME_TO, SET_MTIME_TO = (1 << n for n in (0, 1, 2, 3, 4, 5, 7, 8))
# The numbers of open's flags are those of this machine (amd64). No open waits for another process.
OPEN_FLAGS, ALWAYS = os.O_ACCMODE | os.O_TRUNC | os.O_DIRECTORY | os.O_EXCL, os.O_NONBLOCK | os.O_NOCTTY
CALLS = {}


class Malformed(Exception):
    """A message that has no answer; the connection ends."""


def refuse(code):
    raise OSError(code, os.strerror(code))


def name_of(text):
    """One step down from a folder: nothing else can be named, so nothing outside of the folder that is served."""
    if text in (b"", b".", b"..") or b"/" in text or b"\0" in text:
        refuse(errno.EINVAL)
    return text


def fields(form, data):
    """What a message holds: B H I Q as in `struct`, s a counted string, n such a name, N a counted list of names, D counted data.
    EPROTO if something is missing or left over."""
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
    """Who a file is (its number), of which kind, and in which version."""
    kind = QID_DIR if stat.S_ISDIR(info.st_mode) else QID_SYMLINK if stat.S_ISLNK(info.st_mode) else 0
    return struct.pack("<BIQ", kind, info.st_mtime_ns & 0xFFFFFFFF, info.st_ino)


def call(number, form):
    """The method answers this message; its `form` is that of `fields`."""
    def known(method):
        CALLS[number] = form, method
        return method
    return known


class Fid:
    """What the client names by a number. The descriptor `place` stays right when files are renamed; `file` is there once opened."""

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
    """One client. Its requests are answered one after the other, in the order in which they come."""

    def __init__(self, folder, limit):
        """`limit`: bytes of the longest message."""
        self.folder, self.limit, self.msize, self.fids = folder, limit, 0, {}

    def answer(self, request):
        """The answer to a message, never longer than what was agreed on. Raises Malformed."""
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
            # A number that no system call takes is no OSError.
            body, kind = struct.pack("<I", getattr(error, "errno", None) or errno.EINVAL), RLERROR
        return HEADER.pack(HEADER.size + len(body), kind, tag) + body

    def close(self):
        for fid in self.fids.values():
            fid.close()
        self.fids.clear()

    def fid(self, number):
        return self.fids.get(number) or refuse(errno.EBADF)

    def add(self, number, place):
        """`place` is the new fid's from here on, or closed."""
        if number in self.fids or number == NO_FID or len(self.fids) >= FIDS:
            os.close(place)
            refuse(errno.EBADF if len(self.fids) < FIDS else errno.EMFILE)
        self.fids[number] = Fid(place)

    def room(self, count):
        """Bytes of data that an answer has room for."""
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
        """Whatever came earlier has been answered."""

    @call(110, "IIN")
    def walk(self, number, target, names):
        at, qids = os.dup(self.fid(number).place), []
        for name in names:
            try:
                below = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
            except OSError:
                if not qids:
                    raise
                # How far it goes; `target` is as it was.
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
        """The names of the moment when the folder is read from its begin: places in it stay what they are."""
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
            # One that is not to be set stays as it is; one that is set to no time is set to the present.
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
