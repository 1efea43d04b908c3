"""`outdo cluster check`: the processes and machines of a run, before a model loads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from outdo.cli.arguments import Settings, recipe_and_overrides
from outdo.config.file import load
from outdo.config.names import PLACED_REWARDS
from outdo.config.recipe import Recipe
from outdo.extras.replicas.launch import end_with_launcher, launch
from outdo.utils.errors import UserError, WorkerError
from outdo.utils.extras import load_extra
from outdo.utils.run_names import RUNS, run_folder
from outdo.utils.world import ALONE, World, started_replicas

if TYPE_CHECKING:
    from outdo.extras.replicas.cluster_check import ProcessReport


def command(
    settings: Settings = None,
    *,
    timeout: Annotated[float, typer.Option(min=1, help="seconds in which the processes have to meet")] = 60.0,
) -> int:
    """Print what the processes of a recipe find, and a line for each problem; return 1 if there is one, else 0.

    Alone, this process starts as many on this machine as the recipe has replicas.

    Raises: WorkerError if the processes do not meet within `timeout` seconds.
    """
    console = Console()
    end_with_launcher()
    started = started_replicas()
    if started == 1:
        recipe = _load(settings)
        if recipe is not None and recipe.cluster.world_size > 1:
            return launch(recipe.cluster.world_size, ["cluster", "check", *(settings or []), f"--timeout={timeout}"])
        return _check(recipe, _files(settings, recipe), ALONE, console)
    from outdo.extras.replicas.cluster_check import network_hints
    from outdo.extras.replicas.replicas import join

    try:
        replicas = join(timeout=timeout)
    except WorkerError as error:
        lines = [f"the {started} processes did not meet within {timeout:g} s: {error}", *network_hints()]
        raise WorkerError("\n".join(lines)) from None
    with replicas:
        recipe = replicas.from_first(lambda: _load(settings))
        files = replicas.from_first(lambda: _files(settings, recipe))
        if recipe is not None and recipe.cluster.world_size != started:
            wanted = recipe.cluster.world_size
            raise UserError([f"cluster.replicas = {wanted}, but {started} processes were started (WORLD_SIZE)"])
        return _check(recipe, files, replicas, console if replicas.first else Console(quiet=True))


def _load(settings: list[str] | None) -> Recipe | None:
    return load(*recipe_and_overrides(settings)) if settings else None


def _files(settings: list[str] | None, recipe: Recipe | None) -> list[str]:
    """Return the recipe, and what a run by it reads that is on the disk: other names are on the Hub."""
    if recipe is None:
        return []
    file, _ = recipe_and_overrides(settings)
    named = [recipe.model, *(source.path for source in recipe.data.path)]
    return [*([str(file)] if file else []), *(path for path in named if Path(path).exists())]


def _check(recipe: Recipe | None, files: list[str], world: World, console: Console) -> int:
    from outdo.extras.replicas.cluster_check import look, problems

    runs = run_folder(recipe.run) if recipe and recipe.run else RUNS
    reports = look(runs, files, world)
    console.print(_table(reports))
    placed, mistakes = "", list[str]()
    if recipe and world.first and any(reward.place for reward in recipe.rewards):
        placed, mistakes = load_extra(PLACED_REWARDS, "rewards.place")(recipe)
    if placed:
        console.print(f"rewards that Ray places: {placed}", markup=False, highlight=False, soft_wrap=True)
    lines = [*problems(reports), *mistakes]
    for problem in lines:
        console.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
    if not lines:
        what = f"{len(reports)} processes can run together" if len(reports) > 1 else "one process can run"
        console.print(f"no problem: {what}")
    return 1 if lines else 0


def _table(reports: "list[ProcessReport]") -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("process", "host", "GPUs", "cores", "memory", "free disk", "python", "torch", "clock"):
        table.add_column(column, no_wrap=True)
    for number, report in enumerate(reports):
        table.add_row(
            str(number),
            report.host,
            f"{len(report.gpus)} {', '.join(sorted(set(report.gpus)))}".strip(),
            str(report.cores),
            f"{report.memory / 2**30:.0f} GiB",
            f"{report.free / 2**30:.0f} GiB",
            report.versions["python"],
            report.versions["torch"],
            f"{report.clock:+.2f} s",
        )
    return table
