"""Test every piece against numbers worked out by hand: levels, surrogates, weights, corrections, batch transforms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toys import RAGGED, assert_close, batch_of, evaluate, rollout, with_noise

from outdo.algorithms.objectives import corrections, presets
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.batch_transforms import covariant, high_entropy, without_covariant
from outdo.algorithms.objectives.divergences import absolute
from outdo.algorithms.objectives.ratios import sequence, sequence_product, sequence_token
from outdo.algorithms.objectives.surrogates import (
    Surrogate,
    cispo,
    clip,
    dppo_kl,
    dppo_tv,
    dro,
    gmpo,
    kl_cov,
    log_likelihood,
    sapo,
    unclipped,
    vespo,
)
from outdo.algorithms.objectives.weights import every_row, prompt_mean, sequence_mean, sequence_sum
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.algorithms.vocabulary_sums import token_entropy
from outdo.types import Batch, Rollout

Groups = list[list[Rollout]]


def row(*values: float) -> Tensor:
    return torch.tensor([[0.0, *values]], dtype=torch.float64)


def one_row(advantage: float, old: Sequence[float], rollout_logprobs: Sequence[float] | None = None) -> Batch:
    """Return a batch of one answer; `old` holds the probabilities under π_old; all tokens have the same advantage."""
    batch = batch_of([rollout(len(old))])
    logs = row(*map(math.log, old))
    return batch.with_(
        old_logprobs=logs,
        advantages=batch.loss_mask * advantage,
        rollout_logprobs=logs if rollout_logprobs is None else row(*rollout_logprobs),
    )


def value_and_slope(surrogate: Surrogate, advantage: float, *, old: float, new: float) -> tuple[float, float]:
    """Return S and dS / d log πθ of one token."""
    batch = one_row(advantage, [old])
    leaf = row(math.log(new)).requires_grad_()
    value = surrogate(leaf - batch.old_logprobs, leaf, row(advantage), batch)[0, 1]
    (slope,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), float(slope[0, 1])


# ---------------------------------------------------------------------------------------------------------- levels


def test_the_sequence_ratio_is_the_geometric_mean_or_the_product_over_the_mask() -> None:
    mask = torch.tensor([[False, True, False, True, True]])
    logs = torch.tensor([[2.0, 8.0, 0.25]], dtype=torch.float64).log()
    log_ratio = torch.zeros(1, 5, dtype=torch.float64).masked_scatter(mask, logs)
    assert_close(sequence(log_ratio, mask).exp()[mask], torch.full((3,), 4 ** (1 / 3), dtype=torch.float64))
    assert_close(sequence_product(log_ratio, mask).exp()[mask], torch.full((3,), 4.0, dtype=torch.float64))
    assert_close(sequence_token(log_ratio, mask), sequence(log_ratio, mask))
    assert sequence_product(100 * log_ratio.abs(), mask).max() == 20
    for level in (sequence, sequence_product, sequence_token):
        assert level(log_ratio, mask)[~mask].eq(0).all()


# ------------------------------------------------------------------------------------------------------ surrogates


@pytest.mark.parametrize(
    ("surrogate", "advantage", "old", "new", "value", "slope"),
    [
        (clip(low=0.1, high=0.3), 1.0, 0.5, 0.8, 1.3, 0.0),
        (clip(low=0.1, high=0.3), 1.0, 0.5, 0.6, 1.2, 1.2),
        (clip(low=0.1, high=0.3), -1.0, 0.5, 0.4, -0.9, 0.0),
        (clip(low=0.2, high=0.2, dual=3.0), -1.0, 0.1, 0.2, -2.0, -2.0),
        (clip(low=0.2, high=0.2, dual=3.0), -1.0, 0.1, 0.5, -3.0, 0.0),
        (clip(low=0.2, high=0.2, dual=3.0), -1.0, 0.5, 0.1, -0.8, 0.0),
        (clip(low=0.2, high=0.2, dual=3.0), 1.0, 0.1, 0.5, 1.2, 0.0),
        (unclipped, 2.0, 0.1, 0.5, 10.0, 10.0),
        (log_likelihood, 2.0, 0.1, 0.5, 2 * math.log(0.5), 2.0),
        (cispo(ratio_max=4.0), 2.0, 0.1, 0.5, 8 * math.log(0.5), 8.0),
        (cispo(ratio_max=4.0), -1.0, 0.5, 0.1, -0.2 * math.log(0.1), -0.2),
        (cispo(ratio_min=0.5, ratio_max=4.0), -1.0, 0.5, 0.1, -0.5 * math.log(0.1), -0.5),
        (sapo(), 3.0, 0.5, 0.5, 6.0, 3.0),
        (sapo(), -3.0, 0.5, 0.5, -6.0 / 1.05, -3.0),
        # ρ = 2: σ(1) = .7310586, and 4 σ (1 - σ) ρ = 1.5728954
        (sapo(), 1.0, 0.25, 0.5, 4 * 0.7310585786300049, 1.5728954659318548),
        (vespo(), 2.0, 0.5, 0.5, 2 * math.log(0.5), 2.0),
        # W = 2: 4 e^-3 for Â ≥ 0, 8 e^-2 for Â < 0
        (vespo(), 1.0, 0.25, 0.5, 4 * math.exp(-3) * math.log(0.5), 4 * math.exp(-3)),
        (vespo(), -1.0, 0.25, 0.5, -8 * math.exp(-2) * math.log(0.5), -8 * math.exp(-2)),
        (dppo_tv(threshold=0.2), 1.0, 0.01, 0.2, 20 * math.log(0.2), 20.0),
        (dppo_tv(threshold=0.2), 1.0, 0.01, 0.209, 20 * math.log(0.209), 20.0),  # a ratio of 20.9, capped
        (dppo_tv(threshold=0.2), 1.0, 0.5, 0.71, 0.0, 0.0),
        (dppo_tv(threshold=0.2), -1.0, 0.5, 0.29, 0.0, 0.0),
        (dppo_tv(threshold=0.2), -1.0, 0.5, 0.75, -1.5 * math.log(0.75), -1.5),  # moved against its advantage: kept
        (dppo_tv(threshold=0.2), 1.0, 0.5, 0.25, 0.5 * math.log(0.25), 0.5),
        # KL(.5 ‖ .75) = .1438410, KL(.5 ‖ .25) = .1438410
        (dppo_kl(threshold=0.1438411), 1.0, 0.5, 0.75, 1.5 * math.log(0.75), 1.5),
        (dppo_kl(threshold=0.1438410), 1.0, 0.5, 0.75, 0.0, 0.0),
        (dppo_kl(threshold=0.1438410), -1.0, 0.5, 0.25, 0.0, 0.0),
        (dppo_kl(threshold=0.1438410), -1.0, 0.5, 0.75, -1.5 * math.log(0.75), -1.5),
        (dppo_kl(threshold=5.0), 1.0, 0.5, 1.0, 0.0, 0.0),  # probability 1 is infinitely far
        (dppo_kl(threshold=0.1), -1.0, 1.0, 1.0, 0.0, -1.0),
        (dppo_kl(threshold=0.1), -1.0, 1.0, 0.95, -0.95 * math.log(0.95), -0.95),  # KL = -log .95
        (dro(tau=0.5), 1.0, 0.25, 0.5, math.log(0.5) - 0.25 * math.log(2) ** 2, 1 - 0.5 * math.log(2)),
        (dro(tau=0.5), 1.0, 0.1, 0.1 * math.exp(2), math.log(0.1) + 2 - 1, 0.0),  # the target: Â/τ nats up
    ],
)
def test_a_surrogate_has_the_value_and_the_slope_of_its_equation(
    surrogate: Surrogate, advantage: float, old: float, new: float, value: float, slope: float
) -> None:
    assert value_and_slope(surrogate, advantage, old=old, new=new) == pytest.approx((value, slope), abs=1e-9)


def test_the_push_of_sapo_is_largest_where_a_token_is_twice_as_likely_as_before() -> None:
    slopes = [value_and_slope(sapo(), 1.0, old=0.1, new=0.1 * ratio)[1] for ratio in (1.0, 2.05, 2.06, 2.07)]
    assert slopes[0] < max(slopes) == slopes[2] == pytest.approx(1.57467, abs=1e-5)


@pytest.mark.parametrize(
    ("objective", "advantage", "old", "new", "value", "slope"),
    [
        # S = ρ Â - .001 (log ρ)², dS/dl = ρ Â - .002 log ρ
        (presets.prime_rl(), 2.0, 0.25, 0.375, 3.0 - 1e-3 * math.log(1.5) ** 2, 3.0 - 2e-3 * math.log(1.5)),
        (presets.prime_rl(), 2.0, 0.25, 0.5, -1e-3 * math.log(2) ** 2, -2e-3 * math.log(2)),  # .25 further up
        (presets.prime_rl(), -2.0, 0.25, 0.5, -4.0 - 1e-3 * math.log(2) ** 2, -4.0 - 2e-3 * math.log(2)),
        (presets.prime_rl(), -2.0, 0.5, 0.25, -1e-3 * math.log(2) ** 2, 2e-3 * math.log(2)),
        (presets.prime_rl(threshold_high=0.3), 2.0, 0.25, 0.5, 4.0 - 1e-3 * math.log(2) ** 2, 4 - 2e-3 * math.log(2)),
        (presets.prime_rl(threshold_low=0.3), -2.0, 0.5, 0.25, -1.0 - 1e-3 * math.log(2) ** 2, -1 + 2e-3 * math.log(2)),
        (presets.prime_rl(pull=0.5), 0.0, 0.25, 0.5, -0.5 * math.log(2) ** 2, -math.log(2)),
        # beyond 20 nats ρ is clamped, and the pull continues
        (presets.prime_rl(), 1.0, 1e-11, 0.1, math.exp(20) - 1e-3 * math.log(1e10) ** 2, -2e-3 * math.log(1e10)),
        (presets.prime_rl_ipo(), 2.0, 0.25, 0.3, 2.4 - 1e-3 * math.log(1.2) ** 2, 2.4 - 2e-3 * math.log(1.2)),
        (presets.prime_rl_ipo(), 2.0, 0.25, 0.375, -1e-3 * math.log(1.5) ** 2, -2e-3 * math.log(1.5)),
        (presets.prime_rl_ipo(), 2.0, 0.5, 0.25, -1e-3 * math.log(2) ** 2, 2e-3 * math.log(2)),  # against Â
        (presets.prime_rl_ipo(threshold=0.3), 2.0, 0.5, 0.25, 1 - 1e-3 * math.log(2) ** 2, 1 + 2e-3 * math.log(2)),
    ],
)
def test_the_losses_of_prime_rl_are_measured_from_the_policy_that_sampled(
    objective: ComposedObjective, advantage: float, old: float, new: float, value: float, slope: float
) -> None:
    """`old` is the engine's probability; that of π_old is another one and has no effect."""
    batch = one_row(advantage, [0.9], [math.log(old)])
    loss, gradient = evaluate(objective, row(math.log(new)), batch)
    assert (-loss.item(), -gradient[0, 1].item()) == pytest.approx((value, slope), rel=1e-9)


