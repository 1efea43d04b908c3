"""The confidence intervals of an evaluation, also with few questions and with several answers to each."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.interval_coverage import POPULATIONS, coverage
from outdo.run.evaluation.intervals import (
    central_probability,
    difference_interval,
    interval,
    mean_interval,
    t_quantile,
)

DRAWS = 600


@pytest.mark.parametrize("questions", [4, 8, 32])
@pytest.mark.parametrize("answers", [2, 8, 16])
def test_the_interval_of_several_answers_to_each_question_holds_the_true_share(questions, answers):
    """In 95 of 100 evaluations; three standard errors of 600 are 2.7, and the share of few questions is a step."""
    lowest = min(coverage("right", name, questions, answers, draws=DRAWS) for name in POPULATIONS)
    assert lowest > 0.89


@pytest.mark.parametrize("questions", [4, 8, 32])
@pytest.mark.parametrize("answers", [1, 4, 16])
def test_the_interval_of_a_paired_difference_holds_the_true_one(questions, answers):
    lowest = min(coverage("difference", name, questions, answers, draws=DRAWS) for name in POPULATIONS)
    assert lowest > 0.89


@pytest.mark.parametrize("questions", [2, 4, 8])
def test_the_interval_of_the_mean_of_few_values_holds_the_true_one(questions):
    assert coverage("reward", "uniform", questions, 16, draws=DRAWS) > 0.89


@given(st.integers(1, 8).flatmap(lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k), min_size=1, max_size=9))))
def test_answers_are_never_surer_than_independent_ones_nor_less_sure_than_one_for_each_question(case):
    answers, right = case
    shares = [each / answers for each in right]
    low, high = interval(shares, len(shares) * answers)
    mean, n = sum(shares) / len(shares), len(shares)
    assert wilson(mean, n * answers)[0] + 1e-9 >= low >= wilson(mean, n)[0] - 1e-9
    assert wilson(mean, n * answers)[1] - 1e-9 <= high <= wilson(mean, n)[1] + 1e-9


def wilson(share: float, n: int) -> tuple[float, float]:
    """Solve (share - p)² = z² p (1 - p) / n for p."""
    z2 = 1.959963984540054**2 / n
    a, b, c = 1 + z2, -(2 * share + z2), share * share
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def test_equal_shares_and_nearly_equal_ones_are_about_as_sure():
    """Of four questions with eight answers: the variance of so few shares says little about the next ones."""
    equal, nearly = interval([0.5] * 4, 32), interval([0.5, 0.5, 0.5, 0.625], 32)
    assert nearly[1] - nearly[0] == pytest.approx(equal[1] - equal[0], rel=0.01)
    assert nearly[1] - nearly[0] > wilson(0.53125, 32)[1] - wilson(0.53125, 32)[0]


def test_degenerate_evaluations_have_intervals_that_claim_nothing():
    assert interval([1.0] * 4, 32) == pytest.approx(wilson(1.0, 4))  # all right: eight answers may be one
    assert interval([0.375], 8) == pytest.approx(wilson(0.375, 1))  # one question is one draw
    assert difference_interval([0.0]) == (-1.0, 1.0)
    low, high = difference_interval([0.0] * 64)
    assert -0.04 < low < -0.02 < 0.02 < high < 0.04  # no answer changed: as with 3 / n, one may the next time
    assert mean_interval([2.0]) == mean_interval([2.0, 2.0]) == (2.0, 2.0)


def test_the_interval_of_a_paired_difference_by_hand():
    """Agresti and Min: 41 better, 18 worse, 5 unchanged; half a pair more in each of the four cells."""
    n, better, worse = 66, 41.5, 18.5
    mean = (better - worse) / n
    half = t_quantile(63) * math.sqrt(((better + worse) / n - mean**2) / n)
    assert difference_interval([1.0] * 41 + [-1.0] * 18 + [0.0] * 5) == pytest.approx((mean - half, mean + half))


def test_students_quantile_is_that_of_its_closed_forms_and_tables():
    assert t_quantile(1) == pytest.approx(math.tan(0.475 * math.pi))
    assert t_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)))
    table = {3: 3.182446, 4: 2.776445, 5: 2.570582, 10: 2.228139, 30: 2.042272, 100: 1.983972, 1000: 1.962339}
    assert {degrees: t_quantile(degrees) for degrees in table} == pytest.approx(table, abs=1e-6)
    assert t_quantile(0) == math.inf


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 8, 63, 400])
def test_students_distribution_is_the_integral_of_its_density(degrees):
    """By Simpson's rule."""
    scale = (
        math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2)
        if degrees < 300
        else math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    )
    density = [(1 + (2.5 * i / 1000) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(1001)]
    integral = (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2])) * 2.5 / 3000
    expected = 2 * integral * scale / math.sqrt(degrees * math.pi)
    assert central_probability(2.5, degrees) == pytest.approx(expected, abs=1e-9)


def test_an_installed_scipy_agrees():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 10, 99, 1318):
        assert t_quantile(degrees) == pytest.approx(float(stats.t.ppf(0.975, degrees)), rel=1e-9)
