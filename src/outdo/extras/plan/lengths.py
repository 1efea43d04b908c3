"""Lengths of answers: log-normal, cut at the longest answer that a run samples."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.float64]

SPREAD = 0.8
"""Standard deviation of the logarithm of a length, where no other is given. Answers of reasoning models that were
sampled for one data set have 0.6 to 1.1."""


@dataclass(frozen=True)
class Lengths:
    """Answer lengths: min(X, limit), where log X is normal with deviation `spread`, and their mean is `mean`."""

    mean: float
    limit: int
    spread: float = SPREAD

    def __post_init__(self) -> None:
        assert 0 < self.mean <= self.limit
        assert self.spread > 0

    @cached_property
    def location(self) -> float:
        """The mean of log X, found by bisection: the mean of the cut lengths rises with it."""
        low, high = math.log(self.mean) - 0.5 * self.spread**2 - 1, math.log(self.limit) + 9 * self.spread
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cut_mean(middle) < self.mean else (low, middle)
        return (low + high) / 2

    def _cut_mean(self, location: float) -> float:
        """Return E[min(X, limit)] = exp(μ + s²/2) Φ((log L - μ)/s - s) + L (1 - Φ((log L - μ)/s))."""
        end = (math.log(self.limit) - location) / self.spread
        return math.exp(location + self.spread**2 / 2) * _normal(end - self.spread) + self.limit * _normal(-end)

    @property
    def cut(self) -> float:
        """The share of answers that reach the limit."""
        return _normal((self.location - math.log(self.limit)) / self.spread)

    def sample(self, count: int, seed: int = 0) -> Tokens:
        """Return so many lengths, in tokens. Their mean is that of a stratified sample, which varies little.  # [n]"""
        random = np.random.default_rng(seed)
        uniform = (np.arange(count) + random.random(count)) / count
        normal = _normal_quantiles(uniform)
        drawn = np.minimum(np.exp(self.location + self.spread * normal), self.limit)
        random.shuffle(drawn)
        return np.maximum(np.round(drawn), 1.0)


def _normal(x: float) -> float:
    """Return Φ(x), the share of a standard normal below x."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _normal_quantiles(shares: Tokens) -> Tokens:
    """Return Φ⁻¹ by interpolation in a table of Φ, which is exact to 10⁻⁴ within six deviations."""
    grid = np.linspace(-6, 6, 2401)
    table = np.array([_normal(float(x)) for x in grid])
    return np.interp(shares, table, grid)
