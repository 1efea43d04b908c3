"""Target probabilities of the sampled tokens, fixed before the first pass over a batch.

A **context** c is an exact token prefix. S(c) are the distinct tokens that the answers of a group sampled after it. p_v
is the probability of token v under π_old. s_v is the mean advantage, each clamped to ±`limit`, of the answers that
contain v there. A rule computes the target τ_v from p_v and s_v. The remaining probability, 1 - Σ_S τ, is that of all
tokens that no answer sampled: the **rest**.

Everything is computed in float64 and returned in the precision of `old_logprobs`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from outdo.algorithms.objectives.base import given
from outdo.algorithms.prefix_tree import own_contexts, prefix_tree
from outdo.algorithms.progress import FULL, NOISE
from outdo.types import Batch

Rule = Callable[[Float[Tensor, "N"], Float[Tensor, "N"], Float[Tensor, "N"]], Float[Tensor, "N"]]
"""`(log p, s, strength) -> log τ`, each [N]. With strength 0 the target is p itself, with 1 the complete rule."""

HALVINGS = 50
LEAST = 1e-3
"""The lowest share of its probability that the clip rule leaves to a bad token."""
TINY = 1e-300
"""The lowest divisor: the sampled tokens of a context may have no probability that float64 can tell from 0."""


def power_rule(power: float = 2.0) -> Rule:
    """τ = p^(κ^-s), κ = 1 + strength (power - 1): the root for a good token, the power for a bad one."""

    def rule(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return logprobs * (1 + strength * (power - 1)) ** -sign

    return rule


def tilt_rule(eta: float = 1.0) -> Rule:
    """τ = p e^(strength η s): the tilt of TPO and DRO, with the rest in place of a normaliser."""

    def rule(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return logprobs + strength * eta * sign

    return rule


def clip_rule(clip_low: float = 0.2, clip_high: float = 0.2) -> Rule:
    """τ = p (1 + strength clip_high s) if s > 0, p max(LEAST, 1 + clip_low s) if s < 0: where PPO's clip would stop.

    PPO's bound is that of |s| = 1. Without `LEAST` an answer far below its group would have a negative target.
    """

    def rule(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        change = clip_high * sign.clamp(min=0) + clip_low * sign.clamp(max=0)
        return logprobs + (strength * change).clamp(min=LEAST - 1).log1p()

    return rule


def within(targets: Float[Tensor, "N"], logprobs: Float[Tensor, "N"], cap: float) -> Float[Tensor, "N"]:
    """Return the targets log τ with |log τ - log p| at most `cap`."""
    return targets.clamp(logprobs - cap, logprobs + cap)


def capped(rule: Rule, cap: float) -> Rule:
    """Return the same rule with |log τ - log p| at most `cap`."""

    def limited(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return within(rule(logprobs, sign, strength), logprobs, cap)

    return limited


def target_logprobs(
    logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], context: Int[Tensor, "N"], *, rule: Rule, keep: float
) -> Float[Tensor, "N"]:
    """Compute log τ [N] of N distinct tokens. Those with an equal number in `context` [N] (0 .. C-1) share a context.

    Bad tokens (s < 0) and neutral ones get the target of the rule. Good ones may get less: the rest keeps at least the
    share `keep` of its probability,

        Σ_S τ ≤ 1 - keep (1 - Σ_S p).

    Where the complete rule violates this, bisection in [0, 1] finds a strength for the context's good tokens with which
    it holds. It always holds with strength 0, so no token ever moves against its sign, which would be possible if all
    targets of a context were scaled by one factor.
    """
    room = 1 - keep * rest(logprobs, context)  # [C]

    def targets(strength: Float[Tensor, "C"]) -> Float[Tensor, "N"]:
        return rule(logprobs, sign, strength[context].where(sign > 0, 1.0))

    low, high = torch.zeros_like(room), torch.ones_like(room)
    strength = high
    for _ in range(HALVINGS):
        fits = _sum(targets(strength).exp(), context, len(room)) <= room
        low, high = strength.where(fits, low), high.where(fits, strength)
        if torch.equal(low, high):  # every context has room for the complete rule
            break
        strength = (low + high) / 2
    return targets(low)


def normalised_logprobs(
    logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], context: Int[Tensor, "N"], *, rule: Rule, fixed: bool
) -> Float[Tensor, "N"]:
    """Compute log τ [N] of N distinct tokens: the targets of the rule, divided by their sum in the context.

    The rest of the context is neutral: the sum contains its old probability, and it is divided too. With `fixed` it
    keeps its probability, and only the sampled tokens share theirs: a token alone in its context has the target p.
    Unlike in `target_logprobs` a good token may lose, where the others of its context are better.
    """
    complete = rule(logprobs, sign, torch.ones_like(sign))
    left = rest(logprobs, context)  # [C]
    peak = torch.zeros_like(left).scatter_reduce(0, context, complete, "amax")  # [C], at least 0: e^-peak is finite
    sampled = _sum((complete - peak[context]).exp(), context, len(left))
    size = sampled / (1 - left).clamp(min=TINY) if fixed else sampled + left * (-peak).exp()
    return complete - (size.log() + peak)[context]


def rest(logprobs: Float[Tensor, "N"], context: Int[Tensor, "N"]) -> Float[Tensor, "C"]:
    """Compute 1 - Σ_S e^logprobs, the probability of the tokens that no answer sampled: [N] -> [C]."""
    contexts = int(context.max()) + 1 if len(context) else 0
    return (1 - _sum(logprobs.exp(), context, contexts)).clamp(min=0)


class Setting(NamedTuple):
    """How targets are set; the values are those of `outdo.algorithms.objectives.target.objective.target`."""

    rule: Rule
    keep: float
    merge: bool
    hold: bool = False
    unsampled: str = "absorb"
    visits: bool = False
    limit: float = 1.0
    cap: float = math.inf


def with_targets(batch: Batch, setting: Setting) -> Batch:
    """Return the batch with `targets`, log τ [B, T], and with the values of `Aim` in `prepared`; 0 where not trained.

    A context in which no target differs from the old probability is not trained, unless `setting.hold` is set: then its
    tokens keep their probability.
    """
    mask, rule = batch.loss_mask, setting.rule
    old, advantages = known_logprobs(batch), given(batch.advantages, "advantages")
    contexts, tokens = prefix_tree(batch) if setting.merge else own_contexts(batch)

    _, token, rows = tokens[mask].unique(return_inverse=True, return_counts=True)  # N distinct tokens
    context = torch.zeros_like(rows).scatter(0, token, contexts[mask]).unique(return_inverse=True)[1]  # [N]
    logprobs = (_sum(old[mask].double(), token, len(rows)) / rows).clamp(max=0.0)
    strength = advantages[mask].double().clamp(-setting.limit, setting.limit)
    sign = _sum(strength, token, len(rows)) / rows
    if setting.unsampled == "absorb":
        targets = target_logprobs(logprobs, sign, context, rule=rule, keep=setting.keep)
        moving = sign.abs() > NOISE * _sum(strength.abs(), token, len(rows)) / rows  # more than a sum's rounding
    else:
        fixed = setting.unsampled == "fixed"
        targets = normalised_logprobs(logprobs, sign, context, rule=rule, fixed=fixed)
        moving = (targets - logprobs).abs() > NOISE
    targets = within(targets, logprobs, setting.cap)  # dividing by the sum may have moved them farther
    in_full = rule(logprobs, sign, torch.ones_like(sign))
    active = _sum(moving.double(), context, len(rows)) > 0  # by context; of [N] as there are no more
    trained = (-logprobs.expm1() > FULL) & (active[context] | setting.hold)
    held = (sign > 0) & (in_full - logprobs > NOISE) & (targets - logprobs <= NOISE)
    visits = _sum(rows.to(logprobs), context, len(rows))[context]

    def spread(values: Shaped[Tensor, "N"]) -> Shaped[Tensor, "B T"]:
        """Put the value of a token at every place that sampled it: [N] -> [B, T]."""
        dtype = old.dtype if values.is_floating_point() else values.dtype
        return torch.zeros_like(old, dtype=dtype).masked_scatter(mask, values[token].to(dtype))

    aim = {
        "context": spread(context),
        "share": spread(trained.to(logprobs) / rows),
        "weight": spread(visits if setting.visits else torch.ones_like(visits)),
        "rest": spread(rest(targets, context)[context]),
        "old_rest": spread(rest(logprobs, context)[context]),
        "unreachable": spread((in_full > 0) | held),
    }
    return batch.with_(old_logprobs=old, targets=spread(targets), prepared={**batch.prepared, **aim})


def known_logprobs(batch: Batch) -> Float[Tensor, "B T"]:
    """Return `old_logprobs` [B, T]; zeros for a batch without a trained token, where they are not measured."""
    if batch.old_logprobs is None and not batch.loss_mask.any():
        return torch.zeros_like(batch.rollout_logprobs)
    return given(batch.old_logprobs, "old_logprobs")


class Aim(NamedTuple):
    """The prepared values of the N trained tokens of a batch."""

    context: Int[Tensor, "N"]  # equal where tokens share a context
    share: Float[Tensor, "N"]  # 1 / (rows that sampled this token in this context), so it counts once; 0: untrained
    weight: Float[Tensor, "N"]  # of the context: 1, or the number of rows in it
    target: Float[Tensor, "N"]  # log τ
    rest: Float[Tensor, "N"]  # 1 - Σ_S τ of the context
    old: Float[Tensor, "N"]  # log p
    old_rest: Float[Tensor, "N"]  # 1 - Σ_S p of the context

    @classmethod
    def of(cls, batch: Batch) -> "Aim":
        """Read the values from a batch that `with_targets` returned."""
        if batch.targets is None or batch.old_logprobs is None:
            raise ValueError("the objective needs `targets` and `old_logprobs`: call its `prepare` on the whole batch")
        mask = batch.loss_mask
        return cls(
            context=batch.prepared["context"][mask],
            share=batch.prepared["share"][mask],
            weight=batch.prepared["weight"][mask],
            target=batch.targets[mask],
            rest=batch.prepared["rest"][mask],
            old=batch.old_logprobs[mask],
            old_rest=batch.prepared["old_rest"][mask],
        )


def _sum(values: Float[Tensor, "M"], index: Int[Tensor, "M"], size: int) -> Float[Tensor, "S"]:
    """Add up values by their index: [M] -> [size]."""
    return values.new_zeros(size).index_add(0, index, values)
