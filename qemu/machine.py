# SPDX-License-Identifier: GPL-2.0
"""A QEMU machine: its command line, its serial log, how it is stopped. Also the choice between KVM and emulation."""
import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import kernel

PROBE_SECONDS = 20
# Distinguishes runs. Process IDs do not, because each run has a PID namespace of its own.
TOKEN = secrets.token_hex(4)
QEMU = "qemu-system-x86_64"
VIRTIOFSD = "/usr/libexec/virtiofsd"
# Without the flags for fast string instructions the kernel and libc use loops, which QEMU emulates faster than `rep movsb`. Without
# five-level paging a TLB miss takes less time. Measured once: 42 s of processor time for ten tests instead of 49.
EMULATED_CPU = "max,-erms,-fsrm,-fzrm,-fsrs,-fsrc,-la57"
# The kernel tests at boot whether timer interrupts arrive, and panics if the host does not run the emulator for some milliseconds then.
TIMER = "no_timer_check"
# Makes the kernel treat 16 MiB of the machine's memory as persistent, at an address that the smallest machine has.
PERSISTENT = "memmap=16M!512M"


@dataclass(frozen=True)
class Platform:
    """How a machine of an architecture is emulated; `append`: further options of the kernel's command line."""
    qemu: str
    machine: str
    cpu: str
    append: str


PLATFORMS = {
    "amd64": Platform(QEMU, "q35", EMULATED_CPU, f"console=ttyS0 {TIMER} {PERSISTENT}"),
    # A processor of servers with instructions for CRCs and atomics. Those that the maximal processor has besides take longer to emulate.
    "arm64": Platform("qemu-system-aarch64", "virt,gic-version=3", "neoverse-n1", "console=ttyAMA0"),
}


def probe_kvm(boot):
    """Whether KVM boots this kernel within PROBE_SECONDS, and why that is assumed. Even with a /dev/kvm a machine can hang or abort."""
    if os.environ.get("RXE_ACCEL"):
        return os.environ["RXE_ACCEL"] == "kvm", "RXE_ACCEL is set"
    if kernel.architecture(boot["SERIES"]) != "amd64":
        return False, "the processor is of another architecture"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False, "there is no usable /dev/kvm"
    try:
        known = json.loads(kvm_memo().read_text())
        if known["boot_id"] == host_boot_id():
            return known["works"], known["why"]
    except (OSError, ValueError, KeyError):
        pass
    kernel.say(f"trying KVM (at most {PROBE_SECONDS} s)")
    command = [QEMU, "-accel", "kvm", "-cpu", "host", "-machine", "q35", "-smp", "2", "-m", "512", "-nodefaults", "-no-reboot",
               "-display", "none", "-serial", "stdio", "-kernel", str(boot["VMLINUZ"]), "-initrd", str(boot["INITRD"]),
               "-append", "console=ttyS0 quiet panic=-1 mitigations=off rxe.probe=1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=PROBE_SECONDS)
        works = b"RXE-PROBE-OK" in done.stdout
        why = "a trial boot worked" if works else "a trial boot under KVM failed"
    except subprocess.TimeoutExpired:
        works, why = False, f"a trial boot under KVM hung for {PROBE_SECONDS} s"
    remember_kvm(works, why)
    return works, why


def host_boot_id():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def kvm_memo():
    """The file with the result of the trial since the host has booted."""
    return kernel.CACHE / "kvm-probe.json"


def remember_kvm(works, why):
    kvm_memo().write_text(json.dumps({"boot_id": host_boot_id(), "works": works, "why": why}))


def distrust_kvm():
    """Whether to use KVM still, after a machine did not boot with it: only if the user has asked for it. Else it is not used any more until
    the host boots, because where virtual machines are nested a trial can be luck."""
    if os.environ.get("RXE_ACCEL"):
        return True
    remember_kvm(False, "a machine did not boot under KVM")
    return False


def socket_path(name):
    """The path of a UNIX socket, short because the limit is 107 bytes and the path of a clone can be long."""
    return Path(tempfile.gettempdir()) / f"rxe-{TOKEN}-{name}"


def memory(mib, nodes, cpus, shared):
    """The options of QEMU for memory. With several NUMA nodes each has an equal part of it, and the processors are dealt out to them;
    `shared`: another process accesses it."""
    kind = "memory-backend-memfd,share=on" if shared else "memory-backend-ram"
    if nodes == 1:
        backend = ["-object", f"{kind},id=memory,size={mib}M", "-machine", "memory-backend=memory"]
        return ["-m", str(mib), *(backend if shared else [])]
    part = mib // nodes
    options = ["-m", str(part * nodes)]
    for node in range(nodes):
        processors = "".join(f",cpus={cpu}" for cpu in range(node, cpus, nodes))
        options += ["-object", f"{kind},id=memory{node},size={part}M", "-numa", f"node,nodeid={node},memdev=memory{node}{processors}"]
    return options


def bridge(number, node):
    """The options of QEMU for a PCI bus at a NUMA node, `port{number}`, for one device."""
    return ["-device", f"pxb-pcie,id=host{number},bus=pcie.0,bus_nr={64 * (number + 1)},numa_node={node}",
            "-device", f"pcie-root-port,id=port{number},bus=host{number},chassis={number + 1}"]


class SharedFolder:
    """A folder of the host that a machine mounts under the tag `share`, by 9P or virtiofs, which needs shared memory. `options`: those of
    QEMU for it."""

    def __init__(self, kind, node, share, errors):
        self.server = self.path = None
        if kind == "9p":
            self.options = ["-virtfs", f"local,path={share},mount_tag=share,security_model=none,id=share"]
            return
        self.path = socket_path(f"{node}.fs")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self.path))
            listener.listen(1)
            # Without a cache each side sees at once what the other one writes, as with 9P. The server ends when QEMU disconnects.
            command = [VIRTIOFSD, f"--fd={listener.fileno()}", f"--shared-dir={share}", "--sandbox=none", "--cache=never"]
            self.server = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self.options = ["-chardev", f"socket,id=share,path={self.path}", "-device", "vhost-user-fs-pci,chardev=share,tag=share"]

    def stop(self):
        if self.server:
            self.server.kill()
            self.server.wait()
            self.path.unlink(missing_ok=True)


