"""Run a command in this process, as one of several replicas, or start them."""

from collections.abc import Callable

from rich.console import Console

from outdo.config.recipe import Recipe
from outdo.distributed.launch import end_with_launcher, launch, started_replicas
from outdo.trainer.display import Display
from outdo.utils.errors import UserError


def run_by_replicas(recipe: Recipe, arguments: list[str], run: Callable[[Display], int], display: Display) -> int:
    """Return the exit status of `run`, called by each of the recipe's replicas.

    If the recipe has several, and this process is none of them, `outdo <arguments>` is started as each of them.

    Raises: UserError if torchrun has started another number of processes.
    """
    wanted, started = recipe.cluster.replicas, started_replicas()
    if started == 1:
        return run(display) if wanted == 1 else launch(wanted, arguments)
    if started != wanted:
        raise UserError([f"cluster.replicas = {wanted}, but {started} processes were started (WORLD_SIZE)"])
    end_with_launcher()
    from outdo.distributed.replicas import join

    replicas = join(timeout=recipe.cluster.timeout)
    try:
        return run(display if replicas.first else Display(Console(quiet=True)))
    finally:
        replicas.close()
