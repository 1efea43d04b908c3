"""Small batches, made by hand or by hypothesis, and an objective's loss and gradient on them."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.base import Objective
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, TokenScores


def rollout(length: int = 2, reward: float = 0.0, *, mask: Sequence[bool] | None = None, **fields: Any) -> Rollout:
    """A completion of `length` tokens 10, 11, ..., all chosen by the policy unless `mask` says otherwise."""
    settings: dict[str, Any] = {
        "token_ids": tuple(range(10, 10 + length)),
        "loss_mask": tuple(mask) if mask is not None else (True,) * length,
        "logprobs": tuple(-0.5 - 0.1 * t for t in range(length)),
        "text": "",
        "reward": reward,
        "finish_reason": FinishReason.stop,
        "policy_version": 0,
    }
    return Rollout(**settings | fields)


RAGGED = [
    [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(2, status="failed")],
    [rollout(2, 1.0), rollout(5, 1.0), rollout(3, 0.0)],
    [rollout(0, 0.0), rollout(3, 1.0), rollout(2, 0.0)],
]
"""Answers of any length, some without tokens, with masks or without a reward; no group has equal rewards."""


def batch_of(*groups: Sequence[Rollout]) -> Batch:
    """One group per argument; the prompts are 1, 2, 3, 1, ... tokens long."""
    return Batch.from_groups(
        [
            Group(prompt=Prompt(id=str(n), text="", token_ids=tuple(range(1, 2 + n % 3))), rollouts=tuple(members))
            for n, members in enumerate(groups)
        ]
    )


def with_noise(batch: Batch, seed: int = 0) -> tuple[Batch, Tensor]:
    """Advantages, made-up `old_logprobs` and `ref_logprobs`, and log πθ far enough off to clip: float64, [B, T]."""
    random = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(batch.token_ids.shape, generator=random, dtype=torch.float64)

    old = -noise().abs()
    batch = per_token(group_standardised)(batch)
    assert batch.advantages is not None
    batch = batch.with_(old_logprobs=old, ref_logprobs=old + noise(), advantages=batch.advantages.double())
    return batch, old + 0.5 * noise()


def evaluate(objective: Objective, logprobs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient by log πθ [B, T]."""
    leaf = logprobs.detach().clone().requires_grad_()
    trained = leaf.where(batch.loss_mask, 0.0)  # a sum over the vocabulary is 0 elsewhere
    sums = {name: trained.square() for name in objective.requires.divergences}  # in place of the divergence
    loss = objective(TokenScores(logprobs=leaf, sums=sums), batch).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def assert_close(actual: Any, expected: Any, *, tolerance: float = 1e-12) -> None:
    """Equal to `tolerance`, relative and absolute."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Any length from 0, any mask, sometimes without a reward."""
    mask = draw(st.lists(st.booleans(), max_size=5))
    status = draw(st.sampled_from(["ok", "ok", "ok", "failed", "not_applicable"]))
    reward = draw(st.sampled_from([0.0, 0.5, 1.0])) if status == "ok" else 0.0
    return rollout(len(mask), reward, mask=mask, status=status)


def groups() -> st.SearchStrategy[list[list[Rollout]]]:
    """One to four groups of one to four rollouts."""
    return st.lists(st.lists(rollouts(), min_size=1, max_size=4), min_size=1, max_size=4)
