"""Ctrl-C and SIGTERM: finish the step, save, stop."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_requested() -> Iterator[list[int]]:
    """A list that gets SIGINT's or SIGTERM's number, for the step under way to be finished; a second one ends all."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        os.write(2, b"\nfinishing this step, then saving; once more ends at once\n")  # print is not safe in here

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
