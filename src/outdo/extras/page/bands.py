"""Bands: the ranges in which the metrics of a run have to be, from a TOML file, for `outdo compare --band`.

["eval/rows/greedy_reward"]
60 = [0.55, 0.75]                # after step 60
[reward]
51-60 = [0.50, 0.70]             # the mean of steps 51 to 60
"""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

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
        found = [
            line[self.metric]
            for line in metrics
            if self.first <= line["step"] <= self.last and line.get(self.metric) is not None
        ]
        return fmean(found) if len(found) == self.last - self.first + 1 else None

    def holds(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high


def read_bands(path: Path) -> list[Band]:
    """Return the bands of a file. Raises `UserError` with every mistake in it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError([f"{path}: {error}"]) from error
    bands, problems = list[Band](), list[str]()
    for metric, entries in content.items():
        for steps, ends in entries.items() if isinstance(entries, dict) else [("", entries)]:
            band = _band(metric, steps, ends)
            bands += [band] if band else []
            problems += [] if band else [f"{path}: {metric}: {EXPECTED}, not {f'{steps} = ' if steps else ''}{ends}"]
    if not bands and not problems:
        problems.append(f"{path}: {EXPECTED}")
    if problems:
        raise UserError(problems)
    return bands


def _band(metric: str, steps: str, ends: Any) -> Band | None:
    """Return the band of an entry; None if the entry has another form."""
    given = re.fullmatch(r"(\d+)(?:-(\d+))?", steps)
    numbers = isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)
    if given is None or not numbers:
        return None
    first, last = int(given[1]), int(given[2] or given[1])
    low, high = map(float, ends)
    return Band(metric, first, last, low, high) if first <= last and math.isfinite(high - low) and low <= high else None
