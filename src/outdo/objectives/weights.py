"""Piece 5, the weight w: how much a token counts. Built from the mask and the totals of the whole optimiser step, so
that micro-batches add up to exactly the step. Each takes the batch and gives [B, 1] or a number.
"""

from collections.abc import Callable

from torch import Tensor

from outdo.types import Batch

Weight = Callable[[Batch], Tensor | float]


def sequence_mean(batch: Batch) -> Tensor:
    """1 / (B |o_i|): every answer counts the same, GRPO's 1/G and 1/|o| (DeepSeekMath, equation 3). [B, 1]

    B counts the answers that have a trained token; TRL counts the others too.
    """
    return 1.0 / (batch.loss_mask.sum(1, keepdim=True).clamp(min=1) * max(1, batch.totals.sequences))


def token_mean(batch: Batch) -> float:
    """1 / Σ_i |o_i|: every token counts the same (DAPO, arXiv 2503.14476, equation 8)."""
    return 1.0 / max(1, batch.totals.tokens)


def constant(length: int) -> Weight:
    """1 / (B · length): every token counts the same in every step (Dr. GRPO, arXiv 2503.20783)."""

    def weight(batch: Batch) -> float:
        return 1.0 / (max(1, batch.totals.sequences) * length)

    return weight


def total(batch: Batch) -> float:
    """1: the sum over tokens."""
    return 1.0
