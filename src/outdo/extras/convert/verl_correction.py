"""The correction of a recipe for verl's `algorithm.rollout_correction`: weights, rejections, and the bypass mode."""

import math
from typing import Any

from outdo.extras.convert.conversion import Conversion, piece

PREFIX = "algorithm.rollout_correction"
TEXTS = (f"{PREFIX}.rollout_is_threshold", f"{PREFIX}.rollout_rs_threshold")
"""A number, or a text with two of them between which a "_" stands: as a number, Python reads "0.5_2" as 0.52."""

LEVELS = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric", "seq_max": "max"}
"""The beginnings of the values of `rollout_rs`, and the levels of outdo's `reject`."""


def correction(c: Conversion) -> dict[str, Any]:
    """Return the options of the objective: `correction`, one or a list of several, and `bypass`."""
    given = c.given
    level, bypass = given[f"{PREFIX}.rollout_is"], given[f"{PREFIX}.bypass_mode"]
    cap = given["actor_rollout_ref.actor.tis_imp_ratio_cap"]
    weights = [piece("truncate", level="token", high=float(cap))] if cap is not None and cap > 0 else _weights(c, level)
    if bypass and given[f"{PREFIX}.loss_type"] == "ppo_clip":
        weights = []  # its ratio is that to the engine already
    if weights and given[f"{PREFIX}.rollout_is_batch_normalize"]:
        c.remark(f"{PREFIX}.rollout_is_batch_normalize", "the weights of outdo are not divided by their mean")
    corrections = [*weights, *_rejections(c)]
    options = {"bypass": True} if bypass else {}
    if not corrections:
        return options
    return options | {"correction": corrections[0] if len(corrections) == 1 else corrections}


def _weights(c: Conversion, level: str | None) -> list[Any]:
    """Return the importance weights: truncated at one bound, or 0 outside of two."""
    name = f"{PREFIX}.rollout_is_threshold"
    text = c.given[name]
    if not level:
        return []
    if level not in ("token", "sequence"):
        c.mistakes.append(f"{PREFIX}.rollout_is = {level}: expected token or sequence")
        return []
    bounds = _numbers(text)
    if len(bounds) not in (1, 2):
        c.mistakes.append(f"{name} = {text}: expected a number above 0, or two with a _ between them")
        return []
    if len(bounds) == 1:
        return [piece("truncate", level=level, high=bounds[0])]
    return [piece("mask", level=level, low=bounds[0], high=bounds[1])]


def _rejections(c: Conversion) -> list[Any]:
    """Return a rejection for each name of `rollout_rs`. verl's bounds of k1 are those of π_rollout / π_old."""
    given, name = c.given, f"{PREFIX}.rollout_rs_threshold"
    kinds = [
        kind_text.strip() for kind_text in str(given[f"{PREFIX}.rollout_rs"] or "").split(",") if kind_text.strip()
    ]
    if not kinds:
        return []
    texts = [text for text in str(given[name] or "").split(",") if text.strip()]
    texts = texts * len(kinds) if len(texts) == 1 else texts
    if len(texts) != len(kinds):
        c.mistakes.append(f"{name} = {given[name]}: expected one threshold, or one for each name of rollout_rs")
        return []
    c.remark(f"{PREFIX}.rollout_rs", "tokens that are rejected still count in outdo's means, and not in verl's")
    rejections = [_rejection(c, kind, text.strip()) for kind, text in zip(kinds, texts, strict=True)]
    return [rejection for rejection in rejections if rejection is not None]


def _rejection(c: Conversion, kind: str, text: str) -> Any | None:
    level, _, estimator = kind.rpartition("_")
    if level not in LEVELS or estimator not in ("k1", "k2", "k3"):
        expected = ", ".join(LEVELS)
        c.mistakes.append(f"{PREFIX}.rollout_rs = {kind}: expected one of {expected} with _k1, _k2 or _k3 after it")
        return None
    bounds = _numbers(text)
    if estimator == "k1" and len(bounds) == 1:
        bounds = [1 / bounds[0], bounds[0]]
    if len(bounds) != (2 if estimator == "k1" else 1):
        wanted = "two numbers above 0 with a _ between them" if estimator == "k1" else "a number above 0"
        c.mistakes.append(f"{PREFIX}.rollout_rs_threshold = {text}: expected {wanted} for {kind}")
        return None
    if estimator == "k1":
        low, high = (math.log(bound) for bound in bounds)
        return piece("reject", level=LEVELS[level], estimator=estimator, low=low, high=high)
    return piece("reject", level=LEVELS[level], estimator=estimator, high=bounds[0])


def _numbers(text: Any) -> list[float]:
    """Return the numbers above 0 with a "_" between them, in order; none if they are anything else."""
    try:
        bounds = [float(bound) for bound in str(text).split("_")]
    except ValueError:
        return []
    in_order = bounds == sorted(bounds) and all(0 < bound < math.inf for bound in bounds)
    return bounds if in_order else []
