"""Several rewards, one number."""

from collections.abc import Sequence

from outdo.rewards.types import Reward, RewardInput, RewardOutput, Status, judged
from outdo.utils.errors import UserError


class Combined:
    """The weighted sum of several rewards, Σ weight · value, over those that apply to the completion.

    A part that does not apply adds nothing, and its weight goes to no other. If none applies, the verdict is not
    applicable; if one fails, times out or is not finite, the completion has that verdict, for a sum without it would be
    a wrong number. `parts` holds each value before its weight. A second reward of the same name is called `name_2`.

    Raises:
        UserError: there is no reward, or a weight is not a finite number.
    """

    def __init__(self, weighted: Sequence[tuple[Reward, float]]) -> None:
        self.rewards = tuple(reward for reward, _ in weighted)
        self.weights = tuple(weight for _, weight in weighted)
        self.names = _distinct([reward.name for reward in self.rewards])
        self.name = "+".join(self.names)
        mistakes = [
            f"the weight of the reward {name} must be a finite number, not {weight!r}"
            for name, weight in zip(self.names, self.weights, strict=True)
            if judged(weight, name).verdict is not Status.ok
        ]
        if not weighted or mistakes:
            raise UserError(mistakes or ["a combination needs at least one reward"])

    def __call__(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion by every reward."""
        columns = [reward(answered) for reward in self.rewards]
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def close(self) -> None:
        """Close every part."""
        for reward in self.rewards:
            reward.close()

    def _sum(self, row: Sequence[RewardOutput]) -> RewardOutput:
        parts = {
            name: part.value if part.verdict is Status.ok else None for name, part in zip(self.names, row, strict=True)
        }
        for name, part in zip(self.names, row, strict=True):
            if part.verdict.is_failure:
                return RewardOutput(value=0.0, verdict=part.verdict, parts=parts, reason=f"{name}: {part.reason}")
        applicable = [(w, part.value) for w, part in zip(self.weights, row, strict=True) if part.verdict is Status.ok]
        total = judged(sum(weight * value for weight, value in applicable) if applicable else None, self.name)
        return RewardOutput(value=total.value, verdict=total.verdict, parts=parts, reason=total.reason)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    distinct: list[str] = []
    for name in names:
        candidate, count = name, 1
        while candidate in distinct:
            count += 1
            candidate = f"{name}_{count}"
        distinct.append(candidate)
    return tuple(distinct)
