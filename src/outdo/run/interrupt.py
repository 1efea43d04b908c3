"""Signals that ask a run to stop: Ctrl-C, SIGTERM (a preemption) and SIGHUP (a closed terminal).

The first signal ends the work under way at once, and the last finished step is saved. Only if that step can no longer
be saved, because the weights have changed since and no copy of them is in memory, the step under way is finished first;
this takes no reward and no sampling.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal has arrived while the last finished step can be saved."""


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class StopSignals:
    """The signals that have arrived. Truthy once there is one.

    Without `may_interrupt` no signal ends a wait: among several replicas, the others would not know of it.
    """

    def __init__(self, *, may_interrupt: bool = True) -> None:
        self.may_interrupt = may_interrupt
        self.received: list[int] = []
        self._may_raise: Callable[[], bool] = _never

    def __bool__(self) -> bool:
        return bool(self.received)

    @property
    def exit_status(self) -> int:
        """The exit status that a shell reports for the first signal: 129 SIGHUP, 130 SIGINT, 143 SIGTERM."""
        return 128 + self.received[0]

    @contextmanager
    def interrupting(self, may_raise: Callable[[], bool] = _always) -> Iterator[None]:
        """Raise `Interrupted` in the `with` block as soon as a first signal arrives, or at once if it has.

        The signal is only kept if `may_raise` returns False at that moment.
        """
        try:
            self._may_raise = may_raise if self.may_interrupt else _never
            if self.received and self._may_raise():
                raise Interrupted
            yield
        finally:
            self._may_raise = _never

    def interrupting_each(self, items: Iterator[Item], may_raise: Callable[[], bool]) -> Iterator[Item]:
        """Yield the items; `interrupting` applies while one of them is computed, and not between them."""
        while True:
            with self.interrupting(may_raise):
                item = next(items, None)
            if item is None:
                return
            yield item

    def receive(self, number: int, frame: object = None) -> None:
        """Handle a signal: the first asks for an orderly end, the second changes nothing, the third ends at once."""
        self.received.append(number)
        match len(self.received):
            case 1 if self._may_raise():
                _write("stopping: the last finished step is saved")
                raise Interrupted
            case 1:
                _write("finishing this step and saving")
            case 2:
                _write("still saving; a third signal ends at once, and loses the steps after the last checkpoint")
            case _:
                raise KeyboardInterrupt


@contextmanager
def stop_requested(*, may_interrupt: bool = True) -> Iterator[StopSignals]:
    """Receive SIGINT, SIGTERM and SIGHUP inside a `with` block. One that was ignored before, as by nohup, stays so."""
    signals = StopSignals(may_interrupt=may_interrupt)
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
