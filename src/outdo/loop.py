"""The training loop: one function that reads like the algorithm in the papers. It calls everything else in outdo."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from outdo.algorithms.advantages.base import Advantage, compute_advantages
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.types import Batch, Group, Prompt, Sampled, Step, Stop, Update

PolicyT = TypeVar("PolicyT", contravariant=True)


class Sampler(Protocol[PolicyT]):
    """Samples a group of completions of each question from the policy, and computes their rewards."""

    def __call__(self, policy: PolicyT, questions: Sequence[Prompt], *, step: int) -> Sequence[Group] | Sampled:
        """Return one group per question; fewer where questions were dropped. `Sampled` adds metrics of the sampling."""
        ...


Rollouts = Iterable[tuple[int, Sampled]]
"""The number of each step, and its groups with their rewards."""


def in_turn(
    policy: PolicyT, prompts: Iterable[Sequence[Prompt]], sample: Sampler[PolicyT], *, start: int = 1
) -> Iterator[tuple[int, Sampled]]:
    """Sample the groups of each step from the policy as it is then: sampling and training take turns.

    Each item of `prompts` is the batch of questions of one step. A run that is continued starts with the step `start`.
    """
    for step, questions in enumerate(prompts, start):  # a batch of questions from D
        yield step, Sampled.of(sample(policy, questions, step=step))  # π_old ← πθ: G outputs each, and rewards


class TrainedModels(Protocol):
    """The policy πθ, with the reference π_ref and the critic V where a method requires them; see `outdo.Models`."""

    def check(self, required: Requires) -> None:
        """Raise `ValueError` if a required model is missing."""
        ...

    def score(self, batch: Batch, required: Requires, *, passes: int) -> Batch:
        """Compute old log-probabilities, reference log-probabilities and values where they are required."""
        ...

    def update(self, batch: Batch, objective: Objective) -> Update:
        """Make one pass over a batch. The result has no tokens if only the critic learned."""
        ...

    def refresh(self, step: int) -> None:
        """Count a finished step; if an iteration ends with it, update the reference."""
        ...


def train(
    models: TrainedModels,
    rollouts: Rollouts,
    advantage: Advantage,
    objective: Objective,
    *,
    passes: int = 1,
    stop: Stop | None = None,
) -> Iterator[Step]:
    """Train the policy and yield every step. `rollouts` are those of `in_turn`, or of an asynchronous sampler.

    This is Algorithm 3 of CS336 and, with `Models.refresh_every`, the iterative GRPO of DeepSeekMath (Algorithm 1).
    `passes` is μ. To stop, leave the loop. A step without a token to train on is yielded like any other and updates
    nothing. Raises `ValueError` at once where the advantage or the objective requires a model that is missing.
    """
    required = requirements_of(advantage, objective)
    models.check(required)

    def steps() -> Iterator[Step]:
        for index, sampled in rollouts:
            batch = Batch.from_groups(sampled.groups)
            batch = models.score(batch, required, passes=passes)  # log π_old, log π_ref, values
            batch = objective.prepare(compute_advantages(advantage, batch))  # Â; totals, targets: fixed for this batch
            updates: list[Update] = []
            reason = ""
            while batch.totals.tokens and len(updates) < passes and not reason:  # μ
                updates.append(models.update(batch, objective))  # one pass: `minibatches` optimiser steps
                if stop is not None and updates[-1].tokens:  # without tokens only the critic learned
                    reason = stop(batch, updates)
            models.refresh(index)  # π_ref ← πθ when an iteration ends
            # Here the body of your loop runs.
            yield Step(index=index, sampled=sampled, batch=batch, updates=updates, stopped=reason or "maximum")

    return steps()
