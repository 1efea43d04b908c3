"""`outdo track`: send a run to trackers, when it has ended or while it goes on."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from outdo.cli.arguments import RunFolder, no_run
from outdo.config.file import load_saved, read_piece
from outdo.config.packages import missing_clients
from outdo.config.recipe import Piece
from outdo.extras.trackers.check import tracker_mistakes
from outdo.extras.trackers.send import POLL
from outdo.extras.trackers.sending import sending
from outdo.run.display import Display
from outdo.run.folder.run_folder import is_alive
from outdo.utils.errors import UserError


def command(
    run: RunFolder,
    to: Annotated[
        list[str], typer.Option(help="wandb, tensorboard, trackio, mlflow, or a table; may be given several times")
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="send the steps of an active run until it has ended")
    ] = False,
) -> int:
    """Send the metrics, the completions and the page of a run to trackers, each time as a new run there.

    Returns 1 if something was not delivered. Raises `UserError` for a run that is active and not to be followed, or
    that has no recipe, and for trackers that cannot be used or that track the active run already; RunFolderError if
    the folder cannot be written.
    """
    if problem := no_run(run) or _not_sendable(run, follow=follow):
        raise UserError([problem])
    pieces = [read_piece("--to", text, '{name = "wandb", project = "mine"}') for text in to]
    if mistakes := [*tracker_mistakes(pieces), *missing_clients(pieces), *_tracked_already(run, pieces)]:
        raise UserError(mistakes)
    display = Display()
    with display.working(f"sending {run}"), sending(run, pieces, display.say, follow=follow, anew=True) as lost:
        while follow and is_alive(run):
            time.sleep(POLL)
    for piece in pieces:
        if piece.name not in lost:
            display.say(f"{piece.name}: {run} was sent")
    return 1 if lost else 0


def _not_sendable(run: Path, *, follow: bool) -> str | None:
    if is_alive(run) and not follow:
        return f"{run}: this run is active; send it when it has ended, or with --follow"
    missing = [name for name in ("recipe.toml", "environment.json") if not (run / name).is_file()]
    return f"{run}: {' and '.join(missing)} of the run is missing" if missing else None


def _tracked_already(run: Path, pieces: Sequence[Piece]) -> list[str]:
    """Return a sentence for each of the trackers to which an active run is sent by itself."""
    in_recipe = {piece.name for piece in load_saved(run).track} if is_alive(run) else set()
    return [
        f"--to {piece.name}: {run} is active, and its recipe names this tracker, which gets all of its steps"
        for piece in pieces
        if piece.name in in_recipe
    ]
