# SPDX-License-Identifier: GPL-2.0
"""Tests of vm/session.py: the preparation of the shared folder, the events of a machine, machines that end or hang; and of machine.py: the
shared folder, memory, NUMA nodes."""
import os
import socket
import subprocess
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path
from unittest import mock

import kernel
import machine
from uml import machine as uml_machine
from vm import session

OPTIONS = dict(topology="netns", debug=False, suite=None, driver="rxe_rs", driver_b=None, ko=[], ko_b=[], set=[], uml=False, packages=None)


class Machine:
    node = "a"

    def __init__(self, lives=True):
        self.lives, self.waited, self.shown = lives, False, False

    def alive(self):
        return self.lives

    def wait(self, _seconds):
        self.waited = True

    def show_state(self):
        self.shown = True


class Sessions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def session(self, kvm=True, **said):
        return session.Session(types.SimpleNamespace(**OPTIONS | said), {"SERIES": "7.3"}, kvm, self.folder / "boot")


class Watch(Sessions):
    def setUp(self):
        super().setUp()
        self.one = self.session()
        self.one.results.mkdir(parents=True)
        (self.one.results / "events-a").touch()
        self.one.machines = [Machine()]
        self.said = []

    def say(self, text):
        with open(self.one.results / "events-a", "a", encoding="ascii") as events:
            events.write(text)

    def watch(self, limits=None):
        return self.one.watch(limits or {"x.y": 5, "x.z": 5}, lambda name: self.said.append(name), lambda *end: self.said.append(end))

    def test_a_whole_run(self):
        self.say("up a\nbegin x.y\nend x.y 0 1500\nbegin x.z\nend x.z 4 20\nend a\n")
        self.assertIsNone(self.watch())
        self.assertEqual(self.said, ["x.y", ("x.y", 0, 1.5), "x.z", ("x.z", 4, 0.02)])
        self.assertTrue(self.one.machines[0].waited)

    def test_lines_that_come_in_parts(self):
        parts = ["up a\nbeg", "in x.y\nend x.y 1", "24 9", "000\nend ", "a\n"]

        def speak():
            for part in parts:
                self.say(part)
                time.sleep(0.1)

        speaker = threading.Thread(target=speak)
        speaker.start()
        self.assertIsNone(self.watch())
        speaker.join()
        self.assertEqual(self.said, ["x.y", ("x.y", 124, 9.0)])

    def test_machine_ends(self):
        self.say("up a\nbegin x.y\n")
        self.one.machines[0].lives = False
        self.assertEqual(self.watch(), "the machine ended unexpectedly")
        self.assertEqual(self.said, ["x.y"])

    def test_machine_ends_after_tests_that_begin_like_its_name(self):
        for machines, expected in (([Machine(lives=False)], "the machine ended unexpectedly"),
                                   ([Machine(), Machine(lives=False)], "machine b ended unexpectedly")):
            self.one.machines = machines
            (self.one.results / "events-a").write_text("up a\nbegin ah.y\nend ah.y 0 9\nbegin by.y\nend by.y 0 9\n")
            self.assertEqual(self.watch({"ah.y": 5, "by.y": 5}), expected)

    def test_other_machine_ends(self):
        self.say("up a\n")
        self.one.machines.append(Machine(lives=False))
        self.assertEqual(self.watch(), "machine b ended unexpectedly")

    def test_machine_hangs(self):
        """While it boots, and in a test that exceeds its time limit without being ended by runner.sh."""
        with mock.patch.object(session, "BOOT_SECONDS", 0.2), mock.patch.object(session, "GRACE_SECONDS", 0.2):
            self.assertEqual(self.watch(), "the machine did not boot in time")
            self.say("up a\nbegin x.y\n")
            self.assertEqual(self.watch({"x.y": 0.2}), "the machine hung")
        self.assertTrue(self.one.machines[0].shown)


