"""Measure transfer: are the next answers to the same question better than the previous ones?"""

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
    number: int  # 1 for the first visit


class Transfer:
    """Compares a prompt's new rollouts with those of its previous visit. Its memory is part of a checkpoint."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}  # by prompt id

    def observe(self, step_index: int, groups: Sequence[Group]) -> dict[str, float]:
        """Add a step's groups; return the metrics of how often its prompts were seen, and over those seen before:

            transfer/visits    mean number of visits of the step's prompts so far, this one included
            transfer           mean reward now minus that of the previous visit; the mean over prompts
            transfer/prompts   the number of these prompts
            transfer/changed   the number of them whose mean reward is not the same as at the previous visit
            transfer/followed  the share of `transfer/changed` whose mean reward rose

        If nothing changes between two visits, a rise is as likely as a fall, whatever the reward: without a change of
        the policy, `transfer/followed` is the share of heads in `transfer/changed` throws of a coin. No prompt is
        left out because of its rewards at one of the two visits: that would favour rises or falls.

        Groups of one prompt in one step are one visit; rollouts without a reward are ignored, as are prompts with only
        such rollouts.
        """
        now = self._visits(step_index, groups)
        rises = [
            visit.reward - self.visits[prompt].reward
            for prompt, visit in now.items()
            if prompt in self.visits and self.visits[prompt].step < step_index
        ]
        self.visits |= now
        if not rises:
            return {}
        changed = sum(rise != 0 for rise in rises)
        metrics = {
            "transfer": math.fsum(rises) / len(rises),
            "transfer/prompts": float(len(rises)),
            "transfer/changed": float(changed),
            "transfer/visits": sum(visit.number for visit in now.values()) / len(now),
        }
        return metrics | ({"transfer/followed": sum(rise > 0 for rise in rises) / changed} if changed else {})

    def state(self) -> dict[str, Any]:
        """Return the visits as plain values, for a checkpoint."""
        return {"visits": {prompt: list(astuple(visit)) for prompt, visit in self.visits.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.visits = {prompt: Visit(*visit) for prompt, visit in state["visits"].items()}

    def _visits(self, step_index: int, groups: Sequence[Group]) -> dict[str, Visit]:
        """Return the visits of a step by prompt id. A step that is repeated after a restart is the same visit."""
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        for group in groups:
            rewards[group.prompt.id] += [rollout.reward for rollout in group.rollouts if rollout.scored]
        visits = {}
        for prompt, rewards_of_prompt in rewards.items():
            if rewards_of_prompt:
                before = self.visits.get(prompt)
                number = 1 if before is None else before.number + (before.step < step_index)
                visits[prompt] = Visit(step_index, math.fsum(rewards_of_prompt) / len(rewards_of_prompt), number)
        return visits
