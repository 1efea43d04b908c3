"""How far has the policy moved towards its targets? Measures of a batch and the current log πθ [B, T].

The first half uses `batch.targets`, the second the bounds of a clipped objective, which are known in closed form. A
token that several answers sampled in the same context counts once. A token is **movable** where its target differs
from π_old. Without movable tokens everything is reached.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.objectives.base import given
from outdo.algorithms.objectives.ratios import log_ratio
from outdo.types import Batch

NOISE = 1e-5
"""Log-probabilities that differ by less than this (nats) are equal: float32 logits are not more precise."""
FULL = 1e-6
"""A token that leaves less probability than this to all others cannot grow, and is not trained."""
TOLERANCE = 0.1
"""A target is reached within this share of the way to it, on either side."""


def movable(batch: Batch) -> Bool[Tensor, "B T"]:
    """Return True for trained tokens whose target differs from π_old."""
    old, targets = _ends(batch)
    return batch.loss_mask & ((targets - old).abs() > NOISE)


def progress(batch: Batch, logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(log πθ - log π_old) / (log τ - log π_old): 0 not moved, 1 at the target, below 0 the wrong way. [B, T]

    0 where nothing is movable.
    """
    old, targets = _ends(batch)
    moves = movable(batch)
    return ((logprobs - old) / (targets - old).where(moves, 1.0)).where(moves, 0.0)


def reached(batch: Batch, logprobs: Float[Tensor, "B T"], *, tolerance: float = TOLERANCE) -> float:
    """Return the share of the movable tokens whose progress is within `tolerance` of 1."""
    return _share(batch, (progress(batch, logprobs) - 1).abs() <= tolerance, movable(batch), of_none=1.0)


def overshoot(batch: Batch, logprobs: Float[Tensor, "B T"], *, tolerance: float = TOLERANCE) -> float:
    """Return the share of the movable tokens that moved past their target by more than `tolerance` of the way."""
    return _share(batch, progress(batch, logprobs) > 1 + tolerance, movable(batch))


def wrong_way(batch: Batch, logprobs: Float[Tensor, "B T"]) -> float:
    """Return the share of the movable tokens that moved away from their target, by more than the noise of log πθ."""
    moves, (old, _) = movable(batch), _ends(batch)
    return _share(batch, (progress(batch, logprobs) < 0) & ((logprobs - old).abs() > NOISE), moves)


def unreachable(batch: Batch) -> float:
    """Return the share of tokens whose rule gives an unreachable target, and which therefore get a nearer one.

    That is a probability above 1 (the clip rule's, where π_old > 1 / (1 + clip_high)), or any rise where the
    other tokens of the context have no probability left. The nearer target can be reached.
    """
    beyond = batch.prepared.get("unreachable", torch.zeros_like(batch.loss_mask)) & batch.loss_mask
    return _share(batch, beyond, movable(batch) | beyond)


def attained(batch: Batch, logprobs: Float[Tensor, "B T"]) -> float:
    """Σ min(sgn(Δ*) Δ, |Δ*|) / Σ |Δ*|, with Δ = πθ - π_old and Δ* = τ - π_old: the share of probability that moved.

    At most 1. A token beyond its target counts like one at its target; a move the wrong way counts negatively.
    """
    moves, (old, targets) = movable(batch), _ends(batch)
    before = old.exp()
    wanted = (targets.exp() - before).where(moves, 0.0)
    moved = torch.minimum((logprobs.exp() - before) * wanted.sign(), wanted.abs()).where(moves, 0.0)
    weight = _weight(batch)
    whole = float((weight * wanted.abs()).sum())
    return float((weight * moved).sum()) / whole if whole > 0 else 1.0


def target_metrics(batch: Batch, logprobs: Float[Tensor, "B T"]) -> dict[str, float]:
    """Return the metrics of a batch's targets for the log of a run; none for a batch without targets."""
    if batch.targets is None:
        return {}
    return {
        "target/attained": attained(batch, logprobs),
        "target/reached": reached(batch, logprobs),
        "target/wrong_way": wrong_way(batch, logprobs),
        "target/overshoot": overshoot(batch, logprobs),
        "target/unreachable": unreachable(batch),
    }


# ------------------------------------------------------------------------------------- against the bounds of a clip


def clip_reached(batch: Batch, logprobs: Float[Tensor, "B T"], *, clip_low: float, clip_high: float) -> float:
    """Return the share of the tokens that have moved to the bound of the clip: ρ ≥ 1 + clip_high where Â > 0, ρ ≤ 1 -
    clip_low where Â < 0.

    Tokens with Â > 0 and π_old > 1 / (1 + clip_high) can never reach it, and are not counted.
    """
    advantages, ratio = _advantages(batch), log_ratio(logprobs, batch).exp()
    reachable = given(batch.old_logprobs, "old_logprobs").exp() * (1 + clip_high) <= 1 - FULL
    among = ((advantages > 0) & reachable) | (advantages < 0)
    there = torch.where(advantages > 0, ratio >= 1 + clip_high - NOISE, ratio <= 1 - clip_low + NOISE)
    return _share(batch, there, among, of_none=1.0)


def clip_attained(batch: Batch, logprobs: Float[Tensor, "B T"], *, clip_low: float, clip_high: float) -> float:
    """(J - J₀) / (J* - J₀) of J = Σ min(ρ Â, clip(ρ) Â), every trained token counting the same.

    J₀ is J before the first pass. J* is its maximum, known before training: Â min(1 + clip_high, 1 / π_old) for a
    good token, Â (1 - clip_low) for a bad one.
    """
    advantages, ratio = _advantages(batch), log_ratio(logprobs, batch).exp()
    old = given(batch.old_logprobs, "old_logprobs").where(batch.loss_mask, 0.0)
    now = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    most = torch.where(advantages > 0, (-old).exp().clamp(max=1 + clip_high), 1 - clip_low) * advantages
    whole = float((most - advantages).sum())
    return float((now - advantages).sum()) / whole if whole > 0 else 1.0


def _advantages(batch: Batch) -> Float[Tensor, "B T"]:
    return given(batch.advantages, "advantages").where(batch.loss_mask, 0.0)


def _ends(batch: Batch) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return log π_old and log τ."""
    return given(batch.old_logprobs, "old_logprobs"), given(batch.targets, "targets")


def _weight(batch: Batch) -> Float[Tensor, "B T"]:
    """Return the weight of each trained token; equal tokens of one context share a weight of 1. [B, T]"""
    share = batch.prepared.get("share", batch.loss_mask.float())
    return share.where(batch.loss_mask, 0.0)


def _share(batch: Batch, those: Bool[Tensor, "B T"], among: Bool[Tensor, "B T"], *, of_none: float = 0.0) -> float:
    """Return the share of `among` that are `those`; `of_none` where `among` is empty."""
    weight = _weight(batch)
    whole = float((weight * among).sum())
    return float((weight * (those & among)).sum()) / whole if whole > 0 else of_none