class KernelLog(Sessions):
    """The parts of a kernel log that keep_log stores, in a test that may write more than it holds."""

    def keep(self, *logs):
        """Calls keep_log, with these texts in the kernel log one after the other; returns what it has stored."""
        library = session.QEMU / "guest/lib.sh"
        script = (f"eval \"$(sed -n '/^log_part()/,/^}}/p; /^keep_log()/,/^}}/p' {library} | sed 's|/share/results|.|')\"; "
                  'mark() { echo "rxe-test: $*" >>"$NOW"; }; dmesg() { cat "$NOW"; }; keep_log')
        for number, log in enumerate(logs):
            now = self.folder / f"log-{number}"
            now.write_text(log)
            subprocess.run(["bash", "-c", script], check=True, cwd=self.folder,
                           env=os.environ | {"NOW": str(now), "RXE_MARK": "end x.y", "RXE_TEST": "x.z", "SELF": "a"})
        return (self.folder / "x.z.kept-a").read_text()

    def test_each_line_once(self):
        first = "boot\nrxe-test: end x.y\none\ntwo\n"
        second = first + "rxe-test: end x.y\nthree\n"
        third = "two\nrxe-test: end x.y\nthree\nrxe-test: end x.y\n"
        self.assertEqual(self.keep(first, second, third), "one\ntwo\nthree\n")

    def test_overwritten(self):
        self.assertEqual(self.keep("late\n"), 'rxe-test: the log has been overwritten since "end x.y"\nlate\n')


class TwoMachines(Sessions):
    """Each machine has a file of events: one of User Mode Linux does not see what another has appended to a file."""

    def test_events_of_both(self):
        two = self.session(topology="two")
        two.results.mkdir(parents=True)
        for path, text in zip(two.event_files(), ("up a\nbegin x.y\nend x.y 0 10\nend a\n", "up b\nend b\n")):
            path.write_text(text)
        two.machines = [Machine(), Machine(lives=False)]
        said = []
        self.assertIsNone(two.watch({"x.y": 5}, said.append, lambda *end: said.append(end)))
        self.assertEqual(said, ["x.y", ("x.y", 0, 0.01)])
        self.assertTrue(two.booted())
        self.assertTrue(two.said_end("b"))

    def test_one_does_not_boot(self):
        two = self.session(topology="two")
        two.results.mkdir(parents=True)
        for path, text in zip(two.event_files(), ("", "up b\n")):
            path.write_text(text)
        two.machines = [Machine(lives=False), Machine()]
        self.assertEqual(two.watch({}, None, None), "the machine ended unexpectedly")
        self.assertFalse(two.booted())

    def test_user_mode_linux(self):
        """The machines have a processor each, of different ones of the host if they are bound, and are connected by two Ethernets."""
        started = []

        class Started(Machine):
            def __init__(self, node, _boot, _folder, _share, cpus, _memory, networks, pin):
                super().__init__()
                started.append((node, cpus, pin, networks))

        def start(processors, **said):
            started.clear()
            with mock.patch.object(uml_machine, "Machine", Started), mock.patch.object(session.os, "sched_getaffinity", return_value=range(processors)):
                self.session(**dict(uml=True, cpus=None, memory=None, pin=True) | said).start()
            return [how[:3] for how in started]

        self.assertEqual(start(1, topology="netns"), [("a", 2, None)])
        self.assertEqual(start(2, topology="netns"), [("a", 2, 0)])
        self.assertEqual(start(2, topology="netns", cpus=1), [("a", 1, None)])
        self.assertEqual(start(1, topology="two"), [("a", 1, None), ("b", 1, None)])
        self.assertEqual(start(2, topology="two"), [("a", 1, 0), ("b", 1, 1)])
        ends, addresses = zip(*(zip(*networks) for *_, networks in started))
        self.assertEqual(addresses, (("52:54:00:77:00:01", "52:54:00:77:01:01"), ("52:54:00:77:00:02", "52:54:00:77:01:02")))
        for one, other in zip(*ends):
            with one, other:
                one.send(b"frame")
                one.send(b"another")
                self.assertEqual([other.recv(1500), other.recv(1500)], [b"frame", b"another"])


