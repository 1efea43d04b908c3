"""A reward model that goes on learning while a policy learns from it, by labels that the policy never sees."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, get_args

from outdo.models.inspect_folder import REWARD_MODEL, inspect_folder
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards.failures import check_failures
from outdo.rewards.loading import load_reward
from outdo.rewards.model import (
    Comparison,
    Loss,
    Ranking,
    RewardModel,
    comparisons_of,
    endless_order,
    fit,
    ranking_of,
    teaches,
)
from outdo.rewards.types import Reward, RewardInput, RewardOutput, Status
from outdo.types import Group, Prompt, Rollout
from outdo.utils.errors import UserError

MOST_UNLABELLED = 0.5
"""Of a step's answers: if the labels of more fail, the run stops, as it does for rewards."""

COUNT = "a whole number, 1 or more"


class OnlineRewardModel:
    """A reward model, trained on between the steps of a run (DeepSeekMath, the last line of Algorithm 1).

    The policy is rewarded by the model alone. `labels`, a reward that the policy never sees, says of each step's
    rollouts what they are really worth; every so many steps the model is trained on those that came since, mixed with
    older ones, so that it does not forget what it knew.

    Args:
        every: training steps from one refresh to the next.
        replay: the share of older comparisons among those a refresh trains on, chosen at random.
        steps: optimiser steps of a refresh.
        batch: comparisons (the rollouts of one prompt) in each.
        history: the newest so many comparisons are kept.
    """

    def __init__(
        self,
        model: RewardModel,
        labels: Reward,
        *,
        every: int,
        replay: float = 0.1,
        steps: int = 8,
        batch: int = 16,
        history: int = 1024,
        loss: Loss = "pairs",
        seed: int = 0,
    ) -> None:
        self.model, self.labels = model, labels
        self.every, self.replay, self.steps, self.batch, self.history = every, replay, steps, batch, history
        self.loss: Loss = loss
        self.seed = seed
        self.kept: list[Comparison] = []  # the newest last
        self.fresh = 0  # of these, how many no refresh has seen
        self.refreshes = 0

    @property
    def name(self) -> str:
        """That of the model."""
        return self.model.name

    def __call__(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """The model's score of every completion, as the model is now."""
        return self.model(answered)

    def close(self) -> None:
        """Close the labels, too."""
        self.model.close()
        self.labels.close()

    def after(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """What is to be done after a training step: `observe`, and `refresh` when it is due. Their metrics."""
        metrics = self.observe(groups)
        return metrics | self.refresh() if step % self.every == 0 else metrics

    def observe(self, groups: Sequence[Group]) -> dict[str, float]:
        """Label a step's rollouts and keep them. Rollouts without a reward, or without a label, are left out.

        Returns `reward_model/label`, the mean label, and `reward_model/accuracy`, the share of a prompt's pairs that
        the rewards given to the policy rank as the labels do. Raises `RewardError` if too many labels fail.
        """
        rollouts = [(group.prompt, each) for group in groups for each in group.rollouts if each.scored]
        answered = [_answered(prompt, rollout) for prompt, rollout in rollouts]
        labelled = self.labels(answered)
        check_failures(labelled, answered, MOST_UNLABELLED)
        both = [
            (each.prompt, each.completion, label.value, _given(rollout, self.name))
            for each, label, (_, rollout) in zip(answered, labelled, rollouts, strict=True)
            if label.verdict is Status.ok
        ]
        new = comparisons_of((prompt, text, label) for prompt, text, label, _ in both)
        given = comparisons_of((prompt, text, reward) for prompt, text, _, reward in both)
        self._keep([each for each in new if teaches(each, self.loss)])
        ranking = sum((ranking_of(ours.values, each.values) for ours, each in zip(given, new, strict=True)), Ranking())
        metrics = {"reward_model/label": sum(label for _, _, label, _ in both) / len(both)} if both else {}
        return metrics | ({"reward_model/accuracy": ranking.share} if ranking.pairs else {})

    def refresh(self) -> dict[str, float]:
        """Train on what no refresh has seen yet and a share of what is older; nothing happens if nothing is new.

        Returns the numbers of `reward_model/fresh` and `reward_model/replayed` comparisons, and of the optimiser steps
        `reward_model/fitted`, the share of pairs ranked right, and the mean `reward_model/loss`.
        """
        old, new = self.kept[: len(self.kept) - self.fresh], self.kept[len(self.kept) - self.fresh :]
        purpose = f"refresh {self.refreshes}"
        wanted = round(len(new) * self.replay / (1.0 - self.replay))
        drawn = islice(endless_order(len(old), self.seed, f"{purpose}: replay"), min(wanted, len(old)))
        replayed = [old[place] for place in drawn]
        self.fresh, self.refreshes = 0, self.refreshes + 1
        counts = {"reward_model/fresh": float(len(new)), "reward_model/replayed": float(len(replayed))}
        if not new:
            return counts
        settings: dict[str, Any] = {"batch": self.batch, "seed": self.seed, "loss": self.loss, "purpose": purpose}
        done = list(fit(self.model, [*new, *replayed], steps=self.steps, **settings))
        ranking = sum((step.ranking for step in done), Ranking())
        fitted = {"reward_model/fitted": ranking.share} if ranking.pairs else {}
        return counts | fitted | {"reward_model/loss": sum(step.metrics["loss"] for step in done) / len(done)}

    def state(self) -> dict[str, Any]:
        """Weights, optimiser, history and counters."""
        kept = [asdict(each) for each in self.kept]
        return {"model": self.model.state(), "kept": kept, "fresh": self.fresh, "refreshes": self.refreshes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.model.load_state(state["model"])
        self.fresh, self.refreshes = state["fresh"], state["refreshes"]
        self.kept = [
            Comparison(prompt=each["prompt"], completions=tuple(each["completions"]), values=tuple(each["values"]))
            for each in state["kept"]
        ]

    def _keep(self, new: Sequence[Comparison]) -> None:
        self.kept = [*self.kept, *new][-self.history :]
        self.fresh = min(self.fresh + len(new), len(self.kept))


def _answered(prompt: Prompt, rollout: Rollout) -> RewardInput:
    """A rollout as a reward sees it."""
    text = prompt.text if isinstance(prompt.text, str) else [dict(message) for message in prompt.text]
    return RewardInput(
        prompt=text,
        completion=rollout.text,
        answer=prompt.answer,
        columns=prompt.columns,
        completion_ids=rollout.token_ids,
    )


def _given(rollout: Rollout, name: str) -> float:
    """What the reward called `name` said of a rollout; the whole reward, where it is not told apart."""
    part = rollout.reward_parts.get(name)
    return rollout.reward if part is None else part


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def reward_model(
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
) -> RewardModel | OnlineRewardModel:
    """The reward that a recipe calls `reward_model`: the folder `path`, refreshed if `labels` names another reward.

    For the options see `OnlineRewardModel`; without `labels` none of them has an effect. Raises `UserError` with all
    that is wrong with them, and `ModelError` if `path` holds no reward model, before anything is loaded.
    """
    rules = (
        ("labels and every", "given together, or neither", (labels is None) == (every is None)),
        ("labels", "the name of a reward", labels is None or isinstance(labels, str)),
        ("every", COUNT, every is None or _is_count(every)),
        ("replay", "at least 0 and below 1", 0 <= replay < 1),
        ("steps", COUNT, _is_count(steps)),
        ("batch", COUNT, _is_count(batch)),
        ("history", COUNT, _is_count(history)),
        ("lr", "0 or more", 0 <= lr < float("inf")),
        ("loss", f"one of {', '.join(get_args(Loss))}", loss in get_args(Loss)),
    )
    if mistakes := [f"reward_model: {name} must be {rule}" for name, rule, kept in rules if not kept]:
        raise UserError(mistakes)
    inspect_folder(path, REWARD_MODEL)
    rule = None if labels is None else load_reward(labels)
    model = RewardModel.load(path, device=device, optimiser=OptimiserSettings(lr=lr))
    if rule is None or every is None:
        return model
    how: dict[str, Any] = {"replay": replay, "steps": steps, "batch": batch, "history": history}
    return OnlineRewardModel(model, rule, every=every, loss=loss, seed=seed, **how)
