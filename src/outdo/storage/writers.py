"""The processes that write one checkpoint together."""

from collections.abc import Callable
from typing import Protocol, TypeVar

Value = TypeVar("Value")


class Writers(Protocol):
    """The processes that write a checkpoint together: see `outdo.distributed.replicas.Replicas`."""

    rank: int

    def __len__(self) -> int: ...

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Compute in every process; return the results of all. If it fails in one, it fails in all."""
        ...

    def from_first(self, compute: Callable[[], Value]) -> Value:
        """Compute in the first process; return its result in all."""
        ...


class Alone:
    """The writer of a checkpoint that one process writes."""

    rank = 0

    def __len__(self) -> int:
        return 1

    def together(self, compute: Callable[[], Value]) -> list[Value]:
        """Compute."""
        return [compute()]

    def from_first(self, compute: Callable[[], Value]) -> Value:
        """Compute."""
        return compute()


def part_label(writers: Writers) -> str:
    """Return the end of the names of the files of one of several writers; empty if there is one."""
    return f"-{writers.rank + 1:05}-of-{len(writers):05}" if len(writers) > 1 else ""
