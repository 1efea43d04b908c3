"""Compute the exact gradient of a divergence in each placement, by enumerating every token of a small vocabulary.

The reverse divergence is KL(πθ‖π_ref), the forward one KL(π_ref‖πθ). Each row of `PLACEMENTS` is the mean gradient over
tokens sampled from πθ ("on") or from π_old ("off"), with D taken as it is, times the ratio, or times the detached
ratio.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toys import batch_of, rollout

from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import Divergence, k1, k2, k3
from outdo.algorithms.objectives.presets import gspo, gspo_token
from outdo.algorithms.objectives.surrogates import Surrogate, log_likelihood, unclipped
from outdo.extras.explain.explain import table
from outdo.types import Batch, TokenScores

VOCABULARY = 6
EXACT, CLEARLY_DIFFERENT = 1e-12, 0.05

PLACEMENTS = [
    ("on", k1, "as it is", "nothing"),
    ("on", k2, "as it is", "reverse"),
    ("on", k3, "as it is", "forward"),  # GRPO at its first update
    ("off", k3, "as it is", "neither"),  # GRPO at every further one
    ("off", k3, "x ratio", "reverse"),  # TRL's default for β > 0, RPG, DeepSeek-V3.2
    ("off", k3, "x detached ratio", "forward"),
    ("off", k2, "x detached ratio", "reverse"),
    ("off", k2, "x ratio", "neither"),
]


def policies() -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits of πθ (a leaf), log π_old close to it, and log π_ref further away. Each [V], float64."""
    noise = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = noise[0].clone().requires_grad_()
    return logits, (noise[0] + 0.5 * noise[1]).log_softmax(0), noise[2].log_softmax(0)


def true_gradients() -> dict[str, Tensor]:
    """Return the gradients of the two divergences with respect to the logits. [V]"""
    logits, _, ref = policies()
    policy = logits.log_softmax(0)
    values = {"reverse": (policy.exp() * (policy - ref)).sum(), "forward": (ref.exp() * (ref - policy)).sum()}
    return {name: torch.autograd.grad(value, logits, retain_graph=True)[0] for name, value in values.items()}


def every_token(logprobs: Tensor, old: Tensor, ref: Tensor, advantages: Tensor) -> tuple[Batch, Tensor]:
    """Return a batch with one answer for each token of the vocabulary, and its log πθ [V, 2]; all inputs are [V]."""

    def column(values: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(values), values], dim=1)

    batch = batch_of([rollout(1, token_ids=(token,)) for token in range(VOCABULARY)])
    batch = batch.with_(old_logprobs=column(old), ref_logprobs=column(ref), advantages=column(advantages))
    return batch, column(logprobs)


def mean_gradient(sampled: str, divergence: Divergence, placement: str) -> Tensor:
    """Return the gradient of β · D with β = 1, averaged over the sampling distribution of the tokens. [V]"""
    logits, old, ref = policies()
    policy = logits.log_softmax(0)
    old = policy.detach() if sampled == "on" else old
    ratio = (policy - old).exp().detach() if placement == "x detached ratio" else 1.0
    mean = (old.exp() * ratio)[:, None]  # [V, 1]: the weight of a token in the expectation
    objective = ComposedObjective(
        surrogate=unclipped, divergence=divergence, beta=1.0, kl_ratio=placement == "x ratio", weight=lambda batch: mean
    )
    batch, logprobs = every_token(policy, old, ref, torch.zeros_like(old))
    (gradient,) = torch.autograd.grad(objective(TokenScores(logprobs=logprobs), batch).divergence, logits)
    return gradient


def distance(gradient: Tensor, truth: Tensor) -> float:
    return float((gradient - truth).norm() / truth.norm())


@pytest.mark.parametrize(("sampled", "divergence", "placement", "expected"), PLACEMENTS)
def test_the_gradient_of_a_divergence_in_the_loss(
    sampled: str, divergence: Divergence, placement: str, expected: str
) -> None:
    gradient, truth = mean_gradient(sampled, divergence, placement), true_gradients()
    if expected == "nothing":
        assert gradient.abs().max() < EXACT
    for name, exact in truth.items():
        if name == expected:
            assert distance(gradient, exact) < EXACT
        else:
            assert distance(gradient, exact) > CLEARLY_DIFFERENT


