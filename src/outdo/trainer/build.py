"""From a recipe to the objects of the loop: here, and nowhere below, names become things."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outdo.algorithms.adaptive import Adaptive
from outdo.algorithms.advantages import Advantage
from outdo.algorithms.early_stopping import Stop
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Needs, needs_of
from outdo.config.names import REWARD_MODEL, REWARDS
from outdo.config.recipe import Piece, Recipe
from outdo.data.prompts import Prompts, tokenise
from outdo.data.questions import Question as Row
from outdo.data.questions import Questions, questions_of
from outdo.distributed.worker_pool import Team
from outdo.models.bundle import Models
from outdo.models.policy import BatchSizes, Policy
from outdo.models.reference import load_reference
from outdo.observability.record.recorder import Recorder
from outdo.rewards import Combined, load_reward
from outdo.rewards.online_model import Refreshed
from outdo.rewards.types import Reward
from outdo.rollouts.engines.builtin.multiprocess import TeamEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Rollouts
from outdo.rollouts.environments.dynamic_sampling import Refill
from outdo.rollouts.environments.single_turn import Question
from outdo.trainer import cost, micro_batch_size
from outdo.trainer.build_method import (
    adaptive_of,
    advantage_of,
    built,
    critic_of,
    objective_of,
    optimiser_of,
    penalty_of,
    stop_of,
)
from outdo.trainer.hardware import _settled
from outdo.types import Prompt
from outdo.utils.errors import Mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A run's objects. `notes` are what the user should know before it starts, a line each."""

    recipe: Recipe  # with what was left to outdo filled in
    models: Models
    prompts: Prompts
    held_out: list[Prompt]
    engine: TeamEngine
    examiner: Question  # says which held-out answers are right
    rollout: Rollouts | Refill
    advantage: Advantage
    objective: Objective
    stop: Stop
    reward: Reward
    adaptive: Mapping[str, Adaptive]  # coefficients that follow a target, by the name of their metric
    judges: Sequence[Refreshed]  # reward models that go on learning
    recorder: Recorder
    fingerprints: Mapping[str, str]  # of the data files, by the recipe's key
    notes: tuple[str, ...]

    def parts(self) -> dict[str, Adaptive | Refreshed | Recorder]:
        """What changes in a run besides the models and the place in the data, by a name for a checkpoint."""
        judges = {f"judge {number}": judge for number, judge in enumerate(self.judges)}
        return {**self.adaptive, **judges, "recorder": self.recorder}

    def close(self) -> None:
        """End the processes that the run has started."""
        self.reward.close()
        self.models.policy.team.close()


def open_session(
    recipe: Recipe, *, model: str | Path | None = None, fingerprints: Mapping[str, str] | None = None
) -> Session:
    """Load everything a recipe names. When a run is resumed, `model` is a checkpoint's folder, and `fingerprints` are
    those that its data files had.

    Raises `Mistakes` for what is wrong with the recipe, the data, the model folder or the reward.
    """
    questions = questions_of(recipe)
    if fingerprints is not None and fingerprints != questions.fingerprints:
        changed = [key for key, value in questions.fingerprints.items() if fingerprints.get(key) != value]
        raise Mistakes([f"{key}: the file's content is not what the run was started with" for key in changed])
    recipe, settled = _settled(recipe, str(model or recipe.model))
    team = Team(recipe.workers - 1 if recipe.workers else 0, threads=torch.get_num_threads())
    objective, penalty = objective_of(recipe), penalty_of(recipe)
    stop, optimiser = stop_of(recipe), optimiser_of(recipe)
    reward, judges = _rewards(recipe)
    advantage = advantage_of(recipe, penalty, dict(zip(reward.names, reward.weights, strict=True)))
    policy = Policy.load(
        model or recipe.model,
        device=recipe.device,
        stop_token_ids=recipe.sampling.stop_token_ids,
        optimiser=optimiser,
        work=BatchSizes(minibatches=recipe.train.minibatches),
        attention=recipe.attention,
        precision=recipe.precision,
        compile=recipe.compile,
        recompute=recipe.train.recompute,
        team=team,
    )
    recipe, fitted = _fitted(recipe, policy, needs_of(objective, advantage))
    prompts, held_out, dropped = _prompts(recipe, questions, policy)
    if not (recipe.rules or judges) and held_out:  # a score says better and worse, and not what is right
        held_out, dropped = [], [*dropped, "held-out questions are not asked: only a reward model would judge them"]
    engine = TeamEngine(policy, team, seed=recipe.seed)
    environment = Question(reward, max_failed=recipe.reward.max_failed)
    way = f"attention: {policy.forward.way}" + (f" ({policy.forward.why})" if policy.forward.why else "")
    return Session(
        recipe=recipe,
        models=_models(recipe, policy, objective, advantage),
        prompts=prompts,
        held_out=held_out,
        engine=engine,
        examiner=_examiner(recipe, environment, judges),
        rollout=_rollout(recipe, engine, environment, prompts, needs_of(objective, advantage)),
        advantage=advantage,
        objective=objective,
        stop=stop,
        reward=reward,
        adaptive=adaptive_of(objective, penalty),
        judges=judges,
        recorder=Recorder(policy, objective, seed=recipe.seed, **recipe.record.model_dump()),
        fingerprints=questions.fingerprints,
        notes=(*settled, way, *fitted, *dropped),
    )


