"""Build the engine of a run, and its rollouts: sampled in turn with training, or ahead of it."""

from outdo.config.engines import goes_across_updates
from outdo.config.recipe import Recipe
from outdo.data.prompts import Prompts
from outdo.models.policy import Policy
from outdo.rollouts.across_updates import AheadAcrossUpdates
from outdo.rollouts.ahead import AheadSampler
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.on_first import OnFirst
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.in_turn import InTurn, RunRollouts
from outdo.trainer.engines import open_engine
from outdo.types import Prompt
from outdo.utils.world import World


def open_engine_of_run(recipe: Recipe, policy: Policy, world: World) -> tuple[Engine, OnFirst | None]:
    """Return the engine, and the policy as the first of several replicas samples ahead from it, if it does."""
    on_first = OnFirst(policy, world) if len(world) > 1 and recipe.train.max_staleness else None
    return open_engine(recipe.engine, policy, seed=recipe.seed, on_first=on_first, world=world), on_first


def open_rollouts(
    recipe: Recipe,
    sampler: GroupSampler | DynamicSampling,
    prompts: Prompts[Prompt],
    policy: Policy,
    on_first: OnFirst | None,
) -> RunRollouts:
    """Return the rollouts of a run, which `sampler` samples: in turn with training, or ahead of it."""
    if not recipe.train.max_staleness:
        return InTurn(sampler, prompts, policy)
    make = AheadAcrossUpdates if goes_across_updates(recipe.engine) else AheadSampler
    return make(sampler, prompts, policy, lag=recipe.train.max_staleness, last=recipe.steps, on_first=on_first)
