# SPDX-License-Identifier: GPL-2.0
"""Finds the tests: functions in the files of ktests/vm and cases of the suites, with their properties (time limit, topology, needs).

python3 -m vm.discovery [PATTERN …]    prints the plan of ktests/vm/selftest.sh: tests of one machine, a line each, `NAME SECONDS FILE
                                       FUNCTION`; without patterns the tests in Python for which nothing has to be built

Python files are parsed, not imported, because they need pyverbs, which only the machines have. `ktests/vm/lib/case.py` describes the
properties.
"""
import ast
import fnmatch
import re
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent.parent
TESTS = CLONE / "ktests/vm"
# The properties of a test with their types. Some of them are used in the machine only.
PROPERTIES = {"timeout": int, "needs": str, "driver": str, "reason": str, "cpus": int, "fresh": bool, "no_uml": str}


class Malformed(Exception):
    """An error in a test file, with its place."""


class Test:
    """One test function of a file of ktests/vm, or one case of a suite."""

    def __init__(self, path, function, seconds, topologies, case=None, needs=()):
        self.function, self.seconds, self.topologies, self.needs = function, seconds, topologies, needs
        self.name = f"{path.stem}.{case or function.removeprefix('test_')}"
        self.file = f"/share/{'suites' if path.suffix == '.suite' else 'tests'}/{path.name}"


def shell_tests(path):
    """Test functions of a shell file. The comments `# topology: netns`, `# timeout: 90` and `# needs: tools kverbs packages` (build the
    programs of tools/, a module of ktests, or the Debian packages for the machine) apply to the functions that follow. With `# cases: FILES
    PATTERN` each match of the pattern in these files is a test, which the function run_case runs."""
    seconds, topologies, needs = 60, ("netns", "two"), ()
    found = []
    for line in path.read_text().splitlines():
        if match := re.match(r"#\s*timeout:\s*(\d+)", line):
            seconds = int(match[1])
        elif match := re.match(r"#\s*topology:\s*(.*)", line):
            topologies = tuple(match[1].split())
        elif match := re.match(r"#\s*needs:\s*(.*)", line):
            needs = tuple(match[1].split())
        elif match := re.match(r"#\s*cases:\s*(\S+) (.*)", line):
            for source in sorted(CLONE.glob(match[1])):
                for name in re.findall(match[2], source.read_text(), re.M):
                    found.append(Test(path, "run_case", seconds, topologies, name, needs))
        elif match := re.match(r"(test_\w+)\s*\(\)", line):
            found.append(Test(path, match[1], seconds, topologies, needs=needs))
    return found


def keywords(path, call):
    """The properties that are arguments of `dict(…)` or `case(…)`. Raises Malformed."""
    properties = {}
    for word in call.keywords:
        try:
            value = ast.literal_eval(word.value)
        except ValueError:
            raise Malformed(f"{path.name}:{call.lineno}: {word.arg} is not a literal") from None
        if not isinstance(value, PROPERTIES.get(word.arg, ())):
            raise Malformed(f"{path.name}:{call.lineno}: {word.arg}={value!r} is not a property of a test, or has a wrong type")
        properties[word.arg] = value
    if call.args:
        raise Malformed(f"{path.name}:{call.lineno}: the arguments must be keyword arguments")
    return properties


def is_call(node, name):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def python_tests(path):
    """Test functions of a Python file. They use both devices in one process, so their topology is netns. Raises Malformed."""
    defaults, found = {}, []
    try:
        nodes = ast.parse(path.read_text(), path.name).body
    except SyntaxError as problem:
        raise Malformed(f"{path.name}:{problem.lineno}: {problem.msg}") from None
    for node in nodes:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["DEFAULTS"]:
            if not is_call(node.value, "dict"):
                raise Malformed(f"{path.name}:{node.lineno}: DEFAULTS is not dict(…)")
            defaults = keywords(path, node.value)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            properties = dict(defaults)
            for decorator in node.decorator_list:
                if is_call(decorator, "case"):
                    properties |= keywords(path, decorator)
            if "driver" in properties and "reason" not in properties:
                raise Malformed(f"{path.name}:{node.lineno}: {node.name} needs the driver {properties['driver']} and gives no `reason`")
            arguments = node.args
            if len(arguments.args) != 1 or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
                raise Malformed(f"{path.name}:{node.lineno}: {node.name} must have exactly one argument")
            needs = tuple(properties.get("needs", "").split())
            found.append(Test(path, node.name, properties.get("timeout", 60), ("netns",), needs=needs))
    return found


def tests_of(path):
    return python_tests(path) if path.suffix == ".py" else shell_tests(path)


def all_tests(folder=TESTS):
    """All tests, in the order of the names of the files; a subject may have a Python and a shell file."""
    return [t for path in sorted([*folder.glob("*.py"), *folder.glob("*.test")]) for t in tests_of(path)]


class Suite:
    """A test suite of another project, described by a file of ktests/suites. Comments at its start are its properties: `timeout`, the time
    limit of a case in seconds; `memory` of the machine in MiB; `source`, folders of the kernel's source tree that are shared with the
    machine; `debian`, the Debian suite of the machine; `packages`, further packages in it; `container`, a Debian suite whose root file system
    is a disk of the machine, /dev/vdc, with QEMU; `needs: crates`, if it runs the programs of build-crates.py, and `needs: blktests`, if it
    runs the copy of blktests in out/blktests; `wheels`, Python packages from PyPI that are shared with the machine in /share/wheels."""

    def __init__(self, name):
        self.path = CLONE / "ktests/suites" / f"{name}.suite"
        if not self.path.is_file():
            sys.exit(f"error: no suite {name}; there are {', '.join(p.stem for p in sorted(self.path.parent.glob('*.suite')))}")
        found = dict(re.findall(r"^#\s*(timeout|memory|source|debian|packages|container|needs|wheels):\s*(.+)", self.path.read_text(), re.M))
        self.seconds, self.memory, self.source = int(found.get("timeout", 60)), int(found.get("memory", 1536)), found.get("source")
        self.debian, self.packages, self.container = found.get("debian"), found.get("packages", "").split(), found.get("container")
        self.needs, self.wheels = tuple(found.get("needs", "").split()), found.get("wheels", "").split()

    def expected(self, series):
        """The lines of the file with expected results, up to `# since SERIES` if the kernel is older than that."""
        lines = []
        for line in self.path.with_suffix(".expected").read_text().splitlines():
            since = re.match(r"# since (\S+)$", line)
            if since and series and [int(n) for n in series.split("-")[0].split(".")] < [int(n) for n in since[1].split(".")]:
                break
            lines.append(line)
        return lines

    def tests(self, series):
        listed = [line.split()[0] for line in self.expected(series) if line and not line.startswith("#")]
        return [Test(self.path, f"test_{'all_listed' if c == 'all_listed' else 'case'}", self.seconds, ("netns",), c, self.needs)
                for c in ["all_listed", *listed]]


def standalone(patterns, tests):
    for test in tests:
        wanted = any(fnmatch.fnmatch(test.name, pattern) for pattern in patterns) if patterns else test.file.endswith(".py") and not test.needs
        if wanted and "netns" in test.topologies:
            yield f"{test.name} {test.seconds} {test.file} {test.function}"


if __name__ == "__main__":
    print("\n".join(standalone(sys.argv[1:], all_tests())))
