"""Piece 1, the level: from log-ratios per token to the logarithm of the ratio that is clipped. All are [B, T].

A level takes `(log_ratio, loss_mask)` and returns 0 outside of the mask, where the log-ratio is already 0. The ratio of
a whole answer is repeated at each of its tokens. The answer is the row: the whole episode, with all of its turns and
conversations.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from outdo.types import Batch

Level = Callable[[Float[Tensor, "B T"], Bool[Tensor, "B T"]], Float[Tensor, "B T"]]

LOG_RATIO_CLAMP = 20.0  # e^20 is 5e8: a larger ratio only shows that something is wrong


def log_ratio(logprobs: Float[Tensor, "B T"], batch: Batch, *, limit: float = LOG_RATIO_CLAMP) -> Float[Tensor, "B T"]:
    """Compute log ρ = log πθ - log π_old of every trained token, 0 elsewhere, clamped to ±limit. [B, T]

    In a first and only pass the ratio is exactly 1, and its gradient is that of `logprobs`. TRL has no limit; verl's
    and OpenRLHF's is 20 too.
    """
    return (logprobs - old_logprobs(logprobs, batch)).where(batch.loss_mask, 0.0).clamp(-limit, limit)


def old_logprobs(logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
    """Return log π_old [B, T]. A batch without it is in its first and only pass: π_old is πθ before the update."""
    return logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs


def token(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """ρ_it = πθ(o_it) / π_old(o_it): one ratio per token (PPO, GRPO)."""
    return log_ratio


def sequence(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """s_i = (Π_t ρ_it)^(1 / |o_i|): the geometric mean of an answer's ratios (GSPO, arXiv 2507.18071, equation 7)."""
    return log_ratio.sum(1, keepdim=True) / loss_mask.sum(1, keepdim=True).clamp(min=1) * loss_mask


def sequence_token(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """s_it = sg[s_i] · πθ(o_it) / sg[πθ(o_it)]: the value of `sequence`, the gradient of `token` (GSPO-token).

    With one Â for the whole answer its gradient is that of `sequence`. Use it for advantages that differ by token.
    """
    return sequence(log_ratio, loss_mask).detach() + log_ratio - log_ratio.detach()


def sequence_product(log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """W_i = Π_t ρ_it: the answer's own ratio, not a mean (RLOO, VESPO). log W is clamped to ±20.

    The longer the answer, the sooner it leaves a clip window: 200 tokens, each 0.1 % more likely, make it 1.22.
    """
    return log_ratio.sum(1, keepdim=True).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP) * loss_mask
