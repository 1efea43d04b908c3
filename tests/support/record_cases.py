"""Steps made by hand, and every objective there is."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from outdo.algorithms.objectives.base import Objective
from outdo.config.names import OBJECTIVES
from outdo.extras.record.bounds import policy_push
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step, Update


def objective(name: str) -> Objective:
    """By its name in a recipe, with its defaults."""
    module, _, function = OBJECTIVES[name].partition(":")
    make = getattr(importlib.import_module(module), function)
    return make(length=7) if name == "dr_grpo" else make()


def rollout(length: int = 2, reward: float = 0.0, **fields: Any) -> Rollout:
    """An answer of `length` tokens 10, 11, ..., all chosen by the policy."""
    settings: dict[str, Any] = {
        "token_ids": tuple(range(10, 10 + length)),
        "loss_mask": (True,) * length,
        "logprobs": (-0.5,) * length,
        "text": "",
        "reward": reward,
        "finish_reason": FinishReason.stop,
        "policy_version": 0,
    }
    return Rollout(**settings | fields)


def groups_of(*groups: Sequence[Rollout]) -> list[Group]:
    """The prompts have the ids "0", "1", ... and one token each."""
    prompts = [Prompt(id=str(number), text="", token_ids=(1,)) for number in range(len(groups))]
    return [Group(prompt=prompt, rollouts=tuple(each)) for prompt, each in zip(prompts, groups, strict=True)]


def one_group(probabilities: Sequence[Sequence[float]], advantages: Sequence[float], *, alike: bool = False) -> Batch:
    """One answer for each row of token probabilities under π_old, which the reference has too, and its Â; float64.

    No two answers have a token in common, unless they are `alike`.
    """
    firsts = [10 if alike else 10 + 100 * number for number in range(len(probabilities))]
    answers = [
        rollout(len(row), token_ids=tuple(range(first, first + len(row))))
        for first, row in zip(firsts, probabilities, strict=True)
    ]
    batch = Batch.from_groups(groups_of(answers))
    width = batch.token_ids.shape[1]
    old = torch.tensor(
        [[1.0, *row, *[1.0] * (width - 1 - len(row))] for row in probabilities], dtype=torch.float64
    ).log()
    signs = torch.tensor(advantages, dtype=torch.float64)[:, None] * batch.loss_mask
    return batch.with_(old_logprobs=old, ref_logprobs=old, advantages=signs)


def one_pass(objective: Objective, batch: Batch, logprobs: Tensor, **tokens: Tensor) -> Update:
    """What a pass says that found the policy at `logprobs`, without a pull of a reference unless `tokens` has one."""
    old = logprobs if batch.old_logprobs is None else batch.old_logprobs
    push = policy_push(objective, batch.with_(old_logprobs=old), logprobs)
    found = {
        "logprobs": logprobs,
        "log_ratio": (logprobs - old).where(batch.loss_mask, 0.0),
        "entropy": torch.ones_like(logprobs),
        "push": push,
        "policy_push": push,
        "clipped": push == 0,
    }
    return Update(metrics={}, tokens=found | tokens)


def step_of(groups: Sequence[Group], batch: Batch, *updates: Update) -> Step:
    """A step of these passes."""
    return Step(index=1, sampled=Sampled(groups=groups), batch=batch, updates=updates)


def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    """To six digits, to be compared as a whole."""
    return {name: round(value, 6) for name, value in metrics.items()}
