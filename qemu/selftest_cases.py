# SPDX-License-Identifier: GPL-2.0
"""Tests of guest/cases.py: a program that it runs behaves, and above all fails, as one that a shell starts."""
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

GUEST = Path(__file__).resolve().parent / "guest"
SERVER = "import sys; sys.path.insert(0, sys.argv[1]); import cases; cases.serve(sys.argv[2], ())"
# The function of lib.sh that tests call, with another FIFO.
PYTHON_CASE = re.search(r"^python_case\(\) \{\n.*?^\}", (GUEST / "lib.sh").read_text(), re.M | re.S)[0].replace("/run/cases", '"$CASES"')
SECONDS = 30


def soon(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true within {SECONDS} s"
        time.sleep(0.02)


class Cases(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.fifo = self.folder / "cases"
        self.log = open(self.folder / "server.log", "w")
        self.addCleanup(self.log.close)
        self.server = subprocess.Popen([sys.executable, "-c", SERVER, GUEST, self.fifo], stdout=self.log, stderr=self.log)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        soon(self.fifo.exists)

    def start(self, program, *arguments, before=""):
        """Starts a shell that runs a program, given by its text or its file, as a test does."""
        path = program if isinstance(program, Path) else self.folder / "program.py"
        if path != program:
            path.write_text(program)
        script = f'{PYTHON_CASE}\n{before}\npython_case "$@"'
        # A case that gets no status leaves files behind, which are removed with the folder.
        environment = {**os.environ, "CASES": str(self.fifo), "TMPDIR": str(self.folder)}
        return subprocess.Popen(["bash", "-c", script, "test", path, *arguments], cwd=self.folder, text=True, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_case(self, program, *arguments, **options):
        """Runs a program; returns its status, its output and its errors."""
        shell = self.start(program, *arguments, **options)
        out, errors = shell.communicate(timeout=SECONDS)
        return shell.returncode, out, errors

    def test_runs_in_a_child_of_the_server(self):
        """Not in a new interpreter: otherwise the other tests would not test cases.py."""
        parent = "import os; print(os.getppid())"
        self.assertEqual(self.run_case(parent), (0, f"{self.server.pid}\n", ""))
        self.fifo = self.folder / "nowhere"
        status, out, _ = self.run_case(parent)
        self.assertEqual(status, 0)
        self.assertNotEqual(out, f"{self.server.pid}\n")

    def test_oom_score_of_the_requester(self):
        """Not that of the server, which the kernel is to spare when a test uses up the memory."""
        program = "print(open('/proc/self/oom_score_adj').read().strip())"
        self.assertEqual(self.run_case(program, before="echo 321 >/proc/self/oom_score_adj"), (0, "321\n", ""))

    def test_statuses(self):
        """The statuses of all ways to end; 4 is that of a skipped test."""
        for program, expected, errors in (
                ("pass", 0, ""), ("import sys; sys.exit()", 0, ""), ("import sys; sys.exit(7)", 7, ""), ("import sys; sys.exit(4)", 4, ""),
                ("import sys; sys.exit('why')", 1, "why\n"), ("assert 1 == 2, 'unequal'", 1, "AssertionError: unequal\n"),
                ("def :", 1, None), ("import os; os._exit(5)", 5, ""), ("import os; os.kill(os.getpid(), 9)", 137, ""),
                ("import os; os.abort()", 134, None), (self.folder / "missing.py", 1, None)):
            with self.subTest(program=program):
                status, out, said = self.run_case(program)
                self.assertEqual((status, out), (expected, ""))
                if errors is not None:
                    self.assertTrue(said.endswith(errors) and bool(said) == bool(errors), said)
        # None of these programs ended the server.
        self.assertIsNone(self.server.poll())

    def test_environment_of_a_program(self):
        (self.folder / "beside.py").write_text("value = 'imported'")
        program = ("import beside, os, resource, sys\n"
                   "print(__name__, sys.argv[1:], os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], beside.value)\n"
                   "print(sorted(int(n) for n in os.listdir('/proc/self/fd')))\n"
                   "print('said', file=sys.stderr)\n")
        words = ["two words", "it's", "", '"', "$HOME", "*"]
        (self.folder / "elsewhere").mkdir()
        status, out, errors = self.run_case(program, *words, before="cd elsewhere; ulimit -Sn 77")
        self.assertEqual((status, errors), (0, "said\n"))
        # The fourth descriptor is that of listdir: no file of the server is open.
        self.assertEqual(out, f"__main__ {words} {self.folder}/elsewhere 77 imported\n[0, 1, 2, 3]\n")

    def test_output_while_the_request_is_being_made(self):
        """The program has the requester's files even if it starts before the shell has finished the request."""
        slowly = 'printf() { builtin printf "$@"; sleep 0.5; }'
        self.assertEqual(self.run_case("print('said')", before=slowly), (0, "said\n", ""))

    def test_malformed_requests_are_ignored(self):
        with open(self.fifo, "wb", buffering=0) as fifo:
            for line in (b"", b"word", b"1 2", b"x /tmp /tmp/x.py", b"'1 /tmp x", b"\xff \xff \xff"):
                fifo.write(line + b"\n")
        self.assertEqual(self.run_case("print('served')"), (0, "served\n", ""))
        self.assertIsNone(self.server.poll())

    def test_threads_and_exit_handlers(self):
        program = ("import atexit, threading, time\n"
                   "atexit.register(lambda: print('end'))\n"
                   "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\n")
        self.assertEqual(self.run_case(program), (0, "thread\nend\n", ""))

    def test_programs_are_isolated(self):
        program = "import json; print(hasattr(json, 'left')); json.left = 1"
        for _ in range(3):
            self.assertEqual(self.run_case(program), (0, "False\n", ""))

    def test_changed_programs_are_compiled_again(self):
        self.assertEqual(self.run_case("print(1)"), (0, "1\n", ""))
        self.assertEqual(self.run_case("assert False")[0], 1)
        self.assertEqual(self.run_case("print(2)"), (0, "2\n", ""))

    def test_several_at_once(self):
        slow = self.folder / "slow.py"
        slow.write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nraise SystemExit(3)\n")
        waiting = [self.start(slow) for _ in range(3)]
        self.assertEqual(self.run_case("raise SystemExit(4)")[0], 4)
        self.assertEqual([shell.poll() for shell in waiting], [None] * 3)
        (self.folder / "go").touch()
        for shell in waiting:
            shell.communicate(timeout=SECONDS)
            self.assertEqual(shell.returncode, 3)

    def test_ends_with_its_requester(self):
        """A test that exceeds its time limit is killed; the processes that it started must end, too."""
        shell = self.start("import os, time\n"
                           "child = os.fork()\n"
                           "open(f'pid-{bool(child)}.new', 'w').write(str(os.getpid()))\n"
                           "os.rename(f'pid-{bool(child)}.new', f'pid-{bool(child)}')\n"
                           "time.sleep(1000)\n")
        files = [self.folder / f"pid-{which}" for which in (True, False)]
        soon(lambda: all(file.exists() for file in files))
        ends = [os.pidfd_open(int(file.read_text())) for file in files]
        shell.kill()
        shell.communicate(timeout=SECONDS)

        for end in ends:
            self.assertTrue(select.select([end], [], [], SECONDS)[0], "a process of the program still runs")
            os.close(end)
        self.assertEqual(self.run_case("print('next')"), (0, "next\n", ""))


if __name__ == "__main__":
    unittest.main()
