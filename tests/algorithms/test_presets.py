"""Test every preset against a second, token-by-token implementation, and what must not change the result."""

import inspect
import math
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from toys import RAGGED, assert_close, batch_of, evaluate, groups, rollout, with_noise

from outdo.algorithms.objectives import presets
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import k1, k2
from outdo.algorithms.objectives.surrogates import log_likelihood, unclipped
from outdo.algorithms.objectives.weights import token_mean, total
from outdo.types import Rollout

Groups = list[list[Rollout]]

PRESETS: dict[str, ComposedObjective] = {
    name: make(length=7) if name == "dr_grpo" else make()
    for name, make in vars(presets).items()
    if inspect.isfunction(make) and make.__module__ == presets.__name__
}
NAMES = "grpo dr_grpo ppo reinforce gspo gspo_token luspo rloo_clip gmpo vespo prime_rl clip_cov kl_cov"
SHAPES = {name: PRESETS[name] for name in NAMES.split()} | {
    "a mean over tokens, k2": ComposedObjective(surrogate=unclipped, weight=token_mean, beta=0.1, divergence=k2),
    "a sum, k1": ComposedObjective(surrogate=log_likelihood, weight=total, beta=0.1, divergence=k1),
}
"""Each level, weight and batch transform, and each surrogate that reads more than one token."""
EVERY = pytest.mark.parametrize("objective", PRESETS.values(), ids=PRESETS)
EVERY_SHAPE = pytest.mark.parametrize("objective", SHAPES.values(), ids=SHAPES)
FEW = settings(max_examples=12)


# ------------------------------------------------------------------------------------------- the presets, by hand

Terms = list[tuple[float, float]]  # for each token of an answer: S, and Σ_u dS_u / d log πθ of this token
ByHand = Callable[[list[float], list[float], list[float], float], Terms]  # log ρ, log πθ, log π_old, Â


def by_token(term: Callable[..., tuple[float, float]], **options: float) -> ByHand:
    return lambda d, l, o, a: [term(*each, a, **options) for each in zip(d, l, o, strict=True)]


def by_sequence(low: float, high: float, *, product: bool = False) -> ByHand:
    def terms(d: list[float], l: list[float], o: list[float], a: float) -> Terms:
        n = len(d)
        value, slope = clipped(sum(d) if product else sum(d) / n, 0.0, 0.0, a, low=low, high=high)
        return [(value, slope * n if product else slope)] * n

    return terms


def clipped(d: float, l: float, o: float, a: float, *, low: float, high: float) -> tuple[float, float]:
    ratio, bound = math.exp(d), 1 + high if a >= 0 else 1 - low
    free = ratio < bound if a >= 0 else ratio > bound
    return (ratio * a, ratio * a) if free else (bound * a, 0.0)


def weighted_likelihood(d: float, l: float, o: float, a: float, *, least: float = 0.0, most: float = math.inf) -> Any:
    weight = min(max(math.exp(d), least), most)
    return weight * a * l, weight * a


def likelihood(d: float, l: float, o: float, a: float) -> tuple[float, float]:
    return a * l, a


def sapo(d: float, l: float, o: float, a: float) -> tuple[float, float]:
    tau = 1.0 if a > 0 else 1.05
    sigma = 1 / (1 + math.exp(-tau * (math.exp(d) - 1)))
    return 4 / tau * sigma * a, 4 * sigma * (1 - sigma) * math.exp(d) * a


def dppo(d: float, l: float, o: float, a: float, *, threshold: float, kl: bool = False) -> tuple[float, float]:
    p, q = math.exp(l), math.exp(o)
    moved = q * (o - l) + (1 - q) * math.log((1 - q) / (1 - p)) if kl else abs(p - q)
    out = moved > threshold and (p > q if a > 0 else p < q)
    return (0.0, 0.0) if out else weighted_likelihood(d, l, o, a, most=20.0)


def dro(d: float, l: float, o: float, a: float) -> tuple[float, float]:
    return a * l - 0.05 * d * d, a - 0.1 * d


