#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs a command while a process with connections of its own goes on, which must not notice.

fuzz.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B COMMAND …
"""
import os
import subprocess
import sys

from bystander import Bystander


def main(names, command):
    # It needs its turn now and then, no more.
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    bystander = Bystander(names)
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    status = subprocess.run(command).returncode
    bystander.end(10)
    assert status == 0, f"{command[0]} ended with {status}"


if __name__ == "__main__":
    main(sys.argv[1:5], sys.argv[5:])
