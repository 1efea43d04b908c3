"""Reward functions that run in this process."""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from outdo.rewards.signatures import adapt, failure, spread
from outdo.rewards.types import RewardInput, RewardOutput


class Local:
    """A Python function as a reward, called in this process.

    What it raises is a verdict. Nothing can be done here against a function that hangs, crashes the interpreter, eats
    the memory, or changes what is not its own: write `"file.py:name"` instead, and it runs in a worker.

    `options` are arguments that are the same for every completion.

    Raises:
        UserError: the function has none of the accepted signatures, or does not take the options.
    """

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, *, options: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name or _name(function)
        self._adapted = adapt(function, self.name, options=options)
        self._lock = Lock()

    def __call__(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion. A batch on which the function raises is repeated one completion at a time."""
        with self._lock:
            return spread(self._call, answered, together=self._adapted.together, repeat=lambda _: True)

    def close(self) -> None:
        """Stop the event loop, where the function was asynchronous."""
        if "loop" in vars(self._adapted):
            self._adapted.loop.close()

    def _call(self, answered: Sequence[RewardInput]) -> list[RewardOutput] | RewardOutput:
        try:
            return self._adapted.call(answered)
        except (Exception, SystemExit) as error:
            return failure(error, self.name)


def _name(function: Any) -> str:
    plain = getattr(function, "func", function)  # functools.partial
    name = getattr(plain, "__name__", type(plain).__name__)
    return "reward" if name == "<lambda>" else name
