"""What a checkpoint of a run holds, how it is saved and how it is restored.

Beside the model folder of the policy, a checkpoint holds a state with these entries:

- `models`: optimiser, reference, critic and the number of finished steps (`Models.state`);
- `parts`: what else changes during a run, by name: the coefficients that follow a target, the reward models that keep
  learning, and what watches its steps;
- `sampling`: the position in the data (`Prompts.state`), and what is sampled for later steps (`RunRollouts.state`);
  random numbers have no state, because `utils.rng` computes them from the seed and the position;
- `progress`: the step, the evaluations and the totals (`Progress`);
- `identity`: the recipe, the versions, and the hashes of data and code (`assemble.identity_of`), with which a resumed
  run is compared.

While the weights change, no checkpoint of the last finished step can be written from the models. Before they do, the
step is therefore copied into main memory (`Copy`): a thread writes the checkpoint from there, and if the step under way
fails or is interrupted, the run goes back to the copy and saves it.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedTokenizerBase

from outdo.algorithms.adaptive import Adaptive
from outdo.rewards.base import Reward
from outdo.run.assemble.assemble import Run
from outdo.run.assemble.micro_batch_size import free_memory
from outdo.run.check.cost import COPY_SHARE
from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.save_times import SaveTimes
from outdo.run.checkpoints.state_file import copied, state_bytes
from outdo.run.folder import free_space
from outdo.run.folder.run_folder import RunFolder
from outdo.run.watchers import Watcher
from outdo.utils.outcome import headline
from outdo.utils.timing import span
from outdo.utils.world import World


@dataclass(slots=True)
class Progress:
    """How far a run is, as of its last finished step."""

    step: int = 0
    version: int = 0  # of the policy and the critic
    seconds: float = 0.0  # of training, without evaluation
    tokens: int = 0  # sampled
    before: dict[str, float] = field(default_factory=dict)  # evaluation before the first step
    after: dict[str, float] = field(default_factory=dict)  # the latest evaluation
    best: dict[str, float] = field(default_factory=dict)  # the best evaluation, with its step
    since_best: int = 0  # evaluations after it
    unevaluated: bool = False  # the evaluation after `step` was due and did not end
    records: int = 0  # that were begun up to `step`

    def finish(self, run: Run, step: int, *, seconds: float, tokens: float, recorded: bool) -> None:
        """Move on to the end of `step`, which took `seconds` and sampled `tokens`; `recorded`: it has a record."""
        self.step, self.version = step, run.models.version
        self.unevaluated = False
        self.records += recorded
        self.seconds += seconds
        self.tokens += int(tokens)

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation."""
        return int(self.best["step"]) if self.best else None

    def is_current(self, run: Run) -> bool:
        """Return whether everything that a checkpoint holds is still as the last finished step left it."""
        return run.models.version == self.version and run.models.steps == self.step

    def evaluated(self, numbers: dict[str, float], step: int, *, best_by: str) -> None:
        """Keep the evaluation after `step`; it is the best one if its number `best_by` is higher than all before.

        `best_by` is a number of the evaluation, or greedy or sampled, also of a set: the share of right answers, or the
        mean reward where right is not defined. One without this number does not count: no answer has a reward, or none
        has a verdict and those of another evaluation have one.
        """
        self.after = numbers
        name = headline(best_by, numbers)
        if name not in numbers or (name != best_by and (best_by in self.best or best_by in self.before)):
            return
        self.since_best += 1
        if numbers[name] > self.best.get(name, -math.inf):
            self.best, self.since_best = {"step": step, **numbers}, 0


def state_of(run: Run, progress: Progress) -> dict[str, Any]:
    """Return the training state of the last finished step, not a copy."""
    return {
        "models": run.models.state(),
        "parts": {name: part.state() for name, part in _parts(run).items()},
        "sampling": run.sampling.rollouts.state(after=progress.step),
        "progress": asdict(progress),
        "identity": dict(run.identity),
    }


