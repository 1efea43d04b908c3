"""Questions of several environments in one step: each is played in the one that its row names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from outdo.rewards.types import FailureCount
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment
from outdo.types import Group, Prompt

COUNTED = "environments/"
"""How the count of the episodes of an environment begins; its name follows."""


class ByRow(Environment):
    """Plays each prompt in one of several `environments`; `name_of(prompt)` names it, or is None.

    The environments play one after the other, in their order. The tokens of an episode depend on its stream alone, so
    that they are those of a run that has this environment alone. Failures are counted over all environments: their own
    `max_failed` has to be 1.
    """

    def __init__(
        self,
        environments: Mapping[str | None, Environment],
        name_of: Callable[[Prompt], str | None],
        *,
        max_failed: float = 0.5,
    ) -> None:
        self.environments = environments
        self.name_of = name_of
        self.max_failed = max_failed

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
        """Return `n` rollouts of each prompt, in the order of the prompts."""
        failures = failures or FailureCount()
        names = [self.name_of(prompt) for prompt in prompts]
        groups: dict[int, Group] = {}
        for name, environment in self.environments.items():
            if places := [index for index, of_row in enumerate(names) if of_row == name]:
                asked = [prompts[index] for index in places]
                played = environment.rollouts(engine, asked, n, sampling, step=step, purpose=purpose, failures=failures)
                groups |= {index: _counted(group, name) for index, group in zip(places, played, strict=True)}
        failures.check([], [], self.max_failed)
        return [groups[index] for index in range(len(prompts))]


def _counted(group: Group, name: str | None) -> Group:
    """Return a group whose rollouts say in which environment they were played."""
    if name is None:
        return group
    rollouts = (replace(rollout, counts={**rollout.counts, f"{COUNTED}{name}": 1}) for rollout in group.rollouts)
    return replace(group, rollouts=tuple(rollouts))