def vespo(d: list[float], l: list[float], o: list[float], a: float) -> Terms:
    k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    w = math.exp(sum(d))
    return [(w**k * math.exp(lam * (1 - w)) * a * each, w**k * math.exp(lam * (1 - w)) * a) for each in l]


def gmpo(d: list[float], l: list[float], o: list[float], a: float) -> Terms:
    c = [min(each, 0.4) if a > 0 else max(each, -0.4) for each in d]
    mean = math.exp(sum(c) / len(c))
    return [(mean * a, mean * a * (each == near)) for each, near in zip(d, c, strict=True)]


def prime_rl(
    d: float, l: float, o: float, a: float, *, threshold: float, symmetric: bool = False
) -> tuple[float, float]:
    moved = math.exp(l) - math.exp(o)
    out = abs(moved) > threshold if symmetric else (moved if a > 0 else -moved) > threshold
    value = 0.0 if out else math.exp(d) * a
    return value - 1e-3 * d * d, value - 2e-3 * d


CLIP = by_token(clipped, low=0.2, high=0.2)
BY_HAND: dict[str, tuple[ByHand, str]] = {
    "grpo_clip": (CLIP, "mean of means"),
    "ppo": (CLIP, "tokens"),
    "dr_grpo": (CLIP, "constant"),
    "dapo": (by_token(clipped, low=0.2, high=0.28), "tokens"),
    "bnpo": (CLIP, "tokens"),
    "reinforce_pp": (CLIP, "tokens"),
    "gspo": (by_sequence(3e-4, 4e-4), "mean of means"),
    "gspo_token": (by_sequence(3e-4, 4e-4), "mean of means"),
    "luspo": (by_sequence(2e-3, 2.5e-3), "mean of sums"),
    "rloo_clip": (by_sequence(0.2, 0.2, product=True), "mean of means"),
    "gmpo": (gmpo, "mean of means"),
    "cispo": (by_token(weighted_likelihood, most=5.0), "tokens"),
    "sapo": (by_token(sapo), "mean of means"),
    "vespo": (vespo, "tokens"),
    "dppo_tv": (by_token(dppo, threshold=0.15), "tokens"),
    "dppo_kl": (by_token(dppo, threshold=0.05, kl=True), "tokens"),
    "prime_rl": (by_token(prime_rl, threshold=0.2), "tokens"),
    "prime_rl_ipo": (by_token(prime_rl, threshold=0.1, symmetric=True), "tokens"),
    "dro": (by_token(dro), "tokens"),
    "distillation": (by_token(lambda d, l, o, a: (math.exp(d) * a,) * 2), "tokens"),
    "gkd": (by_token(lambda d, l, o, a: (-l * l, -2 * l)), "tokens"),  # with log² πθ in place of the divergence
    "reinforce": (by_token(likelihood), "mean of sums"),
    "rloo": (by_token(likelihood), "mean of sums"),
    "remax": (by_token(likelihood), "mean of sums"),
    "opo": (by_token(likelihood), "mean of sums"),
    "gpg": (by_token(likelihood), "tokens"),
    "likelihood": (by_token(likelihood), "tokens"),
}


def test_every_preset_has_a_second_implementation() -> None:
    # grpo: test_objectives; the others: test_family
    assert set(PRESETS) - set(BY_HAND) == {"grpo", "clip_cov", "kl_cov"}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_preset_equals_a_second_implementation_of_its_equation(name: str) -> None:
    batch, logprobs = with_noise(batch_of(*RAGGED))
    logprobs = -logprobs.abs()  # probabilities
    batch = batch.with_(rollout_logprobs=batch.old_logprobs)  # for prime-rl's
    terms, mean = BY_HAND[name]
    answers = [i for i in range(len(batch)) if batch.loss_mask[i].any()]
    objective, gradient = 0.0, torch.zeros_like(logprobs)
    for i in answers:
        at = batch.loss_mask[i].nonzero().squeeze(1).tolist()
        l, o = logprobs[i, at].tolist(), batch.old_logprobs[i, at].tolist()
        d = [new - old for new, old in zip(l, o, strict=True)]
        share = {
            "tokens": 1 / batch.totals.tokens,
            "constant": 1 / (7 * len(answers)),
            "mean of means": 1 / (len(at) * len(answers)),
            "mean of sums": 1 / len(answers),
        }[mean]
        for t, (value, slope) in zip(at, terms(d, l, o, float(batch.advantages[i, at[0]])), strict=True):
            objective += share * value
            gradient[i, t] = -share * slope
    loss, actual = evaluate(PRESETS[name], logprobs, batch)
    assert_close(float(loss), -objective, tolerance=1e-12)
    assert_close(actual, gradient, tolerance=1e-12)


