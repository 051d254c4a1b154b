# SPDX-License-Identifier: GPL-2.0
"""Tests of gate.py, wirecheck.py and kernel.py, of the names of tests in lists and documents, and of the 9P server of ulp.9p."""
import errno
import fnmatch
import os
import re
import struct
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import gate  # noqa: E402
import kernel  # noqa: E402
from vm import discovery  # noqa: E402

BAD_LINES = """\
[    5.1] WARNING: CPU: 0 PID: 1 at drivers/infiniband/core/device.c:1 ib_dealloc_device+0x1/0x2
[    5.1] ------------[ cut here ]------------
[    5.1] BUG: kernel NULL pointer dereference, address: 0000000000000008
[    5.1] kernel BUG at net/core/skbuff.c:200!
[    5.1] Oops: Oops: 0002 [#1] SMP NOPTI
[    5.1] Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1]
[    5.1] BUG: unable to handle page fault for address: ffffc90000000000
[    5.1] Call Trace:
[    5.1] rust_kernel: panicked at rxe_rs/proto/engine/qp.rs:10:5:
[    5.1] WARNING: possible circular locking dependency detected
[    5.1] WARNING: possible recursive locking detected
[    5.1] WARNING: inconsistent lock state
[    5.1] WARNING: suspicious RCU usage
[    5.1] [ BUG: Invalid wait context ]
[    5.1] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580
[    5.1] BUG: scheduling while atomic: rping/100/0x00000002
[    5.1] INFO: task rmmod:120 blocked for more than 30 seconds.
[    5.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
[    5.1] rcu: INFO: rcu_preempt self-detected stall on CPU
[    5.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [insmod:99]
[    5.1] BUG: KASAN: slab-use-after-free in rxe_rs+0x1/0x2
[    5.1] UBSAN: array-index-out-of-bounds in foo.c:1:2
[    5.1] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)
[    5.1] refcount_t: underflow; use-after-free.
rxe-test: the log has been overwritten since "end verbs.send"
[    5.1] list_del corruption. prev->next should be ffff
[    5.1] ODEBUG: free active (active state 0) object type: hrtimer
[    5.1] INFO: trying to register non-static key.
[    5.1] INFO: lockdep is turned off.
[    5.1] DEBUG_LOCKS_WARN_ON(lock->magic != lock)
[    5.1] unreferenced object 0xffff888003d5a800 (size 1024):
[    5.1] Kernel panic - not syncing: Fatal exception in interrupt
[    5.1] unregister_netdevice: waiting for va to become free. Usage count = 2
[    5.1] skbuff: skb_over_panic: text:ffffffffc0 len:10 put:10
""".splitlines()

GOOD_LINES = """\
[    0.0] Linux version 7.2.12+deb13-amd64 (debian-kernel@lists.debian.org)
[    0.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on
[    0.2] rxe_rs: loading out-of-tree module taints kernel.
[    0.2] rxe_rs: module verification failed: signature and/or required key missing - tainting kernel
[    1.0] rdma_rxe: loaded
[    1.0] virtio_net virtio0 eth0: renamed from eth1
[    1.2] rxe-test: begin link.add_del
[    1.3] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable
[    1.4] infiniband rxe_a: set down
[    1.4] rxe_rs: debug build
""".splitlines()


