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
    informative: bool  # whether their rewards differed, so that there was something to learn


class Transfer:
    """Compares a prompt's new rollouts with those of its previous visit. Its memory is part of a checkpoint."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}  # by prompt id

    def observe(self, step_index: int, groups: Sequence[Group]) -> dict[str, float]:
        """Add a step's groups; return the transfer metrics over prompts whose rewards differed at the previous visit:

            transfer           mean reward now minus that of the previous visit; the mean over prompts
            transfer/followed  share of the prompts whose mean reward rose
            transfer/prompts   the number of these prompts

        Empty without such prompts. Groups of one prompt in one step are one visit; rollouts without a reward are
        ignored, as are prompts with only such rollouts.
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
        """Return the visits as plain values, for a checkpoint."""
        return {"visits": {prompt: list(astuple(visit)) for prompt, visit in self.visits.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.visits = {prompt: Visit(*visit) for prompt, visit in state["visits"].items()}


def _visits(step_index: int, groups: Sequence[Group]) -> dict[str, Visit]:
    """Return the visits of a step by prompt id."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    informative: set[str] = set()
    for group in groups:
        scored = [rollout.reward for rollout in group.rollouts if rollout.scored]
        rewards[group.prompt.id] += scored
        if group.informative:
            informative.add(group.prompt.id)
    return {
        prompt: Visit(step_index, math.fsum(each) / len(each), prompt in informative)
        for prompt, each in rewards.items()
        if each
    }
