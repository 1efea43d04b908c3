"""Advantages of whole answers: how much better is an answer than the others in its group?

Pure functions on plain tensors, usable alone. Each takes `rewards` [B] and `group` [B] (any integers; equal for the
answers to one question) and returns [B]. r are the rewards of one group, G is their number, μ their mean and σ their
standard deviation with the divisor G - 1. Unless a docstring says otherwise, the advantage is 0 in a group of one, and
exactly 0 for every answer of a group whose rewards are all equal.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outdo.algorithms import marks

ROUNDING = 4
"""A sum or a mean of a few numbers is exact to this many units in the last place of the largest one."""

RewardAdvantage = Callable[[Float[Tensor, "B"], Int[Tensor, "B"]], Float[Tensor, "B"]]


@marks.advantage(compares_group=True, subtracts_baseline=True, scaled_in_group=True)
def group_standardised(
    rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, eps: float = 1e-6
) -> Float[Tensor, "B"]:
    """Â_i = (r_i - μ) / (σ + eps); DeepSeekMath (arXiv 2402.03300) section 4.1.2, eps as in CS336's equation 28.

    σ has the divisor G - 1 in every implementation compared (the paper does not say). TRL's eps is 1e-4, OpenRLHF's
    1e-9.
    """
    same = group[:, None] == group  # [B, B]
    centred = group_centred(rewards, group)
    return divided(centred, deviation(centred, same), eps)


@marks.advantage(compares_group=True, subtracts_baseline=True)
def group_centred(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """Â_i = r_i - μ; Dr. GRPO (arXiv 2503.20783): no division changes the weight of easy and hard questions."""
    same = group[:, None] == group  # [B, B]
    # Relative to the minimum of the group, equal rewards are exactly 0, also large ones that are not round.
    raised = rewards - torch.where(same, rewards, torch.inf).amin(1)
    return raised - (same * raised).sum(1) / same.sum(1)


@marks.advantage(compares_group=True, subtracts_baseline=True)
def leave_one_out(
    rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, whiten: bool = False, eps: float = 1e-4
) -> Float[Tensor, "B"]:
    """Â_i = r_i - mean of the others = G / (G - 1) · (r_i - μ); RLOO (arXiv 2402.14740).

    The baseline does not depend on the answer from which it is subtracted, so the gradient is unbiased. There is no σ.
    With `whiten` the result is divided by s + eps, s its deviation over the answers of the batch that are not alone in
    their group, with the divisor of `group_standardised`: TRL's `normalize_advantages`. Its mean, which TRL subtracts,
    is 0.
    """
    size = (group[:, None] == group).sum(1)  # [B]
    advantages = group_centred(rewards, group) * size / (size - 1).clamp(min=1)
    if not whiten:
        return advantages
    compared = (size > 1)[:, None] & (size > 1)  # [B, B]
    return divided(advantages, deviation(advantages, compared), eps)


@marks.advantage(compares_group=True, subtracts_baseline=True)
def batch_standardised(
    rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, eps: float = 1e-4
) -> Float[Tensor, "B"]:
    """Â_i = (r_i - μ) / (s + eps), s the deviation of all rewards of the batch; Lite PPO (arXiv 2508.08221).

    s is the deviation of the raw rewards, with the divisor B - 1, as in TRL's `scale_rewards="batch"`.
    REINFORCE++-baseline divides by the deviation of the centred rewards instead (`reinforce_pp_baseline`).
    """
    one = torch.zeros_like(group)
    spread = deviation(group_centred(rewards, one), one[:, None] == one)  # [B]
    return divided(group_centred(rewards, group), spread, eps)


@marks.advantage(
    compares_group=True,
    subtracts_baseline=True,
    not_with_kl_in_reward="counts groups of equal rewards, of which even the smallest KL leaves none",
)
def gpg(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, nonzero: bool = False) -> Float[Tensor, "B"]:
    """Â_i = B / (B - M) · (r_i - μ), M the answers in groups whose rewards are all equal; GPG (arXiv 2504.02546).

    The factor compensates for those answers, which count in the mean and add no gradient. F_norm of the paper is 1.
    With `nonzero` the factor is verl's, B over the number of rewards that are not 0: a rare reward then weighs more,
    also where every group is mixed. A KL in the rewards leaves no group of equal rewards, and no reward of 0: subtract
    it afterwards (`baseline_first`).
    """
    same = group[:, None] == group  # [B, B]
    centred = group_centred(rewards, group)
    counted = (rewards != 0) if nonzero else (same & (centred != 0)).any(1)
    return centred * (len(rewards) / counted.sum().clamp(min=1))


@marks.advantage(compares_group=True, subtracts_baseline=True, scaled_in_group=True)
def sign(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, band: float = 0.0) -> Float[Tensor, "B"]:
    """Â_i = +1, 0 or -1: the sign of r_i - μ, and 0 where |r_i - μ| <= band (in units of the reward).

    Differences of the size of a rounding error count as 0. The signs of a group need not add up to 0: of 7 right
    answers in 8 the sum is +6. With rewards of 0 and 1 a band b sets the majority to 0 once μ >= 1 - b or μ <= b.
    """
    same = group[:, None] == group  # [B, B]
    centred = group_centred(rewards, group)
    return centred.sign().where(centred.abs() > band + rounding_of_groups(rewards, same), 0.0)


@marks.advantage()
def reward(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """Â_i = r_i: REINFORCE without a baseline (Williams 1992), so equal rewards and a group of one are not set to 0."""
    return rewards


def rounding_of_groups(sizes: Float[Tensor, "B"], same: Bool[Tensor, "B B"]) -> Float[Tensor, "B"]:
    """Return how large a number of each row's group can be that is only rounding: 4 eps times its largest size.

    The size of a number is its absolute value, or for a sum of several numbers the sum of theirs.
    """
    return ROUNDING * torch.finfo(sizes.dtype).eps * (same * sizes.abs()).amax(1)


def divided(values: Float[Tensor, "B ..."], spread: Float[Tensor, "B ..."], eps: float) -> Float[Tensor, "B ..."]:
    """Compute values / (spread + eps), and 0 where nothing differs: the spread is 0, and eps may be 0."""
    return (values / (spread + eps)).where(spread > 0, 0.0)


def deviation(centred: Float[Tensor, "B"], same: Bool[Tensor, "B B"]) -> Float[Tensor, "B"]:
    """Compute the standard deviation of each row's group, with the divisor G - 1, from centred values.

    It is computed in units of the largest deviation, so that the square of a huge reward does not overflow.
    """
    unit = (same * centred.abs()).amax(1)
    unit = unit.where(unit > 0, 1.0)  # [B]
    variance = (same * (centred / unit).square()).sum(1) / (same.sum(1) - 1).clamp(min=1)  # [B]
    return unit * variance.sqrt()
