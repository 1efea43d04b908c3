"""`outdo train`: check a recipe, and train by it."""

from pathlib import Path

from outdo.cli.recipe import free_run_name, probe_machine, recipe_of
from outdo.cli.replicas import run_by_replicas
from outdo.config.recipe import run_folder
from outdo.trainer.display import Display
from outdo.trainer.preflight import check
from outdo.utils.errors import UserError


def run_train(settings: list[str] | None, display: Display, *, profile: bool = False, dry_run: bool = False) -> int:
    """Check a recipe and train by it; return the exit status. Raises `UserError` with every error of the check.

    With `dry_run`, only one group is sampled and shown.
    """
    recipe = recipe_of(settings)
    name = recipe.run or free_run_name(Path(recipe.model).name)

    def train(display: Display) -> int:
        folder = run_folder(name)
        report = check(recipe, probe=probe_machine)
        if report.errors:
            raise UserError(report.errors)
        place = [] if dry_run else [f"run folder: {folder}"]
        for line in [*place, *report.notes, *(f"warning: {warning}" for warning in report.warnings)]:
            display.say(line)
        if dry_run:
            from outdo.cli.dry_run import run_dry

            return run_dry(recipe, display, facts=report.facts)
        from outdo.trainer.run import start

        return start(recipe, folder, display, facts=report.facts, profile=profile)

    if dry_run:
        return train(display)
    arguments = ["train", *(settings or []), f"run={name}", *(["--profile"] if profile else [])]
    return run_by_replicas(recipe, arguments, train, display)
