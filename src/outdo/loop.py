"""The algorithm. Everything else in outdo is what these lines call."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from outdo.advantages import Advantage
from outdo.models import Models
from outdo.objectives.objective import Objective
from outdo.policy import Policy
from outdo.types import Batch, Group, Prompt, Step, Update

Stop = Callable[[Batch, Update], bool]


class Rollout(Protocol):
    """Sample a group of answers to each question from the policy, and score them."""

    def __call__(self, policy: Policy, questions: Sequence[Prompt], *, step: int) -> list[Group]:
        """One group per question; fewer where questions were dropped."""
        ...


def never(batch: Batch, update: Update) -> bool:
    """The stopping rule that runs all inner updates."""
    return False


def train(
    models: Models,
    prompts: Iterable[Sequence[Prompt]],
    rollout: Rollout,
    advantage: Advantage,
    objective: Objective,
    *,
    updates: int = 1,
    stop: Stop = never,
    start: int = 1,
) -> Iterator[Step]:
    """Improve `models.policy`; each item of `prompts` is one step's batch of questions. Stop by leaving the loop.

    Algorithm 3 of CS336 and, with `models.refresh_every`, the iterative GRPO of DeepSeekMath (Algorithm 1). `updates`
    is μ. A step without a token to train on is yielded like any other, and updates nothing.
    """
    for index, questions in enumerate(prompts, start):  # a batch of questions from D
        groups = rollout(models.policy, questions, step=index)  # π_old ← πθ: G outputs each, and their rewards
        batch = score(Batch.from_groups(groups), models, objective, passes=updates)  # log π_old, log π_ref
        batch = objective.prepare(advantage(batch))  # Â; totals and targets: fixed for this batch
        passes: list[Update] = []
        while batch.totals.tokens and len(passes) < updates:  # μ
            passes.append(models.update(batch, objective))  # one pass: `minibatches` optimiser steps
            if stop(batch, passes[-1]):
                break
        models.refresh(index)  # π_ref ← πθ when an iteration ends
        yield Step(index=index, groups=groups, batch=batch, updates=passes)  # the caller's body


def score(batch: Batch, models: Models, objective: Objective, *, passes: int) -> Batch:
    """Fill in the log-probabilities that the objective asks for.

    In a single pass of a single optimiser step π_old is the policy itself: the forward pass that trains gives
    `old_logprobs` too, and none is made for them.
    """
    if batch.totals.tokens == 0:
        return batch
    if objective.needs.old_logprobs and passes * models.policy.work.minibatches > 1:
        batch = batch.with_(old_logprobs=models.policy.logprobs(batch))
    if objective.needs.reference:
        if models.reference is None:
            raise ValueError("the objective needs a reference: build models with `Models.of(policy, objective)`")
        batch = batch.with_(ref_logprobs=models.reference.logprobs(batch))
    return batch
