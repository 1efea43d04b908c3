"""Coefficients that follow a target: by hand, within bounds, and the same after a checkpoint."""

import pytest

from outdo.algorithms.adaptive import AdaptiveBonus, AdaptiveCoefficient
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.objectives.surrogates import clip


def test_beta_rises_while_kl_is_above_its_target_and_falls_below_it():
    beta = AdaptiveCoefficient(start=0.1, target=0.5)
    beta.observe({"kl": 0.55})  # a tenth too far
    assert float(beta) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    beta = AdaptiveCoefficient(start=0.1, target=0.5)
    beta.observe({"kl": 50.0})  # at most a fifth counts
    assert float(beta) == pytest.approx(0.1 * (1 + 0.1 * 0.2))
    beta.observe({"kl": 0.0})
    assert float(beta) == pytest.approx(0.1 * 1.02 * 0.98)


def test_a_step_that_measured_nothing_changes_nothing():
    beta, bonus = AdaptiveCoefficient(start=0.1, target=0.5), AdaptiveBonus(start=0.1, target=0.5)
    beta.observe({})
    bonus.observe({})
    assert (float(beta), float(bonus)) == (0.1, 0.1)


def test_the_bonus_counts_only_while_the_entropy_is_not_above_its_target():
    bonus = AdaptiveBonus(start=0.01, target=0.5, step=0.004)
    bonus.observe({"entropy": 0.4})
    assert float(bonus) == pytest.approx(0.014)
    bonus.observe({"entropy": 0.6})
    assert float(bonus) == 0.0
    bonus.observe({"entropy": 0.5})
    assert float(bonus) == pytest.approx(0.014)  # it fell by a step above the target, and rose again


def test_the_bonus_stays_within_its_bounds():
    bonus = AdaptiveBonus(start=0.0, target=0.5, step=0.4, high=0.6)
    for _ in range(3):
        bonus.observe({"entropy": 0.0})
    assert float(bonus) == 0.6
    for _ in range(3):
        bonus.observe({"entropy": 1.0})
    bonus.observe({"entropy": 0.0})
    assert float(bonus) == 0.4


def test_what_was_saved_goes_on_where_it_was():
    for made in (AdaptiveCoefficient(start=0.1, target=0.5), AdaptiveBonus(start=0.1, target=0.5)):
        made.observe({"kl": 1.0, "entropy": 1.0})
        other = type(made)(start=0.2, target=0.5)
        other.load_state(made.state())
        assert (float(other), other.state()) == (float(made), made.state())


@pytest.mark.parametrize("wrong", [{"target": 0}, {"start": -1}, {"rate": float("nan")}])
def test_a_coefficient_that_could_not_work_is_refused(wrong):
    with pytest.raises(ValueError, match="must be a number above 0"):
        AdaptiveCoefficient(**{"start": 0.1, "target": 0.5, **wrong})


def test_a_bonus_outside_its_bounds_is_refused():
    with pytest.raises(ValueError, match="low <= start <= high"):
        AdaptiveBonus(start=2.0, target=0.5)


def test_a_formula_with_a_coefficient_needs_its_reference_even_while_it_is_small():
    formula = ComposedObjective(
        surrogate=clip(low=0.2, high=0.2), divergence=k3, beta=AdaptiveCoefficient(start=0.1, target=1.0)
    )
    assert formula.requires.reference
    bonus = ComposedObjective(surrogate=clip(low=0.2, high=0.2), entropy_bonus=AdaptiveBonus(start=0.0, target=1.0))
    assert bonus.requires.entropy