class Gate(unittest.TestCase):
    def test_every_report_is_found(self):
        for line in BAD_LINES:
            with self.subTest(line=line):
                self.assertEqual(len(gate.check(line)), 1)

    def test_failing_allocations(self):
        """Reports of allocations that a test made to fail do not fail the test; all other reports do."""
        report = ["[ 6.0] python3: vmalloc error: size 4096, failed to allocate pages, mode:0xcc0(GFP_KERNEL), nodemask=(null)",
                  "[ 6.0] CPU: 0 UID: 0 PID: 123 Comm: python3 Tainted: G           O", "[ 6.0] Call Trace:"]
        self.assertEqual(len(gate.check("\n".join(report))), 1)
        said = ["[ 5.9] rxe-test: allocations are made to fail"]
        self.assertEqual(gate.check("\n".join(said + report * 2)), [])
        later = ["[ 6.1] something"] * 20
        for bad in (BAD_LINES[:1], ["[ 6.1] Call Trace:"]):
            self.assertEqual(len(gate.check("\n".join(said + report + bad))), 1)
        self.assertEqual(len(gate.check("\n".join(said + report[:2] + later + report[2:]))), 1)
        # A bug report with the same wording.
        self.assertEqual(len(gate.check("\n".join([*said, "[ 6.2] BUG: page allocation failure: order:0"]))), 1)

    def test_failing_allocations_of_the_core(self):
        """The module loader warns if it cannot allocate its data for a module: expected if a test made the allocation fail, else not."""
        cut, call = "[ 7.0] ------------[ cut here ]------------", "[ 7.0] Call Trace:"
        registers = ["[ 7.0] RAX: 0000000000000000"] * 15
        dyndbg = [cut, "[ 7.0] WARNING: lib/dynamic_debug.c:1354 at ddebug_module_notify+0x78/0x14c, CPU#0: python3/3617",
                  "[ 7.0] Failed to allocate memory: dyndbg may not work properly.", call]
        labels = [cut, "[ 7.0] Failed to allocate memory: jump_label may not work properly.",
                  "[ 7.0] WARNING: kernel/jump_label.c:830 at jump_label_module_notify+0x3e7/0x450, CPU#1: python3/3367", *registers, call]
        undone = [cut, "[ 7.0] WARNING: kernel/jump_label.c:796 at jump_label_del_module+0x102/0x1c0, CPU#1: python3/3367", *registers, call]
        said = ["[ 6.9] rxe-test: allocations are made to fail"]
        for report in (dyndbg, labels, undone):
            with self.subTest(report=report[1]):
                self.assertEqual(len(gate.check("\n".join(report))), 3)
                self.assertEqual(gate.check("\n".join(said + report * 2)), [])
                other = [re.sub(r"(WARNING: )\S+\.c", r"\1mm/slub.c", line) for line in report]
                self.assertEqual(len(gate.check("\n".join(said + other))), 3)
                self.assertEqual(len(gate.check("\n".join(said + report[:1] + other))), 4)

    def test_leaks_in_the_leak_test(self):
        leaks = "[ 9.0] kmemleak: 2 new suspected memory leaks (see /sys/kernel/debug/kmemleak)"
        said = ["[ 8.9] rxe-test: leaks are judged one by one"]
        self.assertEqual(len(gate.check("\n".join([leaks, *said]))), 1)
        self.assertEqual(gate.check("\n".join([*said, leaks])), [])
        cut = "[ 8.9] ------------[ cut here ]------------"
        self.assertEqual(len(gate.check("\n".join([*said, cut, leaks]))), 1)
        for line in BAD_LINES:
            if "new suspected" not in line:
                with self.subTest(line=line):
                    self.assertEqual(len(gate.check("\n".join([*said, line]))), 1)

    def test_lock_orders_of_others(self):
        """A cycle of the locks of the NVMe target and the CM is known, unless a function of the driver takes part; any other is reported."""
        def report(*locks, function="rdma_destroy_id+0x16/0x20 [rdma_cm]"):
            chain = [line for number, lock in enumerate(locks) for line in (
                f"[ 6.0] -> #{len(locks) - 1 - number} ({lock}){{+.+.}}-{{4:4}}:", f"[ 6.0]        {function}")]
            return ["[ 6.0] WARNING: possible circular locking dependency detected", *chain, "[ 6.0] Call Trace:", "[ 6.0]  <TASK>",
                    "[ 6.0]  dump_stack_lvl+0x5d/0x80", "[ 6.0]  </TASK>"]
        known = ("nvmet_config_sem", "&id_priv->handler_mutex")
        for locks in (known, known[::-1]):
            self.assertEqual(gate.check("\n".join(report(*locks) * 2)), [])
        for other in (report(*known, function="receive+0x1/0x2 [rxe_rs]"), report(*known, "QpCtx::inner"), report(known[0], "QpCtx::config"),
                      report(*known)[:-1]):
            with self.subTest(report=other):
                self.assertEqual([kind for _, kind, _ in gate.check("\n".join(other))], ["warning", "call trace"])
        for line in BAD_LINES:
            if "Call Trace" not in line and "WARNING: " not in line:
                with self.subTest(line=line):
                    inside = report(*known)
                    self.assertEqual(len(gate.check("\n".join([*inside[:-1], line, inside[-1]]))), 1)

    def test_report_inside_a_long_log(self):
        log = "\n".join(GOOD_LINES + BAD_LINES[:1] + GOOD_LINES)
        self.assertEqual([found[0] for found in gate.check(log)], [len(GOOD_LINES) + 1])

    def test_ordinary_lines_pass(self):
        self.assertEqual(gate.check("\n".join(GOOD_LINES)), [])

    def test_every_pattern_has_a_bad_line(self):
        for kind, pattern in gate.BAD:
            with self.subTest(kind=kind):
                if kind != "double fault":
                    self.assertTrue(any(pattern.search(line) for line in BAD_LINES))


