"""What may change in a recipe when a run is resumed."""

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
    "eval.*",
    "checkpoint.*",
    "record.*",
)
"""Keys of the recipe that may differ when a run is resumed: they say where, how long and how closely watched it runs.
Any other key would make it another run. With a new `device`, `threads`, `workers`, `compile`,
`train.gradient_checkpointing` or `train.micro_batch_tokens` the run continues, but is no longer equal bit for bit to
the uninterrupted one; with new `steps`, a falling learning rate falls differently."""


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two resolved recipes or environments differ, a line for each dotted key, in order."""
    return [f"{key}: {before} in the saved run, {after} now" for key, before, after in _changes(saved, now)]


def refused_differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], may_change: Sequence[str] = MAY_CHANGE
) -> list[str]:
    """Those lines of `differences` whose key matches none of the patterns `may_change`: a resume must refuse them."""
    return [
        f"{key}: {before} in the saved run, {after} now"
        for key, before, after in _changes(saved, now)
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in may_change)
    ]


def _changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    before, after = dict(_flat(saved)), dict(_flat(now))
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, "unset"), after.get(key, "unset")
        if old != new:
            yield key, old, new


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and their values as JSON, so that a tuple equals the list it was read back as."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:  # TOML has no word for it: a setting that is None is not written
            yield f"{prefix}{key}", json.dumps(value, default=str, ensure_ascii=False)