def test_in_bypass_the_ratio_is_that_to_the_engine_and_the_correction_that_of_the_present_policy() -> None:
    """verl's bypass mode, "reinforce" with truncated weights and "ppo_clip" with a rejection, restated."""
    batch, logprobs = with_noise(batch_of(*RAGGED))
    mask, advantages, sampled = batch.loss_mask, batch.advantages, batch.rollout_logprobs.double()
    batch = batch.with_(rollout_logprobs=sampled)

    def reinforce(leaf: Tensor) -> Tensor:
        weight = (leaf.detach() - sampled).clamp(-20, 20).exp().clamp(max=2.0)
        rows = (-advantages * leaf * weight).where(mask, 0.0).sum(1)
        return rows.sum() / mask.any(1).sum()

    def ppo_clip(leaf: Tensor) -> Tensor:
        apart = (leaf - sampled).clamp(-20, 20)
        ratio = apart.exp()
        worse = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
        worse = worse.where(advantages >= 0, torch.minimum(worse, -advantages * 3.0))
        k3 = (apart.exp() - 1 - apart).detach().where(mask, 0.0)
        kept = mask & (k3.amax(1, keepdim=True) <= 0.9)
        assert 0 < kept.sum() < mask.sum()
        return worse[kept].sum() / mask.sum()

    truncated = replace(presets.reinforce(), bypass=True, correction=corrections.truncate())
    rejecting = replace(presets.ppo(dual=3.0), bypass=True, correction=corrections.reject(level="max", high=0.9))
    for objective, theirs in ((truncated, reinforce), (rejecting, ppo_clip)):
        leaf = logprobs.clone().requires_grad_()
        loss = theirs(leaf)
        assert_close(evaluate(objective, logprobs, batch), (loss.detach(), torch.autograd.grad(loss, leaf)[0]))
        elsewhere = batch.with_(old_logprobs=torch.full_like(sampled, -3.0))
        assert_close(evaluate(objective, logprobs, elsewhere), evaluate(objective, logprobs, batch))


