"""Divide requests among processes that sample at the same time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from outdo.types import Request
from outdo.utils.rng import Stream

Result = TypeVar("Result")


class Places:
    """Which of some processes has sampled the turns of each episode: it may have kept keys and values."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._of: dict[Stream, int] = {}

    def divide(self, requests: Sequence[Request]) -> list[list[int]]:
        """Divide requests; the next turn of an episode goes where the turns before it were sampled."""
        parts = divide(requests, self._processes, self._of)
        self._of |= {
            episode: process
            for process, part in enumerate(parts)
            for index in part
            if (episode := requests[index].episode) is not None
        }
        return parts

    def end(self, episodes: Iterable[Stream]) -> list[list[Stream]]:
        """Forget episodes; return those of each process."""
        ended: list[list[Stream]] = [[] for _ in range(self._processes)]
        for episode in episodes:
            if (process := self._of.pop(episode, None)) is not None:
                ended[process].append(episode)
        return ended


def divide(requests: Sequence[Request], processes: int, places: Mapping[Stream, int] | None = None) -> list[list[int]]:
    """Return the indices of the requests of each process, without processes at the end that get none.

    A request of an episode in `places` goes to the process there. Requests with the same prompt stay together, so that
    it is computed once, unless they are more than one process's share of all requests. The largest such group goes
    first, each to the process with the fewest tokens so far: tokens are counted as if every answer had its largest
    length.
    """
    share = max(1, -(-len(requests) // processes))
    by_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    parts: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for index, request in enumerate(requests):
        number = None if places is None or request.episode is None else places.get(request.episode)
        if number is None:
            by_prompt[request.token_ids[: request.prompt_length]].append(index)
        else:
            parts[number].append(index)
            loads[number] += request.max_tokens
    groups = [same[start : start + share] for same in by_prompt.values() for start in range(0, len(same), share)]
    tokens = [sum(requests[index].max_tokens for index in group) for group in groups]
    for group in sorted(range(len(groups)), key=lambda group: -tokens[group]):
        least = loads.index(min(loads))
        parts[least] += groups[group]
        loads[least] += tokens[group]
    used = max((process + 1 for process, part in enumerate(parts) if part), default=0)
    return parts[:used]


def in_order(parts: Sequence[Sequence[int]], results: Sequence[Sequence[Result]]) -> list[Result]:
    """Return the results of the requests in their order, from those of each part."""
    placed = {
        index: result
        for part, of_part in zip(parts, results, strict=True)
        for index, result in zip(part, of_part, strict=True)
    }
    return [placed[index] for index in range(len(placed))]
