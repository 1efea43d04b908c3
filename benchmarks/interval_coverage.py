"""Simulate how often the 95 % confidence intervals of `outdo eval` hold the true value: see docs/evaluation.md.

    python benchmarks/interval_coverage.py                  # 4,000 evaluations for each cell, a minute
    python benchmarks/interval_coverage.py --draws 20000

Each question has a chance that an answer to it is right, drawn from a population; the answers to it are independent
given that chance. The true value is the mean of the population. A cell has the lowest coverage over the populations.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import cache

import numpy
from numpy.typing import NDArray

from outdo.run.evaluation.intervals import Interval, difference_interval, interval, mean_interval

QUESTIONS = (4, 8, 16, 32, 64, 128)
ANSWERS = (1, 2, 4, 8, 16)

Floats = NDArray[numpy.float64]

POPULATIONS: Mapping[str, Callable[[numpy.random.Generator, tuple[int, int]], Floats]] = {
    "uniform": lambda rng, shape: rng.uniform(size=shape),
    "most are easy": lambda rng, shape: rng.beta(8, 2, size=shape),
    "easy or hard": lambda rng, shape: rng.beta(0.5, 0.5, size=shape),
    "equally hard": lambda rng, shape: numpy.full(shape, 0.8),
    "few are easy": lambda rng, shape: rng.beta(0.2, 0.8, size=shape),
}
"""The chances of the questions by the name of their population."""


def shares(rng: numpy.random.Generator, chances: Floats, answers: int) -> Floats:
    """Return the shares of right answers: [draws, questions]."""
    return rng.binomial(answers, chances) / answers


def covered(intervals: list[Interval], truth: float) -> float:
    """Return the share of the intervals that hold the true value."""
    return sum(low - 1e-9 <= truth <= high + 1e-9 for low, high in intervals) / len(intervals)


def better(chances: Floats) -> Floats:
    """Return the chances of a second model, whose odds are those of the first times e."""
    odds = chances / numpy.maximum(1 - chances, 1e-12) * numpy.e
    return odds / (1 + odds)


@cache
def true_values(population: str) -> tuple[float, float]:
    """Return the mean chance of a first and of a second model in a population."""
    chances = POPULATIONS[population](numpy.random.default_rng(1), (1000, 1000))
    return float(chances.mean()), float(better(chances).mean())


def coverage(kind: str, population: str, questions: int, answers: int, *, draws: int, seed: int = 0) -> float:
    """Return the coverage of an interval: that of a share (`right`), a mean reward, or a paired `difference`."""
    rng = numpy.random.default_rng([seed, questions, answers])
    truth, second = true_values(population)
    chances = POPULATIONS[population](rng, (draws, questions))
    first = shares(rng, chances, answers)
    if kind == "right":
        return covered([interval(row, questions * answers) for row in first.tolist()], truth)
    if kind == "reward":
        return covered([mean_interval(row) for row in first.tolist()], truth)
    differences = shares(rng, better(chances), answers) - first
    return covered([difference_interval(row, answers) for row in differences.tolist()], second - truth)


def table(kind: str, draws: int) -> str:
    """Return a table in Markdown: the lowest coverage over the populations."""
    answers = (16,) if kind == "reward" else ANSWERS  # rewards of 0 and 1 have the interval of shares
    lines = [f"| questions | {' | '.join(f'{k} answers' if k > 1 else '1 answer' for k in answers)} |"]
    lines.append("|---" * (len(answers) + 1) + "|")
    for n in QUESTIONS:
        cells = (min(coverage(kind, name, n, k, draws=draws) for name in POPULATIONS) for k in answers)
        lines.append(f"| {n} | {' | '.join(f'{cell:.1%}' for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000, help="evaluations that are simulated for each cell")
    draws = parser.parse_args().draws
    for kind, title in (("right", "pass@1"), ("difference", "--against, right answers"), ("reward", "mean reward")):
        print(f"\n{title}\n\n{table(kind, draws)}", flush=True)


if __name__ == "__main__":
    main()
