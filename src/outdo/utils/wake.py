"""Wake a process that a signal has stopped, so that it ends with the one that has started it."""

import fcntl
import os
import signal
import sys


def wake_when_closed(pipe: int) -> None:
    """Let Linux send this process SIGCONT when the other end of a pipe is closed, as by the end of its process.

    A process that SIGSTOP has stopped reads no pipe: without this it would stay, with its memory and its lock. The
    descriptor must not be shared with other processes, of which only one would be woken. On other systems this function
    does nothing.
    """
    if sys.platform == "linux":
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
