"""Scores and gradients of a model by several processes: each computes a share of every batch, on the same weights.

It does what `outdo.models.scorer.LocalScoring` does in one process. The objective is computed in this process alone.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from outdo.distributed.process import Replicated
from outdo.models.attention.forward import Forward
from outdo.models.logprobs import Entropy
from outdo.models.scorer import BatchSizes, ByRows, Loss, LossAndGrads, backward_scores, map_scores, token_scores
from outdo.types import Batch, TokenScores
from outdo.utils.batching import accumulate, group_neighbours
from outdo.utils.timing import span

ENOUGH = 4
"""Groups for each process, from which on shares are made of whole groups, and may differ by one."""


class ScoringWorker:
    """A model in one process of a pool. In a process other than this one, its gradient is added to `gradients`.

    `gradients` are shared memory: one tensor for each trained weight.
    """

    def __init__(self, model_forward: Forward, gradients: Sequence[Tensor] = ()) -> None:
        self.model_forward = model_forward
        self.gradients = gradients
        self._scores: TokenScores | None = None

    @torch.no_grad()
    def measure(self, batch: Batch, entropy: Entropy, chunk: int | None) -> TokenScores:
        """Compute the scores without gradients, on the CPU."""
        return map_scores(token_scores(self.model_forward, batch, entropy, chunk), Tensor.cpu)

    def forward(self, batch: Batch, entropy: Entropy, chunk: int | None) -> TokenScores:
        """Compute the scores; return them detached, and keep their graph for `backward`."""
        self._scores = token_scores(self.model_forward, batch, entropy, chunk)
        return map_scores(self._scores, Tensor.detach)

    def backward(self, by_logprobs: Tensor, by_entropy: Tensor | None) -> None:
        """Add the gradient, given the loss's derivatives with respect to what `forward` returned last."""
        scores, self._scores = self._scores, None
        assert scores is not None
        backward_scores(scores, by_logprobs, by_entropy)

    def clear(self) -> None:
        """Drop a graph that no `backward` will use."""
        self._scores = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """After unpickling in another process: let autograd add to the shared memory."""
        self.__dict__.update(state)
        for weight, gradient in zip(self.model_forward.trained, self.gradients, strict=True):
            weight.grad = gradient


class PooledScoring:
    """Compute in several processes; see `outdo.models.scorer.Scoring`.

    The micro-batches of a round, at most one for each process, are computed at the same time.
    """

    def __init__(self, workers: Replicated, model_forward: Forward, gradients: Sequence[Sequence[Tensor]]) -> None:
        self.workers = workers
        self.model_forward = model_forward
        self.gradients = gradients  # of the other processes; this one's is where autograd puts it
        self._unfinished = False  # an interrupted `accumulate` left gradients

    def measure(self, batch: Batch, sizes: BatchSizes, *, entropy: Entropy) -> ByRows[TokenScores]:
        """See `Scoring.measure`."""
        scores: ByRows[TokenScores] = []
        for rows in self._rounds(batch, range(len(batch)), sizes.micro_batch_tokens, whole_groups=False):
            calls = [(batch.rows(torch.tensor(each)), entropy, sizes.chunk) for each in rows]
            scores.extend(zip(rows, self.workers.map("measure", calls), strict=True))
        return scores

    def accumulate(
        self,
        batch: Batch,
        parts: Sequence[list[int]],
        loss: Loss,
        sizes: BatchSizes,
        *,
        entropy: Entropy,
        whole_groups: bool,
    ) -> ByRows[LossAndGrads]:
        """See `Scoring.accumulate`."""

        def forward(rows: list[list[int]]) -> tuple[list[LossAndGrads], ByRows[LossAndGrads]]:
            micros = [batch.rows(torch.tensor(each)).to(self.model_forward.device) for each in rows]
            with span("forward"):
                scores = self.workers.map("forward", [(micro, entropy, sizes.chunk) for micro in micros])
            results = [loss(each, micro) for each, micro in zip(scores, micros, strict=True)]
            return results, list(zip(rows, results, strict=True))

        def backward(results: list[LossAndGrads]) -> None:
            with span("backward"):
                self.workers.map("backward", [result.grads for result in results])

        if self._unfinished:
            self.clear()
        self._unfinished = True
        rounds = [self._rounds(batch, rows, sizes.micro_batch_tokens, whole_groups=whole_groups) for rows in parts]
        results = accumulate([rows for part in rounds for rows in part], forward, backward)
        self._add_gradients()
        self._unfinished = False
        return [result for of_round in results for result in of_round]

    def clear(self) -> None:
        """See `Scoring.clear`. A call that still runs in another process could add to the gradients: wait for it."""
        self.workers.finish()
        self.workers.local.clear()
        self.model_forward.model.zero_grad()
        for gradients in self.gradients:
            for gradient in gradients:
                gradient.zero_()
        self._unfinished = False

    def _rounds(self, batch: Batch, rows: Sequence[int], budget: int, *, whole_groups: bool) -> list[list[list[int]]]:
        """Split row numbers into shares, these into micro-batches, and take the micro-batches of all shares in turn."""
        shares = row_shares(batch, rows, len(self.workers), whole_groups=whole_groups)
        packed = [batch.micro_batch_rows(budget, share, whole_groups=whole_groups) for share in shares]
        return [[part for part in together if part] for together in zip_longest(*packed, fillvalue=[])]

    def _add_gradients(self) -> None:
        """Add the gradients of the other processes to this one's, in the order of the processes."""
        for gradients in self.gradients:
            for weight, gradient in zip(self.model_forward.trained, gradients, strict=True):
                weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
                gradient.zero_()


def row_shares(batch: Batch, rows: Sequence[int], n: int, *, whole_groups: bool) -> list[list[int]]:
    """Split row numbers of a batch into at most `n` shares that take about the same time; see `split_evenly`."""
    lengths, prompts, groups = batch.attention_mask.sum(1).tolist(), batch.prompt_lengths.tolist(), batch.group
    first = torch.cat([groups.new_ones(1), groups.diff()]).bool().tolist()  # its prompt is computed with it
    costs = [length - (not new) * prompt for length, prompt, new in zip(lengths, prompts, first, strict=True)]
    return split_evenly(rows, costs, groups.tolist(), n, whole_groups=whole_groups)


def split_evenly(
    rows: Sequence[int], costs: Sequence[float], groups: Sequence[int], n: int, *, whole_groups: bool
) -> list[list[int]]:
    """Split row numbers into at most `n` runs of neighbours that cost about the same, none of them empty.

    Groups stay whole if `whole_groups` says so, or if there are so many that the shares hardly become uneven by it.
    """
    members = group_neighbours(rows, groups)
    units = members if whole_groups or len(members) >= ENOUGH * n else [[row] for row in rows]
    total, before = sum(costs[row] for row in rows), 0.0
    shares: list[list[int]] = [[] for _ in range(n)]
    for unit in units:
        cost = sum(costs[row] for row in unit)
        shares[min(n - 1, int((before + cost / 2) * n / total))].extend(unit)
        before += cost
    return [share for share in shares if share]
