"""Test that outdo reproduces every number printed in four texts on GRPO; misprints are named.

The texts: an essay on the objective of DeepSeekMath (Examples 1 to 4), the Hugging Face LLM course's page on GRPO, a
note from PPO to GRPO, and CS336's fifth assignment (spring 2025).
"""

import io

import pytest
import torch
from contexts import essay
from rich.console import Console
from torch import Tensor
from toys import assert_close, batch_of, rollout

from outdo.algorithms.advantages import generalised_advantages, group_standardised
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.presets import grpo, grpo_clip
from outdo.algorithms.objectives.surrogates import clip, unclipped
from outdo.algorithms.objectives.weights import total
from outdo.extras.explain.command import run_example
from outdo.extras.explain.explain import explain, table
from outdo.types import TokenScores

# -------------------------------------------------------------------------------------------------- the essay's tables

PRINTED = {
    1: """
        0.010 0.008 0.800 0.800 0.800
        0.010 0.010 1.000 1.000 1.000
        0.010 0.012 1.200 1.200 1.200
        0.010 0.100 10.000 1.200 1.200
        0.010 0.500 50.000 1.200 1.200""",
    2: """
        0.900 0.800 0.889 0.889 0.889
        0.900 0.900 1.000 1.000 1.000
        0.900 0.950 1.056 1.056 1.056
        0.900 1.000 1.111 1.111 1.111""",
    3: """
        0.900 0.900 1.000 1.000 -1.000
        0.900 0.800 0.889 0.889 -0.889
        0.900 0.720 0.800 0.800 -0.800
        0.900 0.500 0.556 0.800 -0.800
        0.900 0.100 0.111 0.800 -0.800""",
    4: """
        0.500 0.500 0.600⁻ +0.020 -0.0056 +0.0144
        0.100 0.500 0.600⁻ +0.020 -0.0278 -0.0078
        1e-50 0.500 0.600⁻ +0.020 -0.0333 -0.0133""",
}


@pytest.mark.parametrize("number", PRINTED)
def test_the_examples_of_the_essay_are_reproduced_to_every_printed_digit(number: int) -> None:
    page = io.StringIO()
    run_example(number, Console(file=page, width=100))
    _given, _names, *rows = page.getvalue().splitlines()
    assert [row.split() for row in rows] == [row.split() for row in PRINTED[number].split("\n")[1:]]


def test_the_objective_is_constant_beyond_the_clip_bound() -> None:
    beyond = table(grpo_clip(), old=0.01, news=[0.012, 0.1, 0.5, 1.0], advantage=1.0)
    assert [point.objective for point in beyond] == pytest.approx([1.2] * 4)
    explanation = explain(grpo_clip(), old=0.9, new=0.9, advantage=-1.0)
    assert explanation.flat == ((0.0, pytest.approx(0.72)),)
    assert explanation.destination == pytest.approx(0.72)


# ----------------------------------------------------------------------------------- the essay's claims about them


@pytest.mark.parametrize("old", [0.01, 0.83, 0.84, 1.0])
def test_a_token_above_1_over_1_plus_epsilon_never_reaches_its_bound(old: float) -> None:
    explanation = explain(grpo_clip(), old=old, new=old, advantage=1.0)
    assert explanation.bound == pytest.approx(1.2 * old)
    assert explanation.reachable == (1.2 * old < 1)
    assert explanation.destination == pytest.approx(min(1.2 * old, 1.0))


@pytest.mark.parametrize(
    ("old", "ref", "beta", "more"), [(0.01, 0.999, 0.04, 1.001), (0.8, 1e-6, 1.0, 1.001), (0.5, 0.1, 0.001, 10.0)]
)
def test_with_an_advantage_above_beta_no_reference_stops_a_token_before_its_bound(
    old: float, ref: float, beta: float, more: float
) -> None:
    explanation = explain(grpo(beta=beta), old=old, new=old, ref=ref, advantage=more * beta)
    assert explanation.coefficient > 0
    assert explanation.destination >= 1.2 * old * (1 - 1e-9)  # beyond it if the reference is even higher
    assert not [turn for turn in explanation.turns if old <= turn.probability < 1.2 * old * (1 - 1e-9)]


def test_with_an_advantage_below_beta_some_reference_stops_a_token_before_its_bound() -> None:
    balanced = explain(grpo(beta=0.04), old=0.5, new=0.5, ref=0.5 * (1 - 0.01 / 0.04), advantage=0.01)
    assert balanced.coefficient == pytest.approx(0.0, abs=1e-15)
    short = explain(grpo(beta=0.04), old=0.5, new=0.5, ref=0.1, advantage=0.01)
    assert short.destination < 0.5


def test_the_unscaled_targets_of_footnote_3_sum_to_more_than_one() -> None:
    # Footnote 3: three good tokens and a bad one, each of probability 1/4.
    def target_of(advantage: float) -> float:
        return explain(essay(), old=0.25, new=0.25, advantage=advantage).destination

    good, bad = target_of(1.0), target_of(-1.0)
    assert 3 * good == pytest.approx(3 / 2)
    assert 3 * good + bad == pytest.approx(1.5625)


