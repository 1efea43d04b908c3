"""Combine several rewards into one number."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outdo.rewards.base import Reward
from outdo.rewards.in_process import RewardLike, as_reward
from outdo.rewards.reward_sum import reward_sum
from outdo.rewards.right import Verdicts, right_rule
from outdo.rewards.types import RewardInput, RewardOutput, Status, to_output
from outdo.utils.errors import UserError
from outdo.utils.reward_names import unique_names

if TYPE_CHECKING:
    from outdo.types import Group


class WeightedSum(Reward):
    """The weighted sum of several rewards, Σ weight · value, over those that apply to the completion.

    A reward that does not apply adds nothing, and its weight is not redistributed. If none applies, the sum is not
    applicable; a reward with the weight 0, which is only watched, does not count there. If one fails, times out or is
    not finite, the sum has that status: a sum without it would be a wrong number. `parts` holds each value before its
    weight. Rewards of the same name get the names of their files, `a.score` and `b.score` (`unique_names`).
    `outdo.rewards.right` decides whose verdict is that of the sum; `right` is the setting `eval.right`.

    Raises:
        UserError: there is no reward, a weight is not a finite number, or no reward is called `right`.
    """

    def __init__(self, weighted: Sequence[tuple[RewardLike, float]], *, right: str | None = None) -> None:
        self.rewards = tuple(as_reward(reward) for reward, _ in weighted)
        self.weights = tuple(weight for _, weight in weighted)
        self.names = unique_names([(reward.name, reward.source) for reward in self.rewards])
        self.name = "+".join(self.names)
        self.source = self.rewards[0].source if len(self.rewards) == 1 else ""
        self.is_paid = any(reward.is_paid for reward in self.rewards)
        self.is_divided = any(reward.is_divided for reward in self.rewards)
        self.labels = next((reward.labels for reward in self.rewards if reward.labels is not None), None)
        if mistakes := _weight_mistakes(self.names, self.weights):
            raise UserError(mistakes)
        self.right_rule = right_rule(self.names, right)
        self.verdicts = Verdicts(self.right_rule)
        self._deciding = None if self.right_rule.reward is None else self.names.index(self.right_rule.reward)
        self.tried_first: Sequence[RewardInput] = ()
        """Answers that are scored before all others, if it has to be found out whether there are verdicts."""

    @property
    def gives_verdicts(self) -> bool:
        """Whether it is defined which answers are right, as far as the rewards have shown it."""
        return bool(self.verdicts.given)

    @property
    def right_reason(self) -> str:
        """One sentence for the user: which answers are right."""
        self.verdicts.has_numbers = self.has_numbers
        return self.verdicts.reason

    @property
    def has_numbers(self) -> bool:
        """Whether the reward that decides which answers are right has returned a number so far."""
        decides = self._deciding is not None and self.rewards[self._deciding].has_numbers
        return decides or self.verdicts.has_numbers

    @property
    def sandboxes(self) -> Sequence[str]:
        """Those of every reward."""
        return [sandbox for reward in self.rewards for sandbox in reward.sandboxes]

    @property
    def learning(self) -> Sequence[Reward]:
        """The rewards that learn between the steps."""
        return [reward for reward in self.rewards if reward.labels is not None]

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore every reward that learns."""
        for name, reward in zip(self.names, self.rewards, strict=True):
            if name in state:
                reward.load_state(state[name])

    def start(self) -> Sequence[str]:
        """Start every reward."""
        return [line for reward in self.rewards for line in reward.start()]

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion by every reward."""
        if self._deciding is not None and self.verdicts.given is None and self.tried_first:
            self.verdicts.note(self.rewards[self._deciding](self.tried_first))
            self.verdicts.decide()
        by_reward = [reward(inputs) for reward in self.rewards]
        if self._deciding is not None:
            self.verdicts.note(by_reward[self._deciding])
        return [self._sum(outputs) for outputs in zip(*by_reward, strict=True)]

    def of(self, rewards: Sequence[Reward]) -> "WeightedSum":
        """Return the same sum of other objects that compute its rewards."""
        other = copy.copy(self)
        other.rewards = tuple(rewards)
        return other

    def after_step(self, step: int, groups: "Sequence[Group]") -> dict[str, float]:
        """Let every reward that learns do so."""
        return {name: value for reward in self.learning for name, value in reward.after_step(step, groups).items()}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the rewards that have some, since the last call, such as what a judge has cost."""
        return {
            f"{name}/{key.rpartition('/')[2]}": value  # a sum within this sum has put a name before it
            for name, reward in zip(self.names, self.rewards, strict=True)
            for key, value in reward.metrics().items()
        }

    def state(self) -> dict[str, Any]:
        """Return the state of every reward that learns, by its name."""
        named = zip(self.names, self.rewards, strict=True)
        return {name: reward.state() for name, reward in named if reward.labels is not None}

    def close(self) -> None:
        """Close every reward."""
        for reward in self.rewards:
            reward.close()

    def _sum(self, outputs: Sequence[RewardOutput]) -> RewardOutput:
        named = list(zip(self.names, outputs, strict=True))
        parts = {name: output.value if output.status is Status.ok else None for name, output in named}
        for name, output in named:
            if output.status.is_failure:
                return RewardOutput(value=0.0, status=output.status, parts=parts, reason=f"{name}: {output.reason}")
        # A reward that is only watched does not decide whether there is something to learn from.
        trained = any(self.weights)
        weighted = [
            weight * output.value
            for weight, output in zip(self.weights, outputs, strict=True)
            if output.status is Status.ok and (weight or not trained)
        ]
        total = to_output(reward_sum(weighted) if weighted else None, self.name)
        right = None if self._deciding is None else self.verdicts.of(outputs[self._deciding])
        return RewardOutput(value=total.value, status=total.status, parts=parts, reason=total.reason, right=right)


def _weight_mistakes(names: Sequence[str], weights: Sequence[float]) -> list[str]:
    if not weights:
        return ["a combination needs at least one reward"]
    return [
        f"the weight of the reward {name} must be a finite number, not {weight!r}"
        for name, weight in zip(names, weights, strict=True)
        if to_output(weight, name).status is not Status.ok
    ]
