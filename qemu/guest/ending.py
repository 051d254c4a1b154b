# SPDX-License-Identifier: GPL-2.0
"""Ends a Python program as the interpreter does, for a forked process that ends by os._exit()."""
import atexit
import sys
import threading
import traceback


def status_of(program, *arguments):
    """Calls a program, waits for its threads, runs its exit handlers and flushes its output; returns its exit status."""
    status = 0
    try:
        program(*arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status
