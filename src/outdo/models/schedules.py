"""Schedules of the learning rate: functions from an optimiser step to the share of `lr` that it uses.

A schedule is called with the step, 0, 1, 2, ..., and the number of optimiser steps of the run, or None if that is not
known. Its options are keyword-only. `warmup` is the number of steps over which the share rises linearly to 1.
"""

import math
from collections.abc import Callable

Schedule = Callable[[int, int | None], float]


def constant(step: int, total: int | None, *, warmup: int = 0) -> float:
    """Stay at 1 after the warmup. Raises ValueError for a `warmup` below 0."""
    del total
    return 1.0 if step >= _checked(warmup) else (step + 1) / warmup


def linear(step: int, total: int | None, *, warmup: int = 0) -> float:
    """Fall linearly after the warmup, to 0 at step `total`. Raises ValueError if `total` is None, or `warmup` < 0."""
    done = _done(step, total, warmup)
    return constant(step, total, warmup=warmup) if step < warmup else 1 - done


def cosine(step: int, total: int | None, *, warmup: int = 0) -> float:
    """Fall by half a wave of the cosine after the warmup, to 0 at step `total` (arXiv 1608.03983, Eq. 5, no restart).

    Raises ValueError if `total` is None, or `warmup` < 0.
    """
    done = _done(step, total, warmup)
    return constant(step, total, warmup=warmup) if step < warmup else (1 + math.cos(math.pi * done)) / 2


def _done(step: int, total: int | None, warmup: int) -> float:
    """Return the share of the steps after the warmup that are done, at most 1."""
    if total is None:
        raise ValueError("a schedule that falls to 0 at the last step needs the number of steps, `total`")
    return min(1.0, (step - _checked(warmup)) / max(1, total - warmup))


def _checked(warmup: int) -> int:
    if warmup < 0:
        raise ValueError(f"warmup: expected 0 or more, found {warmup}")
    return warmup
