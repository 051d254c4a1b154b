# SPDX-License-Identifier: GPL-2.0
"""Tests of vm/discovery.py: all tests are found with their properties, and errors in test files are reported."""
import re
import tempfile
import unittest
from pathlib import Path

from vm import discovery


def tests_of(text, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        return discovery.tests_of(path)


class Shell(unittest.TestCase):
    def test_names_times_and_topologies(self):
        found = tests_of("# topology: two\n# timeout: 7\ntest_one() { :; }\nhelper() { :; }\n# timeout: 9\ntest_two()\n{\n}\n", "sample.test")
        self.assertEqual([(t.name, t.seconds, t.topologies, t.function, t.file) for t in found],
                         [("sample.one", 7, ("two",), "test_one", "/share/tests/sample.test"),
                          ("sample.two", 9, ("two",), "test_two", "/share/tests/sample.test")])

    def test_needs_are_of_what_follows(self):
        tests = tests_of("test_one() { :; }\n# needs: tools\ntest_two() { :; }\n# needs: tools kverbs\ntest_three() { :; }\n", "sample.test")
        self.assertEqual([t.needs for t in tests], [(), ("tools",), ("tools", "kverbs")])


    def test_cases_of_other_files(self):
        found = tests_of('# timeout: 5\n# cases: ktests/kverbs/*.c ^\\t\\{ "(\\w+)", \nrun_case() { :; }\n', "kverbs.test")
        self.assertIn(("kverbs.cq_poll", 5, "run_case"), [(t.name, t.seconds, t.function) for t in found])


class Python(unittest.TestCase):
    def found(self, text):
        return tests_of(text, "sample.py")

    def test_functions_with_defaults_and_their_own(self):
        found = self.found('''
DEFAULTS = dict(timeout=40, driver="rxe_rs", reason="about it")
def helper(names): pass
def test_one(names): pass
@case(timeout=7, needs="tools kverbs")
@families(4, 6)
def test_two(family): pass
class Thing:
    def test_no_test(self): pass
''')
        self.assertEqual([(t.name, t.seconds, t.topologies, t.needs, t.function, t.file) for t in found],
                         [("sample.one", 40, ("netns",), (), "test_one", "/share/tests/sample.py"),
                          ("sample.two", 7, ("netns",), ("tools", "kverbs"), "test_two", "/share/tests/sample.py")])

    def test_default_properties(self):
        self.assertEqual([(t.name, t.seconds, t.needs) for t in self.found("def test_one(names): pass\n")], [("sample.one", 60, ())])

    def test_malformed_files(self):
        for text in ("@case(tiemout=7)\ndef test_one(names): pass\n", "@case(timeout='7')\ndef test_one(names): pass\n",
                     "@case(timeout=SECONDS)\ndef test_one(names): pass\n", "@case(7)\ndef test_one(names): pass\n",
                     "DEFAULTS = {'timeout': 7}\ndef test_one(names): pass\n", "DEFAULTS = dict(time=7)\ndef test_one(names): pass\n",
                     "@case(driver='rxe_rs')\ndef test_one(names): pass\n", "def test_one(): pass\n", "def test_one(names, more): pass\n",
                     "def test_one(names, *more): pass\n", "def test_one(names) pass\n"):
            with self.subTest(text=text), self.assertRaises(discovery.Malformed):
                self.found(text)


class Files(unittest.TestCase):
    def test_both_languages_of_a_subject(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "lib").mkdir()
            (folder / "lib/other.py").write_text("def test_no_test(names): pass\n")
            (folder / "b.test").write_text("test_shell() { :; }\n")
            (folder / "b.py").write_text("def test_python(names): pass\n")
            (folder / "a.test").write_text("test_first() { :; }\n")
            self.assertEqual([t.name for t in discovery.all_tests(folder)], ["a.first", "b.python", "b.shell"])

    def test_standalone_tests(self):
        tests = tests_of("test_two() { :; }\n", "a.test") + tests_of("@case(needs='tools')\ndef test_one(names): pass\n", "a.py")
        tests += tests_of("def test_plain(names): pass\n", "a.py") + tests_of("# topology: two\ntest_far() { :; }\n", "b.test")
        self.assertEqual(list(discovery.standalone([], tests)), ["a.plain 60 /share/tests/a.py test_plain"])
        self.assertEqual(list(discovery.standalone(["a.t*", "b.*", "a.one"], tests)),
                         ["a.two 60 /share/tests/a.test test_two", "a.one 60 /share/tests/a.py test_one"])

    def test_flavours_of_a_series_have_its_expected_results(self):
        suite = discovery.Suite("selftests")
        old, new = suite.expected("7.2"), suite.expected("7.3")
        self.assertLess(len(old), len(new))
        self.assertEqual([suite.expected(name) for name in ("7.2-cloud", "7.2-rt", "7.3-cloud")], [old, old, new])

    def test_root_file_systems(self):
        """That of the machine, and that of a disk for containers."""
        found = {name: (suite.debian, suite.container) for name in ("podman", "pyverbs-44") for suite in [discovery.Suite(name)]}
        self.assertEqual(found, {"podman": (None, "bookworm"), "pyverbs-44": ("bookworm", None)})

    def test_names_are_unique(self):
        names = [t.name for t in discovery.all_tests()]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(len(names), 500)

    def test_every_file_has_a_subject(self):
        """ktests/README.md names each test file once, and no other file."""
        text = (discovery.CLONE / "ktests/README.md").read_text().split("## Which file is about what")[1].split("\n`vm/lib/ends.py`")[0]
        named = re.findall(r"`(\w+\.(?:py|test|\*))`", text)
        self.assertEqual(len(named), len(set(named)))
        found = [path.name for pattern in named for path in discovery.TESTS.glob(pattern) if path.suffix in (".py", ".test")]
        there = {path.name for pattern in ("*.py", "*.test") for path in discovery.TESTS.glob(pattern)}
        self.assertEqual([name for name in named if not list(discovery.TESTS.glob(name))], [], "in the table, and not in ktests/vm")
        self.assertEqual(sorted(there - set(found)), [], "name them in the table of subjects in ktests/README.md")
        self.assertEqual(len(found), len(set(found)), "named twice in the table of subjects")

    def test_no_test_is_imported_by_another(self):
        """Functions that tests share are in lib/."""
        tests = {path.stem for path in discovery.TESTS.glob("*.py")}
        for path in discovery.TESTS.rglob("*.py"):
            for line in path.read_text().splitlines():
                words = line.split()
                if line.startswith(("import ", "from ")):
                    with self.subTest(path=path.name, line=line):
                        self.assertNotIn(words[1], tests)


if __name__ == "__main__":
    unittest.main()
