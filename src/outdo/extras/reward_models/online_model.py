"""A reward model that is trained during the run, on labels that the policy never sees."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, get_args

from outdo.extras.reward_models.model import BASE_WEIGHTS, BaseWeights, RewardModel, fit
from outdo.models.inspect_folder import REWARD_MODEL, ModelFacts, inspect_folder
from outdo.models.limits import DIVISIBLE_WEIGHTS
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards.base import Reward
from outdo.rewards.comparisons import Comparison, Loss, Ranking, comparisons_of, is_useful, ranking_of
from outdo.rewards.context import RewardContext
from outdo.rewards.in_process import RewardLike, as_reward
from outdo.rewards.loading import load_reward
from outdo.rewards.types import FailureCount, RewardInput, RewardOutput, Status, reward_input
from outdo.types import Group, Rollout
from outdo.utils.errors import UserError
from outdo.utils.rng import shuffled_epochs
from outdo.utils.world import ALONE, World

MAX_FAILED_LABELS = 0.5
"""The share of a step's labels that may fail; with more the run stops, as it does for rewards."""

AT_LEAST_ONE = "a whole number, 1 or more"


class OnlineRewardModel(Reward):
    """A reward model that is trained between the steps of a run (DeepSeekMath, the last line of Algorithm 1).

    The policy gets its rewards from the model only. `labels`, a reward that the policy never sees, gives the true value
    of each step's rollouts. Every `every` steps the model is trained on the rollouts since the last time, mixed with
    older ones against forgetting; this is called a refresh.

    Args:
        every: training steps between two refreshes.
        replay: the share of older comparisons, chosen at random, among those that a refresh trains on.
        steps: optimiser steps of a refresh.
        batch: comparisons (the rollouts of one prompt) in each optimiser step.
        history: the number of comparisons that are kept, the newest ones.
    """

    def __init__(
        self,
        model: RewardModel,
        labels: RewardLike,
        *,
        every: int,
        replay: float = 0.1,
        steps: int = 8,
        batch: int = 16,
        history: int = 1024,
        loss: Loss = "pairs",
        seed: int = 0,
    ) -> None:
        self.model = model
        self.name = model.name
        self.is_divided = model.is_divided
        self.labels: Reward = as_reward(labels)
        self.is_paid = self.labels.is_paid
        self.every = every
        self.replay = replay
        self.steps = steps
        self.batch = batch
        self.history = history
        self.loss: Loss = loss
        self.seed = seed
        self.kept: list[Comparison] = []  # the newest last
        self.fresh = 0  # the number of kept comparisons that no refresh has trained on yet
        self.refreshes = 0

    @property
    def sandboxes(self) -> Sequence[str]:
        """Those of the labels."""
        return self.labels.sandboxes

    def start(self) -> Sequence[str]:
        """Start the labels."""
        return self.labels.start()

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion by the model as it is now."""
        return self.model(inputs)

    def close(self) -> None:
        """Close the model and the labels."""
        self.model.close()
        self.labels.close()

    def after_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Call `observe` after a training step, and `refresh` if it is due; return their metrics."""
        metrics = self.observe(groups)
        return metrics | self.refresh() if step % self.every == 0 else metrics

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """Label a step's rollouts and keep them. Rollouts without a reward, or without a label, are left out.

        Returns `reward_model/label`, the mean label, and `reward_model/accuracy`, the share of pairs of answers to one
        prompt that the rewards of the policy rank in the order of the labels. Raises `RewardError` if too many labels
        fail.
        """
        rollouts = [(group.prompt, rollout) for group in groups for rollout in group.rollouts if rollout.scored]
        inputs = [
            reward_input(prompt, rollout.text, rollout.token_ids, prefill=rollout.prefill)
            for prompt, rollout in rollouts
        ]
        labels = self.labels(inputs)
        FailureCount().check(labels, inputs, MAX_FAILED_LABELS)
        labelled = [
            (scored.prompt, scored.completion, label.value, _reward_by_name(rollout, self.name))
            for scored, label, (_, rollout) in zip(inputs, labels, rollouts, strict=True)
            if label.status is Status.ok
        ]
        by_label = comparisons_of((prompt, text, label) for prompt, text, label, _ in labelled)
        by_reward = comparisons_of((prompt, text, reward) for prompt, text, _, reward in labelled)
        self._keep([comparison for comparison in by_label if is_useful(comparison, self.loss)])
        rankings = (ranking_of(ours.values, theirs.values) for ours, theirs in zip(by_reward, by_label, strict=True))
        ranking = sum(rankings, Ranking())
        metrics: dict[str, float] = {}
        if labelled:
            metrics["reward_model/label"] = sum(label for _, _, label, _ in labelled) / len(labelled)
        if ranking.pairs:
            metrics["reward_model/accuracy"] = ranking.share
        return metrics

    def refresh(self) -> dict[str, float]:
        """Train on the comparisons since the last refresh and a share of older ones; do nothing if none is new.

        Returns the numbers of new and older comparisons, `reward_model/fresh` and `reward_model/replayed`; and, over
        the optimiser steps, the share of pairs ranked right, `reward_model/fitted`, and the mean `reward_model/loss`.
        """
        old, new = self.kept[: len(self.kept) - self.fresh], self.kept[len(self.kept) - self.fresh :]
        purpose = f"refresh {self.refreshes}"
        wanted = round(len(new) * self.replay / (1.0 - self.replay))
        order = shuffled_epochs(len(old), self.seed, f"{purpose}: replay")
        replayed = [old[index] for index in islice(order, min(wanted, len(old)))]
        self.fresh, self.refreshes = 0, self.refreshes + 1
        counts = {"reward_model/fresh": float(len(new)), "reward_model/replayed": float(len(replayed))}
        if not new:
            return counts
        steps = list(
            fit(
                self.model,
                [*new, *replayed],
                steps=self.steps,
                batch=self.batch,
                seed=self.seed,
                loss=self.loss,
                purpose=purpose,
            )
        )
        ranking = sum((step.ranking for step in steps), Ranking())
        fitted = {"reward_model/fitted": ranking.share} if ranking.pairs else {}
        return counts | fitted | {"reward_model/loss": sum(step.metrics["loss"] for step in steps) / len(steps)}

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the labels."""
        return self.labels.metrics()

    def state(self) -> dict[str, Any]:
        """Return weights, optimiser state, history and counters."""
        comparisons = [asdict(comparison) for comparison in self.kept]
        return {"model": self.model.state(), "kept": comparisons, "fresh": self.fresh, "refreshes": self.refreshes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.model.load_state(state["model"])
        self.fresh, self.refreshes = state["fresh"], state["refreshes"]
        self.kept = [
            Comparison(prompt=table["prompt"], completions=tuple(table["completions"]), values=tuple(table["values"]))
            for table in state["kept"]
        ]

    def _keep(self, new: Sequence[Comparison]) -> None:
        self.kept = [*self.kept, *new][-self.history :]
        self.fresh = min(self.fresh + len(new), len(self.kept))


def _reward_by_name(rollout: Rollout, name: str) -> float:
    """Return the value of the reward called `name`; the whole reward if the rollout does not list it separately."""
    part = rollout.reward_parts.get(name)
    return rollout.reward if part is None else part


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def _dividing(world: World, facts: ModelFacts, base_weights: str) -> World:
    """Return the processes that divide a reward model: this one alone if it has an adapter or quantised weights."""
    divisible = facts.adapter is None and base_weights in ("auto", *DIVISIBLE_WEIGHTS)
    return world if world.divides_models and divisible else ALONE


def reward_model(
    context: RewardContext,
    *,
    path: str,
    labels: str | None = None,
    every: int | None = None,
    replay: float = 0.1,
    steps: int = 8,
    batch: int = 16,
    lr: float = 1e-5,
    history: int = 1024,
    loss: Loss = "pairs",
    seed: int = 0,
    device: str = "auto",
    base_weights: BaseWeights = "auto",
) -> RewardModel | OnlineRewardModel:
    """Load the reward that a recipe calls `reward_model` from the folder `path`.

    If `labels` names another reward, the model is trained during the run; the options are those of `OnlineRewardModel`,
    and have no effect without `labels`. `base_weights` is how frozen weights are stored, as in `RewardModel.load`; a
    model that is trained without an adapter has float32 weights. The processes of `context` divide it, unless it has an
    adapter or quantised weights: then each process holds all of it. Before anything is loaded, raises `UserError` with
    every wrong option, and `ModelError` if `path` holds no reward model.
    """
    rules = (
        ("labels and every", "given together, or neither", (labels is None) == (every is None)),
        ("labels", "the name of a reward", labels is None or isinstance(labels, str)),
        ("every", AT_LEAST_ONE, every is None or _is_count(every)),
        ("replay", "at least 0 and below 1", 0 <= replay < 1),
        ("steps", AT_LEAST_ONE, _is_count(steps)),
        ("batch", AT_LEAST_ONE, _is_count(batch)),
        ("history", AT_LEAST_ONE, _is_count(history)),
        ("lr", "0 or more", 0 <= lr < float("inf")),
        ("loss", f"one of {', '.join(get_args(Loss))}", loss in get_args(Loss)),
        ("base_weights", f"one of {', '.join(BASE_WEIGHTS)}", base_weights in BASE_WEIGHTS),
    )
    if mistakes := [f"reward_model: {name} must be {rule}" for name, rule, satisfied in rules if not satisfied]:
        raise UserError(mistakes)
    facts = inspect_folder(path, REWARD_MODEL)
    if labels is not None and facts.adapter is None and base_weights not in ("auto", "float32"):
        why = f"all weights of {path} are trained, because it has no adapter"
        raise UserError([f'reward_model: base_weights = "{base_weights}": {why}'])
    label_reward = None if labels is None else load_reward(labels)
    model = RewardModel.load(
        path,
        device=device,
        base_weights=base_weights,
        world=_dividing(context.world, facts, base_weights),
        optimiser=OptimiserSettings(lr=lr),
    )
    if label_reward is None or every is None:
        return model
    return OnlineRewardModel(
        model,
        label_reward,
        every=every,
        replay=replay,
        steps=steps,
        batch=batch,
        history=history,
        loss=loss,
        seed=seed,
    )
