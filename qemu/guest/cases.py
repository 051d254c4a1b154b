#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs test programs in forked children of a process that has loaded pyverbs, because loading takes seconds in an emulated machine.

cases.py FIFO    serves requests of `python_case` (lib.sh), a line each: PID FOLDER FILE [ARGUMENT …], quoted as in a shell.

The child inherits the standard files, the working directory, the resource limits and the OOM score adjustment of the requesting process PID
and runs FILE as a program. Its exit status is written to the FIFO `status` in FOLDER. If the requester ends, the child is killed.
"""
import ctypes
import importlib
import os
import resource
import selectors
import shlex
import signal
import sys
import traceback
import types

from ending import status_of

LOADED = ("addr", "cm_enums", "cmid", "cq", "device", "enums", "mr", "pd", "pyverbs_error", "qp", "srq", "wr")
PIDFD_GETFD = 438
libc = ctypes.CDLL(None, use_errno=True)
compiled = {}


def code_of(path):
    """The compiled program. It is compiled once, in the parent."""
    key = path, os.stat(path).st_mtime_ns
    if key not in compiled:
        with open(path, encoding="utf-8") as file:
            compiled[key] = compile(file.read(), path, "exec")
    return compiled[key]


def inherit(pid, pidfd):
    """Takes the files, the working directory, the limits and the OOM score adjustment of the requester, as if it had started this process."""
    for number in (0, 1, 2):
        fd = libc.syscall(PIDFD_GETFD, pidfd, number, 0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(f"/proc/{pid}/cwd")
    with open(f"/proc/{pid}/oom_score_adj", "rb") as wanted, open("/proc/self/oom_score_adj", "wb") as own:
        own.write(wanted.read())
    for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, resource.prlimit(pid, limit))


def run(path, code, arguments):
    """Runs a program to its end; returns its exit status."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    return status_of(exec, code, main.__dict__)


def report(folder, status, selector):
    """Writes the exit status of a program, in a process of its own: opening the FIFO blocks until the requester has opened it."""
    reporter = os.fork()
    if reporter == 0:
        try:
            signal.alarm(10)
            with open(f"{folder}/status", "w", encoding="ascii") as file:
                file.write(f"{status}\n")
        finally:
            os._exit(0)
    selector.register(os.pidfd_open(reporter), selectors.EVENT_READ, ("reported", reporter, None, None))


def begin(pid, folder, path, arguments, selector):
    """Starts the program of a request."""
    code = code_of(path)
    requester = os.pidfd_open(pid)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setpgid(0, 0)
            inherit(pid, requester)
            for key in list(selector.get_map().values()):
                os.close(key.fd)
            os.close(requester)
            selector.close()
            status = run(path, code, arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    ended = os.pidfd_open(child)
    selector.register(ended, selectors.EVENT_READ, ("ended", child, folder, requester))
    selector.register(requester, selectors.EVENT_READ, ("gone", child, folder, ended))


def serve(fifo, modules=LOADED):
    """Serves requests without end; `modules` of pyverbs are loaded before."""
    for name in modules:
        importlib.import_module(f"pyverbs.{name}")
    os.mkfifo(fifo + ".new")
    requests = os.open(fifo + ".new", os.O_RDWR | os.O_NONBLOCK)
    # Whoever finds the FIFO by its name may send requests now.
    os.rename(fifo + ".new", fifo)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ, None)
    text = b""
    while True:
        for key, _ in selector.select():
            if key.data is None:
                text += os.read(requests, 65536)
                *lines, text = text.split(b"\n")
                for line in lines:
                    try:
                        pid, folder, path, *arguments = shlex.split(line.decode())
                        pid = int(pid)
                    except ValueError:
                        # Not a request, so nobody waits for a status.
                        traceback.print_exc()
                        continue
                    try:
                        begin(pid, folder, path, arguments, selector)
                    except (OSError, ValueError, SyntaxError):
                        traceback.print_exc()
                        report(folder, 1, selector)
                continue
            what, child, folder, other = key.data
            if key.fd not in selector.get_map():
                continue
            for fd in (key.fd, other):
                if fd is not None:
                    selector.unregister(fd)
                    os.close(fd)
            if what == "gone":
                try:
                    os.killpg(child, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            _, status = os.waitpid(child, 0)
            if what == "ended":
                code = os.waitstatus_to_exitcode(status)
                # A signal is reported as in a shell.
                report(folder, code if code >= 0 else 128 - code, selector)


if __name__ == "__main__":
    serve(sys.argv[1])
