"""Measure where the seconds of a step go: named spans, each without the spans inside it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, Token
from time import perf_counter
from typing import Self

import torch
from torch.profiler import record_function

from outdo.utils.processor_wait import ProcessorWait

SPANS = (
    "wait",
    "sample",
    "environment",
    "reward",
    "copy",
    "old",
    "reference",
    "teachers",
    "values",
    "forward",
    "backward",
    "optimiser",
    "record",
)
"""The spans of a training step, in the order in which they first occur; time outside of them is `idle`."""
BETWEEN = ("evaluate", "save")
"""The spans between two steps, which belong to no step."""


class Clock:
    """Count wall-clock seconds by the name of the span: `with Clock() as clock: ... clock.seconds`.

    Every moment belongs to exactly one name, that of the innermost open span or `idle`, so the seconds add up to the
    time since the start of the clock. Work that is queued on an accelerator is counted where the program waits for it.
    A clock counts the spans of the thread that started it.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open = ["idle"]
        self._since = 0.0
        self._token: Token[Clock | None] | None = None
        self.processor = ProcessorWait()

    def __enter__(self) -> Self:
        self._token = _running.set(self)
        self._since = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._count()
        if self._token is not None:
            _running.reset(self._token)

    def lap(self) -> dict[str, float]:
        """Return the seconds since the start or the last lap, and start from 0 again."""
        self._count()
        seconds, self.seconds = self.seconds, {}
        return seconds

    def enter(self, name: str) -> None:
        """Count what follows as `name`, until `leave`."""
        self._count()
        self._open.append(name)

    def leave(self) -> None:
        """Count what follows as it was before the last `enter`."""
        self._count()
        self._open.pop()

    def _count(self) -> None:
        now = perf_counter()
        name = self._open[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


_running: ContextVar[Clock | None] = ContextVar("running clock", default=None)


@contextmanager
def span(name: str, *, shown: bool = True) -> Iterator[None]:
    """Count the seconds of a `with` block as `name`, if a `Clock` is running; a profiler shows the block too."""
    clock = _running.get()
    with record_function(name) if shown and torch.autograd._profiler_enabled() else nullcontext():
        if clock is None:
            yield
            return
        clock.enter(name)
        try:
            yield
        finally:
            clock.leave()
