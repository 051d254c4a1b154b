# SPDX-License-Identifier: GPL-2.0
"""The messages that the driver logs at debug level about each call that it refuses: "DEVICE: OPERATION: -ERROR"."""
import contextlib
import errno
import os
import re

from lib import host


def switch(flag):
    with open("/proc/dynamic_debug/control", "w", encoding="ascii") as control:
        control.write(f"module rxe_rs {flag}p")


def name_of(number):
    """The name by which the kernel prints an error; Python has another one for this one."""
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode[number]


class DebugMessages:
    """The messages of the kernel log from now on. The driver logs them until the last object is closed: other tests would fill the log."""
    opened = 0

    def __init__(self):
        DebugMessages.opened += 1
        switch("+")
        self.log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.log, 0, os.SEEK_END)

    def read(self):
        """Returns the messages since the last call."""
        messages = []
        while True:
            try:
                messages.append(os.read(self.log, 8192).decode(errors="replace").split(";", 1)[1].splitlines()[0])
            except BlockingIOError:
                return messages
            except BrokenPipeError:
                # The kernel has overwritten messages that were not read.
                continue

    def close(self):
        os.close(self.log)
        DebugMessages.opened -= 1
        if not DebugMessages.opened:
            switch("-")


def refusal(number, operation=r"\w+", device=r"rxe_\w+"):
    """A pattern of the message."""
    return re.compile(rf"\b{device}: (?:{operation}): -{name_of(number)}$")


@contextlib.contextmanager
def refusal_logged(number, operation=r"\w+", device=r"rxe_\w+"):
    """The driver must log that it refuses a call within the block with this error. Does nothing with another driver."""
    if host.driver("a") != "rxe_rs":
        yield
        return
    log = DebugMessages()
    try:
        yield
        messages = log.read()
    finally:
        log.close()
    pattern = refusal(number, operation, device)
    assert any(map(pattern.search, messages)), f"no message like '{pattern.pattern}' in {messages}"
