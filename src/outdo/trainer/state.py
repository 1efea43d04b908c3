"""What a checkpoint of a run holds, how it is saved and how it is restored.

Beside the model folder of the policy, a checkpoint holds a state with these entries:

- `models`: optimiser, reference, critic and the number of finished steps (`Models.state`);
- `parts`: what else changes during a run, by name: the coefficients that follow a target, the reward models that keep
  learning, and the recorder;
- `sampling`: the position in the data, and what is sampled for later steps (`AheadSampler.state`);
- `progress`: the step, the evaluations and the totals (`Progress`);
- `identity`: the recipe, the versions, and the hashes of data and code (`build.identity_of`), with which a resumed run
  is compared.

While the weights change, no checkpoint of the last finished step can be written. Before they do, the step is therefore
copied into main memory (`Copy`): if the step under way fails or is interrupted, the run goes back to the copy and saves
it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outdo.algorithms.adaptive import Adaptive
from outdo.distributed.replicas import current, translated
from outdo.observability.record.recorder import Recorder
from outdo.rewards.online_model import OnlineRewardModel
from outdo.storage import checkpoint, free_space
from outdo.storage.run_folder import RunFolder
from outdo.storage.state_file import copied, state_bytes
from outdo.storage.writers import part_label
from outdo.trainer.build import Run
from outdo.trainer.micro_batch_size import free_memory
from outdo.trainer.replicated import leads
from outdo.trainer.saving import SaveTimes
from outdo.utils.outcome import headline
from outdo.utils.timing import span

COPY_SHARE = 0.25
"""The largest share of the free main memory that the copy of a finished step may take."""


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
    unevaluated: bool = False  # the evaluation after `step` was due and did not end
    records: int = 0  # that were begun up to `step`

    def finish(self, run: Run, step: int, *, seconds: float, tokens: float, recorded: bool) -> None:
        """Move on to the end of `step`, which took `seconds` and sampled `tokens`; `recorded`: it has a record."""
        self.step, self.version = step, run.models.version
        self.unevaluated = False
        self.records += recorded
        self.seconds += seconds
        self.tokens += int(tokens)

    def is_current(self, run: Run) -> bool:
        """Return whether everything that a checkpoint holds is still as the last finished step left it."""
        return run.models.version == self.version and run.models.steps == self.step

    def evaluated(self, numbers: dict[str, float], step: int, *, best_by: str) -> None:
        """Keep the evaluation after `step`; it is the best one if its number `best_by` is higher than all before.

        `best_by` is greedy or sampled: the share of right answers, or the mean reward where right is not defined.
        """
        self.after = numbers
        name = headline(best_by, numbers)
        if name in numbers and numbers[name] > self.best.get(name, -math.inf):
            self.best = {"step": step, **numbers}


def state_of(run: Run, progress: Progress) -> dict[str, Any]:
    """Return the training state of the last finished step, not a copy."""
    return {
        "models": run.models.state(),
        "parts": {name: part.state() for name, part in _parts(run).items()},
        "sampling": run.ahead.state(after=progress.step),
        "progress": asdict(progress),
        "identity": dict(run.identity),
    }


def check_free_space(folder: RunFolder, run: Run) -> None:
    """Raise `DiskFullError` if the disk has too little space for the checkpoints of a run."""
    models = run.models
    trains_critic = models.critic is not None and models.critic.trains_model
    trained = 1 + trains_critic + len(run.online_reward_models)  # models saved with two moments each, about
    copies = 3 * trained + (models.reference is not None) + run.ahead.lag  # weights of batches not sampled yet
    weights = models.policy.optimiser.weights  # with an adapter, only its weights are saved
    needed = free_space.needed(weights, copies=copies, keep=run.recipe.checkpoint.keep)
    free_space.check(folder.path, needed)


def save(folder: RunFolder, run: Run, progress: Progress) -> None:
    """Write the checkpoint of the last finished step, and remove those that need not be kept.

    Of several replicas, which are all in the same state, only the first writes; if they hold parts of the weights, all
    of them do.

    Raises: NonFiniteWeightsError if a trained weight is not finite; nothing is written then.
    """
    with span("save"):
        if run.is_divided:
            _save_parts(folder, run, progress)
        elif leads():
            checkpoint.save(folder.checkpoints, progress.step, run.models.policy.save, state_of(run, progress))
        if leads():
            best = progress.best.get("step")
            checkpoint.prune(folder.checkpoints, run.recipe.checkpoint.keep, None if best is None else int(best))


def _save_parts(folder: RunFolder, run: Run, progress: Progress) -> None:
    """Write a checkpoint together with the other replicas, each a share of the tensors of all."""
    policy, replicas = run.models.policy, current()
    assert replicas is not None, "only replicas hold parts"

    def check() -> None:
        policy.check_finite()
        state_of(run, progress)  # checks the critic and the reward models

    replicas.together(check)
    checkpoints = replicas.from_first(lambda: folder.checkpoints)  # the folder of another replica is temporary
    with translated():
        weights = policy.share_of_weights(replicas.rank, len(replicas))
        write = partial(policy.save_part, weights=weights, label=part_label(replicas), first=replicas.first)
        checkpoint.save(checkpoints, progress.step, write, state_of(run, progress), replicas)


def restore(run: Run, state: Mapping[str, Any]) -> Progress:
    """Bring a run, built from the model folder of a checkpoint, to the state that was saved there."""
    run.models.load_state(state["models"])
    for name, part in _parts(run).items():
        part.load_state(state["parts"][name])
    run.ahead.load_state(state["sampling"])
    return Progress(**state["progress"])


class Copy:
    """A copy of a finished step in main memory: everything that its checkpoint holds. `step` is 0 if there is none."""

    def __init__(self) -> None:
        self.step = 0
        self._state: dict[str, Any] = {}
        self._tensors: dict[str, Tensor] = {}  # their memory is used for every copy
        self._times = SaveTimes()

    def take(self, run: Run, progress: Progress) -> None:
        """Copy the last finished step, unless copies took too large a share of the time, or memory is too scarce.

        A step of divided models is not copied: it could be saved only if all replicas were still there.
        """
        if not self._times.are_long_ago(0.0) or run.is_divided:
            return
        state = {"weights": run.models.policy.optimiser.weights, **state_of(run, progress)}
        if not self._tensors and state_bytes(state) > COPY_SHARE * free_memory(torch.device("cpu")):
            return
        self.step = 0  # while the copy is neither the earlier nor the new one
        with span("copy"), self._times.measured():
            self._state = copied(state, self._tensors)
        self.step = progress.step

    @torch.no_grad()
    def restore(self, run: Run) -> Progress:
        """Bring the run back to the copied step."""
        for name, weight in run.models.policy.optimiser.weights.items():
            weight.copy_(self._state["weights"][name])
        return restore(run, self._state)


def _parts(run: Run) -> dict[str, Adaptive | OnlineRewardModel | Recorder]:
    reward_models = {f"reward_model {number}": model for number, model in enumerate(run.online_reward_models)}
    return {**run.adaptive, **reward_models, "recorder": run.recorder}
