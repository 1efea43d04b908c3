"""The policy as it was before the first step of a run, to measure how far the answers have drifted from it."""

from collections.abc import Mapping
from typing import Any

from outdo.config.recipe import Recipe
from outdo.distributed.replicas import current
from outdo.models.adapter import on_same_base, switch, trains_base
from outdo.models.attention.choice import choose_forward
from outdo.models.bundle import Models
from outdo.models.download import downloaded
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes, Scorer

MOST_WEIGHTS = 2_000_000_000
"""Weights of the largest model that is loaded a second time: 8 GB of main memory, for as long as it is used."""


def starting_policy(recipe: Recipe, models: Models) -> Scorer | None:
    """Return what computes log-probabilities as the policy did before the first step; None if that would cost too much.

    It is the reference, if that is the starting policy; the base of a new adapter; or else the recipe's model, which is
    loaded once more, into main memory. That is not done for a large model, for a base in fewer bytes, and among
    replicas, each of which would load it.

    Raises `ModelError` if the recipe's model is no longer there.
    """
    policy, reference, adapter = models.policy, models.reference, recipe.train.adapter
    if reference is not None and not models.refresh_every and not recipe.reference.model:
        return reference
    if adapter is not None:
        is_base = _begins_as_base(adapter.options) and not trains_base(policy.model)
        return _without_adapter(policy) if is_base else None
    return None if current() is not None or recipe.weights != "float32" else _loaded(recipe, policy)


def _loaded(recipe: Recipe, policy: Policy) -> Scorer | None:
    facts = downloaded(inspect_folder(recipe.model))
    if facts.parameters is None or facts.parameters > MOST_WEIGHTS:
        return None
    model = load_model(facts).requires_grad_(False)
    on_cpu = policy.device.type == "cpu"
    forward = policy.forward.with_model(model) if on_cpu else choose_forward(model, precision="float32")
    return Scorer(forward, policy.batch_sizes if on_cpu else BatchSizes())


def _without_adapter(policy: Policy) -> Scorer:
    base = on_same_base(policy.model)
    switch(base, on=False)
    return Scorer(policy.forward.with_model(base), policy.batch_sizes)


def _begins_as_base(options: Mapping[str, Any]) -> bool:
    """Return whether a new adapter with these options computes nothing; some ways to initialise it change its base."""
    return all(value is True for name, value in options.items() if name.startswith("init_"))
