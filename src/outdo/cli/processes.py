"""The processes of a run: this one alone, or several that a launcher starts."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from outdo.config.fields import Piece
from outdo.config.names import BUILTIN_ENGINE, REPLICAS
from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import inspect_folder
from outdo.run.display import Display
from outdo.utils.errors import ModelError
from outdo.utils.extras import load_extra, missing_extra
from outdo.utils.world import ALONE, World, was_launched

SMALL_MODEL = 20_000_000
"""Number of weights up to which a process per core is faster than one process: only the matrix products use several
threads, and those of a small model are a small part of its work."""

WORTH_IT = 50_000
"""Tokens that a run may sample, from which on it is long enough to gain more than the start of a process takes."""

MOST = 4
"""Replicas that a run gets by itself at most: each holds all models, the interpreter and torch, some 600 MB in all."""

ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""What a machine has whose GPU torch may use: the drivers of NVIDIA and of AMD."""


def with_replicas(recipe: Recipe, saved: Recipe | None = None) -> Recipe:
    """Return the recipe with a number of replicas: its own, or that of the run that goes on, or the fastest one here.

    `saved` is the recipe of that run. Torch is not loaded: it takes longer than all that is asked here.
    """
    if recipe.cluster.replicas is not None:
        return recipe
    if saved is not None:
        return _replicated(recipe, saved.cluster.world_size)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(cores, MOST, recipe.train.prompts) if _gains_by_replicas(recipe) else 1
    return _replicated(recipe, count)


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


def _replicated(recipe: Recipe, count: int) -> Recipe:
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"replicas": count})})


def _gains_by_replicas(recipe: Recipe) -> bool:
    """Return whether a run trains a small model on a CPU, for long enough, with nothing that was not measured."""
    train, plain = recipe.train, (recipe.environment, recipe.critic, recipe.threads)
    tokens = recipe.steps * train.prompts * train.group_size * recipe.sampling.max_tokens
    return (
        tokens >= WORTH_IT
        and not any(plain)
        and recipe.engine == Piece(name=BUILTIN_ENGINE)
        and not was_launched()
        and _trains_on_cpu(recipe.device)
        and missing_extra(REPLICAS, "cluster.replicas") is None
        and _weights(recipe.model) <= SMALL_MODEL
    )


def _trains_on_cpu(device: str) -> bool:
    has_gpu = sys.platform == "darwin" or any(path.exists() for path in ACCELERATORS)
    return device == "cpu" or (device == "auto" and not has_gpu)


def _weights(model: str) -> float:
    """Return the number of weights of a model; infinite if its files do not say, or are broken: the check says so."""
    try:
        return inspect_folder(model).parameters or math.inf
    except ModelError:
        return math.inf
