"""Build the engine of a run, and its rollouts: sampled in turn with training, or ahead of it."""

from outdo.config.engines import has_partial_rollouts
from outdo.config.names import ASYNCHRONOUS, PARTIAL_ROLLOUTS, POLICY_ON_FIRST_REPLICA
from outdo.config.recipe import Recipe
from outdo.data.prompts import Prompts
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.copies import PolicyOnFirstReplica
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.in_turn import InTurn, RunRollouts
from outdo.run.assemble.engines import open_engine
from outdo.types import Prompt
from outdo.utils.extras import load_extra
from outdo.utils.world import World

LAG = "train.max_staleness"


def open_engine_of_run(recipe: Recipe, policy: Policy, world: World) -> tuple[Engine, PolicyOnFirstReplica | None]:
    """Return the engine, and the policy that it reads if it samples ahead on the first of several replicas."""
    first_replica: PolicyOnFirstReplica | None = None
    if len(world) > 1 and recipe.train.max_staleness:
        first_replica = load_extra(POLICY_ON_FIRST_REPLICA, LAG)(policy, world)
    return open_engine(recipe.engine, policy, seed=recipe.seed, first_replica=first_replica, world=world), first_replica


def open_rollouts(
    recipe: Recipe,
    sampler: GroupSampler | DynamicSampling,
    prompts: Prompts[Prompt],
    policy: Policy,
    first_replica: PolicyOnFirstReplica | None,
) -> RunRollouts:
    """Return the rollouts of a run, which `sampler` samples: in turn with training, or ahead of it."""
    lag = recipe.train.max_staleness
    if not lag:
        return InTurn(sampler, prompts, policy)
    make = load_extra(PARTIAL_ROLLOUTS if has_partial_rollouts(recipe.engine) else ASYNCHRONOUS, LAG)
    return make(sampler, prompts, policy, lag=lag, last=recipe.steps, first_replica=first_replica)