@pytest.mark.parametrize("nats", [-400.0, -25.0, 9.9, 10.1, 25.0, 400.0])
def test_dro_pulls_towards_its_target_from_any_distance(nats: float) -> None:
    """With Â = 1 and τ = 0.1 the target is 10 nats above π_old, and the slope is Â - τ log ρ."""
    batch, leaf = one_row(1.0, [0.5]), row(math.log(0.5) + nats)
    _, gradient = evaluate(presets.dro(tau=0.1), leaf, batch)
    assert_close(gradient[0, 1].item(), 0.1 * nats - 1.0)


def test_the_pull_of_kl_cov_continues_where_the_ratio_is_clamped() -> None:
    batch = one_row(1.0, [0.5]).with_(prepared={"covariant": torch.tensor([[False, True]])})
    for nats in (25.0, -25.0):
        _, gradient = evaluate(ComposedObjective(surrogate=kl_cov(coefficient=0.5)), row(math.log(0.5) + nats), batch)
        assert_close(gradient[0, 1].item(), math.copysign(0.5, nats))


def test_gmpo_has_a_lower_and_an_upper_bound_each_for_one_sign_of_the_advantage() -> None:
    apart = row(0.6, -0.6, 0.1)
    batch = one_row(1.0, [0.5, 0.5, 0.5])
    for advantage, clipped, moving in ((1.0, (0.4, -0.6, 0.1), (0, 1, 1)), (-1.0, (0.6, -0.2, 0.1), (1, 0, 1))):
        leaf = apart.clone().requires_grad_()
        value = gmpo(low=0.2, high=0.4)(leaf, leaf, torch.full_like(leaf, advantage), batch)[0, 1]
        (slope,) = torch.autograd.grad(value, leaf)
        expected = advantage * math.exp(sum(clipped) / 3)
        assert_close(value.item(), expected)
        assert_close(slope[0, 1:], expected / 3 * torch.tensor(moving, dtype=torch.float64))


