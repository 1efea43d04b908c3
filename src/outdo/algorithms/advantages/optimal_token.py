"""The optimal token baseline: a baseline for each token, from the answers of the group that have such a token."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.advantages.returns import returns_to_go, token_rewards_of, without_rounding
from outdo.algorithms.objectives.base import given
from outdo.algorithms.requirements import requires
from outdo.algorithms.unfold import Unfolded
from outdo.algorithms.vocabulary_sums import token_collision
from outdo.types import Batch


@marks.advantage(compares_group=True)
@requires(old_logprobs=True, old_sums={"collision": token_collision})
def optimal_token(batch: Batch, *, zero_tail: bool = True) -> Batch:
    """Â_t = G_t - B_t with B_t = Σ_i G_it W_it / Σ_i W_it over the answers of the group; verl's optimal token baseline.

    G_t is the return to go, and W_it = Σ_{s<=t} (1 - 2 π(o_is) + Σ_v π(v)²), which is the squared norm of the gradient
    of log π with respect to the logits, summed up to the token: B_t is the baseline of least variance for gradients of
    these norms. t counts trained tokens. Where a single answer has a t-th token, B_t is 0, so that Â_t is the whole
    return, also in a group of one; without `zero_tail` it is the return itself, and Â_t is 0. An episode with several
    conversations has its first one in the sums of the others: see `outdo.algorithms.unfold`.

    What differs: verl adds 1e-8 to the denominator, and can multiply W by the squared weight for the engine.
    """
    conversations = Unfolded.of(batch)
    rows, first = conversations.batch, conversations.first
    mask = rows.loss_mask
    advantages = torch.zeros(mask.shape, dtype=rows.rewards.dtype, device=mask.device)
    if not mask.any():
        return batch.with_(advantages=conversations.folded(advantages))
    returns = returns_to_go(token_rewards_of(rows), mask)
    collision = given(rows.old_sums.get("collision"), "old_sums['collision']")
    norms = _squared_norms(given(rows.old_logprobs, "old_logprobs"), collision)
    norms = norms.where(mask, 0.0).cumsum(1)

    def compared(members: Int[Tensor, "n"]) -> Float[Tensor, "n L"]:
        """Return the advantages of some rows, which are compared with each other."""
        trained = mask[members]
        g, w = _aligned(returns[members], trained), _aligned(norms[members], trained)  # [n, K]
        present = _aligned(torch.ones_like(returns[members]), trained) > 0
        baseline = _weighted_mean(g, w, present)  # [K]
        if zero_tail:
            baseline = baseline.where(present.sum(0) > 1, 0.0)
        return torch.zeros_like(returns[members]).masked_scatter(trained, (g - baseline)[present])

    trained = mask.any(1)
    for group in rows.group[trained].unique():
        members = ((rows.group == group) & trained & first).nonzero().squeeze(1)  # [n]
        if len(members):
            advantages[members] = compared(members).to(advantages)
    for further in (trained & ~first).nonzero().squeeze(1).tolist():
        members = (conversations.compared_with(further) & trained).nonzero().squeeze(1)
        advantages[further] = compared(members)[members == further].squeeze(0).to(advantages)
    return batch.with_(advantages=conversations.folded(without_rounding(advantages, rows)))


def _squared_norms(logprobs: Float[Tensor, "B T"], collision: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Compute 1 - 2 π + Σ_v π(v)² as (1 - π)² + Σ_{v ≠ o} π(v)², which is never negative.

    π and Σ_v π(v)² are rounded apart. Weights of both signs would put a baseline far outside of the returns.
    """
    return logprobs.expm1().square() + (collision - (2 * logprobs).exp()).clamp(min=0)


def _aligned(values: Float[Tensor, "n T"], mask: Bool[Tensor, "n T"]) -> Float[Tensor, "n K"]:
    """Move the values of the trained tokens of each row to the left, and fill up with 0."""
    longest = int(mask.sum(1).max())
    places = torch.arange(longest, device=mask.device) < mask.sum(1, keepdim=True)
    return values.new_zeros(places.shape).masked_scatter(places, values[mask])


def _weighted_mean(
    values: Float[Tensor, "n K"], weights: Float[Tensor, "n K"], present: Bool[Tensor, "n K"]
) -> Float[Tensor, "K"]:
    """Compute the weighted mean of each column; exactly their value where all values are equal."""
    lowest = values.where(present, torch.inf).amin(0)
    sums = (weights * present).sum(0)
    above = ((values - lowest).where(present, 0.0) * weights).sum(0)
    return lowest + above / sums.where(sums > 0, 1.0)