class Kernels(unittest.TestCase):
    TABLE = {
        **{name.format(r="7.2.9+deb13"): ["7.2.9-1"] for name in (
            "linux-binary-{r}-amd64", "linux-modules-{r}-amd64", "linux-headers-{r}-amd64", "linux-headers-{r}-common",
            "linux-kbuild-{r}", "linux-base-{r}-amd64")},
        **{name.format(r="7.2.12+deb13"): ["7.2.12-1"] for name in (
            "linux-binary-unsigned-{r}-amd64", "linux-modules-{r}-amd64", "linux-headers-{r}-amd64",
            "linux-headers-{r}-common", "linux-kbuild-{r}", "linux-base-{r}-amd64")},
        "linux-modules-7.3.4+deb13-amd64": ["7.3.4-1"],
        "linux-modules-7.1.3+deb13-amd64": ["7.1.3-1"],
        "linux-modules-7.2.12+deb13-other-amd64": ["7.2.12-1"],
        "linux-source-7.2": ["7.2.12-1", "7.2.9-1"],
        "linux-source-7.3": ["7.3.4-1"],
    }

    def test_newest_first_by_number(self):
        releases = [c["release"] for c in kernel.candidates(self.TABLE)]
        self.assertEqual(releases, ["7.3.4+deb13-amd64", "7.2.12+deb13-amd64", "7.2.9+deb13-amd64"])

    def test_incomplete_ones_are_marked(self):
        missing = {c["release"]: bool(c["missing"]) for c in kernel.candidates(self.TABLE)}
        self.assertEqual(missing, {"7.3.4+deb13-amd64": True, "7.2.12+deb13-amd64": False, "7.2.9+deb13-amd64": False})

    def test_unsigned_image_is_used_without_a_signed_one(self):
        newest = next(c for c in kernel.candidates(self.TABLE) if c["release"].startswith("7.2.12"))
        self.assertIn("linux-binary-unsigned-7.2.12+deb13-amd64", newest["packages"])

    def test_flavours_only_by_name(self):
        for name in filter(None, kernel.FLAVOURS):
            release = f"7.2.12+deb13-{kernel.suffix(name)}"
            packages = (f"linux-{part}-{release}" for part in ("binary", "modules", "headers", "base"))
            found = {c["release"]: c for c in kernel.candidates({**self.TABLE, **dict.fromkeys(packages, ["7.2.12-1"])})}
            flavour, common = found[release], found["7.2.12+deb13-amd64"]
            with self.subTest(name):
                self.assertEqual((flavour["series"], flavour["missing"]), (f"7.2-{name}", []))
                self.assertIn("linux-source-7.2", flavour["packages"])
                self.assertEqual([series for series in (None, "7.2", name, f"7.2-{name}", f"7.3-{name}") if kernel.wanted(series, flavour)],
                                 [name, f"7.2-{name}"])
                self.assertEqual([series for series in (None, "7.2", name, f"7.2-{name}", "7.3") if kernel.wanted(series, common)],
                                 [None, "7.2"])


