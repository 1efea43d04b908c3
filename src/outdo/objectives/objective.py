"""What an objective is, and the formula that most of them are.

    J = Σ_{b,t} w · ( c · S(ρ, Â) - β · D ) + η · Σ_{b,t} w · H,        loss = -J

with ρ at some `level`, `surrogate` S, `divergence` D, `correction` c and `weight` w. An objective that is not of this
shape is a callable of its own that satisfies the Protocol.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outdo.objectives.corrections import Correction, none
from outdo.objectives.divergences import Divergence, k3
from outdo.objectives.ratios import Level, log_ratio, token
from outdo.objectives.surrogates import Surrogate
from outdo.objectives.weights import Weight, sequence_mean
from outdo.types import Batch, Terms, TokenScores


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an objective must be given."""

    reference: bool = False  # `ref_logprobs`
    entropy: bool = False  # a differentiable entropy in the scores
    old_logprobs: bool = True  # when a batch is passed over more than once
    whole_groups: bool = False  # no micro-batch may cut a group


class Objective(Protocol):
    """Scores and a batch into terms. `prepare` runs once per batch, before the first pass."""

    @property
    def needs(self) -> Needs:
        """What must be in the batch and the scores."""
        ...

    def prepare(self, batch: Batch) -> Batch:
        """Fill in what is fixed for all passes over a batch: targets, batch statistics."""
        ...

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """The objective's terms over a micro-batch; those of all micro-batches add up to the step's."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The six pieces put together. `beta` is β, `entropy_bonus` η (both ≥ 0)."""

    surrogate: Surrogate
    level: Level = token
    correction: Correction = none
    divergence: Divergence = k3
    beta: float = 0.0
    weight: Weight = sequence_mean
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        for name in ("beta", "entropy_bonus"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def needs(self) -> Needs:
        """The reference where β counts, the entropy where η does."""
        return Needs(reference=self.beta > 0, entropy=self.entropy_bonus > 0)

    def prepare(self, batch: Batch) -> Batch:
        """Nothing is fixed per batch."""
        return batch

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """The formula. Tokens outside `loss_mask` are cut off before anything is computed from them."""
        mask = batch.loss_mask
        advantages = _given(batch.advantages, "advantages").where(mask, 0.0)
        logprobs = scores.logprobs.where(mask, 0.0)
        ratio = self.level(log_ratio(logprobs, batch), mask)

        def weighted(values: Tensor) -> Tensor:
            return (self.weight(batch) * values.where(mask, 0.0)).sum()

        policy = weighted(self.correction(batch) * self.surrogate(ratio, logprobs, advantages, batch))
        divergence = entropy = torch.zeros_like(policy)
        if self.beta > 0:
            reference = _given(batch.ref_logprobs, "ref_logprobs").where(mask, 0.0)
            divergence = self.beta * weighted(self.divergence(logprobs, reference))
        if self.entropy_bonus > 0:
            entropy = self.entropy_bonus * weighted(_given(scores.entropy, "entropy"))
        return Terms(policy=policy, divergence=divergence, entropy=entropy, loss=-(policy - divergence + entropy))


def _given(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        raise ValueError(f"the objective needs `{name}`, which the batch does not have")
    return value
