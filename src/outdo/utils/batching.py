"""How a batch is cut up: into shares for those who compute at the same time, and into micro-batches that fit.

Rows are known here by their lengths and by the group that each belongs to; rows of a group are neighbours. A row is
never cut.
"""

from collections.abc import Sequence
from itertools import groupby, zip_longest

ENOUGH = 4  # groups for each share, from which on a share may be uneven by a group


def pack_by_tokens(
    lengths: Sequence[int], groups: Sequence[int], budget: int, *, whole_groups: bool
) -> list[list[int]]:
    """Micro-batches: the numbers of the rows of each, which hold at most `budget` tokens together, padding included.

    Whole groups stay together, so that a prompt is computed once; a group that alone exceeds the budget is cut, unless
    `whole_groups` forbids it.
    """
    pieces: list[list[int]] = []
    for members in _grouped(range(len(lengths)), groups):
        fits = whole_groups or len(members) * max(lengths[row] for row in members) <= budget
        pieces.extend([members] if fits else [[row] for row in members])
    parts: list[list[int]] = [[]]
    longest = 0
    for piece in pieces:
        wider = max(longest, *(lengths[row] for row in piece))
        if parts[-1] and len(parts[-1] + piece) * wider > budget:
            parts.append([])
            wider = max(lengths[row] for row in piece)
        parts[-1].extend(piece)
        longest = wider
    return parts


def split_evenly(
    rows: Sequence[int], costs: Sequence[float], groups: Sequence[int], n: int, *, whole_groups: bool
) -> list[list[int]]:
    """At most `n` runs of neighbouring `rows` that cost about the same, none of them empty.

    Groups stay whole where `whole_groups` asks for it, or where there are so many that it hardly makes shares uneven.
    """
    members = _grouped(rows, groups)
    units = members if whole_groups or len(members) >= ENOUGH * n else [[row] for row in rows]
    total, before = sum(costs[row] for row in rows), 0.0
    found: list[list[int]] = [[] for _ in range(n)]
    for unit in units:
        cost = sum(costs[row] for row in unit)
        found[min(n - 1, int((before + cost / 2) * n / total))].extend(unit)
        before += cost
    return [share for share in found if share]


def schedule(
    rows: Sequence[int],
    lengths: Sequence[int],
    costs: Sequence[float],
    groups: Sequence[int],
    *,
    budget: int,
    hands: int,
    whole_groups: bool,
) -> list[list[list[int]]]:
    """Micro-batches in rounds: those of a round, at most `hands`, are computed at the same time."""
    parts: list[list[list[int]]] = []
    for share in split_evenly(rows, costs, groups, hands, whole_groups=whole_groups):
        own = [lengths[row] for row in share], [groups[row] for row in share]
        parts.append(
            [[share[place] for place in part] for part in pack_by_tokens(*own, budget, whole_groups=whole_groups)]
        )
    return [[part for part in together if part] for together in zip_longest(*parts, fillvalue=[])]


def _grouped(rows: Sequence[int], groups: Sequence[int]) -> list[list[int]]:
    return [list(members) for _, members in groupby(rows, key=lambda row: groups[row])]
