"""Target probabilities: how likely each sampled token shall become, fixed before the first pass over a batch.

A **context** c is an exact token prefix. S(c) are the distinct tokens that the answers of a group took after it, p_v
the probability that π_old gave to token v, and s_v in [-1, 1] how good v was: the mean, over the answers that went
through it, of their advantage cut to [-1, 1]. A rule makes of p_v and s_v the target τ_v; what is left of the
probability, 1 - Σ_S τ, belongs to all the tokens that nobody sampled: the **rest**.

Everything is computed in float64 and given in the precision of `old_logprobs`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from outdo.algorithms.objectives.base import given
from outdo.types import Batch

Rule = Callable[[Float[Tensor, "N"], Float[Tensor, "N"], Float[Tensor, "N"]], Float[Tensor, "N"]]
"""`(log p, s, strength) -> log τ`, each [N]. With strength 0 the target is p itself, with 1 the rule in full."""

NOISE = 1e-5
"""Log-probabilities this near to each other (nats) are equal: float32 logits say no more."""
FULL = 1e-6
"""A token that leaves less than this to all others has nowhere to go, and is left alone."""
HALVINGS = 50


def power_rule(power: float = 2.0) -> Rule:
    """τ = p^(κ^-s), κ = 1 + strength (power - 1): of a good token the root, of a bad one the power."""

    def rule(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return logprobs * (1 + strength * (power - 1)) ** -sign

    return rule


def tilt_rule(eta: float = 1.0) -> Rule:
    """τ = p e^(strength η s): the tilt of TPO and DRO, for which the rest makes room, not a normaliser."""

    def rule(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return logprobs + strength * eta * sign

    return rule


def clip_rule(clip_low: float = 0.2, clip_high: float = 0.2) -> Rule:
    """τ = p (1 + strength clip_high s) if s > 0, p (1 + clip_low s) if s < 0: where PPO's clip would stop."""

    def rule(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        change = clip_high * sign.clamp(min=0) + clip_low * sign.clamp(max=0)
        return logprobs + (strength * change).log1p()

    return rule


def capped(rule: Rule, cap: float) -> Rule:
    """The same rule, but |log τ - log p| is at most `cap`."""

    def within(
        logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], strength: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        return logprobs + (rule(logprobs, sign, strength) - logprobs).clamp(-cap, cap)

    return within


def target_logprobs(
    logprobs: Float[Tensor, "N"], sign: Float[Tensor, "N"], context: Int[Tensor, "N"], *, rule: Rule, keep: float
) -> Float[Tensor, "N"]:
    """log τ [N] of N distinct tokens, of which those with an equal number in `context` [N] (0 .. C-1) are rivals.

    Bad tokens (s < 0) and neutral ones get what the rule says. Good ones may not take all that they would: the rest
    keeps at least the share `keep` of its probability,

        Σ_S τ ≤ 1 - keep (1 - Σ_S p).

    Where the rule in full breaks this, the strength of the context's good tokens is halved into [0, 1] until it
    holds. Strength 0 always does, so that no token ever moves against its sign, as it can where all targets of a
    context are scaled by one factor.
    """
    room = 1 - keep * rest(logprobs, context)  # [C]

    def targets(strength: Float[Tensor, "C"]) -> Float[Tensor, "N"]:
        return rule(logprobs, sign, strength[context].where(sign > 0, 1.0))

    low, high = torch.zeros_like(room), torch.ones_like(room)
    strength = high
    for _ in range(HALVINGS):
        fits = _sum(targets(strength).exp(), context, len(room)) <= room
        low, high = strength.where(fits, low), high.where(fits, strength)
        if torch.equal(low, high):  # every context has room for the rule in full
            break
        strength = (low + high) / 2
    return targets(low)


def rest(logprobs: Float[Tensor, "N"], context: Int[Tensor, "N"]) -> Float[Tensor, "C"]:
    """1 - Σ_S e^logprobs, what each context leaves to the tokens that nobody sampled: [N] -> [C]."""
    contexts = int(context.max()) + 1 if len(context) else 0
    return (1 - _sum(logprobs.exp(), context, contexts)).clamp(min=0)


def prefix_tree(batch: Batch) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """The contexts that tokens were taken in, and the tokens taken there, as numbers: two [B, T] int64.

    Two tokens have equal contexts where their rows are of one group and alike in every token before them, trained or
    not, and are equal themselves where they are alike in this token too. Prompts are not compared: a group has one.
    """
    rows, width = batch.token_ids.shape
    start = int(batch.prompt_lengths.min()) if rows else 0
    read = batch.group.unique(return_inverse=True)[1]  # [B] below B: equal numbers have read the same so far
    columns = [read] * (start + 1)
    vocabulary = int(batch.token_ids.max()) + 1 if rows else 1
    for token in batch.token_ids.T[start:]:
        read = (read * vocabulary + token).unique(return_inverse=True)[1]
        columns.append(read)
    column = torch.arange(width, device=read.device) * rows
    numbers = torch.stack(columns, 1)  # [B, T + 1]
    return numbers[:, :-1] + column, numbers[:, 1:] + column


def own_contexts(batch: Batch) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """As if no two answers had anything in common: every token has a context to itself. Two [B, T] int64."""
    each = torch.arange(batch.token_ids.numel(), device=batch.token_ids.device).view_as(batch.token_ids)
    return each, each


def with_targets(batch: Batch, *, rule: Rule, keep: float, merge: bool, hold: bool = False) -> Batch:
    """The batch with `targets`, log τ [B, T], and with what `Aim` holds in `prepared`; 0 where nothing is trained.

    `merge` shares contexts on the group's prefix tree. A context in which no token is good or bad is left alone, unless
    `hold` asks that its tokens be kept where they are.
    """
    mask = batch.loss_mask
    old, advantages = known_logprobs(batch), given(batch.advantages, "advantages")
    contexts, tokens = prefix_tree(batch) if merge else own_contexts(batch)

    _, token, rows = tokens[mask].unique(return_inverse=True, return_counts=True)  # N distinct tokens
    context = torch.zeros_like(rows).scatter(0, token, contexts[mask]).unique(return_inverse=True)[1]  # [N]
    logprobs = (_sum(old[mask].double(), token, len(rows)) / rows).clamp(max=0.0)
    sign = _sum(advantages[mask].double().clamp(-1, 1), token, len(rows)) / rows
    targets = target_logprobs(logprobs, sign, context, rule=rule, keep=keep)
    in_full = rule(logprobs, sign, torch.ones_like(sign))
    judged = _sum((sign != 0).double(), context, len(rows)) > 0  # by context; of [N] as there are no more
    trained = (-logprobs.expm1() > FULL) & (judged[context] | hold)
    held = (sign > 0) & (in_full - logprobs > NOISE) & (targets - logprobs <= NOISE)

    def spread(values: Shaped[Tensor, "N"]) -> Shaped[Tensor, "B T"]:
        """[N] -> [B, T]: what is said of a token, at every place that took it."""
        dtype = old.dtype if values.is_floating_point() else values.dtype
        return torch.zeros_like(old, dtype=dtype).masked_scatter(mask, values[token].to(dtype))

    aim = {
        "context": spread(context),
        "share": spread(trained.to(logprobs) / rows),
        "rest": spread(rest(targets, context)[context]),
        "old_rest": spread(rest(logprobs, context)[context]),
        "unreachable": spread((in_full > 0) | held),
    }
    return batch.with_(old_logprobs=old, targets=spread(targets), prepared={**batch.prepared, **aim})


def known_logprobs(batch: Batch) -> Float[Tensor, "B T"]:
    """`old_logprobs` [B, T]; zeros where there is nothing to train on, and so nobody measured them."""
    if batch.old_logprobs is None and not batch.loss_mask.any():
        return torch.zeros_like(batch.rollout_logprobs)
    return given(batch.old_logprobs, "old_logprobs")


class Aim(NamedTuple):
    """What was prepared, of the N trained tokens of a batch alone: each [N]."""

    context: Int[Tensor, "N"]  # equal where tokens are rivals
    share: Float[Tensor, "N"]  # 1 / (rows that took this token in this context), so that it counts once; 0: left alone
    target: Float[Tensor, "N"]  # log τ
    rest: Float[Tensor, "N"]  # 1 - Σ_S τ of the context
    old: Float[Tensor, "N"]  # log p
    old_rest: Float[Tensor, "N"]  # 1 - Σ_S p of the context

    @classmethod
    def of(cls, batch: Batch) -> "Aim":
        """Read from a batch that went through `with_targets`."""
        if batch.targets is None or batch.old_logprobs is None:
            raise ValueError("the objective needs `targets` and `old_logprobs`: call its `prepare` on the whole batch")
        mask = batch.loss_mask
        return cls(
            context=batch.prepared["context"][mask],
            share=batch.prepared["share"][mask],
            target=batch.targets[mask],
            rest=batch.prepared["rest"][mask],
            old=batch.old_logprobs[mask],
            old_rest=batch.prepared["old_rest"][mask],
        )


def _sum(values: Float[Tensor, "M"], index: Int[Tensor, "M"], size: int) -> Float[Tensor, "S"]:
    """[N] values added up by their index: [size]."""
    return values.new_zeros(size).index_add(0, index, values)
