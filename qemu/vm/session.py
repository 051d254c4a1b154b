# SPDX-License-Identifier: GPL-2.0
"""One boot of test machines: prepares the shared folder, starts the machines and follows their events.

A machine reads its tests from share/plan, a line each, and writes the start and the end of each test to share/results/events-NODE
(qemu/guest/runner.sh), a file that no other machine writes. Kernel logs, outputs and captures are in share/results, too.
"""
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import kernel
from vm import wheels
from vm.discovery import CLONE, Suite

QEMU = Path(__file__).resolve().parent.parent
BOOT_SECONDS = 150
GRACE_SECONDS = 20
# The factor of time limits with a debug kernel.
DEBUG_SCALE = 4


def mac(link, number):
    """The MAC address of a machine in an Ethernet, both by their numbers."""
    return f"52:54:00:77:{link:02x}:{number + 1:02x}"


def plan_of(tests):
    return [(t.name, t.seconds, t.file, t.function) for t in tests]


def tools_for(boot):
    """The folder of the programs for a machine, which build-tools.sh builds. Those of a machine b are the same as those of a."""
    architecture = kernel.architecture(boot["SERIES"])
    return CLONE / ("out/tools" if architecture == "amd64" else f"out/tools-{architecture}")


class Session:
    """One boot of a topology with a plan."""

    def __init__(self, options, boot, kvm, folder):
        """`boot`: what the machines boot from, by the names that image.ensure() gives; `boot["B"]`, if there is one, that of machine b."""
        self.options, self.boot, self.kvm, self.folder = options, boot, kvm, folder
        self.share = folder / "share"
        self.results = self.share / "results"
        self.scale = (DEBUG_SCALE if options.debug else 1) * (1 if kvm else 2)
        self.suite = Suite(options.suite) if options.suite else None
        self.machines = []
        self.ups = 0

    def prepare(self, plan, script_args=()):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.results.mkdir(parents=True)
        shutil.copytree(QEMU / "guest", self.share / "guest")
        shutil.copytree(CLONE / "ktests/vm", self.share / "tests")
        shutil.copytree(CLONE / "docs", self.share / "pages/docs")
        for page in ("README.md", "tools/README.md"):
            (self.share / "pages" / page).parent.mkdir(exist_ok=True)
            shutil.copy(CLONE / page, self.share / "pages" / page)
        shutil.copy(CLONE / "ktests/fuzz/corpus.calls", self.share / "fuzz.calls")
        tools = tools_for(self.boot)
        for program in ("rxectl", "mutate", "rxe_fuzz", "objects"):
            if (tools / program).exists():
                (self.share / "bin").mkdir(exist_ok=True)
                shutil.copy(tools / program, self.share / "bin")
        for folder in ("lib", "examples"):
            if (tools / folder).is_dir():
                shutil.copytree(tools / folder, self.share / folder, ignore=shutil.ignore_patterns("*.a"))
        if self.options.packages:
            shutil.copytree(self.options.packages, self.share / "packages")
        if self.suite:
            shutil.copytree(self.suite.path.parent, self.share / "suites")
            expected = self.suite.path.with_suffix(".expected").name
            (self.share / "suites" / expected).write_text("\n".join(self.suite.expected(self.boot["SERIES"])) + "\n")
            for folder in (self.suite.source or "").split():
                shutil.copytree(self.boot["TREE"] / folder, self.share / "source" / Path(folder).name)
            for wheel in self.suite.wheels:
                shutil.copytree(wheels.ensure(wheel), self.share / "wheels", dirs_exist_ok=True)
            for name in ("crates", "blktests"):
                if name in self.suite.needs:
                    shutil.copytree(CLONE / "out" / name, self.share / name)
            if "blktests" in self.suite.needs:
                shutil.copy(self.boot["TREE"] / ".config", self.share / "blktests.config")
                shutil.copy(CLONE / "tools/deb/replace-rdma_rxe.conf", self.share / "blktests.modprobe")
        # A machine with another kernel has a folder of its own for the modules.
        for folder, files in ((self.share, self.options.ko), (self.share / "b", self.options.ko_b)):
            for ko in files:
                name = subprocess.run(["modinfo", "-F", "name", ko], stdout=subprocess.PIPE, text=True).stdout.strip()
                folder.mkdir(exist_ok=True)
                shutil.copy(ko, folder / f"{name or Path(ko).stem}.ko")
        (self.share / "env").write_text(
            f"TOPOLOGY={self.options.topology}\nDRIVER_a={self.options.driver}\n"
            f"DRIVER_b={self.options.driver_b or self.options.driver}\n"
            f"RXE_SLOW={0 if self.kvm and not self.options.debug else 1}\nRXE_DEBUG={int(self.options.debug)}\n"
            f"export RXE_ARGS={shlex.quote(shlex.join(script_args))}\n" + "".join(f"export {shlex.quote(words)}\n" for words in self.options.set))
        (self.share / "plan").write_text("".join(
            f"{name} {seconds * self.scale} {file} {function}\n" for name, seconds, file, function in plan))
        for path in self.event_files():
            path.touch()

    def start(self):
        import machine
        two = self.options.topology == "two"
        uml = self.options.uml
        cpus = self.options.cpus or (1 if uml and self.options.debug or two and (uml or not self.kvm) else 2)
        share = str(self.share)
        if uml:
            return self.start_uml(cpus, share)
        memory = self.options.memory or (1024 if two else self.suite.memory if self.suite else 1536) + (1024 if self.options.debug else 0)
        append = self.options.append + (" kunit.autorun=0" if self.options.debug else "")
        sockets = [machine.socket_path(f"net{n}") for n in (0, 1)]
        for path in sockets:
            path.unlink(missing_ok=True)
        for number, node in enumerate("ab" if two else "a"):
            networks = []
            if two:
                for link, path in enumerate(sockets):
                    side = "server=on" if node == "a" else "server=off,reconnect-ms=200"
                    networks.append((f"stream,{side},addr.type=unix,addr.path={path}", mac(link, number)))
            boot = self.boot["B"] if node == "b" and "B" in self.boot else self.boot
            self.machines.append(machine.Machine(node, boot, self.folder, share, self.kvm, cpus, memory, networks, append,
                                                 self.options.nic, self.options.numa, self.options.cpu))
        self.sockets = sockets

    def start_uml(self, cpus, share):
        """Starts machines of User Mode Linux."""
        from uml import machine as uml_machine
        memory = self.options.memory or (3072 if self.options.debug else 2048)
        names = self.nodes()
        # Processors of machines that have too many, or one alone, run where the host likes.
        pins = self.options.pin and 1 < len(names) * cpus <= len(os.sched_getaffinity(0))
        ethernets = [uml_machine.ethernet() for _ in range(2)] if len(names) > 1 else []
        for number, node in enumerate(names):
            networks = [(ends[number], mac(link, number)) for link, ends in enumerate(ethernets)]
            pin = number * cpus if pins else None
            self.machines.append(uml_machine.Machine(node, self.boot, self.folder, share, cpus, memory, networks, pin=pin))

    def stop(self):
        for m in self.machines:
            m.stop()
        for path in getattr(self, "sockets", ()):
            path.unlink(missing_ok=True)

    def watch(self, limits, on_begin, on_end, live=None):
        """Follows the events of all machines until all machines have ended or a time limit is exceeded, and calls on_begin(name) and on_end(name,
        status, seconds). `limits` maps test names to seconds; `live`: shows the output of tests. Returns None, or why it stopped early."""
        with contextlib.ExitStack() as files:
            events = [files.enter_context(open(path)) for path in self.event_files()]
            return self.follow(events, limits, on_begin, on_end, live)

    def booted(self):
        """Whether all machines have come so far that the first test could begin. No module under test is loaded before."""
        return self.ups == len(self.nodes())

    def said_end(self, node):
        """Whether a machine has ended as it should. Lines of tests, whose names may begin like it, have more words."""
        return any(f"end {node}" in path.read_text().splitlines() for path in self.event_files())

    def nodes(self):
        """The names of the machines."""
        return "ab" if self.options.topology == "two" else "a"

    def event_files(self):
        """The files of events, one for each machine."""
        return [self.results / f"events-{node}" for node in self.nodes()]

    def follow(self, events, limits, on_begin, on_end, live):
        deadline = time.monotonic() + BOOT_SECONDS * self.scale
        partial, stream = [""] * len(events), None
        while True:
            lines = []
            # Machine a ends last.
            for number, file in reversed(list(enumerate(events))):
                *complete, partial[number] = (partial[number] + file.read()).split("\n")
                lines += complete
            for words in map(str.split, lines):
                if words[0] == "up":
                    self.ups += 1
                    deadline = time.monotonic() + 30 * self.scale
                elif words[0] == "begin":
                    on_begin(words[1])
                    deadline = time.monotonic() + limits[words[1]] * self.scale + GRACE_SECONDS * self.scale
                    if live:
                        stream = open(self.results / f"{words[1]}.log", "a+b")
                        stream.seek(0)
                elif words[0] == "end" and len(words) == 4:
                    if stream:
                        copy_out(stream)
                        stream = None
                    on_end(words[1], int(words[2]), int(words[3]) / 1000)
                    deadline = time.monotonic() + 30 * self.scale
                elif words[0] == "end":
                    if words[1] == "a":
                        for m in self.machines:
                            m.wait(20)
                        return None
            if stream:
                copy_out(stream)
            # Machine b may end before a writes its last event.
            if not self.machines[0].alive():
                time.sleep(0.5)
                return None if self.said_end("a") else "the machine ended unexpectedly"
            if len(self.machines) > 1 and not self.machines[1].alive() and not self.said_end("b"):
                return "machine b ended unexpectedly"
            if time.monotonic() > deadline:
                for m in self.machines:
                    m.show_state()
                return "the machine hung" if self.ups else "the machine did not boot in time"
            time.sleep(0.05)


def copy_out(stream):
    while data := stream.read(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
