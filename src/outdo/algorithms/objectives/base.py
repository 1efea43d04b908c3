"""The protocol of an objective, and the formula of most objectives.

    J = Σ_{b,t} w · ( c · S(ρ, Â) - β · D - β_T · D_T ) + η · Σ_{b,t} w_H · H,        loss = -J

with the ratio ρ at a `level`, `surrogate` S, `divergence` D from the reference, `teacher_divergence` D_T from the
teachers, `correction` c and `weight` w. An objective of another form is a class of its own that has the methods of the
protocol.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, SupportsFloat

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.objectives.divergences import Divergence, k3
from outdo.algorithms.objectives.ratios import LOG_RATIO_CLAMP, Level, log_ratio, token
from outdo.algorithms.objectives.surrogates import Surrogate, log_likelihood, nothing
from outdo.algorithms.objectives.weights import Weight, sequence_mean
from outdo.algorithms.requirements import Requires, requirements_of
from outdo.algorithms.shapes import FACTOR, TOKENS, Correction, check_shape
from outdo.algorithms.vocabulary_divergences import VocabularyDivergence, reverse_kl
from outdo.algorithms.vocabulary_sums import token_entropy
from outdo.types import Batch, Terms, TokenScores

BatchTransform = Callable[[Batch], Batch]

TEACHER_DIVERGENCE = "teacher_divergence"
"""The name of D_T among the sums over the vocabulary, and among what an update measures of each token."""


class Objective(Protocol):
    """Computes terms from scores and a batch. `prepare` runs once per batch, before the first pass."""

    @property
    def requires(self) -> Requires:
        """Return the data that must be in the batch and the scores."""
        ...

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with everything that is fixed for all passes: targets, batch statistics."""
        ...

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Compute the terms of a micro-batch. Their sums over all micro-batches are the terms of the step."""
        ...


def as_it_is(batch: Batch) -> Batch:
    """Return the batch unchanged: the transform of an objective that fixes nothing per batch."""
    return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedObjective:
    """An objective of its pieces: see the module. `beta` is β, `entropy_bonus` η, `teacher_beta` β_T: from 0.

    The first two may also be numbers of `outdo.algorithms.adaptive`.
    """

    surrogate: Surrogate
    level: Level = token
    correction: Correction | None = None
    divergence: Divergence = k3
    beta: SupportsFloat = 0.0
    kl_ratio: bool = False  # multiply D by ρ, including its gradient: then it is unbiased off-policy
    kl_level: Level = token  # of that ρ. D is a divergence of tokens: with an answer's ratio it is biased
    weight: Weight = sequence_mean
    divergence_weight: Weight | None = None  # w_D; None: the same as `weight`
    teacher_divergence: VocabularyDivergence | None = None  # D_T; None: the reverse KL
    teacher_beta: float = 0.0
    entropy_bonus: SupportsFloat = 0.0
    entropy_weight: Weight | None = None  # w_H; None: the same as `weight`
    batch_transform: BatchTransform = as_it_is
    log_ratio_clamp: float = LOG_RATIO_CLAMP  # log-ratios are clamped to ± this number
    bypass: bool = False  # ρ = πθ / π_rollout, with the engine's log-probabilities in the place of π_old's
    requires: Requires = field(init=False, repr=False, compare=False)  # of the pieces; π_ref for β, the entropy for η

    def __post_init__(self) -> None:
        for name in ("beta", "entropy_bonus", "teacher_beta"):
            if not 0 <= float(getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not self.log_ratio_clamp > 0:
            raise ValueError(f"log_ratio_clamp must be above 0, not {self.log_ratio_clamp}: every ratio would be 1")
        pieces = (self.surrogate, self.level, self.correction, self.divergence, self.weight, self.batch_transform)
        sums = {"entropy": token_entropy} if _is_used(self.entropy_bonus) else {}
        from_teachers = {TEACHER_DIVERGENCE: self.teacher_divergence or reverse_kl()} if self.teacher_beta else {}
        of_terms = Requires(reference=_is_used(self.beta), sums=sums, divergences=from_teachers)
        object.__setattr__(
            self, "requires", of_terms | requirements_of(*pieces, self.divergence_weight, self.entropy_weight)
        )

    @property
    def has_ratio(self) -> bool:
        """Whether the surrogate reads the ratio, so that it can be clipped."""
        return self.surrogate not in (log_likelihood, nothing)

    def prepare(self, batch: Batch) -> Batch:
        """Return the transformed batch, or the batch itself where there is no token to train on."""
        return self.batch_transform(batch) if batch.totals.tokens else batch

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Compute the formula. Pieces see 0 outside of `loss_mask`, and always π_old: in a first and only pass it is
        πθ.

        With `bypass` the surrogate sees π_rollout as π_old, and the correction sees πθ, so that w = πθ / π_rollout:
        verl's bypass mode.

        Raises `UserError` where a piece returns a wrong shape.
        """
        sizes = dict(zip("BT", batch.loss_mask.shape, strict=True))
        check = functools.partial(check_shape, sizes=sizes)
        logprobs = scores.logprobs.where(batch.loss_mask, 0.0)
        batch = of_correction = _masked(batch, logprobs)
        if self.bypass:
            of_correction = batch.with_(old_logprobs=logprobs.detach())
            batch = batch.with_(old_logprobs=compared_logprobs(self, batch))
        mask, advantages = batch.loss_mask, given(batch.advantages, "advantages")
        log_ratios = log_ratio(logprobs, batch, limit=self.log_ratio_clamp)
        ratio = check(self.level(log_ratios, mask), TOKENS, "level", self.level)

        def weighted(values: Float[Tensor, "B T"], weight: Weight) -> Float[Tensor, ""]:
            return (check(weight(batch), FACTOR, "weight", weight) * values.where(mask, 0.0)).sum()

        surrogate = self.surrogate(ratio, logprobs, advantages, batch)
        surrogate = check(surrogate, TOKENS, "surrogate", self.surrogate)
        if self.correction is not None:
            factor = self.correction(logprobs.detach(), of_correction)
            surrogate = check(factor, FACTOR, "correction", self.correction) * surrogate
        policy = weighted(surrogate, self.weight)
        divergence = entropy = torch.zeros_like(policy)
        if _is_used(self.beta):
            distance = self.divergence(logprobs, given(batch.ref_logprobs, "ref_logprobs"))
            distance = check(distance, TOKENS, "divergence", self.divergence)
            distance = distance * self.kl_level(log_ratios, mask).exp() if self.kl_ratio else distance
            divergence = float(self.beta) * weighted(distance, self.divergence_weight or self.weight)
        if _is_used(self.entropy_bonus):
            spread = given(scores.sums.get("entropy"), "entropy")
            entropy = float(self.entropy_bonus) * weighted(spread, self.entropy_weight or self.weight)
        loss, teacher = -(policy - divergence + entropy), None
        if self.teacher_beta:
            distance = given(scores.sums.get(TEACHER_DIVERGENCE), TEACHER_DIVERGENCE)
            teacher = self.teacher_beta * weighted(distance, self.weight)
            loss = loss + teacher
        return Terms(policy=policy, divergence=divergence, entropy=entropy, loss=loss, teacher=teacher)


