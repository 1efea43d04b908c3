"""Run a command in this process, as one of several replicas, or start them."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from outdo.config.recipe import Recipe
from outdo.distributed.launch import Restarts, end_with_launcher, launch, started_replicas
from outdo.storage.checkpoint_names import saved_steps
from outdo.trainer.display import Display
from outdo.trainer.progress_bar import importing
from outdo.utils.errors import UserError
from outdo.utils.world import ALONE, World


def run_by_replicas(
    recipe: Recipe,
    arguments: list[str],
    run: Callable[[Display, World], int],
    display: Display,
    restarts: Restarts | None = None,
) -> int:
    """Return the exit status of `run`, called by each of the recipe's replicas.

    If the recipe has several, and this process is none of them, `outdo <arguments>` is started as each of them; with
    `restarts` also as the only one, so that this process can start it again.

    Raises: UserError if torchrun has started another number of processes, which it also starts again by itself.
    """
    end_with_launcher()
    wanted, started = recipe.cluster.replicas, started_replicas()
    if started == 1:
        return run(display, ALONE) if wanted == 1 and restarts is None else launch(wanted, arguments, restarts)
    if started != wanted:
        raise UserError([f"cluster.replicas = {wanted}, but {started} processes were started (WORLD_SIZE)"])
    if restarts is not None:
        raise UserError(["--restarts: torchrun has started this process; use its --max-restarts, and train --resume"])
    with importing():
        from outdo.distributed.replicas import join

    with join(timeout=recipe.cluster.timeout) as replicas:
        return run(display if replicas.first else Display(Console(quiet=True)), replicas)


def restarts_of(times: int, folder: Path, arguments: Callable[[], list[str]], display: Display) -> Restarts | None:
    """Return how the replicas of a run are started again: by `outdo <arguments()>`. None for 0 `times`."""
    if not times:
        return None
    return Restarts(times, arguments, lambda: max(saved_steps(folder / "checkpoints"), default=0), display.say)
