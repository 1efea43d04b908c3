"""From a recipe to the objects of the loop: here, and nowhere below, names become things."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outdo.algorithms.adaptive import Adaptive
from outdo.algorithms.advantages import Advantage
from outdo.algorithms.early_stopping import Stop
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.config.names import REWARD_MODEL, REWARDS
from outdo.config.recipe import Piece, Recipe
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import Question as Row
from outdo.data.questions import Questions, load_questions
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.models.reference import load_reference
from outdo.models.scorer import BatchSizes
from outdo.observability.record.recorder import Recorder
from outdo.rewards import WeightedSum, load_reward
from outdo.rewards.online_model import OnlineRewardModel
from outdo.rewards.types import Reward
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.builtin.multiprocess import MultiprocessEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.trainer import cost, micro_batch_size
from outdo.trainer.build_method import (
    adaptive_of,
    advantage_of,
    critic_of,
    instantiate,
    objective_of,
    optimiser_of,
    penalty_of,
    stop_of,
)
from outdo.trainer.hardware import resolve_hardware
from outdo.types import Prompt
from outdo.utils.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's objects. `notes` are what the user should know before it starts, a line each."""

    recipe: Recipe  # with what was left to outdo filled in
    models: Models
    prompts: Prompts
    held_out: list[Prompt]
    engine: Engine
    pool: WorkerPool | None  # None: one process
    eval_environment: SingleTurn  # says which held-out answers are right
    rollout: GroupSampler | DynamicSampling
    advantage: Advantage
    objective: Objective
    stop: Stop
    reward: Reward
    adaptive: Mapping[str, Adaptive]  # coefficients that follow a target, by the name of their metric
    online_reward_models: Sequence[OnlineRewardModel]  # reward models that go on learning
    recorder: Recorder
    fingerprints: Mapping[str, str]  # of the data files, by the recipe's key
    notes: tuple[str, ...]

    def parts(self) -> dict[str, Adaptive | OnlineRewardModel | Recorder]:
        """What changes in a run besides the models and the place in the data, by a name for a checkpoint."""
        judges = {f"judge {number}": judge for number, judge in enumerate(self.online_reward_models)}
        return {**self.adaptive, **judges, "recorder": self.recorder}

    def close(self) -> None:
        """End the processes that the run has started."""
        self.reward.close()
        if self.pool is not None:
            self.pool.close()


def build_run(recipe: Recipe, *, model: str | Path | None = None, fingerprints: Mapping[str, str] | None = None) -> Run:
    """Load everything a recipe names. When a run is resumed, `model` is a checkpoint's folder, and `fingerprints` are
    those that its data files had.

    Raises `UserError` for what is wrong with the recipe, the data, the model folder or the reward.
    """
    questions = load_questions(recipe)
    if fingerprints is not None and fingerprints != questions.fingerprints:
        changed = [key for key, value in questions.fingerprints.items() if fingerprints.get(key) != value]
        raise UserError([f"{key}: the file's content is not what the run was started with" for key in changed])
    recipe, settled = resolve_hardware(recipe, str(model or recipe.model))
    pool = _pool(recipe)
    objective, penalty = objective_of(recipe), penalty_of(recipe)
    stop, optimiser = stop_of(recipe), optimiser_of(recipe)
    reward, judges = _rewards(recipe)
    advantage = advantage_of(recipe, penalty, dict(zip(reward.names, reward.weights, strict=True)))
    policy = Policy.load(
        model or recipe.model,
        device=recipe.device,
        stop_token_ids=recipe.sampling.stop_token_ids,
        optimiser=optimiser,
        batch_sizes=BatchSizes(minibatches=recipe.train.minibatches),
        attention=recipe.attention,
        precision=recipe.precision,
        compile=recipe.compile,
        gradient_checkpointing=recipe.train.gradient_checkpointing,
        pool=pool,
    )
    recipe, fitted = _resolve_micro_batch(recipe, policy, requirements_of(objective, advantage))
    prompts, held_out, dropped = _prompts(recipe, questions, policy)
    if not (recipe.reward_functions or judges) and held_out:  # a score says better and worse, and not what is right
        held_out, dropped = [], [*dropped, "held-out questions are not asked: only a reward model would judge them"]
    engine = _engine(policy, pool, recipe.seed)
    environment = SingleTurn(reward, max_failed=recipe.reward_limits.max_failed)
    way = f"attention: {policy.forward.way}" + (f" ({policy.forward.reason})" if policy.forward.reason else "")
    return Run(
        recipe=recipe,
        models=_models(recipe, policy, objective, advantage),
        prompts=prompts,
        held_out=held_out,
        engine=engine,
        pool=pool,
        eval_environment=_eval_environment(recipe, environment, judges),
        rollout=_rollout(recipe, engine, environment, prompts, requirements_of(objective, advantage)),
        advantage=advantage,
        objective=objective,
        stop=stop,
        reward=reward,
        adaptive=adaptive_of(objective, penalty),
        online_reward_models=judges,
        recorder=Recorder(policy, objective, seed=recipe.seed, **recipe.record.model_dump()),
        fingerprints=questions.fingerprints,
        notes=(*settled, way, *fitted, *dropped),
    )