@dataclass(frozen=True, slots=True)
class PlainObjective:
    """An objective that is a function from scores and batch to terms. The function may be marked with `requires`."""

    function: Callable[[TokenScores, Batch], Terms]

    @property
    def requires(self) -> Requires:
        """Return the requirements that the function is marked with."""
        return requirements_of(self.function)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch unchanged."""
        return batch

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        """Call the function. Raises `TypeError` if it does not return `Terms`."""
        terms: object = self.function(scores, batch)
        if not isinstance(terms, Terms):
            name = getattr(self.function, "__name__", "the objective")
            raise TypeError(f"{name} returned {type(terms).__name__}; an objective returns outdo.Terms")
        return terms


def has_ratio(objective: Objective) -> bool:
    """Return whether a ratio of probabilities is in the objective; True for one that does not say so (`has_ratio`)."""
    return bool(getattr(objective, "has_ratio", True))


def compared_logprobs(objective: Objective, batch: Batch) -> Float[Tensor, "B T"] | None:
    """Return the log-probabilities [B, T] at which the objective's ratio is 1: π_old's, or with `bypass` the engine's.

    None where they are πθ itself: in a first and only pass.
    """
    bypass = isinstance(objective, ComposedObjective) and objective.bypass
    return batch.rollout_logprobs if bypass else batch.old_logprobs


def compared_log_ratio(objective: Objective, logprobs: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
    """Return the logarithm of the ratio that the objective bounds: at its level, to `compared_logprobs`. [B, T]"""
    now = logprobs.detach()
    batch = batch.with_(old_logprobs=compared_logprobs(objective, batch))
    if not isinstance(objective, ComposedObjective):
        return log_ratio(now, batch)
    return objective.level(log_ratio(now, batch, limit=objective.log_ratio_clamp), batch.loss_mask)


def clipped_tokens(
    objective: Objective, scores: TokenScores, batch: Batch, policy_push: Float[Tensor, "B T"]
) -> Bool[Tensor, "B T"]:
    """Return the trained tokens with Â other than 0 that the surrogate no longer pushes as it does at ratio 1.

    `policy_push` [B, T] is the derivative of the policy term with respect to log πθ. Where this is 0 at ratio 1 too,
    the token is not clipped: there was nothing to push. A token that is not pushed only because the correction drops it
    is not clipped either; therefore a composed objective is evaluated without its correction.
    """
    start = compared_logprobs(objective, batch)
    if batch.advantages is None or start is None:
        return torch.zeros_like(batch.loss_mask)
    if isinstance(objective, ComposedObjective) and objective.correction is not None:
        objective = replace(objective, correction=None)
        policy_push = _push_at(objective, scores.logprobs, scores, batch)
    before = _push_at(objective, start, scores, batch)
    return (before != 0) & (policy_push.sign() != before.sign()) & (batch.advantages != 0) & batch.loss_mask


def clip_measurements(
    objective: Objective, scores: TokenScores, batch: Batch, policy_push: Float[Tensor, "B T"]
) -> dict[str, Tensor]:
    """Return `clipped` and `clip_log_ratio`, [B, T] each, as `outdo.Update.tokens` has them; empty without a ratio."""
    if not has_ratio(objective):
        return {}
    return {
        "clipped": clipped_tokens(objective, scores, batch, policy_push),
        "clip_log_ratio": compared_log_ratio(objective, scores.logprobs, batch),
    }


def _push_at(
    objective: Objective, logprobs: Float[Tensor, "B T"], scores: TokenScores, batch: Batch
) -> Float[Tensor, "B T"]:
    """Compute the derivative of the policy term by log πθ at `logprobs`. [B, T]"""
    leaf = logprobs.detach().clone().requires_grad_()
    terms = objective(replace(scores, logprobs=leaf), batch)
    return torch.autograd.grad(terms.policy, leaf)[0]


def given(value: Float[Tensor, "B T"] | None, name: str) -> Float[Tensor, "B T"]:
    """Return the value; raise `ValueError` with its name where the batch does not have it."""
    if value is None:
        raise ValueError(f"the objective needs `{name}`, which the batch does not have")
    return value


def _is_used(coefficient: SupportsFloat) -> bool:
    """Return False for a plain 0. An adaptive coefficient may be 0 only for a while."""
    return not isinstance(coefficient, int | float) or coefficient > 0


def _masked(batch: Batch, logprobs: Float[Tensor, "B T"]) -> Batch:
    """Return the batch with 0 outside of `loss_mask`, and with `old_logprobs`."""
    names = ("advantages", "ref_logprobs", "old_logprobs", "rollout_logprobs")
    present = {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}
    masked = {name: value.where(batch.loss_mask, 0.0) for name, value in present.items()}
    return batch.with_(**{"old_logprobs": logprobs.detach(), **masked})
