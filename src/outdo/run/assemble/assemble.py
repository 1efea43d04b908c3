"""Assemble a run from a recipe: the place where the names in a recipe become objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from outdo.algorithms.adaptive import Adaptive
from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.config.attention import sequence_replicas
from outdo.config.file import dump
from outdo.config.paths import with_absolute_paths
from outdo.config.recipe import Recipe
from outdo.config.resume import reward_variables, source_files
from outdo.data.prompts import Prompts
from outdo.data.questions import Question
from outdo.data.splits import Questions, load_questions
from outdo.models.attention.choice import AttentionSetting
from outdo.models.bundle import Models
from outdo.models.chat_options import set_chat_options
from outdo.models.device import choose_device, describe_hardware
from outdo.models.download import downloaded
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.models.policy import Policy
from outdo.models.reference import load_reference
from outdo.models.scorer import BatchSizes, ScoringWorld
from outdo.rewards import WeightedSum
from outdo.rewards.base import Reward
from outdo.rewards.first_rank import score_on_first_rank
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment, GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.in_turn import RunRollouts
from outdo.run.assemble import micro_batch_size
from outdo.run.assemble.engines import replays_routes
from outdo.run.assemble.environment import environment_notes, open_environment
from outdo.run.assemble.hardware import busy_notes, gradients_of, resolve_hardware, resolve_weights
from outdo.run.assemble.method import (
    adapter_of,
    adaptive_of,
    advantage_of,
    advantage_of_rewards,
    critic_of,
    objective_of,
    optimiser_of,
    penalty_of,
    stop_of,
)
from outdo.run.assemble.model_notes import model_notes
from outdo.run.assemble.prompts import build_prompts, with_date_of_template
from outdo.run.assemble.rewards import rewards_of, start_placed, weights_of_parts
from outdo.run.assemble.rollouts import open_engine_of_run, open_rollouts
from outdo.run.check import cost
from outdo.run.check.fallbacks import fallback_warnings
from outdo.run.check.reward_trials import tried_first
from outdo.run.display import Display
from outdo.run.folder.provenance import code_hashes, folder_hash, saved_revisions, variable_hashes, versions
from outdo.run.watchers import Watcher
from outdo.types import Prompt, Stop
from outdo.utils.errors import UserError
from outdo.utils.processor_wait import share_so_far
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.world import ALONE, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The objects of a run."""

    recipe: Recipe  # every setting that was left to outdo is filled in
    world: World  # the processes of the run
    models: Models
    prompts: Prompts[Prompt]
    held_out: Sequence[Prompt]
    held_out_sets: Mapping[str, str]  # the name of the set of each of them by its id; empty if sets have no names
    commits: Mapping[str, str]  # of the data sets from the Hub
    engine: Engine
    eval_environment: Environment  # scores the answers to the held-out questions
    sampler: GroupSampler | DynamicSampling
    rollouts: RunRollouts  # the groups of each step: `sampler` samples the batches of `prompts`
    advantage: Advantage
    objective: Objective
    stop: Stop | None
    reward: WeightedSum
    adaptive: Mapping[str, Adaptive]  # coefficients that follow a target, by the name of their metric
    watchers: Sequence[Watcher]  # what watches the steps: the record, trackers ...
    identity: Mapping[str, Any]  # what makes it this run, for its checkpoints: see `identity_of`
    notes: tuple[str, ...]  # what was chosen for the run, and why
    warnings: tuple[str, ...]  # what makes it slow, and which questions it does not use

    def __post_init__(self) -> None:
        for watcher in self.watchers:
            watcher.attach(self.recipe, self.models, self.advantage, self.objective, self.prompts)

    @property
    def is_divided(self) -> bool:
        """Whether each replica holds only a part of what a checkpoint holds."""
        return self.models.is_divided or any(reward.is_divided for reward in self.reward.learning)

    @property
    def writers(self) -> World:
        """The processes that write a checkpoint: all of them if each holds a part of it; otherwise each by itself."""
        return self.world if self.is_divided else ALONE

    def close(self) -> None:
        """Stop the processes that the run has started. It has started no replica: they end after the run."""
        self.rollouts.stop()
        self.engine.close()
        self.reward.close()
        self.rollouts.join()


UNSEEN = Display(live=False)
"""Shows nothing while a run is built."""


