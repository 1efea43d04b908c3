"""End a computation that takes too long."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in a `with` block after `seconds` of the process's CPU time: waiting does not count.

    Only the main thread can be interrupted, between two operations of Python; in another thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        raise TimeoutError(f"it did not end within {seconds:g} seconds")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
