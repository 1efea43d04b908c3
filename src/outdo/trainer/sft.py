"""Supervised fine-tuning: the update of the loop on given answers, each with advantage 1."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outdo.algorithms.objectives.presets import likelihood
from outdo.data.prompts import Prompts
from outdo.models.policy import Policy
from outdo.types import Batch, Prompt, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStep:
    """One optimiser step of supervised fine-tuning."""

    index: int
    update: Update

    @property
    def likelihood(self) -> float:
        """The mean log-probability of the answers' tokens before the step, in nats."""
        return self.update.metrics["loss/policy"]


def completion_ids(policy: Policy, text: str) -> tuple[int, ...]:
    """Return the tokens of an answer as the policy would sample it: tokenised without its prompt, with an end token."""
    ids: list[int] = policy.tokenizer.encode(text, add_special_tokens=False)
    end: Any = policy.tokenizer.eos_token_id
    return (*ids, *([] if end is None else [end]))


def sft(policy: Policy, prompts: Prompts, *, steps: int) -> Iterator[SftStep]:
    """Make `steps` updates, each on one batch of `prompts`, whose `answer` is the text to learn.

    The loss is the mean negative log-likelihood of the answers' tokens over the batch (`presets.likelihood`).
    """
    objective = likelihood()
    for index, batch in zip(range(1, steps + 1), prompts, strict=False):
        yield SftStep(index=index, update=policy.update(supervised(policy, batch), objective))


def supervised(policy: Policy, prompts: Sequence[Prompt]) -> Batch:
    """Make a batch in which the completion of every prompt is its `answer`, with advantage 1."""
    completions = [completion_ids(policy, str(prompt.answer)) for prompt in prompts]
    batch = Batch.of_tokens([prompt.token_ids for prompt in prompts], completions)
    return batch.with_(advantages=batch.loss_mask.float(), rewards=torch.ones_like(batch.rewards))
