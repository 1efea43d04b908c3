"""`outdo train`: check a recipe, and train by it."""

from collections.abc import Callable
from dataclasses import dataclass
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
from outdo.run.check.preflight import Report, check
from outdo.run.display import Display
from outdo.run.folder.begin import holds_run
from outdo.run.progress_bar import importing
from outdo.utils.errors import UserError
from outdo.utils.run_names import folder_name, run_folder
from outdo.utils.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """What `outdo train` is asked for beside the recipe."""

    profile: bool = False  # trace two of the steps, and print where the time of all of them went
    dry_run: bool = False  # sample and show one group only
    resume: bool = False  # go on where a run of this recipe has ended, if its folder holds one
    restarts: int = 0  # see `outdo.extras.replicas.launch`

    def mistakes(self, recipe: Recipe) -> list[str]:
        """Return which options have no effect beside each other, or beside the recipe."""
        mistakes = []
        if self.dry_run and (self.profile or self.resume or self.restarts):
            mistakes.append("--dry-run trains nothing, so that --profile, --resume and --restarts have no effect")
        if self.resume and recipe.run is None:
            mistakes.append("--resume: name the run (run=NAME); a run without a name gets a new folder at each start")
        return mistakes


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
    options = TrainOptions(profile=profile, dry_run=dry_run, resume=resume, restarts=restarts)
    return run_train(settings, Display(verbose=verbose), options)


def run_train(settings: list[str] | None, display: Display, options: TrainOptions) -> int:
    """Check a recipe and train by it; return the exit status. Raises `UserError` with every error of the check."""
    named = recipe_of(settings, begins=not (options.dry_run or options.resume))
    if mistakes := options.mistakes(named):
        raise UserError(mistakes)
    if options.dry_run:
        return _run_dry(named, display)
    name = named.run or free_run_name(folder_name(named.model))
    folder = run_folder(name)
    resuming = options.resume and holds_run(folder)
    recipe = with_replicas(named, load_saved(folder) if resuming else None)
    shown = option_names({"--profile": options.profile, "--verbose": display.verbose})
    replicas = f"cluster.replicas={recipe.cluster.world_size}"
    resume = option_names({"--resume": options.resume})
    start = ["train", *(settings or []), replicas, f"run={name}", *shown, *resume]

    def go_on() -> list[str]:
        return ["resume", str(folder), *shown] if holds_run(folder) else start

    return run_in_processes(
        recipe,
        folder,
        partial(_train, recipe, folder, options),
        display,
        arguments=start,
        go_on=go_on,
        restarts=options.restarts,
    )


def _train(recipe: Recipe, folder: Path, options: TrainOptions, display: Display, world: World) -> int:
    if options.resume:
        with importing():
            from outdo.run.checkpoints.resume import resume_by

        if world.from_first(partial(holds_run, folder)):
            return resume_by(recipe, folder, display, profile=options.profile, world=world)
    report = _checked(recipe, display, taken=lambda: world.from_first(partial(taken_folder, recipe)))
    with importing():
        from outdo.run.training import start

    return start(report, folder, display, profile=options.profile, world=world)


def _run_dry(recipe: Recipe, display: Display) -> int:
    report = _checked(recipe, display)
    from outdo.cli.dry_run import run_dry

    return run_dry(report, display)


def _checked(recipe: Recipe, display: Display, *, taken: Callable[[], list[str]] = list) -> Report:
    """Return the report on a recipe without errors, and show its notes and warnings; `taken` returns further errors."""
    with display.working("checking the recipe"):
        report = check(recipe, render=prompt_renderer(recipe), probe=probe_machine)
    if errors := [*report.errors, *taken()]:
        raise UserError(errors)
    for note in [*replica_notes(recipe), *report.notes]:
        display.note(note)
    for warning in report.warnings:
        display.warn(warning)
    return report
