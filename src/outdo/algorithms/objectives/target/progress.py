"""Has the policy gone where it was pushed? Measures of a batch and log πθ [B, T] as it is now.

The first half measures against `batch.targets`, the second against the bounds of a clipped objective, which are known
in closed form. A token taken by several answers in the same context counts once. A token is **movable** where its
target is elsewhere than π_old; where nothing is movable, everything is reached.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from outdo.algorithms.objectives.base import given
from outdo.algorithms.objectives.ratios import log_ratio
from outdo.algorithms.objectives.target.rules import FULL, NOISE
from outdo.types import Batch

TOLERANCE = 0.1
"""A target is reached within this share of the way to it, on either side."""


def movable(batch: Batch) -> Bool[Tensor, "B T"]:
    """Trained tokens whose target is elsewhere than π_old. [B, T] bool"""
    old, targets = _ends(batch)
    return batch.loss_mask & ((targets - old).abs() > NOISE)


def progress(batch: Batch, logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """(log πθ - log π_old) / (log τ - log π_old): 0 unmoved, 1 at the target, below 0 the wrong way. [B, T]

    0 where nothing is movable.
    """
    old, targets = _ends(batch)
    moves = movable(batch)
    return ((logprobs - old) / (targets - old).where(moves, 1.0)).where(moves, 0.0)


def reached(batch: Batch, logprobs: Float[Tensor, "B T"], *, tolerance: float = TOLERANCE) -> float:
    """Share of the movable tokens whose progress is within `tolerance` of 1."""
    return _share(batch, (progress(batch, logprobs) - 1).abs() <= tolerance, movable(batch), of_none=1.0)


def overshoot(batch: Batch, logprobs: Float[Tensor, "B T"], *, tolerance: float = TOLERANCE) -> float:
    """Share of the movable tokens that went farther than their target, by more than `tolerance` of the way."""
    return _share(batch, progress(batch, logprobs) > 1 + tolerance, movable(batch))


def wrong_way(batch: Batch, logprobs: Float[Tensor, "B T"]) -> float:
    """Share of the movable tokens that went away from their target, by more than the noise of a log-probability."""
    moves, (old, _) = movable(batch), _ends(batch)
    return _share(batch, (progress(batch, logprobs) < 0) & ((logprobs - old).abs() > NOISE), moves)


def unreachable(batch: Batch) -> float:
    """Share of the pushed tokens whose rule asks for more than there is, and which therefore get a nearer target.

    That is a probability above 1 (the clip rule's, where π_old > 1 / (1 + clip_high)), or any rise at all where the
    other tokens of the context have nothing to give. A nearer target may well be reached.
    """
    beyond = batch.prepared.get("unreachable", torch.zeros_like(batch.loss_mask)) & batch.loss_mask
    return _share(batch, beyond, movable(batch) | beyond)


def attained(batch: Batch, logprobs: Float[Tensor, "B T"]) -> float:
    """Σ min(sgn(Δ*) Δ, |Δ*|) / Σ |Δ*|, with Δ = πθ - π_old and Δ* = τ - π_old: the mass that moved as it should.

    Up to 1; what went beyond a target counts no more than what reached it, what went the wrong way counts against.
    """
    moves, (old, targets) = movable(batch), _ends(batch)
    before = old.exp()
    wanted = (targets.exp() - before).where(moves, 0.0)
    moved = torch.minimum((logprobs.exp() - before) * wanted.sign(), wanted.abs()).where(moves, 0.0)
    weight = _weight(batch)
    whole = float((weight * wanted.abs()).sum())
    return float((weight * moved).sum()) / whole if whole > 0 else 1.0


def target_metrics(batch: Batch, logprobs: Float[Tensor, "B T"]) -> dict[str, float]:
    """How a batch's targets fared, for the log of a run; nothing for a batch without targets."""
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
    """Share of the tokens that have gone as far as the clip lets them: ρ ≥ 1 + clip_high where Â > 0, ρ ≤ 1 - clip_low
    where Â < 0.

    Tokens with Â > 0 and π_old > 1 / (1 + clip_high) can never get there, and are not counted.
    """
    advantages, ratio = _advantages(batch), log_ratio(logprobs, batch).exp()
    reachable = given(batch.old_logprobs, "old_logprobs").exp() * (1 + clip_high) <= 1 - FULL
    among = ((advantages > 0) & reachable) | (advantages < 0)
    there = torch.where(advantages > 0, ratio >= 1 + clip_high - NOISE, ratio <= 1 - clip_low + NOISE)
    return _share(batch, there, among, of_none=1.0)


def clip_attained(batch: Batch, logprobs: Float[Tensor, "B T"], *, clip_low: float, clip_high: float) -> float:
    """(J - J₀) / (J* - J₀) of J = Σ min(ρ Â, clip(ρ) Â), every trained token counting the same.

    J₀ is J before the first pass. J* is the most it can be, known before training: Â min(1 + clip_high, 1 / π_old) of a
    good token, Â (1 - clip_low) of a bad one.
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
    """log π_old and log τ."""
    return given(batch.old_logprobs, "old_logprobs"), given(batch.targets, "targets")


def _weight(batch: Batch) -> Float[Tensor, "B T"]:
    """How much each trained token counts: as much as all that are one with it. [B, T]"""
    share = batch.prepared.get("share", batch.loss_mask.float())
    return share.where(batch.loss_mask, 0.0)


def _share(batch: Batch, those: Bool[Tensor, "B T"], among: Bool[Tensor, "B T"], *, of_none: float = 0.0) -> float:
    """How many of `among` are `those`; `of_none` where there are none."""
    weight = _weight(batch)
    whole = float((weight * among).sum())
    return float((weight * (those & among)).sum()) / whole if whole > 0 else of_none
