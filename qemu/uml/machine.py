# SPDX-License-Identifier: GPL-2.0
"""A User Mode Linux machine, with the same methods as a QEMU machine."""
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Frames that a network device sends or receives at once, and bytes that wait in a socket for the other machine.
QUEUE = 64
SOCKET_BYTES = 4 << 20

sys.path.insert(0, str(HERE.parent))
import image  # noqa: E402
import kernel  # noqa: E402
import kernel_build  # noqa: E402


def ensure(series, suite=image.DEBIAN, debug=False, more=()):
    """Prepares the files that a machine boots from: those of a QEMU machine of that series, and the User Mode Linux kernel."""
    boot = image.ensure(series, suite, more=more)
    kind = "uml-debug" if debug else "uml"
    info = kernel_build.ensure(boot["SERIES"], kind)
    # The faster mode, in which seccomp intercepts system calls of processes, does not work with KASAN's shadow memory.
    seccomp = "off" if debug else "on"
    return {**boot, **kernel_build.paths(info, kind), "SECCOMP": seccomp}


def host_mhz():
    match = re.search(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text())
    return match[1] if match else "1000.000"


def ethernet():
    """The two ends of an Ethernet between two machines. A frame is a packet of this kind of socket, and none is lost."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    return ends


class Machine:
    """A running machine. The log of its console is in `folder`; `networks`: the sockets and MAC addresses of its network devices; `pin`: the
    first of the host's processors to which its processors are bound, or None."""

    def __init__(self, node, boot, folder, share, cpus, memory_mib, networks=(), append="", pin=None):
        self.node = node
        self.serial = folder / f"serial-{node}.log"
        # The machine's memory is a file there, so the file system must be in memory and allow execution. The path is short, because the
        # control socket is there, too.
        self.scratch = Path(tempfile.mkdtemp(prefix="rxe-uml-", dir="/dev/shm"))
        shutil.copy(HERE / "guest-init", Path(share) / "guest/uml-init")
        first = f'"mount -t hostfs -o hostfs={share} share /share; exec busybox sh /share/guest/uml-init"'
        command = [
            str(boot["KERNEL"]), f"mem={memory_mib}M", f"ncpus={cpus}", f"ubd0r={boot['ROOTFS']}", "root=/dev/ubda", "ro", "rootfstype=ext4",
            f"uml_dir={self.scratch}", "umid=m", "con=null", "con0=null,fd:1", "con1=null,fd:1", "console=tty0", f"seccomp={boot['SECCOMP']}",
            "quiet", "loglevel=4", kernel.LOG_BUFFER, "panic=-1", "oops=panic", "kunit.autorun=0", "sysrq_always_enabled", f"rxe.node={node}", f"rxe.share={share}",
            f"rxe.modules={boot['MODULES']}", f"rxe.mhz={host_mhz()}", *append.split(),
            *(f"vec{number}:transport=fd,fd={end.fileno()},mac={mac},depth={QUEUE}" for number, (end, mac) in enumerate(networks)),
            "init=/bin/sh", "--", "-c", first,
        ]
        self.log = open(self.serial, "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        pass_fds=[end.fileno() for end, _ in networks],
                                        start_new_session=True, env={**os.environ, "TMPDIR": str(self.scratch)})
        for end, _ in networks:
            end.close()

        # If the host schedules by session (autogroup), the nice value of a process has no effect on processes of other sessions.
        try:
            Path(f"/proc/{self.process.pid}/autogroup").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
        except OSError:
            pass

        if pin is not None:
            threading.Thread(target=self.pin, args=(pin, cpus), daemon=True).start()

    def pin(self, first, cpus):
        """Binds each processor of the machine to one of the host, from the one with this number on; the user space that runs on it inherits
        the affinity."""
        host = sorted(os.sched_getaffinity(0))[first:]
        for _ in range(200):
            try:
                # The first threads are those of the processors, in order.
                tasks = sorted(int(t) for t in os.listdir(f"/proc/{self.process.pid}/task"))[:cpus]
                if len(tasks) == cpus:
                    for number, task in enumerate(tasks):
                        os.sched_setaffinity(task, {host[number]})
                    return
            except OSError:
                return
            time.sleep(0.005)

    def alive(self):
        return self.process.poll() is None

    def monitor(self, command):
        """Sends a command to the machine's control socket (mconsole): `sysrq t`, `stack PID`, `halt`, …; returns the response."""
        path = self.scratch / "m/mconsole"
        answer = self.scratch / "answer"
        answer.unlink(missing_ok=True)
        data = command.encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.settimeout(3)
            s.bind(str(answer))
            s.sendto(struct.pack("<III512s", 0xCAFEBABE, 2, len(data), data), str(path))
            text = b""
            while True:
                reply = s.recv(4096)
                _, more, length = struct.unpack("<iii", reply[:12])
                text += reply[12:12 + length]
                if not more:
                    return text.decode(errors="replace").rstrip("\0")

    def show_state(self):
        """Makes a kernel that hangs print its tasks and the stacks of its processors, by SysRq, to the console's log."""
        try:
            for key in "9wtl":
                self.log.write(self.monitor(f"sysrq {key}").encode())
            self.log.flush()
        except OSError as error:
            kernel.say(f"cannot get the state of the machine: {error}")

    def wait(self, seconds):
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def stop(self):
        try:
            # The machine and the processes of its user space are one process group.
            os.killpg(self.process.pid, 9)
        except OSError:
            pass
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def serial_text(self):
        try:
            return self.serial.read_text(errors="replace")
        except OSError:
            return ""
