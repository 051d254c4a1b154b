# SPDX-License-Identifier: GPL-2.0
"""Calls of kernel functions, recorded by kprobes (Documentation/trace/kprobetrace.rst)."""
import os
import re

from lib.case import skip

TRACING = "/sys/kernel/tracing"


class Traced:
    """Records calls of functions of the kernel. `probes`: a function and its arguments to record, such as `f size=%si`, by a name."""

    def __init__(self, **probes):
        if not os.path.exists(f"{TRACING}/kprobe_events"):
            skip("this kernel has no kprobes")
        self.probes = probes

    def __enter__(self):
        self.put("kprobe_events", "".join(f"p:{name} {function}\n" for name, function in self.probes.items()))
        self.put("trace", "")
        self.put("events/kprobes/enable", "1")
        return self

    def __exit__(self, *_):
        self.put("events/kprobes/enable", "0")
        self.put("kprobe_events", "")

    @staticmethod
    def put(name, text):
        with open(f"{TRACING}/{name}", "w") as file:
            file.write(text)

    def calls(self, pid=None):
        """Returns the arguments of each call since the last query, of a process or of all, behind the name of its probe if there are
        several probes."""
        with open(f"{TRACING}/trace") as file:
            lines = re.findall(r"^.*-(\d+) +\[.*: (\w+): \(\S+\)(.*)$", file.read(), re.M)
        self.put("trace", "")
        return [(*[name] * (len(self.probes) > 1), *(int(word.split("=")[1], 0) for word in arguments.split()))
                for number, name, arguments in lines if name in self.probes and pid in (None, int(number))]
