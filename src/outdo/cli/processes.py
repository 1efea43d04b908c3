"""The processes of a run: this one alone, or several that a launcher starts."""

from collections.abc import Callable
from pathlib import Path

from outdo.config.names import REPLICAS
from outdo.config.recipe import Recipe
from outdo.run.display import Display
from outdo.utils.extras import load_extra
from outdo.utils.world import ALONE, World, was_launched


def run_in_processes(
    recipe: Recipe,
    folder: Path,
    run: Callable[[Display, World], int],
    display: Display,
    *,
    arguments: list[str],
    go_on: Callable[[], list[str]],
    restarts: int,
) -> int:
    """Return the exit status of `run`, called in each of the recipe's processes with the world that they are.

    Several processes are started as `outdo <arguments>`. After a fault of the machine the run in `folder` goes on up to
    `restarts` times, by `outdo <go_on()>`.
    """
    if recipe.cluster.world_size == 1 and not restarts and not was_launched():
        return run(display, ALONE)
    setting = "--restarts" if restarts else "cluster.replicas"
    run_by_replicas = load_extra(REPLICAS, setting)
    return run_by_replicas(recipe, folder, run, display, arguments=arguments, go_on=go_on, restarts=restarts)
