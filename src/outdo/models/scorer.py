"""Score the tokens of a batch with a model, and add up the gradient of a loss of these scores, in micro-batches.

The loss itself is not computed here: it sees detached log-probabilities and sums over the vocabulary, and returns its
derivatives with respect to them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from outdo.algorithms.vocabulary_sums import VocabularySum
from outdo.models.forward import Forward
from outdo.models.logprobs import CHUNK, top_tokens
from outdo.types import Batch, TokenScores
from outdo.utils.errors import OutdoError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.timing import span
from outdo.utils.world import ALONE, World

Result = TypeVar("Result")
Sums = Mapping[str, VocabularySum]  # by their names in `TokenScores.sums`
NO_SUMS: Sums = MappingProxyType({})
ByRows = list[tuple[list[int], Result]]  # for each micro-batch: the numbers of its rows, and what was computed of them


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """How an update is split. Only `minibatches` changes what is computed."""

    minibatches: int = 1  # optimiser steps within one pass over a batch
    micro_batch_tokens: int = 16384  # tokens computed at once, padding included
    chunk: int | None = None  # tokens whose logits exist at once; unset: as many as some megabytes hold


@dataclass(frozen=True, slots=True)
class LossAndGrads:
    """The loss of one micro-batch [b, t], what it is made of, and its derivatives."""

    terms: dict[str, float]  # the loss and its parts; those of all micro-batches add up
    tokens: dict[str, Tensor]  # each [b, t]
    grads: TokenScores  # ∂loss/∂log-probabilities, and ∂loss/∂sum of those that it may depend on, [b, t] each


Loss = Callable[[TokenScores, Batch], LossAndGrads]


class Scoring:
    """Compute scores, and the gradient of a loss of them, in this process: one micro-batch after the other.

    Replicas override it, and share the rows of a batch (`World.scoring`).
    """

    def __init__(self, model_forward: Forward) -> None:
        self.model_forward = model_forward

    @torch.no_grad()
    def measure(self, batch: Batch, sizes: BatchSizes, sums: Sums) -> ByRows[TokenScores]:
        """Compute the scores of all rows without gradients, on the CPU."""
        micro_batches = batch.micro_batch_rows(sizes.micro_batch_tokens, whole_groups=False)
        results: ByRows[TokenScores] = []
        for rows in micro_batches:
            scores = token_scores(self.model_forward, batch.rows(torch.tensor(rows)), sums, sizes.chunk)
            results.append((rows, map_scores(scores, Tensor.cpu)))
        return results

    def accumulate(
        self,
        batch: Batch,
        parts: Sequence[list[int]],
        loss: Loss,
        sizes: BatchSizes,
        sums: Sums,
        *,
        whole_groups: bool,
    ) -> ByRows[LossAndGrads]:
        """Add the gradient of `loss` to the `grad` of the weights. No micro-batch mixes rows of two `parts`."""
        budget = sizes.micro_batch_tokens
        micro_batches = [batch.micro_batch_rows(budget, rows, whole_groups=whole_groups) for rows in parts]
        results: ByRows[LossAndGrads] = []
        for rows in chain.from_iterable(micro_batches):
            micro = batch.rows(torch.tensor(rows)).to(self.model_forward.device)
            with span("forward"):
                scores = token_scores(self.model_forward, micro, sums, sizes.chunk)
            result = loss(map_scores(scores, Tensor.detach), micro)
            with span("backward"):
                backward_scores(scores, result.grads)
            del scores  # its graph, before the forward pass of the next micro-batch: only one exists at a time
            results.append((rows, result))
        return results

    def clear(self) -> None:
        """Drop what was accumulated."""
        self.model_forward.model.zero_grad()


class MicroBatched:
    """A model that is computed in micro-batches. When memory does not suffice, they become smaller, and stay so."""

    needs_less = "shorter answers (`sampling.max_tokens`) or `train.gradient_checkpointing = true` need less"
    """What the user can do if not even one row fits into memory."""

    def __init__(self, batch_sizes: BatchSizes) -> None:
        self.batch_sizes = batch_sizes
        self.requested_micro_batch_tokens: int | None = None  # set when memory did not suffice for it

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """Compute at most `tokens` tokens at once, padding included."""
        self.batch_sizes = replace(self.batch_sizes, micro_batch_tokens=tokens)

    def micro_batch_state(self) -> dict[str, int]:
        """Return the size of micro-batches that was asked for, and that which fits into memory, for a checkpoint."""
        fitting = self.batch_sizes.micro_batch_tokens
        return {"asked": self.requested_micro_batch_tokens or fitting, "fitting": fitting}

    def load_micro_batch_state(self, saved: Mapping[str, int]) -> None:
        """Restore what `micro_batch_state` returned; an older checkpoint may have nothing.

        Micro-batches that were made smaller for lack of memory stay so, as the last bits of the gradient depend on
        them; unless another size is asked for now.
        """
        if saved.get("asked") == self.batch_sizes.micro_batch_tokens != saved.get("fitting"):
            self.requested_micro_batch_tokens = saved["asked"]
            self.set_micro_batch_tokens(saved["fitting"])

    def _halving_on_oom(self, compute: Callable[[], Result], clear: Callable[[], None]) -> Result:
        """Compute; if memory does not suffice, try again with half as many tokens at once, down to a row at a time.

        `clear` drops the gradient of the micro-batches that were computed before.
        """
        while True:
            try:
                return compute()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                clear()
                if self.batch_sizes.micro_batch_tokens <= 1:
                    raise OutdoError(f"not even one row fits into memory: {self.needs_less} ({error})") from error
            self.requested_micro_batch_tokens = self.requested_micro_batch_tokens or self.batch_sizes.micro_batch_tokens
            self.set_micro_batch_tokens(self.batch_sizes.micro_batch_tokens // 2)


class Scorer(MicroBatched):
    """A model that computes log-probabilities: the reference, or the half of a policy that is not about training.

    In a `world` of several processes, each of them computes a share of every batch.
    """

    def __init__(self, forward: Forward, batch_sizes: BatchSizes, world: World = ALONE) -> None:
        super().__init__(batch_sizes)
        self.forward = forward
        self.world = world
        self.scoring = world.scoring(Scoring(forward))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.forward.device

    def scores(self, batch: Batch, sums: Sums = NO_SUMS) -> TokenScores:
        """Return log πθ and `sums` of the batch's trained tokens, at the temperature they were sampled at. [B, T] each

        Elsewhere they are 0. They are differentiable.
        """
        return token_scores(self.forward, batch, sums, self.batch_sizes.chunk)

    def measure(self, batch: Batch, sums: Sums = NO_SUMS) -> TokenScores:
        """Return the scores [B, T] without gradients, on the CPU, computed in micro-batches."""
        parts = self._halving_on_oom(lambda: self.scoring.measure(batch, self.batch_sizes, sums), self.scoring.clear)
        width = batch.token_ids.shape[1]
        return TokenScores(
            logprobs=stack_rows([(rows, part.logprobs) for rows, part in parts], width),
            sums={name: stack_rows([(rows, part.sums[name]) for rows, part in parts], width) for name in sums},
        )

    def logprobs(self, batch: Batch) -> Tensor:
        """Return log πθ [B, T] without gradients, on the CPU."""
        return self.measure(batch).logprobs

    def top(self, batch: Batch, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` most probable tokens at each trained token, and their log-probabilities; 0 elsewhere.

        [B, T, K] int64 and float32 on the CPU: see `top_tokens`. It makes a forward pass of its own, in this process.
        All processes of a world have to call it.
        """
        if not self.forward.sharding.is_divided:
            parts = self._halving_on_oom(lambda: self._top_in_each_process(batch, count), self.scoring.clear)
        else:  # the others wait in the middle of a layer, and cannot begin again
            parts = self._top_in_micro_batches(batch, count)
        order = torch.tensor([number for rows, _ in parts for number in rows])
        mask = batch.loss_mask[order]  # the rows in the order in which they were computed

        def place(values: Sequence[Tensor]) -> Tensor:
            joined = torch.cat(list(values))  # [N, K]
            whole = joined.new_zeros(*mask.shape, joined.shape[1])  # [B, T, K]
            whole[mask] = joined
            return whole[order.argsort()]

        token_ids, logprobs = zip(*(values for _, values in parts), strict=True)
        return place(token_ids), place(logprobs)

    def _top_in_each_process(self, batch: Batch, count: int) -> ByRows[tuple[Tensor, ...]]:
        """See `_top_in_micro_batches`. If memory runs out in one process, `MemoryError` is raised in all of them."""
        parts: ByRows[tuple[Tensor, ...]] = []
        self.world.together(lambda: parts.extend(self._top_in_micro_batches(batch, count)))
        return parts

    @torch.no_grad()
    def _top_in_micro_batches(self, batch: Batch, count: int) -> ByRows[tuple[Tensor, ...]]:
        """Return the most probable tokens at the trained tokens of each micro-batch. [n, K] each, on the CPU"""
        parts: ByRows[tuple[Tensor, ...]] = []
        for rows in batch.micro_batch_rows(self.batch_sizes.micro_batch_tokens, whole_groups=False):
            micro = batch.rows(torch.tensor(rows)).to(self.device)
            parts.append((rows, self.forward.with_weights(partial(self._top_of_micro_batch, micro, count))))
        return parts

    def _top_of_micro_batch(self, micro: Batch, count: int) -> tuple[Tensor, ...]:
        hidden, source = self.forward.hidden(micro)
        row, column = micro.loss_mask.nonzero(as_tuple=True)
        parts = [
            top_tokens(self.forward.head(hidden.index_select(0, at)), micro.temperature[of], count)
            for at, of in zip(source[row, column].split(CHUNK), row.split(CHUNK), strict=True)
        ]
        return tuple(torch.cat(values).cpu() for values in zip(*parts, strict=True))


