# SPDX-License-Identifier: GPL-2.0
"""Runs the commands of `on` (the script beside this file) that other machines send. Argument: the address to listen at, port 7.

A request is a connection with fields that NUL ends: the working folder, the number of words of the command, these, the variables of the
environment, an empty field. The answer is a line with a port, to which the client connects twice, for the standard output and the standard
error of the command; then a line with its exit status. The command is killed if the client disconnects.
"""
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

ADDRESS = sys.argv[1]
# What differs between machines, so that a command does not inherit it from the other one.
OWN = {name: os.environb[name] for name in (b"RXE_CI_NODE", b"RXE_CI_IPV4", b"RXE_CI_IPV6", b"RXE_CI_GID_IPV4", b"RXE_CI_GID_IPV6")}
# How long the output is read after the end of a command that left processes behind, in seconds. The time in which the client does not take
# it, because the host does not, is not counted: that is if a piece takes longer than SLOW.
LINGER = 2
SLOW = 0.1
# How soon the end of the command is noticed while nothing is written.
STEP = 0.5


def field(stream):
    data = b""
    while (byte := stream.read(1)) != b"\0":
        if not byte:
            raise EOFError
        data += byte
    return data


def relay(pipe, connection, ended):
    """Copies until the command closes the pipe, or the client its connection; when the command has ended, for LINGER seconds more."""
    left = LINGER
    with pipe, connection:
        try:
            while left > 0:
                start = time.monotonic()
                data = os.read(pipe.fileno(), 65536) if select.select([pipe], [], [], STEP)[0] else None
                if data == b"":
                    return
                read = time.monotonic()
                connection.sendall(data or b"")
                sent = time.monotonic() - read
                if ended.is_set():
                    left -= read - start + (sent if sent < SLOW else 0)
        except OSError:
            pass


def watch(connection, child):
    """Kills the command when the client disconnects."""
    try:
        connection.recv(1)
    except OSError:
        pass
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def request(connection):
    """Reads a request: the folder, the words of the command, the environment."""
    with connection.makefile("rb") as stream:
        folder = field(stream)
        words = [field(stream) for _ in range(int(field(stream)))]
        environment = {}
        while variable := field(stream):
            name, _, value = variable.partition(b"=")
            environment[name] = value
    return folder, words, environment


def accepted(connection):
    """The two connections for the output of a command."""
    with socket.create_server((ADDRESS, 0)) as listener:
        listener.settimeout(10)
        connection.sendall(b"%d\n" % listener.getsockname()[1])
        outputs = [listener.accept()[0] for _ in range(2)]
    for output in outputs:
        output.settimeout(None)
    return outputs


def serve(connection):
    folder, words, environment = request(connection)
    outputs = accepted(connection)
    try:
        child = subprocess.Popen(["sh", "-c", 'cd "$1" && shift && exec "$@"', "on", folder, *words], env=environment | OWN, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        outputs[1].sendall(f"on: {error.strerror}\n".encode())
        for output in outputs:
            output.close()
        connection.sendall(b"126\n")
        return
    ended = threading.Event()
    relays = [threading.Thread(target=relay, args=(*pair, ended), daemon=True) for pair in zip((child.stdout, child.stderr), outputs)]
    for thread in relays:
        thread.start()
    threading.Thread(target=watch, args=(connection, child), daemon=True).start()
    status = child.wait()
    ended.set()
    for thread in relays:
        thread.join()
    connection.sendall(b"%d\n" % (status if status >= 0 else 128 - status))
    # Wakes watch().
    connection.shutdown(socket.SHUT_RDWR)


def serve_safely(connection):
    """A client that disconnects early ends its own request only."""
    with connection:
        try:
            serve(connection)
        except (OSError, EOFError, ValueError):
            pass


if __name__ == "__main__":
    with socket.create_server((ADDRESS, 7), backlog=32) as server:
        print("ready", flush=True)
        while True:
            threading.Thread(target=serve_safely, args=(server.accept()[0],), daemon=True).start()
