"""Piece 4, the correction c: what makes up for an engine that is not quite the policy. Detached, [B, T] or a number.

The built-in engine samples from the trainer's own weights and needs none; the mismatch is measured at every step.
"""

from collections.abc import Callable

from torch import Tensor

from outdo.types import Batch

Correction = Callable[[Batch], Tensor | float]


def none(batch: Batch) -> float:
    """1: the engine is the policy."""
    return 1.0
