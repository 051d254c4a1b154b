# SPDX-License-Identifier: GPL-2.0
"""Tests of the table of contexts in rxe_rs/README.md, and of what judges whether its rows were entered."""
import fnmatch
import re
import unittest
from pathlib import Path

import contexts
from vm import discovery

HERE = Path(__file__).resolve().parent
SAMPLE = """
## Contexts

| entry | context | sleeps | locks | test |
|---|---|---|---|---|
| `one` | process | yes | none | `sample.one`, `sample.other` |
| two | softirq | no | none | `sample.two` |

## Next
"""


class Table(unittest.TestCase):
    def test_each_operation_is_in_a_row(self):
        source = (HERE.parent / "rxe_rs/kapi/rdma/device/ops.rs").read_text()
        operations = set(re.findall(r"ops\.(\w+) = Some", source))
        self.assertGreater(len(operations), 50)
        entries = " ".join(entry for entry, _ in contexts.of_readme())
        self.assertEqual(operations - set(re.findall(r"`(\w+)`", entries)), set())

    def test_each_row_has_tests_which_exist(self):
        names = {test.name for test in discovery.all_tests()}
        table = contexts.of_readme()
        self.assertGreater(len(table), 20)
        for entry, tests in table:
            with self.subTest(entry=entry):
                self.assertTrue(tests)
                self.assertEqual([name for name in tests if name not in names], [])

    def test_each_row_has_a_test_that_is_selected(self):
        """`make test-debug` leaves some tests out on the kernel that checks locks and contexts."""
        left_out = re.search(r"^too_much='(.*)'$", (HERE / "test.sh").read_text(), re.M)[1].split()
        self.assertTrue(left_out)
        names = {test.name for test in discovery.all_tests() if "netns" in test.topologies}
        selected = {name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out)}
        for entry, tests in contexts.of_readme():
            self.assertTrue(selected.intersection(tests), entry)


class Entered(unittest.TestCase):
    def missing(self, *logs):
        return [entry for entry, _ in contexts.not_entered(contexts.rows(SAMPLE), logs)]

    def test_one_test_of_a_row_is_enough(self):
        self.assertEqual(self.missing("ok 1 sample.other # 1.5 s\nok 2 sample.two # 12.0 s\n"), [])
        self.assertEqual(self.missing("ok 1 sample.one # 1.5 s\n", "# started\nok 1 sample.two # 0.1 s\n"), [])

    def test_what_did_not_pass_enters_nothing(self):
        good = "ok 1 sample.one # 1.5 s\n"
        for line in ("", "ok 2 sample.two # SKIP no FUSE in this kernel\n", "not ok 2 sample.two # 3.0 s\n",
                     "not ok 2 sample.two # not run\n", "ok 2 sample.two_more # 3.0 s\n"):
            with self.subTest(line=line):
                self.assertEqual(self.missing(good + line), ["two"])

    def test_without_a_log(self):
        self.assertEqual(self.missing(), ["`one`", "two"])


if __name__ == "__main__":
    unittest.main()
