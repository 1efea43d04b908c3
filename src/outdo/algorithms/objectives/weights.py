"""Piece 5, the weight w of a token. It uses the mask and the totals of the whole optimiser step, so that micro-batches
add up to exactly the step. A weight takes the batch and returns [B, 1] or a number; [B, T] is allowed.

B is the number of answers that have a trained token, in all of the optimiser step.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.requirements import requirements_of, requires
from outdo.algorithms.shapes import Factor
from outdo.types import Batch

Weight = Callable[[Batch], Factor]


def sequence_mean(batch: Batch) -> Float[Tensor, "B 1"]:
    """1 / (B |o_i|): every answer counts the same, GRPO's 1/G and 1/|o| (DeepSeekMath, equation 3). [B, 1]

    TRL's B also counts the answers without a trained token: see `every_row`.
    """
    return 1.0 / (_lengths(batch).clamp(min=1) * max(1, batch.totals.sequences))


def token_mean(batch: Batch) -> float:
    """1 / Σ_i |o_i|: every token counts the same (DAPO, arXiv 2503.14476, equation 8)."""
    return 1.0 / max(1, batch.totals.tokens)


def constant(*, length: int) -> Weight:
    """1 / (B · length): every token counts the same in every step (Dr. GRPO, arXiv 2503.20783)."""
    if not 1 <= length < math.inf:
        raise ValueError(f"length must be 1 or more, not {length}")

    def weight(batch: Batch) -> float:
        return 1.0 / (max(1, batch.totals.sequences) * length)

    return weight


@requires(whole_groups=True)
def prompt_mean(batch: Batch) -> Float[Tensor, "B 1"]:
    """1 / (P Σ_{j in the group of i} |o_j|): every prompt counts the same, and within it every token. [B, 1]

    P is the number of prompts with a trained token.
    """
    same = batch.group[:, None] == batch.group  # [B, B]
    lengths = _lengths(batch)
    return 1.0 / ((same.to(lengths.dtype) @ lengths).clamp(min=1) * max(1, batch.totals.groups))


def sequence_sum(batch: Batch) -> float:
    """1 / B: the mean over answers of the sum over tokens, as in the derivation of the policy gradient."""
    return 1.0 / max(1, batch.totals.sequences)


def total(batch: Batch) -> float:
    """1: the sum over tokens."""
    return 1.0


def every_row(weight: Weight) -> Weight:
    """Return `weight` with B counting all answers, also those without a trained token, as in TRL."""

    @requires(requirements_of(weight))
    def counted(batch: Batch) -> Factor:
        return weight(batch.with_(totals=replace(batch.totals, sequences=batch.totals.rows)))

    return counted


def _lengths(batch: Batch) -> Float[Tensor, "B 1"]:
    """Return |o_i| in the precision of the log-probabilities. [B, 1]"""
    precision = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
    return batch.loss_mask.sum(1, keepdim=True).to(precision.dtype)
