"""Rules that end the passes over a batch before the maximum. A rule returns its reason, or an empty text.

**When values are measured.** A pass measures its tokens before its own optimiser step. A rule that is called after pass
k therefore sees the policy at the start of pass k, after k - 1 updates: it does not yet see the update of pass k, and
after the first pass no token has moved. With minibatches each one is measured when the pass reaches it, after the
optimiser steps on those before it.
"""

import sys
from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms import progress
from outdo.algorithms.objectives.ratios import log_ratio
from outdo.types import Batch, Stop, Update

UNBOUNDED = ("plateau", "kl", "clip_high")
"""Options of `first_of` that are not shares and may be above 1."""


def first_of(
    *,
    reached: float | None = None,
    attained: float | None = None,
    plateau: float | None = None,
    kl: float | None = None,
    tolerance: float = 0.1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Stop:
    """Stop at the first condition that holds, tested in this order. The reason is the name of the option.

        reached    at least this share of the movable tokens is at its target
        attained   at least this share of the way to all targets together is done
        plateau    that share grew by less than this since the previous pass
        kl         KL(π_old‖πθ), the mean of k3 over the trained tokens, is above this (nats)

    With an objective that sets targets, a token is at its target within `tolerance` of the way to it, on either side,
    and the way is measured in probability (`attained` in `algorithms/progress.py`). With any other objective the bounds
    of its clip take the place of targets: a token is there when its ratio is at or beyond `1 + clip_high` or
    `1 - clip_low` (pass those of the objective), and the way is that of the clipped objective, from its value before
    the first pass to its maximum (`clip_attained`). The ratio is the one that the objective bounds: with `bypass` from
    the engine's log-probabilities, at the level of the sequence that of the whole answer. `tolerance` applies only to
    targets, `clip_low` and `clip_high` only to a clip.

    Raises `ValueError` when none of the four is given, or for numbers out of their range.
    """
    rules = {"reached": reached, "attained": attained, "plateau": plateau, "kl": kl}
    settings = {"tolerance": tolerance, "clip_low": clip_low, "clip_high": clip_high}
    _check(rules, settings)

    def stop(batch: Batch, passes: Sequence[Update]) -> str:
        if batch.old_logprobs is None:  # one pass of one optimiser step: π_old is its policy
            batch = batch.with_(old_logprobs=passes[0].tokens["logprobs"])
        logprobs = passes[-1].tokens["logprobs"]
        if reached is not None and reached_share(_compared(batch, passes[-1]), logprobs, **settings) >= reached:
            return "reached"
        way = [
            attained_share(_compared(batch, update), update.tokens["logprobs"], clip_low, clip_high)
            for update in passes[-2:]
        ]
        if attained is not None and way[-1] >= attained:
            return "attained"
        if plateau is not None and len(way) > 1 and way[1] - way[0] < plateau:
            return "plateau"
        return "kl" if kl is not None and moved(batch, logprobs) > kl else ""

    return stop


def _compared(batch: Batch, update: Update) -> Batch:
    """Return the batch with π_old such that πθ / π_old of a pass is the ratio that its objective bounds.

    Targets are set from π_old itself, and objectives without a ratio have no other.
    """
    if batch.targets is not None or "clip_log_ratio" not in update.tokens:
        return batch
    return batch.with_(old_logprobs=update.tokens["logprobs"] - update.tokens["clip_log_ratio"])


def reached_share(
    batch: Batch, logprobs: Float[Tensor, "B T"], *, tolerance: float, clip_low: float, clip_high: float
) -> float:
    """Return the share of the movable tokens at their target, or at the bound of a clip in a batch without targets."""
    if batch.targets is not None:
        return progress.reached(batch, logprobs, tolerance=tolerance)
    return progress.clip_reached(batch, logprobs, clip_low=clip_low, clip_high=clip_high)


def attained_share(batch: Batch, logprobs: Float[Tensor, "B T"], clip_low: float, clip_high: float) -> float:
    """Return the share of the way to all targets, or of the clipped objective's way in a batch without targets."""
    if batch.targets is not None:
        return progress.attained(batch, logprobs)
    return progress.clip_attained(batch, logprobs, clip_low=clip_low, clip_high=clip_high)


def moved(batch: Batch, logprobs: Float[Tensor, "B T"]) -> float:
    """Return the mean of ρ - 1 - log ρ over the trained tokens, ρ = πθ/π_old: k3 of KL(π_old‖πθ)."""
    away = log_ratio(logprobs, batch)[batch.loss_mask]
    return float((away.expm1() - away).mean()) if len(away) else 0.0


def _check(rules: Mapping[str, float | None], settings: Mapping[str, float]) -> None:
    """Raise `ValueError` with all mistakes at once."""
    limits = {name: value for name, value in rules.items() if value is not None}
    wrong = [] if limits else [f"give at least one of {', '.join(rules)}"]
    for name, value in (limits | dict(settings)).items():
        most, limit = (sys.float_info.max, "") if name in UNBOUNDED else (1.0, " and at most 1")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            wrong.append(f"{name} must be a number above 0{limit}, not {value!r}")
    if wrong:
        raise ValueError("first_of: " + "; ".join(wrong))
