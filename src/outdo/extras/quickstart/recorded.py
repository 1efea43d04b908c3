"""How the recorded runs of the quickstart's real model ended: the end of a run shows itself beside them.

`benchmarks/first_run.py` makes the runs, docs/first-runs.jsonl has a line for each, and `recorded.toml` beside this
file, which the benchmark writes too, has what is shown of them.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("recorded.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A share in several runs."""

    lowest: float
    median: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Runs with the settings of a task that differ in the seed and the processor.

    The shares are those of held-out questions whose greedy answer is right.
    """

    runs: int
    processors: int  # kinds of them
    before: Spread
    after: Spread


def recorded_runs(task: str) -> Recorded | None:
    """Return the recorded runs of a task; None if there are none."""
    known = tomllib.loads(FILE.read_text(encoding="utf-8")).get(task)
    if known is None:
        return None
    return Recorded(**known | {when: Spread(**known[when]) for when in ("before", "after")})
