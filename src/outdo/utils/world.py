"""The processes of a run: this one alone, or several that run the same program at the same time."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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


class World:
    """The processes of a run, as one of them sees them. Here it is alone.

    `outdo.extras.replicas` overrides these methods for several processes. All of them make each call at the same time,
    in the same order.
    """

    rank = 0
    """The number of this process; the first one, 0, writes the run folder, prints, and asks the reward functions."""

    divides_models = False
    """Whether each process holds a part of every weight, and no process holds a whole model."""

    def __len__(self) -> int:
        return 1

    @property
    def first(self) -> bool:
        """Whether this is the first process."""
        return self.rank == 0

    @property
    def mesh(self) -> "DeviceMesh | None":
        """The mesh over which tensors in main memory are exchanged; None for one process."""
        return None

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Compute in every process; return the results of all, in their order. If it fails in one, it fails in all."""
        return [compute()]

    def from_first(self, compute: Callable[[], Value]) -> Value:
        """Compute in the first process alone; return its result in all."""
        return compute()

    def part(self, items: Sequence[Value]) -> Sequence[Value]:
        """Return this process's part of `items`: neighbours, of at most one more than another one's."""
        return items

    def beside(self) -> "World":
        """Return the same processes for a thread, which exchanges something while the others exchange something."""
        return self

    def exchanging(self) -> AbstractContextManager[None]:
        """Raise a lost connection as `WorkerError` in a `with` block that exchanges tensors by itself."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """Return which process was the slowest since the last call; nothing for one process."""
        return {}

    def scoring(self, local: Value) -> Value:
        """Return what scores the rows of a batch: `local`, an `outdo.models.scorer.Scoring` of this process alone.

        Several processes return one that shares the rows among them.
        """
        return local

    def check_forward(self, forward: Any) -> None:
        """Raise `ModelError` if the processes together compute other scores of a few tokens than one of them does."""

    def from_pretrained(self, auto: Any, folder: Path, **options: Any) -> Any:
        """Return what `auto.from_pretrained` returns, `auto` being a class of models of transformers.

        Processes that divide models divide it before its weights are read, and each reads its part.
        """
        return auto.from_pretrained(folder, **options)

    def in_lockstep(self, micro_batches: Sequence[list[int]], compute: Callable[[list[int]], Value]) -> list[Value]:
        """Compute this process's micro-batches with a model, and return the results of all processes.

        If the model is divided, all of them call `compute` equally often: one with fewer micro-batches passes empty
        ones, and drops the results.
        """
        return [compute(rows) for rows in micro_batches]


ALONE = World()
