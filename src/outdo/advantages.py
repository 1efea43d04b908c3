"""Rewards into advantages: how much better was this answer than its fellows?

Pure functions on plain tensors, usable alone. Each takes `rewards` [B] and `group` [B] (any integers; equal for the
answers to one question) and returns [B]; with r the rewards of one group, μ their mean, σ their standard deviation.
`per_token` carries the result to a `Batch`: rollouts without a reward stay outside of every mean.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from outdo.types import Batch

Advantage = Callable[[Batch], Batch]
RewardAdvantage = Callable[[Tensor, Tensor], Tensor]


def group_standardised(rewards: Tensor, group: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Â_i = (r_i - μ) / (σ + eps); DeepSeekMath (arXiv 2402.03300) section 4.1.2, eps as in CS336's equation 28.

    σ has the divisor G - 1, as in every implementation compared (the paper does not say). A group of one gets 0, and
    so does, exactly, every answer of a group whose rewards are all equal. TRL's eps is 1e-4, OpenRLHF's 1e-9.
    """
    same = group[:, None] == group  # [B, B]
    centred = group_centred(rewards, group)
    # In units of the group's own largest deviation, so that no square of a huge reward overflows.
    unit = (same * centred.abs()).amax(1)
    unit = unit.where(unit > 0, 1.0)  # [B]
    variance = (same * (centred / unit).square()).sum(1) / (same.sum(1) - 1).clamp(min=1)  # [B]
    return centred / (unit * variance.sqrt() + eps)


def group_centred(rewards: Tensor, group: Tensor) -> Tensor:
    """Â_i = r_i - μ; Dr. GRPO (arXiv 2503.20783): without the division, easy and hard questions weigh as they are.

    A group of one gets 0.
    """
    same = group[:, None] == group  # [B, B]
    # Measured from the group's own minimum, equal rewards are exactly 0, however large and unround they are.
    raised = rewards - torch.where(same, rewards, torch.inf).amin(1)
    return raised - (same * raised).sum(1) / same.sum(1)


def per_token(advantage: RewardAdvantage) -> Advantage:
    """Give every trained token of a rollout the rollout's advantage: [B] -> [B, T], as GRPO does.

    Only scored rollouts enter `advantage`; the others get 0, and count in no mean and no deviation.
    """

    def fill(batch: Batch) -> Batch:
        rows = torch.zeros_like(batch.rewards)  # [B]
        if batch.scored.any():
            rows[batch.scored] = advantage(batch.rewards[batch.scored], batch.group[batch.scored])
        return batch.with_(advantages=rows[:, None] * batch.loss_mask)  # [B, T]

    return fill
