"""`outdo resume`: continue a run, or an unfinished `outdo sft` or `outdo reward-model`."""

from pathlib import Path
from typing import Annotated

import typer

from outdo.cli.arguments import Overrides, Profile, Restarts, RunFolder, Verbose, nearest_run, not_empty, option_names
from outdo.cli.commands import COMMANDS
from outdo.cli.processes import run_in_processes
from outdo.config.file import load_saved
from outdo.run.checkpoints.resume import resume
from outdo.run.display import Display
from outdo.run.folder.begin import holds_run, why_no_run
from outdo.run.folder.unfinished import SETTINGS, model_folder, read_settings, unfinished_folder
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra
from outdo.utils.world import World


def command(
    run: RunFolder,
    settings: Overrides = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="accept settings, data or code that make it another run")
    ] = False,
    profile: Profile = False,
    restarts: Restarts = 0,
    verbose: Verbose = False,
) -> int:
    """Continue what makes the folder `run`: a run, or a model that is fine-tuned; return the exit status.

    A run is started again up to `restarts` times after a fault of the machine: see `outdo.extras.replicas.launch`.
    """
    if holds_run(run):
        display = Display(verbose=verbose)
        return _resume_run(run, settings or [], display, changed=changed, profile=profile, restarts=restarts)
    run = model_folder(run)
    unfinished = unfinished_folder(run)
    if (problem := why_no_run(run)) and not unfinished.is_dir():
        raise UserError([problem if run.exists() else f"{problem}{nearest_run(run)}"])
    if problem := not_empty(run):  # killed between the last two of its operations, or somebody else's
        raise UserError([f"{problem}, or, if it holds the complete model, remove {unfinished}"])
    if profile or restarts or verbose:
        raise UserError([f"{run}: --profile, --restarts and --verbose are for runs of `outdo train`"])
    return _resume_training(run, settings or [], Display(), changed=changed)


def _resume_run(
    folder: Path, overrides: list[str], display: Display, *, changed: bool, profile: bool, restarts: int
) -> int:
    options = option_names({"--changed": changed, "--profile": profile, "--verbose": display.verbose})

    def run(display: Display, world: World) -> int:
        return resume(folder, overrides, display, changed=changed, profile=profile, world=world)

    arguments = ["resume", str(folder), *overrides, *options]
    recipe = load_saved(folder, overrides)
    return run_in_processes(
        recipe, folder, run, display, arguments=arguments, go_on=lambda: arguments, restarts=restarts
    )


def _resume_training(out: Path, overrides: list[str], display: Display, *, changed: bool) -> int:
    """Continue what makes the model folder `out` by the command that has begun it."""
    settings = read_settings(out)
    row = COMMANDS.get(str(settings["command"]))
    if row is None or row.resume is None:
        raise UserError([f"{unfinished_folder(out) / SETTINGS}: no command is called {settings['command']!r}"])
    return load_extra(row.resume, str(out))(settings, out, display, overrides=overrides, changed=changed)
