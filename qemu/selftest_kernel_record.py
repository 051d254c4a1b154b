# SPDX-License-Identifier: GPL-2.0
"""Tests of kernel_record.py, and of what vm/cli.py adds to the record."""
import json
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import kernel  # noqa: E402
import kernel_record  # noqa: E402
from vm import cli  # noqa: E402


class Record(unittest.TestCase):
    def setUp(self):
        self.out = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(kernel_record, "OUT", self.out))
        self.enterContext(mock.patch.object(kernel, "KERNELS", self.out / "no kernels"))

    def at(self, seconds):
        return mock.patch.object(kernel_record.time, "time", return_value=seconds)

    def row(self, name):
        """The rows of a kernel, without its name."""
        found, current = [], None
        for first, *others in kernel_record.rows():
            current = first or current
            if current == name:
                found.append(tuple(others))
        return found

    def test_every_supported_kernel_has_a_row(self):
        lines = list(kernel_record.table())
        self.assertEqual([line.split()[0] for line in lines[1:]], list(kernel.NAMES))
        self.assertEqual(set(kernel_record.rows()), {(name, "not prepared", *["-"] * 6, "") for name in kernel.NAMES})

    def test_release_and_module(self):
        ready = self.out / "no kernels/7.2.12+deb13-cloud-amd64/ready"
        ready.parent.mkdir(parents=True)
        ready.write_text(json.dumps({"release": "7.2.12+deb13-cloud-amd64", "series": "7.2-cloud"}))
        module = self.out / "7.2-cloud/rxe_rs.ko"
        module.parent.mkdir()
        module.touch()
        os.utime(module, (86400, 86400))
        self.assertEqual(self.row("7.2-cloud")[0][:2], ("7.2.12+deb13-cloud-amd64", "1970-01-02 00:00"))
        self.assertEqual(self.row("7.2")[0][:2], ("not prepared", "-"))

    def test_kernels_of_other_suites(self):
        self.assertEqual(self.row("sid"), [])
        (self.out / "sid").mkdir()
        (self.out / "sid/release").write_text("7.4.1+deb14-amd64\n")
        self.assertEqual(self.row("sid"), [("7.4.1+deb14-amd64", "does not build", *["-"] * 5, "")])
        module = self.out / "sid/rxe_rs.ko"
        module.touch()
        os.utime(module, (86400, 86400))
        self.assertEqual(self.row("sid")[0][1], "1970-01-02 00:00")

    def test_the_last_verdict_of_each_test_counts(self):
        with self.at(60):
            kernel_record.add("7.2", "netns", {"link.one": "fail", "link.two": "pass", "cm.one": "skip", "after": "fail"})
        with self.at(120):
            kernel_record.add("7.2", "netns", {"link.one": "pass", "verbs.one": "fail", "after": None})
            kernel_record.add("7.3", "netns", {"link.one": "fail"})
        with self.at(180):
            kernel_record.add("7.2", "two", {"demo": "pass"})
        self.assertEqual([row[2:] for row in self.row("7.2")], [("netns", "1970-01-01 00:02", "2", "1", "1", "cm link verbs"),
                                                                    ("two", "1970-01-01 00:03", "1", "0", "0", "demo")])
        self.assertEqual([line for line in kernel_record.table() if line.startswith("failed")],
                         ["failed: 7.2 netns verbs.one", "failed: 7.3 netns link.one"])

    def test_long_rows_are_cut(self):
        kernel_record.add("7.2", "netns", {f"subject{number}.one": "pass" for number in range(100)})
        tests = self.row("7.2")[0][-1]
        self.assertLessEqual(len(tests), kernel_record.TESTS_WIDTH)
        self.assertTrue(tests.endswith(" …"), tests)

    def test_only_the_module_on_stock_kernels_is_noted(self):
        for said in ({}, {"driver_b": "rdma_rxe"}, {"kernel_b": "7.2-arm64"}, {"driver": "rdma_rxe"}, {"uml": True}, {"debug": True}):
            options = types.SimpleNamespace(**dict(topology="netns", driver="rxe_rs", driver_b=None, kernel_b=None, uml=False, debug=False) | said)
            cli.note(options, {"SERIES": "7.2"}, {f"sample.{'_'.join(said)}": "pass"})
        self.assertEqual({topology: list(tests) for topology, tests in kernel_record.record("7.2").items()},
                         {"netns": ["sample."], "netns (rdma_rxe)": ["sample.driver_b"], "netns (7.2-arm64)": ["sample.kernel_b"]})


if __name__ == "__main__":
    unittest.main()
