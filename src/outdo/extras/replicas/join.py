"""The replicas of a run, as its recipe has them compute."""

from datetime import timedelta
from functools import partial

import torch

from outdo.config.attention import sequence_replicas
from outdo.config.recipe import Recipe
from outdo.extras.replicas.lockstep import LockstepReplicas
from outdo.extras.replicas.replicas import Replicas, join
from outdo.models.device import choose_device


def join_replicas(recipe: Recipe) -> Replicas:
    """Meet the other replicas of a run, and return them as `replicas_for` does.

    Raises `WorkerError` if one of them does not come within `cluster.timeout` seconds.
    """
    return join(timeout=recipe.cluster.timeout, device=recipe.device, make=partial(replicas_for, recipe))


def replicas_for(recipe: Recipe, *, timeout: timedelta) -> Replicas:
    """Return the replicas that have met, sharing sequences and dividing models as the recipe says.

    All of them have to call it.
    """
    share, shard = sequence_replicas(recipe), recipe.cluster.shard
    if not shard:
        return Replicas(timeout=timeout) if share == 1 else LockstepReplicas(timeout=timeout, share=share)
    from outdo.extras.replicas.sharding import DividingReplicas

    return DividingReplicas(
        timeout=timeout,
        device=choose_device(recipe.device)[0],
        share=share,
        offload=shard.offload,
        reduce_dtype=None if shard.reduce_dtype == "float32" else getattr(torch, shard.reduce_dtype),
    )
