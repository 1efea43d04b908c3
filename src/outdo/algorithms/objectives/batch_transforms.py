"""Batch transforms: changes that an objective makes once per batch, before the first pass, from statistics of the
batch.

A batch transform takes the batch with its advantages and returns it changed. It uses π_old, because there was no update
yet. The result is the same for all passes and all micro-batches.
"""

import functools
import math

import torch
from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.objectives.base import BatchTransform, given
from outdo.algorithms.requirements import requires
from outdo.algorithms.vocabulary_sums import token_entropy
from outdo.types import Batch

ROUNDING = 1e-9
"""What a product of two floats may exceed the whole number that it stands for."""


def high_entropy(*, share: float = 0.2) -> BatchTransform:
    """Train only the `share` of tokens where π_old has the highest entropy: Â = 0 on the others; arXiv 2506.01939.

    Tokens with H ≥ the (1 - share) quantile of H over all trained tokens of the batch are kept. Denominators stay the
    same, and KL and entropy terms apply to every token. TRL's `top_entropy_quantile` takes H of the current policy and
    the quantile anew in every micro-batch, and restricts its entropy bonus to the same tokens. With the surrogate
    `dro`, a token with Â = 0 is still held at π_old.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}")

    @requires(old_sums={"entropy": token_entropy})
    def transform(batch: Batch) -> Batch:
        if batch.totals.tokens == 0:
            return batch
        entropy = given(batch.old_sums.get("entropy"), "old_sums['entropy']")
        advantages = given(batch.advantages, "advantages")
        trained = entropy[batch.loss_mask]
        rank = math.ceil((1 - share) * (len(trained) - 1) - ROUNDING)  # from 0, of the lowest entropy that is kept
        least = trained.kthvalue(rank + 1).values  # `quantile` refuses more than 2^24 tokens
        return batch.with_(advantages=advantages.where(entropy >= least, 0.0))

    return transform


def without_covariant(*, share: float = 0.0002, low: float = 1.0, high: float = 5.0, seed: int = 0) -> BatchTransform:
    """Set Â = 0 for a few tokens, drawn at random among those with low < covariance < high; Clip-Cov, arXiv 2505.22617.

    Their number is `share` of all trained tokens, at least one. A token's covariance is (Â - mean Â)(l - mean l), the
    means over all trained tokens. The authors take l = log πθ of each pass, and a token that PPO's clip stops is not
    drawn; here l = log π_old, once per batch, before there is such a token. The draw depends only on `seed` and on the
    tokens of the batch: not on the order of its rows, and it is the same in a resumed run.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}")
    if not low < high:
        raise ValueError(f"the lower bound of the covariance must be below the upper one, not {low} and {high}")

    return functools.partial(drop_covariant, share=share, low=low, high=high, seed=seed)


@requires(old_logprobs=True)
def drop_covariant(batch: Batch, *, share: float, low: float, high: float, seed: int) -> Batch:
    """Return the batch that `without_covariant` makes."""
    advantages, covariance = given(batch.advantages, "advantages"), _covariance(batch)
    eligible = batch.loss_mask & (low < covariance) & (covariance < high)
    tokens = eligible.nonzero()[covariance[eligible].argsort()]  # [N, 2], in an order that does not depend on rows
    generator = torch.Generator().manual_seed(seed + int(batch.token_ids.sum()))
    drawn = torch.randperm(len(tokens), generator=generator)[: _count(batch, share)]
    row, column = tokens[drawn.to(tokens.device)].T
    return batch.with_(advantages=advantages.index_put((row, column), advantages.new_zeros(())))


def covariant(*, percent: float = 0.2) -> BatchTransform:
    """Mark the `percent` of trained tokens with the largest covariance, at least one, for the surrogate `kl_cov`.

    KL-Cov (arXiv 2505.22617). The mark is `batch.prepared["covariant"]`, [B, T] bool; a token with a covariance of 0 or
    less, which costs no entropy, is never marked. The authors take l = log πθ of each pass, see `without_covariant`;
    verl's `kl_cov_ratio` is a share, not a percentage.
    """
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be above 0 and at most 100, not {percent}")

    return functools.partial(mark_covariant, percent=percent)


@requires(old_logprobs=True)
def mark_covariant(batch: Batch, *, percent: float) -> Batch:
    """Return the batch that `covariant` makes."""
    covariance = _covariance(batch).where(batch.loss_mask, -torch.inf)
    number = min(_count(batch, percent / 100), batch.totals.tokens)
    largest = torch.zeros_like(batch.loss_mask)
    largest.view(-1)[covariance.flatten().topk(number).indices] = True
    return batch.with_(prepared={**batch.prepared, "covariant": largest & (covariance > 0)})


def _covariance(batch: Batch) -> Float[Tensor, "B T"]:
    """Compute each trained token's term of the covariance between Â and log π_old. [B, T]"""
    advantages, logprobs = given(batch.advantages, "advantages"), given(batch.old_logprobs, "old_logprobs")
    mask = batch.loss_mask
    return (advantages - advantages[mask].mean()) * (logprobs - logprobs[mask].mean())


def _count(batch: Batch, share: float) -> int:
    """Return `share` of the number of trained tokens, at least 1."""
    return max(1, int(batch.totals.tokens * share))