@pytest.mark.parametrize("dual", [1.0, 0.5, -1.0])
def test_a_dual_clip_of_1_or_less_is_refused(dual: float) -> None:
    with pytest.raises(ValueError, match="dual must be above 1"):
        clip(low=0.2, high=0.2, dual=dual)


def test_kl_cov_penalises_only_marked_tokens_and_refuses_a_batch_without_marks() -> None:
    batch = one_row(1.0, [0.25, 0.25])
    leaf = row(math.log(0.5), math.log(0.5)).requires_grad_()
    with pytest.raises(ValueError, match="requires the batch transform `covariant`"):
        kl_cov()(leaf, leaf, leaf, batch)
    marked = batch.with_(prepared={"covariant": torch.tensor([[False, True, False]])})
    gain = kl_cov(coefficient=0.5)(leaf - batch.old_logprobs, leaf, row(1.0, 1.0), marked)
    assert_close(gain, row(2 - 0.5 * math.log(2), 2.0))
    assert_close(torch.autograd.grad(gain.sum(), leaf)[0], row(1.5, 2.0))


def test_the_absolute_divergence_has_a_constant_gradient() -> None:
    leaf = row(-1.0, -3.0).requires_grad_()
    away = absolute(leaf, row(-2.0, -2.5))
    assert_close(away, row(1.0, 0.5))
    assert_close(torch.autograd.grad(away.sum(), leaf)[0], row(1.0, -1.0))


# --------------------------------------------------------------------------------------------------------- weights


