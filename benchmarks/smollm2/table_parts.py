"""What the tables of `docs/results.md` are made of."""

import html
import re
from collections.abc import Sequence
from math import isinf
from statistics import fmean

from benchmarks.smollm2.plan import FURTHER_METHODS, FURTHER_TASKS, LAST, METHODS, TASKS, Result

NOT_RUN = "not run yet"
HELD_OUT = "rows/greedy_reward"
ALL_TASKS = (*TASKS, *FURTHER_TASKS)
ALL_METHODS = ("grpo", "lora", *list(METHODS)[1:], *FURTHER_METHODS)


def of(runs: Sequence[Result], task: str, method: str) -> list[Result]:
    """Return the runs of a method on a task, by seed; those of its tuning by learning rate."""
    made = [run for run in runs if run["name"].startswith(f"{task}/{method}/")]
    return sorted(made, key=lambda run: (run["lr"], run["seed"]))


def rows(head: str, lines: Sequence[str]) -> str:
    """Return a table of Markdown."""
    if not lines:
        return NOT_RUN
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *lines])


def windows(run: Result) -> list[float]:
    """Return the mean rewards of each ten steps."""
    reward = run["curve"]["reward"]
    return [fmean(reward[first : first + LAST]) for first in range(0, len(reward), LAST)]


def reached_after(counts: Sequence[float], form: str) -> str:
    """Return the mean of what the seeds took, as text; a seed that never reached it has infinity."""
    return "not all seeds" if isinf(max(counts)) else format(fmean(counts), form)


def cell(text: str) -> str:
    """Return a text as it stands in a cell of a table."""
    return html.escape(text.strip()).replace("|", "\\|").replace("\n", "<br>")


def mean_of(curve: Result, name: str, steps: int | None = None) -> float:
    """Return the mean of a metric over its first steps, or over all; NaN where no step has it."""
    found = [value for value in curve.get(name, [])[:steps] if value is not None]
    return fmean(found) if found else float("nan")
