"""Bands: the ranges in which the metrics of a run have to be, from a TOML or YAML file, for `outdo compare --band`.

["eval/rows/greedy_reward"]
0 = [0.10, 0.25]                 # before the first step
60 = [0.55, 0.75]                # after step 60
[reward]
51-60 = [0.50, 0.70]             # the mean of steps 51 to 60
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from outdo.config.file import read_tables
from outdo.run.folder.run_files import number_or_none
from outdo.utils.errors import UserError

EXPECTED = "expected the table of a metric, with entries like 60 = [0.5, 0.7] or 51-60 = [0.5, 0.7]"


class Band(NamedTuple):
    """The range of a metric after a step, or of its mean over some steps; both ends belong to it."""

    metric: str
    first: int
    last: int
    low: float
    high: float

    @property
    def steps(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def value(self, metrics: Sequence[Mapping[str, Any]]) -> float | None:
        """Return the mean of the metric over the steps, from the lines of `metrics.jsonl`; None if a step lacks it."""
        measured = ((number_or_none(line.get("step")), number_or_none(line.get(self.metric))) for line in metrics)
        by_step = {step: value for step, value in measured if value is not None}
        values = [by_step.get(step) for step in range(self.first, self.last + 1)]
        numbers = [value for value in values if value is not None]
        return fmean(numbers) if len(numbers) == len(values) else None

    def holds(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high


def read_bands(path: Path) -> list[Band]:
    """Return the bands of a file. Raises `UserError` with every mistake in it."""
    bands, problems = list[Band](), list[str]()
    for metric, entries in read_tables(path).items():
        for steps, ends in entries.items() if isinstance(entries, dict) else [("", entries)]:
            band = _band(str(metric), str(steps), ends)
            bands += [band] if band else []
            problems += [] if band else [f"{path}: {metric}: {EXPECTED}, not {f'{steps} = ' if steps else ''}{ends}"]
    if not bands and not problems:
        problems.append(f"{path}: {EXPECTED}")
    if problems:
        raise UserError(problems)
    return bands


def _band(metric: str, steps: str, ends: Any) -> Band | None:
    """Return the band of an entry; None if the entry has another form."""
    span = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", steps)
    numbers = ends if isinstance(ends, list) and all(type(end) in (int, float) for end in ends) else []
    bounds = [number_or_none(number) for number in numbers]
    if span is None or len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
        return None
    first, last = int(span[1]), int(span[2] or span[1])
    return Band(metric, first, last, bounds[0], bounds[1]) if first <= last and bounds[0] <= bounds[1] else None