def _pool(recipe: Recipe) -> WorkerPool | None:
    """Start the further processes of a run; None if it has one process."""
    workers = recipe.workers or 1
    return WorkerPool(workers - 1, threads=torch.get_num_threads()) if workers > 1 else None


def _engine(policy: Policy, pool: WorkerPool | None, seed: int) -> Engine:
    return BuiltinEngine(policy, seed=seed) if pool is None else MultiprocessEngine(policy, pool, seed=seed)


def _models(recipe: Recipe, policy: Policy, objective: Objective, advantage: Advantage) -> Models:
    """The policy with a reference and a critic, where something needs them."""
    needs = requirements_of(objective, advantage)
    reference = recipe.reference
    scorer = load_reference(policy, reference.model) if needs.reference and reference.model else None
    critic = critic_of(recipe, policy) if needs.values else None
    try:
        return Models.of(
            policy,
            objective,
            advantage=advantage,
            reference=scorer,
            critic=critic,
            refresh_every=reference.sync and reference.sync.every,
            mix=reference.sync.mix if reference.sync else 1.0,
        )
    except ValueError as error:
        raise UserError([f"reference.sync: {error}"]) from error


def _resolve_micro_batch(recipe: Recipe, policy: Policy, needs: Requires) -> tuple[Recipe, list[str]]:
    """The recipe with the tokens that may be computed at once, which the policy is told, and how they were found."""
    tokens, notes = recipe.train.micro_batch_tokens, []
    if tokens == "auto":
        critic = recipe.critic is not None and recipe.critic.name == "model"
        parts = cost.kept(policy.model.num_parameters(), recipe, reference=needs.reference, critic=critic)
        tokens, why = micro_batch_size.find_micro_batch_tokens(
            policy,
            longest=cost.longest_sequence(recipe),
            to_come=sum(size for name, size in parts.items() if name != "weights"),
            workers=cost.workers(recipe),
        )
        notes = [f"train.micro_batch_tokens: {tokens:,} ({why})"]
    policy.set_micro_batch_tokens(tokens)
    train = recipe.train.model_copy(update={"micro_batch_tokens": tokens})
    return recipe.model_copy(update={"train": train}), notes


def _rewards(recipe: Recipe) -> tuple[WeightedSum, list[OnlineRewardModel]]:
    """The sum of the recipe's rewards, and those among them that go on learning."""
    timeout = recipe.reward_limits.timeout
    rewards = [(load_reward([spec], timeout=timeout), weight) for spec, weight in recipe.reward_functions]
    learnt = [reward for reward in recipe.rewards if reward.name == REWARD_MODEL]
    settings = {"device": recipe.device, "seed": recipe.seed}
    models = [
        (instantiate(Piece(name=REWARD_MODEL, options={**settings, **each.options}), REWARDS), each.weight)
        for each in learnt
    ]
    return WeightedSum([*rewards, *models]), [model for model, _ in models if isinstance(model, OnlineRewardModel)]


def _eval_environment(recipe: Recipe, environment: SingleTurn, judges: Sequence[OnlineRewardModel]) -> SingleTurn:
    """What is right is said by the rewards; where all of them are learnt, by the labels that they learn from."""
    return environment if recipe.reward_functions or not judges else SingleTurn(judges[0].labels)


def _rollout(
    recipe: Recipe, engine: Engine, environment: SingleTurn, prompts: Prompts, needs: Requires
) -> GroupSampler | DynamicSampling:
    rollouts = GroupSampler(
        engine,
        environment,
        group_size=recipe.train.group_size,
        sampling=sampling_params(recipe),
        greedy_baseline=needs.baselines,
    )
    return (
        DynamicSampling(rollouts, prompts, rounds=recipe.train.dynamic_sampling)
        if recipe.train.dynamic_sampling
        else rollouts
    )


def sampling_params(recipe: Recipe, **changes: Any) -> SamplingParams:
    """How the recipe samples, with some of it replaced."""
    sampling = recipe.sampling
    stop = {"stop": sampling.stop, "stop_token_ids": sampling.stop_token_ids}
    return SamplingParams(**(sampling.model_dump() | stop | changes))


def held_out_questions(recipe: Recipe) -> Sequence[Row]:
    """The questions a run is judged by."""
    return load_questions(recipe).held_out[: recipe.eval.rows]


def _prompts(recipe: Recipe, questions: Questions, policy: Policy) -> tuple[Prompts, list[Prompt], list[str]]:
    data = recipe.data
    context = policy.context
    longest = data.max_prompt_tokens if context is None else min(data.max_prompt_tokens, context - 1)
    how = {"max_tokens": longest, "template": data.template, "system": data.system, "overlong": data.overlong}
    train = tokenise(questions.train, policy.tokenizer, **how)
    held_out = tokenise(questions.held_out[: recipe.eval.rows], policy.tokenizer, **how)
    notes = [
        f"{len(before) - len(after)} of {len(before)} {what} questions are longer than {longest} tokens and left out"
        for what, before, after in (
            ("training", questions.train, train),
            ("held-out", questions.held_out[: recipe.eval.rows], held_out),
        )
        if len(after) < len(before)
    ]
    prompts = Prompts(train, per_step=recipe.train.prompts, seed=recipe.seed, shuffle=data.shuffle)
    return prompts, held_out, notes
