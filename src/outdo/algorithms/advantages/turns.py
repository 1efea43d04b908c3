"""Advantages of turns: each turn of the policy gets one advantage, from the rewards of this turn and of later ones.

r_ik is the sum of the rewards per token in turn k = 0, 1, 2, ... of episode i. Without rewards per token, the last turn
has the reward of the episode.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms import marks
from outdo.algorithms.advantages.group import RewardAdvantage, group_centred, group_standardised, leave_one_out
from outdo.algorithms.advantages.returns import token_rewards_of, without_rounding
from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch
from outdo.utils.errors import UserError


@marks.advantage(compares_group=True)
def turn_to_go(batch: Batch, *, gamma: float = 1.0) -> Batch:
    """Â_ik = R_ik - mean of R_jk over the other episodes j of the group, with R_ik = Σ_{l>=k} γ^l r_il.

    An episode that has ended before turn k counts with R_jk = 0. So the choice to take another turn is compared with
    the choice to stop. The policy gradient Σ_i Σ_k Â_ik Σ_{t in k} ∇log π(o_it) is that of E[Σ_k γ^k r_ik], because
    the baseline depends on other episodes only. The usual discount Σ_{l>=k} γ^{l-k} r_il leaves out the factor γ^k;
    its gradient is not that of any function (arXiv 1906.07073). With γ = 1 both are the same, and with rewards in the
    last turn only this is `leave_one_out`. The advantage is 0 in a group of one.

    Each conversation of an episode has turns of its own, 0, 1, ... from its beginning, and R_jk is that of the first
    one: see `outdo.algorithms.unfold`.

    Raises ValueError if `gamma` is not from 0 to 1.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"turn_to_go: gamma must be from 0 to 1, not {gamma}")
    conversations = Unfolded.of(batch)
    rows, first = conversations.batch, conversations.first
    rewards = rewards_of_turns(rows)
    discount = gamma ** torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)  # [K]
    returns = _to_go(rewards * discount)  # [C, K]
    result = _in_each_turn(leave_one_out, returns, rows, rows.scored & first)
    for further in (rows.scored & ~first).nonzero().squeeze(1).tolist():
        compared = conversations.compared_with(further) & rows.scored
        result[further] = _in_each_turn(leave_one_out, returns, rows, compared)[further]
    advantages = without_rounding(_of_tokens(rows, result), rows)
    return batch.with_(advantages=conversations.folded(advantages))


@marks.advantage(compares_group=True, scaled_in_group=True)
def turn_centred(batch: Batch, *, scale: bool = True, eps: float = 1e-4) -> Batch:
    """Â_ik = Σ_{l>=k} (r_il - μ_l) / (σ_l + eps), μ_l and σ_l over the group's episodes in turn l.

    It is the credit per turn of MT-GRPO (arXiv 2505.11821) for any number of turns; `scale = false` leaves out σ.

    It is biased where the policy decides how many turns it takes: μ_l is a mean over the episodes that take turn l, so
    the reward that such a turn has on average is subtracted only from those that take it. If each turn pays r, and the
    policy ends after the first with probability p, E[Σ r] = r + (1 - p) r has the derivative -r, and this advantage is
    r - r = 0 for both choices. Hence episodes with unequal numbers of turns in a group are refused: `turn_to_go`
    has no such bias.

    Raises UserError if the scored episodes of a group differ in their number of turns, or have several conversations.
    """
    if batch.previous is not None:
        raise UserError(
            [
                "turn_centred compares turns with turns, and those of several conversations do not correspond: use "
                "turn_to_go"
            ]
        )
    turns = batch.turn.amax(1) + 1  # [B]
    for number in batch.group.unique():
        indices = turns[(batch.group == number) & batch.scored].unique().tolist()
        if len(indices) > 1:
            counts = f"{', '.join(map(str, indices[:-1]))} and {indices[-1]}"
            raise UserError(
                [
                    "turn_centred is biased unless all episodes of a group have the same number of turns, and one "
                    f"group has {counts}: use turn_to_go"
                ]
            )
    credit = partial(group_standardised, eps=eps) if scale else group_centred
    result = _to_go(_in_each_turn(credit, rewards_of_turns(batch), batch, batch.scored))
    return batch.with_(advantages=_of_tokens(batch, result))


def rewards_of_turns(batch: Batch) -> Float[Tensor, "B K"]:
    """Return r_ik: the sum of the rewards per token in each turn of the policy, 0 in turns that a row does not have.

    A row without a trained token has its own reward in turn 0, so that it counts in the means.
    """
    rewards = token_rewards_of(batch)
    turns = int(batch.turn.max()) + 1 if batch.turn.numel() else 0
    sums = rewards.new_zeros(len(batch), max(1, turns)).scatter_add(1, batch.turn.clamp(min=0).long(), rewards)
    sums[:, 0] += batch.rewards.where(~batch.loss_mask.any(1), 0.0)
    return sums


def _to_go(values: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    return values.flip(1).cumsum(1).flip(1)


def _in_each_turn(
    advantage: RewardAdvantage, values: Float[Tensor, "B K"], batch: Batch, compared: Bool[Tensor, "B"]
) -> Float[Tensor, "B K"]:
    """Compare the values of each turn in the groups; rows that are not `compared` get 0, and are in no mean."""
    result = torch.zeros_like(values)
    if compared.any():
        columns = [advantage(column[compared], batch.group[compared]) for column in values.T]
        result[compared] = torch.stack(columns, 1)
    return result


def _of_tokens(batch: Batch, of_turns: Float[Tensor, "B K"]) -> Float[Tensor, "B T"]:
    """Copy the advantage of a turn to each of its trained tokens: [B, K] -> [B, T]."""
    return of_turns.gather(1, batch.turn.clamp(min=0).long()).where(batch.loss_mask, 0.0)
