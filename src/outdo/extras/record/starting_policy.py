"""The policy as it was before the first step of a run, to measure how far the answers have drifted from it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from outdo.config.recipe import Recipe
from outdo.models.adapter import on_same_base, switch, trains_base
from outdo.models.bundle import Models
from outdo.models.choose_forward import choose_forward
from outdo.models.download import downloaded
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes, Scorer
from outdo.types import Batch
from outdo.utils.errors import ModelError
from outdo.utils.world import World

MOST_WEIGHTS = 2_000_000_000
"""Weights of the largest model that is loaded a second time: 8 GB of main memory, for as long as it is used."""


def starting_logprobs(recipe: Recipe, models: Models, batch: Batch, world: World) -> Tensor | None:
    """Return log π_start [B, T] of a batch, by the policy before the first step; None if that would cost too much.

    That policy is the reference, if it stays as it is; the base of a new adapter; or else the recipe's model, which is
    loaded once more, into main memory, by the first of several replicas. That is not done for a large model or for a
    base in fewer bytes. All replicas have to call it.

    Raises `ModelError` if the recipe's model is no longer there.
    """
    policy, reference, adapter = models.policy, models.reference, recipe.train.adapter
    if reference is not None and not models.refresh_every and not recipe.reference.model:
        return reference.logprobs(batch)
    if adapter is not None:
        is_base = _begins_as_base(adapter.options) and not trains_base(policy.model)
        return _without_adapter(policy).logprobs(batch) if is_base else None
    weights = sum(weight.numel() for weight in policy.optimiser.weights.values())
    return None if recipe.weights != "float32" or weights > MOST_WEIGHTS else _by_loading(recipe, policy, batch, world)


def _by_loading(recipe: Recipe, policy: Policy, batch: Batch, world: World) -> Tensor:
    def of_loaded() -> Tensor | str:
        try:
            return _loaded(recipe, policy).logprobs(batch)
        except ModelError as error:  # the other replicas have to know
            return str(error)

    loaded = world.from_first(of_loaded)
    if isinstance(loaded, str):
        raise ModelError(loaded)
    return loaded


def _loaded(recipe: Recipe, policy: Policy) -> Scorer:
    model = load_model(downloaded(inspect_folder(recipe.model))).requires_grad_(False)
    if policy.device.type != "cpu":
        return Scorer(choose_forward(model, precision="float32"), BatchSizes())
    return Scorer(policy.forward.with_model(model), policy.batch_sizes)


def _without_adapter(policy: Policy) -> Scorer:
    base = on_same_base(policy.model)
    switch(base, on=False)
    return Scorer(policy.forward.with_model(base), policy.batch_sizes)


def _begins_as_base(options: Mapping[str, Any]) -> bool:
    """Return whether a new adapter with these options computes nothing; some ways to initialise it change its base."""
    return all(value is True for name, value in options.items() if name.startswith("init_"))
