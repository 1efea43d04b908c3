"""The data that the rules read (`RunMetrics`, `Span`), and the findings that they return (`Finding`)."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, variance
from typing import Any, Literal

Level = Literal["good", "note", "warning"]
Metrics = Mapping[str, Any]

MIN_STEPS = 5
"""The minimum number of steps in a range."""
FEWEST_STEPS = 3
"""The same in a run with fewer steps than that."""
MAX_GAP = 2
"""At most so many steps in a row inside a range may not meet its condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule reports about the steps `first` to `last`, what to do about it, and the metric that shows it."""

    first: int
    last: int
    level: Level
    text: str  # what was seen
    advice: str = ""  # what to do; empty for good news and for findings that another one explains
    metric: str
    spells: int = 1  # in how many ranges of steps between `first` and `last` it was seen
    rule: str = ""  # the name of the rule
    cause: str = ""  # the rule of the finding that explains this one; empty for a cause

    @property
    def steps(self) -> str:
        """The steps in words: `steps 3 to 90, 4 times`."""
        if self.first == self.last:
            return f"step {self.first:,}"
        often = "" if self.spells == 1 else f", {self.spells:,} times"
        return f"steps {self.first:,} to {self.last:,}{often}"


@dataclass(frozen=True, slots=True)
class Span:
    """Steps, and the values of a metric in them: one range of steps, or several (`spells`)."""

    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    spells: int = 1

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def since(self, above: float) -> "Span | None":
        """Return the steps from the first value above a number on; None if there is none."""
        start = next((index for index, value in enumerate(self.values) if value > above), None)
        return None if start is None else Span(self.metric, self.steps[start:], self.values[start:])

    def finding(self, level: Level, text: str, advice: str = "") -> Finding:
        """Return a finding about these steps."""
        first, last = self.steps[0], self.steps[-1]
        return Finding(
            first=first, last=last, level=level, text=text, advice=advice, metric=self.metric, spells=self.spells
        )


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run, one line per step, and its recipe as far as it is known."""

    lines: Sequence[Metrics]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    _columns: dict[str, Span] = field(default_factory=dict, init=False, repr=False, compare=False)

    def span(self, metric: str, first: float = -math.inf, last: float = math.inf) -> Span:
        """Return the steps from `first` to `last` whose value of the metric is a number."""
        if metric not in self._columns:  # many rules read the same metric, and a run may have 10,000 steps
            known = [(line["step"], float(line[metric])) for line in self.lines if is_number(line.get(metric))]
            self._columns[metric] = Span(metric, tuple(step for step, _ in known), tuple(value for _, value in known))
        whole = self._columns[metric]
        these = slice(bisect_left(whole.steps, first), bisect_right(whole.steps, last))
        return Span(metric, whole.steps[these], whole.values[these])

    def lasting(
        self,
        metric: str,
        *,
        above: float = -math.inf,
        below: float = math.inf,
        least: int | None = None,
        without: str = "",
    ) -> Span | None:
        """Return the ranges of steps in which the metric stays between `above` and `below`, as one span; None if none.

        A range holds at least `least` such values; by default `MIN_STEPS`, or all of a run that is shorter, but not
        fewer than `FEWEST_STEPS`. Its mean and its first and last values are inside the limits too, and at most
        `MAX_GAP` values in a row are outside. The metric `without` is subtracted, where it has a value.
        """
        whole = self._difference(metric, without)
        least = least or max(FEWEST_STEPS, min(MIN_STEPS, len(whole.steps)))
        inside = [index for index, value in enumerate(whole.values) if above < value < below]
        starts = [n for n in range(len(inside)) if n == 0 or inside[n] - inside[n - 1] > MAX_GAP + 1]
        ranges = [
            slice(inside[start], inside[end - 1] + 1)
            for start, end in pairwise([*starts, len(inside)])
            if end - start >= least
        ]
        ranges = [these for these in ranges if above < fmean(whole.values[these]) < below]
        if not ranges:
            return None
        steps = tuple(step for these in ranges for step in whole.steps[these])
        values = tuple(value for these in ranges for value in whole.values[these])
        return Span(metric, steps, values, spells=len(ranges))

    def _difference(self, metric: str, without: str) -> Span:
        whole, part = self.span(metric), self.span(without)
        if not part.steps:
            return whole
        parts = dict(zip(part.steps, part.values, strict=True))
        pairs = zip(whole.steps, whole.values, strict=True)
        return Span(metric, whole.steps, tuple(value - parts.get(step, 0.0) for step, value in pairs))

    def fault(self, span: Span, text: str, advice: str, *, past: str) -> Finding:
        """Return a warning about a condition that lasted; if it is over, a note with the text in the past tense.

        It is over if the metric has had `MIN_STEPS` values since: a policy learns to end its answers, or to call its
        tools. This is for what does no lasting harm to the policy: other rules warn about what is over, too.
        """
        if len(self.span(span.metric, first=span.steps[-1] + 1).steps) >= MIN_STEPS:
            return span.finding("note", past, "It is over: nothing has to be changed for it.")
        return span.finding("warning", text, advice)

    def mean(self, metric: str, over: Span, *, unknown: float) -> float:
        """Return the mean of another metric over the steps of a span; `unknown` if it has no values there."""
        wanted, whole = set(over.steps), self.span(metric)
        values = [value for step, value in zip(whole.steps, whole.values, strict=True) if step in wanted]
        return fmean(values) if values else unknown

    def first_and_last(self, metric: str) -> tuple[Span, Span] | None:
        """Return the first and last fifths of the run, three to ten steps each; None of a run of less than nine steps.

        Three steps at each end, with as many between them, are the fewest whose spread says what may be chance.
        """
        whole = self.span(metric)
        size = min(10, max(FEWEST_STEPS, len(whole.steps) // 5))
        if len(whole.steps) < 3 * size:
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
    size = max(abs(first.mean), abs(last.mean))
    return change if abs(change) > max(3 * standard_error(first, last), 0.1 * size) else 0.0


def standard_error(first: Span, last: Span) -> float:
    """Return that of the difference of two means, from the values of the single steps."""
    return math.sqrt(sum(variance(span.values) / len(span.values) for span in (first, last)))
