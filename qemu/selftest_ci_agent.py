# SPDX-License-Identifier: GPL-2.0
"""Tests of the part of tools/rxe-ci/guest/agent.py that passes the output of a command to another machine."""
import importlib.util
import os
import select
import socket
import subprocess
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

AGENT = Path(__file__).resolve().parent.parent / "tools/rxe-ci/guest/agent.py"
# What it takes from its environment.
OWN = ("RXE_CI_NODE", "RXE_CI_IPV4", "RXE_CI_IPV6", "RXE_CI_GID_IPV4", "RXE_CI_GID_IPV6")


def load():
    spec = importlib.util.spec_from_file_location("agent", AGENT)
    agent = importlib.util.module_from_spec(spec)
    with mock.patch("sys.argv", ["agent.py", "127.0.0.1"]), mock.patch.dict(os.environ, dict.fromkeys(OWN, "1")):
        spec.loader.exec_module(agent)
    return agent


class Relay(unittest.TestCase):
    def serve(self, command, pause=0):
        """What a client gets of the output of a command that it begins to read some seconds after the end of the command."""
        agent = load()
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        child = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE)
        ended = threading.Event()
        thread = threading.Thread(target=agent.relay, args=(child.stdout, theirs, ended))
        thread.start()
        head = b""
        while child.poll() is None:
            # Slower than the command writes, so that there is no room on the way.
            time.sleep(0.002)
            if select.select([ours], [], [], 0)[0]:
                head += ours.recv(4096)
        ended.set()
        thread.join(pause)
        with ours.makefile("rb") as stream:
            rest = stream.read()
        thread.join()
        return head + rest

    def test_slow_client(self):
        """Nothing is lost, also if the command leaves a process behind; one through which all goes may still have a part of it."""
        for command in ("seq 100000", "sleep 20 & seq 100000", "exec > >(cat); seq 100000"):
            with self.subTest(command):
                self.assertEqual(self.serve(command, pause=5), b"".join(b"%d\n" % number for number in range(1, 100001)))

    def test_endless_output(self):
        self.assertTrue(self.serve("timeout 60 yes & sleep 0.2").startswith(b"y\ny\n"))


if __name__ == "__main__":
    unittest.main()
