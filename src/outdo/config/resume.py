"""Compare two recipes: which settings may change when a run is resumed."""

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAY_CHANGE = (
    "run",
    "steps",
    "device",
    "threads",
    "workers",
    "compile",
    "train.micro_batch_tokens",
    "train.gradient_checkpointing",
    "reward_limits.*",
    "eval.every",
    "eval.rows",
    "eval.samples",
    "eval.greedy",
    "eval.best",
    "checkpoint.*",
    "record.*",
)
"""Settings that may change when a run is resumed: they decide where and how long it runs and what it records. A change
of any other setting would make it a different run. With another `device`, `threads`, `workers`, `compile`,
`train.gradient_checkpointing` or `train.micro_batch_tokens` the run continues, but it is no longer bit for bit equal to
an uninterrupted one. With other `steps`, a falling learning rate falls differently."""


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how two resolved recipes or environments differ: a line for each dotted key, in order."""
    return [f"{key}: {before} in the saved run, {after} now" for key, before, after in _changes(saved, now)]


def refused_differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], may_change: Sequence[str] = MAY_CHANGE
) -> list[str]:
    """Return the lines of `differences` whose key matches none of the patterns `may_change`: a resume refuses them."""
    return [
        f"{key}: {before} in the saved run, {after} now"
        for key, before, after in _changes(saved, now)
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in may_change)
    ]


def _changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    before, after = dict(_flatten(saved)), dict(_flatten(now))
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, "unset"), after.get(key, "unset")
        if old != new:
            yield key, old, new


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and their values as JSON, so that a tuple equals the list that is read back."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None:  # TOML has no null: a setting that is None is not written
            yield f"{prefix}{key}", json.dumps(value, default=str, ensure_ascii=False)