class Prepare(Sessions):
    PLAN = [("x.y", 10, "/share/tests/x.py", "test_y"), ("script", 7, "/share/script", "")]

    def test_plan_and_time(self):
        """Emulation takes twice as long, a debug kernel four times."""
        for said, factor in (({}, 1), ({"kvm": False}, 2), ({"debug": True}, 4), ({"debug": True, "kvm": False}, 8)):
            with self.subTest(said):
                one = self.session(**said)
                one.prepare(self.PLAN)
                self.assertEqual((one.share / "plan").read_text(),
                                 f"x.y {10 * factor} /share/tests/x.py test_y\nscript {7 * factor} /share/script \n")
        self.assertTrue((one.share / "tests/lib/run.py").exists())
        self.assertTrue((one.share / "guest/runner.sh").exists())

    def test_settings(self):
        """A shell that reads `env` gets the values that were given."""
        one = self.session(set=["RXE_SEED=5", "A=two words", "B=it's $HOME"], driver_b="rdma_rxe")
        one.prepare([])
        out = subprocess.run(["bash", "-c", '. "$1"; printf "%s\\n" "$DRIVER_a" "$DRIVER_b" "$RXE_SEED" "$A" "$B"', "x", one.share / "env"],
                             check=True, capture_output=True, text=True).stdout
        self.assertEqual(out, "rxe_rs\nrdma_rxe\n5\ntwo words\nit's $HOME\n")

    def test_arguments(self):
        """A script gets its arguments as they were given. Outside of a machine lib.sh is not in /share; the first thing it reads is `env`."""
        one = self.session()
        script = self.folder / "script"
        script.write_text('printf "<%s>" "$@"')
        for arguments in [], ["one"], ["", "*", "it's two", '"$HOME" `id` \\ \n']:
            with self.subTest(arguments):
                one.prepare([], arguments)
                case = (one.share / "guest/case.sh").read_text().replace("/share/guest/lib.sh", str(one.share / "env"))
                out = subprocess.run(["bash", "-c", case, "case.sh", script], check=True, capture_output=True, text=True).stdout
                self.assertEqual(out, "".join(f"<{argument}>" for argument in arguments) or "<>")

    def test_tools(self):
        """A machine gets the programs of its architecture, and none if they have not been built."""
        clone = self.folder / "clone"
        for name in ("ktests", "docs", "README.md", "tools"):
            (clone / name).parent.mkdir(exist_ok=True)
            (clone / name).symlink_to(session.CLONE / name)
        for folder in ("tools", "tools-arm64"):
            (clone / "out" / folder / "lib").mkdir(parents=True)
            for name in ("rxectl", "lib/librxe_rs.so"):
                (clone / "out" / folder / name).write_text(folder)
        with mock.patch.object(session, "CLONE", clone):
            for series, folder in (("7.3", "tools"), ("7.3-rt", "tools"), ("7.3-cloud-arm64", "tools-arm64")):
                one = self.session()
                one.boot = {"SERIES": series}
                one.prepare([])
                self.assertEqual([(one.share / name).read_text() for name in ("bin/rxectl", "lib/librxe_rs.so")], [folder] * 2)
            (clone / "out/tools-arm64").rename(clone / "none")
            one.prepare([])
            self.assertFalse((one.share / "bin").exists())


