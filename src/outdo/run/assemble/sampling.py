"""Open what samples in a run: engine, environments, and rollouts in turn with training or ahead of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from outdo.config.engines import has_partial_rollouts
from outdo.config.names import ASYNCHRONOUS, DEMONSTRATIONS, PARTIAL_ROLLOUTS, POLICY_ON_FIRST_REPLICA
from outdo.config.recipe import Recipe
from outdo.data.prompts import Prompts
from outdo.models.policy import Policy
from outdo.rewards import WeightedSum
from outdo.rewards.base import Reward
from outdo.rewards.first_rank import score_on_first_rank
from outdo.rollouts.demonstrations import WithDemonstrations
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.copies import PolicyOnFirstReplica
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment, GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.in_turn import InTurn, RunRollouts, RunSampler
from outdo.run.assemble.engines import open_engine, replays_routes
from outdo.run.assemble.environment import environment_notes, open_environment
from outdo.run.assemble.method import Method, advantage_of_rewards
from outdo.run.assemble.rewards import weights_of_parts
from outdo.types import Prompt
from outdo.utils.extras import load_extra
from outdo.utils.world import World

LAG = "train.max_staleness"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSampling:
    """What samples and scores the answers of a run."""

    engine: Engine
    reward: WeightedSum  # as the environments call it
    eval_environment: Environment  # scores the answers to the held-out questions
    sampler: RunSampler
    rollouts: RunRollouts  # the groups of each step: `sampler` samples the batches of prompts
    notes: tuple[str, ...]

    def close(self) -> None:
        """Stop what samples, and end its processes."""
        self.rollouts.stop()
        self.engine.close()
        self.reward.close()
        self.rollouts.join()


def open_sampling(
    recipe: Recipe, policy: Policy, reward: WeightedSum, method: Method, prompts: Prompts[Prompt], world: World
) -> RunSampling:
    """Open the engine and the environments of a run, and make its rollouts of them."""
    engine, first_replica = _engine(recipe, policy, world)
    routes, routing_notes = replays_routes(engine, policy.forward, with_inputs=recipe.data.inputs is not None)
    reward = reward if first_replica else score_on_first_rank(reward, world)
    environment, eval_environment = _environments(recipe, policy, reward)
    sampler: RunSampler = GroupSampler(
        engine,
        environment,
        group_size=recipe.train.group_size,
        sampling=sampling_params(recipe, routes=routes),
        greedy_baseline=method.requires.baselines,
        observe=prompts.observe,
    )
    if rounds := recipe.train.dynamic_sampling:
        advantage = advantage_of_rewards(recipe, weights_of_parts(reward))
        sampler = DynamicSampling(sampler, prompts, advantage=advantage, rounds=rounds)
    if (demonstrations := recipe.data.demonstrations) is not None:
        assert isinstance(sampler, GroupSampler), "a rule refuses dynamic sampling with demonstrations"
        answer_of = load_extra(DEMONSTRATIONS, "data.demonstrations")(recipe, policy)
        sampler = WithDemonstrations(sampler, answer_of, share=demonstrations.share, seed=recipe.seed)
    return RunSampling(
        engine=engine,
        reward=reward,
        eval_environment=eval_environment,
        sampler=sampler,
        rollouts=_rollouts(recipe, sampler, prompts, policy, first_replica),
        notes=(*engine.notes(), *routing_notes, *environment_notes(recipe.environment)),
    )


def sampling_params(recipe: Recipe, **changes: Any) -> SamplingParams:
    """Return the recipe's sampling parameters, some of them replaced by `changes`."""
    sampling = recipe.sampling
    stop = {"stop": sampling.stop_texts, "stop_token_ids": sampling.stop_token_ids}
    return SamplingParams(**(sampling.model_dump() | stop | changes))


def _engine(recipe: Recipe, policy: Policy, world: World) -> tuple[Engine, PolicyOnFirstReplica | None]:
    """Return the engine, and the policy that it reads if it samples ahead on the first of several replicas."""
    first_replica: PolicyOnFirstReplica | None = None
    if len(world) > 1 and recipe.train.max_staleness:
        first_replica = load_extra(POLICY_ON_FIRST_REPLICA, LAG)(policy, world)
    return open_engine(recipe.engine, policy, seed=recipe.seed, first_replica=first_replica, world=world), first_replica


def _rollouts(
    recipe: Recipe,
    sampler: RunSampler,
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


def _environments(recipe: Recipe, policy: Policy, reward: Reward) -> tuple[Environment, Environment]:
    """Return the environments of the training and of the evaluation.

    The rewards score the answers of both. If all of them are learnt, the labels that the first reward model learns from
    score the evaluation.
    """
    in_prompts: dict[str, Any] = recipe.data.model_dump(include={"system", "special_tokens"})
    in_prompts["longest_prompt"] = recipe.data.max_prompt_tokens
    open_with = partial(open_environment, recipe.environment, policy, **in_prompts)
    environment = open_with(reward, **recipe.reward_limits.of_steps)
    if recipe.reward_functions or reward.labels is None:
        return environment, environment
    return environment, open_with(reward.labels)
