"""The algorithm. Everything else in outdo is what these lines call."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from outdo.algorithms.advantages import Advantage, compute_advantages
from outdo.algorithms.early_stopping import Stop, never
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.models.bundle import Models
from outdo.models.policy import Policy
from outdo.types import Batch, Group, Prompt, Sampled, Step, Update
from outdo.utils.timing import span


class Sampler(Protocol):
    """Sample a group of answers to each question from the policy, and score them."""

    def __call__(self, policy: Policy, questions: Sequence[Prompt], *, step: int) -> Sequence[Group] | Sampled:
        """One group per question; fewer where questions were dropped. `Sampled` adds metrics of the sampling."""
        ...


def train(
    models: Models,
    prompts: Iterable[Sequence[Prompt]],
    sample: Sampler,
    advantage: Advantage,
    objective: Objective,
    *,
    passes: int = 1,
    stop: Stop = never,
    start: int = 1,
) -> Iterator[Step]:
    """Improve `models.policy`; each item of `prompts` is one step's batch of questions. Stop by leaving the loop.

    Algorithm 3 of CS336 and, with `models.refresh_every`, the iterative GRPO of DeepSeekMath (Algorithm 1). `passes`
    is μ. A step without a token to train on is yielded like any other, and updates nothing. Raises `ValueError` at
    once where advantage or objective need a model that there is not.
    """
    needs = requirements_of(advantage, objective)
    models.check(needs)
    for index, questions in enumerate(prompts, start):  # a batch of questions from D
        sampled = Sampled.of(sample(models.policy, questions, step=index))  # π_old ← πθ: G outputs each, rewards
        batch = score(Batch.from_groups(sampled.groups), models, needs, passes=passes)  # log π_old, log π_ref, values
        batch = objective.prepare(compute_advantages(advantage, batch))  # Â; totals and targets: fixed for this batch
        updates: list[Update] = []
        reason = ""
        while batch.totals.tokens and len(updates) < passes and not reason:  # μ
            updates.append(models.update(batch, objective))  # one pass: `minibatches` optimiser steps
            reason = stop(batch, updates) if updates[-1].tokens else ""  # none: a critic warms up alone
        models.refresh(index)  # π_ref ← πθ when an iteration ends
        yield Step(index=index, sampled=sampled, batch=batch, updates=updates, stopped=reason or "maximum")  # your body


def score(batch: Batch, models: Models, needs: Requires, *, passes: int) -> Batch:
    """Fill in what the models say of a batch before it changes them, as far as it is needed and they are there.

    In a single pass of a single optimiser step π_old is the policy itself: the forward pass that trains gives
    `old_logprobs` too, and none is made for them unless something needs them earlier.
    """
    if batch.totals.tokens == 0:
        return batch
    if needs.old_logprobs or needs.old_entropy or passes * models.policy.batch_sizes.minibatches > 1:
        with span("old"):
            scores = models.policy.measure(batch, entropy="value" if needs.old_entropy else "none")
        batch = batch.with_(old_logprobs=scores.logprobs, old_entropy=scores.entropy)
    if needs.reference and models.reference is not None:
        with span("reference"):
            batch = batch.with_(ref_logprobs=models.reference.logprobs(batch))
    if needs.values and models.critic is not None:
        with span("values"):
            batch = batch.with_(values=models.critic.values(batch))
    return batch
