"""What an environment is, and the `rollout` that the loop calls."""

from collections.abc import Sequence
from typing import Protocol

from outdo.engines.base import Engine, SamplingParams, Weights
from outdo.types import Group, Prompt


class Environment(Protocol):
    """Plays episodes: asks an engine for completions until each rollout is finished, and scores it."""

    def rollouts(
        self, engine: Engine, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, step: int, purpose: str
    ) -> list[Group]:
        """`n` finished rollouts of each prompt. `step` and `purpose` key the random numbers."""
        ...


class Rollouts:
    """`rollout` of the loop: `group_size` answers to each question, by an engine, in an environment."""

    def __init__(self, engine: Engine, environment: Environment, *, group_size: int, sampling: SamplingParams) -> None:
        if sampling.temperature == 0:
            raise ValueError("temperature 0 gives every question the same answer group_size times: nothing to compare")
        self.engine = engine
        self.environment = environment
        self.group_size = group_size
        self.sampling = sampling

    def __call__(self, policy: Weights, questions: Sequence[Prompt], *, step: int) -> list[Group]:
        """One group per question."""
        self.engine.load(policy)
        return self.environment.rollouts(
            self.engine, questions, self.group_size, self.sampling, step=step, purpose="train"
        )
