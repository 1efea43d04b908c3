"""95 % confidence intervals of an evaluation: the questions are the sample, and there may be few of them.

`benchmarks/interval_coverage.py` simulates how often they hold the true value; docs/evaluation.md has its table.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

LEVEL = 0.95

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""1.959964: the normal quantile of an interval of this level."""

Interval = tuple[float, float]


def interval(shares: Sequence[float], answers: int | None = None) -> Interval:
    """Compute the 95 % confidence interval of the mean of n shares in [0, 1], one per question.

    It is Wilson's interval with an effective number of answers, for the n questions are independent of each other, and
    the answers to one question are not: n · p(1 - p) / s² · (z / t)², where s² is the variance of the shares with the
    divisor n - 1 and t is Student's quantile with n - 1 degrees of freedom (Korn and Graubard 1998, Dean and Pagano
    2015). It is at least n, and before the factor (z / t)² at most `answers`, the number of all answers, by default
    n. With one answer per question this is Wilson's interval itself.
    """
    n, mean = len(shares), math.fsum(shares) / len(shares)
    coin = mean * (1 - mean)
    most = float(n if answers is None else answers)
    variance = _variance(shares, mean)
    if variance * most > n * coin:
        most = n * coin / variance
    # Where all shares are 0 or all are 1, nothing shows how far the answers to one question agree.
    effective = max(n, most * (Z / t_quantile(n - 1)) ** 2) if coin > 0 else n
    centre, spread = mean + Z * Z / (2 * effective), Z * math.sqrt(coin / effective + Z * Z / (4 * effective**2))
    scale = 1 + Z * Z / effective
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def mean_interval(values: Sequence[float]) -> Interval:
    """Compute the 95 % confidence interval of a mean of n independent values: mean ± t · s / √n, s with n - 1.

    t is Student's quantile with n - 1 degrees of freedom. The interval has no width for a single value, and for values
    that are all equal: they say nothing about their spread.
    """
    n, mean = len(values), math.fsum(values) / len(values)
    variance = _variance(values, mean)
    half = t_quantile(n - 1) * math.sqrt(variance / n) if variance > 0 else 0.0
    return mean - half, mean + half


def difference_interval(differences: Sequence[float], answers: float = 1.0) -> Interval:
    """Compute the 95 % confidence interval of the mean of n differences of shares, one per question, in [-1, 1].

    It is that of Agresti and Min (2005) for pairs: two further questions are added whose differences have the mean 0
    and the mean square 1 / (2 · answers). So it has a width where nothing changed, and its middle is a little nearer to
    0 than the mean is. `answers` is the number of answers behind each share. In place of the normal quantile it has
    Student's with n - 1 degrees of freedom, so that a single question gives [-1, 1].
    """
    n = len(differences)
    mean = math.fsum(differences) / (n + 2)
    square = (math.fsum(value * value for value in differences) + 1 / answers) / (n + 2)
    half = t_quantile(n - 1) * math.sqrt(max(0.0, square - mean * mean) / (n + 2))
    return max(-1.0, mean - half), min(1.0, mean + half)


@lru_cache(maxsize=256)
def t_quantile(degrees: int) -> float:
    """Return Student's t with which |T| <= t has the probability 0.95, by Newton's method; infinite without degrees."""
    if degrees < 1:
        return math.inf
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    t = Z  # below the root of a concave function: each step stays below it
    for _ in range(100):
        density = math.exp(log_scale - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        step = (LEVEL - central_probability(t, degrees)) / (2 * density)
        t += step
        if abs(step) < 1e-12 * t:
            break
    return t


def central_probability(t: float, degrees: int) -> float:
    """Return P(|T| <= t) of Student's distribution: Abramowitz and Stegun 26.7.3 and 26.7.4, a finite sum."""
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for factor in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * factor / (factor + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _variance(values: Sequence[float], mean: float) -> float:
    """Return the variance with the divisor n - 1, exactly 0 where all values are equal."""
    if min(values) == max(values):
        return 0.0
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