class Wire(unittest.TestCase):
    """wirecheck.py with intact and damaged packets made by Scapy."""

    @staticmethod
    def packets():
        from scapy.contrib.roce import BTH
        from scapy.layers.inet import IP, UDP
        from scapy.layers.inet6 import IPv6
        from scapy.layers.l2 import Ether
        from scapy.packet import Raw
        ends = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
        body = lambda: UDP(sport=49152, dport=4791) / BTH(opcode=4, dqpn=17, psn=5, pkey=0xFFFF) / Raw(bytes(range(64)))
        return [bytes(Ether(**ends) / IP(src="10.0.0.1", dst="10.0.0.2") / body()),
                bytes(Ether(**ends) / IPv6(src="fd00::1", dst="fd00::2") / body())]

    def check(self, packets):
        import wirecheck
        from scapy.layers.l2 import Ether
        from scapy.utils import wrpcap
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sample.pcap"
            wrpcap(str(path), [Ether(p) for p in packets] if packets else [], linktype=1)
            return wirecheck.check(path)

    def test_good_packets_pass(self):
        self.assertEqual(self.check(self.packets()), [])

    def test_damage_is_found(self):
        for n, packet in enumerate(self.packets()):
            for offset in (-5, -1):
                damaged = bytearray(packet)
                damaged[offset] ^= 1
                with self.subTest(packet=n, offset=offset):
                    self.assertTrue(self.check([bytes(damaged)]))

    def test_empty_capture_is_wrong(self):
        self.assertTrue(self.check([]))


class Names(unittest.TestCase):
    """The tests that lists and documents name exist."""

    def test_lists_of_suites_are_well_formed(self):
        suites = sorted((HERE.parent / "ktests/suites").glob("*.suite"))
        self.assertTrue(suites)
        for path in suites:
            names = [t.name for t in discovery.Suite(path.stem).tests(None)]
            self.assertEqual(len(names), len(set(names)), path.name)
            for line in path.with_suffix(".expected").read_text().splitlines():
                with self.subTest(path=path.name, line=line):
                    self.assertRegex(line, r"^(#.*|[\w.-]+ (pass|(skip|either|fail) \S.*))$")

    def test_features_name_tests_and_operations_that_exist(self):
        names = [t.name for t in discovery.all_tests()]
        for path in (HERE.parent / "ktests/suites").glob("*.suite"):
            names += [t.name for t in discovery.Suite(path.stem).tests(None)]
        operations = (HERE.parent / "rxe_rs/kapi/rdma/device/ops.rs").read_text()
        for line in (HERE.parent / "rxe_rs/FEATURES.md").read_text().splitlines():
            cells = [c.strip() for c in line.strip("|").split("|")]
            if len(cells) == 3 and cells[1] == "Y":
                with self.subTest(line=line):
                    self.assertIn(f"ops.{cells[0].strip('`')} = ", operations)
            if len(cells) == 4 and cells[1] in ("Y", "P"):
                for pattern in re.findall(r"`([\w*]+\.[\w*.]+)`", cells[2]):
                    with self.subTest(line=line, pattern=pattern):
                        self.assertTrue(fnmatch.filter(names, pattern))

    def test_sources_carry_a_licence(self):
        for path in [*HERE.rglob("*"), *(HERE.parent / "ktests").rglob("*")]:
            if path.is_file() and (path.suffix in (".py", ".sh", ".test", ".suite", ".expected") or os.access(path, os.X_OK)):
                head = "\n".join(path.read_text(errors="replace").splitlines()[:4])
                with self.subTest(path=path.name):
                    self.assertTrue(re.search(r"SPDX-License-Identifier: GPL-2\.0", head))