def slope(logits: Tensor, rewards: Tensor, surrogate: ComposedObjective, old: Tensor) -> Tensor:
    """Return the gradient by the logits of a two-token policy, for two answers that each consist of one token."""
    batch = batch_of([rollout(1, token_ids=(0,)), rollout(1, token_ids=(1,))])
    leaf = logits.clone().requires_grad_()

    def column(values: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(values), values], dim=1)

    batch = batch.with_(old_logprobs=column(old), advantages=column(rewards))
    terms = surrogate(TokenScores(logprobs=column(leaf.log_softmax(0))), batch)
    return torch.autograd.grad(terms.loss, leaf)[0]


def test_one_pass_makes_the_clip_irrelevant_only_if_the_batch_is_one_step() -> None:
    # "If μ = 1 the clip function is irrelevant": true at the first optimiser step of a batch. But if a batch is split
    # into two steps, the policy moves between them.
    logits, advantages = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    old = logits.log_softmax(0)
    clipped, free = ComposedObjective(surrogate=clip(low=0.2, high=0.2)), ComposedObjective(surrogate=unclipped)
    first = slope(logits, advantages, clipped, old)
    assert_close(first, slope(logits, advantages, free, old))
    moved = logits - 1.0 * first
    assert not torch.allclose(slope(moved, advantages, clipped, old), slope(moved, advantages, free, old))


# ------------------------------------------------------------------------------ the pipeline of the Hugging Face course

REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0])  # two questions, four answers each
QUESTION = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def rounded(values: Tensor) -> set[str]:
    return {f"{value:.4f}" for value in values.tolist()}


def test_the_course_prints_advantages_that_its_code_does_not_give() -> None:
    # It prints .8659 for the right answers and -.8660 for the wrong ones. Its eps of 1e-8 gives ±.8660; TRL's 1e-4
    # gives ±.8659. No eps makes the two differ.
    assert rounded(group_standardised(REWARDS, QUESTION, eps=1e-8)) == {"0.8660", "-0.8660"}
    assert rounded(group_standardised(REWARDS, QUESTION, eps=1e-4)) == {"0.8659", "-0.8659"}
    # "1 - 0.5 / 0.5774 ≈ .8659" lacks its parentheses.
    assert f"{1 - 0.5 / 0.5774:.3f}" == "0.134"


def test_the_courses_eight_answers_half_of_them_right() -> None:
    rewards, group = torch.tensor([1.0, 0.0] * 4), torch.zeros(8, dtype=torch.int64)
    assert f"{rewards.mean():.1f}" == "0.5"
    assert f"{rewards.std():.2f}" == "0.53"
    # From .5 / .53; with more digits of the deviation (.5345) it is .9354.
    assert {f"{value:.2f}" for value in group_standardised(rewards, group).tolist()} == {"0.94", "-0.94"}


@pytest.mark.parametrize(
    ("new", "advantage", "ratio", "clipped"),
    [
        (0.9, 1.0, 1.8, 1.2),
        (0.7, 1.0, 1.4, 1.2),
        (0.2, -1.0, 0.4, 0.8),
        (0.2, 1.0, 0.4, 0.4),  # the course prints .8 for any Â: the minimum keeps .4 if Â > 0
    ],
)
def test_the_ratios_of_the_course(new: float, advantage: float, ratio: float, clipped: float) -> None:
    (point,) = table(grpo_clip(), old=0.5, news=[new], advantage=advantage)
    assert point.ratio == pytest.approx(ratio)
    assert point.clipped_ratio == pytest.approx(clipped)


# ------------------------------------------------------------------------------------------------ from PPO to GRPO


def test_the_note_omits_lambda_from_the_generalised_advantage() -> None:
    # It prints Σ_l γ^l δ_{t+l}; GAE (arXiv 1506.02438) is Σ_l (γλ)^l δ_{t+l}. The printed sum is the case λ = 1.
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.5, 0.4]])
    gamma, lam = 0.9, 0.5
    deltas = [0.0 + gamma * 0.5 - 0.2, 0.0 + gamma * 0.4 - 0.5, 1.0 - 0.4]

    def first(factor: float) -> float:
        return sum(factor**step * delta for step, delta in enumerate(deltas))

    def estimated(lam: float) -> float:
        mask, end = torch.ones(1, 3, dtype=torch.bool), torch.zeros(1)
        return generalised_advantages(rewards, values, mask, end, gamma=gamma, lam=lam)[0, 0].item()

    assert estimated(lam) == pytest.approx(first(gamma * lam))
    assert estimated(1.0) == pytest.approx(first(gamma))
    assert first(gamma) - first(gamma * lam) > 0.2


# ---------------------------------------------------------------------------------------------------------- CS336


def test_the_expectation_of_equation_29_is_over_the_old_policy() -> None:
    # It is printed with answers from πθ; line 5 of its own Algorithm 3 samples them from π_old. Only then is the mean
    # of ρ A the expected advantage of πθ. Computed exactly, over both tokens of a two-token policy, without the clip.
    old, new, advantages = (0.7, 0.3), (0.4, 0.6), (1.0, -0.5)
    ratio_form = ComposedObjective(surrogate=unclipped, weight=total)
    gains = [
        table(ratio_form, old=o, news=[n], advantage=a)[0].objective
        for o, n, a in zip(old, new, advantages, strict=True)
    ]

    def mean(values: list[float], policy: tuple[float, float]) -> float:
        return sum(p * value for p, value in zip(policy, values, strict=True))

    truth = mean(list(advantages), new)
    assert mean(gains, old) == pytest.approx(truth, abs=1e-12)
    assert abs(mean(gains, new) - truth) > 0.3
