"""What an advantage of a batch is, and how the advantage of a rollout becomes that of its tokens.

An `Advantage` takes a batch and returns it with `advantages` [B, T] filled in; `chain` joins several steps to one.
Values outside of `loss_mask` are never read, and the advantage there is 0.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outdo.algorithms.advantages.group import RewardAdvantage
from outdo.algorithms.requirements import requirements_of, requires
from outdo.algorithms.shapes import TOKENS, check_shape, piece_name
from outdo.algorithms.unfold import Unfolded
from outdo.types import Batch
from outdo.utils.errors import UserError

Advantage = Callable[[Batch], Batch]


def per_token(advantage: RewardAdvantage) -> Advantage:
    """Copy the advantage of a rollout to each of its trained tokens: [B] -> [B, T], as GRPO does.

    Only scored rollouts are passed to `advantage`. The others get 0, and are in no mean and no deviation. An advantage
    that requires `right` gets 1 for right answers and 0 for wrong ones, and leaves out those without a verdict, too;
    without any verdict in the batch it gets the rewards. Raises `UserError` where `advantage` returns a wrong shape.
    """

    required = requirements_of(advantage)

    @requires(required)
    def fill(batch: Batch) -> Batch:
        rows = of_rollouts(advantage, batch, by_verdict=required.right)
        return batch.with_(advantages=rows[:, None] * batch.loss_mask)  # [B, T]

    return fill


def of_rollouts(advantage: RewardAdvantage, batch: Batch, *, by_verdict: bool) -> Float[Tensor, "B"]:
    """Return the advantage of each rollout, 0 for those that are not scored; for `by_verdict` see `per_token`."""
    verdicts = batch.right if by_verdict else None
    rewards = rewards_of(batch) if verdicts is None else verdicts.to(batch.rewards)
    counts = batch.scored
    if verdicts is not None and batch.has_verdict is not None:
        counts = counts & batch.has_verdict
    rows = torch.zeros_like(rewards)  # [B]
    if counts.any():
        counted = rewards[counts]
        result = advantage(counted, batch.group[counts])
        rows[counts] = check_shape(result, ("B",), "advantage", advantage, {"B": len(counted)}).to(rows)
    return rows


def fill_right(batch: Batch) -> Batch:
    """Return the batch with `right` set: if no answer has a verdict, none is right.

    A step before an advantage that counts right answers, where it is known that the rewards give verdicts: a step in
    which they give none, as where the reward that decides applies to no answer, then trains nothing.
    """
    if batch.right is not None:
        return batch
    none = torch.zeros_like(batch.scored)
    return batch.with_(right=none, has_verdict=none)


def rewards_of(batch: Batch) -> Float[Tensor, "B"]:
    """Return a reward for each row, [B]: the sum of its rewards per token, where those are set.

    It is added up in float64 and rounded once. A sum that differs from the row's own reward by no more than the
    rounding of its terms is this reward: episodes with equal rewards are equal, whatever the rewards of their turns.
    The reward that ends each of several conversations counts once. A row without a trained token keeps its own reward.
    """
    if batch.token_rewards is None:
        return batch.rewards
    terms = batch.token_rewards.where(batch.loss_mask, 0.0).double()
    rewards = batch.rewards.double()
    sums = terms.sum(1) - _further_conversations(batch) * rewards
    rounding = torch.finfo(batch.token_rewards.dtype).eps / 2 * (terms.abs().sum(1) + rewards.abs())
    differs = batch.loss_mask.any(1) & ((sums - rewards).abs() > rounding)
    return sums.to(batch.rewards).where(differs, batch.rewards)


def _further_conversations(batch: Batch) -> Int[Tensor, "B"]:
    """Return how many conversations with a trained token each row has besides one."""
    counts = torch.zeros_like(batch.prompt_lengths)
    if batch.previous is None:
        return counts
    conversations = Unfolded.of(batch)
    trained = conversations.batch.loss_mask.any(1).to(counts)
    return (counts.index_add(0, conversations.row, trained) - 1).clamp(min=0)


def needed(batch: Batch, name: str) -> Float[Tensor, "B T"]:
    """Return `batch.<name>` [B, T] with 0 outside of `loss_mask`; zeros where there is none and no trained token."""
    value: Float[Tensor, "B T"] | None = getattr(batch, name)
    if value is not None:
        return value.where(batch.loss_mask, 0.0)
    if batch.loss_mask.any():
        raise ValueError(f"the advantage needs `{name}`, which the batch does not have")
    return torch.zeros_like(batch.rollout_logprobs)


def compute_advantages(advantage: Advantage, batch: Batch) -> Batch:
    """Return the batch with `advantages` filled in.

    Raises `UserError` where the advantage returns no batch, or advantages of a wrong shape.
    """
    result: object = advantage(batch)
    if not isinstance(result, Batch):
        raise UserError([f"the advantage {piece_name(advantage)} returned {type(result).__name__}, expected Batch"])
    if result.advantages is not None:
        sizes = dict(zip("BT", result.loss_mask.shape, strict=True))
        check_shape(result.advantages, TOKENS, "advantage", advantage, sizes)
    return result


def chain(*steps: Advantage) -> Advantage:
    """Return the steps one after another as one advantage, which requires everything that a step requires."""

    @requires(requirements_of(*steps))
    def run(batch: Batch) -> Batch:
        for step in steps:
            batch = compute_advantages(step, batch)
        return batch

    return run
