"""The number of replicas that a recipe without `cluster.replicas` gets."""

import sys
from pathlib import Path

from outdo.config.fields import Piece
from outdo.config.names import BUILTIN_ENGINE, REPLICAS
from outdo.config.recipe import Recipe
from outdo.models.inspect_folder import inspect_folder
from outdo.utils.errors import ModelError
from outdo.utils.extras import missing_extra
from outdo.utils.machine import cores, main_memory
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.world import was_launched

SMALL_MODEL = 20_000_000
"""Number of weights up to which two processes are faster than two threads: only the matrix products use several
threads, and those of a small model are a small part of its work. Measured up to 14 million."""

WORTH_IT = 50_000
"""Tokens that a run may sample, from which on it is long enough to gain more than the start of a process takes."""

COUNT = 2
"""Replicas of such a run, which share the cores. More were not measured."""

MEMORY = 4 * 2**30
"""Bytes of main memory that the machine or the container has at least: a replica of a small model takes up to 2 GiB."""

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""What a machine has whose GPU torch may use: the drivers of NVIDIA, of AMD, and of Windows below WSL 2."""


def with_replicas(recipe: Recipe, saved: Recipe | None = None) -> Recipe:
    """Return the recipe with a number of replicas: its own, or that of the run that goes on, or the faster one here.

    `saved` is the recipe of that run. Torch is not loaded: it takes longer than all that is asked here.
    """
    if recipe.cluster.replicas is not None:
        return recipe
    fastest = COUNT if saved is None and _gains_by_replicas(recipe) else 1
    count = fastest if saved is None else saved.cluster.world_size
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"replicas": count})})


def replica_notes(recipe: Recipe) -> list[str]:
    """Return a line about the number of replicas if there are several."""
    if recipe.cluster.world_size == 1:
        return []
    return [
        f"replicas: {recipe.cluster.world_size} processes train together (cluster.replicas = 1 for one; unset, outdo "
        f"takes {COUNT} for a small model on a CPU, which are faster than threads)"
    ]


def trains_on_cpu(device: str) -> bool:
    """Return whether a run with this `device` trains on a CPU; `auto` does where no driver of a GPU is found."""
    has_gpu = sys.platform == "darwin" or any(path.exists() for path in DRIVERS)
    return device == "cpu" or (device == "auto" and not has_gpu)


def _gains_by_replicas(recipe: Recipe) -> bool:
    """Return whether a run trains a small model on a CPU, for long enough, with nothing that was not measured."""
    train = recipe.train
    tokens = recipe.steps * train.prompts * train.group_size * recipe.sampling.max_tokens
    return (
        tokens >= WORTH_IT
        and train.prompts >= COUNT
        and _has_one_model(recipe)
        and recipe.environment is None
        and recipe.threads is None
        and recipe.engine == Piece(name=BUILTIN_ENGINE)
        and not was_launched()
        and trains_on_cpu(recipe.device)
        and cores() >= COUNT
        and main_memory() >= MEMORY
        and missing_extra(REPLICAS, "cluster.replicas") is None
        and _is_small(recipe.model)
    )


def _has_one_model(recipe: Recipe) -> bool:
    """Return whether nothing but the policy, and what is copied from it, is loaded."""
    others = [recipe.critic, recipe.reference.model, *recipe.teachers]
    return not any(others) and REWARD_MODEL not in (reward.name for reward in recipe.rewards)


def _is_small(model: str) -> bool:
    """Return whether a model on this machine is small; false if its files are broken, which the check reports.

    A name on the Hub is never: its first run, which downloads it, would have another number of replicas than the next.
    """
    if not Path(model).exists():
        return False
    try:
        weights = inspect_folder(model).parameters
    except ModelError:
        return False
    return weights is not None and weights <= SMALL_MODEL
