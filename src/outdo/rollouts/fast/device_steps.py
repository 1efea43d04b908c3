"""Decoding steps on an accelerator, several of them before the host looks at what was sampled.

The host knows the positions and the random numbers of the next tokens beforehand; only a token decides what comes after
it, and it stays on the device as the input of the next step. A step is one function of tensors whose shapes and
addresses stay as long as the cache and the number of rows do, so that a device can capture it: on CUDA one graph is
launched instead of some thousand kernels, which the host calls more slowly than a GPU computes them.

Answers that end between two looks of the host are sampled to the next one; what comes after their end is dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from outdo.rollouts.engines.limits import HOST_READS_EVERY
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import sample_tokens
from outdo.rollouts.fast.kv_cache import KVCache

Step = Callable[[], None]
Capture = Callable[[Step], Step]


def cuda_graph(step: Step) -> Step:
    """Record the kernels of a step, without running them; return what runs them again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


CAPTURES: Mapping[str, Capture] = {"cuda": cuda_graph}
"""How a kind of device captures a step. The others compute it operator by operator."""


class DeviceSteps:
    """Steps of R rows, for as long as the tensors of the cache are the same."""

    def __init__(
        self, forward: Any, cache: KVCache, rows: int, sampling: SamplingParams, capture: Capture | None
    ) -> None:
        self.forward = forward
        self.cache = cache
        self.sampling = sampling
        self.capture = capture
        self.generation = cache.generation
        device = forward.device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)  # the last ones
        self.at = torch.zeros_like(self.tokens)  # their positions
        self.number = torch.zeros(1, dtype=torch.long, device=device)  # of the step since the host looked
        self.numbers = torch.zeros(HOST_READS_EVERY, rows, dtype=_wide(device), device=device)
        self.sampled = torch.zeros(HOST_READS_EVERY, rows, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(HOST_READS_EVERY, rows, device=device)
        self.replay: Step | None = None
        self.warm = False  # a step that is captured has run before: libraries allocate memory in their first calls

    def run(
        self, tokens: Sequence[int], at: NDArray[numpy.int64], numbers: NDArray[numpy.float64]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Sample k tokens after the last `tokens` [n] at positions `at` [n], by the random `numbers` [k, n].

        Returns the tokens and their log-probabilities, [n][k].
        """
        count, n = numbers.shape
        self.tokens[:n] = torch.tensor(tokens).to(self.tokens.device)
        self.at.zero_()[:n] = torch.from_numpy(at).to(self.at.device)  # rows without an answer begin at 0
        self.numbers[:count, :n] = torch.from_numpy(numbers).to(self.numbers.dtype).to(self.numbers.device)
        self.number.zero_()
        for _ in range(count):
            if self.capture is not None and self.warm and self.replay is None:
                self.replay = self.capture(self._step)
            (self.replay or self._step)()
            self.warm = True
        return self.sampled[:count, :n].t().tolist(), self.logprobs[:count, :n].t().tolist()

    def _step(self) -> None:
        self.cache.begin_at(self.at)
        logits = self.forward.head(self.forward.flat(self.tokens, self.at, self.cache))
        tokens, logprobs = sample_tokens(logits, self.numbers.index_select(0, self.number)[0], self.sampling)
        self.sampled.index_copy_(0, self.number, tokens[None])
        self.logprobs.index_copy_(0, self.number, logprobs[None])
        self.tokens.copy_(tokens)
        self.at.add_(1)
        self.number.add_(1)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def rows_of_bucket(rows: int, most: int) -> int:
    """Return the next power of two, at most `most`: few numbers of rows, so that few steps are captured."""
    return min(most, 1 << max(0, rows - 1).bit_length())
