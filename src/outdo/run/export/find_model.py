"""Find the model that a command names: a model folder, a hub name, or the newest checkpoint of a run or fine-tuning."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.config.file import load_saved
from outdo.config.recipe import Recipe
from outdo.run.checkpoints import checkpoint
from outdo.run.folder.unfinished import SETTINGS, model_folder
from outdo.utils.errors import UserError
from outdo.utils.run_names import run_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model, and the run that it comes from, if any. That of an unfinished fine-tuning has a step and no run."""

    model: str  # the argument of `Policy.load`
    name: str  # for messages
    recipe: Recipe | None = None
    run: Path | None = None
    step: int | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The run's `summary.json`; empty if there is none."""
        path = self.run / "summary.json" if self.run else None
        return json.loads(path.read_text()) if path and path.is_file() else {}


def find_model(name: str, *, best: bool = False) -> ModelRef:
    """Return the model that `name` refers to. Of a run it is the latest complete checkpoint, or the `best` one.

    `OUT.unfinished`, which an interrupted `outdo sft` or `outdo reward-model` leaves, is such a folder too. Raises
    `UserError` if it has no checkpoint, or no best one, and for the bare name of a run in `runs/`.
    """
    run = Path(name)
    is_run = (run / "recipe.toml").is_file()
    if not is_run and not (run / SETTINGS).is_file():
        _refuse_bare_name(name)
        return ModelRef(model=name, name=name)
    recipe = load_saved(run) if is_run else None
    newest = checkpoint.latest(run / "checkpoints")
    if newest is None:
        resumed = run if is_run else model_folder(run)
        raise UserError([f"{run}: no checkpoint has been written yet; `outdo resume {resumed}` continues the run"])
    path, step = newest.path, newest.step
    if best:
        summary = ModelRef(model=str(path), name=name, run=run).summary.get("best") or {}
        if "step" not in summary:
            raise UserError([f"{run}: no best checkpoint is known; a run with held-out questions has one when it ends"])
        step = int(summary["step"])
        path = run / "checkpoints" / f"step_{step:06d}"
        if faults := checkpoint.verify(path):
            raise UserError(faults)
    holder = run if is_run else None
    return ModelRef(model=str(path), name=f"{name} after step {step}", recipe=recipe, run=holder, step=step)


def _refuse_bare_name(name: str) -> None:
    """Raise `UserError` for the name of a run in `runs/` without its folder. It is no hub name: those have a slash."""
    if not Path(name).exists() and (run_folder(name) / "recipe.toml").is_file():
        raise UserError([f"{name}: no such folder; did you mean {run_folder(name)}?"])
