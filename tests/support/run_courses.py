"""Run folders of twenty steps without tokens, one for each way in which a run can end: gained, lost, hacked ..."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from run_folders import start_run

STEPS, EVERY = 20, 10
PART = "reads/about a _ Use"
SEVERAL, FEW = 0.05, 0.17
"""Half of the width of a 95 % interval: of as many questions as decide, and of too few."""


@dataclass(frozen=True)
class Course:
    """What a run has at its start, after step 10 and after its last step."""

    right: tuple[float, float, float]
    reward: tuple[float, float, float]  # of held-out answers; that in training is the same
    right_half_width: float = SEVERAL
    reward_half_width: float = SEVERAL
    reads: tuple[float, float, float] = (13.6, 13.4, 13.5)  # nats
    more: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)  # further metrics of each step


STEADY, GAIN = (0.42, 0.43, 0.42), (0.42, 0.6, 0.85)
COURSES = {
    "chance": Course((0.125, 0.2, 0.281), STEADY, FEW, FEW),
    "reward alone": Course((0.125, 0.2, 0.281), GAIN, FEW),  # as in a first run with few questions
    "gained": Course((0.125, 0.5, 0.75), GAIN),
    "lost": Course((0.6, 0.5, 0.2), (0.8, 0.6, 0.4)),
    "reward lost": Course((0.281, 0.2, 0.2), (0.8, 0.6, 0.4), FEW),
    "lost again": Course((0.125, 0.9, 0.5), (0.42, 0.95, 0.6)),
    "hacked": Course((0.219, 0.9, 1.0), GAIN, reads=(20.0, 4.0, 0.3)),
    "half hacked": Course((0.21, 0.9, 0.96), GAIN, reads=(13.6, 0.3, 7.7)),
    "hacked by chance": Course((0.125, 0.2, 0.281), STEADY, FEW, FEW, reads=(20.0, 4.0, 0.3)),
    "hacked and lost": Course(
        (0.6, 0.5, 0.2), (0.8, 0.6, 0.4), more={"completions/repeated_ratio": (0.05, 0.5, 0.9)}
    ),
}  # fmt: skip


def write_course(folder: Path, course: Course, *, rule: bool, held_out: bool) -> Path:
    """Write a run of this course. Without a `rule` nothing is called right; `held_out`: it has evaluations."""
    start_run(folder, steps=STEPS)
    lines = []
    for step in range(1, STEPS + 1):
        line = {"step": step, "reward": _at(course.reward, step) + 0.01 * (-1) ** step, "reward_group_std": 0.3}
        line |= {name: _at(values, step) for name, values in course.more.items()}
        if rule:
            line["right"] = _at(course.right, step) + 0.01 * (-1) ** step
        if step == 1 or step % EVERY == 0:
            line[PART] = _at(course.reads, step)
        if held_out and step % EVERY == 0:
            line |= {f"eval/{name}": value for name, value in _evaluation(course, step, rule=rule).items()}
        lines.append(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {"before": _evaluation(course, 0, rule=rule) if held_out else {}, "steps": STEPS}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _at(values: tuple[float, float, float], step: int) -> float:
    """Return the value at a step, on straight lines between the three."""
    first, second = divmod(max(step, 1) - 1, EVERY) if step < STEPS else (1, EVERY)
    return values[first] + (values[first + 1] - values[first]) * second / EVERY


def _evaluation(course: Course, step: int, *, rule: bool) -> dict[str, Any]:
    place = step // EVERY
    numbers = {"greedy_reward": (course.reward[place], course.reward_half_width)}
    if rule:
        numbers["greedy"] = (course.right[place], course.right_half_width)
    found: dict[str, float] = {}
    for name, (value, half) in numbers.items():
        low, high = (max(0.0, value - half), min(1.0, value + half))
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return found | {"reads/about a _ Use": course.reads[place]}
