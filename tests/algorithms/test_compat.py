"""Test `outdo.algorithms.objectives.compat` against a second implementation of what the other libraries compute.

`peers` compares the mode "trl" with TRL itself. The formulas here are taken from the sources of verl, OpenRLHF and
AReaL as of 2026; none of these libraries is run.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toys import assert_close, batch_of, evaluate, rollout, with_noise

from outdo.algorithms.objectives import corrections, presets
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.batch_transforms import high_entropy
from outdo.algorithms.objectives.compat import Library, compat
from outdo.algorithms.objectives.divergences import Divergence, absolute, k1, k2, k3
from outdo.algorithms.objectives.weights import token_mean
from outdo.types import Batch, TokenScores

GROUPS = [
    [rollout(4, 1.0), rollout(1, 0.0), rollout(3, 0.5, mask=(True, False, True)), rollout(0, 0.0)],
    [rollout(2, 1.0), rollout(5, 0.0), rollout(3, 0.0)],
]
LIBRARIES: tuple[Library, ...] = ("trl", "verl", "openrlhf", "areal")
WITHOUT_TRL: tuple[Library, ...] = ("verl", "openrlhf", "areal")


def batch_far_from_old_and_reference() -> tuple[Batch, Tensor]:
    """Return a batch and log πθ with tokens 2 and 25 nats above and below π_old and π_ref, in good and bad rows."""
    batch, logprobs = with_noise(batch_of(*GROUPS))
    steps = torch.tensor([0.1, 2.0, -0.3, 25.0, -2.0, 0.2, -25.0], dtype=torch.float64)
    columns = torch.arange(logprobs.numel()).view_as(logprobs)
    logprobs = batch.old_logprobs + steps[columns % len(steps)]
    return batch.with_(ref_logprobs=logprobs - steps[(columns * 3 + 1) % len(steps)]), logprobs


def one_answer(apart: Tensor, *, advantage: float) -> tuple[Tensor, Batch]:
    """Return log πθ and a batch of one answer whose tokens are `apart` nats above π_old."""
    batch = batch_of([rollout(len(apart))])
    old = torch.full((1, len(apart) + 1), -30.0, dtype=torch.float64)
    logprobs = old + torch.cat([torch.zeros(1, dtype=torch.float64), apart])
    return logprobs, batch.with_(old_logprobs=old, advantages=torch.full_like(old, advantage))


# ----------------------------------------------------------------------------------- what the other libraries compute

Loss = Callable[[Tensor, Batch], Tensor]


def unpack(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mask, Â, log π_old and log π_ref."""
    return batch.loss_mask, batch.advantages, batch.old_logprobs, batch.ref_logprobs


def over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    return values[mask].mean()


def over_answers(values: Tensor, mask: Tensor) -> Tensor:
    """Average the token means of the answers that have a token."""
    return torch.stack([row[chosen].mean() for row, chosen in zip(values, mask, strict=True) if chosen.any()]).mean()


def clipped(limit: float, *, low: float = 0.2, high: float = 0.2, dual: float = math.inf) -> Loss:
    """Return PPO's token-level clipped loss, averaged over tokens."""

    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, advantages, old, _ = unpack(batch)
        ratio = (logprobs - old).clamp(-limit, limit).exp()
        worse = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
        if dual < math.inf:
            worse = worse.where(advantages >= 0, torch.minimum(worse, -advantages * dual))
        return over_tokens(worse, mask)

    return loss


def penalty(estimate: Divergence, *, beta: float, difference: float, value: float) -> Loss:
    """Return a divergence loss, averaged over tokens."""

    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, _, _, ref = unpack(batch)
        apart = (logprobs - ref).clamp(-difference, difference)
        return beta * over_tokens(estimate(apart, torch.zeros_like(apart)).clamp(-value, value), mask)

    return loss


def gspo(mean: Callable[[Tensor, Tensor], Tensor], *, highest: float = math.inf) -> Loss:
    """Return GSPO's loss; `highest` bounds the logarithm of an answer's ratio. No library bounds that of a token."""

    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, advantages, old, _ = unpack(batch)
        apart = (logprobs - old).where(mask, 0.0)
        ratio = (apart.sum(1) / mask.sum(1).clamp(min=1)).clamp(max=highest).exp()[:, None]
        return mean(torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - 3e-4, 1 + 4e-4)), mask)

    return loss


def sapo(mean: Callable[[Tensor, Tensor], Tensor], limit: float) -> Loss:
    def loss(logprobs: Tensor, batch: Batch) -> Tensor:
        mask, advantages, old, _ = unpack(batch)
        ratio = (logprobs - old).clamp(-limit, limit).exp()
        good = (ratio - 1).sigmoid() * 4
        bad = (1.05 * (ratio - 1)).sigmoid() * 4 / 1.05
        return mean(-advantages * torch.where(advantages > 0, good, bad), mask)

    return loss


def dro(logprobs: Tensor, batch: Batch) -> Tensor:
    """Compute DRO as verl and Tinker do, averaged over tokens, with no bound on a log-ratio."""
    mask, advantages, old, _ = unpack(batch)
    return over_tokens(-(advantages * logprobs - 0.05 * (logprobs - old) ** 2), mask)