class Machine:
    """A running virtual machine. `node` is `a` or `b`; its serial log is in `folder`; `nic`: the model of its network devices, which are
    distributed over the NUMA nodes if there are several; `cpu`: the processor that is emulated, if not that of the platform."""

    def __init__(self, node, boot, folder, share, kvm, cpus, memory_mib, networks=(), append="", nic="virtio-net-pci", numa_nodes=1,
                 cpu=None):
        self.node = node
        self.serial = folder / f"serial-{node}.log"
        self.control = socket_path(f"{node}.qmp")
        self.console = socket_path(f"{node}.con")
        platform = PLATFORMS[kernel.architecture(boot["SERIES"])]
        accel = ["-accel", "kvm", "-cpu", "host"] if kvm else ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", cpu or platform.cpu]
        drive = "if=none,format=raw,readonly=on,file.locking=off"
        self.errors = open(folder / f"qemu-{node}.log", "wb")
        self.share = SharedFolder(boot["SHARE"], node, share, self.errors)
        command = [
            platform.qemu, *accel, "-machine", platform.machine, "-smp", str(cpus),
            *memory(memory_mib, numa_nodes, cpus, shared=self.share.server is not None), "-nodefaults", "-no-reboot", "-display", "none",
            "-kernel", str(boot["VMLINUZ"]), "-initrd", str(boot["INITRD"]),
            "-append", f"{platform.append} quiet loglevel=4 {kernel.LOG_BUFFER} panic=-1 oops=panic mitigations=off sysrq_always_enabled "
                       f"net.ifnames=0 rxe.node={node} {append}",
            "-chardev", f"socket,id=con,path={self.console},server=on,wait=off,logfile={self.serial}",
            "-serial", "chardev:con",
            "-qmp", f"unix:{self.control},server=on,wait=off",
            "-drive", f"{drive},id=root,file={boot['ROOTFS']}", "-device", "virtio-blk-pci,drive=root",
            "-drive", f"{drive},id=mods,file={boot['MODULES_IMAGE']}", "-device", "virtio-blk-pci,drive=mods",
            *self.share.options, "-device", "virtio-rng-pci",
        ]
        if "CONTAINER" in boot:
            # The third disk, /dev/vdc.
            command += ["-drive", f"{drive},id=container,file={boot['CONTAINER']}", "-device", "virtio-blk-pci,drive=container"]
        if numa_nodes > 1:
            # The kernel finds these buses in the opposite order, and names network devices in the order in which it finds them.
            for number in reversed(range(len(networks))):
                command += bridge(number, number % numa_nodes)
        for number, (netdev, mac) in enumerate(networks):
            more = (",mq=off" if nic.startswith("virtio") else "") + (f",bus=port{number}" if numa_nodes > 1 else "")
            command += ["-netdev", f"{netdev},id=n{number}", "-device", f"{nic},netdev=n{number},mac={mac}{more}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors)

    def alive(self):
        return self.process.poll() is None

    def _qmp(self, command, **arguments):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(3)
            s.connect(str(self.control))
            stream = s.makefile("rw")
            stream.readline()
            for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                while "return" not in (reply := json.loads(stream.readline())):
                    if "error" in reply:
                        break

    def show_state(self):
        """Makes a kernel that hangs print its blocked tasks and the stacks of its processors, by SysRq, to the serial log."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.settimeout(3)
                s.connect(str(self.console))
                for key in b"9wl":
                    self._qmp("chardev-send-break", id="con")
                    time.sleep(0.2)
                    s.send(bytes([key]))
                    time.sleep(1)
        except (OSError, ValueError) as error:
            kernel.say(f"cannot get the state of machine {self.node}: {error}")

    def wait(self, seconds):
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def stop(self):
        if self.alive():
            self.process.kill()
            self.process.wait()
        self.share.stop()
        self.errors.close()
        for path in (self.control, self.console):
            path.unlink(missing_ok=True)

    def serial_text(self):
        try:
            return self.serial.read_text(errors="replace")
        except OSError:
            return ""
