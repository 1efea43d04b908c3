"""The experts that compute each token of a batch that is being sampled."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outdo.rollouts.engines.sequences import SequenceState


class RouteLog:
    """Numbers the tokens that are computed, and keeps their routes on the device until all sequences have ended."""

    def __init__(self, last_routes: Callable[[], Tensor]) -> None:
        self.last_routes = last_routes  # of the N tokens of the last forward pass, [N, R, k]
        self.parts: list[Tensor] = []  # [n, R, k] of each forward pass
        self.prompts: dict[tuple[int, ...], range] = {}  # the numbers of the tokens of each prompt
        self.sampled: defaultdict[int, list[int]] = defaultdict(list)  # and of what follows, by the id of its sequence
        self.tokens = 0

    def prefilled(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Keep the routes of the last forward pass, which computed these prompts one after the other."""
        for prompt, first in zip(prompts, self._add([len(prompt) for prompt in prompts]), strict=True):
            self.prompts[prompt] = range(first, first + len(prompt))

    def read(self, sequences: Sequence[SequenceState], counts: Sequence[int]) -> None:
        """Keep the routes of the last forward pass, which computed so many tokens of each of these sequences."""
        for sequence, first, count in zip(sequences, self._add(counts), counts, strict=True):
            self.sampled[id(sequence)] += range(first, first + count)

    def give(self, sequences: Sequence[SequenceState]) -> None:
        """Set the routes of each sequence, on the CPU: of all tokens before the answer, and of it without the last.

        A sequence that continues an earlier turn of its episode has the routes of that already.
        """
        routes = torch.cat(self.parts).cpu()
        for sequence in sequences:
            before = routes[list(self.prompts[sequence.prompt])] if sequence.routes is None else sequence.routes
            sequence.routes = torch.cat([before, routes[self.sampled[id(sequence)]]])

    def _add(self, lengths: Sequence[int]) -> list[int]:
        """Keep the routes of so many neighbouring tokens each; return the number of the first of each."""
        firsts: list[int] = []
        for length in lengths:
            firsts.append(self.tokens)
            self.tokens += length
        self.parts.append(self.last_routes()[: sum(lengths)])
        return firsts
