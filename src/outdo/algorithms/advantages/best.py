"""Advantages of whole answers that raise the chance of one good answer among several, not the mean reward.

What they take and return, and what r, G, μ and σ are, is that of `outdo.algorithms.advantages.group`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.advantages.group import deviation, divided, group_centred, rounding_of_groups
from outdo.algorithms.requirements import requires
from outdo.utils.outcome import RIGHT


@marks.advantage(compares_group=True, subtracts_baseline=True)
def best_of_group(
    rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, scale: bool = False, eps: float = 1e-6
) -> Float[Tensor, "B"]:
    """Â = the best reward minus the second best, for the best answer; 0 for all others (arXiv 2503.19595).

    With `scale` it is divided by σ + eps, as in verl's `grpo_passk` by default. Where two answers share the best
    reward, all get 0: with rewards of 0 and 1 it learns from a question only if exactly one answer is right.
    """
    same = group[:, None] == group  # [B, B]
    others = same & ~torch.eye(len(group), dtype=torch.bool, device=group.device)
    rival = torch.where(others, rewards, -torch.inf).amax(1)
    ahead = (rewards - rival).clamp(min=0).where(others.any(1), 0.0)
    return divided(ahead, deviation(group_centred(rewards, group), same), eps) if scale else ahead


@marks.advantage(
    compares_group=True,
    not_with_kl_in_reward="compares rewards with 1, which no reward equals after the KL is subtracted",
)
@requires(right=True)
def pass_at_k(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"], *, k: int = 4) -> Float[Tensor, "B"]:
    """The unbiased gradient of pass@k: PKPO (arXiv 2505.15201), binary rewards, with the baseline of equation 33.

    With ρ(n, c, k) = 1 - C(n - c, k) / C(n, k), n answers and c right ones (a reward of 1), the paper gives k/n to a
    right answer and k/n · ρ(n - 1, c, k - 1) to a wrong one, and subtracts k/n · ρ(n - 1, c_others, k - 1) from each:
    how often k - 1 of the others would have been enough. The result is Â = k · (1 - ρ(n - 1, c - 1, k - 1)) for a right
    answer and 0 for a wrong one. The paper sums over the answers; here they are averaged, hence no 1/n. An answer that
    was not needed gets little, so hard questions have the largest weight. Groups of fewer than k answers get 0.

    Raises ValueError if k is below 2: pass@1 is what `leave_one_out` raises.
    """
    if k < 2:
        raise ValueError(f"pass_at_k: k must be at least 2, not {k}; for pass@1 take leave_one_out")
    same = group[:, None] == group  # [B, B]
    right = rewards >= RIGHT
    size, hits = same.sum(1), (same & right).sum(1)
    all_wrong = torch.ones_like(rewards)  # of k - 1 of the others, if this one is right
    for drawn in range(k - 1):
        all_wrong = all_wrong * (size - hits - drawn).clamp(min=0) / (size - 1 - drawn).clamp(min=1)
    return (k * all_wrong).where(right & (size >= k), 0.0)


@marks.advantage(
    compares_group=True,
    subtracts_baseline=True,
    not_with_kl_in_reward="divides by the mean reward, and where no answer is right only the KL is left of it",
)
def max_rl(rewards: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """Â_i = (r_i - μ) / μ, and 0 where μ <= 0; MaxRL (arXiv 2602.02710).

    A mean of rewards of both signs that is no larger than their rounding counts as 0.

    With rewards of 0 and 1 its mean gradient is not that of p(right) but that of log p(right), cut after G - 1 terms of
    the series -Σ (1 - p)^k / k: hard questions have the largest weight. SkyRL divides by μ + 1e-6, prime-rl as here.
    """
    same = group[:, None] == group  # [B, B]
    mean = (same * rewards).sum(1) / same.sum(1)
    return (group_centred(rewards, group) / mean).where(mean > rounding_of_groups(rewards, same), 0.0)
