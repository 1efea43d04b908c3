"""What a tracker is, and what it can read about its run.

A tracker is a context manager. Entering it opens a run at a service such as Weights & Biases, its value is the function
`Log` that receives each step, and leaving it ends that run there. `outdo.extras.trackers.send` runs it, in a process
that has neither torch nor the models.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outdo.run.checkpoints.run_state import RunState, run_state
from outdo.utils.atomic import write_json_atomically
from outdo.utils.secrets import redact
from outdo.utils.text import dotted

FOLDER = "trackers"
"""In the run folder: the id of each tracker's run, its lock, what its client has printed, and the files of wandb."""

COMMON = {"completions": 16, "deadline": 60.0}
"""The options of every tracker: rows of the table of completions (0: no table), and seconds to end after the run.

Where the run has ended before, the seconds count from the last delivery.
"""

Completions = Sequence[Mapping[str, Any]]
"""Rows of the completions table, see `outdo.extras.trackers.steps`."""


class Log(Protocol):
    """The one method of a tracker."""

    def __call__(self, step: int, metrics: Mapping[str, float], completions: Completions) -> None:
        """Log the metrics of a step under outdo's names, and some of its completions. Step 0 is before training."""
        ...


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker can read about its run, all of it from the run folder."""

    folder: Path
    tracker: str  # its name in the recipe
    after: int  # the last step before those that are logged; 0 at the start of a run
    anew: bool  # whether the tracker begins another run of it, although it has one
    say: Callable[[str], None]  # shows a line to the user

    @property
    def name(self) -> str:
        """The name of the run: that of its folder."""
        return self.folder.resolve().name

    @property
    def id(self) -> str | None:
        """The id under which the tracker knows this run, so that a resumed run continues there; None if it is new."""
        path = id_file(self.folder, self.tracker)
        return json.loads(path.read_bytes())["id"] if path.exists() and not self.anew else None

    def keep_id(self, run_id: str) -> str:
        """Keep the id of a run that the tracker has begun or continued, for later starts, and return it."""
        write_json_atomically(id_file(self.folder, self.tracker), {"id": run_id})
        return run_id

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved recipe and the environment of the run, by dotted keys, without trackers and secrets.

        `environment.json` has the keys `environment.*`, and the setting `environment` of the recipe
        `recipe.environment`: both are called `environment`.
        """
        recipe = tomllib.loads((self.folder / "recipe.toml").read_text(encoding="utf-8"))
        environment = json.loads((self.folder / "environment.json").read_bytes())
        recipe.pop("track", None)
        played = {"recipe": {"environment": recipe.pop("environment")}} if "environment" in recipe else {}
        settings = dotted({**recipe, **played, "environment": environment})
        return {key: redact(value) if isinstance(value, str) else value for key, value in settings}

    @property
    def state(self) -> RunState:
        """The state of the run, which is final when the tracker is left."""
        return run_state(self.folder)

    @property
    def report(self) -> Path | None:
        """The page of the run, which exists when the tracker of a finished run is left."""
        path = self.folder / "report.html"
        return path if path.exists() else None


def id_file(folder: Path, tracker: str) -> Path:
    """Return the file with the id of a tracker's run."""
    return folder / FOLDER / f"{file_stem(tracker)}.json"


def lock_file(folder: Path, tracker: str) -> Path:
    """Return the file that the process of a tracker locks until it ends."""
    return folder / FOLDER / f"{file_stem(tracker)}.lock"


def file_stem(tracker: str) -> str:
    """Return the name of a tracker as a part of a file name: that of a function may be a path."""
    return re.sub(r"[^\w-]+", "_", tracker)


def as_table(completions: Completions) -> dict[str, Any]:
    """Return rows as the tables of clients have them: the names of the columns, and the values of each row."""
    return {"columns": list(completions[0]), "data": [list(row.values()) for row in completions]}


def dashboard_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under the names that TRL's trainers log: `train/` before all but those of evaluations."""
    return {name if name.startswith("eval/") else f"train/{name}": value for name, value in metrics.items()}
