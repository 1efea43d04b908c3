"""The processes of a run: this one alone, or several that run the same program at the same time."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Value = TypeVar("Value")

LAUNCHER = "OUTDO_LAUNCHER"
"""The environment variable with the descriptor of a pipe that is closed when the launcher ends, however it ends."""

FOLDER = "OUTDO_LAUNCHER_FOLDER"
"""The environment variable with the launcher's folder for temporary files, which ends with it."""


def started_replicas() -> int:
    """Return how many replicas this process was started as one of, by outdo or torchrun; 1 for a process alone."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else 1


def was_launched() -> bool:
    """Return whether a launcher, that of outdo or torchrun, has started this process."""
    return LAUNCHER in os.environ or started_replicas() > 1


class World(Protocol):
    """The processes of a run, as one of them sees them: `Alone`, or `outdo.extras.replicas.replicas.Replicas`.

    All of them make each call at the same time, in the same order.
    """

    rank: int
    """The number of this process; the first one, 0, writes the run folder, prints, and asks the reward functions."""

    def __len__(self) -> int: ...

    @property
    def first(self) -> bool:
        """Whether this is the first process."""
        ...

    @property
    def mesh(self) -> "DeviceMesh | None":
        """The mesh over which tensors in main memory are exchanged; None for one process."""
        ...

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Compute in every process; return the results of all, in their order. If it fails in one, it fails in all."""
        ...

    def from_first(self, compute: Callable[[], Value]) -> Value:
        """Compute in the first process alone; return its result in all."""
        ...

    def part(self, items: Sequence[Value]) -> Sequence[Value]:
        """Return this process's part of `items`: neighbours, of at most one more than another one's."""
        ...

    def beside(self) -> "World":
        """Return the same processes for a thread, which exchanges something while the others exchange something."""
        ...

    def exchanging(self) -> AbstractContextManager[None]:
        """Raise a lost connection as `WorkerError` in a `with` block that exchanges tensors by itself."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return which process was the slowest since the last call; nothing for one process."""
        ...


class Alone:
    """The world of one process."""

    rank = 0
    first = True
    mesh = None

    def __len__(self) -> int:
        return 1

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Compute."""
        return [compute()]

    def from_first(self, compute: Callable[[], Value]) -> Value:
        """Compute."""
        return compute()

    def part(self, items: Sequence[Value]) -> Sequence[Value]:
        """Return all of them."""
        return items

    def beside(self) -> "Alone":
        """Return itself."""
        return self

    def exchanging(self) -> AbstractContextManager[None]:
        """Do nothing: nothing is exchanged."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """Return nothing."""
        return {}


ALONE = Alone()
