"""The interface of an environment, and `GroupSampler`: the usual `sample` of the training loop."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from outdo.rewards.types import FailureCount
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Group, Prompt, Rollout
from outdo.utils.timing import span

NO_BASELINE = "no_baseline"
"""The status of a rollout whose group has no baseline."""


class Environment(Protocol):
    """Runs episodes: it requests completions from an engine until each rollout is finished, and scores the rollout."""

    def rollouts(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        n: int,
        sampling: SamplingParams,
        *,
        step: int,
        purpose: str,
        failures: FailureCount | None = None,
    ) -> list[Group]:
        """Return `n` finished rollouts of each prompt.

        `step` and `purpose` key the random numbers. `failures` counts the rewards that failed in earlier calls of the
        same step; without it the failures of this call are counted alone.
        """
        ...


class GroupSampler:
    """Samples a group of `group_size` rollouts of each question, by an engine, in an environment.

    With `greedy_baseline` it also samples one answer at temperature 0 to each question. The reward of that answer is
    the `baseline` of its group (ReMax, arXiv 2310.10505: the reward of the likeliest answer); the answer is not trained
    on. If it has no reward, its group has no baseline: the rollouts get the status `no_baseline`, which is counted like
    every other status and never trained on.
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

    def __call__(
        self,
        policy: PolicyView,
        questions: Sequence[Prompt],
        *,
        step: int,
        purpose: str = "train",
        failures: FailureCount | None = None,
    ) -> list[Group]:
        """Return one group per question.

        `purpose` keys the random numbers: a further call in the same step needs a purpose of its own, and the same
        `failures` as the first.
        """
        failures = failures or FailureCount()
        with span("sample"):
            self.engine.load(policy)
        groups = self.environment.rollouts(
            self.engine,
            questions,
            self.group_size,
            self.sampling,
            step=step,
            purpose=purpose,
            failures=failures,
        )
        if not self.greedy_baseline:
            return groups
        greedy = self.environment.rollouts(
            self.engine,
            questions,
            1,
            replace(self.sampling, temperature=0.0),
            step=step,
            purpose=f"{purpose}/baseline",
            failures=failures,
        )
        return [_add_baseline(group, answer.rollouts[0]) for group, answer in zip(groups, greedy, strict=True)]


def _add_baseline(group: Group, greedy: Rollout) -> Group:
    if greedy.scored:
        return replace(group, baseline=greedy.reward)
    rollouts = (
        replace(rollout, reward=0.0, status=NO_BASELINE) if rollout.scored else rollout for rollout in group.rollouts
    )
    return replace(group, rollouts=tuple(rollouts), baseline=0.0)
