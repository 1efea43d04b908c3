"""The findings about a run and the parts of its reward, as a page has them in JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from outdo.extras.doctor import diagnose
from outdo.extras.doctor.hacks import HACKS
from outdo.extras.doctor.reward_parts import RewardPart, reward_parts
from outdo.extras.doctor.series import Metrics, RunMetrics

Rows = list[dict[str, Any]]


def shown_diagnosis(metrics: Sequence[Metrics], recipe: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """Return the findings, and the parts of the reward with how each changed; `is_hack` marks a finding of `hacks`."""
    findings = [{**asdict(finding), "is_hack": finding.rule in HACKS} for finding in diagnose(metrics, recipe=recipe)]
    return findings, [_part(part) for part in reward_parts(RunMetrics(metrics, recipe))]


def _part(part: RewardPart) -> dict[str, Any]:
    """Return a part of the reward, and whether its mean rose, fell or neither; `change` is empty in a short run."""
    shown = {"name": part.name, "watched": part.watched, "first": None, "last": None, "change": ""}
    if part.ends is None:
        return shown
    first, last = (float(f"{end.mean:.6g}") for end in part.ends)
    change = "rose" if part.change > 0 else "fell" if part.change < 0 else "steady"
    return shown | {"first": first, "last": last, "change": change}