def check_free_space(folder: RunFolder, run: Run, done: int) -> None:
    """Raise `DiskFullError` if the disk has too little space for the checkpoints after step `done`."""
    models = run.models
    trains_critic = models.critic is not None and models.critic.trains_model
    trained = 1 + trains_critic + len(run.reward.learning)  # models saved with two moments each, about
    ahead = run.sampling.rollouts.lag  # weights of batches that are not sampled yet
    copies = 3 * trained + (models.reference is not None) + ahead
    weights = models.policy.optimiser.weights  # with an adapter, only its weights are saved
    recipe = run.recipe
    needed = free_space.needed(weights, copies=copies, keep=recipe.checkpoint.keep, steps=recipe.steps - done)
    free_space.check(folder.path, needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is written as the checkpoint of a step: the models as they are, or a copy of them."""

    step: int
    best: int | None  # the step of the best evaluation
    weights: Mapping[str, Tensor]  # `Policy.weights_to_save`
    tokenizer: PreTrainedTokenizerBase
    state: Mapping[str, Any]  # `state_of`


def content_of(run: Run, progress: Progress) -> Content:
    """Return the content of the checkpoint of the last finished step, not a copy."""
    policy = run.models.policy
    return _content(progress, policy.weights_to_save(), policy.tokenizer, state_of(run, progress))


def _content(
    progress: Progress, weights: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase, state: Mapping[str, Any]
) -> Content:
    return Content(step=progress.step, best=progress.best_step, weights=weights, tokenizer=tokenizer, state=state)


def check_finite(run: Run) -> None:
    """Raise `NonFiniteWeightsError` if a trained weight is not finite.

    If the models are divided, all replicas have to call it.
    """

    def check() -> None:
        run.models.policy.check_finite()
        for trained in (run.models, *run.reward.learning):
            trained.state()  # checks the critic and the reward models

    run.writers.together(check)


def write(folder: RunFolder, run: Run, content: Content, writers: World) -> None:
    """Write a checkpoint, and remove those that need not be kept.

    If the models are divided, all `writers` call this, and each writes a share of the tensors of all. The parts of
    these are exchanged over the meshes of the tensors, everything else over the group of `writers`.
    """
    policy = run.models.policy
    checkpoints = writers.from_first(lambda: folder.checkpoints)  # the folder of another replica is temporary
    with writers.exchanging():
        if len(writers) > 1:
            weights = policy.share_of_weights(content.weights, writers.rank, len(writers))
            label, first = checkpoint.part_label(writers), writers.first
            write_model = partial(
                policy.write_part, weights=weights, tokenizer=content.tokenizer, label=label, first=first
            )
        else:
            write_model = partial(policy.write, weights=content.weights, tokenizer=content.tokenizer)
        checkpoint.save(checkpoints, content.step, write_model, content.state, writers)
    writers.from_first(lambda: len(checkpoint.prune(checkpoints, run.recipe.checkpoint.keep, content.best)))


def restore(run: Run, state: Mapping[str, Any]) -> Progress:
    """Bring a run, built from the model folder of a checkpoint, to the state that was saved there."""
    run.models.load_state(state["models"])
    for name, part in _parts(run).items():
        if isinstance(part, Watcher) and name not in state["parts"]:
            continue  # it did not watch when this was saved
        part.load_state(state["parts"][name])
    run.sampling.rollouts.load_state(state["sampling"])
    return Progress(**state["progress"])


class Copy:
    """A copy of a finished step in main memory: everything that its checkpoint holds. `step` is 0 if there is none.

    Of divided models it has the parts that this replica holds. They are exchanged over `mesh`.
    """

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        self.step = 0
        self.mesh = mesh
        self._state: dict[str, Any] = {}
        self._tensors: dict[str, Tensor] = {}  # their memory is used for every copy
        self._times = SaveTimes()

    def take(self, run: Run, progress: Progress) -> None:
        """Copy the last finished step, unless copies took too large a share of the time, or memory is too scarce.

        A step of divided models is not copied: it could be saved only if all replicas were still there.
        """
        if not self._times.are_long_ago(0.0) or run.is_divided:
            return
        state = self._all_of(run, progress)
        if self._has_room(state):
            with span("copy"):
                self._take(state, progress)

    def take_to_save(self, run: Run, progress: Progress, writers: World) -> bool:
        """Copy the last finished step, however long that takes; return False if memory is too scarce.

        All `writers` copy their parts, or none of them does.
        """
        state = self._all_of(run, progress)
        has_room = all(writers.together(lambda: self._has_room(state)))
        if has_room:
            self._take(state, progress)
        return has_room

    def content(self, run: Run, progress: Progress, tokenizer: PreTrainedTokenizerBase) -> Content:
        """Return the content of the checkpoint of the copied step, which is that of `progress`."""
        state = {name: value for name, value in self._state.items() if name != "weights"}
        return _content(progress, run.models.policy.weights_to_save(self._state["weights"]), tokenizer, state)

    def _all_of(self, run: Run, progress: Progress) -> dict[str, Any]:
        return {"weights": run.models.policy.optimiser.weights, **state_of(run, progress)}

    def _has_room(self, state: Mapping[str, Any]) -> bool:
        """Return whether the replicas with parts of the models on this machine, or this process, have room for it."""
        copies = 1 if self.mesh is None else int(os.environ.get("LOCAL_WORLD_SIZE", self.mesh.size()))
        return bool(self._tensors) or copies * state_bytes(state) <= COPY_SHARE * free_memory(torch.device("cpu"))

    def _take(self, state: Mapping[str, Any], progress: Progress) -> None:
        self.step = 0  # while the copy is neither the earlier nor the new one
        with self._times.measured():
            self._state = copied(state, self._tensors, self.mesh)
        self.step = progress.step

    @torch.no_grad()
    def restore(self, run: Run) -> Progress:
        """Bring the run back to the copied step."""
        for name, weight in run.models.policy.optimiser.weights.items():
            weight.copy_(self._state["weights"][name])
        return restore(run, self._state)


def _parts(run: Run) -> dict[str, Adaptive | Reward | Watcher]:
    reward_models = {f"reward_model {number}": reward for number, reward in enumerate(run.reward.learning)}
    return {
        **run.method.adaptive,
        **reward_models,
        **{watcher.name: watcher for watcher in run.watchers if watcher.name},
    }
