"""Did training help where it counts: are the next answers to the same question better than the last?"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from outdo.types import Group


@dataclass(frozen=True, slots=True)
class Visit:
    """The last time a prompt was trained on."""

    step: int
    reward: float  # mean of its scored rollouts
    informative: bool  # whether some of them were rewarded more than others, so that there was something to learn


class Transfer:
    """Compares a prompt's fresh rollouts with those of its last visit. What it remembers is part of a checkpoint."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}  # by prompt id

    def observe(self, step_index: int, groups: Sequence[Group]) -> dict[str, float]:
        """Take in a step's groups; what they say of earlier steps, over prompts whose last group was informative:

            transfer           mean reward now, less that of the last visit; the mean over prompts
            transfer/followed  share of the prompts whose mean reward rose
            transfer/prompts   how many they are

        Nothing where there is none. Groups of one prompt in one step are one visit; rollouts without a reward, and
        prompts without any other, are passed over.
        """
        now = _visits(step_index, groups)
        rises = [
            visit.reward - self.visits[prompt].reward
            for prompt, visit in now.items()
            if prompt in self.visits and self.visits[prompt].informative and self.visits[prompt].step < step_index
        ]
        self.visits |= now
        if not rises:
            return {}
        return {
            "transfer": math.fsum(rises) / len(rises),
            "transfer/followed": sum(rise > 0 for rise in rises) / len(rises),
            "transfer/prompts": float(len(rises)),
        }

    def state(self) -> dict[str, Any]:
        """The visits, as plain values."""
        return {"visits": {prompt: list(astuple(visit)) for prompt, visit in self.visits.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.visits = {prompt: Visit(*visit) for prompt, visit in state["visits"].items()}


def _visits(step_index: int, groups: Sequence[Group]) -> dict[str, Visit]:
    """By prompt id."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    informative: set[str] = set()
    for group in groups:
        scored = [rollout.reward for rollout in group.rollouts if rollout.scored]
        rewards[group.prompt.id] += scored
        if len(set(scored)) > 1:
            informative.add(group.prompt.id)
    return {
        prompt: Visit(step_index, math.fsum(each) / len(each), prompt in informative)
        for prompt, each in rewards.items()
        if each
    }
