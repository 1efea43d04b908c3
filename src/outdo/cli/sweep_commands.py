"""The commands that start several runs, with their arguments; `outdo.cli.main` adds them to the command line."""

from typing import Annotated

import typer

from outdo.trainer.display import Display

GridSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="recipe.toml and settings, some with several values: optim.lr=1e-6,1e-5 seed=0..2", show_default=False
    ),
]

tune = typer.Typer(no_args_is_help=True, help="Find settings by short runs.")


def sweep(
    settings: GridSettings = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check and list the runs, and start none")] = False,
) -> None:
    """Train by every combination of settings, one run after the other: outdo sweep recipe.toml seed=0..2"""
    from outdo.cli.sweep import run_sweep

    raise typer.Exit(run_sweep(settings, Display(), dry_run=dry_run))


@tune.command(name="lr")
def tune_lr(
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="recipe.toml and settings; steps=12 and optim.lr=1e-7,1e-6 ...", show_default=False),
    ] = None,
) -> None:
    """Try learning rates in short runs on the same questions, and suggest one with its reason."""
    from outdo.cli.tune import run_tune_lr

    raise typer.Exit(run_tune_lr(settings, Display()))
