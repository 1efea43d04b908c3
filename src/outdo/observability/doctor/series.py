"""The data that the rules read (`RunMetrics`, `Span`), and the findings that they return (`Finding`)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, variance
from typing import Any, Literal

Level = Literal["good", "note", "warning"]
Metrics = Mapping[str, Any]

MIN_STEPS = 5
"""The minimum number of steps in a range."""
MAX_GAP = 2
"""At most so many steps in a row inside a range may not meet its condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One or two sentences about the steps `first` to `last`, and the metric that shows it."""

    first: int
    last: int
    level: Level
    text: str
    metric: str


@dataclass(frozen=True, slots=True)
class Span:
    """A range of steps, and the values of a metric in those that have one."""

    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def finding(self, level: Level, text: str) -> Finding:
        """Return a finding about these steps; its text names them first."""
        first, last = self.steps[0], self.steps[-1]
        where = f"step {first}" if first == last else f"steps {first} to {last}"
        return Finding(first=first, last=last, level=level, text=f"{where}: {text}", metric=self.metric)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run, one line per step, and its recipe as far as it is known."""

    lines: Sequence[Metrics]
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def span(self, metric: str, first: float = -math.inf, last: float = math.inf) -> Span:
        """Return the steps from `first` to `last` whose value of the metric is a number."""
        known = [(line["step"], line[metric]) for line in self.lines if is_number(line.get(metric))]
        known = [(step, float(value)) for step, value in known if first <= step <= last]
        return Span(metric, tuple(step for step, _ in known), tuple(value for _, value in known))

    def lasting_spans(
        self, metric: str, *, above: float = -math.inf, below: float = math.inf, least: int = MIN_STEPS
    ) -> Iterator[Span]:
        """Yield the ranges in which at least `least` values of the metric are between `above` and `below`.

        The mean of the range and its first and last values are inside the limits too, and at most `MAX_GAP` values in a
        row are outside.
        """
        whole = self.span(metric)
        inside = [place for place, value in enumerate(whole.values) if above < value < below]
        starts = [n for n in range(len(inside)) if n == 0 or inside[n] - inside[n - 1] > MAX_GAP + 1]
        for start, end in pairwise([*starts, len(inside)]):
            these = slice(inside[start], inside[end - 1] + 1)
            found = Span(metric, whole.steps[these], whole.values[these])
            if end - start >= least and above < found.mean < below:
                yield found

    def mean(self, metric: str, over: Span, *, unknown: float) -> float:
        """Return the mean of another metric over the steps of a range; `unknown` if it has no values there."""
        found = self.span(metric, over.steps[0], over.steps[-1])
        return found.mean if found.values else unknown

    def first_and_last(self, metric: str) -> tuple[Span, Span] | None:
        """Return the first and last fifths of the run, at most ten steps each; None if a fifth has less than three."""
        whole = self.span(metric)
        size = min(10, len(whole.steps) // 5)
        if size < 3:
            return None
        return (
            Span(metric, whole.steps[:size], whole.values[:size]),
            Span(metric, whole.steps[-size:], whole.values[-size:]),
        )

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the recipe's value under a dotted key."""
        value: Any = self.recipe
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def significant_change(first: Span, last: Span) -> float:
    """Return how much a metric changed; 0 if the change is below three standard errors or a tenth of its size."""
    change = last.mean - first.mean
    noise = math.sqrt(sum(variance(each.values) / len(each.values) for each in (first, last)))
    size = max(abs(first.mean), abs(last.mean))
    return change if abs(change) > max(3 * noise, 0.1 * size) else 0.0
