# SPDX-License-Identifier: GPL-2.0
"""Child processes of a test."""
import contextlib
import os
import signal
import traceback


def kill(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@contextlib.contextmanager
def child_process(work):
    """Runs `work()` in a child process, which keeps the result and waits until it is killed: at the end of the block at the latest.
    Yields a function that kills it."""
    ready, ready_in = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            _kept = work()
            os.write(ready_in, b"x")
            while True:
                signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(ready_in)
    with contextlib.ExitStack() as end:
        end.callback(kill, child)
        with os.fdopen(ready, "rb") as pipe:
            assert pipe.read(1), "the process has failed"
        yield end.close
