# SPDX-License-Identifier: GPL-2.0
"""What tests there are: functions of the files of ktests/vm and cases of the suites, with what they say about themselves.

python3 -m vm.discovery [PATTERN …]    the plan of ktests/vm/selftest.sh: tests of one machine, a line each, `NAME SECONDS FILE FUNCTION`; without
                                       patterns those in Python for which nothing has to be built

A Python file is read, not imported: it needs pyverbs, which only the machines have. `ktests/vm/lib/case.py` describes what it may say.
"""
import ast
import fnmatch
import re
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent.parent
TESTS = CLONE / "ktests/vm"
# What a test may say about itself, with the type; the machine looks at what the host has no use for.
KEYS = {"timeout": int, "needs": str, "driver": str, "reason": str, "cpus": int, "fresh": bool, "no_uml": str}


class Malformed(Exception):
    """A test file that cannot be read as one."""


class Test:
    """One test function of a file of ktests/vm, or one case of a suite."""

    def __init__(self, path, function, seconds, topologies, case=None, needs=()):
        self.function, self.seconds, self.topologies, self.needs = function, seconds, topologies, needs
        self.name = f"{path.stem}.{case or function.removeprefix('test_')}"
        self.file = f"/share/{'suites' if path.suffix == '.suite' else 'tests'}/{path.name}"


def shell_tests(path):
    """Test functions of a shell file. `# topology: netns` and `# timeout: 90` comments apply to what follows them, and so does
    `# needs: tools kverbs`: the programs of tools/ or a module of ktests are built for the machine. `# cases: FILES PATTERN`: each name
    that the pattern finds in these files is a test, which the function run_case runs."""
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
    """The arguments of `dict(…)` or `case(…)`."""
    said = {}
    for word in call.keywords:
        try:
            value = ast.literal_eval(word.value)
        except ValueError:
            raise Malformed(f"{path.name}:{call.lineno}: {word.arg} is not a literal") from None
        if not isinstance(value, KEYS.get(word.arg, ())):
            raise Malformed(f"{path.name}:{call.lineno}: {word.arg}={value!r} says nothing about a test")
        said[word.arg] = value
    if call.args:
        raise Malformed(f"{path.name}:{call.lineno}: an argument without a name")
    return said


def is_call(node, name):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def python_tests(path):
    """Test functions of a Python file. Both devices are in the test's process, so that there is one machine."""
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
            said = dict(defaults)
            for decorator in node.decorator_list:
                if is_call(decorator, "case"):
                    said |= keywords(path, decorator)
            if "driver" in said and "reason" not in said:
                raise Malformed(f"{path.name}:{node.lineno}: {node.name} does not say why it needs the driver {said['driver']}")
            arguments = node.args
            if len(arguments.args) != 1 or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
                raise Malformed(f"{path.name}:{node.lineno}: {node.name} has other arguments than one")
            found.append(Test(path, node.name, said.get("timeout", 60), ("netns",), needs=tuple(said.get("needs", "").split())))
    return found


def tests_of(path):
    return python_tests(path) if path.suffix == ".py" else shell_tests(path)


def all_tests(folder=TESTS):
    """In the order of the files' names; a subject may have a file of either language."""
    return [t for path in sorted([*folder.glob("*.py"), *folder.glob("*.test")]) for t in tests_of(path)]


class Suite:
    """A file of ktests/suites. Comments at its start: `timeout` (s) and `memory` (MiB) of the machine, `source`: folders of
    the kernel's source tree to share with it, `debian`: the suite that its programs come from, `packages`: what they are beside
    those of all machines."""

    def __init__(self, name):
        self.path = CLONE / "ktests/suites" / f"{name}.suite"
        if not self.path.is_file():
            sys.exit(f"error: no suite {name}; there are {', '.join(p.stem for p in sorted(self.path.parent.glob('*.suite')))}")
        said = dict(re.findall(r"^#\s*(timeout|memory|source|debian|packages):\s*(.+)", self.path.read_text(), re.M))
        self.seconds, self.memory, self.source = int(said.get("timeout", 60)), int(said.get("memory", 1536)), said.get("source")
        self.debian, self.packages = said.get("debian"), said.get("packages", "").split()

    def expected(self, series):
        """The list of what is expected, without what comes after `# since SERIES` if the kernel is older."""
        lines = []
        for line in self.path.with_suffix(".expected").read_text().splitlines():
            since = re.match(r"# since (\S+)$", line)
            if since and series and [int(n) for n in series.removesuffix("-rt").split(".")] < [int(n) for n in since[1].split(".")]:
                break
            lines.append(line)
        return lines

    def tests(self, series):
        listed = [line.split()[0] for line in self.expected(series) if line and not line.startswith("#")]
        return [Test(self.path, f"test_{'all_listed' if c == 'all_listed' else 'case'}", self.seconds, ("netns",), c)
                for c in ["all_listed", *listed]]


def standalone(patterns, tests):
    for test in tests:
        wanted = any(fnmatch.fnmatch(test.name, pattern) for pattern in patterns) if patterns else test.file.endswith(".py") and not test.needs
        if wanted and "netns" in test.topologies:
            yield f"{test.name} {test.seconds} {test.file} {test.function}"


if __name__ == "__main__":
    print("\n".join(standalone(sys.argv[1:], all_tests())))
