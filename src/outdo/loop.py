"""The training loop: one function that reads like the algorithm in the papers. It calls everything else in outdo."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from outdo.algorithms.advantages import Advantage, compute_advantages
from outdo.algorithms.early_stopping import Stop
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.types import Batch, Group, Prompt, Sampled, Step, Update
from outdo.utils.timing import span


class Sampler(Protocol):
    """Samples a group of answers to each question from the policy, and computes their rewards."""

    def __call__(self, policy: Policy, questions: Sequence[Prompt], *, step: int) -> Sequence[Group] | Sampled:
        """Return one group per question; fewer where questions were dropped. `Sampled` adds metrics of the sampling."""
        ...


Rollouts = Iterable[tuple[int, Sampled]]
"""The number of each step, and its groups with their rewards."""


def in_turn(
    policy: Policy, prompts: Iterable[Sequence[Prompt]], sample: Sampler, *, start: int = 1
) -> Iterator[tuple[int, Sampled]]:
    """Sample the groups of each step from the policy as it is then: sampling and training take turns.

    Each item of `prompts` is the batch of questions of one step. A run that is continued starts with the step `start`.
    """
    for step, questions in enumerate(prompts, start):  # a batch of questions from D
        yield step, Sampled.of(sample(policy, questions, step=step))  # π_old ← πθ: G outputs each, and rewards


def train(
    models: Models,
    rollouts: Rollouts,
    advantage: Advantage,
    objective: Objective,
    *,
    passes: int = 1,
    stop: Stop | None = None,
) -> Iterator[Step]:
    """Train `models.policy` and yield every step. `rollouts` are those of `in_turn`, or of an asynchronous sampler.

    This is Algorithm 3 of CS336 and, with `models.refresh_every`, the iterative GRPO of DeepSeekMath (Algorithm 1).
    `passes` is μ. To stop, leave the loop. A step without a token to train on is yielded like any other and updates
    nothing. Raises `ValueError` at once where the advantage or the objective requires a model that is missing.
    """
    required = requirements_of(advantage, objective)
    models.check(required)
    for index, sampled in rollouts:
        batch = Batch.from_groups(sampled.groups)
        batch = score(batch, models, required, passes=passes)  # log π_old, log π_ref, values
        batch = objective.prepare(compute_advantages(advantage, batch))  # Â; totals and targets: fixed for this batch
        updates: list[Update] = []
        reason = ""
        while batch.totals.tokens and len(updates) < passes and not reason:  # μ
            updates.append(models.update(batch, objective))  # one pass: `minibatches` optimiser steps
            if stop is not None and updates[-1].tokens:  # without tokens only the critic learned
                reason = stop(batch, updates)
        models.refresh(index)  # π_ref ← πθ when an iteration ends
        yield Step(index=index, sampled=sampled, batch=batch, updates=updates, stopped=reason or "maximum")  # your body


def score(batch: Batch, models: Models, required: Requires, *, passes: int) -> Batch:
    """Compute old log-probabilities, reference log-probabilities and values where they are required.

    In a single pass of a single optimiser step π_old is the policy itself: the forward pass of the training gives
    `old_logprobs` as well. Only a piece that requires them earlier causes a forward pass of their own.
    """
    if batch.totals.tokens == 0:
        return batch
    if required.old_logprobs or required.old_entropy or passes * models.policy.batch_sizes.minibatches > 1:
        with span("old"):
            scores = models.policy.measure(batch, entropy="value" if required.old_entropy else "none")
        batch = batch.with_(old_logprobs=scores.logprobs, old_entropy=scores.entropy)
    if required.old_collision:
        with span("old"):
            batch = batch.with_(old_collision=models.policy.collision(batch))
    if required.reference and models.reference is not None:
        with span("reference"):
            batch = batch.with_(ref_logprobs=models.reference.logprobs(batch))
    if required.values and models.critic is not None:
        with span("values"):
            ends = models.critic.end_values(batch) if required.end_values else None
            batch = batch.with_(values=models.critic.values(batch), end_values=ends)
    return batch
