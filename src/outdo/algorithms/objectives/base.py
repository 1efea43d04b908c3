"""What an objective is, and the formula that most of them are.

    J = Σ_{b,t} w · ( c · S(ρ, Â) - β · D ) + η · Σ_{b,t} w_H · H,        loss = -J

with ρ at some `level`, `surrogate` S, `divergence` D, `correction` c and `weight` w. An objective that is not of this
shape is a callable of its own that satisfies the Protocol.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

import torch
from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.objectives.corrections import Correction, none
from outdo.algorithms.objectives.divergences import Divergence, k3
from outdo.algorithms.objectives.ratios import LOG_RATIO_CLAMP, Level, log_ratio, token
from outdo.algorithms.objectives.surrogates import Surrogate
from outdo.algorithms.objectives.weights import Weight, sequence_mean
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.algorithms.shapes import FACTOR, TOKENS, check_shape
from outdo.types import Batch, Terms, TokenScores

BatchTransform = Callable[[Batch], Batch]


class Objective(Protocol):
    """Scores and a batch into terms. `prepare` runs once per batch, before the first pass."""

    @property
    def requires(self) -> Requires:
        """What must be in the batch and the scores."""
        ...

    def prepare(self, batch: Batch) -> Batch:
        """Fill in what is fixed for all passes over a batch: targets, batch statistics."""
        ...

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """The objective's terms over a micro-batch; those of all micro-batches add up to the step's."""
        ...


def as_it_is(batch: Batch) -> Batch:
    """The preparation of an objective that fixes nothing per batch."""
    return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedObjective:
    """The six pieces put together. `beta` is β, `entropy_bonus` η: numbers from 0, or `outdo.algorithms.adaptive`."""

    surrogate: Surrogate
    level: Level = token
    correction: Correction = none
    divergence: Divergence = k3
    beta: SupportsFloat = 0.0
    kl_ratio: bool = False  # D is multiplied by ρ, its gradient included: what makes it unbiased off-policy
    weight: Weight = sequence_mean
    entropy_bonus: SupportsFloat = 0.0
    entropy_weight: Weight | None = None  # w_H; None: the same as `weight`
    batch_transform: BatchTransform = as_it_is
    log_ratio_clamp: float = LOG_RATIO_CLAMP  # log-ratios are kept within ±limit

    def __post_init__(self) -> None:
        for name in ("beta", "entropy_bonus"):
            if not 0 <= float(getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def requires(self) -> Requires:
        """What the pieces need; the reference where β counts, the entropy where η does."""
        pieces = (self.surrogate, self.level, self.correction, self.divergence, self.weight, self.batch_transform)
        own = Requires(reference=_counts(self.beta), entropy=_counts(self.entropy_bonus))
        return own | requirements_of(*pieces, self.entropy_weight)

    def prepare(self, batch: Batch) -> Batch:
        """What the preparation fixes for all passes over the batch; nothing where there is no token to train on."""
        return self.batch_transform(batch) if batch.totals.tokens else batch

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Compute the formula. Pieces see 0 outside of `loss_mask`, and always π_old: in a first and only pass it is
        πθ.

        Raises `UserError` where a piece returns a wrong shape.
        """
        sizes = dict(zip("BT", batch.loss_mask.shape, strict=True))
        check = functools.partial(check_shape, sizes=sizes)
        logprobs = scores.logprobs.where(batch.loss_mask, 0.0)
        batch = _masked(batch, logprobs)
        mask, advantages = batch.loss_mask, given(batch.advantages, "advantages")
        log_ratios = log_ratio(logprobs, batch, limit=self.log_ratio_clamp)
        ratio = check(self.level(log_ratios, mask), TOKENS, "level", self.level)

        def weighted(values: Float[Tensor, "B T"], weight: Weight) -> Float[Tensor, ""]:
            return (check(weight(batch), FACTOR, "weight", weight) * values.where(mask, 0.0)).sum()

        surrogate = self.surrogate(ratio, logprobs, advantages, batch)
        surrogate = check(surrogate, TOKENS, "surrogate", self.surrogate)
        factor = self.correction(logprobs.detach(), batch)
        factor = check(factor, FACTOR, "correction", self.correction)
        policy = weighted(factor * surrogate, self.weight)
        divergence = entropy = torch.zeros_like(policy)
        if _counts(self.beta):
            distance = self.divergence(logprobs, given(batch.ref_logprobs, "ref_logprobs"))
            distance = check(distance, TOKENS, "divergence", self.divergence)
            distance = distance * ratio.exp() if self.kl_ratio else distance
            divergence = float(self.beta) * weighted(distance, self.weight)
        if _counts(self.entropy_bonus):
            spread = given(scores.entropy, "entropy")
            entropy = float(self.entropy_bonus) * weighted(spread, self.entropy_weight or self.weight)
        return Terms(policy=policy, divergence=divergence, entropy=entropy, loss=-(policy - divergence + entropy))


@dataclass(frozen=True, slots=True)
class PlainObjective:
    """A function from scores and batch to terms, as an objective. It may be marked with `requires`."""

    function: Callable[[TokenScores, Batch], Terms]

    @property
    def requires(self) -> Requires:
        """What the function is marked with."""
        return requirements_of(self.function)

    def prepare(self, batch: Batch) -> Batch:
        """Nothing is fixed per batch."""
        return batch

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """What the function says. Raises TypeError if that is no `Terms`."""
        terms: object = self.function(scores, batch)
        if not isinstance(terms, Terms):
            name = getattr(self.function, "__name__", "the objective")
            raise TypeError(f"{name} returned {type(terms).__name__}; an objective returns outdo.Terms")
        return terms


def given(value: Float[Tensor, "B T"] | None, name: str) -> Float[Tensor, "B T"]:
    """The value, or an error that says what an objective lacks."""
    if value is None:
        raise ValueError(f"the objective needs `{name}`, which the batch does not have")
    return value


def _counts(coefficient: SupportsFloat) -> bool:
    """False for a plain 0; one that adapts may be 0 for a while."""
    return not isinstance(coefficient, int | float) or coefficient > 0


def _masked(batch: Batch, logprobs: Float[Tensor, "B T"]) -> Batch:
    """The batch with 0 outside of `loss_mask`, whatever stood there, and with `old_logprobs`."""
    names = ("advantages", "ref_logprobs", "old_logprobs", "rollout_logprobs")
    found = {name: getattr(batch, name) for name in names}
    cut = {name: value.where(batch.loss_mask, 0.0) for name, value in found.items() if value is not None}
    return batch.with_(**{"old_logprobs": logprobs.detach(), **cut})
