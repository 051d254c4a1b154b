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
def apart(work):
    """Runs `work()` in a child process, which keeps the result and waits until it is killed: at the end of the block at the latest.
    Yields a function that kills it."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            _kept = work()
            os.write(tell, b"x")
            while True:
                signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(tell)
    with contextlib.ExitStack() as end:
        end.callback(kill, child)
        with os.fdopen(ready, "rb") as said:
            assert said.read(1), "the process has failed"
        yield end.close
