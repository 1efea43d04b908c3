"""Signals that ask a run to stop: Ctrl-C, SIGTERM (a preemption) and SIGHUP (a closed terminal).

While answers are sampled and scored, no weight changes: the first signal ends the wait at once, and the last finished
step is saved. At any other time the step is finished first, which takes no reward and no sampling.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal has arrived while no weight was changing."""


class StopSignals:
    """The signals that have arrived. Truthy once there is one."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._may_raise = False

    def __bool__(self) -> bool:
        return bool(self.received)

    @property
    def exit_status(self) -> int:
        """The exit status that a shell reports for the first signal: 129 SIGHUP, 130 SIGINT, 143 SIGTERM."""
        return 128 + self.received[0]

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise `Interrupted` in the `with` block as soon as a first signal arrives, or at once if it has."""
        try:
            self._may_raise = True
            if self.received:
                raise Interrupted
            yield
        finally:
            self._may_raise = False

    def receive(self, number: int, frame: object = None) -> None:
        """Handle a signal: the first asks for an orderly end, the second changes nothing, the third ends at once."""
        self.received.append(number)
        match len(self.received):
            case 1 if self._may_raise:
                _write("stopping: the last finished step is saved")
                raise Interrupted
            case 1:
                _write("finishing this step and saving")
            case 2:
                _write("still saving; a third signal ends at once, and loses the steps after the last checkpoint")
            case _:
                raise KeyboardInterrupt


@contextmanager
def stop_requested() -> Iterator[StopSignals]:
    """Receive SIGINT, SIGTERM and SIGHUP inside a `with` block. One that was ignored before, as by nohup, stays so."""
    signals = StopSignals()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    received = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]
    for number in received:
        signal.signal(number, signals.receive)
    try:
        yield signals
    finally:
        for number in received:
            signal.signal(number, before[number])


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone; print is not safe in a handler
        os.write(2, f"\n{line}\n".encode())