# -------------------------------------------------------------------------------- what must not change the result


@EVERY_SHAPE
@FEW
@given(groups(), st.integers(1, 60))
def test_microbatch_losses_and_gradients_add_up_to_those_of_the_batch(
    objective: ComposedObjective, members: Groups, budget: int
) -> None:
    batch, logprobs = with_noise(batch_of(*members))
    batch = objective.prepare(batch)
    losses, gradients, start = [], [], 0
    for micro in batch.microbatches(budget, whole_groups=objective.requires.whole_groups):
        width = micro.token_ids.shape[1]
        loss, gradient = evaluate(objective, logprobs[start : start + len(micro), :width], micro)
        losses.append(loss)
        gradients.append(pad(gradient, (0, logprobs.shape[1] - width)))
        start += len(micro)
    assert_close((torch.stack(losses).sum(), torch.cat(gradients)), evaluate(objective, logprobs, batch))


@EVERY_SHAPE
@FEW
@given(groups(), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_rows_does_not_matter(
    objective: ComposedObjective, members: Groups, random: Random
) -> None:
    batch, logprobs = with_noise(batch_of(*members))
    by_group = [(batch.group == number).nonzero().squeeze(1).tolist() for number in range(len(members))]
    random.shuffle(by_group)
    order = torch.tensor([i for rows in by_group for i in random.sample(rows, len(rows))])
    loss, gradient = evaluate(objective, logprobs, objective.prepare(batch))
    shuffled = objective.prepare(batch.rows(order))
    assert_close(evaluate(objective, logprobs[order], shuffled), (loss, gradient[order]))


@EVERY
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf])
def test_values_outside_the_mask_are_never_read(objective: ComposedObjective, rubbish: float) -> None:
    clean, logprobs = with_noise(batch_of(*RAGGED, [rollout(2, 1.0, mask=(False, False))]))

    def spoilt(values: Tensor) -> Tensor:
        return values.where(clean.loss_mask, rubbish)

    names = ("old_logprobs", "ref_logprobs", "advantages", "rollout_logprobs")
    batch = objective.prepare(clean.with_(**{name: spoilt(getattr(clean, name)) for name in names}))
    expected = evaluate(objective, logprobs, objective.prepare(clean))
    loss, gradient = evaluate(objective, spoilt(logprobs), batch)
    assert_close((loss, gradient), expected)
    assert gradient[~clean.loss_mask].eq(0).all()


@EVERY
def test_loss_and_gradient_do_not_overflow_in_float32(objective: ComposedObjective) -> None:
    batch, old = with_noise(batch_of([rollout(2)]))
    for distance, advantage in product((-1000.0, -25.0, 25.0, 1000.0), (-1.0, 1.0)):
        far = batch.with_(old_logprobs=old, ref_logprobs=old, advantages=torch.full_like(old, advantage))
        loss, gradient = evaluate(objective, (old + distance).float(), objective.prepare(far))
        assert loss.isfinite(), (distance, advantage)
        assert gradient.isfinite().all(), (distance, advantage)


@EVERY
@pytest.mark.parametrize(
    "members",
    [[rollout(0), rollout(2, mask=(False, False))], [rollout(3, status="failed")]],
    ids=["nothing chosen", "no reward"],
)
def test_a_batch_without_a_trained_token_has_loss_0_and_no_gradient(
    objective: ComposedObjective, members: list[Rollout]
) -> None:
    batch, logprobs = with_noise(batch_of(members))
    loss, gradient = evaluate(objective, logprobs, objective.prepare(batch))
    assert loss == 0
    assert gradient.eq(0).all()
