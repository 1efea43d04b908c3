"""How long ago the last finished step of a training was saved, and what is saved after an error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from outdo.utils.errors import CheckpointError, NonFiniteWeightsError

CHECKPOINT_SECONDS = 600.0
"""A finished step is saved at the latest after so many seconds, whatever the number of steps between checkpoints ..."""
CHECKPOINT_SHARE = 0.05
"""... if saving then takes at most this share of the time."""


@dataclass(slots=True)
class SaveTimes:
    """When something was saved last, and how long that took."""

    last: float = field(default_factory=monotonic)
    seconds: float = 0.0

    def begin(self) -> None:
        """Count a save that has begun as the last one. How long it takes is not known until it has ended."""
        self.last, self.seconds = monotonic(), inf

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a save, which the `with` block does."""
        started = monotonic()
        yield
        self.last = monotonic()
        self.seconds = self.last - started

    def are_long_ago(self, seconds: float | None = None) -> bool:
        """Return whether the last save is `seconds` ago (`None`: `CHECKPOINT_SECONDS`), and another is not too soon."""
        least = CHECKPOINT_SECONDS if seconds is None else seconds
        return monotonic() - self.last >= max(least, self.seconds / CHECKPOINT_SHARE)


def save_after_error(error: BaseException, save: Callable[[], str], say: Callable[[str], None]) -> None:
    """Save the last finished step after an error, unless a checkpoint cannot be saved or its weights are worthless.

    `save` returns a line for the user about what it did; nothing if there was no finished step.
    """
    if isinstance(error, CheckpointError | NonFiniteWeightsError):
        return
    try:
        line = save()
    except (CheckpointError, NonFiniteWeightsError) as second:  # the first error is raised; this must not hide it
        line = str(second)
    if line:
        say(line)
