"""Rows of unequal length: as padded tensors, with their turns and conversations, and packed into micro-batches."""

import math
from collections.abc import Sequence
from itertools import chain, groupby, pairwise

import torch
from torch import Tensor

UNKNOWN_EXPERT = -1
"""In routes: the router chooses the expert itself."""


def floats(values: Sequence[float | None]) -> Tensor:
    """Return the values as float32, with NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float32)


def pad_rows(rows: Sequence[Sequence[float]], dtype: torch.dtype, starts: Sequence[int] = ()) -> Tensor:
    """Stack rows of values into [B, T], with zeros to their right, and with `starts` zeros to their left."""
    if not rows:
        return torch.zeros(0, 1, dtype=dtype)
    first = torch.tensor(starts or [0] * len(rows))[:, None]  # [B, 1]
    last = first + torch.tensor([len(row) for row in rows])[:, None]  # [B, 1]
    column = torch.arange(int(last.max()))  # [T]
    inside = (first <= column) & (column < last)  # [B, T]
    flat = torch.tensor([*chain.from_iterable(rows)], dtype=dtype)  # one tensor for each row would take longer
    return torch.zeros(inside.shape, dtype=dtype).masked_scatter(inside, flat)


def pad_routes(rows: Sequence[Tensor | None], width: int) -> Tensor | None:
    """Stack routes [t, R, K] into [B, width, R, K], `UNKNOWN_EXPERT` after each and for None; None if all are None."""
    known = [row for row in rows if row is not None]
    if not known:
        return None
    stacked = known[0].new_full((len(rows), width, *known[0].shape[1:]), UNKNOWN_EXPERT)
    for routes, row in zip(stacked, rows, strict=True):
        if row is not None:
            routes[: len(row)] = row
    return stacked


def turn_numbers(sampled: Tensor, previous: Tensor | None = None) -> Tensor:
    """Number the turns of each row, from 0: runs of sampled tokens; -1 at all other tokens. [B, T] bool -> int32

    `previous` is that of `previous_columns`: a fork begins a new turn.
    """
    begins = sampled.clone()
    follows = sampled[:, :-1]
    if previous is not None:
        follows = follows & (previous[:, 1:] == torch.arange(sampled.shape[1] - 1, device=sampled.device))
    begins[:, 1:] &= ~follows
    return (begins.cumsum(1, dtype=torch.int32) - 1).where(sampled, -1)


def previous_columns(forks: Sequence[Sequence[tuple[int, int]]], width: int) -> Tensor | None:
    """Return for each of `width` columns of a row the column before it in its conversation; None if no row has forks.

    A fork (t, before) says that token t follows token `before`; -1 is none. Others follow the one at t - 1. [B, T]
    """
    if not any(forks):
        return None
    columns = torch.arange(width).repeat(len(forks), 1) - 1
    for row, of_row in zip(columns, forks, strict=True):
        for column, before in of_row:
            row[column] = before
    return columns


def conversation_columns(previous: Sequence[int]) -> list[list[int]]:
    """Return the columns of each conversation of a row, of which the first goes to the first fork.

    `previous` has the column before each of the row's; see `previous_columns`. Conversations share the columns before
    their forks.
    """
    forks = [column for column, before in enumerate(previous) if before != column - 1]
    packed: list[list[int]] = []
    for start, end in pairwise([0, *forks, len(previous)]):
        earlier = next((columns for columns in packed if previous[start] in columns), [])
        shared = earlier.index(previous[start]) + 1 if earlier else 0
        packed.append([*earlier[:shared], *range(start, end)])
    return packed


def tokens_read(attention_mask: Tensor, previous: Tensor | None) -> list[int]:
    """Return how many tokens a model reads for each row: all of each of its conversations."""
    lengths: list[int] = attention_mask.sum(1).tolist()
    if previous is None:
        return lengths
    rows = zip(previous.tolist(), lengths, strict=True)
    return [sum(map(len, conversation_columns(row[:length]))) for row, length in rows]


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
        of_unit = max(lengths[row] for row in unit)
        longest = max(longest, of_unit)
        if micro_batches and (len(micro_batches[-1]) + len(unit)) * longest <= budget:
            micro_batches[-1].extend(unit)
        else:
            micro_batches.append(list(unit))
            longest = of_unit
    return micro_batches


def group_neighbours(rows: Sequence[int], groups: Sequence[int]) -> list[list[int]]:
    """Split row numbers where the group changes."""
    return [list(members) for _, members in groupby(rows, key=lambda row: groups[row])]