def gmpo(logprobs: Tensor, batch: Batch) -> Tensor:
    """Compute verl's GMPO with the bounds -0.3 and 0.5: its mean counts answers without a token."""
    mask, advantages, old, _ = unpack(batch)
    lengths = mask.sum(1).clamp(min=1)
    apart, sign = logprobs - old, advantages.sign()
    within = sign * torch.minimum(sign * apart, sign * apart.clamp(-0.3, 0.5))
    ratio = (within.where(mask, 0.0).sum(1) / lengths).exp()
    return -(ratio * advantages.where(mask, 0.0).sum(1) / lengths).mean()


def kl_cov(logprobs: Tensor, batch: Batch) -> Tensor:
    """Compute verl's KL-Cov for one marked token, the one with the largest covariance under π_old."""
    mask, advantages, old, _ = unpack(batch)
    apart = (logprobs - old)[mask]
    chosen, before = advantages[mask], old[mask]
    largest = ((chosen - chosen.mean()) * (before - before.mean())).argmax()
    marked = torch.arange(len(apart)) == largest
    return (-chosen * apart.exp() + 0.5 * apart.abs() * marked).mean()


def both(one: Loss, other: Loss) -> Loss:
    return lambda logprobs, batch: one(logprobs, batch) + other(logprobs, batch)


def plain_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    d = logprobs - ref_logprobs
    return (-d).exp() - 1 + d


