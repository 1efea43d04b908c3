"""Test Target Policy Optimization: the paper's three equations, and that only whole groups and trained tokens count."""

import pytest
import torch
from contexts import tabular, trees
from hypothesis import given
from torch import Tensor
from toys import assert_close, batch_of, evaluate, rollout

from outdo.algorithms.objectives.target.tpo import tpo
from outdo.types import Batch


def two_groups() -> tuple[Batch, Tensor]:
    """Return groups of three and two answers, plus one without a trained token; log πθ differs from log π_old."""
    batch = batch_of([rollout(2), rollout(3), rollout(1), rollout(0)], [rollout(2), rollout(2)])
    random = torch.Generator().manual_seed(0)
    old = -torch.rand(batch.token_ids.shape, generator=random, dtype=torch.float64)
    advantages = torch.tensor([1.2, -0.3, -0.9, 5.0, 0.7, -0.7], dtype=torch.float64)[:, None] * batch.loss_mask
    now = old - torch.rand(old.shape, generator=random, dtype=torch.float64)
    return batch.with_(old_logprobs=old, advantages=advantages), now


def sums(values: Tensor, batch: Batch) -> Tensor:
    return (values * batch.loss_mask).sum(1)


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_loss_and_gradient_equal_the_papers(eta):
    batch, now = two_groups()
    expected = torch.zeros((), dtype=torch.float64)
    for rows in ([0, 1, 2], [4, 5]):  # the fourth answer has no token
        u = batch.advantages[rows].sum(1) / batch.loss_mask[rows].sum(1)
        q = (sums(batch.old_logprobs, batch)[rows].log_softmax(0) + u / eta).softmax(0)
        expected -= (q * sums(now, batch)[rows].log_softmax(0)).sum() / 2
    objective = tpo(eta=eta)
    loss, gradient = evaluate(objective, now, objective.prepare(batch))
    assert_close(loss, expected)
    q = (sums(batch.old_logprobs, batch)[:3] + batch.advantages[:3, 1] / eta).softmax(0)
    push = (sums(now, batch)[:3].softmax(0) - q) / 2  # ∂L/∂ log πθ(o_i) = p_i - q_i, averaged over two groups
    assert_close(gradient[:3, :2], push[:, None].expand(-1, 2) * batch.loss_mask[:3, :2])


def test_a_group_of_equal_rewards_has_no_gradient_at_first_and_pulls_back_later():
    batch, now = two_groups()
    objective = tpo()
    batch = objective.prepare(batch.with_(advantages=torch.zeros_like(now)))
    _, first = evaluate(objective, batch.old_logprobs, batch)
    assert_close(first, torch.zeros_like(first))
    _, later = evaluate(objective, now, batch)
    assert later.abs().max() > 0.01


@given(trees())
def test_values_outside_the_mask_and_microbatches_do_not_matter(batch):
    objective = tpo()
    now = tabular(batch, 1)
    loss, gradient = evaluate(objective, now, objective.prepare(batch))

    def spoilt(values: Tensor) -> Tensor:
        return values.where(batch.loss_mask, torch.nan)

    dirty = objective.prepare(
        batch.with_(
            old_logprobs=spoilt(batch.old_logprobs), advantages=spoilt(batch.advantages), rollout_logprobs=spoilt(now)
        )
    )
    parts = dirty.microbatches(1, whole_groups=objective.requires.whole_groups)
    found = [(part, *evaluate(objective, part.rollout_logprobs, part)) for part in parts]
    assert_close(sum(value for _, value, _ in found), loss)
    assert_close(torch.cat([each[part.loss_mask] for part, _, each in found]), gradient[batch.loss_mask])


def test_a_temperature_that_is_not_above_zero_is_refused():
    with pytest.raises(ValueError, match="eta must be above 0"):
        tpo(eta=0.0)