def test_the_other_weights_have_the_values_that_their_names_promise() -> None:
    batch = batch_of([rollout(4), rollout(1)], [rollout(0), rollout(3, mask=(True, False, True))], [rollout(0)])
    assert_close(prompt_mean(batch)[[0, 1, 3], 0], torch.tensor([1 / 10, 1 / 10, 1 / 4]))
    assert sequence_sum(batch) == 1 / 3
    assert every_row(sequence_sum)(batch) == 1 / 5
    assert_close(every_row(sequence_mean)(batch)[[0, 1, 3], 0], torch.tensor([1 / 20, 1 / 5, 1 / 10]))
    assert requirements_of(prompt_mean) == requirements_of(every_row(prompt_mean)) == Requires(whole_groups=True)


# ----------------------------------------------------------------------------------------------------- corrections

W = (0.25, 1.0, 4.0)  # π_old / π_rollout of three tokens: product 1
LOPSIDED = (2.0, 4.0, 8.0)  # product 64, geometric mean 4


def corrected(correction: corrections.Correction, weights: Sequence[float], advantage: float = 1.0) -> list[float]:
    """Return the correction c of each token; πθ is π_old."""
    batch = one_row(advantage, [0.5] * len(weights), [math.log(0.5 / w) for w in weights])
    c = torch.as_tensor(correction(batch.old_logprobs, batch))
    return c.expand_as(batch.loss_mask)[batch.loss_mask].tolist()


@pytest.mark.parametrize(
    ("correction", "weights", "expected"),
    [
        (corrections.none, W, [1, 1, 1]),
        (corrections.truncate(), W, [0.25, 1, 2]),
        (corrections.truncate(low=0.5, high=3.0), W, [0.5, 1, 3]),  # TRL's token_truncate
        (corrections.truncate(level="sequence", high=3.0), W, [1, 1, 1]),
        (corrections.truncate(level="sequence", high=3.0), LOPSIDED, [3, 3, 3]),
        (corrections.truncate(level="geometric", high=5.0), LOPSIDED, [4, 4, 4]),
        (corrections.mask(), W, [0, 1, 0]),  # IcePop
        (corrections.mask(low=0.0, high=3.0), W, [0.25, 1, 0]),  # TRL's token_mask
        (corrections.mask(level="sequence", low=0.0, high=3.0), LOPSIDED, [0, 0, 0]),  # TRL's default
        (corrections.mask(level="sequence", low=0.0, high=64.1), LOPSIDED, [64, 64, 64]),
        (corrections.sequence_mask(high=4.1), LOPSIDED, [2, 4, 8]),
        (corrections.sequence_mask(high=3.9), LOPSIDED, [0, 0, 0]),
        # k1 = -log w: the first token is 1.39 nats more likely under the engine, the last 1.39 nats less
        (corrections.reject(estimator="k1", level="token", low=-1.0, high=2.0), W, [1, 1, 0]),
        (corrections.reject(estimator="k1", level="token", low=-2.0, high=1.0), W, [0, 1, 1]),
        (corrections.reject(estimator="k1", level="token", high=1.0), W, [0, 1, 0]),
        (corrections.reject(estimator="k1", high=1.0), W, [1, 1, 1]),  # their mean is 0
        # k2 = .96 .0 .96; k3 = e^log w - 1 - log w = .636 0 1.614, mean .75
        (corrections.reject(estimator="k2", level="token", high=0.95), W, [0, 1, 0]),
        (corrections.reject(estimator="k3", level="token", high=1.0), W, [1, 1, 0]),
        (corrections.reject(high=0.76), W, [1, 1, 1]),
        (corrections.reject(high=0.74), W, [0, 0, 0]),
        (corrections.reject(level="sequence", high=2.24), W, [0, 0, 0]),
        (corrections.reject(estimator="k1", level="sequence", high=30.0), [1e-5] * 3, [0, 0, 0]),  # 3 · 11.5 nats
        # the largest k2 is .961, the largest k3 1.614: of the last token
        (corrections.reject(estimator="k2", level="max", high=0.97), W, [1, 1, 1]),
        (corrections.reject(estimator="k2", level="max", high=0.95), W, [0, 0, 0]),
        (corrections.reject(level="max", high=1.62), W, [1, 1, 1]),
        (corrections.reject(level="max", high=1.61), W, [0, 0, 0]),
        (corrections.reject(estimator="k1", level="max", low=-3.0, high=-0.6), LOPSIDED, [1, 1, 1]),  # -log 2 = -.69
        (corrections.product(corrections.truncate(), corrections.reject(high=0.76)), W, [0.25, 1, 2]),
        (corrections.product(corrections.truncate(), corrections.reject(high=0.74)), W, [0, 0, 0]),
    ],
)
def test_a_correction_weights_or_masks_tokens_by_the_difference_from_the_engine(
    correction: corrections.Correction, weights: Sequence[float], expected: Sequence[float]
) -> None:
    assert corrected(correction, weights) == pytest.approx(expected, abs=1e-9)


