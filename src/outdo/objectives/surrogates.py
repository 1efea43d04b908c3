"""Piece 2, the surrogate S(ρ, Â): what stands for the advantage of the policy, per token. Higher is better.

A surrogate takes `(log_ratio, logprobs, advantages, batch)`, each tensor [B, T], and gives [B, T]. What it says of
tokens outside `loss_mask` is never read.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from outdo.types import Batch

Surrogate = Callable[[Tensor, Tensor, Tensor, Batch], Tensor]


def clip(*, low: float, high: float) -> Surrogate:
    """S = min(ρ Â, clip(ρ, 1 - low, 1 + high) Â); PPO (arXiv 1707.06347) equation 7.

    Flat where the ratio has already gone far enough the way Â pushes: Â > 0 and ρ > 1 + high, Â < 0 and ρ < 1 - low.
    On the other side the gradient stays whole, however far the ratio has gone.
    """

    def surrogate(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
        ratio = log_ratio.exp()
        return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)

    return surrogate


def log_likelihood(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
    """S = Â log πθ: REINFORCE; with Â = 1, supervised fine-tuning."""
    return logprobs * advantages
