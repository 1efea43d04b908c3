"""Dynamic sampling: replace, within the step, groups that give no gradient by groups of further questions.

DAPO (arXiv 2503.14476) section 3.2: sample until the batch is full of questions whose answers are neither all right nor
all wrong. How other libraries do it:

| library | drops | fills up with |
|---|---|---|
| outdo | groups to whose answers the method's advantage gives 0 | as many further questions as are missing |
| verl | groups whose metric, such as `acc`, has the standard deviation 0 | further batches; cuts off the surplus |
| OpenRLHF | groups whose mean score is not between two bounds | further batches |
| TRL | nothing: not supported | |
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import compress
from typing import Protocol

from outdo.algorithms.advantages.base import Advantage
from outdo.algorithms.advantages.signal import cannot_be_asked, groups_with_signal
from outdo.rewards.types import FailureCount
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.environments.base import GroupSampler
from outdo.types import Group, Prompt, Sampled


class QuestionSource(Protocol):
    """The source of further questions: the `Prompts` of the training loop itself."""

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next `count` questions; no later call returns them."""
        ...


class DynamicSampling:
    """Samples groups, and replaces those without a gradient by groups of further questions.

    `advantage` is that of the method, without a KL in the reward: a group is dropped if all of its advantages are 0.
    The sampler takes as many questions from `prompts` as groups are missing, and samples them, up to `rounds` times;
    then the step continues with the groups that there are. With the loop's own `Prompts` no question is sampled twice
    in an epoch, and a checkpoint needs only the position in the data: this class keeps nothing between steps. Each
    round has a purpose of its own, so that no random number is used twice.

    Raises `ValueError` for an advantage that depends on more than the group, such as `gae`.
    """

    def __init__(self, sampler: GroupSampler, prompts: QuestionSource, *, advantage: Advantage, rounds: int) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be 1 or more, not {rounds}: for no further rounds, use the sampler itself")
        if reason := cannot_be_asked(advantage):
            raise ValueError(f"dynamic sampling: the advantage {reason}")
        self.sampler = sampler
        self.prompts = prompts
        self.advantage = advantage
        self.rounds = rounds

    @property
    def engine(self) -> Engine:
        """What samples."""
        return self.sampler.engine

    def __call__(self, policy: PolicyView, questions: Sequence[Prompt], *, step: int) -> Sampled:
        """Return at most one group per question, all of which have a gradient; possibly none.

        The metrics are the further rounds, the groups dropped and still missing, the tokens of dropped groups, and the
        means of rewards and verdicts over everything sampled.
        """
        failures = FailureCount()
        groups = self.sampler(policy, questions, step=step, failures=failures)
        signal = groups_with_signal(self.advantage, groups)
        rounds = 0
        while rounds < self.rounds and (missing := len(questions) - sum(signal)):
            rounds += 1
            further = self.prompts.take(missing)
            # Runs are reproducible only if the purpose keeps this name: it keys the random numbers.
            purpose = f"train/refill-{rounds}"
            sampled = self.sampler(policy, further, step=step, purpose=purpose, failures=failures)
            groups, signal = [*groups, *sampled], [*signal, *groups_with_signal(self.advantage, sampled)]
        useful = list(compress(groups, signal))
        metrics = {
            "dynamic_sampling/rounds": float(rounds),
            "dynamic_sampling/dropped": float(len(groups) - len(useful)),
            "dynamic_sampling/missing": float(len(questions) - len(useful)),
            "dynamic_sampling/dropped_tokens": float(_tokens(groups) - _tokens(useful)),
        }
        return Sampled(groups=useful, metrics=metrics | _means(groups))


def _means(groups: Sequence[Group]) -> dict[str, float]:
    """Return the means over all sampled answers with a reward: of it, of its parts, and of the verdicts that exist."""
    scored = [rollout for group in groups for rollout in group.rollouts if rollout.scored]
    values: defaultdict[str, list[float | None]] = defaultdict(list)
    for rollout in scored:
        values["reward"].append(rollout.reward)
        values["right"].append(None if rollout.right is None else float(rollout.right))
        for name, part in rollout.reward_parts.items():
            values[f"rewards/{name}/mean"].append(part)
    known = {name: [value for value in all_of_it if value is not None] for name, all_of_it in values.items()}
    return {f"dynamic_sampling/{name}": sum(values) / len(values) for name, values in known.items() if values}


def _tokens(groups: Sequence[Group]) -> int:
    return sum(rollout.sampled_tokens for group in groups for rollout in group.rollouts)
