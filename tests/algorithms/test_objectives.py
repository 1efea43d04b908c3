"""Test objectives against the papers' numbers and a second implementation, and what must not change the result."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from toys import assert_close, batch_of, evaluate, groups, rollout, with_noise

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import k1, k2, k3
from outdo.algorithms.objectives.presets import grpo, likelihood
from outdo.algorithms.objectives.surrogates import clip, log_likelihood
from outdo.algorithms.objectives.weights import constant, sequence_mean, token_mean, total
from outdo.types import Batch, Rollout, TokenScores

Groups = list[list[Rollout]]
OBJECTIVES = {
    "grpo": grpo(beta=0.04),
    "grpo without a reference": grpo(clip_low=0.1, clip_high=0.3, beta=0.0),
    "token mean": ComposedObjective(surrogate=clip(low=0.2, high=0.28), weight=token_mean, beta=0.1, divergence=k2),
    "constant length": ComposedObjective(surrogate=clip(low=0.2, high=0.2), weight=constant(length=7)),
    "sum": ComposedObjective(surrogate=log_likelihood, weight=total, beta=0.1, divergence=k1),
}
LOGPROBS = ("old_logprobs", "ref_logprobs", "rollout_logprobs")
EVERY = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
FEW = settings(max_examples=12)


def one_token(advantage: float, *, old: float, new: float, ref: float = 0.5) -> tuple[Batch, Tensor]:
    """Return a batch of one trained token, made from probabilities, and log πθ [1, 2]."""

    def row(value: float) -> Tensor:
        return torch.tensor([[0.0, value]], dtype=torch.float64)

    batch = batch_of([rollout(1)])
    batch = batch.with_(old_logprobs=row(math.log(old)), ref_logprobs=row(math.log(ref)), advantages=row(advantage))
    return batch, row(math.log(new))


def objective_of_one_token(advantage: float, *, old: float, new: float, epsilon: float = 0.2) -> float:
    batch, logprobs = one_token(advantage, old=old, new=new)
    return -float(evaluate(grpo(clip_low=epsilon, clip_high=epsilon, beta=0.0), logprobs, batch)[0])


# ------------------------------------------------------------------------------------------------- worked examples


PROBABILITY = st.floats(0.01, 1.0)


@given(st.floats(-5, 5), PROBABILITY, PROBABILITY, st.floats(0.01, 0.9))
def test_the_objective_is_the_minimum_of_ratio_times_advantage_and_its_bound(
    advantage: float, old: float, new: float, epsilon: float
) -> None:
    # CS336 (spring 2025, assignment 5) eq. 30: min(ρ A, g(ε, A)), g = (1 + ε) A for A ≥ 0 and (1 - ε) A for A < 0.
    bound = ((1 + epsilon) if advantage >= 0 else (1 - epsilon)) * advantage
    expected = min(new / old * advantage, bound)
    assert objective_of_one_token(advantage, old=old, new=new, epsilon=epsilon) == pytest.approx(expected, abs=1e-10)


@given(st.floats(-3, 3), PROBABILITY, PROBABILITY, st.floats(0, 1))
def test_the_gradient_of_the_first_pass_equals_the_papers(
    advantage: float, new: float, ref: float, beta: float
) -> None:
    # DeepSeekMath (arXiv 2402.03300) eq. 21, at πθ = π_old: Â + β (π_ref / πθ - 1).
    batch, logprobs = one_token(advantage, old=new, new=new, ref=ref)
    expected = pytest.approx(advantage + beta * (ref / new - 1), abs=1e-10)
    for first in (batch, batch.with_(old_logprobs=None)):
        _, gradient = evaluate(grpo(beta=beta), logprobs, first)
        assert -float(gradient[0, 1]) == expected


@pytest.mark.parametrize(("advantage", "new"), [(1.0, 0.25), (-1.0, 0.9)])
def test_a_token_that_moved_against_its_advantage_keeps_its_gradient_beyond_the_clip(
    advantage: float, new: float
) -> None:
    batch, logprobs = one_token(advantage, old=0.5, new=new)
    _, gradient = evaluate(grpo(beta=0.0), logprobs, batch)
    assert -float(gradient[0, 1]) == pytest.approx(new / 0.5 * advantage)


# ------------------------------------------------------------------------------------- a second implementation


def grpo_by_hand(logprobs: np.ndarray, batch: Batch, low: float, high: float, beta: float) -> tuple[float, np.ndarray]:
    """Compute DeepSeekMath eq. 3 and its derivative token by token, from rewards to loss."""
    old, ref = np.asarray(batch.old_logprobs), np.asarray(batch.ref_logprobs)
    rows = [row for row in range(len(batch)) if batch.loss_mask[row].any()]
    objective, gradient = 0.0, np.zeros_like(logprobs)
    for row in rows:
        members = [i for i in range(len(batch)) if batch.group[i] == batch.group[row] and batch.scored[i]]
        rewards = [float(batch.rewards[i]) for i in members]
        deviation = float(np.std(rewards, ddof=1)) if len(rewards) > 1 else 0.0
        advantage = (float(batch.rewards[row]) - float(np.mean(rewards))) / (deviation + 1e-6)
        tokens = [t for t in range(logprobs.shape[1]) if batch.loss_mask[row, t]]
        for t in tokens:
            share = 1 / (len(rows) * len(tokens))
            ratio = math.exp(logprobs[row, t] - old[row, t])
            away = math.exp(ref[row, t] - logprobs[row, t])
            if advantage > 0:
                value, free = min(ratio, 1 + high) * advantage, ratio < 1 + high
            else:
                value, free = max(ratio, 1 - low) * advantage, ratio > 1 - low
            objective += share * (value - beta * (away - 1 - math.log(away)))
            gradient[row, t] = -share * (ratio * advantage * free - beta * (1 - away))
    return -objective, gradient


RAGGED: Groups = [
    [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(2, status="failed")],
    [rollout(2, 1.0), rollout(5, 1.0)],  # equal rewards
    [rollout(0, 0.0), rollout(3, 1.0), rollout(2, 0.0)],
    [rollout(2, 1.0)],  # a group of one
]


@pytest.mark.parametrize(("low", "high", "beta"), [(0.2, 0.28, 0.0), (0.05, 0.5, 1.0)])
def test_grpo_equals_a_second_implementation(low: float, high: float, beta: float) -> None:
    batch, logprobs = with_noise(batch_of(*RAGGED))
    loss, gradient = evaluate(grpo(clip_low=low, clip_high=high, beta=beta), logprobs, batch)
    expected_loss, expected_gradient = grpo_by_hand(logprobs.numpy(), batch, low, high, beta)
    # The batch's rewards are float32, and so are their advantages.
    assert_close(float(loss), expected_loss, tolerance=1e-6)
    assert_close(gradient, torch.from_numpy(expected_gradient), tolerance=1e-6)


def test_supervised_fine_tuning_is_the_mean_log_likelihood_of_the_trained_tokens() -> None:
    batch, logprobs = with_noise(batch_of(*RAGGED))
    batch = batch.with_(advantages=torch.ones_like(logprobs), old_logprobs=None)
    loss, gradient = evaluate(likelihood(), logprobs, batch)
    assert_close(loss, -logprobs[batch.loss_mask].mean())
    assert_close(gradient, batch.loss_mask.double() / -batch.totals.tokens)


def test_the_terms_add_up_to_the_loss() -> None:
    batch, logprobs = with_noise(batch_of(*RAGGED))
    objective = replace(grpo(beta=0.5), entropy_bonus=0.1)
    terms = objective(TokenScores(logprobs=logprobs, sums={"entropy": -logprobs}), batch)
    assert_close(terms.loss, terms.divergence - terms.policy - terms.entropy)
    assert_close(terms.entropy, 0.1 * (sequence_mean(batch) * -logprobs.where(batch.loss_mask, 0.0)).sum())
    assert objective.requires.sums
    assert objective.requires.reference


# ---------------------------------------------------------------------------------- what must not change the result


@EVERY
@FEW
@given(groups(), st.integers(1, 4))
def test_padding_does_not_change_the_result(objective: ComposedObjective, members: Groups, columns: int) -> None:
    batch, logprobs = with_noise(batch_of(*members))
    wider = batch.with_(
        **{
            name: pad(getattr(batch, name), (0, columns))
            for name in ("token_ids", "attention_mask", "loss_mask", "turn", "advantages", *LOGPROBS)
        },
        totals=replace(batch.totals, padded_length=batch.totals.padded_length + columns),
    )
    loss, gradient = evaluate(objective, pad(logprobs, (0, columns)), wider)
    assert_close((loss, gradient[:, :-columns]), evaluate(objective, logprobs, batch))
    assert gradient[:, -columns:].eq(0).all()


def test_pieces_receive_0_outside_the_mask() -> None:
    batch, logprobs = with_noise(batch_of(*RAGGED))
    seen: list[Tensor] = []

    def level(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
        seen.append(log_ratio)
        return log_ratio

    def surrogate(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
        seen.extend((log_ratio, logprobs, advantages))
        return logprobs

    def divergence(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        seen.extend((logprobs, ref_logprobs))
        return logprobs

    names = ("old_logprobs", "ref_logprobs", "advantages")
    spoilt = batch.with_(**{name: getattr(batch, name).where(batch.loss_mask, math.nan) for name in names})
    objective = ComposedObjective(level=level, surrogate=surrogate, divergence=divergence, beta=0.1)
    objective(TokenScores(logprobs=logprobs.where(batch.loss_mask, math.nan)), spoilt)
    assert len(seen) == 6
    assert all(tensor[~batch.loss_mask].eq(0).all() for tensor in seen)


@given(st.floats(-10, 0), st.floats(-10, 0))
def test_k1_k2_and_k3_are_schulmans_estimators(logprob: float, ref: float) -> None:
    pair = torch.tensor(logprob, dtype=torch.float64), torch.tensor(ref, dtype=torch.float64)
    d = logprob - ref
    assert float(k1(*pair)) == pytest.approx(d, abs=1e-12)
    assert float(k2(*pair)) == pytest.approx(d * d / 2, abs=1e-12)
    assert float(k3(*pair)) == pytest.approx(math.exp(-d) - 1 + d, rel=1e-9, abs=1e-9)


@EVERY
@FEW
@given(groups())
def test_rollouts_that_are_not_trained_on_do_not_change_the_result(
    objective: ComposedObjective, members: Groups
) -> None:
    useless = [rollout(3, status="failed"), rollout(2, status="timed_out")]
    batch, logprobs = with_noise(batch_of(*(useless + group for group in members)))
    absent, _ = with_noise(batch_of(*members))
    at = [row for number in range(len(members)) for row in (batch.group == number).nonzero().squeeze(1).tolist()[2:]]
    width = absent.token_ids.shape[1]
    absent = absent.with_(old_logprobs=batch.old_logprobs[at, :width], ref_logprobs=batch.ref_logprobs[at, :width])
    loss, gradient = evaluate(objective, logprobs, batch)
    assert_close((loss, gradient[at, :width]), evaluate(objective, logprobs[at, :width], absent))


# ----------------------------------------------------------------------------------------------- pieces and guards


def test_a_token_far_more_likely_than_under_the_reference_is_still_pulled_down() -> None:
    batch, logprobs = one_token(0.0, old=0.5, new=0.5, ref=1e-12)
    _, gradient = evaluate(grpo(beta=0.04), logprobs, batch)
    assert float(gradient[0, 1]) == pytest.approx(0.04)


@pytest.mark.parametrize("name", ["beta", "entropy_bonus"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_coefficient_that_is_negative_or_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 0 or more"):
        ComposedObjective(surrogate=log_likelihood, **{name: value})


@pytest.mark.parametrize("missing", ["advantages", "ref_logprobs"])
def test_an_input_that_the_batch_lacks_is_named(missing: str) -> None:
    batch, logprobs = with_noise(batch_of([rollout(), rollout(2, 1.0)]))
    with pytest.raises(ValueError, match=missing):
        evaluate(grpo(), logprobs, batch.with_(**{missing: None}))


def test_the_weights_have_the_values_that_their_names_promise() -> None:
    batch = batch_of([rollout(4), rollout(1)], [rollout(0), rollout(3, mask=(True, False, True))])
    assert_close(sequence_mean(batch)[[0, 1, 3], 0], torch.tensor([1 / 12, 1 / 3, 1 / 6]))
    assert token_mean(batch) == 1 / 7
    assert constant(length=10)(batch) == 1 / 30
    assert total(batch) == 1
