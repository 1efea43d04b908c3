"""What an environment is, and the `rollout` that the loop calls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Group, Prompt, Rollout
from outdo.utils.timing import span

NO_BASELINE = "no_baseline"
"""The verdict of a rollout whose question has no baseline to compare it with."""


class Environment(Protocol):
    """Plays episodes: asks an engine for completions until each rollout is finished, and scores it."""

    def rollouts(
        self, engine: Engine, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, step: int, purpose: str
    ) -> list[Group]:
        """`n` finished rollouts of each prompt.

        `step` and `purpose` key the random numbers. A purpose `"train/refill-1"` is a further call of what began as
        `"train"`: rewards that fail are judged over all of these together.
        """
        ...


class GroupSampler:
    """`rollout` of the loop: `group_size` answers to each question, by an engine, in an environment.

    With `greedy_baseline` each question is also asked once at temperature 0, and the reward of that answer is its
    group's `baseline` (ReMax, arXiv 2310.10505: the reward of the likeliest answer; that answer is not trained on). A
    group whose likeliest answer has no reward has nothing to compare with: its rollouts get the verdict
    `no_baseline`, which is counted like every other and never trained on.
    """

    def __init__(
        self,
        engine: Engine,
        environment: Environment,
        *,
        group_size: int,
        sampling: SamplingParams,
        greedy_baseline: bool = False,
    ) -> None:
        if sampling.temperature == 0:
            raise ValueError("temperature 0 gives every question the same answer group_size times: nothing to compare")
        self.engine = engine
        self.environment = environment
        self.group_size = group_size
        self.sampling = sampling
        self.greedy_baseline = greedy_baseline
        self.metrics: Mapping[str, float] = {}
        """What the last step has to say besides its groups; nothing here."""

    def __call__(
        self, policy: PolicyView, questions: Sequence[Prompt], *, step: int, purpose: str = "train"
    ) -> list[Group]:
        """One group per question. `purpose` keys the random numbers: another call in the same step has another."""
        with span("sample"):
            self.engine.load(policy)
        groups = self._asked(questions, self.group_size, self.sampling, step=step, purpose=purpose)
        if not self.greedy_baseline:
            return groups
        likeliest = replace(self.sampling, temperature=0.0)
        answers = self._asked(questions, 1, likeliest, step=step, purpose=f"{purpose}/baseline")
        return [_with_baseline(group, answer.rollouts[0]) for group, answer in zip(groups, answers, strict=True)]

    def _asked(
        self, questions: Sequence[Prompt], n: int, sampling: SamplingParams, *, step: int, purpose: str
    ) -> list[Group]:
        return self.environment.rollouts(self.engine, questions, n, sampling, step=step, purpose=purpose)


def _with_baseline(group: Group, likeliest: Rollout) -> Group:
    if likeliest.scored:
        return replace(group, baseline=likeliest.reward)
    rollouts = (
        replace(rollout, reward=0.0, verdict=NO_BASELINE) if rollout.scored else rollout for rollout in group.rollouts
    )
    return replace(group, rollouts=tuple(rollouts), baseline=0.0)
