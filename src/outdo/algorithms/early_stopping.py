"""When to end the passes over a batch before the maximum: rules that say why, or nothing.

**What is measured when.** A pass measures its tokens as it goes along, before its own optimiser step. A rule asked
after pass k therefore speaks of the policy as pass k found it, after k - 1 updates: the update that followed is made
and not yet seen, and after the first pass no token has moved. With minibatches each was measured as the pass came to
it, after the optimiser steps on those before it.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from outdo.algorithms.objectives.ratios import log_ratio
from outdo.algorithms.objectives.target import progress
from outdo.types import Batch, Update

Stop = Callable[[Batch, Sequence[Update]], str]
"""Why the passes over a batch should end, given those made so far; an empty text goes on."""


def never(batch: Batch, passes: Sequence[Update]) -> str:
    """The rule that makes all passes."""
    return ""


UNBOUNDED = ("plateau", "kl", "clip_high")
"""Options of `first_of` that are not shares: they may be more than 1."""


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
    """Stop at whichever comes first, asked in this order; the reason is the option's name.

        reached    this share of the movable tokens, or more, is at its target
        attained   this share of the way to all targets together, or more, was gone
        plateau    that share grew by less than this since the pass before
        kl         KL(π_old‖πθ), the mean of k3 over the trained tokens, is above this (nats)

    With an objective that sets targets, a token is at its target within `tolerance` of the way to it, on either side,
    and the way is measured in probability (`attained` in `objectives/target/progress.py`). With any other, the bounds
    of its clip stand for targets: a token is there when its ratio is at or beyond `1 + clip_high` or `1 - clip_low`
    (give the objective's own), and the way is that of the clipped objective, from its value before the first pass to
    the most it can be (`clip_attained`). `tolerance` speaks only of targets, `clip_low` and `clip_high` only of a clip.

    Raises `ValueError` when none of the four is given, or for numbers out of their range.
    """
    rules = {"reached": reached, "attained": attained, "plateau": plateau, "kl": kl}
    settings = {"tolerance": tolerance, "clip_low": clip_low, "clip_high": clip_high}
    _check(rules, settings)

    def stop(batch: Batch, passes: Sequence[Update]) -> str:
        if batch.old_logprobs is None:  # one pass of one optimiser step: π_old is what it found
            batch = batch.with_(old_logprobs=passes[0].tokens["logprobs"])
        logprobs = passes[-1].tokens["logprobs"]
        if reached is not None and reached_share(batch, logprobs, **settings) >= reached:
            return "reached"
        way = [attained_share(batch, each.tokens["logprobs"], clip_low, clip_high) for each in passes[-2:]]
        if attained is not None and way[-1] >= attained:
            return "attained"
        if plateau is not None and len(way) > 1 and way[1] - way[0] < plateau:
            return "plateau"
        return "kl" if kl is not None and moved(batch, logprobs) > kl else ""

    return stop


def reached_share(
    batch: Batch, logprobs: Float[Tensor, "B T"], *, tolerance: float, clip_low: float, clip_high: float
) -> float:
    """Share of the movable tokens at their target; at the bound of a clip where the batch has no targets."""
    if batch.targets is not None:
        return progress.reached(batch, logprobs, tolerance=tolerance)
    return progress.clip_reached(batch, logprobs, clip_low=clip_low, clip_high=clip_high)


def attained_share(batch: Batch, logprobs: Float[Tensor, "B T"], clip_low: float, clip_high: float) -> float:
    """Share of the way to all targets; of the clipped objective's way where the batch has no targets."""
    if batch.targets is not None:
        return progress.attained(batch, logprobs)
    return progress.clip_attained(batch, logprobs, clip_low=clip_low, clip_high=clip_high)


def moved(batch: Batch, logprobs: Float[Tensor, "B T"]) -> float:
    """Mean over the trained tokens of ρ - 1 - log ρ, ρ = πθ/π_old: k3 of KL(π_old‖πθ), as the tokens are π_old's."""
    away = log_ratio(logprobs, batch)[batch.loss_mask]
    return float((away.expm1() - away).mean()) if len(away) else 0.0


def _check(rules: Mapping[str, float | None], settings: Mapping[str, float]) -> None:
    """All mistakes at once."""
    given = {name: value for name, value in rules.items() if value is not None}
    wrong = [] if given else [f"give at least one of {', '.join(rules)}"]
    for name, value in (given | dict(settings)).items():
        most, limit = (math.inf, "") if name in UNBOUNDED else (1.0, " and at most 1")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            wrong.append(f"{name} must be a number above 0{limit}, not {value!r}")
    if wrong:
        raise ValueError("first_of: " + "; ".join(wrong))
