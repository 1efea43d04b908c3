"""`outdo train`: check a recipe, and train by it."""

from pathlib import Path

from outdo.cli.recipe import free_run_name, probe_machine, recipe_of
from outdo.cli.replicas import run_by_replicas
from outdo.config.recipe import run_folder
from outdo.trainer.display import Display
from outdo.trainer.preflight import check
from outdo.utils.errors import UserError


def run_train(settings: list[str] | None, display: Display, *, profile: bool) -> int:
    """Check a recipe and train by it; return the exit status. Raises `UserError` with every error of the check."""
    recipe = recipe_of(settings)
    name = recipe.run or free_run_name(Path(recipe.model).name)

    def train(display: Display) -> int:
        folder = run_folder(name)
        report = check(recipe, probe=probe_machine)
        if report.errors:
            raise UserError(report.errors)
        for line in [f"run folder: {folder}", *report.notes, *(f"warning: {warning}" for warning in report.warnings)]:
            display.say(line)
        from outdo.trainer.run import start

        return start(recipe, folder, display, facts=report.facts, profile=profile)

    arguments = ["train", *(settings or []), f"run={name}", *(["--profile"] if profile else [])]
    return run_by_replicas(recipe, arguments, train, display)