class TwoKernels(Sessions):
    def test_machine_b_has_a_kernel_of_its_own(self):
        files = {name: self.folder / name for name in ("own", "other")}
        for name, file in files.items():
            file.write_text(name)
        one = self.session(topology="two", ko=[files["own"]], ko_b=[files["other"]], cpus=1, memory=512, append="", nic="e1000e", numa=2, cpu=None)
        one.prepare([])
        self.assertEqual([(one.share / name).read_text() for name in ("own.ko", "b/other.ko")], ["own", "other"])
        for boots in ({"SERIES": "7.3", "B": {"SERIES": "7.3-arm64"}}, {"SERIES": "7.3"}):
            one.boot, one.machines = boots, []
            with mock.patch.object(machine, "Machine") as made:
                one.start()
            self.assertEqual([call.args[:2] for call in made.call_args_list], [("a", boots), ("b", boots.get("B", boots))])
            self.assertEqual([call.args[-3:] for call in made.call_args_list], [("e1000e", 2, None)] * 2)

    def test_each_machine_loads_its_module(self):
        """With a folder of its own a machine does not load the module of the other one."""
        library = (session.QEMU / "guest/lib.sh").read_text().replace("/share", str(self.folder / "share"))
        (self.folder / "lib.sh").write_text(library)
        (self.folder / "share/b").mkdir(parents=True)
        for file in ("rxe_rs.ko", "b/rxe_rs.ko", "ksegment.ko"):
            (self.folder / "share" / file).touch()

        def found(node, module):
            script = f"eval \"$(sed -n '/^module_file()/,/^}}/p' {self.folder}/lib.sh)\"; SELF={node}; module_file {module}"
            return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.strip().removeprefix(f"{self.folder}/share/")
        self.assertEqual([found("a", "rxe_rs"), found("b", "rxe_rs"), found("a", "ksegment"), found("b", "ksegment"), found("a", "x")],
                         ["rxe_rs.ko", "b/rxe_rs.ko", "ksegment.ko", "", ""])

    def test_rejected_connection_of_qperf(self):
        """qperf's server names its port before it listens on it: a rejected request is repeated, and any other failure is one."""
        functions = "serve() { :; }; listening() { :; }; served() { :; }; ip4() { echo 10.77.0.2; }; on() { :; }"
        library = session.QEMU / "guest/lib.sh"
        rejected = "unexpected event from RDMA CM: Event rejected"
        for answers, status in (([""], 0), ([rejected, rejected, ""], 0), ([rejected] * 5, 1), (["wrong value"], 1)):
            (self.folder / "answers").write_text("".join(f"{answer}\n" for answer in answers))
            (self.folder / "count").write_text("")
            client = ("client() { echo >>count; answer=$(sed -n $(wc -l <count)p answers); echo \"$answer\"; [ -z \"$answer\" ]; }")
            script = f"set -e; eval \"$(sed -n '/^qperf_by_cm()/,/^}}/p' {library})\"; {functions}; {client}; qperf_by_cm a b ver_rc_fetch_add"
            run = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (status, ""), answers)
            self.assertEqual((self.folder / "count").read_text().count("\n"), len(answers))


class Processors(unittest.TestCase):
    def test_each_architecture_has_a_platform(self):
        self.assertEqual({kernel.architecture(name) for name in kernel.NAMES}, set(machine.PLATFORMS))
        for name, architecture in (("7.3", "amd64"), ("7.2-rt", "amd64"), ("arm64", "arm64"), ("7.3-cloud-arm64", "arm64"), ("7.3-arm64-16k", "arm64")):
            self.assertEqual(kernel.architecture(name), architecture)

    def test_kvm_is_not_tried_with_another_processor(self):
        with mock.patch.dict("os.environ", RXE_ACCEL=""), mock.patch.object(subprocess, "run", side_effect=AssertionError):
            self.assertEqual(machine.probe_kvm({"SERIES": "7.3-arm64"}), (False, "the processor is of another architecture"))


class Disks(Sessions):
    def test_disk_for_containers(self):
        """It is the third one, and only there if the suite names it."""
        files = {name: self.folder / name for name in ("VMLINUZ", "INITRD", "ROOTFS", "MODULES_IMAGE")}
        boot = {"SERIES": "7.3", "SHARE": "9p", **files}
        for more, disks in (({}, ["ROOTFS", "MODULES_IMAGE"]), ({"CONTAINER": self.folder / "CONTAINER"}, ["ROOTFS", "MODULES_IMAGE", "CONTAINER"])):
            with mock.patch.object(subprocess, "Popen") as started:
                machine.Machine("a", boot | more, self.folder, self.folder, False, 1, 512).errors.close()
            drives = [word for word in started.call_args.args[0] if "if=none" in word]
            self.assertEqual([drive.rsplit("/", 1)[1] for drive in drives], disks)
            self.assertTrue(all("readonly=on" in drive for drive in drives))


class SharedFolder(Sessions):
    def shared(self, kind, program="exec sleep 60"):
        """The shared folder of a machine, with a program in place of virtiofsd."""
        server = self.folder / "virtiofsd"
        server.write_text(f"#!/bin/sh\n{program}\n")
        server.chmod(0o755)
        with mock.patch.object(machine, "VIRTIOFSD", server):
            one = machine.SharedFolder(kind, "a", "/a/folder", None)
        self.addCleanup(one.stop)
        return one

    def test_by_9p(self):
        self.assertIn("local,path=/a/folder,mount_tag=share,security_model=none,id=share", self.shared("9p").options)

    def test_by_virtiofs(self):
        one = self.shared("virtiofs")
        options = dict(zip(one.options[::2], one.options[1::2]))
        self.assertIn("tag=share", options["-device"])
        # QEMU can connect to the server from the beginning.
        path = options["-chardev"].split("path=")[1]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        one.stop()
        self.assertFalse(Path(path).exists())
        self.assertIsNotNone(one.server.poll())

    def test_virtiofsd_gets_the_folder(self):
        self.shared("virtiofs", f'echo "$@" >{self.folder}/arguments').server.wait()
        self.assertIn("--shared-dir=/a/folder", (self.folder / "arguments").read_text())


