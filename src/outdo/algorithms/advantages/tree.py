"""Advantages from the prefix tree of a group: each token is compared with the answers that share its beginning."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.advantages.base import rewards_of
from outdo.algorithms.advantages.group import deviation, divided, group_centred
from outdo.algorithms.advantages.returns import returns_to_go, token_rewards_of, without_rounding
from outdo.algorithms.prefix_tree import prefix_tree
from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch


@marks.advantage(compares_group=True)
def tree(batch: Batch, *, shrink: float = 0.0, scale: bool = False, eps: float = 1e-6) -> Batch:
    """Â_t = G_t - b_t: the return minus the mean return of the *other* answers that have the same tokens before t.

    G_t is the return to go, without rewards per token the answer's reward. With m other answers through the context of
    token t, and their mean return R̄,

        b_t = b_{t-1} + m / (m + shrink) · (R̄ - b_{t-1}),        b = R̄ at the first token

    so that a context that no other answer reached takes the baseline of the nearest context before it that another
    answer did, and `shrink` pulls means of few answers towards that one. At the first token this is `leave_one_out`.
    Where all answers of a context continue with the same token, their advantages there add up to 0 if `shrink` is 0. So
    only tokens at which answers differ are pushed, and those after a beginning that no other answer has.

    The policy gradient Σ_i Σ_t Â_t ∇log π(o_it) is unbiased, as b_t depends only on tokens before t and on other
    answers. A mean that includes the answer itself would not be: it shrinks the gradient of a context with n answers by
    (n - 1) / n, and sets that of an answer alone to 0. With `scale` the advantages are divided by σ + eps, σ the
    standard deviation of the group's rewards as in `group_standardised`, which is biased as GRPO is.

    The baseline is V(o_<t) of the context, as a critic's or VinePPO's (arXiv 2410.01679), from the group's own answers.
    TreeRPO (arXiv 2506.05183) samples trees on purpose. The advantage is 0 in a group of one. Other answers are those
    of other episodes: a second conversation of the same episode is no baseline.

    Raises ValueError for a negative `shrink`.
    """
    if not shrink >= 0:
        raise ValueError(f"tree: shrink must be at least 0, not {shrink}")
    conversations = Unfolded.of(batch)
    rows, parent, start = conversations.batch, conversations.parent, conversations.start
    rewards = token_rewards_of(rows).double()
    counted = rows.loss_mask & rows.scored[:, None]
    returns = returns_to_go(rewards, rows.loss_mask)
    contexts, _ = prefix_tree(rows)
    advantages = torch.zeros_like(returns)
    baseline = torch.zeros_like(returns[:, 0])
    compared = torch.zeros_like(rows.scored)  # whether another answer has been in a context of this one
    for t, here in enumerate(counted.T):
        baseline, compared = baseline.where(start != t, baseline[parent]), compared.where(start != t, compared[parent])
        mean, others = _mean_of_others(returns[:, t], contexts[:, t], conversations.row, here)
        weight = (others / (others + shrink).clamp(min=1e-300)).where(compared, 1.0)
        baseline = (baseline + weight * (mean - baseline)).where(others > 0, baseline)
        compared = compared | (others > 0)
        advantages[:, t] = (returns[:, t] - baseline).where(here & compared, 0.0)
        baseline = baseline - rewards[:, t]  # from the return of this token on to that of the next
    advantages = conversations.folded(without_rounding(advantages, rows))
    if scale:
        advantages = divided(advantages, _spread(batch)[:, None], eps)
    return batch.with_(advantages=advantages.to(batch.rewards.dtype))


def _mean_of_others(
    values: Float[Tensor, "C"], context: Int[Tensor, "C"], row: Int[Tensor, "C"], here: Bool[Tensor, "C"]
) -> tuple[Float[Tensor, "C"], Float[Tensor, "C"]]:
    """Return the mean value of the answers of other rows that are `here` in each context, and their number, or 0.

    It is computed relative to the lowest value of the context, so that the mean of equal values is exactly their value.
    """
    place = context.unique(return_inverse=True)[1]
    lowest = torch.full_like(values, torch.inf).scatter_reduce(0, place[here], values[here], "amin")[place]
    raised = (values - lowest).where(here, 0.0)
    number, of_row = here.to(values), (place * len(row) + row).unique(return_inverse=True)[1]  # its own answers there
    others = (_sum(number, place) - _sum(number, of_row)).where(here, 0.0)
    mean = lowest + (_sum(raised, place) - _sum(raised, of_row)) / others.clamp(min=1)
    return mean.where(others > 0, 0.0), others


def _sum(values: Float[Tensor, "C"], place: Int[Tensor, "C"]) -> Float[Tensor, "C"]:
    """Return the sum of the values with an equal `place`, for each of them."""
    return torch.zeros_like(values).index_add(0, place, values)[place]


def _spread(batch: Batch) -> Float[Tensor, "B"]:
    """Return σ of the scored rewards of each row's group."""
    spread = torch.zeros_like(batch.rewards)
    rewards, group = rewards_of(batch)[batch.scored], batch.group[batch.scored]
    spread[batch.scored] = deviation(group_centred(rewards, group), group[:, None] == group)
    return spread
