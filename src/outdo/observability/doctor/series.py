"""What the rules look at, and what they say."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, variance
from typing import Any, Literal

Level = Literal["good", "note", "warning"]
Metrics = Mapping[str, Any]

LASTING = 5
"""So many steps make a range."""
GAP = 2
"""So many steps in between may be otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence or two about the steps `first` to `last`, and the metric in which it is seen."""

    first: int
    last: int
    level: Level
    text: str
    metric: str


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring steps in which a metric was known."""

    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the metric."""
        return fmean(self.values)

    def finding(self, level: Level, text: str) -> Finding:
        """`text` about these steps."""
        first, last = self.steps[0], self.steps[-1]
        where = f"step {first}" if first == last else f"steps {first} to {last}"
        return Finding(first=first, last=last, level=level, text=f"{where}: {text}", metric=self.metric)


@dataclass(frozen=True, slots=True)
class Run:
    """What the rules look at: a run's metrics, a line for each step, and its recipe as far as it is known."""

    lines: Sequence[Metrics]
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def of(self, metric: str, first: float = -math.inf, last: float = math.inf) -> Span:
        """The steps from `first` to `last` in which the metric was written as a number."""
        known = [(line["step"], line[metric]) for line in self.lines if is_number(line.get(metric))]
        known = [(step, float(value)) for step, value in known if first <= step <= last]
        return Span(metric, tuple(step for step, _ in known), tuple(value for _, value in known))

    def lasting(
        self, metric: str, *, above: float = -math.inf, below: float = math.inf, least: int = LASTING
    ) -> Iterator[Span]:
        """Spans of at least so many steps in which the metric lies above or below a line, by its mean and at their
        ends, and never leaves it for more than `GAP` steps."""
        whole = self.of(metric)
        inside = [place for place, value in enumerate(whole.values) if above < value < below]
        starts = [n for n in range(len(inside)) if n == 0 or inside[n] - inside[n - 1] > GAP + 1]
        for start, end in pairwise([*starts, len(inside)]):
            these = slice(inside[start], inside[end - 1] + 1)
            found = Span(metric, whole.steps[these], whole.values[these])
            if end - start >= least and above < found.mean < below:
                yield found

    def mean(self, metric: str, over: Span, *, unknown: float) -> float:
        """That of another metric over a range's steps; `unknown` where there is none."""
        found = self.of(metric, over.steps[0], over.steps[-1])
        return found.mean if found.values else unknown

    def ends(self, metric: str) -> tuple[Span, Span] | None:
        """The first and last fifths of the run, ten steps at most and three at least; None of a shorter run."""
        whole = self.of(metric)
        size = min(10, len(whole.steps) // 5)
        if size < 3:
            return None
        return (
            Span(metric, whole.steps[:size], whole.values[:size]),
            Span(metric, whole.steps[-size:], whole.values[-size:]),
        )

    def setting(self, key: str, default: Any = None) -> Any:
        """What the recipe says under a dotted key."""
        value: Any = self.recipe
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def change(first: Span, last: Span) -> float:
    """How much a metric changed; 0 where that is less than three standard errors, or a tenth of its size."""
    change = last.mean - first.mean
    noise = math.sqrt(sum(variance(each.values) / len(each.values) for each in (first, last)))
    size = max(abs(first.mean), abs(last.mean))
    return change if abs(change) > max(3 * noise, 0.1 * size) else 0.0