def test_the_largest_estimate_of_an_answer_is_taken_over_its_trained_tokens() -> None:
    batch = batch_of([rollout(3, mask=(True, False, True)), rollout(2), rollout(0)])
    old = torch.full(batch.token_ids.shape, -1.0, dtype=torch.float64)
    apart = torch.tensor([[0, 0.1, 9.0, 0.2], [0, 0.1, 0.9, 0], [0, 9.0, 9.0, 9.0]], dtype=torch.float64)
    batch = batch.with_(old_logprobs=old, rollout_logprobs=(old - apart).where(batch.loss_mask, 0.0))
    kept = corrections.reject(estimator="k2", level="max", high=0.1)(old, batch)
    assert torch.as_tensor(kept).expand_as(old)[batch.loss_mask].tolist() == [1, 1, 0, 0]  # .005 .02, .005 .405


def test_off_policy_rows_masks_bad_answers_but_no_good_ones() -> None:
    # On average, πθ = π_old is e^1.5 times smaller than the probability that the engine reported.
    unlikely = (math.exp(-1.0), math.exp(-2.0))
    assert corrected(corrections.off_policy_rows(limit=1.4), unlikely, advantage=-1.0) == [0, 0]
    assert corrected(corrections.off_policy_rows(limit=1.6), unlikely, advantage=-1.0) == [1, 1]
    assert corrected(corrections.off_policy_rows(limit=1.4), unlikely, advantage=1.0) == [1, 1]
    assert corrected(corrections.off_policy_rows(limit=1.4), unlikely, advantage=0.0) == [1, 1]
    assert corrected(corrections.off_policy_rows(limit=1.4, by="old"), unlikely, advantage=-1.0) == [1, 1]


def test_a_correction_multiplies_only_the_policy_term() -> None:
    batch, logprobs = with_noise(batch_of(*RAGGED))
    objective = ComposedObjective(surrogate=log_likelihood, weight=sequence_sum, beta=0.5)
    half = replace(objective, correction=corrections.truncate(low=0.5, high=0.5))
    (loss, gradient), (loss_half, gradient_half) = (evaluate(each, logprobs, batch) for each in (objective, half))
    (kl, kl_gradient) = evaluate(objective, logprobs, batch.with_(advantages=torch.zeros_like(logprobs)))
    assert_close((loss_half - kl, gradient_half - kl_gradient), (0.5 * (loss - kl), 0.5 * (gradient - kl_gradient)))


def test_what_a_piece_returns_outside_of_the_mask_does_not_count() -> None:
    def undefined(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, batch: Batch) -> Tensor:
        return (log_ratio.exp() * advantages).where(batch.loss_mask, torch.nan)

    batch, logprobs = with_noise(batch_of(*RAGGED))
    objective = ComposedObjective(surrogate=unclipped)
    assert_close(
        evaluate(replace(objective, surrogate=undefined), logprobs, batch), evaluate(objective, logprobs, batch)
    )


