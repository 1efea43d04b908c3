"""Micro-batches: how rows are packed into them, and how gradients are accumulated over them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

MicroBatch = TypeVar("MicroBatch")
Loss = TypeVar("Loss")
Result = TypeVar("Result")


def pack_by_tokens(
    rows: Sequence[int], lengths: Sequence[int], groups: Sequence[int], budget: int, *, whole_groups: bool
) -> list[list[int]]:
    """Split row numbers into micro-batches of at most `budget` tokens each, padding included; a row is never cut.

    `lengths` and `groups` are indexed by row number; rows of a group are neighbours. Whole groups stay together, so
    that a prompt is computed once; a group that alone exceeds the budget is cut, unless `whole_groups` forbids it.
    """
    units: list[list[int]] = []
    for members in group_neighbours(rows, groups):
        fits = whole_groups or len(members) * max(lengths[row] for row in members) <= budget
        units.extend([members] if fits else [[row] for row in members])
    micro_batches: list[list[int]] = []
    longest = 0
    for unit in units:
        own = max(lengths[row] for row in unit)
        longest = max(longest, own)
        if micro_batches and (len(micro_batches[-1]) + len(unit)) * longest <= budget:
            micro_batches[-1].extend(unit)
        else:
            micro_batches.append(list(unit))
            longest = own
    return micro_batches


def group_neighbours(rows: Sequence[int], groups: Sequence[int]) -> list[list[int]]:
    """Split row numbers where the group changes."""
    return [list(members) for _, members in groupby(rows, key=lambda row: groups[row])]


def accumulate(
    micro_batches: Iterable[MicroBatch],
    forward: Callable[[MicroBatch], tuple[Loss, Result]],
    backward: Callable[[Loss], None],
) -> list[Result]:
    """Run forward and backward pass of one micro-batch after the other; gradients add up in the weights.

    `forward` returns what `backward` needs, and a result to keep. Only one micro-batch's graph exists at a time.
    """
    results: list[Result] = []
    for micro_batch in micro_batches:
        loss, result = forward(micro_batch)
        backward(loss)
        del loss
        results.append(result)
    return results