def token_scores(model_forward: Forward, batch: Batch, sums: Sums = NO_SUMS, chunk: int | None = None) -> TokenScores:
    """Compute log π and `sums` of the batch's trained tokens, 0 elsewhere, [B, T] each. See `Scorer.scores`.

    An objective that reads the environment's tokens gets those of `batch.environment` too.
    """
    batch = batch.to(model_forward.device)
    read = batch.loss_mask if batch.environment is None else batch.loss_mask | batch.environment
    rows, columns = read.nonzero(as_tuple=True)
    logprobs, *values = model_forward.with_weights(
        partial(model_forward.scores_at, batch, rows, columns, sums=tuple(sums.values()), chunk=chunk)
    )

    def place(values: Tensor) -> Tensor:
        return values.new_zeros(*batch.token_ids.shape, *values.shape[1:]).index_put((rows, columns), values)  # [B, T]

    return TokenScores(logprobs=place(logprobs), sums=dict(zip(sums, map(place, values), strict=True)))


@torch.no_grad()
def sequence_logprobs(model_forward: Forward, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Compute the log-probability, at temperature 1, of each token after the first of each sequence."""
    batch = Batch.of_tokens([sequence[:1] for sequence in sequences], [sequence[1:] for sequence in sequences])
    logprobs = token_scores(model_forward, batch).logprobs.cpu()
    return [row[mask].tolist() for row, mask in zip(logprobs, batch.loss_mask, strict=True)]


def map_scores(scores: TokenScores, change: Callable[[Tensor], Tensor]) -> TokenScores:
    """Apply `change` to log-probabilities and sums."""
    sums = {name: change(values) for name, values in scores.sums.items()}
    return TokenScores(logprobs=change(scores.logprobs), sums=sums)


def backward_scores(scores: TokenScores, grads: TokenScores, *, zeros: bool = False) -> None:
    """Add a loss's gradient to the weights, given its derivatives `grads` with respect to `scores`.

    Derivatives that are all 0 add nothing: unless `zeros` is set, their backward pass is left out.
    """
    pairs = [(scores.logprobs, grads.logprobs), *((scores.sums[name], by) for name, by in grads.sums.items())]
    used = [(value, by) for value, by in pairs if value.requires_grad and (zeros or by.any())]
    if used:
        torch.autograd.backward([value for value, _ in used], [by for _, by in used])


def stack_rows(parts: Sequence[tuple[list[int], Tensor]], width: int) -> Tensor:
    """Stack rows [b_i, t_i, ...] with their row numbers to [B, width, ...] in the order of these, on the CPU."""
    order = torch.tensor([row for rows, _ in parts for row in rows]).argsort()
    return stack([values for _, values in parts], width)[order]


def stack(parts: Sequence[Tensor], width: int) -> Tensor:
    """Pad tensors [b_i, t_i, ...] with 0 to [b_i, width, ...] and stack them, on the CPU."""
    padded = [pad(part, (0, 0) * (part.dim() - 2) + (0, width - part.shape[1])) for part in parts]
    return torch.cat(padded).cpu()
