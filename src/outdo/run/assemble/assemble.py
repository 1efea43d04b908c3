"""Assemble a run from a recipe: the place where the names in a recipe become objects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.config.file import dump
from outdo.config.paths import with_absolute_paths
from outdo.config.recipe import Recipe
from outdo.config.resume import reward_variables, source_files
from outdo.data.splits import Questions, load_questions
from outdo.models.bundle import Models
from outdo.models.device import choose_device, describe_hardware
from outdo.models.download import downloaded
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.rewards import WeightedSum
from outdo.rollouts.hints import Hints
from outdo.run.assemble.data import RunPrompts, tokenise_questions
from outdo.run.assemble.hardware import busy_notes, resolve_hardware
from outdo.run.assemble.hints import hints_of
from outdo.run.assemble.method import Method, method_of
from outdo.run.assemble.model_notes import model_notes
from outdo.run.assemble.models import load_policy, models_of, resolve_micro_batch
from outdo.run.assemble.rewards import rewards_of, start_placed, weights_of_parts
from outdo.run.assemble.sampling import RunSampling, open_sampling
from outdo.run.check.fallbacks import fallback_warnings
from outdo.run.check.reward_trials import tried_first
from outdo.run.display import Display
from outdo.run.folder.provenance import code_hashes, folder_hash, variable_hashes, versions
from outdo.run.watchers import Watcher
from outdo.types import Sampled
from outdo.utils.processor_wait import share_so_far
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.world import ALONE, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The objects of a run."""

    recipe: Recipe  # every setting that was left to outdo is filled in
    world: World  # the processes of the run
    data: RunPrompts
    method: Method
    models: Models
    sampling: RunSampling
    hints: Hints | None  # of a teacher that reads one
    watchers: Sequence[Watcher]  # what watches the steps: the record, trackers ...
    identity: Mapping[str, Any]  # what makes it this run, for its checkpoints: see `identity_of`
    notes: tuple[str, ...]  # what was chosen for the run, and why
    warnings: tuple[str, ...]  # what makes it slow, and which questions it does not use

    def __post_init__(self) -> None:
        for watcher in self.watchers:
            watcher.attach(self.recipe, self.models, self.method.advantage, self.method.objective, self.data.prompts)

    @property
    def reward(self) -> WeightedSum:
        """What scores the answers."""
        return self.sampling.reward

    @property
    def rollouts(self) -> Iterable[tuple[int, Sampled]]:
        """The number of each step, and its groups with their rewards and hints."""
        return self.sampling.rollouts if self.hints is None else self.hints.written(self.sampling.rollouts)

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
        self.sampling.close()


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
    reward = rewards_of(recipe, folder, world, tried_first=tried_first(questions.train))
    method = method_of(recipe, weights_of_parts(reward))
    with display.working(f"loading {model or recipe.model}"):
        policy, recipe = load_policy(recipe, facts, world)
    recipe, memory_notes = resolve_micro_batch(recipe, policy, method.requires, world)
    data = tokenise_questions(recipe, questions, policy, display)
    sampling = open_sampling(recipe, policy, reward, method, data.prompts, world)
    return Run(
        recipe=recipe,
        world=world,
        data=data,
        method=method,
        models=models_of(recipe, policy, method),
        sampling=sampling,
        hints=hints_of(recipe, policy),
        watchers=watchers,
        identity=identity_of(recipe, questions),
        notes=(
            *hardware_notes,
            *busy_notes(share_so_far()),
            *model_notes(recipe, policy, reward, world),
            *sampling.notes,
            *start_placed(reward, world),
            *memory_notes,
        ),
        warnings=(*fallback_warnings(policy.forward, sampling.engine.choice), *data.warnings),
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
    and of the folders of teachers and of reward models that the run does not train: a checkpoint holds the weights of
    all other models.
    """
    return {
        "recipe": dump(recipe),
        "versions": versions(),
        "process": {"hardware": describe_hardware(choose_device(recipe.device)[0].type)},
        "data": dict(questions.fingerprints),
        "code": code_hashes(source_files(recipe)),
        "variables": variable_hashes(reward_variables(recipe).intersection(recipe.reward_limits.environment)),
        "models": {str(folder): folder_hash(folder) for folder in _frozen_models(recipe)},
    }


def _frozen_models(recipe: Recipe) -> list[Path]:
    """Return the folders of the models that the run does not train, without those that are names on the hub."""
    frozen = [
        reward.options for reward in recipe.rewards if reward.name == REWARD_MODEL and "labels" not in reward.options
    ]
    named = [*(str(options.get("path")) for options in frozen)]
    named += [teacher.model for teacher in recipe.teachers if teacher.is_folder]
    return [folder for name in named if (folder := Path(name)).is_dir()]
