"""`outdo track`: send a run that has ended to a tracker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from outdo.cli.arguments import RunFolder, no_run
from outdo.cli.output import print_warning
from outdo.config.file import read_piece
from outdo.config.packages import missing_clients
from outdo.extras.trackers.base import id_file
from outdo.extras.trackers.check import tracker_mistakes
from outdo.extras.trackers.completions import recorded_completions
from outdo.extras.trackers.process import TrackerProcess, TrackerSettings
from outdo.extras.trackers.watcher import tracker_settings
from outdo.storage import run_files
from outdo.storage.run_folder import is_alive, read_metrics
from outdo.trainer.display import Display
from outdo.utils.errors import OutdoError, UserError


def command(
    run: RunFolder,
    to: Annotated[
        list[str], typer.Option(help="wandb, tensorboard, trackio, mlflow, or a table; may be given several times")
    ],
) -> None:
    """Send the metrics, the completions and the page of a run to trackers, each time as a new run there.

    Raises `UserError` for a run that is active or has no recipe, and for trackers that cannot be used, and `OutdoError`
    with what could not be delivered.
    """
    display = Display()
    if problem := no_run(run) or _not_sendable(run):
        raise UserError([problem])
    pieces = [read_piece("--to", text, '{name = "wandb", project = "mine"}') for text in to]
    if mistakes := [*tracker_mistakes(pieces), *missing_clients(pieces)]:
        raise UserError(mistakes)
    for tracker in map(tracker_settings, pieces):
        id_file(run, tracker.name).unlink(missing_ok=True)
        if error := _send(run, tracker, display):
            raise OutdoError(f"{tracker.name}: {error}")
        display.say(f"{tracker.name}: {run} was sent")


def _not_sendable(run: Path) -> str | None:
    if is_alive(run):
        return f"{run}: this run is active; send it when it has ended"
    missing = [name for name in ("recipe.toml", "environment.json") if not (run / name).is_file()]
    return f"{run}: {' and '.join(missing)} of the run is missing" if missing else None


def _send(run: Path, tracker: TrackerSettings, display: Display) -> str | None:
    """Send everything to one tracker; return the first error, after which nothing more is sent."""
    process = TrackerProcess(tracker, run, after=0)
    try:
        reply = process.open()
        for line in reply.said:
            display.say(line)
        if reply.error:
            return reply.error
        metrics = read_metrics(run / "metrics.jsonl", report=print_warning)
        lines = run_files.with_initial_evaluation(metrics, run_files.table(run, "summary.json", print_warning))
        for line in display.track(lines, total=len(lines), what=tracker.name):
            if error := process.log(_entry(run, line, tracker.completions)).error:
                return f"step {line['step']}: {error}"
        return process.end().error
    finally:
        process.close()


def _entry(run: Path, line: Mapping[str, Any], completions: int) -> dict[str, Any]:
    """Return what a tracker logs of a step, from its line of metrics and its record."""
    metrics = {name: value for name, value in line.items() if name != "step" and value is not None}
    rows = recorded_completions(run, line["step"], completions)
    return {"step": line["step"], "metrics": metrics, "completions": rows}