def gradient_over_answers(objective: ComposedObjective) -> Tensor:
    """Return the expected gradient of β · D over all answers of two tokens, each drawn from π_old. [V]"""
    logits, old, ref = policies()
    policy = logits.log_softmax(0)
    pairs = torch.cartesian_prod(torch.arange(VOCABULARY), torch.arange(VOCABULARY))  # [V^2, 2]
    batch = batch_of([rollout(2, token_ids=tuple(pair)) for pair in pairs.tolist()])

    def answers(values: Tensor) -> Tensor:
        return torch.cat([torch.zeros(len(pairs), 1, dtype=values.dtype), values[pairs]], dim=1)  # [V^2, 3]

    mean = answers(old).sum(1, keepdim=True).exp() / 2  # the probability of an answer, 1 / |o|
    batch = batch.with_(old_logprobs=answers(old), ref_logprobs=answers(ref), advantages=torch.zeros_like(answers(old)))
    objective = replace(objective, weight=lambda batch: mean)
    scores = TokenScores(logprobs=answers(policy))
    return torch.autograd.grad(objective(scores, batch).divergence, logits)[0]


@pytest.mark.parametrize(("preset", "in_trl"), [(gspo, [0.30, 0.72]), (gspo_token, [0.22, 1.15])])
def test_gspo_has_the_reverse_divergence_although_its_ratio_is_that_of_the_answer(
    preset: Callable[..., ComposedObjective], in_trl: list[float]
) -> None:
    objective, truth = preset(beta=1.0), true_gradients()
    assert distance(gradient_over_answers(objective), truth["reverse"]) < EXACT
    of_answers = gradient_over_answers(replace(objective, kl_level=objective.level))  # as in TRL
    assert [round(distance(of_answers, exact), 2) for exact in truth.values()] == in_trl  # docs/methods/index.md


@pytest.mark.parametrize(("sampled", "surrogate"), [("on", log_likelihood), ("off", unclipped)])
def test_k1_subtracted_from_the_reward_has_the_gradient_of_the_reverse_divergence(
    sampled: str, surrogate: Surrogate
) -> None:
    logits, old, ref = policies()
    policy = logits.log_softmax(0)
    old = policy.detach() if sampled == "on" else old
    batch, logprobs = every_token(policy, old, ref, -k1(policy, ref).detach())
    objective = ComposedObjective(surrogate=surrogate, weight=lambda batch: old.exp()[:, None])
    (gradient,) = torch.autograd.grad(objective(TokenScores(logprobs=logprobs), batch).loss, logits)
    assert distance(gradient, true_gradients()["reverse"]) < EXACT
    assert distance(gradient, true_gradients()["forward"]) > CLEARLY_DIFFERENT


@pytest.mark.parametrize("divergence", [k1, k3])
def test_the_values_of_k1_and_k3_are_unbiased(divergence: Divergence) -> None:
    logits, _, ref = policies()
    policy = logits.detach().log_softmax(0)
    truth = (policy.exp() * (policy - ref)).sum()
    torch.testing.assert_close((policy.exp() * divergence(policy, ref)).sum(), truth, rtol=EXACT, atol=EXACT)


PROBABILITY = st.floats(0.001, 0.999)


@given(st.floats(-3, 3), PROBABILITY, PROBABILITY, PROBABILITY)
def test_multiplied_by_the_ratio_k3_has_the_coefficient_of_the_reverse_divergence(
    advantage: float, old: float, new: float, ref: float
) -> None:
    # d/dlog πθ of ρ k3 is ρ log(πθ / π_ref): at πθ = π_old the log-ratio itself, without a π_ref / πθ that may explode.
    objective = ComposedObjective(surrogate=unclipped, beta=0.5, kl_ratio=True)
    (point,) = table(objective, old=old, news=[new], advantage=advantage, ref=ref)
    distance = torch.tensor(new / ref, dtype=torch.float64).log().item()
    assert point.gradient * old == pytest.approx(advantage - 0.5 * distance, rel=1e-6, abs=1e-6)
