"""Piece 1, the level: per-token log-ratios into the logarithm of the ratio that is clipped. All are [B, T]."""

from collections.abc import Callable

from torch import Tensor

from outdo.types import Batch

Level = Callable[[Tensor, Tensor], Tensor]  # (log_ratio, loss_mask) -> log_ratio

LOG_RATIO_LIMIT = 20.0  # e^20 is 5e8: beyond it a ratio says only that something is wrong


def log_ratio(logprobs: Tensor, batch: Batch, *, limit: float = LOG_RATIO_LIMIT) -> Tensor:
    """log ρ = log πθ - log π_old of every trained token, 0 elsewhere, kept within ±limit. [B, T]

    A batch without `old_logprobs` is in its first and only pass: π_old is πθ before the update, the ratio is exactly
    1, and its gradient is that of `logprobs`. TRL keeps no limit; verl's and OpenRLHF's is 20 too.
    """
    old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    return (logprobs - old).where(batch.loss_mask, 0.0).clamp(-limit, limit)


def token(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
    """ρ_it = πθ(o_it) / π_old(o_it): one ratio per token (PPO, GRPO)."""
    return log_ratio
