"""The steps of a run as its trackers get them: read from the run folder, also while the run writes it."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outdo.extras.record import parquet
from outdo.run.folder.run_files import is_step, table, with_initial_evaluation

Step = tuple[int, dict[str, float], list[dict[str, Any]]]
"""Its number, its metrics that are finite numbers, and rows of its table of completions."""


def steps_of(
    run: Path, completions: int, *, after: int, evaluated: bool, active: Callable[[], bool] = lambda: False
) -> Iterator[Step]:
    """Yield the steps after `after`, until the run is no longer `active`.

    Step 0 is the evaluation before the first step, and comes together with it. If `after` itself was not `evaluated`,
    the metrics of its evaluation come when the resumed run has repeated it. If steps have `completions`, the last one
    waits for its record.
    """
    last, offset, goes_on = after or -1, 0, True
    while goes_on:
        goes_on = active()
        for start, step, metrics in _complete(run, offset, completions, first=last < 0, goes_on=goes_on):
            offset = start  # the last line is read again: its evaluation may come later
            if step > last:
                last = step
                yield step, metrics, recorded_completions(run, step, completions)
            elif step == after and not evaluated and (late := _evaluation(metrics)):
                evaluated = True
                yield step, late, []


Line = tuple[int, int, dict[str, float]]
"""Where it begins in the file, its step, and its metrics."""


def _complete(run: Path, offset: int, completions: int, *, first: bool, goes_on: bool) -> list[Line]:
    """Return the lines from `place` on without the last one, if its step may still get a record.

    Before the `first` of all is the evaluation before the first step.
    """
    lines = list(_lines(run / "metrics.jsonl", offset))
    if goes_on and completions and lines and not parquet.path_of(run, lines[-1][1]).exists():
        lines.pop()
    if first and (lines or not goes_on):
        before = with_initial_evaluation([], table(run, "summary.json", lambda _: None))
        lines = [*((0, 0, _numbers(line)) for line in before), *lines]
    return lines


def _lines(path: Path, offset: int) -> Iterator[Line]:
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        while (line := file.readline()).endswith(b"\n"):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and is_step(record.get("step")):
                yield offset, record["step"], _numbers(record)
            offset += len(line)


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if name != "step" and value is not None}


def _evaluation(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("eval/")}


def recorded_completions(run: Path, step: int, most: int) -> list[dict[str, Any]]:
    """Return the first `most` completions of a step from its record, none if it has no record.

    The prompt is the text that the model has read, with its chat template. A completion without a score has no reward.
    """
    if not most or not parquet.path_of(run, step).exists():
        return []
    rows = parquet.read(run, step).slice(0, most).to_pylist()
    parts = [row.get("reward_parts") or {} for row in rows]
    names = sorted({name for part in parts for name in part})
    return [
        {"question": row["prompt_id"], "prompt": row["prompt"], "completion": row["text"]}
        | {name: row[name] for name in ("reward", "right", "status")}
        | ({f"rewards/{name}": rewards.get(name) for name in names} if len(names) > 1 else {})
        for row, rewards in zip(rows, parts, strict=True)
    ]