def test_a_correction_has_no_gradient_of_its_own() -> None:
    """Also one of your own, and also in a first pass, where its argument is the policy that is trained."""
    batch, logprobs = with_noise(batch_of(*RAGGED))
    objective = ComposedObjective(surrogate=log_likelihood, correction=lambda logprobs, batch: logprobs.exp())
    fixed = replace(objective, correction=lambda _, batch: logprobs.exp())
    assert_close(evaluate(objective, logprobs, batch), evaluate(fixed, logprobs, batch))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: corrections.truncate(level="sequense"), 'level must be one of .*"sequense"; did you mean sequence'),
        (lambda: corrections.reject(high=1.0, estimator="k4"), 'estimator must be one of k1, k2, k3, not "k4"'),
        (lambda: corrections.off_policy_rows(limit=1.0, by="engine"), "by must be one of rollout, old"),
        (lambda: high_entropy(share=0.0), "share must be above 0"),
        (lambda: corrections.reject(low=0.2, high=0.1), "expected low <= high, not 0.2 and 0.1: everything"),
        (lambda: corrections.reject(high=-0.1), "expected low <= high, not 0.1 and -0.1: everything"),
        (lambda: corrections.off_policy_rows(limit=-0.1), "limit must be 0 or more, not -0.1"),
        (lambda: presets.clip_cov(cov_low=5.0, cov_high=1.0), "must be below the upper one, not 5.0 and 1.0"),
        (lambda: replace(presets.grpo(), log_ratio_clamp=0.0), "log_ratio_clamp must be above 0, not 0.0"),
    ],
)
def test_an_unknown_option_is_refused_with_the_valid_ones(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ------------------------------------------------------------------------------------------------ batch transforms


def test_high_entropy_keeps_the_advantage_of_only_the_most_uncertain_tokens() -> None:
    batch, _ = with_noise(batch_of([rollout(4, 1.0), rollout(6, 0.0, mask=(True,) * 5 + (False,))]))
    entropy = torch.linspace(0, 1, batch.token_ids.numel()).view_as(batch.token_ids)
    spoilt = entropy.where(batch.loss_mask, math.inf)
    kept = high_entropy(share=0.25)(batch.with_(old_sums={"entropy": spoilt})).advantages
    trained = entropy[batch.loss_mask]
    assert_close(kept[batch.loss_mask], batch.advantages[batch.loss_mask] * (trained >= trained.quantile(0.75)))
    assert kept[batch.loss_mask].count_nonzero() == 3  # of 9: the quantile is the third
    assert requirements_of(high_entropy()) == Requires(old_sums={"entropy": token_entropy})
    for share in (0.1, 0.2, 0.3, 0.7, 1.0):
        kept = high_entropy(share=share)(batch.with_(old_sums={"entropy": spoilt})).advantages
        assert kept[batch.loss_mask].ne(0).equal(trained >= trained.quantile(1 - share))
    empty, logprobs = with_noise(batch_of([rollout(0)]))
    assert high_entropy()(empty.with_(old_sums={"entropy": logprobs})).advantages is not None


def covariances(batch: Batch) -> Tensor:
    a, l = batch.advantages[batch.loss_mask], batch.old_logprobs[batch.loss_mask]
    return (a - a.mean()) * (l - l.mean())


def test_clip_cov_removes_the_given_share_of_tokens_within_its_bounds() -> None:
    batch, _ = with_noise(batch_of(*RAGGED))
    prepared = without_covariant(share=0.2, low=0.0, high=0.5)(batch).advantages
    removed = ((prepared == 0) & (batch.advantages != 0))[batch.loss_mask]
    assert removed.sum() == int(0.2 * batch.totals.tokens)
    assert ((covariances(batch)[removed] > 0) & (covariances(batch)[removed] < 0.5)).all()
    assert without_covariant(share=0.2, low=50.0, high=60.0)(batch).advantages.equal(batch.advantages)


def test_the_random_choice_of_clip_cov_depends_on_seed_and_tokens_but_not_on_row_order() -> None:
    batch, _ = with_noise(batch_of(*RAGGED))

    def remaining(batch: Batch, seed: int = 0) -> Tensor:
        advantages = without_covariant(share=0.3, low=-50.0, high=50.0, seed=seed)(batch).advantages
        return advantages

    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    assert remaining(batch.rows(order)).equal(remaining(batch)[order])
    assert any(not remaining(batch, seed).equal(remaining(batch)) for seed in range(1, 9))
    assert any(not remaining(batch.with_(token_ids=batch.token_ids + n)).equal(remaining(batch)) for n in range(1, 9))


def test_kl_cov_marks_the_largest_covariances() -> None:
    batch, _ = with_noise(batch_of(*RAGGED))
    marked = covariant(percent=15.0)(batch).prepared["covariant"]
    assert not marked[~batch.loss_mask].any()
    number = int(0.15 * batch.totals.tokens)
    assert number > 1
    assert_close(covariances(batch)[marked[batch.loss_mask]].sort().values, covariances(batch).sort().values[-number:])
    assert covariant()(batch).prepared["covariant"].sum() == 1
