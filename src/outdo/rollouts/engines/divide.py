"""Divide requests among processes that sample at the same time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from outdo.types import Request

Result = TypeVar("Result")


def divide(requests: Sequence[Request], processes: int) -> list[list[int]]:
    """Return the indices of the requests of each process; none of the parts is empty.

    Requests with the same prompt stay together, so that it is computed once, unless they are more than one process's
    share of all requests. The largest such group goes first, each to the process with the fewest tokens so far: tokens
    are counted as if every answer had its largest length.
    """
    share = max(1, -(-len(requests) // processes))
    by_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        by_prompt[request.token_ids].append(index)
    groups = [same[start : start + share] for same in by_prompt.values() for start in range(0, len(same), share)]
    tokens = [sum(requests[index].max_tokens for index in group) for group in groups]
    parts: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for group in sorted(range(len(groups)), key=lambda group: -tokens[group]):
        least = loads.index(min(loads))
        parts[least] += groups[group]
        loads[least] += tokens[group]
    return [part for part in parts if part]


def in_order(parts: Sequence[Sequence[int]], results: Sequence[Sequence[Result]]) -> list[Result]:
    """Return the results of the requests in their order, from those of each part."""
    placed = {
        index: result
        for part, of_part in zip(parts, results, strict=True)
        for index, result in zip(part, of_part, strict=True)
    }
    return [placed[index] for index in range(len(placed))]
