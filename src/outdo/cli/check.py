"""`outdo check`: a recipe, its data and its rewards, without the model."""

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from outdo.cli.arguments import Settings
from outdo.cli.recipe import probe_machine, prompt_renderer, recipe_of, taken_folder
from outdo.config.replicas import replica_notes, with_replicas
from outdo.run.check.preflight import check
from outdo.run.check.report import show
from outdo.run.check.reward_trials import REFERENCES
from outdo.run.progress_bar import progress
from outdo.utils.errors import UserError

WARNED = 1
"""The exit status with `--strict` if there are warnings and no errors."""


def command(
    settings: Settings = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="exit with status 1 if there are warnings")] = False,
) -> int:
    """Check a recipe and print the report; return the exit status."""
    written, console = recipe_of(settings, begins=True), Console()
    recipe = with_replicas(written)
    with progress("checking the recipe", console=console):
        report = check(recipe, render=prompt_renderer(recipe), probe=probe_machine, references=REFERENCES)
    report = replace(
        report,
        errors=[*report.errors, *taken_folder(written)],
        notes=[*replica_notes(recipe), *report.notes],
    )
    show(report, console)
    if report.errors:
        return UserError.exit_status
    return WARNED if strict and report.warnings else 0
