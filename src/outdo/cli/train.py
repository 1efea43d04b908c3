"""`outdo train`: check a recipe, and train by it."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from outdo.cli.arguments import Profile, Restarts, Settings, Verbose, option_names
from outdo.cli.processes import run_in_processes
from outdo.cli.recipe import free_run_name, probe_machine, prompt_renderer, recipe_of, taken_folder
from outdo.config.file import load_saved
from outdo.config.recipe import Recipe
from outdo.config.replicas import replica_notes, with_replicas
from outdo.run.check.preflight import check
from outdo.run.display import Display
from outdo.run.folder.begin import holds_run
from outdo.run.progress_bar import importing
from outdo.utils.errors import UserError
from outdo.utils.run_names import folder_name, run_folder
from outdo.utils.world import ALONE, World


def command(
    settings: Settings = None,
    profile: Profile = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="sample and score one group, show it, and write nothing")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run if its folder holds one; needs `run`")
    ] = False,
    restarts: Restarts = 0,
    verbose: Verbose = False,
) -> int:
    """Check a recipe, and train by it."""
    display = Display(verbose=verbose)
    return run_train(settings, display, profile=profile, dry_run=dry_run, resume=resume, restarts=restarts)


def run_train(
    settings: list[str] | None,
    display: Display,
    *,
    profile: bool = False,
    dry_run: bool = False,
    resume: bool = False,
    restarts: int = 0,
) -> int:
    """Check a recipe and train by it; return the exit status. Raises `UserError` with every error of the check.

    `dry_run` samples and shows one group only, `resume` goes on where a run of this recipe has ended, if its folder
    holds one. For `restarts` see `outdo.extras.replicas.launch`.
    """
    given = recipe_of(settings, begins=not (dry_run or resume))
    if mistakes := _mistakes(given, dry_run=dry_run, profile=profile, resume=resume, restarts=restarts):
        raise UserError(mistakes)
    name = given.run or free_run_name(folder_name(given.model))
    folder = run_folder(name)
    goes_on = resume and holds_run(folder)
    recipe = given if dry_run else with_replicas(given, load_saved(folder) if goes_on else None)
    train = partial(_train, recipe, folder, profile=profile, dry_run=dry_run, resume=resume)
    if dry_run:
        return train(display, ALONE)
    options = option_names({"--profile": profile, "--verbose": display.verbose})
    replicas = f"cluster.replicas={recipe.cluster.world_size}"
    start = ["train", *(settings or []), replicas, f"run={name}", *options, *option_names({"--resume": resume})]

    def go_on() -> list[str]:
        if holds_run(folder):
            return ["resume", str(folder), *options]
        return start

    return run_in_processes(recipe, folder, train, display, arguments=start, go_on=go_on, restarts=restarts)


def _mistakes(recipe: Recipe, *, dry_run: bool, profile: bool, resume: bool, restarts: int) -> list[str]:
    mistakes = []
    if dry_run and (profile or resume or restarts):
        mistakes.append("--dry-run trains nothing, so that --profile, --resume and --restarts have no effect")
    if resume and recipe.run is None:
        mistakes.append("--resume: name the run (run=NAME); a run without a name gets a new folder at each start")
    return mistakes


def _train(
    recipe: Recipe, folder: Path, display: Display, world: World, *, profile: bool, dry_run: bool, resume: bool
) -> int:
    if resume:
        with importing():
            from outdo.run.checkpoints.resume import resume_by

        if world.from_first(partial(holds_run, folder)):
            return resume_by(recipe, folder, display, profile=profile, world=world)
    with display.working("checking the recipe"):
        report = check(recipe, render=prompt_renderer(recipe), probe=probe_machine)
    taken = [] if dry_run else world.from_first(partial(taken_folder, recipe))
    if errors := [*report.errors, *taken]:
        raise UserError(errors)
    for note in [*replica_notes(recipe), *report.notes]:
        display.note(note)
    for warning in report.warnings:
        display.warn(warning)
    if dry_run:
        from outdo.cli.dry_run import run_dry

        return run_dry(recipe, display, facts=report.facts)
    with importing():
        from outdo.run.training import start

    return start(recipe, folder, display, facts=report.facts, profile=profile, world=world)
