"""Supervised fine-tuning: the update of the loop on given answers, each token with advantage 1."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from outdo.algorithms.objectives.presets import likelihood
from outdo.data.prompts import Prompts
from outdo.extras.sft.sft_examples import SftTokens
from outdo.models.policy import Policy
from outdo.types import Batch, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStep:
    """One optimiser step of supervised fine-tuning."""

    index: int
    update: Update

    @property
    def likelihood(self) -> float:
        """The mean log-probability of the learned tokens before the step, in nats."""
        return self.update.metrics["loss/policy"]


def sft(policy: Policy, examples: Prompts[SftTokens], *, steps: int, start: int = 1) -> Iterator[SftStep]:
    """Make the updates `start` to `steps`, each on one batch of `examples`, which `encode_examples` returns.

    The loss is the mean negative log-likelihood of the learned tokens over the batch (`presets.likelihood`).
    """
    objective = likelihood()
    for index, batch in zip(range(start, steps + 1), examples, strict=False):
        yield SftStep(index=index, update=policy.update(supervised(batch), objective))


def supervised(examples: Sequence[SftTokens]) -> Batch:
    """Make a batch of examples. Their learned tokens have advantage 1, and a prompt ends before the first of them."""
    starts = [example.learned.index(True) for example in examples]
    batch = Batch.of_tokens(
        [example.token_ids[:start] for example, start in zip(examples, starts, strict=True)],
        [example.token_ids[start:] for example, start in zip(examples, starts, strict=True)],
        masks=[example.learned[start:] for example, start in zip(examples, starts, strict=True)],
    )
    return batch.with_(advantages=batch.loss_mask.float(), rewards=torch.ones_like(batch.rewards))
