"""The state of a run: running, finished, or where it was stopped or killed or failed, read from its folder alone."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outdo.run.folder import run_files
from outdo.run.folder.run_folder import ReadLimits, is_alive, read_metrics
from outdo.utils.text import counted

TAIL = ReadLimits(line=1_000_000, back=2_000_000)
"""The last lines of `metrics.jsonl` are enough to find the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run. `str()` is a phrase such as "killed at step 16 of 40"."""

    kind: Literal["running", "finished", "stopped", "killed", "failed", "recorded"]
    step: int  # the last step that has its line of metrics; 0: none
    steps: int | None  # of the recipe; None: unknown, as in a run that another training loop recorded

    error: str | None = None  # what a run that failed ended by

    def __str__(self) -> str:
        if self.kind == "recorded":
            return f"recorded up to step {self.step}"
        if self.kind == "finished":
            return f"finished after {counted(self.step, 'step')}"
        of = "" if self.steps is None else f" of {self.steps}"
        return f"{self.kind} at step {self.step}{of}"


def run_state(folder: Path) -> RunState:
    """Return the state of the run in `folder`.

    A process that holds the lock is running. A lock file that still names a process that holds it no longer belongs to
    a run that was killed, because a run that ends empties the file. A run that an error has ended has failed, until it
    is resumed. One that ended before its last step was stopped, unless its summary tells that it ended early
    (`eval.best.patience`). Without a recipe the end of the run is not known: its state is "recorded".
    """
    records = read_metrics(folder / "metrics.jsonl", limits=TAIL, report=lambda _: None)
    step = max((record["step"] for record in records if isinstance(record.get("step"), int)), default=0)
    steps, error = _steps(folder), None
    if is_alive(folder):
        kind = "running"
    elif _names_a_process(folder):
        kind = "killed"
    elif error := _failure(folder):
        kind = "failed"
    elif steps is None:
        kind = "recorded"
    else:
        kind = "finished" if step >= steps or _ended_early(folder, step) else "stopped"
    return RunState(kind=kind, step=step, steps=steps, error=error)


def _steps(folder: Path) -> int | None:
    """Return the number of steps in the recipe; None if it cannot be read."""
    try:
        steps = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")).get("steps")
    except (OSError, ValueError):
        return None
    return steps if isinstance(steps, int) else None


def _ended_early(folder: Path, step: int) -> bool:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("ended_early") is True and summary.get("steps") == step


def _failure(folder: Path) -> str | None:
    """Return the error that ended the last start of the run; None if none is known."""
    message = run_files.table(folder, "failure.json", lambda _: None).get("message")
    return message if isinstance(message, str) else None


def _names_a_process(folder: Path) -> bool:
    try:
        return (folder / "lock").stat().st_size > 0
    except OSError:
        return False
