"""Dynamic sampling: questions whose answers teach nothing give way to further ones, within the step.

DAPO (arXiv 2503.14476) section 3.2: keep sampling until the batch is full of questions that are neither always solved
nor never. What the others do instead:

| library | leaves out | fills up with |
|---|---|---|
| outdo | groups whose scored rewards (and baseline) are all equal | as many further questions as are missing |
| verl | groups whose metric, such as `acc`, has the standard deviation 0 | further batches; cuts off the surplus |
| OpenRLHF | groups whose mean score is not between two bounds | further batches |
| TRL | nothing: not supported | |
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.environments.base import GroupSampler
from outdo.types import Group, Prompt


class QuestionSource(Protocol):
    """Where further questions come from: the loop's own `Prompts`."""

    def take(self, count: int) -> Sequence[Prompt]:
        """The next `count` questions, which nobody else gets."""
        ...


class DynamicSampling:
    """`rollout` of the loop, with groups that teach nothing replaced by those of further questions.

    As many questions as are missing are taken from `prompts` and asked, up to `rounds` times; then the step goes on
    with what there is, and `metrics` says so. With the loop's own `Prompts` no question comes twice in an epoch, and
    the position in the data that a checkpoint holds is all there is to save: nothing is kept from step to step here.
    A round's random numbers have a purpose of their own, so that none is used again.
    """

    def __init__(self, rollouts: GroupSampler, prompts: QuestionSource, *, rounds: int) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be 1 or more, not {rounds}: without any, use the rollouts as they are")
        self.rollouts = rollouts
        self.prompts = prompts
        self.rounds = rounds
        self.metrics: Mapping[str, float] = {}
        """Of the last step: further rounds asked, groups left out and still missing, the mean reward of everything
        asked, and the tokens sampled for what was left out."""

    def __call__(self, policy: PolicyView, questions: Sequence[Prompt], *, step: int) -> list[Group]:
        """At most one group per question, each of them informative; none if nothing was."""
        asked = self.rollouts(policy, questions, step=step)
        done = 0
        while done < self.rounds and (missing := len(questions) - sum(map(informative, asked))):
            done += 1
            further = self.prompts.take(missing)
            asked = [*asked, *self.rollouts(policy, further, step=step, purpose=f"train/refill-{done}")]
        kept = [group for group in asked if informative(group)]
        self.metrics = {
            "refill/rounds": float(done),
            "refill/dropped": float(len(asked) - len(kept)),
            "refill/missing": float(len(questions) - len(kept)),
            **_over_all(asked),
        }
        return kept


def informative(group: Group) -> bool:
    """Whether any two scored rewards of the group, its baseline among them, differ."""
    rewards = {rollout.reward for rollout in group.rollouts if rollout.scored}
    return len(rewards) > 1 or (len(rewards) == 1 and group.baseline not in (None, *rewards))


def _over_all(groups: Sequence[Group]) -> dict[str, float]:
    """The reward before any group was left out, which is the policy's own, and what leaving groups out has cost."""
    rewards = [rollout.reward for group in groups for rollout in group.rollouts if rollout.scored]
    dropped = [rollout for group in groups if not informative(group) for rollout in group.rollouts]
    cost = {"refill/dropped_tokens": float(sum(len(rollout.token_ids) for rollout in dropped))}
    return cost | ({"refill/reward": sum(rewards) / len(rewards)} if rewards else {})
