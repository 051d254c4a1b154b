# SPDX-License-Identifier: GPL-2.0
"""Tests that machine tests wait for conditions, not for a fixed time: their sleeps are in the table of ktests/README.md, with reasons."""
import ast
import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
SHELL = re.compile(r"(?:^|[\s;&|(<])sleep\s+[\d$\"']")


def python_sleeps(text):
    """The names of the functions that call sleep(), with their classes."""
    found = set()

    def visit(node, names):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (not names or isinstance(names[-1], ast.ClassDef)):
            names = [*names, node]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            found.add(".".join(name.name for name in names))
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(ast.parse(text), [])
    return found


def shell_sleeps(text):
    """The names of the functions that sleep; an empty name for code outside of functions."""
    found, function = set(), ""
    for line in text.splitlines():
        start = re.match(r"(\w+)\(\)", line)
        function = start[1] if start else function
        if not line.startswith("#") and SHELL.search(line):
            found.add(function)
        if line.startswith("}") or start and line.rstrip().endswith("}"):
            function = ""
    return found


def sleeps():
    found = set()
    for folder, names in ((CLONE / "ktests", "vm suites"), (HERE, "guest")):
        for name in names.split():
            for path in (folder / name).rglob("*"):
                if not path.is_file() or path.suffix not in (".py", ".sh", ".test", ".suite", ""):
                    continue
                text = path.read_text()
                functions = python_sleeps(text) if path.suffix == ".py" else shell_sleeps(text)
                found |= {f"{path.relative_to(folder)}: {function}".removesuffix(": ") for function in functions}
    return found


def listed(text):
    """The entries of the table."""
    found = set()
    for row in re.findall(r"^\| (`.*`) \| .+ \|$", text.split("## Sleeps that remain")[1], re.M):
        for entry in re.findall(r"`([^`]+)`", row):
            file, _, functions = entry.partition(": ")
            found |= {f"{file}: {function}".removesuffix(": ") for function in functions.split(", ")}
    return found


class Readers(unittest.TestCase):
    def test_python(self):
        text = "import time\ndef one():\n    def inner(): time.sleep(1)\nclass A:\n    def b(self): time.sleep(0.1)\ndef none(): asleep(1)\n"
        self.assertEqual(python_sleeps(text), {"one", "A.b"})

    def test_shell(self):
        text = ("one() {\n\tsleep 1\n}\ntwo() { foo; sleep $X; }\nthree() {\n\tfoo # no sleep\n}\n# sleep 5\n"
                "four() { bar < <(sleep 20); }\n\tsleep 60\n")
        self.assertEqual(shell_sleeps(text), {"one", "two", "four", ""})

    def test_table(self):
        text = "## Sleeps that remain\n| where | why |\n|---|---|\n| `a.py: b, C.d`; `e/f` | because |\n"
        self.assertEqual(listed(text), {"a.py: b", "a.py: C.d", "e/f"})


class Sleeps(unittest.TestCase):
    def test_all_have_a_reason(self):
        known = listed((CLONE / "ktests/README.md").read_text())
        self.assertEqual(sleeps() - known, set(), "wait for a condition, or say in ktests/README.md why that is impossible")
        self.assertEqual(known - sleeps(), set(), "these do not sleep any more")


if __name__ == "__main__":
    unittest.main()