def assemble_run(
    recipe: Recipe,
    *,
    facts: ModelFacts | None = None,
    model: str | Path | None = None,
    questions: Questions | None = None,
    folder: Path | None = None,
    display: Display = UNSEEN,
    watchers: Sequence[Watcher] = (),
    world: World = ALONE,
) -> Run:
    """Load everything that a recipe names.

    `facts` describes the recipe's model and `questions` are its data, where a caller has read them already. A resumed
    run gives `model`, the folder of the checkpoint. In `folder`, that of the run, rewards keep what a resumed run
    needs. `display` shows on a terminal how far it is. `watchers` get the objects of the run. All processes of a
    `world` have to call it.

    Raises `UserError` for every fault of the recipe, the data, the model folder or the rewards.
    """
    questions = questions or load_questions(recipe)
    facts = _with_files(facts if facts and model is None else inspect_folder(model or recipe.model), display)
    recipe, hardware_notes = resolve_hardware(with_absolute_paths(recipe), facts, world)
    objective, penalty, stop = objective_of(recipe), penalty_of(recipe), stop_of(recipe)
    reward = rewards_of(recipe, folder, world, tried_first=tried_first(questions.train))
    weights = weights_of_parts(reward)
    advantage = advantage_of(recipe, penalty, weights)
    requires = requirements_of(objective, advantage)
    with display.working(f"loading {model or recipe.model}"):
        policy, recipe = _policy(recipe, facts, world)
    recipe, memory_notes = _resolve_micro_batch(recipe, policy, requires, world)
    prompts, held_out, left_out = build_prompts(recipe, questions, policy, display)
    engine, first_replica = open_engine_of_run(recipe, policy, world)
    routes, routing_notes = replays_routes(engine, policy.forward)
    reward = reward if first_replica else score_on_first_rank(reward, world)
    environment, eval_environment = _environments(recipe, policy, reward)
    sampler = _sampler(recipe, engine, environment, prompts, requires, weights, routes=routes)
    return Run(
        recipe=recipe,
        world=world,
        models=_models(recipe, policy, objective, requires),
        prompts=prompts,
        held_out=held_out,
        held_out_sets=questions.sets,
        commits=questions.commits,
        engine=engine,
        eval_environment=eval_environment,
        sampler=sampler,
        rollouts=open_rollouts(recipe, sampler, prompts, policy, first_replica),
        advantage=advantage,
        objective=objective,
        stop=stop,
        reward=reward,
        adaptive=adaptive_of(objective, penalty),
        watchers=watchers,
        identity=identity_of(recipe, questions),
        notes=(
            *hardware_notes,
            *busy_notes(share_so_far()),
            *model_notes(recipe, policy, reward, world),
            *engine.notes(),
            *start_placed(reward, world),
            *routing_notes,
            *environment_notes(recipe.environment),
            *memory_notes,
        ),
        warnings=(*fallback_warnings(policy.forward, engine.choice), *left_out),
    )


def _with_files(facts: ModelFacts, display: Display) -> ModelFacts:
    """Download a model of the Hub, so that the first run chooses by its files what the next one does.

    A GGUF file is converted.
    """
    with display.working(f"{'converting' if facts.dequantised else 'downloading'} {facts.name}"):
        return downloaded(facts)


def identity_of(recipe: Recipe, questions: Questions) -> dict[str, Any]:
    """Return what makes a run this run and no other; a checkpoint holds it, and a resumed run is compared with it.

    These are the resolved recipe as TOML, the versions of Python and the libraries, and the SHA-256 of the data files,
    of the code of rewards and pieces and the files that it reads, of the environment variables that rewards are given,
    and of the folders of reward models that the run does not train: a checkpoint holds the weights of all other models.
    """
    return {
        "recipe": dump(recipe),
        "versions": versions(),
        "process": {"hardware": describe_hardware(choose_device(recipe.device)[0].type)},
        "data": dict(questions.fingerprints),
        "code": code_hashes(source_files(recipe)),
        "variables": variable_hashes(reward_variables(recipe).intersection(recipe.reward_limits.environment)),
        "models": {str(folder): folder_hash(folder) for folder in _frozen_reward_models(recipe)},
    }


def _frozen_reward_models(recipe: Recipe) -> list[Path]:
    """Return the folders of reward models that the run does not train, without those that are names on the hub."""
    frozen = [each.options for each in recipe.rewards if each.name == REWARD_MODEL and "labels" not in each.options]
    return [folder for options in frozen if (folder := Path(str(options.get("path")))).is_dir()]


