"""`outdo check`: a recipe, its data and its rewards, without the model."""

from rich.console import Console

from outdo.cli.recipe import probe_pieces, prompt_renderer, recipe_of
from outdo.trainer.preflight import check, show
from outdo.utils.errors import UserError


def run_check(settings: list[str] | None, console: Console) -> int:
    """Check a recipe and print the report; return the exit status."""
    recipe = recipe_of(settings)
    report = check(recipe, render=prompt_renderer(recipe), probe=probe_pieces)
    show(report, console)
    return UserError.exit_status if report.mistakes else 0
