"""Sequences whose items are made when they are asked for: of questions that stay on disk, and of several parts."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar, overload

Item = TypeVar("Item", covariant=True)


class Lazy(Sequence[Item]):
    """A sequence whose items are made when they are asked for. A slice of it is a list."""

    def make(self, index: int) -> Item:
        """Return the item at a place from 0 to the length."""
        raise NotImplementedError

    def by_id(self, own_id: str) -> Item:
        """Return the item with an id. Raises KeyError if there is none."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self.make(n) for n in range(len(self))[index]]
        return self.make(range(len(self))[index])


class Joined(Lazy[Item]):
    """Several sequences, one after the other."""

    def __init__(self, parts: Sequence[Sequence[Item]]) -> None:
        self.parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Item]:
        for part in self.parts:
            yield from part

    def make(self, index: int) -> Item:
        """Return the item at a place from the sequence that has it."""
        number = next(number for number, end in enumerate(self._ends) if index < end)
        return self.parts[number][index - self._ends[number]]