def sampling_params(recipe: Recipe, **changes: Any) -> SamplingParams:
    """Return the recipe's sampling parameters, some of them replaced by `changes`."""
    sampling = recipe.sampling
    stop = {"stop": sampling.stop_texts, "stop_token_ids": sampling.stop_token_ids}
    return SamplingParams(**(sampling.model_dump() | stop | changes))


def held_out_questions(recipe: Recipe, folder: Path) -> dict[str | None, list[Question]]:
    """Return the questions that the run in `folder` is evaluated on by the name of their set; None if it has none."""
    questions = load_questions(recipe, saved_revisions(folder))
    found: dict[str | None, list[Question]] = {}
    for question in questions.evaluated(recipe.eval.rows):
        found.setdefault(questions.sets.get(question.id), []).append(question)
    return found


def _policy(recipe: Recipe, facts: ModelFacts, world: World) -> tuple[Policy, Recipe]:
    """Return the policy, and the recipe with the date that its chat template writes."""
    policy = Policy.load(
        facts,
        device=recipe.device,
        stop_token_ids=recipe.sampling.stop_token_ids,
        adapter=None if facts.adapter else adapter_of(recipe),  # a checkpoint of the run has the adapter already
        seed=recipe.seed,
        weights=resolve_weights(recipe, facts),
        optimiser=optimiser_of(recipe),
        batch_sizes=BatchSizes(minibatches=recipe.train.minibatches),
        attention=cast("AttentionSetting", recipe.attention.name),
        precision=recipe.precision,
        compile=recipe.compile,
        gradient_checkpointing=recipe.train.gradient_checkpointing,
        gradients=gradients_of(recipe),
        world=world,
    )
    set_chat_options(policy.tokenizer, recipe.data.chat_options)
    if isinstance(world, ScoringWorld):
        world.check(policy.forward)
    return policy, with_date_of_template(recipe, policy, world)


def _models(recipe: Recipe, policy: Policy, objective: Objective, requires: Requires) -> Models:
    """Return the policy with the reference and the critic that the method requires."""
    reference = recipe.reference
    scorer = load_reference(policy, reference.model) if requires.reference and reference.model else None
    critic = critic_of(recipe, policy) if requires.values else None
    try:
        return Models.of(
            policy,
            objective,
            requires=requires,
            reference=scorer,
            critic=critic,
            refresh_every=reference.sync and reference.sync.every,
            mix=reference.sync.mix if reference.sync else 1.0,
        )
    except ValueError as error:
        raise UserError([f"reference.sync: {error}"]) from error


def _resolve_micro_batch(recipe: Recipe, policy: Policy, requires: Requires, world: World) -> tuple[Recipe, list[str]]:
    """Set how many tokens the policy computes at once; return the recipe with that number, and how it was found."""
    tokens, notes = recipe.train.micro_batch_tokens, []
    if tokens == "auto":
        critic = recipe.critic is not None and recipe.critic.name == "model"
        trained = sum(weight.numel() for weight in policy.optimiser.weights.values())
        adapter = cost.AdapterSize(trained=trained, base=0) if policy.base else None  # its base is loaded already
        parts = cost.model_states(
            policy.model.num_parameters(), recipe, reference=requires.reference, critic=critic, adapter=adapter
        )
        find = partial(
            micro_batch_size.find_micro_batch_tokens,
            policy,
            longest=cost.longest_sequence(recipe),
            reserved=sum(size for name, size in parts.items() if not name.startswith("weights")),
            replicas=recipe.cluster.world_size,
            share=sequence_replicas(recipe),
        )
        tokens, why = world.together(find)[0]  # divided models are run by all
        notes = [f"train.micro_batch_tokens: {tokens:,} ({why})"]
    policy.set_micro_batch_tokens(tokens)
    train = recipe.train.model_copy(update={"micro_batch_tokens": tokens})
    return recipe.model_copy(update={"train": train}), notes


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


def _sampler(
    recipe: Recipe,
    engine: Engine,
    environment: Environment,
    prompts: Prompts[Prompt],
    requires: Requires,
    weights: Mapping[str, float],
    *,
    routes: bool,
) -> GroupSampler | DynamicSampling:
    """Return what samples the groups of a step; `weights` are those of the reward's parts."""
    sampler = GroupSampler(
        engine,
        environment,
        group_size=recipe.train.group_size,
        sampling=sampling_params(recipe, routes=routes),
        greedy_baseline=requires.baselines,
        observe=prompts.observe,
    )
    if rounds := recipe.train.dynamic_sampling:
        return DynamicSampling(sampler, prompts, advantage=advantage_of_rewards(recipe, weights), rounds=rounds)
    return sampler
