"""Run a command in this process, as one of several replicas, or start them."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from outdo.config.recipe import Recipe
from outdo.extras.replicas.launch import Restarts, end_with_launcher, launch
from outdo.run.checkpoints.names import saved_steps
from outdo.run.display import Display
from outdo.run.progress_bar import importing
from outdo.utils.errors import UserError
from outdo.utils.world import ALONE, World, started_replicas


def run_by_replicas(
    recipe: Recipe,
    folder: Path,
    run: Callable[[Display, World], int],
    display: Display,
    *,
    arguments: list[str],
    go_on: Callable[[], list[str]],
    restarts: int,
) -> int:
    """Return the exit status of `run`, called by each of the recipe's replicas.

    If the recipe has several, and this process is none of them, `outdo <arguments>` is started as each of them; with
    `restarts` also as the only one. After a fault of the machine `outdo <go_on()>` is started, as often as `restarts`
    says while the run in `folder` saves no further checkpoint.

    Raises: UserError if torchrun has started another number of processes, which it also starts again by itself.
    """
    end_with_launcher()
    wanted, started = recipe.cluster.world_size, started_replicas()
    if started == 1:
        if wanted == 1 and not restarts:  # the only process of a launcher
            return run(display, ALONE)
        return launch(wanted, arguments, _restarts(restarts, folder, go_on, display))
    if started != wanted:
        raise UserError([f"cluster.replicas = {wanted}, but {started} processes were started (WORLD_SIZE)"])
    if restarts:
        raise UserError(["--restarts: torchrun has started this process; use its --max-restarts, and train --resume"])
    with importing():
        from outdo.extras.replicas.join import join_replicas

    with join_replicas(recipe) as replicas:
        return run(display if replicas.first else Display(Console(quiet=True)), replicas)


def _restarts(times: int, folder: Path, go_on: Callable[[], list[str]], display: Display) -> Restarts | None:
    if not times:
        return None
    return Restarts(times, go_on, lambda: max(saved_steps(folder / "checkpoints"), default=0), display.say)