class NineP(unittest.TestCase):
    """The server of ulp.9p with malformed messages, which the kernel's client does not send."""

    def setUp(self):
        loader = SourceFileLoader("ninep", str(HERE.parent / "ktests/vm/lib/ninep.py"))
        self.ninep = module_from_spec(spec_from_loader("ninep", loader))
        loader.exec_module(self.ninep)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.mkdir(f"{self.folder.name}/served")
        self.session = self.ninep.Session(f"{self.folder.name}/served", 8192)
        self.addCleanup(self.session.close)

    def call(self, kind, form, *values):
        body = struct.pack("<" + form, *values)
        return self.answer(kind, body)

    def answer(self, kind, body):
        """The error number in the response to a message, or its body."""
        header = self.ninep.HEADER
        answer = self.session.reply(header.pack(header.size + len(body), kind, 5) + body)
        size, answered, tag = header.unpack_from(answer)
        self.assertEqual((size, tag), (len(answer), 5))
        self.assertLessEqual(len(answer), 8192)
        if answered == self.ninep.RLERROR:
            return struct.unpack("<I", answer[7:])[0]
        self.assertEqual(answered, kind + 1)
        return answer[7:]

    def attach(self):
        self.answer(100, struct.pack("<I", 8192) + self.ninep.text(b"9P2000.L"))
        self.assertEqual(len(self.answer(104, struct.pack("<IIHHI", 0, self.ninep.NO_FID, 0, 0, 0))), 13)

    def test_parts_of_messages_are_refused(self):
        self.assertEqual(self.call(120, "I", 0), errno.EPROTO, "before the version is known")
        self.attach()
        name = self.ninep.text(b"name")
        number = struct.pack("<I", 0)
        for kind, body in ((110, struct.pack("<IIH", 0, 1, 1) + name), (14, number + name + bytes(12)), (116, bytes(16)),
                           (118, struct.pack("<IQI", 0, 0, 4) + name[2:]), (26, bytes(60)), (72, number + name + bytes(8))):
            for part in (*(body[:n] for n in range(len(body))), body + b"x"):
                with self.subTest(kind=kind, part=part):
                    self.assertEqual(self.answer(kind, part), errno.EPROTO)
        self.assertEqual(self.call(110, "IIH34s", 0, 1, 17, b"\1\0a" * 17), errno.EPROTO)
        self.assertEqual(self.call(30, "I", 0), errno.EOPNOTSUPP)
        self.assertEqual(os.listdir(f"{self.folder.name}/served"), [])

    def test_malformed_headers_end_the_connection(self):
        self.attach()
        for message in (b"", bytes(6), bytes(7), struct.pack("<IBHI", 12, 120, 1, 0), struct.pack("<IBH", 8193, 118, 1) + bytes(8186)):
            with self.subTest(message=message[:20]), self.assertRaises(self.ninep.Malformed):
                self.session.reply(message)

    def test_paths_outside_of_the_folder_are_refused(self):
        self.attach()
        Path(self.folder.name, "secret").write_text("secret")
        os.symlink(self.folder.name, f"{self.folder.name}/served/link")
        for name in (b"", b".", b"..", b"../secret", b"link/secret", b"a\0b"):
            with self.subTest(name=name):
                self.assertEqual(self.answer(110, struct.pack("<IIH", 0, 1, 1) + self.ninep.text(name)), errno.EINVAL)
        both = self.ninep.text(b"link") + self.ninep.text(b"secret")
        # The walk ends at the link, so that no fid is created.
        self.assertEqual(self.answer(110, struct.pack("<IIH", 0, 1, 2) + both)[:2], b"\1\0")
        self.assertEqual(self.call(12, "II", 1, 0), errno.EBADF)
        self.assertEqual(len(self.answer(110, struct.pack("<IIH", 0, 1, 1) + self.ninep.text(b"link"))), 15)
        self.assertEqual(self.call(12, "II", 1, 0), errno.ELOOP)

    def test_numbers_out_of_range_are_refused(self):
        self.attach()
        self.assertEqual(self.answer(14, struct.pack("<I", 0) + self.ninep.text(b"file") + struct.pack("<III", 2, 0o600, 0))[0], 0)
        for offset in (1 << 63, (1 << 64) - 1):
            self.assertEqual(self.call(116, "IQI", 0, offset, 10), errno.EINVAL)
        self.assertEqual(self.call(26, "IIIIIQQQQQ", 0, self.ninep.SET_SIZE, 0, 0, 0, 1 << 63, 0, 0, 0, 0), errno.EINVAL)
        self.assertEqual(self.call(116, "IQI", 0, 0, 0xFFFFFFFF), bytes(4))


if __name__ == "__main__":
    unittest.main()
