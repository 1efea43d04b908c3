"""Ctrl-C and SIGTERM: finish the step, save, stop."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_requested() -> Iterator[list[int]]:
    """Yield a list that receives the number of SIGINT or SIGTERM, so that the current step can be finished first.

    A second signal raises KeyboardInterrupt at once.
    """
    signals: list[int] = []

    def receive(number: int, frame: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        os.write(2, b"\nfinishing this step and saving; repeat to stop at once\n")  # print is not safe in a handler

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