class Options(Sessions):
    """Of QEMU, for memory and NUMA nodes."""
    SHARED = ["-m", "512", "-object", "memory-backend-memfd,share=on,id=memory,size=512M", "-machine", "memory-backend=memory"]

    def test_one_node(self):
        self.assertEqual(machine.memory(512, 1, 2, shared=False), ["-m", "512"])
        self.assertEqual(machine.memory(512, 1, 2, shared=True), self.SHARED)

    def test_two_nodes(self):
        for cpus, ofs in ((1, (",cpus=0", "")), (3, (",cpus=0,cpus=2", ",cpus=1"))):
            for shared, kind in ((False, "memory-backend-ram"), (True, "memory-backend-memfd,share=on")):
                self.assertEqual(machine.memory(512, 2, cpus, shared),
                                 ["-m", "512", "-object", f"{kind},id=memory0,size=256M", "-numa", f"node,nodeid=0,memdev=memory0{ofs[0]}",
                                  "-object", f"{kind},id=memory1,size=256M", "-numa", f"node,nodeid=1,memdev=memory1{ofs[1]}"])

    def test_parts_are_the_whole(self):
        """QEMU refuses nodes whose memory is not all memory of the machine."""
        options = machine.memory(512, 3, 3, shared=False)
        self.assertEqual(options[:2], ["-m", "510"])
        self.assertEqual([text.rsplit("=")[-1] for text in options if text.startswith("memory-backend")], ["170M"] * 3)

    def test_bridge(self):
        self.assertEqual(machine.bridge(0, 1), ["-device", "pxb-pcie,id=host0,bus=pcie.0,bus_nr=64,numa_node=1",
                                                "-device", "pcie-root-port,id=port0,bus=host0,chassis=1"])
        self.assertEqual(machine.bridge(1, 0), ["-device", "pxb-pcie,id=host1,bus=pcie.0,bus_nr=128,numa_node=0",
                                                "-device", "pcie-root-port,id=port1,bus=host1,chassis=2"])

    def command(self, kind, nodes, cpu=None):
        """The command line of a machine with two networks."""
        boot = {"SERIES": "7.3", "SHARE": kind, "VMLINUZ": "v", "INITRD": "i", "ROOTFS": "r", "MODULES_IMAGE": "m"}
        with mock.patch.object(subprocess, "Popen") as started:
            one = machine.Machine("a", boot, self.folder, "/a/folder", False, 2, 512, [("net0", "m0"), ("net1", "m1")], numa_nodes=nodes,
                                  cpu=cpu)
        started.return_value.poll.return_value = 0
        one.stop()
        return started.call_args.args[0]

    def test_processor(self):
        for cpu, emulated in ((None, machine.EMULATED_CPU), ("Nehalem", "Nehalem")):
            command = self.command("9p", 1, cpu)
            self.assertEqual(command[command.index("-cpu") + 1], emulated)

    def test_machines(self):
        """Only virtiofs needs shared memory; several nodes have a bus for each network device, the last one first."""
        for kind, nodes, memory, begins, buses in (("9p", 1, ["-m", "512"], [], ["", ""]), ("virtiofs", 1, self.SHARED, [], ["", ""]),
                                                   ("9p", 2, machine.memory(512, 2, 2, False), machine.bridge(1, 1) + machine.bridge(0, 0),
                                                    [",bus=port0", ",bus=port1"])):
            with self.subTest(kind=kind, nodes=nodes):
                command = self.command(kind, nodes)
                first = command.index("-m")
                self.assertEqual(command[first:command.index("-nodefaults")], memory)
                cards = []
                for number, bus in enumerate(buses):
                    cards += ["-netdev", f"net{number},id=n{number}", "-device", f"virtio-net-pci,netdev=n{number},mac=m{number},mq=off{bus}"]
                self.assertEqual(command[command.index("virtio-rng-pci") + 1:], begins + cards)


if __name__ == "__main__":
    unittest.main()
