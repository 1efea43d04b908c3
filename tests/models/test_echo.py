"""ECHO: the tokens of the environment are predicted, beside any objective, with the gradient of all logits."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from engine_cases import apart, ragged_groups, rollout, tokens
from policy_cases import ALL_TERMS, prepared, updated
from torch import Tensor

from outdo.algorithms.objectives.environment import WithEnvironment, written
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.testing import tiny_model
from outdo.types import Batch, Group, Prompt


def played(groups: list[Group]) -> list[Group]:
    """The groups, whose answers have tokens of an environment: the third, fourth and fifth of each."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(rollout, loss_mask=tuple(t not in (2, 3, 4) for t in range(len(rollout.token_ids))))
                for rollout in group.rollouts
            ),
        )
        for group in groups
    ]


def policy(layout: Literal["shared", "padded"] = "shared", **sizes: Any) -> Policy:
    model, tokenizer = tiny_model()
    return Policy(model.double(), tokenizer, attention=layout, batch_sizes=BatchSizes(**sizes))


def dense(of: Policy, batch: Batch) -> tuple[Tensor, Tensor]:
    """The mean log-probability of the environment's tokens, and its gradient, by autograd through all logits."""
    environment, total = written(batch), torch.zeros((), dtype=torch.float64)
    for row in environment.any(1).nonzero().squeeze(1).tolist():
        length = int(batch.attention_mask[row].sum())
        ids = batch.token_ids[row : row + 1, :length]
        logprobs = (of.model(input_ids=ids).logits[0, :-1] / batch.temperature[row]).log_softmax(-1)
        chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0]
        total = total + chosen[environment[row, 1:length]].sum()
    mean = total / environment.sum()
    grads = torch.autograd.grad(mean, list(of.model.parameters()))
    return mean.detach(), torch.cat([grad.flatten() for grad in grads])


def test_the_environment_wrote_what_the_policy_did_not_sample_behind_the_prompt_of_rows_with_a_reward():
    batch = Batch.from_groups(played(ragged_groups()))
    environment = written(batch)
    for row, (start, end) in enumerate(zip(batch.prompt_lengths, batch.attention_mask.sum(1), strict=True)):
        of_row = [t for t in range(int(start) + 2, min(int(start) + 5, int(end))) if batch.scored[row]]
        assert environment[row].nonzero().squeeze(1).tolist() == of_row
    assert environment.any(1).sum() > 3


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize(("layout", "budget"), [("shared", 40), ("shared", 10_000), ("padded", 100)])
def test_the_gradient_is_that_of_the_objective_and_of_the_mean_log_probability(
    layout: Literal["shared", "padded"], budget: int
):
    batch = prepared(played(ragged_groups()), policy=policy())
    alone, without = updated(policy(layout, micro_batch_tokens=budget), batch, ALL_TERMS)
    echo = WithEnvironment.of(ALL_TERMS, 0.3)
    update, gradient = updated(policy(layout, micro_batch_tokens=budget), echo.prepare(batch), echo)
    mean, right = dense(policy(layout), batch)
    assert apart(gradient, without - 0.3 * right) < 1e-10
    assert update.metrics["loss/environment"] == pytest.approx(0.3 * float(mean), rel=1e-10)
    assert update.metrics["loss"] == pytest.approx(alone.metrics["loss"] - 0.3 * float(mean), rel=1e-10)
    for name in ("loss/policy", "loss/divergence", "loss/entropy"):
        assert update.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-10)
    trained = batch.loss_mask
    for name, values in alone.tokens.items():
        torch.testing.assert_close(update.tokens[name][trained], values[trained])


@pytest.mark.usefixtures("keep_float64")
def test_each_optimiser_step_has_the_mean_over_its_own_tokens():
    batch = prepared(played(ragged_groups()), policy=policy())
    echo = WithEnvironment.of(ALL_TERMS, 1.0)
    parts = [echo.prepare(part) for part in batch.minibatches(2)]
    totals = [part.recounted().totals.environment for part in echo.prepare(batch).minibatches(2)]
    assert totals == [int(written(part).sum()) for part in parts]
    assert len(set(totals)) > 1


def test_a_step_without_an_environment_has_the_gradient_of_the_objective_alone():
    batch = prepared(policy=policy())
    echo = WithEnvironment.of(ALL_TERMS, 0.3)
    update, gradient = updated(policy(), echo.prepare(batch), echo)
    assert update.metrics["loss/environment"] == 0
    assert torch.equal(gradient, updated(policy(), batch, ALL_TERMS)[1])


def test_a_coefficient_that_is_none_is_refused():
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="echo must be a number above 0"):
            WithEnvironment.of(ALL_TERMS, wrong)
    assert replace(WithEnvironment.of(ALL_TERMS, 0.1), correction=None).echo == 0.1


@pytest.mark.usefixtures("keep_float64")
def test_in_an_episode_with_several_conversations_each_token_follows_its_own():
    """Behind the fork, tokens that the policy reads after those of the fork's place alone."""
    trained = policy()
    answer = rollout(tokens(7, 3), forks=((8, 4),), loss_mask=(True, False, True, True, False, True, False))
    batch = Batch.from_groups([Group(prompt=Prompt(id="0", text="", token_ids=tokens(5, 1)), rollouts=(answer,))])
    asked = batch.with_(environment=written(batch))
    scores = trained.scores(asked).logprobs.detach()
    of_environment = trained.scores(batch.with_(loss_mask=written(batch))).logprobs.detach()
    assert written(batch).sum() == 3
    torch.testing.assert_close(scores[written(batch)], of_environment[written(batch)])
    torch.testing.assert_close(scores[batch.loss_mask], trained.scores(batch).logprobs.detach()[batch.loss_mask])
