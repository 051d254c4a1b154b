#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks the size of a module's stack frames.

objdump -d MODULE | qemu/frames.py    prints the frames larger than LIMIT, a line each; status 1 if there are any

The kernel's build warns of such frames in C (CONFIG_FRAME_WARN), but not in Rust, where moves of large values cause them.
"""
import re
import sys

LIMIT = 2048


def frames(lines):
    """(bytes, function) of each frame that the function allocates by subtracting a constant from the stack pointer."""
    function = ""
    for line in lines:
        if label := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            function = label[1]
        elif size := re.search(r"\bsub\s+\$0x([0-9a-f]+),%rsp", line):
            yield int(size[1], 16), function


def main():
    found = list(frames(sys.stdin))
    if not found:
        sys.exit("found no stack frames: the input must be the output of `objdump -d MODULE`")
    large = [(size, function) for size, function in found if size > LIMIT]
    for size, function in sorted(large, reverse=True):
        print(f"{function}: {size} bytes of stack, {LIMIT} at most")
    sys.exit(bool(large))


if __name__ == "__main__":
    main()
