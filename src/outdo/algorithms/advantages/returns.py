"""Rewards, returns and generalised advantages of a `Batch`, token by token, from which advantages are made.

Functions that take tensors of rows are about rows of one conversation each, as `outdo.algorithms.unfold` makes them.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outdo.algorithms.advantages.group import rounding_of_groups
from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch


def token_rewards_of(batch: Batch) -> Float[Tensor, "B T"]:
    """Return a reward for each trained token: those that are set, or the rollout's on its last trained token.

    In an episode of several conversations the last trained token of each of them has the reward.
    """
    if batch.token_rewards is None:
        conversations = Unfolded.of(batch)
        rows = conversations.batch
        return conversations.folded(terminal_rewards(rows.rewards, rows.loss_mask))
    return batch.token_rewards.where(batch.loss_mask, 0.0)


def terminal_rewards(rewards: Float[Tensor, "B"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Put each row's reward [B] on its last trained token, and 0 on all others: [B, T]. Rows without one are all 0."""
    columns = torch.arange(loss_mask.shape[1], device=loss_mask.device)
    is_last = (columns == _last(loss_mask)[:, None]) & loss_mask
    return rewards[:, None].where(is_last, 0.0)


def generalised_advantages(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    end: Float[Tensor, "B"],
    *,
    gamma: float,
    lam: float,
    turn: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V_{t+1} - V_t; GAE (arXiv 1506.02438) equation 16. [B, T]

    t counts only the trained tokens of a row. Tokens that a tool wrote between two of them are no time steps; V and Â
    are carried over them. `end` [B] is V after the last token. With `turn`, γ and λ are 1 where t + 1 is in the turn of
    t. Outside of `loss_mask` the advantage is 0.
    """
    advantages = torch.zeros_like(values)
    value, advantage = end, torch.zeros_like(end)  # [B], those of the trained token after t
    within = _within_a_turn(loss_mask, turn)
    discount, decay = (torch.full_like(values, factor).where(~within, 1.0) for factor in (gamma, gamma * lam))  # [B, T]
    for t in reversed(range(values.shape[1])):
        trained = loss_mask[:, t]
        delta = rewards[:, t] + discount[:, t] * value - values[:, t]
        advantage = (delta + decay[:, t] * advantage).where(trained, advantage)
        value = values[:, t].where(trained, value)
        advantages[:, t] = advantage.where(trained, 0.0)
    return advantages


def _within_a_turn(loss_mask: Bool[Tensor, "B T"], turn: Int[Tensor, "B T"] | None) -> Bool[Tensor, "B T"]:
    """Return where the next trained token of the row is in the same turn; nowhere without `turn`."""
    within = torch.zeros_like(loss_mask)
    if turn is not None:
        following = torch.full_like(turn[:, 0], -1)  # [B], the turn of the trained token after t
        for t in reversed(range(turn.shape[1])):
            within[:, t] = following == turn[:, t]
            following = turn[:, t].where(loss_mask[:, t], following)
    return within


def returns_to_go(
    rewards: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, gamma: float = 1.0
) -> Float[Tensor, "B T"]:
    """Σ_{s>=t} γ^{s-t} r_s over the trained tokens of each row: GAE with λ = 1 and V = 0. [B, T]"""
    zeros = torch.zeros_like(rewards)
    return generalised_advantages(rewards, zeros, loss_mask, zeros[:, 0], gamma=gamma, lam=1.0)


def without_rounding(advantages: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
    """Return differences of returns, and 0 in place of those that may be only rounding.

    A return that is a sum of rewards per token is rounded: those of two episodes that are equal differ by up to 4 eps
    times the largest sum of absolute rewards in the group.
    """
    if batch.token_rewards is None:
        return advantages
    sizes = batch.token_rewards.where(batch.loss_mask, 0.0).abs().sum(1)
    rounding = rounding_of_groups(sizes, batch.group[:, None] == batch.group)
    return advantages.where(advantages.abs() > rounding[:, None], 0.0)


def returns_of(batch: Batch, *, gamma: float = 1.0) -> Float[Tensor, "B T"]:
    """Return the return to go of each trained token, within its conversation, from the rewards of the batch. [B, T]"""
    conversations = Unfolded.of(batch)
    rows = conversations.batch
    return conversations.folded(returns_to_go(token_rewards_of(rows), rows.loss_mask, gamma=gamma))


def whitened(values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, ddof: int = 1) -> Float[Tensor, "B T"]:
    """(x - mean) / sqrt(var + 1e-8) over the trained tokens, as in verl; 0 elsewhere. [B, T]

    var has the divisor N - `ddof`: 1 as in verl, 0 as in OpenRLHF, which has max(var, 1e-8) under the root. Equal
    values are exactly 0.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, not {ddof}")
    chosen = values[loss_mask]  # [N]
    if not len(chosen):
        return torch.zeros_like(values)
    raised = chosen - chosen.min()  # equal values are exactly 0, although their mean is rounded
    centred = raised - raised.mean()
    variance = centred.square().sum() / max(1, len(chosen) - ddof)
    return torch.zeros_like(values).masked_scatter(loss_mask, centred / (variance + 1e-8).sqrt())


def _last(loss_mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B"]:
    """Return the column of each row's last trained token, [B]; 0 where there is none."""
    columns = torch.arange(loss_mask.shape[1], device=loss_mask.device)
    return (loss_mask * columns).amax(1)