def _models(recipe: Recipe, policy: Policy, objective: Objective, advantage: Advantage) -> Models:
    """The policy with a reference and a critic, where something needs them."""
    needs = needs_of(objective, advantage)
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
            refresh_every=reference.renew and reference.renew.every,
            mix=reference.renew.mix if reference.renew else 1.0,
        )
    except ValueError as error:
        raise Mistakes([f"reference.renew: {error}"]) from error


def _fitted(recipe: Recipe, policy: Policy, needs: Needs) -> tuple[Recipe, list[str]]:
    """The recipe with the tokens that may be computed at once, which the policy is told, and how they were found."""
    tokens, notes = recipe.train.micro_tokens, []
    if tokens == "auto":
        critic = recipe.critic is not None and recipe.critic.name == "model"
        parts = cost.kept(policy.model.num_parameters(), recipe, reference=needs.reference, critic=critic)
        tokens, why = micro_batch_size.micro_tokens(
            policy,
            longest=cost.longest_sequence(recipe),
            to_come=sum(size for name, size in parts.items() if name != "weights"),
            workers=cost.workers(recipe),
        )
        notes = [f"train.micro_tokens: {tokens:,} ({why})"]
    policy.work = replace(policy.work, micro_tokens=tokens)
    train = recipe.train.model_copy(update={"micro_tokens": tokens})
    return recipe.model_copy(update={"train": train}), notes


def _rewards(recipe: Recipe) -> tuple[Combined, list[Refreshed]]:
    """The sum of the recipe's rewards, and those among them that go on learning."""
    rewards = [(load_reward([spec], timeout=recipe.reward.timeout), weight) for spec, weight in recipe.rules]
    learnt = [reward for reward in recipe.rewards if reward.name == REWARD_MODEL]
    settings = {"device": recipe.device, "seed": recipe.seed}
    models = [
        (built(Piece(name=REWARD_MODEL, options={**settings, **each.options}), REWARDS), each.weight) for each in learnt
    ]
    return Combined([*rewards, *models]), [model for model, _ in models if isinstance(model, Refreshed)]


def _examiner(recipe: Recipe, environment: Question, judges: Sequence[Refreshed]) -> Question:
    """What is right is said by the rewards; where all of them are learnt, by the labels that they learn from."""
    return environment if recipe.rules or not judges else Question(judges[0].labels)


def _rollout(
    recipe: Recipe, engine: TeamEngine, environment: Question, prompts: Prompts, needs: Needs
) -> Rollouts | Refill:
    rollouts = Rollouts(
        engine,
        environment,
        group_size=recipe.train.group,
        sampling=sampling_params(recipe),
        greedy_baseline=needs.baselines,
    )
    return Refill(rollouts, prompts, rounds=recipe.train.refill) if recipe.train.refill else rollouts


def sampling_params(recipe: Recipe, **changes: Any) -> SamplingParams:
    """How the recipe samples, with some of it replaced."""
    sampling = recipe.sampling
    stop = {"stop": sampling.stop_texts, "stop_token_ids": sampling.stop_token_ids}
    return SamplingParams(**(sampling.model_dump() | stop | changes))


def held_out_questions(recipe: Recipe) -> Sequence[Row]:
    """The questions a run is judged by."""
    return questions_of(recipe).held_out[: recipe.eval.rows]


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
