#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs commands of test machine a on machine b, over the management network.

agent.py serve            runs the server, on machine b: one command per connection
agent.py call COMMAND…    runs a command there, writes its output and returns its exit status; the command is killed if this client ends
agent.py reap             kills all commands that the server still runs
agent.py quit             ends the server
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading

PEER = ("10.78.0.2", 7)
running = set()


def serve_one(connection):
    with connection:
        stream = connection.makefile("rb")
        request = json.loads(stream.readline() or b"{}")
        if request.get("verb") == "quit":
            os._exit(0)
        if request.get("verb") == "reap":
            for child in list(running):
                kill_group(child)
            return
        child = subprocess.Popen(request["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **request["env"]})
        running.add(child)
        out = child.stdout.fileno()
        try:
            while True:
                ready, _, _ = select.select([out, connection], [], [])
                if connection in ready and not connection.recv(1):
                    kill_group(child)
                    break
                if out in ready:
                    data = os.read(out, 65536)
                    if not data:
                        break
                    connection.sendall(len(data).to_bytes(4, "big") + data)
            status = child.wait()
            connection.sendall(b"\xff\xff\xff\xff" + (status & 0xFF if status >= 0 else 128 - status).to_bytes(1, "big"))
        except OSError:
            kill_group(child)
            child.wait()
        finally:
            running.discard(child)


def kill_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass


def serve():
    with socket.create_server(("0.0.0.0", PEER[1]), backlog=32) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


def exactly(connection, count):
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            sys.exit(255)
        data += more
    return data


def call(verb, argv):
    with socket.create_connection(PEER, timeout=5) as connection:
        connection.settimeout(None)
        environment = {k: v for k, v in os.environ.items() if k.startswith("RXE_") or k == "SELF_TEST"}
        connection.sendall(json.dumps({"verb": verb, "argv": argv, "env": environment}).encode() + b"\n")
        if verb != "call":
            return 0
        while True:
            size = int.from_bytes(exactly(connection, 4), "big")
            if size == 0xFFFFFFFF:
                return exactly(connection, 1)[0]
            os.write(1, exactly(connection, size))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    sys.exit(call(sys.argv[1], sys.argv[2:]))
