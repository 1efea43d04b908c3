"""`outdo train`: check a recipe, and train by it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outdo.cli.processes import run_in_processes
from outdo.cli.recipe import free_run_name, probe_machine, prompt_renderer, recipe_of
from outdo.config.recipe import Recipe, run_folder
from outdo.trainer.display import Display
from outdo.trainer.preflight import check
from outdo.trainer.progress_bar import importing
from outdo.utils.errors import UserError
from outdo.utils.world import ALONE, World


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArguments:
    """The arguments of `outdo train`, without its settings."""

    profile: bool = False
    dry_run: bool = False  # only one group is sampled and shown
    resume: bool = False  # go on where a run of this recipe has ended, if its folder holds one
    restarts: int = 0  # after a fault of the machine; see `outdo.distributed.launch`


def run_train(settings: list[str] | None, display: Display, arguments: TrainArguments) -> int:
    """Check a recipe and train by it; return the exit status. Raises `UserError` with every error of the check."""
    recipe = recipe_of(settings)
    if mistakes := _mistakes(recipe, arguments):
        raise UserError(mistakes)
    name = recipe.run or free_run_name(Path(recipe.model).name)
    folder = run_folder(name)
    train = partial(_train, recipe, folder, arguments=arguments)
    if arguments.dry_run:
        return train(display, ALONE)
    options = [f"--{option}" for option in ("profile", "resume") if getattr(arguments, option)]
    start = ["train", *(settings or []), f"run={name}", *options]

    def go_on() -> list[str]:
        if (folder / "recipe.toml").is_file():
            return ["resume", str(folder), *(["--profile"] if arguments.profile else [])]
        return start

    restarts = arguments.restarts
    return run_in_processes(recipe, folder, train, display, arguments=start, go_on=go_on, restarts=restarts)


def _mistakes(recipe: Recipe, arguments: TrainArguments) -> list[str]:
    mistakes = []
    if arguments.dry_run and (arguments.resume or arguments.restarts):
        mistakes.append("--dry-run trains nothing, so that --resume and --restarts have no effect")
    if arguments.resume and recipe.run is None:
        mistakes.append("--resume: name the run (run=NAME); a run without a name gets a new folder at each start")
    return mistakes


def _train(recipe: Recipe, folder: Path, display: Display, world: World, *, arguments: TrainArguments) -> int:
    if arguments.resume:
        with importing():
            from outdo.trainer.resume import holds_run, resume_by

        if holds_run(folder, world):
            return resume_by(recipe, folder, display, profile=arguments.profile, world=world)
    with display.working("checking the recipe"):
        report = check(recipe, render=prompt_renderer(recipe), probe=probe_machine)
    if report.errors:
        raise UserError(report.errors)
    place = [] if arguments.dry_run else [f"run folder: {folder}"]
    for line in [*place, *report.notes, *(f"warning: {warning}" for warning in report.warnings)]:
        display.say(line)
    if arguments.dry_run:
        from outdo.cli.dry_run import run_dry

        return run_dry(recipe, display, facts=report.facts)
    with importing():
        from outdo.trainer.run import start

    return start(recipe, folder, display, facts=report.facts, profile=arguments.profile, world=world)
