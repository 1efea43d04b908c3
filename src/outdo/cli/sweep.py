"""`outdo sweep`: a run for each combination of settings, one after the other, and a table of what they reached."""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.markup import escape
from rich.table import Table

from outdo.cli.arguments import recipe_and_overrides
from outdo.cli.grid import combinations, split_settings
from outdo.cli.output import print_warning
from outdo.cli.recipe import probe_machine, recipe_of
from outdo.cli.runs import RUN_FILES
from outdo.config.file import dump, load, overrides_between
from outdo.config.paths import with_absolute_paths
from outdo.config.recipe import Recipe, run_folder
from outdo.config.resume import refused_differences
from outdo.distributed.launch import Ended, run_command, started_replicas
from outdo.observability.page import read
from outdo.storage.atomic import write_json_atomically
from outdo.storage.run_folder import read_metrics
from outdo.storage.run_state import TAIL, run_state
from outdo.trainer.display import Display
from outdo.trainer.preflight import check
from outdo.utils.errors import UserError
from outdo.utils.text import for_terminal

RESULTS = "results.json"
"""The file of the sweep's folder with the table."""

LONGEST_NAME = 100
"""Characters of the folder of a run. A longer name is cut, and ends in a part of its SHA-256."""

Start = Callable[[Sequence[str]], Ended]
"""Runs an outdo command with these arguments to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep."""

    values: Mapping[str, str]  # of the settings that have several
    recipe: Recipe
    folder: Path
    arguments: Sequence[str]  # of the command that trains it, or goes on with it

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items())

    @property
    def is_finished(self) -> bool:
        """Whether all its steps are done, and its page is written, which comes last."""
        state = run_state(self.folder)
        steps = state.steps or 0  # of the saved recipe: an early end may be before its last step
        return state.kind == "finished" and steps >= self.recipe.steps and (self.folder / "report.html").exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A row of the table."""

    settings: Mapping[str, str]
    run: str  # its folder
    state: str  # finished, failed, stopped at step 4 of 20 ...
    accuracy: float | None  # share of the held-out questions that are right after training
    reward: float | None  # mean reward of their answers, or else of the newest step
    seconds: float | None  # of training


def run_sweep(settings: list[str] | None, display: Display, *, dry_run: bool) -> int:
    """Run every combination of the settings that is not finished; return the exit status: 1 if a run failed.

    Raises `UserError` with every fault of every combination, before the first run starts.
    """
    file, overrides = recipe_and_overrides(settings)
    fixed, several = split_settings(overrides)
    if not several:
        raise UserError(["sweep: no setting has several values, such as optim.lr=1e-6,1e-5 or seed=0..2"])
    with display.working("checking the recipes"):
        runs = plan_runs([*([str(file)] if file else []), *fixed], several, folder_of=_folder)
    if dry_run:
        for number, run in enumerate(runs, 1):
            display.say(f"run {number} of {len(runs)}: {run}: {_begun(run)}; {run.folder}")
        display.say("dry run: nothing was trained, and nothing was written")
        return 0
    outcomes, status = run_all(runs, display)
    display.console.print(_table(outcomes))
    if (means := _over_seeds(outcomes)) is not None:
        display.console.print(means)
    display.say(f"the table: {runs[0].folder.parent / RESULTS}")
    return status


def plan_runs(
    fixed: list[str], several: Mapping[str, Sequence[str]], *, folder_of: Callable[[Recipe], Path]
) -> list[SweepRun]:
    """Return a run for each combination of the values, all in one folder: that of its recipe by `folder_of`.

    Raises `UserError` with every fault of every combination: of its settings, its data, its pieces and its folder.
    """
    mistakes = [f"{key}: a sweep names its runs itself" for key in several if key == "run"]
    if started_replicas() > 1:
        mistakes.append("sweep: it starts the processes of its runs itself; start it without torchrun")
    if mistakes:
        raise UserError(mistakes)
    runs = []
    for values in combinations(several):
        arguments = [*fixed, *(f"{key}={value}" for key, value in values.items())]
        try:
            recipe = recipe_of(arguments)
        except UserError as error:
            mistakes += error.problems
            continue
        folder = folder_of(recipe) / _name(values)
        train = ["train", *arguments, f"run={folder}", "--resume"]
        runs.append(SweepRun(values=values, recipe=recipe, folder=folder, arguments=train))
    if mistakes := mistakes or list(_faults(runs)):
        raise UserError(list(dict.fromkeys(mistakes)))
    return runs


def run_all(runs: Sequence[SweepRun], display: Display, start: Start | None = None) -> tuple[list[Outcome], int]:
    """Train the runs that are not finished, one after the other; return what each reached, and the exit status.

    A run that fails does not keep the others from running; a signal to this process does.
    """
    start = start or run_command
    failed: dict[Path, str] = {}
    status = 0
    for number, run in enumerate(runs, 1):
        title = f"run {number} of {len(runs)}: {run}"
        if run.is_finished:
            display.say(f"{title}: it is finished")
            continue
        display.say(title)
        ended = start(run.arguments)
        if ended.interrupted:
            display.say("the sweep was stopped; the same command goes on with it")
            status = ended.status or 1
            break
        if ended.status:
            status, failed[run.folder] = 1, f"failed with status {ended.status}"
            display.say(f"{title}: {failed[run.folder]}" + (f": {ended.error}" if ended.error else ""))
    outcomes = [_outcome(run, failed.get(run.folder)) for run in runs]
    folder = runs[0].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomically(folder / RESULTS, {"runs": [asdict(outcome) for outcome in outcomes]})
    return outcomes, status


def _folder(recipe: Recipe) -> Path:
    return run_folder(recipe.run or f"{Path(recipe.model).name}-sweep")


def _name(values: Mapping[str, str]) -> str:
    """Return a name of a folder for the values: other combinations have other names."""
    text = ",".join(f"{key}={value}" for key, value in values.items())
    name = re.sub(r"[^\w.=,+-]+", "-", text, flags=re.ASCII)
    if name == text and len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _faults(runs: Sequence[SweepRun]) -> Iterator[str]:
    """Yield what is wrong with the runs, apart from their settings. Recipes that differ only in the seed count once."""
    folder = runs[0].folder.parent
    if any((folder / name).is_file() for name in RUN_FILES):
        yield f"{folder}: holds a run; a sweep needs a folder of its own: name another one with run=NAME"
    different = {dump(run.recipe.model_copy(update={"seed": 0, "run": None})): run.recipe for run in runs}
    for recipe in different.values():
        yield from check(recipe, probe=probe_machine).errors
    for run in runs:
        if (run.folder / "recipe.toml").is_file():
            yield from (f"{run.folder}: {line}; name another folder with run=NAME" for line in _other_settings(run))


def _other_settings(run: SweepRun) -> list[str]:
    """Return the settings that make the run in its folder another one."""
    saved = load(run.folder / "recipe.toml")
    now = load(run.folder / "recipe.toml", overrides_between(saved, with_absolute_paths(run.recipe)))
    return refused_differences(tomllib.loads(dump(saved)), tomllib.loads(dump(now)))


def _begun(run: SweepRun) -> str:
    if not (run.folder / "recipe.toml").is_file():
        return "new"
    return "finished" if run.is_finished else f"goes on, {run_state(run.folder)}"


def _outcome(run: SweepRun, failure: str | None) -> Outcome:
    summary = read.table(run.folder, "summary.json", print_warning)
    lines = read_metrics(run.folder / "metrics.jsonl", limits=TAIL, report=print_warning)
    trained = next((line["reward"] for line in reversed(lines) if line.get("reward") is not None), None)
    held_out = summary.get("reward_after")
    begun = (run.folder / "recipe.toml").is_file()
    return Outcome(
        settings=run.values,
        run=str(run.folder),
        state=failure or ("finished" if run.is_finished else str(run_state(run.folder)) if begun else "not begun"),
        accuracy=summary.get("accuracy_after"),
        reward=trained if held_out is None else held_out,
        seconds=summary.get("seconds"),
    )


def _table(outcomes: Sequence[Outcome]) -> Table:
    keys = list(outcomes[0].settings)
    table = Table(*map(escape, keys), "state", "accuracy", "reward", "seconds")
    for each in outcomes:
        values = (escape(for_terminal(each.settings[key])) for key in keys)
        table.add_row(
            *values,
            each.state,
            "" if each.accuracy is None else f"{each.accuracy:.1%}",
            "" if each.reward is None else f"{each.reward:.3f}",
            "" if each.seconds is None else f"{each.seconds:,.0f}",
        )
    return table


def _over_seeds(outcomes: Sequence[Outcome]) -> Table | None:
    """Return the means over the seeds of each combination of the other settings; None if the seed is not swept."""
    keys = [key for key in outcomes[0].settings if key != "seed"]
    if len(keys) == len(outcomes[0].settings):
        return None
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault(tuple(each.settings[key] for key in keys), []).append(each)
    table = Table(*map(escape, keys), "finished seeds", "accuracy", "reward", title="means over seeds ± std")
    for values, members in groups.items():
        finished = [each for each in members if each.state == "finished"]
        table.add_row(
            *(escape(for_terminal(value)) for value in values),
            f"{len(finished)} of {len(members)}",
            _mean([each.accuracy for each in finished], ".1%"),
            _mean([each.reward for each in finished], ".3f"),
        )
    return table


def _mean(values: Sequence[float | None], style: str) -> str:
    known: list[Any] = [value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ± {stdev(known):{style}}" if len(known) > 1 else ""
    return f"{fmean(known):{style}}{spread}"
