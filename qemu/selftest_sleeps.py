# SPDX-License-Identifier: GPL-2.0
"""Tests that machine tests and test modules wait for conditions, not a fixed time: their sleeps are in the table of ktests/README.md."""
import ast
import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLONE = HERE.parent
C = re.compile(r"\b(?:msleep|ssleep|fsleep|usleep|nanosleep|sleep|[mun]delay|usleep_range|schedule_timeout)(?:_\w+)?\(")
RUST = re.compile(r"\b(?:sleep|park_timeout|sys::pause)\(")
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


def compiled_sleeps(text, start, call):
    """The names of the functions that sleep, in C or Rust; `start` matches the line with the name of a function, `call` one that sleeps."""
    found, functions = set(), [("", "")]
    for line in text.splitlines():
        code = re.sub(r"//.*|/\*.*?\*/", "", line)
        head = start.match(code)
        if head:
            functions.append(head.groups())
        if not code.lstrip().startswith("*") and call.search(code):
            found.add(functions[-1][1])
        if len(functions) > 1 and code.rstrip() == functions[-1][0] + "}":
            functions.pop()
    return found


def c_sleeps(text):
    return compiled_sleeps(text, re.compile(r"^(?=\w)()[^;=#(]*?\b(\w+)\((?!.*;$)"), C)


def rust_sleeps(text):
    return compiled_sleeps(text, re.compile(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:const |unsafe |async )*fn (\w+)(?!.*(?:;|\})$)"), RUST)


READERS = {".py": python_sleeps, ".c": c_sleeps, ".h": c_sleeps, ".rs": rust_sleeps,
           **dict.fromkeys((".sh", ".test", ".suite", ""), shell_sleeps)}


def sleeps():
    found = set()
    # `ktests/models` and `ktests/old_library` have no tests in machines.
    for folder, names in ((CLONE / "ktests", "vm suites fuzz kbench kmemory ksegment kverbs limit objects"), (HERE, "guest")):
        for name in names.split():
            for path in (folder / name).rglob("*"):
                if not path.is_file() or path.suffix not in READERS:
                    continue
                functions = READERS[path.suffix](path.read_text())
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

    def test_c(self):
        text = ("/* msleep(1) */\nstatic int one(int a,\n\t       int b)\n{\n\tdeclared(1);\n\tmsleep(200);\n}\n\nvoid two(void)\n{\n\t/*\n"
                "\t * usleep(1)\n\t */\n\tasleep(1);\n}\n\nstatic struct a *three(void)\n{\n\tschedule_timeout_interruptible(1);\n}\n"
                "int declared(void);\nint *four(void)\n{\n\tusleep_range(1, 2);\n}\n")
        self.assertEqual(c_sleeps(text), {"one", "three", "four"})

    def test_rust(self):
        text = ("// sleep(1)\npub(crate) fn one() {\n    std::thread::sleep(D);\n}\nimpl A {\n    pub fn two(&self) {\n        f(|| sys::pause(1));\n"
                "    }\n    fn three() {\n        asleep(1); // sleep(1)\n    }\n    fn four() {\n        fn five() {\n        }\n"
                "        park_timeout(D)\n    }\n}\n")
        self.assertEqual(rust_sleeps(text), {"one", "two", "four"})

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
