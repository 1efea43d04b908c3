"""Test coefficients that follow a target: values worked out by hand, bounds, and state after a checkpoint."""

import math

import pytest

from outdo.algorithms.adaptive import AdaptiveBonus, AdaptiveCoefficient
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.objectives.surrogates import clip


def test_beta_rises_while_kl_is_above_its_target_and_falls_below_it():
    beta = AdaptiveCoefficient(start=0.1, target=0.5)
    beta.observe({"kl": 0.55})  # 10 % above the target
    assert float(beta) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    beta = AdaptiveCoefficient(start=0.1, target=0.5)
    beta.observe({"kl": 50.0})  # the error is capped at 20 %
    assert float(beta) == pytest.approx(0.1 * (1 + 0.1 * 0.2))
    beta.observe({"kl": 0.0})
    assert float(beta) == pytest.approx(0.1 * 1.02 * 0.98)


def test_a_step_without_a_measurement_leaves_the_coefficient_unchanged():
    beta, bonus = AdaptiveCoefficient(start=0.1, target=0.5), AdaptiveBonus(start=0.1, target=0.5)
    for metrics in ({}, *({"kl": value, "entropy": value} for value in (math.nan, math.inf, -math.inf))):
        beta.observe(metrics)
        bonus.observe(metrics)
    assert (float(beta), float(bonus)) == (0.1, 0.1)


def test_the_entropy_bonus_is_0_while_the_entropy_is_above_its_target():
    bonus = AdaptiveBonus(start=0.01, target=0.5, step=0.004)
    bonus.observe({"entropy": 0.4})
    assert float(bonus) == pytest.approx(0.014)
    bonus.observe({"entropy": 0.6})
    assert float(bonus) == 0.0
    bonus.observe({"entropy": 0.5})
    assert float(bonus) == pytest.approx(0.014)  # it fell by one step above the target, and rose again


def test_the_bonus_stays_within_its_bounds():
    bonus = AdaptiveBonus(start=0.0, target=0.5, step=0.4, high=0.6)
    for _ in range(3):
        bonus.observe({"entropy": 0.0})
    assert float(bonus) == 0.6
    for _ in range(3):
        bonus.observe({"entropy": 1.0})
    bonus.observe({"entropy": 0.0})
    assert float(bonus) == 0.4


def test_a_loaded_state_restores_the_coefficient():
    for original in (AdaptiveCoefficient(start=0.1, target=0.5), AdaptiveBonus(start=0.1, target=0.5)):
        original.observe({"kl": 1.0, "entropy": 1.0})
        restored = type(original)(start=0.2, target=0.5)
        restored.load_state(original.state())
        assert (float(restored), restored.state()) == (float(original), original.state())


@pytest.mark.parametrize("wrong", [{"target": 0}, {"start": -1}, {"rate": float("nan")}])
def test_invalid_settings_of_a_coefficient_are_refused(wrong):
    with pytest.raises(ValueError, match="must be a number above 0"):
        AdaptiveCoefficient(**{"start": 0.1, "target": 0.5, **wrong})


def test_a_rate_that_could_make_beta_negative_is_refused():
    with pytest.raises(ValueError, match="rate must be below 5, not 5"):
        AdaptiveCoefficient(start=0.1, target=0.5, rate=5)
    beta = AdaptiveCoefficient(start=0.1, target=0.5, rate=4.9)
    beta.observe({"kl": 0.0})
    assert float(beta) > 0


def test_a_bonus_that_starts_outside_its_bounds_is_refused():
    with pytest.raises(ValueError, match="low <= start <= high"):
        AdaptiveBonus(start=2.0, target=0.5)


def test_an_objective_with_an_adaptive_coefficient_always_requires_its_inputs():
    objective = ComposedObjective(
        surrogate=clip(low=0.2, high=0.2), divergence=k3, beta=AdaptiveCoefficient(start=0.1, target=1.0)
    )
    assert objective.requires.reference
    bonus = ComposedObjective(surrogate=clip(low=0.2, high=0.2), entropy_bonus=AdaptiveBonus(start=0.0, target=1.0))
    assert bonus.requires.sums
