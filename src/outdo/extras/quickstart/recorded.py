"""How the recorded runs of the quickstart's real model ended: the end of a run shows itself beside them.

`benchmarks/first_run.py` made the runs; docs/first-runs.jsonl has a line for each, and a test compares the numbers.
"""

from dataclasses import dataclass


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