def by_autograd(loss: Loss, logprobs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    leaf = logprobs.clone().requires_grad_()
    value = loss(leaf, batch)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


INF = math.inf
K3_OF_VERL = penalty(plain_k3, beta=0.5, difference=20.0, value=10.0)
K3_OF_OPENRLHF = penalty(plain_k3, beta=0.5, difference=INF, value=10.0)
ROWS: list[tuple[Library, str, ComposedObjective, Loss]] = [
    ("verl", "grpo", presets.grpo(beta=0.0), clipped(20.0, dual=3.0)),
    ("openrlhf", "grpo", presets.grpo(beta=0.0), clipped(20.0)),
    ("areal", "grpo", presets.grpo(beta=0.0), clipped(INF)),
    ("verl", "dapo", presets.dapo(), clipped(20.0, high=0.28, dual=3.0)),
    ("openrlhf", "dapo", presets.dapo(), clipped(20.0, high=0.28)),
    ("areal", "dapo", presets.dapo(), clipped(INF, high=0.28)),
    ("verl", "k3", presets.grpo(beta=0.5), both(clipped(20.0, dual=3.0), K3_OF_VERL)),
    ("verl", "k3 of bnpo", presets.bnpo(beta=0.5), both(clipped(20.0, dual=3.0), K3_OF_VERL)),
    ("openrlhf", "k3", presets.grpo(beta=0.5), both(clipped(20.0), K3_OF_OPENRLHF)),
    ("verl", "gspo", presets.gspo(), gspo(over_answers, highest=10.0)),
    ("verl", "gspo_token", presets.gspo_token(), gspo(over_answers, highest=10.0)),
    ("openrlhf", "gspo", presets.gspo(), gspo(over_answers)),
    ("areal", "gspo", presets.gspo(), gspo(over_tokens)),
    ("verl", "clip_cov", presets.clip_cov(cov_low=1e3, cov_high=1e4), clipped(INF, low=1.0, high=1.0)),
    ("verl", "kl_cov", presets.kl_cov(coefficient=0.5), kl_cov),
    ("verl", "gmpo", presets.gmpo(clip_low=0.3, clip_high=0.5), gmpo),
    ("verl", "dro", presets.dro(), dro),
    ("areal", "dro", presets.dro(), dro),
    ("verl", "sapo", presets.sapo(), sapo(over_answers, 20.0)),
    ("areal", "sapo", presets.sapo(), sapo(over_tokens, INF)),
]
for estimate in (k1, k2, absolute):
    name, objective = estimate.__name__, replace(presets.grpo(beta=0.5), divergence=estimate)
    free, bound = (penalty(estimate, beta=0.5, difference=INF, value=value) for value in (INF, 10.0))
    ROWS += [
        ("verl", name, objective, both(clipped(20.0, dual=3.0), free)),
        ("openrlhf", name, objective, both(clipped(20.0), bound)),
    ]


@pytest.mark.parametrize(
    ("library", "objective", "loss"),
    [(library, *row) for library, _, *row in ROWS],
    ids=[f"{p}-{n}" for p, n, *_ in ROWS],
)
def test_loss_and_gradient_equal_those_of_the_library(
    library: Library, objective: ComposedObjective, loss: Loss
) -> None:
    batch, logprobs = batch_far_from_old_and_reference()
    adapted = compat(library, objective)
    actual = evaluate(adapted, logprobs, adapted.prepare(batch))
    assert_close(actual, by_autograd(loss, logprobs, batch))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("objective", [presets.gspo(), presets.gspo_token()], ids=["gspo", "gspo_token"])
def test_no_library_clamps_the_log_ratios_of_gspos_tokens(library: Library, objective: ComposedObjective) -> None:
    """Tokens 22 nats above and below π_old cancel out: s = 1, and each token gets -Â s / n = 1/4."""
    batch = one_answer(torch.tensor([22.0, -22.0, 0.0, 0.0], dtype=torch.float64), advantage=-1.0)
    _, gradient = evaluate(compat(library, objective), *batch)
    assert_close(gradient[0, 1:], torch.full((4,), 0.25, dtype=torch.float64))


def test_verl_stops_gspo_where_the_answer_is_10_nats_away_and_openrlhf_does_not() -> None:
    batch = one_answer(torch.full((4,), 10.5, dtype=torch.float64), advantage=-1.0)
    loss, gradient = evaluate(compat("verl", presets.gspo()), *batch)
    assert_close(loss.item(), math.exp(10.0))
    assert gradient.eq(0).all()
    loss, gradient = evaluate(compat("openrlhf", presets.gspo()), *batch)
    assert_close(loss.item(), math.exp(10.5))
    assert_close(gradient[0, 1:], torch.full((4,), math.exp(10.5) / 4, dtype=torch.float64))


def test_trl_has_no_limit_on_the_ratio_of_a_whole_answer() -> None:
    batch = one_answer(torch.full((3,), 7.0, dtype=torch.float64), advantage=-1.0)  # log W = 21
    loss, gradient = evaluate(compat("trl", presets.rloo_clip()), *batch)
    assert_close(loss.item(), math.exp(21.0))
    assert_close(gradient[0, 1:], torch.full((3,), math.exp(21.0), dtype=torch.float64))
    assert evaluate(presets.rloo_clip(), *batch)[1].eq(0).all()


# ----------------------------------------------------------------------------------------- what compat leaves unchanged


@pytest.mark.parametrize("library", LIBRARIES)
def test_pieces_without_a_rule_stay_unchanged(library: Library) -> None:
    def own(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
        return logprobs * advantages

    def own_level(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
        return log_ratio

    objective = ComposedObjective(
        surrogate=own,
        level=own_level,
        correction=corrections.truncate(),
        beta=0.5,
        entropy_bonus=0.25,
        batch_transform=high_entropy(),
    )
    adapted = compat(library, objective)
    for piece in ("surrogate", "level", "correction", "beta", "entropy_bonus", "batch_transform"):
        assert getattr(adapted, piece) is getattr(objective, piece)
    assert adapted.requires == objective.requires


@pytest.mark.parametrize("library", ["verl", "openrlhf"])
@pytest.mark.parametrize(
    "objective", [presets.gspo(), presets.gspo_token(), presets.sapo(), presets.rloo_clip(), presets.clip_cov()]
)
def test_only_ppos_clip_by_token_gets_a_token_mean_and_a_dual_clip(
    library: Library, objective: ComposedObjective
) -> None:
    adapted = compat(library, objective)
    assert adapted.weight is objective.weight
    assert adapted.surrogate is objective.surrogate


@pytest.mark.parametrize("objective", [presets.gspo(beta=0.5), presets.grpo(beta=0.5)], ids=["gspo", "grpo"])
def test_the_divergence_is_a_mean_over_tokens_in_openrlhf(objective: ComposedObjective) -> None:
    """The answers have different lengths, so that a mean over answers of means over tokens is another number."""
    batch, logprobs = batch_far_from_old_and_reference()
    expected = over_tokens(k3(logprobs, batch.ref_logprobs).clamp(-10.0, 10.0), batch.loss_mask) / 2
    terms = {library: compat(library, objective)(TokenScores(logprobs=logprobs), batch) for library in WITHOUT_TRL}
    assert_close(terms["openrlhf"].divergence, expected)
    assert compat("verl", objective).divergence_weight is None


@pytest.mark.parametrize(("library", "expected"), [("trl", True), ("verl", False), ("openrlhf", True)])
def test_the_entropy_of_gspo_is_a_mean_over_tokens_in_two_libraries(library: Library, expected: bool) -> None:
    adapted = compat(library, presets.gspo())
    assert (adapted.entropy_weight is token_mean) == expected


@pytest.mark.parametrize("library", WITHOUT_TRL)
@pytest.mark.parametrize("distance", [-1000.0, 1000.0])
def test_the_gradient_of_a_clamped_divergence_does_not_overflow(library: Library, distance: float) -> None:
    batch, logprobs = batch_far_from_old_and_reference()
    _, gradient = evaluate(compat(library, presets.grpo()), logprobs, batch.with_(ref_logprobs=logprobs - distance))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_applying_compat_twice_equals_applying_it_once(library: Library) -> None:
    batch, logprobs = batch_far_from_old_and_reference()
    for objective in (presets.grpo(), presets.gspo(), presets.rloo_clip(), presets.gmpo()):
        once = compat(library, objective)
        assert_close(evaluate(compat(library, once), logprobs, batch), evaluate(once, logprobs, batch))
